"""Cases of operators, their runs on the adapter and their comparison: everything that needs no PyTorch.

A `Case` names an operator of the registry and its arguments; `T(...)` stands for a random tensor. A `Problem` is a case
with the values of its tensors and PyTorch's results (`oracle.problem` makes it). It becomes a graph of one node, which
is planned, run on the adapter, and compared. Ints, bools and results of operators that only move data must be exact.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.graph.graph import Arg, Graph, Node, Sym, Tensor
from ptegpu.ops.registry import REGISTRY
from ptegpu.plan.plan import Plan
from ptegpu.plan.target import CLASSES, Target
from tests.graphs import settle

ONE_UNIT = replace(CLASSES["discrete"], units=1)  # every product has enough tiles for large ones
ATOL = {DType.F32: 1e-4, DType.F16: 1e-2}


@dataclass(frozen=True)
class T:
    """A random tensor argument with `low` ≤ values < `high`, or exactly `values`."""

    shape: tuple[int, ...]
    dtype: DType = DType.F32
    low: float = -2.0
    high: float = 2.0
    values: tuple[float, ...] | None = None
    constant: bool = False  # a constant of the graph, not an input
    limit: tuple[int, ...] | None = None  # the maximum shape, if dynamic

    def make(self, rng: np.random.Generator) -> np.ndarray:
        if self.values is not None:
            return np.array(self.values, dtype=self.dtype.numpy).reshape(self.shape)
        if self.dtype is DType.BOOL:
            return np.asarray(rng.random(self.shape) < 0.5)
        if self.dtype.is_float:
            return rng.uniform(self.low, self.high, self.shape).astype(self.dtype.numpy)
        return rng.integers(math.ceil(self.low), math.ceil(self.high), self.shape).astype(self.dtype.numpy)


@dataclass(frozen=True)
class S:
    """A symbolic int, an input of the graph: planned with `planned`, run with `value`."""

    value: int
    planned: int | None = None


@dataclass(frozen=True)
class Case:
    op: str
    args: tuple[Any, ...]
    reference: Callable[..., Any] | None = None  # by default torch.ops.<op>
    out: DType | None = None  # the declared output dtype, if the arguments do not determine it
    atol: float | tuple[float, ...] | None = None  # see `compare`; for all results, or one for each
    note: str = ""
    mutated: tuple[int, ...] = field(default=())  # arguments (states) whose final value is also compared
    peer: Callable[..., Any] | None = None  # PyTorch's fast implementation, if the reference is slow

    def __str__(self) -> str:
        shown = ",".join(_show(a) for a in self.args)
        return f"{self.op}({shown}){self.note}"


def tables(name: Literal["CASES", "BENCHMARKS"] = "CASES") -> Iterator[Case]:
    """Yield every case of the tables in tests/ops, which need PyTorch; BENCHMARKS has real sizes."""
    for path in sorted((Path(__file__).parent / "ops").glob("test_*.py")):
        yield from getattr(importlib.import_module(f"tests.ops.{path.stem}"), name, ())


def _show(a: Any) -> str:
    if isinstance(a, S):
        return f"${a.value}"
    if isinstance(a, T):
        return f"{a.dtype.value}{'x'.join(map(str, a.shape)) or '0d'}"
    if isinstance(a, list | tuple):
        return "[" + ",".join(map(_show, a)) + "]"
    return str(a)


def walk(a: Any, leaf: Callable[[Any], Any]) -> Any:
    """Rebuild nested lists with `leaf` applied; lists become lists."""
    return [walk(x, leaf) for x in a] if isinstance(a, list | tuple) else leaf(a)


def declared(case: Case, eager: np.ndarray) -> DType:
    """Return the dtype that an exported program declares for this output on the GPU."""
    return case.out or DType.of(eager.dtype).device


def graph_of(case: Case, arrays: dict[int, np.ndarray], eager: Sequence[np.ndarray]) -> tuple[Graph, list[np.ndarray]]:
    """Return a graph of one node and the arrays of its inputs."""
    graph = Graph(str(case)[:60])
    inputs: list[np.ndarray] = []
    definition = REGISTRY[case.op]
    mutated = {k for k in definition.mutates}

    def argument(a: Any, position: int) -> Arg:
        if isinstance(a, list | tuple):
            return tuple(argument(x, position) for x in a)
        if isinstance(a, S):
            sym = Sym(f"sym{len(graph.inputs)}", a.value if a.planned is None else a.planned)
            graph.inputs.append(sym)
            return sym
        if not isinstance(a, T):
            return a
        name = f"arg{len(inputs)}"
        if a.constant or position in mutated:
            return Tensor(name, a.dtype, a.shape, "state" if position in mutated else "constant", arrays[id(a)])
        inputs.append(arrays[id(a)])
        tensor = Tensor(name, a.dtype, a.limit or a.shape, "input")
        graph.inputs.append(tensor)
        return tensor

    args = tuple(argument(a, k) for k, a in enumerate(case.args))
    plain = eager[: len(eager) - len(case.mutated)]
    outs = tuple(Tensor(f"out{k}", declared(case, e), e.shape) for k, e in enumerate(plain))
    for out, shape in zip(outs, definition.infer(args, outs) if grows(case.args) else (), strict=False):
        out.max_shape = out.shape = shape
    states = tuple(args[k] for k in definition.mutates)
    graph.nodes.append(Node(definition, args, outs, case.op, tuple(s for s in states if isinstance(s, Tensor))))
    graph.outputs = [*outs, *(args[k] for k in case.mutated)]
    return graph, inputs


def symbolic(a: Any) -> list[S]:
    """Return the symbolic ints of arguments, in order."""
    return [s for x in a for s in symbolic(x)] if isinstance(a, list | tuple) else [a] if isinstance(a, S) else []


def grows(a: Any) -> bool:
    return any(map(grows, a)) if isinstance(a, list | tuple) else isinstance(a, T) and a.limit is not None


def given(graph: Graph, case: Case, inputs: Sequence[np.ndarray]) -> list[Any]:
    """Return the arrays and ints of a run in the order of the graph's inputs."""
    arrays, ints = iter(inputs), iter(symbolic(case.args))
    return [next(ints).value if isinstance(v, Sym) else next(arrays) for v in graph.inputs]


