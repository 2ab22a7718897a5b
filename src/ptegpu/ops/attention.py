"""Attention with any head counts, with and without a key-value cache.

The cached operators take [B, S, H, D] and see keys up to the position of their queries. The GPU reads this position, so
one plan serves them all. The host refuses a position at which the queries exceed the cache. Kernels stay within the
cache for any position: a negative one counts as 0, and nothing beyond the end is read or written.
The other operators take [B, H, S, D]. Where a mask hides all keys, the result is 0, or NaN for `et_vk.sdpa`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Sym, Tensor
from .attention_record import AttentionWork, head_layout
from .cache import check_cache, start_bounds
from .registry import Bounded, Out, Steps, SymInt, is_one, op


def check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, heads_first: bool) -> None:
    """Raise unless the operands of an attention match."""
    qs, ks, vs = (head_layout(x.shape, heads_first) for x in (q, k, v))

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


def _start_bounds(a: Mapping[str, Any]) -> list[Bounded]:
    bounded = _ends_at_queries(a["attn_mask"], a["is_causal"])
    return start_bounds(a["query"], a["key"], a["start_pos"]) if bounded else []


OVER_CACHE = ("custom_sdpa.default", "llama.custom_sdpa.default")


@op(
    *OVER_CACHE,
    fits="query float, key float|q8, value float|q8, attn_mask any",
    indexes=_start_bounds,
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
    """Attend with a query [B, S, H, D] to caches [B, C, H', D] up to start_pos + S, or to all C with a mask.

    Unlike ExecuTorch, it refuses a dropout above 0: a run is never a training step.
    """
    check(query, key, value, attn_mask, drpout_p, heads_first=False)
    out = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    bounded = _ends_at_queries(attn_mask, is_causal)
    yield AttentionWork(query, key, value, out, False, is_causal, attn_mask, scale, start_pos, bounded)


def _ends_at_queries(mask: Tensor | None, causal: bool) -> bool:
    """Return True if the visible keys end at the queries; in ExecuTorch, a mask is over the whole cache."""
    return mask is None or causal


WITH_CACHE = ("sdpa_with_kv_cache.default", "llama.sdpa_with_kv_cache.default")


@op(
    *WITH_CACHE,
    mutates=["key_cache", "value_cache"],
    fits="query float, key_cache float|q8, value_cache float|q8, attn_mask any",
    indexes=lambda a: start_bounds(a["key"], a["key_cache"], a["start_pos"]),
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
    """Write keys and values [B, S, H', D] into their caches, then attend to these; `seq_len` is S.

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
    bounded, new = _ends_at_queries(attn_mask, is_causal), (key, value)
    yield AttentionWork(query, key_cache, value_cache, out, False, is_causal, attn_mask, scale, start_pos, bounded, new)


@op("et_vk.sdpa.default", fits="q float, attn_mask any")
def sdpa(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None) -> Steps:
    """Attend with q [B, H, S, D] to k and v [B, H', T, D].

    Unlike in its PyTorch reference, a bool mask hides positions where it is false, instead of adding 1 where it is
    true. Tensors have at most 4 dimensions and equal batches, which covers attention in models.
    """
    check(q, k, v, attn_mask, 0.0, heads_first=True)
    out = yield Out((*q.shape[:-1], v.shape[-1]), q.dtype)
    yield AttentionWork(q, k, v, out, True, False, attn_mask, scale, empty=math.nan)


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
    """Attend with query [B, H, S, D] to key and value [B, H', T, D]; if causal, query i sees keys 0 … i.

    Unlike PyTorch, it refuses a dropout above 0, because a run is never a training step. Tensors have at most 4
    dimensions and equal batches, which covers attention in models.
    """
    check(query, key, value, attn_mask, dropout_p, heads_first=True)
    out = yield Out((*query.shape[:-1], value.shape[-1]), query.dtype)
    yield AttentionWork(query, key, value, out, True, is_causal, attn_mask, scale)
