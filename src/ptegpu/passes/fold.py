"""Constant folding: compute once, at load, the results that depend only on constants.

A scalar in Python code arrives as a constant, a cast and a clone; a weight may arrive through a transpose. NumPy
kernels evaluate these, and their results become constants. Nodes that only repeat elements are folded in a second pass:
other rewrites may let their readers do without the copies.

The operator's rule first checks that the results have the declared shapes. The computation counts against the limit
`folded`, here and in `compiler/order.py`; nodes beyond the limit run in each call.
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

MAX_RESULT = 1 << 28  # bytes: larger results are left to the GPU
MAX_FILL = 1 << 16  # bytes: a larger tensor made from scalars is cheaper to compute than to upload


def fold_constants(graph: Graph, *, repeats: bool = True) -> None:
    """Replace nodes with constant arguments by constants, in place; those that repeat elements only with `repeats`."""
    mutated = Uses(graph).mutated
    remaining = []
    for node in graph.nodes:
        results = _evaluate(node) if _foldable(node, mutated, repeats) else None
        if results is None:
            remaining.append(node)
            continue
        for out, value in zip(node.outs, results, strict=True):
            assert isinstance(out, Tensor)
            out.kind, out.data = "constant", value
    graph.nodes = remaining


def _foldable(node: Node, mutated: set[Tensor], repeats: bool) -> bool:
    values = list(flatten(node.args))
    if not repeats and node.op.walks is expanded:
        return False
    if node.mutates or node.op.sym is not None or any(isinstance(v, Sym) or v.kind != "constant" for v in values):
        return False
    outs = [o for o in node.outs if isinstance(o, Tensor)]
    if len(outs) < len(node.outs) or not mutated.isdisjoint(outs):
        return False
    if max((o.max_nbytes for o in outs), default=0) > (MAX_RESULT if values else MAX_FILL):
        return False
    return node.op.view is not None or node.op.name in PORTABLE


def _evaluate(node: Node) -> list[np.ndarray] | None:
    """Return the results; None if the arguments are invalid, which the shape rules report later."""
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