def planner_of(graph: Graph, target: Target, dynamic: bool = False, **options: Any) -> Planner:
    """Return a planner; `dynamic` lets the sizes of all inputs change."""
    for v in graph.inputs:
        if isinstance(v, Sym):
            v.value = 0
    return Planner(graph, target, [dynamic or isinstance(v, Sym) for v in graph.inputs], **options)


def plan_of(graph: Graph, target: Target, inputs: Sequence[Any] | None = None, dynamic: bool = False) -> Plan:
    """Return the plan for these inputs, or for all sizes without inputs."""
    if inputs is None:
        return planner_of(graph, target, dynamic).cover().plan()
    planner = planner_of(graph, target, dynamic)
    planner.extend(*sizes_of(inputs))
    return planner.plan()


def sizes_of(inputs: Sequence[Any]) -> tuple[list[Any], Callable[[int, int], int]]:
    """Return the shapes of inputs (an int stands for itself), and a function that reads their elements."""
    shapes = [x if isinstance(x, int) else x.shape for x in inputs]
    return shapes, lambda position, element: int(np.asarray(inputs[position]).reshape(-1)[element])


@cache
def device(f16: bool = True, subgroups: bool = True, limits: str = "adapter") -> Any:
    from ptegpu.gpu.device import open_device

    return open_device("auto", f16=f16, subgroups=subgroups, limits=limits)


def run_plan(plan: Plan, inputs: Sequence[Any], gpu: Any) -> list[np.ndarray]:
    from ptegpu.gpu.session import Session

    session = Session(gpu)
    try:
        return session.run(session.prepare(plan), inputs)
    finally:
        session.close()


@dataclass(frozen=True, eq=False)
class Problem:
    """A case with its tensors' values and PyTorch's outputs in float32 (for shapes and dtypes) and float64."""

    case: Case
    arrays: dict[int, np.ndarray]  # by the id of a `T`
    eager: Sequence[np.ndarray]
    golden: Sequence[np.ndarray]

    def check(self, gpu: Any, **target: Any) -> None:
        """Run the case on a device and compare with the golden results; `target` overrides fields of the target.

        The kernels are those for a discrete GPU even on a software adapter.
        """
        graph, arrays = graph_of(self.case, self.arrays, self.eager)
        inputs = given(graph, self.case, arrays)
        settle(graph)
        for t in graph.tensors():
            assert t.shape == t.max_shape, f"the shape rule gives {t.shape}, PyTorch {t.max_shape}"
        adapter = replace(gpu.target, **{"device_class": CLASSES["discrete"], **target})
        plan = plan_of(graph, adapter, inputs, grows(self.case.args))
        self.compare(run_plan(plan, inputs, gpu), loses=gpu.target.name.startswith("SwiftShader"))

    @property
    def right(self) -> list[np.ndarray]:
        """Return the golden results in the dtypes of a device."""
        return [g.astype(declared(self.case, e).numpy) for g, e in zip(self.golden, self.eager, strict=True)]

    def compare(self, results: Sequence[np.ndarray], loses: bool = False) -> None:
        """Compare results with the golden ones.

        `loses` is for an adapter that may lose infinities and NaN: if any are involved, only elements that are finite
        in both count.
        """
        floats = (a for a in (*self.arrays.values(), *self.golden) if a.dtype.kind == "f")
        loses = loses and not all(np.isfinite(a).all() for a in floats)
        for k, (want, got) in enumerate(zip(self.golden, results, strict=True)):
            assert got.shape == want.shape, f"shape {got.shape}, PyTorch {want.shape}"
            if loses and got.dtype.kind == "f":
                finite = np.isfinite(got) & np.isfinite(want)
                want, got = want[finite], got[finite]
            if got.dtype.kind == "f":
                compare(got, want, tolerance(self.case, DType.of(got.dtype), k), "ptegpu against float64")
            else:
                np.testing.assert_array_equal(got, want.astype(got.dtype))


def tolerance(case: Case, dtype: DType, result: int) -> float:
    """Return the tolerance of `compare` for a result of a case."""
    if case.atol is None:
        return 0.0 if REGISTRY[case.op].moves else ATOL[dtype]
    return case.atol[result] if isinstance(case.atol, tuple) else case.atol


def close(got: Any, want: Any, share: float = 1e-5) -> None:
    """Assert equal shapes and dtypes, and floats within `share` of the largest magnitude (see `compare`)."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    compare(got, want, share if got.dtype.kind == "f" else 0.0, "the result")


def compare(got: np.ndarray, want: np.ndarray, atol: float, what: str) -> None:
    """Assert errors within `atol` times the largest golden magnitude, and infinities and NaNs at the same elements.

    A golden result of only zeros must match exactly.
    """
    got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=f"{what}: NaN")
    finite = np.isfinite(want)
    np.testing.assert_array_equal(
        got[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)], err_msg=f"{what}: inf"
    )
    scale = float(np.abs(want[finite]).max(initial=0.0))
    error = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
    assert error <= atol * scale, f"{what}: error {error:.3g} at scale {scale:.3g}"
