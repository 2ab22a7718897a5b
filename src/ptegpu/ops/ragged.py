"""Attention of rows that belong to many sequences, each at its own position, over paged caches.

This operator is ptegpu's own: no exporter writes it. `compiler/decoding.py` substitutes it for a decoder's attention,
so one run serves many sequences. A row is (sequence, position); a sequence of -1 marks an unused row. Each sequence
has a row of `tables`: the pages that hold its positions, -1 where none is allocated yet. Wrong tables never address
memory outside a cache.
"""

from __future__ import annotations

import math

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import attention_rows as few
from ..kernels.attention import PAGE, AttentionForm, merge
from ..kernels.cache import unit_of, write_pages
from ..kernels.wgsl import store_type
from ..plan.target import Target
from ..sizes import largest, smallest
from .attention_record import OF_ROWS, ROWS_PART, head_layout
from .registry import Dispatch, Out, Scratch, Steps, op

ATTEND = "ptegpu.attend_pages.default"


@op(
    ATTEND,
    mutates=["key_pages", "value_pages"],
    fits="query float, key_pages float|q8, value_pages float|q8, rows int32, tables int32",
    role="pages",
)
def attend_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    rows: Tensor,
    tables: Tensor,
    scale: float | None = None,
    *,
    target: Target,
) -> Steps:
    """Query [1, S, H, D], key and value [1, S, H', D]; pages [N, 16, H', D]; rows int32 [S, 2]; tables int32 [T, B].

    Keys and values are written into their pages first; then each row attends to its sequence up to its own position.
    """
    _check(query, key, value, key_pages, value_pages, rows, tables)
    _, count, heads, dim = query.shape
    pages, _, shared, value_dim = value_pages.shape
    sharing = heads // shared
    y = yield Out((1, count, heads, value_dim), query.dtype)
    if not y.numel:
        return
    paging = {"table_width": tables.shape[1], "sequences": tables.shape[0], "pages": pages}
    width = shared * dim
    stored = key_pages.dtype, value_pages.dtype
    unit = unit_of(stored)
    unit = unit if width % unit == 0 and dim == value_dim else 1
    kernel = write_pages((key.dtype, value.dtype), stored, unit, PAGE, target)
    words = {"queries": count, "width": width // unit, **paging}
    groups = -(-count * width // (unit * kernel.kernel.workgroup))
    changed = key_pages.dtype.nbytes(key.numel) + value_pages.dtype.nbytes(value.numel)
    caches = [key_pages, value_pages]
    yield Dispatch(kernel, [key, value, rows, tables], caches, groups, words, write_bytes=changed)
    qs, ks, vs, ys = (head_layout(x.shape, False) for x in (query, key_pages, value_pages, y))
    quads = all(x.quads for x in (qs, ks, vs, ys))
    keys = tables.shape[1] * PAGE
    most = few.most_rows(dim)
    blocks = -(-sharing // most)
    enough = target.device_class.busy * OF_ROWS
    splits = largest(1, smallest(-(-keys // ROWS_PART), enough // (count * shared * blocks)))
    form = AttentionForm(
        query.dtype, key_pages.dtype, value_pages.dtype, y.dtype if quads else store_type(y.dtype, target), None, dim,
        value_dim, quads, cached=True, causal=True, split=splits > 1, paged=True,
    )  # fmt: skip
    shares = {"splits": splits, "part": ROWS_PART, "keys": keys, "queries": 1, "sharing": sharing, "heads": shared}
    shares["empty"] = 0.0
    params = {**shares, "rows": sharing, "blocks": blocks, "hidden": -math.inf, **paging}
    params["scale"] = 1.0 / math.sqrt(dim) if scale is None else scale
    each = {"q": qs._replace(by_batch=qs.by_row), "k": ks, "v": vs, "y": ys._replace(by_batch=ys.by_row)}
    for name in "qkv":
        params |= each[name].strides(name)
    result = y
    if form.split:
        apart = count * shared * sharing * (form.value_quads + 1)
        result = yield Scratch((splits, apart, 4), DType.F32)
    else:
        params |= each["y"].strides("y")
    kernel = few.rows(form, few.rows_of_block(most, sharing), 1, target)
    flops = 2 * count * heads * keys * (dim + value_dim)  # at most
    reads = [query, key_pages, value_pages, rows, tables]
    yield Dispatch(kernel, reads, [result], count * shared * blocks * splits, params, flops=flops)
    if form.split:
        kernel = merge(form, target)
        groups = -(-count * heads * form.value_quads // kernel.kernel.workgroup)
        yield Dispatch(kernel, [result, rows], [y], groups, {**shares, "apart": apart, **each["y"].strides("y")})


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
