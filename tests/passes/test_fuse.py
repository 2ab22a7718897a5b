"""Fusion of elementwise chains: they become one node unless other nodes need their intermediate results."""

from __future__ import annotations

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Arg, Graph, Node, Tensor
from ptegpu.ops import REGISTRY
from ptegpu.passes.fuse import fuse_elementwise


def tensor(name: str, *shape: int, kind: str = "temp", dtype: DType = DType.F32) -> Tensor:
    return Tensor(name, dtype, shape or (2, 4), kind)  # type: ignore[arg-type]


def node(op: str, args: tuple[Arg, ...], out: Tensor) -> Node:
    return Node(REGISTRY[op], args, (out,), op)


def swiglu() -> tuple[Graph, Tensor, Tensor]:
    gate, up = tensor("gate", kind="input"), tensor("up", kind="input")
    sigmoid, silu, out = tensor("sigmoid"), tensor("silu"), tensor("out")
    nodes = [
        node("aten.sigmoid.default", (gate,), sigmoid),
        node("aten.mul.Tensor", (sigmoid, gate), silu),
        node("aten.mul.Tensor", (silu, up), out),
    ]
    return Graph("swiglu", [gate, up], [out], nodes), sigmoid, silu


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_a_chain_becomes_one_node() -> None:
    graph, _, _ = swiglu()
    fuse_elementwise(graph)
    assert names(graph) == ["fused(sigmoid+mul+mul)"]
    assert graph.nodes[0].args == tuple(graph.inputs)
    assert graph.nodes[0].outs == tuple(graph.outputs)


def test_a_result_that_is_an_output_is_kept() -> None:
    graph, _, silu = swiglu()
    graph.outputs.append(silu)
    fuse_elementwise(graph)
    assert names(graph) == ["fused(sigmoid+mul)", "aten.mul.Tensor"]


def test_a_result_with_two_users_is_kept() -> None:
    graph, sigmoid, _ = swiglu()
    other = tensor("other")
    graph.nodes.append(node("aten.neg.default", (sigmoid,), other))
    graph.outputs.append(other)
    fuse_elementwise(graph)
    assert names(graph) == ["aten.sigmoid.default", "fused(mul+mul)", "aten.neg.default"]


def test_what_broadcasts_on_the_way_is_computed_once() -> None:
    row, x = tensor("row", 1, 4, kind="input"), tensor("x", kind="input")
    small, out = tensor("small", 1, 4), tensor("out")
    nodes = [node("aten.exp.default", (row,), small), node("aten.mul.Tensor", (x, small), out)]
    graph = Graph("broadcast", [row, x], [out], nodes)
    fuse_elementwise(graph)
    assert names(graph) == ["aten.exp.default", "aten.mul.Tensor"]


def test_ints_and_written_states_are_left_alone() -> None:
    x = tensor("x", kind="input", dtype=DType.I32)
    a, b = tensor("a", dtype=DType.I32), tensor("b", dtype=DType.I32)
    nodes = [node("aten.neg.default", (x,), a), node("aten.abs.default", (a,), b)]
    graph = Graph("ints", [x], [b], nodes)
    fuse_elementwise(graph)
    assert names(graph) == ["aten.neg.default", "aten.abs.default"]


def residual(weight: str = "aten.linear.default") -> tuple[Graph, Tensor]:
    x, w, skip = tensor("x", 2, 8, kind="input"), tensor("w", 4, 8, kind="constant"), tensor("skip", kind="input")
    product, out = tensor("product"), tensor("out")
    nodes = [node(weight, (x, w, None), product), node("aten.add.Tensor", (skip, product, 1), out)]
    return Graph("residual", [x, skip], [out], nodes), product


def test_a_product_computes_what_follows() -> None:
    graph, _ = residual()
    fuse_elementwise(graph)
    assert names(graph) == ["fused(linear+add)"]
    (only,) = graph.nodes
    assert [t.name for t in only.values()] == ["x", "w", "skip"]


def test_of_two_products_the_last_one_computes_what_follows() -> None:
    graph, _, _ = swiglu()
    x, w, v = tensor("x", 2, 8, kind="input"), tensor("w", 4, 8, kind="constant"), tensor("v", 4, 8, kind="constant")
    gate, up = graph.inputs
    graph.inputs = [x]
    graph.nodes = [
        node("aten.linear.default", (x, w, None), gate),
        node("aten.linear.default", (x, v, None), up),
        *graph.nodes,
    ]
    for t in (gate, up):
        t.kind = "temp"
    fuse_elementwise(graph)
    assert names(graph) == ["aten.linear.default", "fused(linear+sigmoid+mul+mul)"]
    assert [t.name for t in graph.nodes[1].values()] == ["x", "v", "gate"]


def test_a_product_that_others_need_stays() -> None:
    graph, product = residual()
    graph.outputs.append(product)
    fuse_elementwise(graph)
    assert names(graph) == ["aten.linear.default", "aten.add.Tensor"]


def test_what_repeats_along_rows_joins_a_product() -> None:
    for shape in ((1, 4), (4,)):
        graph, _ = residual()
        graph.inputs[1].max_shape = graph.inputs[1].shape = shape
        fuse_elementwise(graph)
        assert names(graph) == ["fused(linear+add)"]


def test_what_broadcasts_otherwise_does_not_join_a_product() -> None:
    graph, _ = residual()
    graph.inputs[1].max_shape = graph.inputs[1].shape = (2, 1)
    fuse_elementwise(graph)
    assert names(graph) == ["aten.linear.default", "aten.add.Tensor"]
