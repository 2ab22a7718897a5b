"""The latest token of each sequence, kept on the GPU so that a run reads the previous run's choice without a readback.

This operator is ptegpu's own. No exporter writes it; `ptegpu.models.text` puts it before a decoder for many sequences,
and after that `sample_rows`, which writes these tokens.
"""

from __future__ import annotations

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import latest as kernels
from ..plan.target import Target
from .registry import Dispatch, Out, Steps, op

FILL = "ptegpu.latest.default"


@op(FILL, elements=("tokens", "newest"), fits="tokens int32[_, _], rows [_, 2], newest [_]")
def latest(tokens: Tensor, rows: Tensor, newest: Tensor, *, target: Target) -> Steps:
    """Replace tokens below 0 in [1, S] by the latest token, in int32 [sequences], of their row's sequence."""
    if rows.shape[0] != tokens.numel or not newest.numel:
        raise ShapeError(f"tokens {tokens!r}, rows {rows!r} and latest tokens {newest!r} do not match")
    y = yield Out(tokens.shape)
    kernel = kernels.fill(tokens.dtype, target)
    groups = -(-tokens.numel // kernel.kernel.workgroup)
    params = {"rows": tokens.numel, "sequences": newest.numel}
    if tokens.numel:
        yield Dispatch(kernel, [tokens, rows, newest], [y], groups, params)
