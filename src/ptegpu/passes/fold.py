"""Compute once, at load, what depends on constants alone.

A scalar in Python code arrives as a constant, a cast and a clone; a weight may arrive through a transpose. These are
evaluated by the NumPy kernels, and what is left is a constant. What only repeats elements waits until the others had
their turn: those who would read the copies may do without.

Sizes come first: nothing is computed whose results are not of the declared shapes, by the operator's rule. What is
computed counts against the limit `folded`, here and in `order.py`; the rest is left to the calls.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import PtegpuError
from ..graph.graph import Arg, Graph, Node, Sym, Tensor, flatten
from ..graph.uses import Uses
from ..limits import may_fold
from ..ops.walks import expanded
from ..portable import PORTABLE, OutSpec, call

LARGEST = 1 << 28  # bytes: a larger result is left to the GPU
LARGEST_FILL = 1 << 16  # bytes: a larger tensor made of nothing but scalars is cheaper to make than to upload


def fold_constants(graph: Graph, *, repeats: bool = True) -> None:
    """Make constants of the results of nodes with constant arguments, in place; of repetitions only with `repeats`."""
    mutated = Uses(graph).mutated
    kept = []
    for node in graph.nodes:
        results = _evaluate(node) if _foldable(node, mutated, repeats) else None
        if results is None:
            kept.append(node)
            continue
        for out, value in zip(node.outs, results, strict=True):
            assert isinstance(out, Tensor)
            out.kind, out.data = "constant", value
    graph.nodes = kept


def _foldable(node: Node, mutated: set[Tensor], repeats: bool) -> bool:
    values = list(flatten(node.args))
    if not repeats and node.op.walks is expanded:
        return False
    if node.mutates or node.op.sym is not None or any(isinstance(v, Sym) or v.kind != "constant" for v in values):
        return False
    outs = [o for o in node.outs if isinstance(o, Tensor)]
    if len(outs) < len(node.outs) or not mutated.isdisjoint(outs):
        return False
    if max((o.max_nbytes for o in outs), default=0) > (LARGEST if values else LARGEST_FILL):
        return False
    return node.op.view is not None or node.op.name in PORTABLE


def _evaluate(node: Node) -> list[np.ndarray] | None:
    """Return the results; None if the arguments make no sense, which the shape rules then say better."""
    outs = [o for o in node.outs if isinstance(o, Tensor)]
    try:
        if node.op.infer(node.args, outs) != [o.max_shape for o in outs]:
            return None
    except PtegpuError:
        return None
    if not may_fold(sum(o.max_nbytes for o in outs)):
        return None
    if node.op.view is not None:
        source = node.args[0]
        data = source.data if isinstance(source, Tensor) else None
        if data is None or len(outs) != 1 or data.size != math.prod(outs[0].max_shape):
            return None
        return [data.reshape(outs[0].max_shape).astype(outs[0].dtype.numpy, copy=False)]
    specs = tuple(OutSpec(o.dtype, o.max_shape) for o in outs)
    try:
        results = call(node.op.name, [_array(a) for a in node.args], specs)
    except PtegpuError:
        return None
    if [r.shape for r in results] != [o.max_shape for o in outs]:
        return None
    return [np.asarray(r, dtype=o.dtype.numpy, order="C") for r, o in zip(results, outs, strict=True)]


def _array(a: Arg) -> object:
    if isinstance(a, tuple):
        return [_array(x) for x in a]
    return a.data if isinstance(a, Tensor) else a
