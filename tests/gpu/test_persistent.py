"""Dispatches as stages of one dispatch: which are merged, what they compute, and what a wait that is given up does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from struct import pack
from typing import Any

import numpy as np
import pytest

from ptegpu.dtypes import DType
from ptegpu.gpu import Device, Session
from ptegpu.gpu.kernel_text import INDEPENDENT, Unmergeable, parts_of
from ptegpu.gpu.merged_kernel import ARRIVES, WAITS, WAITS_LATE
from ptegpu.gpu.persistent import PersistentForm, ScratchBuffer, counter_of
from ptegpu.gpu.repeats import GAVE_UP
from ptegpu.gpu.sections import placed, sections
from ptegpu.kernels.wgsl import KernelSpec, Storage, build
from ptegpu.plan.plan import Binding, Buffer, Copy, Kernel, Plan, PlannedDispatch, Port, fixed
from ptegpu.plan.target import Target

F32 = Storage(DType.F32)
QUADS = Storage(DType.F32, lanes=4)
N = 1000
X = np.linspace(-3, 3, N, dtype=np.float32)
SIZE = [("n", "u32"), ("factor", "f32")]


def kernel(name: str, body: str, reads: dict[str, Storage], y: Storage = F32, **options: Any) -> KernelSpec:
    return build(name, body, target=Target(f16=True), reads=reads, writes={"y": y}, params=SIZE, **options)


IN_BOUNDS = "  let i = group * WG + lid; if (i >= P.n) { return; }\n"
IN_QUADS = IN_BOUNDS.replace("P.n", "P.n / 4u")
SCALE = kernel("scale", IN_BOUNDS + "  y_put(i, x_at(i) * P.factor);", {"x": F32})
SCALE4 = kernel("scale4", IN_QUADS + "  y_put4(i, x_at4(i) * P.factor);", {"x": QUADS}, QUADS)
ADD = kernel("add", IN_BOUNDS + "  y_put(i, a_at(i) + b_at(i));", {"a": F32, "b": F32})
UPDATE = kernel("update", IN_BOUNDS + "  y_put(i, y_at(i) + x_at(i));", {"x": F32})
REVERSED = kernel(  # each group of 256; `held` is a local name in `pick` as well
    "reversed",
    "  let i = group * WG + lid;\n  if (i < P.n) { held[lid] = x_at(i); }\n  workgroupBarrier();\n"
    "  let count = min(P.n - group * WG, WG);\n  if (lid < count) { y_put(i, pick(count - 1u - lid)); }",
    {"x": F32},
    shared={"held": ("f32", 256)},
    helpers="fn pick(i: u32) -> f32 { let held = held[i]; return held; }",
)
WORDS = kernel(  # the same memory, as words
    "words",
    "  let i = group * WG + lid;\n  if (i < P.n) { bits[lid] = bitcast<u32>(x_at(i)); bits[lid] ^= 1u; }\n"
    "  workgroupBarrier();\n  if (i < P.n) { y_put(i, bitcast<f32>(bits[lid])); }",
    {"x": F32},
    shared={"bits": ("u32", 200 + 56)},
)
LATE = kernel(
    "late",
    f"  let i = group * WG + lid;\n  let w = w_at(min(i, P.n - 1u));\n  {INDEPENDENT}\n"
    "  if (i < P.n) { y_put(i, w * x_at(i)); }",
    {"w": F32, "x": F32},
)

EARLY = kernel(  # its first groups do without x
    "early",
    "  let i = group * WG + lid;\n  let w = w_at(min(i, P.n - 1u));\n"
    f"  if (group < 2u) {{ y_put(i, w); return; }}\n  {INDEPENDENT}\n"
    "  if (i < P.n) { y_put(i, w - x_at(P.n - 1u - i)); }",
    {"w": F32, "x": F32},
)


def plan_of(*stages: tuple[KernelSpec, str, str], n: int = N, factor: float = 1.5, outputs: str = "y") -> Plan:
    """Plan stages, each a kernel with the buffers that it reads and the one it writes: x and z are inputs, s a state,
    w a constant, y an output, others temporaries.
    """
    names = sorted({name for _, reads, write in stages for name in (*reads, write)} | {"x"})
    roles = {"x": "input", "z": "input", "s": "state", "w": "constant"}
    first = X[::-1].tobytes()
    buffers = [
        Buffer(name, 16 * -(-n // 4), roles.get(name, "temp"), 0 if name == "w" else None)  # type: ignore[arg-type]
        for name in names
    ]
    params = pack("<IIf4x", -(-n // 256), n, factor)
    buffers.append(Buffer("params", len(params), "params"))
    place = {b.name: k for k, b in enumerate(buffers)}
    kernels = list(dict.fromkeys(spec.kernel for spec, _, _ in stages))
    dispatches = [
        PlannedDispatch(
            kernels.index(spec.kernel),
            tuple(Binding(place[b], 0, buffers[place[b]].nbytes) for b in (*reads, write, "params")),
            (-(-n // 256), 1),
            spec.kernel.name,
            write_bytes=4 * n,
        )
        for spec, reads, write in stages
    ]
    inputs = [Port(b.name, k, DType.F32, (n,)) for k, b in enumerate(buffers) if b.role == "input"]
    ports = [Port(name, place[name], DType.F32, (n,)) for name in outputs]
    return fixed("stages", buffers, kernels, dispatches, inputs=inputs, outputs=ports, params=params, blobs=[first])


@pytest.fixture(autouse=True)
def everything_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge short runs, and stages with many groups for the only workgroup."""
    monkeypatch.setattr("ptegpu.gpu.sections.FEWEST", 3)
    monkeypatch.setattr("ptegpu.gpu.persistent.MOST_GROUPS", 1 << 20)


