"""Attention with any head counts, with and without a key-value cache.

The cached operators take [B, S, H, D] and see keys up to the position of their queries, which the GPU reads, so that
one plan serves every position. The host refuses a position from which the queries do not lie in the cache. The kernels
stay within it on their own: a negative position counts as 0, and nothing beyond the end is written or read.
The others take [B, H, S, D]. Where a mask hides everything, the result is 0, for `et_vk.sdpa` NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Sym, Tensor
from .attention_record import Attention, sizes
from .cache import check_cache, fitting
from .registry import Bounded, Out, Steps, SymInt, is_one, op


def check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, heads_first: bool) -> None:
    """Raises unless these go together."""
    qs, ks, vs = (sizes(x.shape, heads_first) for x in (q, k, v))

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


OVER_CACHE = ("custom_sdpa.default", "llama.custom_sdpa.default")


@op(
    *OVER_CACHE,
    fits="query float, attn_mask any",
    indexes=seen_from,
    role="attention",
)
def custom_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start_pos: SymInt,
    attn_mask: Tensor | None = None,
    drpout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Steps:
    """query [B, S, H, D] from `start_pos` on over caches [B, C, H', D] up to start_pos + S, or all C with a mask.

    Unlike ExecuTorch, it refuses a dropout above 0: a run is never a training step.
    """
    check(query, key, value, attn_mask, drpout_p, heads_first=False)
    out = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    bounded = by_position(attn_mask, is_causal)
    yield Attention(query, key, value, out, False, is_causal, attn_mask, scale, start_pos, bounded)


def by_position(mask: Tensor | None, causal: bool) -> bool:
    """Whether what is seen of a cache ends at the queries: as ExecuTorch has it, a mask is over the whole cache."""
    return mask is None or causal


WITH_CACHE = ("sdpa_with_kv_cache.default", "llama.sdpa_with_kv_cache.default")


@op(
    *WITH_CACHE,
    mutates=["key_cache", "value_cache"],
    fits="query float, attn_mask any",
    indexes=lambda a: fitting(a["key"], a["key_cache"], a["start_pos"]),
    role="attention",
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
) -> Steps:
    """Keys and values [B, S, H', D] go into their caches first; `seq_len` is S.

    The exporter writes a `seq_len` of 1 for any S. Unlike ExecuTorch, it refuses a dropout above 0: a run is never a
    training step.
    """
    check(query, key_cache, value_cache, attn_mask, drpout_p, heads_first=False)
    check_cache(key, key_cache)
    length = seq_len.value if isinstance(seq_len, Sym) else seq_len
    if not is_one(length) and length != query.shape[1]:
        raise ShapeError(f"seq_len is {length}, the query {list(query.shape)} has {query.shape[1]} positions")
    if key.shape != value.shape or key_cache.shape != value_cache.shape or key.shape[1] != query.shape[1]:
        shapes = f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
        raise ShapeError(f"{shapes} must have the same length, and keys and values the same shape")
    out = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    bounded, new = by_position(attn_mask, is_causal), (key, value)
    yield Attention(query, key_cache, value_cache, out, False, is_causal, attn_mask, scale, start_pos, bounded, new)


@op("et_vk.sdpa.default", fits="q float, attn_mask any")
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Steps:
    """q [B, H, S, D], k and v [B, H', T, D].

    Unlike in its PyTorch reference, a bool mask hides positions where it is false, instead of adding 1 where it is
    true. Tensors have at most 4 dimensions and equal batches, which covers attention in models.
    """
    check(q, k, v, attn_mask, 0.0, heads_first=True)
    out = yield Out((*q.shape[:-1], v.shape[-1]), q.dtype)
    yield Attention(q, k, v, out, True, False, attn_mask, scale, empty=math.nan)


@op("aten.scaled_dot_product_attention.default", fits="query float, attn_mask any")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Steps:
    """The same; causal is query i seeing keys 0 … i.

    Unlike PyTorch, it refuses a dropout above 0, because a run is never a training step. Tensors have at most 4
    dimensions and equal batches, which covers attention in models.
    """
    check(query, key, value, attn_mask, dropout_p, heads_first=True)
    out = yield Out((*query.shape[:-1], value.shape[-1]), query.dtype)
    yield Attention(query, key, value, out, True, is_causal, attn_mask, scale)
