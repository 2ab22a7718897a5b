"""Attention and rotary embeddings of rows that belong to many sequences, each at its own position, over paged caches.

These operators are ptegpu's own: no exporter writes them. `compiler/decoding.py` substitutes them for a decoder's, so
one run serves many sequences. A row is (sequence, position); a sequence of -1 marks an unused row. Each sequence
has a row of `tables`: the pages that hold its positions, -1 where none is allocated yet. Wrong tables never address
memory outside a cache.
"""

from __future__ import annotations

from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels.attention import PAGE
from .attention_record import AttentionWork, Rotary
from .paging import Paging
from .registry import Out, Steps, op
from .rope import check_pair, check_tables

ATTEND, ROTARY_ROWS = "ptegpu.attend_pages.default", "ptegpu.rotary_rows.default"


@op(
    ATTEND,
    mutates=["key_pages", "value_pages"],
    fits="query float, key_pages float|q8, value_pages float|q8, rows int32, tables int32",
    role="attention",
)
def attend_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    rows: Tensor,
    tables: Tensor,
    single: int,
    scale: float | None = None,
) -> Steps:
    """Query [1, S, H, D], key and value [1, S, H', D]; pages [N, 16, H', D]; rows int32 [S, 2]; tables int32 [T, B].

    Keys and values are written into their pages first; then each row attends to its sequence up to its own position.
    If `single` is 1, no sequence has more than one row, so that rows need not wait for the keys of others. Otherwise,
    rows would miss keys.
    """
    _check(query, key, value, key_pages, value_pages, rows, tables)
    y = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    paging = Paging(rows, tables, single)
    yield AttentionWork(
        query, key_pages, value_pages, y, False, True, None, scale, bounded=True, new=(key, value), paging=paging
    )


@op(ROTARY_ROWS, fits="xq float, rows int32", role="rotary")
def rotary_rows(xq: Tensor, xk: Tensor, freqs_cos: Tensor, freqs_sin: Tensor, rows: Tensor) -> Steps:
    """Turn the halves of query and key [1, S, H, D] by the tables' rows at the positions in `rows` int32 [S, 2]."""
    check_pair(xq, xk)
    places, width = freqs_cos.shape if freqs_cos.rank == 2 else (0, 0)
    check_tables(freqs_cos, freqs_sin, places > 0 and width % 2 == 0 and width <= xq.shape[3], xq)
    if not xq.shape[0] == xk.shape[0] == 1 or rows.shape != (xq.shape[1], 2):
        raise ShapeError(f"rows {list(rows.shape)} do not fit query {list(xq.shape)} and key {list(xk.shape)}")
    q_out = yield Out(xq.shape, xq.dtype)
    k_out = yield Out(xk.shape, xk.dtype)
    params = {"table_row": width, "table_rows": places, "table_batch": 0}
    yield Rotary("halves", (xq, xk), (freqs_cos, freqs_sin), (q_out, k_out), params, rows=rows)


def _check(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, rows: Tensor, tables: Tensor) -> None:
    ranks = q.rank == k.rank == v.rank == keys.rank == values.rank == 4 and rows.rank == tables.rank == 2
    if not ranks:
        raise ShapeError("attention over pages takes tensors of rank 4, and rows and tables of rank 2")
    same = q.shape[:2] == k.shape[:2] == v.shape[:2] and q.shape[0] == 1 and rows.shape == (q.shape[1], 2)
    pages = keys.shape[1] == values.shape[1] == PAGE and keys.shape[0] == values.shape[0] and tables.numel > 0
    heads = k.shape[2:] == keys.shape[2:] and v.shape[2:] == values.shape[2:] and k.shape[2] == v.shape[2] > 0
    if not (same and pages and heads and q.shape[3] == k.shape[3] > 0 and q.shape[2] % k.shape[2] == 0):
        shapes = [list(x.shape) for x in (q, k, v, keys, values, rows, tables)]
        raise ShapeError(f"query, key, value, pages, rows and tables of {shapes} do not fit together")
