"""A handful of kernels run on a device and compared with NumPy: whether this adapter computes what it should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compiler.planner import planned
from ..dtypes import DType
from ..errors import PtegpuError
from ..gpu import Device, Session
from ..graph.graph import Arg, Graph, Node, Tensor
from ..ops import REGISTRY
from .compare import scale_of

TOLERANCE = 1e-5  # relative to the largest value; casts and moves must be exact


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    operator: str
    args: tuple[Any, ...]  # arrays become inputs
    expected: np.ndarray
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    operator: str
    passed: bool
    error: float | None = None  # relative to the largest value
    problem: str = ""


def checks() -> list[Check]:
    """Every family once, at sizes that are no multiples of anything."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x, row, a, b = floats(7, 33), floats(33), floats(19, 45), floats(45, 37)
    ints = rng.integers(-1000, 1000, (5, 13)).astype(np.int32)
    table, ids = floats(21, 10), rng.integers(0, 21, (3, 4)).astype(np.int32)
    gathered = rng.integers(0, 33, (7, 5)).astype(np.int32)
    e = np.exp(x - x.max(1, keepdims=True))
    return [
        Check("add, broadcast", "aten.add.Tensor", (x, row, 1), x + row),
        Check("multiply, int32", "aten.mul.Tensor", (ints, ints), ints * ints, exact=True),
        Check("compare", "aten.gt.Scalar", (x, 0.25), x > 0.25, exact=True),
        Check("select", "aten.where.self", (x > 0, x, -x), np.abs(x), exact=True),
        Check("cast to float16", "aten._to_copy.default", (x,), x.astype(np.float16), exact=True),
        Check("permute", "aten.permute_copy.default", (x, (1, 0)), x.T, exact=True),
        Check("sum along a row", "aten.sum.dim_IntList", (x, (1,), False), x.sum(1)),
        Check("softmax", "aten._softmax.default", (x, -1, False), e / e.sum(1, keepdims=True)),
        Check("matrix product", "aten.mm.default", (a, b), a @ b),
        Check("one row × matrix", "aten.mm.default", (a[:1], b), a[:1] @ b),
        Check("embedding", "aten.embedding.default", (table, ids, -1, False, False), table[ids], exact=True),
        Check("gather", "aten.gather.default", (x, 1, gathered, False), np.take_along_axis(x, gathered, 1), exact=True),
    ]


def run_checks(device: Device, on_done: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
    """All of them; one that fails does not stop the next."""
    outcomes = []
    for check in checks():
        outcomes.append(run_check(check, device))
        on_done(outcomes[-1])
    return outcomes


def run_check(check: Check, device: Device) -> Outcome:
    try:
        (got,) = _run(check, device)
    except PtegpuError as e:
        return Outcome(check.name, check.operator, False, problem=str(e))
    return judge(check, got)


def judge(check: Check, got: np.ndarray) -> Outcome:
    """Whether a result is what was expected, relative to the largest expected value."""
    if (got.dtype, got.shape) != (check.expected.dtype, check.expected.shape):
        wanted, found = (f"{a.dtype}{list(a.shape)}" for a in (check.expected, got))
        return Outcome(check.name, check.operator, False, problem=f"the result is {found}, not {wanted}")
    want = check.expected.astype(np.float64)
    error = float(np.abs(got.astype(np.float64) - want).max()) / (scale_of(want) or 1.0)
    return Outcome(check.name, check.operator, error <= (0 if check.exact else TOLERANCE), error)


def _run(check: Check, device: Device) -> Sequence[Any]:
    """A graph of one node, planned and run."""
    graph = Graph(check.name)
    inputs: list[np.ndarray] = []

    def argument(value: Any) -> Arg:
        if not isinstance(value, np.ndarray):
            return value
        tensor = Tensor(f"input {len(inputs)}", DType.of(value.dtype), value.shape, "input")
        graph.inputs.append(tensor)
        inputs.append(np.ascontiguousarray(value))
        return tensor

    args = tuple(argument(value) for value in check.args)
    out = Tensor("output", DType.of(check.expected.dtype), check.expected.shape)
    graph.nodes.append(Node(REGISTRY[check.operator], args, (out,), check.name))
    graph.outputs.append(out)
    with Session(device) as session:
        return session.run(session.prepare(planned(graph, device.target)), inputs)
