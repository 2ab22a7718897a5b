"""Constants above the binding limit: parts that fit, without copies, and errors for operators that need them whole."""

from __future__ import annotations

import numpy as np
import pytest

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.dtypes import DType
from ptegpu.errors import LimitExceeded
from ptegpu.graph.graph import Graph, Node, Tensor
from ptegpu.ops.registry import REGISTRY
from ptegpu.passes.memory import plan_memory
from ptegpu.passes.split import split_constants
from ptegpu.plan.target import Target


def constant(rows: int, width: int, dtype: DType = DType.F32) -> Tensor:
    data = np.arange(rows * width).reshape(rows, width).astype(dtype.numpy)
    return Tensor("w", dtype, (rows, width), "constant", data)


def graph_of(op: str, weight: Tensor, *others: Tensor, out: tuple[int, ...]) -> Graph:
    y = Tensor("y", DType.F32, out)
    first = (weight, *others) if op in ("aten.embedding.default", "aten.mm.default") else (*others, weight)
    return Graph("g", list(others), [y], [Node(REGISTRY[op], first, (y,), f"{op} #3")])


def lookup(weight: Tensor) -> Graph:
    index = Tensor("i", DType.I32, (2,), "input")
    return graph_of("aten.embedding.default", weight, index, out=(2, weight.shape[1]))


@pytest.mark.parametrize(
    "rows, width, limit, sizes",
    [
        (10, 4, 64, [4, 4, 2]),
        (12, 4, 100, [4, 4, 4]),
        (10, 4, 63, [3, 3, 3, 1]),
        (9, 4, 16, [1] * 9),
        (33, 3, 150, [12, 12, 9]),
    ],
)
def test_parts_cover_the_rows_and_fit(rows, width, limit, sizes):
    weight = constant(rows, width)
    split_constants(lookup(weight), Target(max_binding_bytes=limit))
    assert [part.shape[0] for _, part in weight.parts] == sizes
    assert [first for first, _ in weight.parts] == [sum(sizes[:k]) for k in range(len(sizes))]
    assert all(-(-part.max_nbytes // 16) * 16 <= limit for _, part in weight.parts)
    np.testing.assert_array_equal(np.concatenate([part.data for _, part in weight.parts]), weight.data)
    assert all(np.shares_memory(part.data, weight.data) for _, part in weight.parts)


def test_the_smaller_of_the_two_limits_counts():
    weight = constant(8, 4)
    split_constants(lookup(weight), Target(max_binding_bytes=1024, max_buffer_bytes=64))
    assert len(weight.parts) == 2


def test_a_constant_at_the_limit_stays_whole():
    weight = constant(8, 4)
    split_constants(lookup(weight), Target(max_binding_bytes=128))
    assert weight.parts == ()


def test_each_part_has_a_buffer():
    weight = constant(10, 4)
    graph = lookup(weight)
    target = Target(max_binding_bytes=64)
    split_constants(graph, target)
    memory = plan_memory(graph, target)
    assert [memory.buffer_of[part].nbytes for _, part in weight.parts] == [64, 64, 32]
    assert weight not in memory.buffer_of


def test_an_operator_that_cannot_take_parts():
    x = Tensor("x", DType.F32, (1, 10), "input")
    graph = graph_of("aten.mm.default", constant(10, 4), x, out=(1, 4))
    with pytest.raises(LimitExceeded) as error:
        split_constants(graph, Target(max_binding_bytes=64))
    assert str(error.value) == (
        "aten.mm.default #3: the constant w, float32[10, 4], takes 160 bytes, generic binds at most 64, "
        "and it cannot be given in parts"
    )


def test_a_parameter_that_cannot_take_parts():
    """linear takes its weight in parts, but not its input."""
    weight = constant(10, 4)
    y = Tensor("y", DType.F32, (10, 10))
    graph = Graph("g", [], [y], [Node(REGISTRY["aten.linear.default"], (weight, weight), (y,), "linear #0")])
    with pytest.raises(LimitExceeded, match=r"^linear #0: the constant w, "):
        split_constants(graph, Target(max_binding_bytes=64))


def test_a_result_cannot_be_in_parts():
    weight = constant(10, 4)
    with pytest.raises(LimitExceeded) as error:
        split_constants(Graph("g", [], [weight]), Target(max_binding_bytes=64))
    assert str(error.value) == (
        "g: the constant w, float32[10, 4], takes 160 bytes, generic binds at most 64, and a result cannot be in parts"
    )


def test_a_row_above_the_limit():
    with pytest.raises(LimitExceeded) as error:
        split_constants(lookup(constant(3, 40)), Target(max_binding_bytes=64))
    assert str(error.value) == (
        "the constant w, float32[3, 40], takes 480 bytes, generic binds at most 64, "
        "less than one of its rows; choose another device"
    )
