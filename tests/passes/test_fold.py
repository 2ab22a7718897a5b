"""Constant folding: nodes that depend on constants only are computed at load, all others stay."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graphs import OVERWRITE, Sketch

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.passes import fold
from ptegpu.passes.fold import fold_constants


def folded(graph: Graph) -> list[str]:
    """Fold constants and return the names of the remaining nodes."""
    fold_constants(graph)
    return [n.name for n in graph.nodes]


def constant_argument(graph: Graph, position: int) -> np.ndarray:
    """Return the elements of a constant among the last node's arguments."""
    argument = graph.nodes[-1].args[position]
    assert isinstance(argument, Tensor) and argument.kind == "constant" and argument.data is not None
    assert (argument.shape, argument.dtype.numpy) == (argument.data.shape, argument.data.dtype)
    return argument.data


def test_a_scalar_of_python_code_becomes_a_constant() -> None:
    """It arrives as a 0-d constant, its upload, a cast, and a clone."""
    s = Sketch()
    x = s.input(4)
    scalar = s.tensor("et_vk.prepack.default", s.constant(np.array(3, np.int32)))
    scalar = s.tensor("aten._to_copy.default", scalar, dtype=DType.F32)
    scalar = s.tensor("aten.clone.default", scalar)
    graph = s.returns(s.tensor("aten.mul.Tensor", x, scalar))
    assert ["aten.mul.Tensor #3"] == folded(graph)
    data = constant_argument(graph, 1)
    assert ((), np.float32, 3.0) == (data.shape, data.dtype, float(data))


@pytest.mark.parametrize("op, args", [("aten.permute_copy.default", ((1, 0),)), ("aten.t_copy.default", ())])
def test_a_transposed_weight_becomes_a_constant(op: str, args: tuple[tuple[int, ...], ...]) -> None:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    s = Sketch()
    turned = s.tensor(op, s.constant(weight), *args)
    graph = s.returns(s.tensor("aten.mm.default", s.input(4, 3), turned))
    assert ["aten.mm.default #1"] == folded(graph)
    data = constant_argument(graph, 1)
    np.testing.assert_array_equal(weight.T, data)
    assert data.flags.c_contiguous


def test_a_scalar_that_nothing_but_numbers_makes_has_no_dimensions() -> None:
    s = Sketch()
    s.returns(s.tensor("aten.scalar_tensor.default", 3, dtype=DType.I32))
    assert [] == folded(s.graph)
    (result,) = s.graph.outputs
    assert isinstance(result, Tensor) and result.data is not None
    assert () == result.shape == result.data.shape


def test_arithmetic_of_constants_is_done_in_the_declared_dtype() -> None:
    s = Sketch()
    total = s.tensor("aten.add.Tensor", s.constant(np.ones(3, np.float16)), s.constant(np.ones(3, np.float16)))
    assert [] == folded(s.returns(total))
    (result,) = s.graph.outputs
    assert isinstance(result, Tensor) and result.data is not None
    np.testing.assert_array_equal(np.full(3, 2, np.float16), result.data)
    assert DType.F16 is result.dtype


def test_a_view_of_a_constant_shares_its_bytes() -> None:
    weight = np.arange(6, dtype=np.float32)
    s = Sketch()
    graph = s.returns(
        s.tensor("aten.mul.Tensor", s.input(2, 3), s.tensor("aten.view_copy.default", s.constant(weight), (2, 3)))
    )
    folded(graph)
    assert np.shares_memory(weight, constant_argument(graph, 1))


def test_a_node_with_an_input_stays() -> None:
    s = Sketch()
    graph = s.returns(s.tensor("aten.add.Tensor", s.input(3), s.constant(np.ones(3, np.float32))))
    assert ["aten.add.Tensor #0"] == folded(graph)


def test_a_node_with_a_symbolic_int_stays() -> None:
    s = Sketch()
    row = s.tensor("aten.select_copy.int", s.constant(np.ones((4, 3), np.float32)), 0, s.sym())
    assert ["aten.select_copy.int #0"] == folded(s.returns(row))


def test_a_node_with_a_state_stays() -> None:
    s = Sketch()
    graph = s.returns(s.tensor("aten.relu.default", s.state(3, data=np.ones(3, np.float32))))
    assert ["aten.relu.default #0"] == folded(graph)


def test_the_size_of_a_constant_is_left_to_the_shape_engine() -> None:
    s = Sketch()
    graph = s.returns(s.node("sym_size.int", s.constant(np.ones(3, np.float32)), 0))
    assert ["sym_size.int #0"] == folded(graph)


def test_a_copy_that_is_written_later_stays() -> None:
    s = Sketch()
    copy = s.tensor("aten.clone.default", s.constant(np.ones(3, np.float32)))
    s.node(OVERWRITE, copy, s.input(3))
    assert ["aten.clone.default #0", "test.overwrite #1"] == folded(s.returns(copy))


def test_new_values_of_states_may_be_constants() -> None:
    s = Sketch()
    old = s.state(3)
    new = s.tensor("aten.relu.default", s.constant(np.ones(3, np.float32)))
    s.graph.writebacks.append((old, new))
    assert [] == folded(s.returns())
    ((state, value),) = s.graph.writebacks
    assert (old, "constant") == (state, value.kind)


def test_a_large_fill_is_made_on_the_gpu_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_FILL", 64)
    s = Sketch()
    small, large = s.tensor("aten.full.default", (16,), 1.0), s.tensor("aten.full.default", (17,), 1.0)
    assert ["aten.full.default #1"] == folded(s.returns(small, large))


def test_a_large_result_is_left_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_RESULT", 64)
    s = Sketch()
    graph = s.returns(s.tensor("aten.relu.default", s.constant(np.ones(17, np.float32))))
    assert ["aten.relu.default #0"] == folded(graph)


def test_arguments_that_make_no_sense_are_left_to_the_shape_rules() -> None:
    s = Sketch()
    y = s.tensor("aten.permute_copy.default", s.constant(np.ones((2, 3), np.float32)), (1, 0))
    s.graph.nodes[0].args = (s.graph.nodes[0].args[0], (0, 5))
    assert ["aten.permute_copy.default #0"] == folded(s.returns(y))
