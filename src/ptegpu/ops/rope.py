"""Rotary position embeddings of query and key, of any head counts, in one dispatch for both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ShapeError
from ..graph.graph import Sym, Tensor
from .attention_record import Rotary
from .registry import Bounded, Out, Steps, SymInt, op

ROTARY = "et_vk.apply_rotary_emb_hf.default"


def check_pair(xq: Tensor, xk: Tensor, layout: str = "[B, S, H, D]") -> None:
    """Raise ShapeError unless query and key have this layout with equal S and D."""
    seq = 1 if layout == "[B, S, H, D]" else 2
    if xq.rank != 4 or xk.rank != 4 or any(xq.shape[k] != xk.shape[k] for k in (seq, 3)):
        shapes = f"{list(xq.shape)} and {list(xk.shape)}"
        raise ShapeError(f"query and key must be {layout} of the same S and D, not {shapes}")


def check_tables(cos: Tensor, sin: Tensor, fits: bool, x: Tensor) -> None:
    if cos.shape != sin.shape or not fits:
        tables = f"a table of cosines {list(cos.shape)} and one of sines {list(sin.shape)}"
        raise ShapeError(f"{tables} do not fit {list(x.shape)}")


@op("et_vk.apply_rotary_emb.default", fits="xq float", role="rotary")
def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cos: Tensor, freqs_sin: Tensor) -> Steps:
    """Turn pairs (x[2i], x[2i+1]) by tables [S, D/2], or [S, H, D/2] if query and key have the same number of heads."""
    check_pair(xq, xk)
    _, seq, heads, dim = xq.shape
    shapes = [(seq, dim // 2), (seq, heads, dim // 2)][: 2 if heads == xk.shape[2] else 1]
    check_tables(freqs_cos, freqs_sin, dim % 2 == 0 and freqs_cos.shape in shapes, xq)
    q_out = yield Out(xq.shape, xq.dtype)
    k_out = yield Out(xk.shape, xk.dtype)
    per_head = dim // 2 if freqs_cos.rank == 3 else 0
    row = dim // 2 * (heads if per_head else 1)
    tables = (freqs_cos, freqs_sin)
    yield Rotary("pairs", (xq, xk), tables, (q_out, k_out), {"table_row": row, "table_head": per_head})


def _positions(a: Mapping[str, Any]) -> Iterable[Bounded]:
    tables, xq = a["freqs_cos"], a["xq"]
    if 2 <= tables.rank <= xq.rank:
        yield Bounded(a["start_pos"], 0, tables.shape[-2] - xq.shape[tables.rank - 1] + 1)


@op(ROTARY, fits="xq float", indexes=_positions, role="rotary")
def apply_rotary_emb_hf(xq: Tensor, xk: Tensor, freqs_cos: Tensor, freqs_sin: Tensor, start_pos: SymInt = 0) -> Steps:
    """Turn the halves of the first R ≤ D elements by rows `start_pos` … of tables; the other elements stay.

    Tables [P, R] go with query and key [B, S, H, D]; tables [B, P, R] or [1, P, R] go with [B, H, S, D], because the
    pattern that the operator stands for unsqueezes tables at 1.

    Unlike in ExecuTorch's reference, which takes rows of the first dimension, `start_pos` counts rows of P even in
    tables [B, P, R]: the exporter stores the start of a slice there, and batches are not sliced.
    """
    by_batch = freqs_cos.rank == 3
    check_pair(xq, xk, "[B, H, S, D]" if by_batch else "[B, S, H, D]")
    batch, seq = xq.shape[0], xq.shape[2 if by_batch else 1]
    first = 0 if isinstance(start_pos, Sym) else start_pos
    tables, rows, width = (1, 0, 0) if freqs_cos.rank not in (2, 3) else (1, *freqs_cos.shape)[-3:]
    shared = tables == 1 or tables == batch == xk.shape[0]
    fits = freqs_cos.rank in (2, 3) and shared and width % 2 == 0 and width <= xq.shape[3]
    check_tables(freqs_cos, freqs_sin, fits and 0 <= first <= rows - seq, xq)
    q_out = yield Out(xq.shape, xq.dtype)
    k_out = yield Out(xk.shape, xk.dtype)
    params: dict[str, int | Sym] = {"table_row": width, "table_rows": rows, "start": start_pos}
    params["table_batch"] = rows * width if tables > 1 else 0
    yield Rotary("halves", (xq, xk), (freqs_cos, freqs_sin), (q_out, k_out), params, seq=2 if by_batch else 1)


@op("et_vk.apply_rotary_emb_interleaved.default", fits="x float")
def apply_rotary_emb_interleaved(x: Tensor, freqs_cis: Tensor) -> Steps:
    """Turn pairs of x [B, N, C] by a table of N · C elements, in any shape, which are pairs (cos, sin).

    Unlike in ExecuTorch's reference, halves and a table in float32 give halves, as for the other rotary embeddings.
    """
    if x.rank != 3 or x.shape[2] % 2 or freqs_cis.numel != x.shape[1] * x.shape[2]:
        raise ShapeError(f"a table of shape {list(freqs_cis.shape)} does not fit {list(x.shape)}")
    out = yield Out(x.shape, x.dtype)
    yield Rotary("complex", (x,), (freqs_cis,), (out,), {"table_row": x.shape[2]})
