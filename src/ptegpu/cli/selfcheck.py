"""A handful of kernels, run on a device and compared with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
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
class SelfCheck:
    name: str
    operator: str
    args: tuple[Any, ...]  # arrays become inputs
    expected: np.ndarray
    exact: bool = False


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    name: str
    operator: str
    passed: bool
    error: float | None = None  # relative to the largest value
    problem: str = ""


def checks() -> list[SelfCheck]:
    """Return a check for each family of operators, at sizes that are not multiples of anything."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x, row, a, b = floats(7, 33), floats(33), floats(19, 45), floats(45, 37)
    ints = rng.integers(-1000, 1000, (5, 13)).astype(np.int32)
    table, ids = floats(21, 10), rng.integers(0, 21, (3, 4)).astype(np.int32)
    gathered = rng.integers(0, 33, (7, 5)).astype(np.int32)
    e = np.exp(x - x.max(1, keepdims=True))
    return [
        SelfCheck("add, broadcast", "aten.add.Tensor", (x, row, 1), x + row),
        SelfCheck("multiply, int32", "aten.mul.Tensor", (ints, ints), ints * ints, exact=True),
        SelfCheck("compare", "aten.gt.Scalar", (x, 0.25), x > 0.25, exact=True),
        SelfCheck("select", "aten.where.self", (x > 0, x, -x), np.abs(x), exact=True),
        SelfCheck("cast to float16", "aten._to_copy.default", (x,), x.astype(np.float16), exact=True),
        SelfCheck("permute", "aten.permute_copy.default", (x, (1, 0)), x.T, exact=True),
        SelfCheck("sum along a row", "aten.sum.dim_IntList", (x, (1,), False), x.sum(1)),
        SelfCheck("softmax", "aten._softmax.default", (x, -1, False), e / e.sum(1, keepdims=True)),
        SelfCheck("matrix product", "aten.mm.default", (a, b), a @ b),
        SelfCheck("one row × matrix", "aten.mm.default", (a[:1], b), a[:1] @ b),
        SelfCheck("embedding", "aten.embedding.default", (table, ids, -1, False, False), table[ids], exact=True),
        SelfCheck(
            "gather", "aten.gather.default", (x, 1, gathered, False), np.take_along_axis(x, gathered, 1), exact=True
        ),
    ]


def run_checks(device: Device) -> list[CheckOutcome]:
    """Run all checks; a failure does not stop the next one."""
    outcomes = []
    for check in checks():
        try:
            (result,) = _run(check, device)
            outcomes.append(judge(check, result))
        except PtegpuError as e:
            outcomes.append(CheckOutcome(check.name, check.operator, False, problem=str(e)))
    return outcomes


def judge(check: SelfCheck, result: np.ndarray) -> CheckOutcome:
    """Compare a result with the expected one, relative to the largest expected value."""
    if (result.dtype, result.shape) != (check.expected.dtype, check.expected.shape):
        got, expected = (f"{a.dtype}{list(a.shape)}" for a in (result, check.expected))
        return CheckOutcome(check.name, check.operator, False, problem=f"the result is {got}, not {expected}")
    want = check.expected.astype(np.float64)
    error = float(np.abs(result.astype(np.float64) - want).max()) / (scale_of(want) or 1.0)
    return CheckOutcome(check.name, check.operator, error <= (0 if check.exact else TOLERANCE), error)


def _run(check: SelfCheck, device: Device) -> Sequence[Any]:
    """Plan and run a graph of one node."""
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
