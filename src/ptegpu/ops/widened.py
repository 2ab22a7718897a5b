"""The linears that make the queries, keys and values of one attention, merged into one linear with wider results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..dtypes import DType
from ..graph.graph import Arg, Node, Tensor
from ..graph.uses import Uses
from .attended import Attended, ReadStep
from .nodes import result
from .registry import REGISTRY


def widened(node: Node, uses: Uses) -> dict[Node, Node] | None:
    """Return replacements for an attention and the linears of the same x that only it reads; None without such."""
    rule = node.op.steps
    if not isinstance(rule, Attended):
        return None
    groups: dict[Arg, list[Node]] = {}
    for v in dict.fromkeys(node.values()):
        linear = uses.maker.get(v)
        if linear is not None and _is_fixed_linear(linear, uses) and uses.readers[v] == [node] and v not in uses.kept:
            groups.setdefault(linear.args[0], []).append(linear)
    new: dict[Node, Node] = {}
    slices: list[Node] = []
    for linears in groups.values():
        if len(linears) > 1 and len({(*result(n).max_shape[:-1], result(n).dtype) for n in linears}) == 1:
            wide, parts = _side_by_side(linears)
            slices += parts
            new |= dict.fromkeys(linears, wide)
    if not new:
        return None
    reads = {**rule.reads, **{result(n): ReadStep(n) for n in slices}}
    wider = replace(rule, members=(*slices, *rule.members), reads=reads)
    return None if wider.placed() is None else {**new, node: wider.node()}


def _is_fixed_linear(node: Node, uses: Uses) -> bool:
    """Return True if it is a linear whose weight and bias are constants that nothing else reads."""
    if node.op.name != "aten.linear.default" or not isinstance(node.args[1], Tensor) or node.args[1].rank != 2:
        return False
    fixed = [t for t in node.args[1:] if isinstance(t, Tensor)]
    return all(t.kind == "constant" and len(uses.readers[t]) == 1 and t.rank == 2 - k for k, t in enumerate(fixed))


def _side_by_side(linears: Sequence[Node]) -> tuple[Node, list[Node]]:
    """Return one linear for all, and the slices of its result that equal theirs."""
    first, results = linears[0], [result(n) for n in linears]
    weights = [_data(n.args[1]) for n in linears]
    zeros = [np.zeros(len(w), w.dtype) for w in weights]
    biases = [_data(a) if (a := (*n.args, None)[2]) else zero for n, zero in zip(linears, zeros, strict=True)]
    weight, bias = (
        Tensor(f"{first.name} {name}", DType.of(data.dtype), data.shape, "constant", data)
        for name, data in (("weights", np.concatenate(weights)), ("biases", np.concatenate(biases)))
    )
    out = Tensor(f"{results[0].name} and more", results[0].dtype, (*results[0].max_shape[:-1], *bias.shape))
    wide = replace(first, args=(first.args[0], weight, bias), outs=(out,), name=", ".join(n.name for n in linears))
    cuts, begin = [], 0
    for y in results:
        end = begin + y.max_shape[-1]
        cuts.append(Node(REGISTRY["aten.slice_copy.Tensor"], (out, -1, begin, end, 1), (y,), f"part of {wide.name}"))
        begin = end
    return wide, cuts


def _data(t: Arg) -> np.ndarray:
    assert isinstance(t, Tensor) and t.data is not None
    return t.data
