"""One plan at many sizes: its evaluation, its uploads, and the objects that are made only once."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from struct import pack

import numpy as np
import pytest

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.errors import DeviceError, InvalidInput, LimitExceeded
from ptegpu.gpu import Counters, Device, DeviceTensor, Session, Unplanned
from ptegpu.plan.plan import Binding, Buffer, Choice, Expr, Family, Input, Kernel, Patch, Plan, PlannedDispatch, Port

DATA = Path(__file__).resolve().parents[1] / "data"
MOST = 200
REFUSAL = "no more than 150 elements"

SCALED = Kernel(  # y = x × a factor, as many as the parameters say
    "scaled",
    """
struct Params { count: u32, factor: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < params.count) { y[id.x] = x[id.x] * params.factor; }
}
""",
    ("read", "write", "uniform"),
    64,
)
NEGATED = replace(SCALED, name="negated", wgsl=SCALED.wgsl.replace("x[id.x] *", "-x[id.x] *"))


def sized() -> Plan:
    """n elements: up to 99 become x × n / 2, up to 149 -x × n / 2; more are refused, above 180 nothing is planned."""
    rows = (
        ("size", 0, 0),
        *(("const", n, 0) for n in (2, 63, 64, 100, 150, 181)),  # 1 to 6
        ("div", 0, 1),
        ("add", 0, 2),
        ("floordiv", 8, 3),
        ("lt", 0, 4),  # 10
        ("ge", 0, 4),
        ("lt", 0, 5),
        ("ge", 0, 5),
        ("lt", 0, 6),
        ("mul", 0, 1),  # 15
    )
    nbytes = MOST * 4

    def dispatch(kernel: int) -> PlannedDispatch:
        bindings = (Binding(0, 0, nbytes), Binding(1, 0, nbytes), Binding(2, 0, 16))
        return PlannedDispatch(
            kernel, bindings, (Expr(9), 1), "y", patches=(Patch(0, Expr(0), "u32"), Patch(1, Expr(7), "f32"))
        )

    y = Port("y", 1, DType.F32, (Expr(0),))
    steps = ((Choice((10,), (dispatch(0),)), Choice((11,), (dispatch(1),))),)
    return Plan(
        "sized",
        (Buffer("x", nbytes, "input"), Buffer("y", nbytes, "temp"), Buffer("params", 16, "params")),
        (SCALED, NEGATED),
        (Input("x", 0, DType.F32, (MOST,), dynamic=True),),
        (Family((12,), steps, (y, Expr(15))), Family((13, 14), (), (), refusal=REFUSAL)),
        rows=rows,
        params=(pack("<If2I", 0, 0.0, 0, 0),),
    )


def right(x: np.ndarray) -> np.ndarray:
    return x * np.float32(len(x) / 2) * (1 if len(x) < 100 else -1)


def ramp(length: int) -> np.ndarray:
    return np.arange(1, length + 1, dtype=np.float32)


def test_shapes_grids_words_and_ints_are_those_of_the_size(session: Session) -> None:
    prepared = session.prepare(sized())
    for n in (0, 1, 64, 65, 99, 100, 149, 2, 100, 2):
        y, twice = session.run(prepared, [ramp(n)])
        np.testing.assert_array_equal(right(ramp(n)), y)
        assert 2 * n == twice


def test_a_choice_is_compiled_when_it_is_first_taken(session: Session, device: Device) -> None:
    def made(n: int) -> tuple[int, int]:
        before = device.counters.snapshot()
        session.run(prepared, [ramp(n)])
        used = device.counters.since(before)
        return used.bind_groups_created, used.buffers_created

    prepared = session.prepare(sized())
    session.run(prepared, [ramp(149)])
    assert [(1, 0), (0, 0), (0, 0), (0, 0)] == [made(n) for n in (3, 4, 148, 7)]


def test_once_warm_no_size_makes_anything(session: Session, device: Device) -> None:
    prepared = session.prepare(sized())
    session.warm(prepared)
    session.run(prepared, [ramp(149)])
    for n in (148, 1, 99, 100):
        before = device.counters.snapshot()
        session.run(prepared, [ramp(n)])
        uploaded = 4 * n + 16  # the input, and one buffer of parameters
        assert Counters(submits=1, dispatches=1, readbacks=1, bytes_uploaded=uploaded) == device.counters.since(before)
    before = device.counters.snapshot()
    session.run(prepared, [ramp(100)])
    assert 400 == device.counters.since(before).bytes_uploaded  # the same size again


def test_no_dispatch_where_there_is_nothing_to_do(session: Session, device: Device) -> None:
    prepared = session.prepare(sized())
    before = device.counters.snapshot()
    session.run(prepared, [ramp(0)])
    assert 0 == device.counters.since(before).dispatches


def test_sizes_that_the_plan_refuses_or_does_not_know(session: Session) -> None:
    prepared = session.prepare(sized())
    template = f"plan sized cannot run at [({{}},)]; of sizes like these it was found: {REFUSAL}"
    for n, message in (
        (150, template.format(150)),
        (180, template.format(180)),
        (181, "plan sized does not hold for [(181,)]"),
    ):
        with pytest.raises(Unplanned) as caught:
            session.run(prepared, [ramp(n)])
        assert message == str(caught.value)
        np.testing.assert_array_equal(right(ramp(5)), session.run(prepared, [ramp(5)])[0])
    with pytest.raises(InvalidInput) as refused:
        session.run(prepared, [ramp(201)])
    assert "input 0 (x) must be float32 of at most [200], not float32[201]" == str(refused.value)


def test_a_grid_beyond_the_device_is_refused(session: Session) -> None:
    plan = sized()
    rows = (*plan.rows, ("const", 1 << 20, 0), ("mul", 9, 16))
    family = plan.families[0]
    (first, second) = family.steps[0]
    wide = replace(first, dispatches=(replace(first.dispatches[0], grid=(Expr(17), 1)),))
    prepared = session.prepare(replace(plan, rows=rows, families=(replace(family, steps=((wide, second),)),)))
    with pytest.raises(LimitExceeded) as caught:
        session.run(prepared, [ramp(2)])
    assert "plan sized needs 1048576 workgroups in one dimension, 65535 are allowed" == str(caught.value)


def test_an_output_that_would_not_fit_is_refused(session: Session) -> None:
    plan = sized()
    family = replace(plan.families[0], outputs=(Port("y", 1, DType.F32, (Expr(15),)),))
    prepared = session.prepare(replace(plan, families=(family,)))
    session.run(prepared, [ramp(100)])
    with pytest.raises(ptegpu.InvalidProgram) as caught:
        session.run(prepared, [ramp(101)])
    assert "plan sized: y of [202] does not fit its buffer" == str(caught.value)


def test_a_plan_with_more_families_takes_the_place_of_one(session: Session) -> None:
    plan = sized()
    prepared = session.prepare(replace(plan, families=plan.families[:1]))
    (resident, _) = session.run(prepared, [ramp(3)], read=[])
    assert isinstance(resident, DeviceTensor)
    (family, _) = plan.families
    more = replace(family, guards=(13,), steps=((family.steps[0][1],),))
    session.extend(prepared, replace(plan, families=(family, more)))
    np.testing.assert_array_equal(right(ramp(3)), resident.numpy())
    for n in (3, 199, 120, 4):
        np.testing.assert_array_equal(right(ramp(n)), session.run(prepared, [ramp(n)])[0])


def test_runs_of_several_sizes_may_be_on_their_way(session: Session) -> None:
    prepared = session.prepare(sized())
    sizes = (3, 120, 7, 7, 149)
    started = [session.start(prepared, [ramp(n)]) for n in sizes]
    for n, pending in zip(reversed(sizes), reversed(started), strict=True):
        np.testing.assert_array_equal(right(ramp(n)), pending.result()[0])


def test_an_output_feeds_a_run_of_its_size(session: Session) -> None:
    prepared = session.prepare(sized())
    (y, _) = session.run(prepared, [ramp(3)], read=[])
    assert isinstance(y, DeviceTensor)
    np.testing.assert_array_equal(right(right(ramp(3))), session.run(prepared, [y])[0])


def test_a_plan_that_is_closed_is_refused(session: Session) -> None:
    prepared = session.prepare(sized())
    session.close()
    with pytest.raises(ptegpu.Closed):
        session.resolve(prepared, [ramp(3)])
    assert prepared.session is None


def test_another_sessions_plan_is_refused(session: Session, device: Device) -> None:
    with Session(device) as other:
        prepared = other.prepare(sized())
        with pytest.raises(DeviceError, match="plan sized was prepared by another session"):
            session.resolve(prepared, [ramp(3)])


def tokens(length: int) -> np.ndarray:
    return np.arange(length)[None] % 11


def test_no_size_of_a_program_makes_or_keeps_anything(device: Device) -> None:
    def sizes(count: int) -> tuple[dict[str, int], Counters]:
        before = device.counters.snapshot()
        for n in range(count):
            program(tokens(2 + n % 7))
        gc.collect()
        return device.api.object_counts(), device.counters.since(before)

    with ptegpu.load(DATA / "dynamic.pte", [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"]) as program:
        program.prepare()
        sizes(1)  # the longest is read back through a staging buffer
        program(tokens(8))
        objects_after_7, first = sizes(7)
        objects_after_200, second = sizes(200)
        for used in (first, second):
            assert (0, 0, 0) == (used.buffers_created, used.pipelines_created, used.bind_groups_created)
        assert objects_after_7 == objects_after_200
        engines = program.method("forward")._method.runners.values()
        assert [0] * len(engines) == [e.extended for e in engines]


def test_kernels_for_the_sizes_that_are_told_are_there_first(device: Device) -> None:
    point_lists = ([], [{"x[0]": 7}], [{"x[0]": 120}], [{"x[0]": 7}, {"x[0]": 120}], [{"x[0]": 170}], [{"x[0]": 190}])
    families = []
    for points in point_lists:
        with Session(device) as session:
            families.append(sorted(session.prepare(sized(), points).pipelines))
    assert [[], [0], [1], [0, 1], [], []] == families
