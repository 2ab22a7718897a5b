"""The latest token of each sequence stays on the GPU: a run reads what the one before chose, and nobody waits for it.

These operators are ptegpu's own: no exporter writes them; `ptegpu.models.text` puts them around a decoder for many
sequences.
"""

from __future__ import annotations

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import latest as kernels
from ..plan.target import Target
from .registry import Dispatch, Out, Steps, op

FILL, KEEP = "ptegpu.latest.default", "ptegpu.keep_latest.default"


@op(FILL, elements=("tokens", "held"), fits="tokens int32[_, _], rows [_, 2], held [_]")
def latest(tokens: Tensor, rows: Tensor, held: Tensor, *, target: Target) -> Steps:
    """tokens [1, S], of which one below 0 is the latest of its sequence; rows int32 [S, 2]; held int32 [sequences]."""
    if rows.shape[0] != tokens.numel or not held.numel:
        raise ShapeError(f"{tokens!r}, {rows!r} and {held!r} are no tokens, rows and latest tokens of sequences")
    y = yield Out(tokens.shape)
    kernel = kernels.fill(tokens.dtype, target)
    groups = -(-tokens.numel // kernel.kernel.workgroup)
    params = {"rows": tokens.numel, "sequences": held.numel}
    if tokens.numel:
        yield Dispatch(kernel, [tokens, rows, held], [y], groups, params)


@op(KEEP, mutates=["held"], hollow=True, fits="tokens int32[w], rows int32[_, 2], wanted [w], held [_]")
def keep_latest(tokens: Tensor, rows: Tensor, wanted: Tensor, held: Tensor, *, target: Target) -> Steps:
    """tokens int32 [W] after the rows `wanted` [W] become the latest; the result is one element that means nothing."""
    yield Out((1,))
    kernel = kernels.keep(target)
    groups = -(-tokens.numel // kernel.kernel.workgroup)
    params = {"count": tokens.numel, "rows": rows.shape[0], "sequences": held.numel}
    if tokens.numel:
        yield Dispatch(kernel, [tokens, rows, wanted], [held], groups, params)