@pytest.fixture
def waiting(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Merge dispatches. No software adapter promises to run two workgroups at a time, so there is only one."""
    monkeypatch.setattr(device, "resident", 1)
    yield device
    device.arrivals = None


def run(device: Device, plan: Plan, inputs: Sequence[np.ndarray], times: int = 2) -> tuple[list[bytes], int]:
    """Return the outputs of the last of some runs, and the dispatches of that run."""
    with Session(device) as session:
        loaded = session.prepare(plan)
        session.warm(loaded)
        for _ in range(times):
            before = device.counters.snapshot()
            results = session.run(loaded, inputs)
        return [np.asarray(r).tobytes() for r in results], device.counters.since(before).dispatches


def check(device: Device, plan: Plan, dispatches: int, *inputs: np.ndarray) -> None:
    """Compare the runs of a plan with and without waits; some dispatches are left with them."""
    merged, count = run(device, plan, inputs)
    resident, device.resident = device.resident, 0
    apart, _ = run(device, plan, inputs)
    device.resident = resident
    assert (merged, count) == (apart, dispatches)
    assert len(set(merged[0])) > 1


CHAIN = [(SCALE, "x", "a"), (SCALE, "a", "b"), (ADD, "ab", "c"), (SCALE, "c", "a"), (ADD, "ac", "b"), (SCALE, "b", "y")]


def test_a_run_of_dispatches_becomes_one(waiting):
    check(waiting, plan_of(*CHAIN), 1, X)


def test_elements_and_quads_share_a_buffer(waiting):
    check(waiting, plan_of((SCALE4, "x", "a"), (SCALE, "a", "b"), (SCALE4, "b", "c"), (REVERSED, "c", "y")), 1, X)


def test_halves_are_stored_one_by_one_where_nothing_else_is(waiting):
    if not waiting.target.f16:
        pytest.skip("no f16")
    half, halves = Storage(DType.F16), Storage(DType.F16, lanes=4)
    scale = kernel("scale", IN_BOUNDS + "  y_put(i, x_at(i) * P.factor);", {"x": half}, half)
    scale4 = kernel("scale4", IN_QUADS + "  y_put4(i, x_at4(i) * P.factor);", {"x": halves}, halves)
    check(waiting, plan_of((scale4, "x", "a"), (scale, "a", "b"), (scale4, "b", "c"), (scale, "c", "y")), 1, X)
    mixed = plan_of((SCALE, "x", "a"), (scale, "a", "b"), (scale4, "b", "c"), (SCALE4, "c", "y"))
    check(waiting, mixed, 4, X)


def test_bodies_share_workgroup_memory_of_other_types(waiting):
    plan = plan_of((REVERSED, "x", "a"), (WORDS, "a", "b"), (REVERSED, "b", "c"), (WORDS, "c", "y"))
    check(waiting, plan, 1, X)


def test_a_wait_may_follow_independent_loads(waiting):
    check(waiting, plan_of((SCALE, "x", "a"), (LATE, "wa", "b"), (LATE, "wb", "c"), (ADD, "bc", "y")), 1, X)
    check(waiting, plan_of((SCALE, "x", "a"), (EARLY, "wa", "b"), (EARLY, "wb", "c"), (EARLY, "wc", "y")), 1, X)


def test_a_state_keeps_its_value_between_runs(waiting):
    check(waiting, plan_of((SCALE, "x", "a"), (SCALE, "a", "b"), (UPDATE, "b", "s"), outputs="s"), 1, X)


def test_parameters_may_exceed_a_uniform(waiting):
    plan = plan_of(*CHAIN)
    blocks = plan.params[0] + bytes(1 << 16)
    buffers = (*plan.buffers[:-1], replace(plan.buffers[-1], nbytes=len(blocks)))
    check(waiting, replace(plan, buffers=buffers, params=(blocks,)), 1, X)


def test_two_dispatches_stay(waiting):
    check(waiting, plan_of((SCALE, "x", "a"), (SCALE, "a", "y")), 2, X)


def test_a_section_without_room_for_its_temporaries_stays_dispatches(waiting, monkeypatch):
    monkeypatch.setattr("ptegpu.gpu.persistent.MAX_SCRATCH", 4096 * 5 - 1)  # it has five regions of 4,000 bytes
    check(waiting, plan_of(*CHAIN), len(CHAIN), X)
    monkeypatch.setattr("ptegpu.gpu.persistent.MAX_SCRATCH", 4096 * 5)
    check(waiting, plan_of(*CHAIN), 1, X)


def test_a_section_with_a_long_stage_stays_dispatches(waiting, monkeypatch):
    seconds = 4 * 2 * N / waiting.target.device_class.bandwidth  # of the additions
    plan = plan_of(*CHAIN)
    (family,) = plan.families
    steps = [
        (replace(c, dispatches=tuple(replace(d, read_bytes=4 * N * (len(d.bindings) - 2)) for d in c.dispatches)),)
        for (c,) in family.steps
    ]
    plan = replace(plan, families=(replace(family, steps=tuple(steps)),))
    monkeypatch.setattr("ptegpu.gpu.persistent.LONGEST", seconds * 0.9)
    check(waiting, plan, len(CHAIN), X)
    monkeypatch.setattr("ptegpu.gpu.persistent.LONGEST", seconds * 1.1)
    check(waiting, plan, 1, X)


def test_a_merged_kernel_that_does_not_compile_is_not_used(waiting, monkeypatch):
    broken = Kernel("broken", "fn main() {", (), 256)
    monkeypatch.setattr("ptegpu.gpu.persistent.merged_kernel", lambda *_: broken)
    check(waiting, plan_of(*CHAIN), len(CHAIN), X)


def test_a_plan_with_copies_stays_dispatches(waiting):
    plan = plan_of((SCALE, "x", "a"), (ADD, "as", "b"), (SCALE, "b", "c"), (ADD, "cb", "y"))
    places = {b.name: k for k, b in enumerate(plan.buffers)}
    check(waiting, replace(plan, copies=(Copy(places["c"], places["s"], 4 * N),)), 4, X)


def test_a_run_that_gave_up_is_repeated_as_dispatches(waiting, monkeypatch):
    monkeypatch.setattr("ptegpu.gpu.residency._save", lambda *_: None)
    plan = plan_of((SCALE, "x", "a"), (SCALE, "a", "b"), (UPDATE, "b", "s"), (SCALE, "s", "y"))
    with Session(waiting) as session:
        loaded = session.prepare(plan)
        session.warm(loaded)
        good = session.run(loaded, [X])[0]
        assert bytes(16) == waiting.read(counter_of(waiting), 16)
        assert loaded.resolve([X]).recorded.waits
        waiting.write(counter_of(waiting), pack("<4I", GAVE_UP, 0, 0, 0))
        runs = [session.start(loaded, [X]) for _ in range(2)]
        for number, pending in enumerate(runs):
            np.testing.assert_allclose(pending.result()[0], (number + 2) * good, rtol=1e-6)
        assert not loaded.resolve([X]).recorded.waits
        assert 0 == waiting.resident


# --- which dispatches are merged


class FakeBuffer:
    """A buffer of its own."""

    def __init__(self, buffer: Buffer) -> None:
        self.name, self.nbytes, self.slab, self.offset = buffer.name, buffer.nbytes, None, 0


def found(plan: Plan, steps: Sequence[int] | None = None, **limits: Any) -> list[tuple[str, str, str]]:
    """Return the sections of a plan: the temporaries in the scratch buffer by stage, the buffers, and the waits."""
    target = Target(**{"max_storage_buffers": 16, **limits})
    outputs = {o.buffer for o in plan.outputs}
    numbered = list(zip(steps or range(len(plan.dispatches)), plan.dispatches))
    buffers: Any = [FakeBuffer(b) for b in plan.buffers]
    result = []
    for s in sections(plan, placed(plan, numbered), outputs, buffers, target):
        inside = " ".join(
            "".join("." if r.outside else plan.buffers[r.buffer].name for r in g.regions) for g in s.stages
        )
        slabs = "".join(sorted(slab.name if slab else "*" for slab, _ in s.slabs.values()))
        result.append((inside, slabs, "".join("-w"[g.waits] for g in s.stages)))
    return result


def test_temporaries_live_in_the_scratch_buffer():
    assert found(plan_of(*CHAIN)) == [(".a ab abc ca acb b.", "*xy", "-wwwww")]


def test_a_temporary_that_is_read_later_keeps_its_buffer():
    wide = (kernel("wide", IN_BOUNDS + "  y_put(i, x_at(i));", {"x": F32}, workgroup=64), "b", "y")
    assert found(plan_of(*CHAIN[:4], wide)) == [(".a a. a.c ca", "*bx", "-www")]
    again = plan_of(*CHAIN[:4], (wide[0], "x", "b"), (SCALE, "b", "y"))  # b is written anew first
    assert found(again) == [(".a ab abc ca", "*x", "-www")]


def test_only_a_stage_that_depends_on_an_earlier_one_waits():
    plan = plan_of((SCALE, "x", "a"), (SCALE, "x", "b"), (SCALE, "x", "c"), (ADD, "ab", "y"))
    assert found(plan) == [(".a .b .c ab.", "*xy", "---w")]


def test_a_section_ends_where_a_cache_could_be_stale():
    plan = plan_of((SCALE, "s", "a"), (ADD, "as", "b"), (UPDATE, "b", "s"), (ADD, "sa", "c"), (SCALE, "c", "y"))
    assert found(plan) == [(".. ..b b.", "*as", "-ww")]  # the next stage reads what `update` changed


def test_a_node_that_writes_a_tensor_in_parts_keeps_its_first_part():
    stages = (SCALE, "x", "a"), (SCALE, "x", "b"), (SCALE, "a", "c"), (SCALE, "x", "a"), (ADD, "ab", "y")
    assert found(plan_of(*stages)) == [(".a .b ac .a ab.", "*xy", "--w-w")]
    assert found(plan_of(*stages), steps=[0, 1, 2, 2, 3]) == [(".. .. .c ..", "*abx", "--ww")]


def test_kernels_that_write_in_place_keep_what_they_leave():
    page = kernel("write_cache", IN_BOUNDS + "  y_put(i / 2u, x_at(i));", {"x": F32})
    plan = plan_of((SCALE, "x", "a"), (page, "x", "a"), (SCALE, "a", "b"), (page, "x", "a"), (ADD, "ab", "y"))
    assert found(plan) == [(".. .. .. ..", "abx", "-www")]


def test_sections_end_at_kernels_of_other_sizes():
    small = kernel("small", IN_BOUNDS + "  y_put(i, x_at(i));", {"x": F32}, workgroup=64)
    stages = [*CHAIN[:3], (small, "c", "d"), (SCALE, "d", "a"), *CHAIN[4:]]
    assert found(plan_of(*stages)) == [(".a ab ab.", "*cx", "-ww"), (".a a.b b.", "*cdy", "-ww")]


def test_sections_keep_the_limits_of_the_adapter():
    assert found(plan_of(*CHAIN), max_storage_buffers=4) == [(".a ab abc ca acb b.", "*xy", "-wwwww")]
    assert found(plan_of(*CHAIN), max_storage_buffers=3) == []
    plan = plan_of(*CHAIN)
    large = replace(plan, buffers=(*plan.buffers[:-1], replace(plan.buffers[-1], nbytes=65552)))
    assert len(found(large, max_storage_buffers=5)) == 1
    assert found(large, max_storage_buffers=4) == []
    plan = plan_of((REVERSED, "x", "a"), (WORDS, "a", "b"), (REVERSED, "b", "y"))
    assert len(found(plan, max_shared_bytes=1024 + 16)) == 1
    assert found(plan, max_shared_bytes=1024 + 15) == []


def test_stages_say_when_to_wait_and_to_arrive(device):
    plan = plan_of((SCALE, "x", "a"), (SCALE, "x", "b"), (LATE, "wa", "c"), (LATE, "wb", "d"), (ADD, "cd", "y"))
    with Session(device) as session:
        loaded = session.prepare(plan)
        form = PersistentForm(
            device, plan, loaded.buffers, list(enumerate(plan.dispatches)), {2}, ScratchBuffer(device)
        )
    (table,) = form._tables
    assert [0, ARRIVES, WAITS_LATE, ARRIVES, WAITS] == list(table.image[:, 2])


# --- the text of kernels


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  let i", "  let all = arrayLength(&x);\n  let i"),
        ("  let i", "  let there = &x[0];\n  let i"),
        ("  let i", "  let far = wid.x;\n  let i"),
        ("const WG", "override WG"),
        ("if (group >= P.groups) { return; }", ""),
        ("array<f32>;\nfn x_at", "array<atomic<u32>>;\nfn x_at"),
    ],
)
def test_kernels_of_other_forms_are_not_merged(old, new):
    text = SCALE.kernel.wgsl
    assert old in text
    with pytest.raises(Unmergeable):
        parts_of(Kernel("other", text.replace(old, new), SCALE.kernel.access, 256))


def test_the_parts_of_a_kernel_are_those_that_it_uses():
    parts = parts_of(UPDATE.kernel)
    assert [("x", True, False), ("y", True, True)] == [(v.name, v.loads, v.stores) for v in parts.storage]
    assert {"x_at", "y_at", "y_put", "WG"} == set(parts.names)
    (_, y) = parts_of(SCALE.kernel).storage
    assert (y.loads, y.stores) == (False, True)


def test_local_names_hide_those_of_the_module(waiting):
    hiding = kernel(
        "hiding",
        IN_BOUNDS + "  let twice = twice(i);\n  for (var x = 0u; x < 2u; x++) { if (x == 1u) { continue; } }\n"
        "  { let y = twice; y_put(i, y + x_at(i)); }",
        {"x": F32},
        helpers="fn twice(x: u32) -> f32 { let a = x_at(x); { let x = vec2<f32>(a, a); return x[0] + x[1]; } }",
    )
    check(waiting, plan_of((SCALE, "x", "a"), (hiding, "a", "b"), (hiding, "b", "y")), 1, X)
