"""Programs that exceed a limit: they are refused before they get the resource."""

from __future__ import annotations

import itertools
import shutil
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tools.bombs import STRICT, call

import ptegpu
from ptegpu import limits as module
from ptegpu.compiler.program import cut_method, plan_methods
from ptegpu.compiler.stretches import build
from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, InvalidInput, InvalidProgram, LimitExceeded, OutOfMemory
from ptegpu.format import pte, source
from ptegpu.format.source import open_source, read_pieces
from ptegpu.limits import Budget, Limits
from ptegpu.plan.method import Call, Var
from ptegpu.plan.target import Target
from ptegpu.runtime import arrays
from ptegpu.runtime.method import MethodRunner
from tests.methods import method_of

DATA = Path(__file__).parent / "data"
ENDS = {
    "ok": "gpu_avgpool_huge_kernel gpu_maxpool_huge_kernel gpu_pow_int_huge gpu_pow_int_neg gpu_pow_nan tree_notdict "
    "tree_typeint",
    "ExecutionError": "bigint_squaring full_f64_2g full_f64_32t loop_bigint_add ones_f64_2g zeros_f64_32t",
    "LimitExceeded": "huge_state_host_sum huge_state_relu loop_gpu_forever loop_host_forever split_many",
}


def f64(*sizes: int, **more: Any) -> pte.FileTensor:
    return pte.FileTensor(DType.F64, sizes, tuple(range(len(sizes))), **more)


def program(values: list[pte.Value], outputs: list[int], *chain: pte.Instruction) -> pte.FileMethod:
    return pte.FileMethod("forward", tuple(values), (), tuple(outputs), (chain,), (), "", "")


def refused(file_method: pte.FileMethod, **bounds: Any) -> str:
    """Load and call a program within these limits; return the message of its error."""
    budget = Budget(Limits(**bounds))
    with pytest.raises(LimitExceeded) as error:
        with budget.spending("loading it"):
            method = method_of(file_method)
        method.budget = budget
        method()
    message, rest = str(error.value).split("; where you trust the file, load it with limits=Limits(")
    name = next(iter(bounds))
    assert f"{name}=…) or --limit {name}=…" == rest
    return message


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], Limits()),
        (["memory=2G", "seconds=0.5"], Limits(memory=2 << 30, seconds=0.5)),
        (["nodes=1K", "folded=0"], Limits(nodes=1024, folded=0)),
    ],
)
def test_limits_from_a_command_line(texts: list[str], expected: Limits) -> None:
    assert expected == Limits.parse(texts)


