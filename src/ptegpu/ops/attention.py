"""Attention with any head counts, with and without a key-value cache.

The cached operators take [B, S, H, D] and see keys up to the position of their queries, which the GPU reads, so that
one plan serves every position. The host refuses a position from which the queries do not lie in the cache. The kernels
stay within it on their own: a negative position counts as 0, and nothing beyond the end is written or read.
The others take [B, H, S, D]. Where a mask hides everything, the result is 0, for `et_vk.sdpa` NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..dtypes import FLOATS, DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Sym, Tensor
from ..kernels import attention as kernels
from ..kernels import attention_rows as few
from ..kernels.attention import Form
from ..kernels.wgsl import store_type
from ..plan.target import Target
from ..sizes import largest, smallest
from .cache import check_cache, fitting, written
from .pointwise import broadcast_strides
from .registry import Bounded, Dispatch, Out, Scratch, Steps, SymInt, op

FEW_ROWS = 16  # rows of a key-value head up to which tiles would be mostly empty
KEYS_OF_A_SPLIT = 256  # at least
OF_ROWS, OF_TILES = 4, 2  # times the workgroups that keep a GPU busy: with fewer, keys are split


class Sizes(NamedTuple):
    """What [B, S, H, D] or [B, H, S, D] stand for, and their strides."""

    batch: int
    length: int
    heads: int
    dim: int
    by_batch: int
    by_row: int
    by_head: int
    first: int = 0  # where the tensor begins
    whole: bool = True  # the strides are multiples of `dim`

    def strides(self, name: str) -> dict[str, int]:
        by = {f"{name}_batch": self.by_batch, f"{name}_head": self.by_head, f"{name}_row": self.by_row}
        return by | {f"{name}_first": self.first}

    def nbytes(self, x: Tensor) -> int:
        """What is read of a tensor."""
        return self.batch * self.length * self.heads * self.dim * x.dtype.size

    @property
    def quads(self) -> bool:
        """Whether vectors are loads of four elements."""
        places = () if self.whole else (self.by_batch, self.by_row, self.by_head, self.first)
        return all(s % 4 == 0 for s in (self.dim, *places))


def sizes(x: Tensor, heads_first: bool) -> Sizes:
    """Dimensions that are missing in front count as one."""
    if x.rank > 4 or x.rank < 2 or (x.rank < 4 and not heads_first):
        raise ShapeError(f"attention takes tensors of rank 4, not {list(x.shape)}")
    b, *middle, d = (1,) * (4 - x.rank) + x.shape
    if heads_first:
        h, s = middle
        return Sizes(b, s, h, d, h * s * d, d, s * d)
    s, h = middle
    return Sizes(b, s, h, d, s * h * d, h * d, d)


class Mask(NamedTuple):
    """What is added to scores; or bools, and what hidden scores get: added, or instead."""

    tensor: Tensor
    by: Sequence[int]  # strides over (batch, head, query, key)
    first: int = 0
    fill: float = -math.inf
    instead: bool = False
    hides: bool = False  # where it is true, not where it is false


def placed(q: Tensor, k: Tensor, v: Tensor, out: Tensor, *, heads_first: bool) -> tuple[Sizes, Sizes, Sizes, Sizes]:
    return sizes(q, heads_first), sizes(k, heads_first), sizes(v, heads_first), sizes(out, heads_first)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    at: tuple[Sizes, Sizes, Sizes, Sizes],
    mask: Tensor | Mask | None,
    scale: float | None,
    target: Target,
    *,
    causal: bool,
    start: SymInt | None = None,
    new: tuple[Tensor, Tensor] | None = None,
    empty: float = 0.0,
) -> Steps:
    """The steps that compute attention of tensors `at` their places. With a `start`, keys end with the queries that
    begin there.

    `new` are keys and values that belong into k and v from the start on, and are written there, for rows of one block.
    """
    qs, ks, vs, ys = at
    if not out.numel:
        return
    if isinstance(mask, Tensor):
        mask = Mask(mask, broadcast_strides(mask.shape, (qs.batch, qs.heads, qs.length, ks.length)))
    sharing = qs.heads // ks.heads
    rows = qs.length * sharing
    tiled = takes_tiles(rows, vs.dim, target) and not _leaves_idle(rows, ks, target)
    most = kernels.TILE_ROWS if tiled else few.most_rows(qs.dim)
    blocks = -(-rows // most)
    wanted = target.device_class.busy * (OF_TILES if tiled else OF_ROWS)
    splits = splits_of(ks.length, ks.batch * ks.heads * blocks, wanted)
    quads = all(x.quads for x in at)
    form = Form(
        q.dtype,
        k.dtype,
        v.dtype,
        out.dtype if quads else store_type(out.dtype, target),
        kernels.Masked(mask.tensor.dtype, mask.instead, mask.hides) if mask else None,
        qs.dim,
        vs.dim,
        quads,
        cached=start is not None,
        causal=causal,
        split=splits > 1,
        new=new[0].dtype if new else None,
    )
    kernel = kernels.tiles(form, target) if tiled else few.rows(form, few.rows_of_block(most, rows), target)
    shape: dict[str, int | float | Sym] = {"rows": rows, "sharing": sharing, "heads": ks.heads, "splits": splits}
    shape["empty"] = empty if ks.length else 0.0
    params = shape | {
        "keys": ks.length,
        "blocks": blocks,
        "scale": 1.0 / math.sqrt(qs.dim) if scale is None else scale,
        "hidden": -math.inf,
        **qs.strides("q"),
        **ks.strides("k"),
        **vs.strides("v"),
    }
    reads, writes = ([q, *new], [k, v]) if new else ([q, k, v], [])
    if new:
        params["new_batch"] = new[0].numel // qs.batch
    if mask is not None:
        reads.append(mask.tensor)
        params |= dict(zip(("mask_batch", "mask_head", "mask_row", "mask_key"), mask.by, strict=True))
        params |= {"mask_first": mask.first, "fill": mask.fill}
    if start is not None:
        params["start"] = start
    groups = ks.batch * ks.heads * blocks * splits
    result = out
    if splits == 1:
        params |= ys.strides("y")
    else:
        result = yield Scratch((splits, ks.batch, ks.heads, rows, form.value_quads + 1, 4), DType.F32)
    pairs, seen = visible(qs.length, ks.length, causal, start.value if isinstance(start, Sym) else start)
    kept = sum(x.numel * cache.dtype.size for x, cache in zip(new or (), writes, strict=True))
    yield Dispatch(
        kernel,
        reads,
        [*writes, result],
        groups,
        params,
        flops=2 * qs.batch * qs.heads * pairs * (qs.dim + vs.dim),
        read_bytes=q.nbytes
        + (k.nbytes + v.nbytes) * seen // largest(ks.length, 1)
        + (mask.tensor.nbytes if mask else 0),
        write_bytes=kept + result.nbytes,
    )
    if splits > 1:
        yield Dispatch(few.merge(form, target), [result], [out], ks.batch * ks.heads * rows, shape | ys.strides("y"))


def visible(queries: int, keys: int, causal: bool, start: int | None) -> tuple[int, int]:
    """How many pairs of query and key count, and up to which key; `start` is the position now."""
    first = 0 if start is None else largest(start, 0)
    if causal:
        full = largest(smallest(queries, keys - first), 0)  # those that see one key more than the one before
        return full * first + full * (full + 1) // 2 + (queries - full) * keys, smallest(first + queries, keys)
    seen = keys if start is None else smallest(first + queries, keys)
    return queries * seen, seen


def takes_tiles(rows: int, value_dim: int, target: Target) -> bool:
    """Whether this many rows of a key-value head are computed in tiles."""
    return rows > FEW_ROWS and value_dim <= kernels.TILE_DIM and target.workgroup(128) == kernels.TILE_THREADS


def _leaves_idle(rows: int, keys: Sizes, target: Target) -> bool:
    """Whether tiles would be so few, also with keys split, that a workgroup for a few rows each is faster."""
    tiles = keys.batch * keys.heads * -(-rows // kernels.TILE_ROWS) * -(-keys.length // KEYS_OF_A_SPLIT)
    return 4 * tiles < target.device_class.units


def splits_of(keys: int, groups: int, wanted: int) -> int:
    """Over how many workgroups to split the keys, where there are `groups` without that. The cache's length counts,
    not the position."""
    return largest(1, smallest(-(-keys // KEYS_OF_A_SPLIT), wanted // groups))


def check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, heads_first: bool) -> None:
    """Raises unless these go together."""
    qs, ks, vs = (sizes(x, heads_first) for x in (q, k, v))

    def shapes() -> str:
        return f"query {list(q.shape)}, key {list(k.shape)} and value {list(v.shape)}"

    if not qs.batch == ks.batch == vs.batch or ks[1:3] != vs[1:3] or qs.dim != ks.dim:
        raise ShapeError(f"{shapes()} do not fit together in attention")
    if ks.heads == 0 or qs.heads % ks.heads:
        raise ShapeError(f"{shapes()}: {qs.heads} query heads cannot share {ks.heads} key heads")
    if qs.dim == 0:
        raise ShapeError(f"{shapes()}: the heads have no elements")
    if dropout:
        raise InvalidProgram(f"attention has a dropout of {dropout}: call eval() on the model before exporting it")
    if mask is None:
        return
    scores = (qs.batch, qs.heads, qs.length, ks.length)
    if mask.rank > 4 or any(n not in (1, m) for n, m in zip(mask.shape[::-1], scores[::-1])):
        raise ShapeError(f"a mask of {list(mask.shape)} does not fit scores of {list(scores)}")


def seen_from(a: Mapping[str, Any]) -> list[Bounded]:
    """A position, where it decides what is seen."""
    return fitting(a["query"], a["key"], a["start_pos"]) if by_position(a["attn_mask"], a["is_causal"]) else []


@op("custom_sdpa.default", "llama.custom_sdpa.default", positions=["start_pos"], dtypes=FLOATS, indexes=seen_from)
def custom_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: SymInt,
    attn_mask: Tensor | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    target: Target,
) -> Steps:
    """query [B, S, H, D] from `start_pos` on over caches [B, C, H', D] up to start_pos + S, or all C with a mask.

    Unlike ExecuTorch, it refuses a dropout above 0: a run is never a training step.
    """
    check(query, key, value, attn_mask, drpout_p, heads_first=False)
    out = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    start = start_pos if by_position(attn_mask, is_causal) else None
    yield from attend(
        query,
        key,
        value,
        out,
        placed(query, key, value, out, heads_first=False),
        attn_mask,
        scale,
        target,
        causal=is_causal,
        start=start,
    )


def by_position(mask: Tensor | None, causal: bool) -> bool:
    """Whether what is seen of a cache ends at the queries: as ExecuTorch has it, a mask is over the whole cache."""
    return mask is None or causal


@op(
    "sdpa_with_kv_cache.default",
    "llama.sdpa_with_kv_cache.default",
    mutates=["key_cache", "value_cache"],
    positions=["start_pos"],
    dtypes=FLOATS,
    indexes=lambda a: fitting(a["key"], a["key_cache"], a["start_pos"]),
)
def sdpa_with_kv_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    start_pos: SymInt,
    seq_len: SymInt,
    attn_mask: Tensor | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    target: Target,
) -> Steps:
    """Keys and values [B, S, H', D] go into their caches first; S is the query's, whatever `seq_len` says.

    Unlike ExecuTorch, it refuses a dropout above 0: a run is never a training step.
    """
    check(query, key_cache, value_cache, attn_mask, drpout_p, heads_first=False)
    check_cache(key, key_cache)
    if key.shape != value.shape or key_cache.shape != value_cache.shape or key.shape[1] != query.shape[1]:
        shapes = f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
        raise ShapeError(f"{shapes} must have the same length, and keys and values the same shape")
    out = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    bounded = by_position(attn_mask, is_causal)
    rows = query.numel // largest(1, query.shape[0] * key.shape[2] * query.shape[3])
    together = (
        bounded and key.dtype is value.dtype and key.shape[3] % 4 == 0 and 0 < rows <= few.most_rows(key.shape[3])
    )
    if not together:
        yield written((key, value), (key_cache, value_cache), start_pos, target)
    yield from attend(
        query,
        key_cache,
        value_cache,
        out,
        placed(query, key_cache, value_cache, out, heads_first=False),
        attn_mask,
        scale,
        target,
        causal=is_causal,
        start=start_pos if bounded else None,
        new=(key, value) if together else None,
    )


@op("et_vk.sdpa.default", dtypes=FLOATS)
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    *,
    target: Target,
) -> Steps:
    """q [B, H, S, D], k and v [B, H', T, D].

    Unlike in its PyTorch reference, a bool mask hides positions where it is false, instead of adding 1 where it is
    true. Tensors have at most 4 dimensions and equal batches, which covers attention in models.
    """
    check(q, k, v, attn_mask, 0.0, heads_first=True)
    out = yield Out((*q.shape[:-1], v.shape[-1]), q.dtype)
    at = placed(q, k, v, out, heads_first=True)
    yield from attend(q, k, v, out, at, attn_mask, scale, target, causal=False, empty=math.nan)


@op("aten.scaled_dot_product_attention.default", dtypes=FLOATS)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    target: Target,
) -> Steps:
    """The same; causal is query i seeing keys 0 … i.

    Unlike PyTorch, it refuses a dropout above 0, because a run is never a training step. Tensors have at most 4
    dimensions and equal batches, which covers attention in models.
    """
    check(query, key, value, attn_mask, dropout_p, heads_first=True)
    out = yield Out((*query.shape[:-1], value.shape[-1]), query.dtype)
    at = placed(query, key, value, out, heads_first=True)
    yield from attend(query, key, value, out, at, attn_mask, scale, target, causal=is_causal)
