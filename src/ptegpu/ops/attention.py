"""Attention with any head counts, with and without a key-value cache.

The cached operators take [B, S, H, D] and see keys up to the position of their queries, which the GPU reads, so that
one plan serves every position. The host refuses a position from which the queries do not lie in the cache. The kernels
stay within it on their own: a negative position counts as 0, and nothing beyond the end is written or read.
The others take [B, H, S, D]. Where a mask hides everything, the result is 0, for `et_vk.sdpa` NaN.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..dtypes import FLOATS, DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Sym, Tensor
from ..kernels import attention as kernels
from ..kernels import attention_rows as few
from ..kernels.attention import Form, Merge
from ..kernels.wgsl import store_type
from ..plan.target import Target
from ..sizes import largest, smallest
from .cache import Written, check_cache, fitting
from .pointwise import broadcast_strides
from .registry import Bounded, Dispatch, Out, Scratch, Step, Steps, SymInt, Work, op
from .rope import Rotary

FEW_ROWS = 16  # rows of a key-value head up to which tiles would be mostly empty

# Keys are split over workgroups where these would leave a GPU idle: into parts of at least so many keys that are seen
# (a position decides that on the GPU), at most as many as the cache's length gives, and until so many times the
# workgroups that keep a GPU busy are at work. Each for few rows, and for tiles. See also `few.MOST_PARTS`, and of the
# kernels `attention.AT_ONCE` and `attention_rows.KEYS_EACH`. `benchmarks/attention.py` times a decode step.
ROWS_PART, TILES_PART = 128, 256
OF_ROWS, OF_TILES = 1, 2
TURNED = 8  # bindings of a kernel that turns queries and keys itself


class Sizes(NamedTuple):
    """What [B, S, H, D] or [B, H, S, D] stand for, and their strides."""

    batch: int
    length: int
    heads: int
    dim: int
    by_batch: int
    by_row: int
    by_head: int

    def strides(self, name: str) -> dict[str, int]:
        return {f"{name}_batch": self.by_batch, f"{name}_head": self.by_head, f"{name}_row": self.by_row}


def sizes(shape: Shape, heads_first: bool) -> Sizes:
    """Dimensions that are missing in front count as one."""
    if len(shape) > 4 or len(shape) < 2 or (len(shape) < 4 and not heads_first):
        raise ShapeError(f"attention takes tensors of rank 4, not {list(shape)}")
    b, *middle, d = (1,) * (4 - len(shape)) + shape
    if heads_first:
        h, s = middle
        return Sizes(b, s, h, d, h * s * d, d, s * d)
    s, h = middle
    return Sizes(b, s, h, d, s * h * d, h * d, d)


@dataclass(frozen=True, slots=True)
class Parts:
    """What attention left, split over keys: the rows' running softmaxes, to be merged by whoever needs the result."""

    tensor: Tensor  # (splits, batch, heads, rows, value quads and one, 4)
    merge: Merge
    params: Mapping[str, int | float | Sym]