@pytest.mark.parametrize("text", ["memory", "memory=", "memory=-1", "weight=3", "memory=2X"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Limits.parse([text])
    names = "memory, folded, nodes, items, plans, pipelines, instructions, seconds"
    assert f"invalid limit '{text}': expected NAME=NUMBER, such as memory=2G; names are {names}" == str(error.value)


@pytest.mark.parametrize(("name", "value"), [("nodes", -1), ("nodes", 1.5), ("memory", None), ("seconds", "1")])
def test_limits_are_numbers(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"invalid limit {name}: expected a number .*, not {value!r}"):
        Limits(**{name: value})
    with pytest.raises(InvalidInput, match=r"limits are ptegpu.Limits\(…\), not dict"):
        ptegpu.load(DATA / "mlp.pte", limits={"nodes": 1})  # type: ignore[arg-type]


def test_operator_calls_are_counted() -> None:
    moves = [pte.MoveCall(0, 1)] * 11
    assert "method forward needs 11 operator calls, 10 are allowed" == refused(program([1, 2], [1], *moves), nodes=10)


def test_methods_and_stretches_are_counted() -> None:
    with pytest.raises(LimitExceeded, match="the program needs 6 plans, 5 are allowed"):
        ptegpu.load(DATA / "methods.pte", limits=Limits(plans=5))


def test_constants_that_lie_over_each_other_are_converted_once() -> None:
    numbers = np.arange(1000)
    constants = [Var(f"v{k}", DType.I64, numbers.shape, kind="constant", data=numbers[:]) for k in range(3)]
    sums = [Var(f"sum{k}", DType.I64, numbers.shape) for k in range(2)]
    ends = zip(constants, constants[1:], sums)
    calls = [Call("aten.add.Tensor", (a, b, 1), (out,), f"add #{k}") for k, (a, b, out) in enumerate(ends)]
    budget = Budget()
    with budget.spending("loading it"):
        build("plan", calls, sums, set())
    assert 4 * numbers.size == budget.copied


def test_items_of_lists_are_counted_each_time() -> None:
    full = pte.KernelCall("aten::full.out", (1, 2, 3, 3))
    file_method = program([1, pte.IntList((0,) * 4), 2.0, f64(1, 1, 1, 1)], [3], *[full] * 3)
    assert "method forward needs 12 items of lists, 10 are allowed" == refused(file_method, items=10)


def test_a_call_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(module, "clock", lambda: next(seconds))
    file_method = program([False, 1, 2], [2], pte.MoveCall(1, 2), pte.JumpFalse(0, 0))
    assert "forward took more than 100 seconds" == refused(file_method, seconds=100)


def test_states_are_counted_before_they_are_made() -> None:
    file_method = program([f64(1 << 40), f64(1 << 40), 1], [1], pte.KernelCall("aten::add.out", (0, 0, 2, 1, 1)))
    needs = f"{8 << 40:,} bytes of temporaries and states, {1 << 38:,} are allowed"
    assert f"method forward needs {needs}" == refused(file_method, memory=1 << 38)


def test_states_beyond_the_memory_of_the_machine_are_refused() -> None:
    file_method = program([f64(1 << 44), f64(1 << 44), 1], [1], pte.KernelCall("aten::add.out", (0, 0, 2, 1, 1)))
    outers, _ = plan_methods({"forward": cut_method(file_method, {}, None)}, Target())
    with pytest.raises(OutOfMemory, match="method forward has states of 140,737,488,355,328 bytes"):
        MethodRunner(outers["forward"], Budget(Limits(memory=1 << 50))).reset()


@pytest.mark.parametrize("count", [3, 4])
def test_what_the_host_computes_is_counted(count: int) -> None:
    """Each slot takes 800 bytes; a new value frees the old one."""
    values: list[pte.Value] = [100, pte.IntList((0,)), 2.0, *(f64(100) for _ in range(count))]
    file_method = program(values, [3], *(pte.KernelCall("aten::rand.out", (1, 3 + k, 3 + k)) for k in range(count)))
    if count == 3:
        runner = method_of(file_method)
        runner.budget = Budget(Limits(memory=2400))
        for _ in range(2):
            runner()
    else:
        assert "a call on the host needs 800 bytes of temporaries and states, 0 are allowed" in refused(
            file_method, memory=2400
        )


def test_a_result_above_its_bound_is_not_computed() -> None:
    size = pte.IntList((0,))
    file_method = program([1 << 40, size, 2.0, f64(4)], [3], pte.KernelCall("aten::full.out", (1, 2, 3, 3)))
    with pytest.raises(ExecutionError) as error:
        method_of(file_method)()
    expected = "aten::full.out #0: its result is [1099511627776], the program allows at most [4]"
    assert expected == str(error.value)


@pytest.mark.parametrize(("folded", "left"), [(1600, 0), (1599, 1), (0, 2)])
def test_folding_ends_where_its_bytes_do(folded: int, left: int) -> None:
    values: list[pte.Value] = [100, pte.IntList((0,)), 2.0, f64(100), f64(100)]
    fills = [pte.KernelCall("aten::full.out", (1, 2, 3 + k, 3 + k)) for k in range(2)]
    with Budget(Limits(folded=folded)).spending("loading it"):
        assert left == len(cut_method(program(values, [3, 4], *fills), {}, None).flat.code)


def test_ints_have_64_bits() -> None:
    square = pte.KernelCall("executorch_prim::mul.Scalar", (0, 0, 0))
    with pytest.raises(ExecutionError) as error:
        method_of(program([3, True], [0], *[square] * 64))()
    assert "executorch_prim::mul.Scalar #5: an int of 102 bits does not fit 64" == str(error.value)


def test_every_small_bomb_ends_as_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is thread time; memory is that of NumPy and Python, as tracemalloc counts it."""
    monkeypatch.setattr(module, "clock", module.time.thread_time)
    zipfile.ZipFile(DATA / "bombs.zip").extractall(tmp_path)
    expected = {name: end for end, names in ENDS.items() for name in names.split()}
    wrong, strict = [], Limits.parse([*STRICT.split(), "seconds=0.2"])
    with ptegpu.load(DATA / "cnn.pte") as small:
        call(small)
    for file in sorted(tmp_path.iterdir()):
        end = "ok"
        tracemalloc.start()
        try:
            with ptegpu.load(file, limits=strict) as program:
                call(program)
        except ptegpu.PtegpuError as e:
            end = type(e).__name__
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if end != expected.get(file.stem, "InvalidProgram") or peak > 16 << 20:
            wrong.append((file.stem, end, peak))
    assert [] == wrong


def test_kernels_of_a_run_are_counted_before_they_compile() -> None:
    with pytest.raises(LimitExceeded, match=r"^it needs \d compiled kernels, 1 are allowed; "):
        ptegpu.load(DATA / "cnn.pte", limits=Limits(pipelines=1))


def test_kernels_used_least_recently_go_and_come_back() -> None:
    def results(program: ptegpu.Program) -> list[list[Any]]:
        return [program.method(m).execute(arguments(program.method(m))) for m in program.methods]

    with ptegpu.load(DATA / "methods.pte") as free:
        most = max(len(p.kernels) for m in free.methods for p in free.method(m).plans)
        kernels = sum(len(p.kernels) for m in free.methods for p in free.method(m).plans)
        assert kernels > most
        expected = results(free)
        with ptegpu.load(DATA / "methods.pte", limits=Limits(pipelines=most)) as program:
            engines = [e for m in program._methods.values() for e in m.runners.values()]
            for _ in range(2):
                assert str(expected) == str(results(program))
                assert sum(len(e.loaded.pipelines) for e in engines) <= most
                free.reset()
                expected = results(free) if program.reset() is None else []


def arguments(method: ptegpu.Method) -> list[Any]:
    return [0 if s.shape is None else np.ones(s.shape, s.dtype) for s in method.inputs]


@pytest.mark.parametrize("change", ["cut", "rewritten"])
@pytest.mark.parametrize("kind", ["pte", "bundle"])
@pytest.mark.parametrize("name", ["mlp", "counting", "dynamic", "methods"])
def test_a_file_that_changes_after_load_changes_nothing(
    name: str, kind: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "SMALL", 0)
    monkeypatch.setattr(source, "SMALL", 0)
    files = [
        Path(shutil.copy(f, tmp_path)) for f in sorted(DATA.glob(f"{name}*.pt?"), key=lambda f: f.suffix == ".ptd")
    ]
    if kind == "bundle":
        saved = tmp_path / "saved.bundle"
        ptegpu.compile(files[0], files[1:]).save(saved)
        files = [saved]
    with ptegpu.load(files[0], files[1:] or None) as program, ptegpu.load(files[0], files[1:] or None) as before:
        expected = [before.method(m).execute(arguments(before.method(m))) for m in before.methods]
        for file in files:
            with file.open("r+b") as f:
                f.truncate(0) if change == "cut" else f.write(b"\xff" * file.stat().st_size)
        for _ in range(2):
            assert str(expected) == str(
                [program.method(m).execute(arguments(program.method(m))) for m in before.methods]
            )
            program.reset()


def test_a_file_that_is_cut_while_it_is_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SMALL", 0)
    file = tmp_path / "model.pte"
    file.write_bytes(bytes(range(256)) * 256)
    view, _ = open_source(file, name=None, expected="a program")
    assert bytes(view[1000:60000]) == b"".join(map(bytes, read_pieces(view[1000:60000])))
    file.write_bytes(b"")
    with pytest.raises(InvalidProgram) as error:
        list(read_pieces(view[1000:60000]))
    assert f"{file}: the file was truncated while it was loaded" == str(error.value)


def test_an_interrupt_right_after_a_budget_is_set_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    variable, interrupts = module._current, iter([KeyboardInterrupt()])

    def interrupted(value: Any) -> None:
        variable.set(value)
        for interrupt in interrupts:
            raise interrupt

    monkeypatch.setattr(module, "_current", SimpleNamespace(get=variable.get, set=interrupted))
    with pytest.raises(KeyboardInterrupt), Budget().spending("a call"):
        pass
    assert module.current() is None
