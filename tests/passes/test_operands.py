"""Products that read a permuted or repeated operand in place: the results are the same as with a copy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import device, planner_of, run_plan
from tests.graphs import Sketch

from ptegpu.compiler.planner import Planner
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.passes.fold import fold_constants
from ptegpu.passes.operands import fuse_operands

PERMUTE, EXPAND, VIEW = "aten.permute_copy.default", "aten.expand_copy.default", "aten.view_copy.default"
RNG = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def repeated(s: Sketch, batch: object, k: int, n: int) -> tuple[Tensor, np.ndarray]:
    """Return a transposed weight repeated for each batch, as exporters write a linear with a permuted input."""
    weight = values(n, k)
    turned = s.tensor(EXPAND, s.tensor(PERMUTE, s.constant(weight), (1, 0)), (batch, k, n), False)  # type: ignore[arg-type]
    return s.tensor(VIEW, turned, (batch, k, n)), weight.T.astype(np.float64)  # type: ignore[arg-type]


def moved(s: Sketch, batch: int, k: int, n: int) -> tuple[Tensor, np.ndarray]:
    """Return keys transposed for a product with queries."""
    x = s.input(batch, n, k)
    return s.tensor(PERMUTE, x, (0, 2, 1)), None  # type: ignore[return-value]


@pytest.mark.parametrize("sizes", [(3, 5, 8, 12), (1, 1, 16, 9), (2, 33, 40, 36), (4, 2, 8, 6)], ids=str)
@pytest.mark.parametrize("make", [repeated, moved], ids=lambda f: f.__name__)
def test_it_is_one_dispatch_and_right(make, sizes):
    batch, m, k, n = sizes
    s = Sketch()
    x = s.input(batch, m, k)
    b, weight = make(s, batch, k, n)
    graph = s.returns(s.tensor("aten.bmm.default", x, b))
    fold_constants(graph, repeats=False)
    fuse_operands(graph)
    assert 1 == len(graph.nodes) and graph.nodes[0].members, graph
    arrays = [values(*x.shape) for x in graph.inputs]
    right = weight if weight is not None else arrays[1].astype(np.float64).transpose(0, 2, 1)
    plan = planner_of(graph, device().target).cover().plan()
    assert len(plan.dispatches) <= 2
    (got,) = run_plan(plan, arrays, device())
    want = arrays[0].astype(np.float64) @ right
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("turned", [True, False])
def test_a_matrix_that_is_also_the_other_operand_is_not_hidden(turned):
    s = Sketch()
    x = values(6, 4)
    y = s.tensor("aten.slice_copy.Tensor", s.input(6, 4), 0, 0, 4, 1)
    graph = s.returns(s.tensor("aten.mm.default", y, s.tensor(PERMUTE, y, (1, 0)) if turned else y))
    fuse_operands(graph)
    (got,) = run_plan(planner_of(graph, device().target).cover().plan(), [x], device())
    np.testing.assert_allclose(got, x[:4] @ (x[:4].T if turned else x[:4]), atol=1e-5)


def test_the_copies_are_never_made():
    s = Sketch()
    b, _ = repeated(s, 50, 8, 12)
    graph = s.returns(s.tensor("aten.bmm.default", s.input(50, 3, 8), b))
    fold_constants(graph, repeats=False)
    fuse_operands(graph)
    fold_constants(graph)
    assert [8 * 12] == [t.data.size for t in graph.tensors() if t.data is not None]


def test_a_batch_of_any_size():
    s = Sketch()
    x = s.input(4, 3, 8)
    batch = s.node("sym_size.int", x, 0)
    batch.value = 4  # type: ignore[union-attr]
    b, weight = repeated(s, batch, 8, 12)
    graph = s.returns(s.tensor("aten.bmm.default", x, b))
    fold_constants(graph, repeats=False)
    fuse_operands(graph)
    plan = Planner(graph, device().target, [True]).cover().plan()
    for n in (1, 2, 4):
        array = values(n, 3, 8)
        (got,) = run_plan(plan, [array], device())
        np.testing.assert_allclose(got, array @ weight, rtol=0, atol=1e-5)


def other(change: str) -> Graph:
    s = Sketch()
    x = s.input(2, 3, 8)
    if change == "sliced":  # columns of a wider matrix: no kernel supports their stride
        b = s.tensor("aten.slice_copy.Tensor", s.input(2, 8, 20), 2, 4, 16)
    else:  # interleaved heads
        b = s.tensor(PERMUTE, s.input(8, 2, 12), (1, 0, 2))
    return s.returns(s.tensor("aten.bmm.default", x, b))


@pytest.mark.parametrize("change", ["sliced", "interleaved"])
def test_what_no_kernel_reads_is_moved(change):
    graph = other(change)
    fuse_operands(graph)
    assert 2 == len(graph.nodes)