@dataclass(frozen=True, slots=True)
class Attention(Work):
    """Rows of q, which begin at position `start`, attend to k and v; if `bounded`, no further than the last row's own.

    `new` are keys and values that belong into k and v from the start on, and are written there. `rotary` gives q and
    the new keys. For few rows, both are done on the way.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    y: Tensor  # [B, S, H, D] or [B, H, S, D], as q has it, in whatever shape
    heads_first: bool
    causal: bool
    mask: Tensor | None = None
    scale: float | None = None
    start: SymInt = 0
    bounded: bool = False
    new: tuple[Tensor, Tensor] | None = None
    empty: float = 0.0  # the result where nothing is seen
    rotary: Rotary | None = None
    label: str = ""

    def steps(self, target: Target) -> Steps:
        parts = yield from self.attended(target)
        if parts is not None:
            form = self._form(target)
            kernel = kernels.merge(form, target)
            groups = -(-math.prod(self.q.shape[:-1]) * form.value_quads // kernel.kernel.workgroup)
            params = {**parts.params, **self._places}
            yield Dispatch(kernel, [parts.tensor], [self.y], groups, params, label=self.label)

    def splits(self, target: Target) -> int:
        """Into how many parts, at most, its result comes."""
        ks, tiled = sizes(self.k.shape, self.heads_first), self._tiled(target)
        groups = ks.batch * ks.heads * self._blocks(target)
        wanted = target.device_class.busy * (OF_TILES if tiled else OF_ROWS)
        part = TILES_PART if tiled else ROWS_PART
        return largest(1, smallest(-(-ks.length // part), wanted // groups))  # type: ignore[no-any-return]

    def attended(self, target: Target) -> Generator[Step, Any, Parts | None]:
        """Attention into y, unless it comes in parts."""
        if not self.y.numel:
            return None
        whole, tiled, rows, new, rotary = self._form(target), self._tiled(target), self._rows, self.new, self.rotary
        qs, ks, vs = (sizes(x.shape, self.heads_first) for x in (self.q, self.k, self.v))
        sharing = qs.heads // ks.heads
        taken = new and self.bounded and not tiled and new[0].dtype is new[1].dtype
        taken = taken and few.takes_new(replace(whole, new=whole.k), rows, sharing, target)
        turn = rotary.turn if rotary and taken and not self.mask and target.max_storage_buffers >= TURNED else None
        if rotary and not turn:
            yield rotary
        if new and not taken:
            yield Written(new, (self.k, self.v), self.start, self.label)
            new = None
        splits, reads, writes = self.splits(target), [self.q, self.k, self.v], list[Tensor]()
        known: dict[str, int | float | Sym] = {"splits": splits, "part": TILES_PART if tiled else ROWS_PART}
        known |= {"keys": ks.length, "sharing": sharing, "heads": ks.heads, "empty": self.empty if ks.length else 0.0}
        known |= {"start": self.start} if self.bounded else {}
        params = {**known, "rows": rows, "blocks": self._blocks(target), "hidden": -math.inf}
        params["scale"] = 1.0 / math.sqrt(qs.dim) if self.scale is None else self.scale
        params |= {**qs.strides("q"), **ks.strides("k"), **vs.strides("v")}
        if new:
            params["new_batch"] = new[0].numel // qs.batch
            reads, writes = [self.q, *new], [self.k, self.v]
        if rotary and turn:
            reads = [*rotary.xs, reads[-1], *rotary.tables]
            params |= rotary.place
        if self.mask is not None:
            reads.append(self.mask)
            by = broadcast_strides(self.mask.shape, (qs.batch, qs.heads, qs.length, ks.length))
            params |= dict(zip(("mask_batch", "mask_head", "mask_row", "mask_key"), by, strict=True))
        form = replace(whole, split=splits > 1, new=new[0].dtype if new else None, turn=turn)
        result, parts = self.y, None
        if form.split:
            apart = ks.batch * ks.heads * rows * (form.value_quads + 1)
            result = yield Scratch((splits, apart, 4), DType.F32)
            merging = {**known, "queries": qs.length, "apart": apart}
            parts = Parts(result, Merge(form.value_quads, form.cached), merging)
        else:
            params |= self._places
        if tiled:
            kernel = kernels.tiles(form, target)
        else:
            count = few.rows_of_block(few.most_rows(qs.dim), rows)
            kernel = few.rows(form, count, sharing if new else 1, target)
        first = self.start.value if isinstance(self.start, Sym) else self.start
        pairs, seen = visible(qs.length, ks.length, self.causal, first if self.bounded else None)
        old = (self.k.nbytes + self.v.nbytes) * seen // largest(ks.length, 1)
        kept = sum(x.numel * cache.dtype.size for x, cache in zip(new or (), writes, strict=True))
        yield Dispatch(
            kernel,
            reads,
            [*writes, result],
            ks.batch * ks.heads * self._blocks(target) * splits,
            params,
            flops=2 * qs.batch * qs.heads * pairs * (qs.dim + vs.dim),
            read_bytes=old + sum(x.nbytes for x in reads if x not in (self.k, self.v)),
            write_bytes=kept + result.nbytes,
            label=f"{rotary.label}, {self.label}" if rotary and turn else self.label,
        )
        return parts

    @property
    def _rows(self) -> int:
        """Of a key-value head."""
        qs, ks = sizes(self.q.shape, self.heads_first), sizes(self.k.shape, self.heads_first)
        return qs.length * (qs.heads // ks.heads)

    def _tiled(self, target: Target) -> bool:
        return takes_tiles(self._rows, self.v.shape[-1], target)

    def _blocks(self, target: Target) -> int:
        """Of a key-value head's rows."""
        most = kernels.TILE_ROWS if self._tiled(target) else few.most_rows(self.q.shape[-1])
        return -(-self._rows // most)

    @property
    def _places(self) -> dict[str, int]:
        """The strides of y."""
        return sizes((*self.q.shape[:-1], self.v.shape[-1]), self.heads_first).strides("y")

    def _form(self, target: Target) -> Form:
        """Of a kernel that is not split, and is given nothing new."""
        dim, value_dim = self.q.shape[-1], self.v.shape[-1]
        quads = dim % 4 == 0 and value_dim % 4 == 0
        return Form(
            self.q.dtype,
            self.k.dtype,
            self.v.dtype,
            self.y.dtype if quads else store_type(self.y.dtype, target),
            self.mask.dtype if self.mask else None,
            dim,
            value_dim,
            cached=self.bounded,
            causal=self.causal,
            split=False,
        )


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


@op(
    "custom_sdpa.default",
    "llama.custom_sdpa.default",
    positions=["start_pos"],
    dtypes=FLOATS,
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


@op(
    "sdpa_with_kv_cache.default",
    "llama.sdpa_with_kv_cache.default",
    mutates=["key_cache", "value_cache"],
    positions=["start_pos"],
    dtypes=FLOATS,
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
    """Keys and values [B, S, H', D] go into their caches first; S is the query's, whatever `seq_len` says.

    Unlike ExecuTorch, it refuses a dropout above 0: a run is never a training step.
    """
    check(query, key_cache, value_cache, attn_mask, drpout_p, heads_first=False)
    check_cache(key, key_cache)
    if key.shape != value.shape or key_cache.shape != value_cache.shape or key.shape[1] != query.shape[1]:
        shapes = f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
        raise ShapeError(f"{shapes} must have the same length, and keys and values the same shape")
    out = yield Out((*query.shape[:3], value.shape[3]), query.dtype)
    bounded, new = by_position(attn_mask, is_causal), (key, value)
    yield Attention(query, key_cache, value_cache, out, False, is_causal, attn_mask, scale, start_pos, bounded, new)


@op("et_vk.sdpa.default", dtypes=FLOATS)
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
) -> Steps:
    """The same; causal is query i seeing keys 0 … i.

    Unlike PyTorch, it refuses a dropout above 0, because a run is never a training step. Tensors have at most 4
    dimensions and equal batches, which covers attention in models.
    """
    check(query, key, value, attn_mask, dropout_p, heads_first=True)
    out = yield Out((*query.shape[:-1], value.shape[-1]), query.dtype)
    yield Attention(query, key, value, out, True, is_causal, attn_mask, scale)
