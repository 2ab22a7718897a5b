"""The shape rules of nodes: errors name failing rules and graphs that declare other shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from tests.graphs import Sketch, plan_of, settle

from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, ShapeError
from ptegpu.graph.graph import Arg, Graph, Node, Tensor
from ptegpu.graph.shape_rules import evaluate
from ptegpu.ops.registry import REGISTRY, OpDef, Out, Parameter

HUGE = 2**62


def nothing(tensor: Tensor, element: int) -> int:
    raise AssertionError(f"{tensor!r} is read")


NONSENSE: list[tuple[str, tuple[Arg, ...], str]] = [
    (
        "aten.upsample_nearest2d.vec",
        (None, (math.inf, 2.0)),
        "(x:float32[1, 1, 2, 2], None, (inf, 2.0)): cannot convert float infinity to integer",
    ),
    (
        "aten.upsample_nearest2d.vec",
        (None, (math.nan, 2.0)),
        "(x:float32[1, 1, 2, 2], None, (nan, 2.0)): cannot convert float NaN to integer",
    ),
    (
        "quantized_decomposed.quantize_per_tensor.default",
        (0.0, 3, -128, 127, None),
        "(x:float32[1, 1, 2, 2], 0.0, 3, -128, 127, None): float division by zero",
    ),
    (
        "aten.round.decimals",
        (HUGE,),
        f"(x:float32[1, 1, 2, 2], {HUGE}): (34, 'Numerical result out of range')",
    ),
]


@pytest.mark.parametrize(("op", "args", "reason"), NONSENSE, ids=[f"{op}{args}" for op, args, _ in NONSENSE])
def test_numbers_that_a_rule_cannot_compute_with_are_shown(op: str, args: tuple[Arg, ...], reason: str) -> None:
    x = Tensor("x", DType.F32, (1, 1, 2, 2), "input")
    dtype = DType.I8 if "quantize" in op else DType.F32
    out = Tensor("y", dtype, (1, 1, 2, 2))
    graph = Graph("g", [x], [out], [Node(REGISTRY[op], (x, *args), (out,), f"{op} #4")])
    with pytest.raises(ShapeError) as error:
        settle(graph)
        plan_of(graph)
    assert f"{op} #4: cannot compute with {reason}" == str(error.value)


def test_a_long_list_is_cut_in_the_message() -> None:
    def divides(sizes: Arg) -> Iterator[Out]:
        yield Out((1 // 0,))

    op = OpDef("test.divides", (Parameter("sizes"),), frozenset(), steps=divides)
    with pytest.raises(ShapeError) as error:
        evaluate(Node(op, ((1,) * 300,), (Tensor("y", DType.F32, (2,)),), "it"), nothing)
    assert f"it: cannot compute with ({'(' + '1, ' * 66}1 …): integer division or modulo by zero" == str(error.value)


def test_settle_says_what_a_static_graph_gets_wrong() -> None:
    s = Sketch()
    y = s.tensor("aten.relu.default", s.input(4, 3))
    y.max_shape = y.shape = (4, 2)
    with pytest.raises(ShapeError) as error:
        settle(s.returns(y))
    expected = "aten.relu.default #0: its result t2 would be [4, 3], but the program allows at most [4, 2]"
    assert expected == str(error.value)


def test_the_number_of_results_must_be_the_declared_one() -> None:
    s = Sketch()
    y = s.tensor("aten.alias_copy.default", s.input(4))
    s.graph.nodes[0].outs = (y, Tensor("extra", y.dtype, (4,)))
    with pytest.raises(ShapeError) as error:
        settle(s.returns(y))
    assert "aten.alias_copy.default #0 has 1 results, the program says 2" == str(error.value)


def test_more_results_than_an_operator_has_are_counted() -> None:
    x, y, mean, rstd, extra = (Tensor(name, DType.F32, (2, 3)) for name in ("x", "y", "mean", "rstd", "extra"))
    mean.max_shape = rstd.max_shape = (2, 1)
    op = REGISTRY["aten.native_layer_norm.default"]
    with pytest.raises(ShapeError) as error:
        evaluate(Node(op, (x, (3,), None, None, 1e-5), (y, mean, rstd, extra), "norm #7"), nothing)
    assert "norm #7: aten.native_layer_norm.default has 3 results, the program declares 4" == str(error.value)


def test_data_that_the_host_cannot_have_is_named() -> None:
    s = Sketch()
    x = s.tensor("aten.abs.default", s.input(2, dtype=DType.I32))
    s.node("et_vk.select_as_symint.default", x, 0, 1)
    with pytest.raises(ExecutionError) as error:
        evaluate(s.graph.nodes[1], nothing)
    assert f"the host cannot read {x.name} before the run" == str(error.value)
