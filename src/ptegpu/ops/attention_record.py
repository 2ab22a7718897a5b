"""Records of attention, of rotary embeddings of queries and keys, and of writes into caches.

Rules yield `AttentionWork`, `Rotary` and `CacheWrite`. A fused node (`fused.py`) gives an attention the other two,
which its kernel computes for few rows, and gives a product the attention whose result it reads.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..dtypes import BLOCK, DType
from ..errors import ShapeError
from ..graph.graph import Shape, Sym, Tensor
from ..kernels import attention_matrices as by_matrices
from ..kernels import attention_rows as few
from ..kernels import attention_tiles as by_tiles
from ..kernels.attention import AttentionForm, Masked, Merge, Turn, merge
from ..kernels.cache import unit_of, write_cache
from ..kernels.rope import RopeStart, rope
from ..kernels.wgsl import store_type, writable
from ..plan.target import Target
from ..sizes import largest, smallest
from . import attention_matrices
from .paging import PageWrite, Paging
from .pointwise import broadcast_strides
from .registry import Dispatch, Scratch, Step, Steps, SymInt, Work

FEW_ROWS = 16  # rows of a key-value head up to which tiles would be mostly empty

# Keys are split over workgroups where a GPU would be idle otherwise. For few rows, and for tiles: the minimum number of
# visible keys per part (the position on the GPU decides which are visible), and the number of workgroups to reach, as
# a multiple of those that keep a GPU busy. See also `packed_gemv.MOST_PARTS`, and of the kernels
# `attention.AT_ONCE` and `attention_rows.KEYS_EACH`. `python -m benchmarks attention` sweeps them.
ROWS_PART, TILES_PART = 128, 256
RESIDENT_PART = 64  # instead of ROWS_PART where dispatches may become one, whose workgroups wait for each other
OF_ROWS, OF_TILES = 1, 2
TURNED = 8  # bindings of a kernel that rotates queries and keys itself


class HeadLayout(NamedTuple):
    """The sizes and strides of a tensor [B, S, H, D] or [B, H, S, D]."""

    batch: int
    length: int
    heads: int
    dim: int
    by_batch: int
    by_row: int
    by_head: int
    first: int = 0  # where the tensor begins
    contiguous: bool = True  # the strides are multiples of `dim`

    def strides(self, name: str) -> dict[str, int]:
        by = {f"{name}_batch": self.by_batch, f"{name}_head": self.by_head, f"{name}_row": self.by_row}
        return by | {f"{name}_first": self.first}

    def nbytes(self, x: Tensor) -> int:
        """Return the number of bytes that are read of a tensor."""
        return x.dtype.nbytes(self.batch * self.length * self.heads * self.dim)

    @property
    def quads(self) -> bool:
        """True if vectors consist of aligned quads."""
        places = () if self.contiguous else (self.by_batch, self.by_row, self.by_head, self.first)
        return all(s % 4 == 0 for s in (self.dim, *places))


def head_layout(shape: Shape, heads_first: bool) -> HeadLayout:
    """Return the layout of a contiguous tensor; missing leading dimensions count as one."""
    if len(shape) > 4 or len(shape) < 2 or (len(shape) < 4 and not heads_first):
        raise ShapeError(f"attention takes tensors of rank 4, not {list(shape)}")
    b, *middle, d = (1,) * (4 - len(shape)) + shape
    if heads_first:
        h, s = middle
        return HeadLayout(b, s, h, d, h * s * d, d, s * d)
    s, h = middle
    return HeadLayout(b, s, h, d, s * h * d, h * d, d)


class Mask(NamedTuple):
    """A mask of floats, which are added to scores, or of bools, whose hidden scores get the fill added or replaced."""

    tensor: Tensor
    strides: Sequence[int]  # over (batch, head, query, key)
    first: int = 0
    fill: float = -math.inf
    replaces: bool = False
    hides: bool = False  # hides scores where it is true, instead of where it is false


@dataclass(frozen=True, slots=True)
class Rotary(Work):
    """The rotation of one or two tensors by tables.

    `seq` is the dimension of positions; dimensions between it and the last one are heads that share an angle.
    """

    style: str
    xs: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    params: Mapping[str, int | Sym]
    seq: int = 1
    rows: Tensor | None = None  # int32 [S, 2], with the position of each row, for the style "halves"
    label: str = ""

    def steps(self, target: Target) -> Steps:
        xs, seq, params = self.xs, self.seq, dict(self.params)
        symbolic = isinstance(params.get("start"), Sym)
        start: RopeStart = "rows" if self.rows else "symbolic" if symbolic else "given"
        kernel = rope(self.style, tuple(x.dtype for x in xs), tuple(t.dtype for t in self.tables), start, target)
        quads = [-(-x.numel // 4) for x in xs]
        params |= {"dim": xs[0].shape[-1], "seq": xs[0].shape[seq]}
        for name, x, n in zip(("xq", "xk"), xs, quads, strict=False):
            params |= {f"{name}_quads": n, f"{name}_heads": math.prod(x.shape[seq + 1 : -1])}
            if self.style == "halves":
                params |= {f"{name}_last": max(x.numel - 1, 0), f"{name}_batch": math.prod(x.shape[1:])}
        groups = -(-sum(quads) // kernel.kernel.workgroup)
        reads = [*xs, *self.tables, *([self.rows] if self.rows else [])]
        yield Dispatch(kernel, reads, self.outs, groups, params, label=self.label)

    @property
    def turn(self) -> Turn | None:
        """The rotation as attention computes it on query and key [B, S, H, D]; None where it cannot."""
        dim, width = self.xs[0].shape[-1], self.tables[0].shape[-1]
        halves, apart = self.style == "halves", self.params.get("table_head") or self.params.get("table_batch")
        if self.seq != 1 or len(self.xs) != 2 or apart or dim % 4 or (halves and width % 8):
            return None
        cos, sin = (t.dtype for t in self.tables)
        return Turn(self.style, (width if halves else dim) // 4, cos, sin, self.rows is not None)

    @property
    def place(self) -> dict[str, int | Sym]:
        """The rows of the tables, as parameters of an attention with a `turn`."""
        start = {} if self.rows else {"table_start": self.params.get("start", 0)}
        return {"table_rows": self.tables[0].shape[0], **start}


@dataclass(frozen=True, slots=True)
class CacheWrite(Work):
    """Writes of values into caches of one shape."""

    values: tuple[Tensor, ...]
    caches: tuple[Tensor, ...]
    start: SymInt
    label: str = ""

    def steps(self, target: Target) -> Steps:
        values, caches = self.values, self.caches
        batch, queries, heads, dim = values[0].shape
        positions, width = caches[0].shape[1], heads * dim
        unit = unit_of([c.dtype for c in caches])
        if width % unit == 0:
            style, width = "blocks" if unit == BLOCK else "quads", width // unit
            units = batch * queries * width
        elif all(writable(c.dtype, target) for c in caches):
            style, units = "elements", batch * queries * width
        else:
            style, units = "words", -(-batch * positions * width // 4) if queries else 0
        kernel = write_cache(style, tuple(v.dtype for v in values), tuple(c.dtype for c in caches), target)
        params: dict[str, int | float | Sym] = {"batch": batch, "queries": queries, "positions": positions}
        params |= {"width": width, "start": self.start}
        changed = sum(c.dtype.nbytes(v.numel) for v, c in zip(values, caches, strict=True))
        groups = -(-units // kernel.kernel.workgroup)
        yield Dispatch(kernel, values, caches, groups, params, write_bytes=changed, label=self.label)


@dataclass(frozen=True, slots=True)
class Parts:
    """The running softmaxes of an attention that is split over keys, which the reader of the result merges."""

    tensor: Tensor  # (splits, batch, heads, rows, value quads + 1, 4)
    rows: Tensor | None  # that belong to many sequences
    merge: Merge
    params: Mapping[str, int | float | Sym]

    @property
    def reads(self) -> list[Tensor]:
        return [self.tensor, *([self.rows] if self.rows else [])]


@dataclass(frozen=True, slots=True)
class AttentionWork(Work):
    """Attention of the rows of q, which begin at position `start`, to k and v; if `bounded`, up to the last row's key.

    `new` are keys and values to be written into k and v from the start on. `rotary` computes q and the new keys. The
    kernel for few rows does both. With `paging`, each row of q [1, S, H, D] has a sequence and a position of its own,
    and k and v are pages.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    y: Tensor  # [B, S, H, D] or [B, H, S, D], in the order of q, whatever its shape
    heads_first: bool
    causal: bool
    mask: Tensor | Mask | None = None
    scale: float | None = None
    start: SymInt = 0
    bounded: bool = False
    new: tuple[Tensor, Tensor] | None = None
    empty: float = 0.0  # the result where no key is visible
    rotary: Rotary | None = None
    at: tuple[HeadLayout, ...] | None = None  # layouts of q, k, v and y that are read through strides
    paging: Paging | None = None
    label: str = ""

    def steps(self, target: Target) -> Steps:
        parts = yield from self.attended(target)
        if parts is not None:
            form = self._form(target)
            kernel = merge(form, target)
            qs = self._places[0]
            groups = -(-qs.batch * qs.length * qs.heads * form.value_quads // kernel.kernel.workgroup)
            params = {**parts.params, **self._places[3].strides("y")}
            yield Dispatch(kernel, parts.reads, [self.y], groups, params, label=self.label)

    def splits(self, target: Target) -> int:
        """Return the maximum number of parts of the result."""
        ks, tiled = self._places[1], self._tiled(target)
        groups = ks.batch * ks.heads * self._blocks(target)
        busy = target.device_class.busy * (OF_TILES if tiled else OF_ROWS)
        part = _part(tiled, target)
        return largest(1, smallest(-(-ks.length // part), busy // groups))  # type: ignore[no-any-return]

    def attended(self, target: Target) -> Generator[Step, Any, Parts | None]:
        """Compute the attention into y, or return its parts."""
        if not self.y.numel:
            return None
        plain, tiled, rows, new, rotary = self._form(target), self._tiled(target), self._rows, self.new, self.rotary
        paging = self.paging
        qs, ks, vs, ys = self._places
        sharing = qs.heads // ks.heads
        takes_new = new and self.bounded and not tiled and new[0].dtype is new[1].dtype
        takes_new = takes_new and few.takes_new(replace(plain, new=plain.k), rows, sharing, target)
        takes_new = takes_new and (not paging or (self.k.shape == self.v.shape and paging.single == 1))
        bindings = TURNED + (2 if paging else 0)
        turns = rotary and takes_new and not self.mask and target.max_storage_buffers >= bindings
        turn = rotary.turn if rotary and turns else None
        if rotary and not turn:
            yield rotary
        if new and not takes_new:
            caches = self.k, self.v
            yield (
                PageWrite(new, caches, paging, self.label)
                if paging
                else CacheWrite(new, caches, self.start, self.label)
            )
            new = None
        splits, reads, writes = self.splits(target), [self.q, self.k, self.v], list[Tensor]()
        shared: dict[str, int | float | Sym] = {"splits": splits, "part": _part(tiled, target)}
        shared |= {"keys": ks.length, "queries": qs.length, "sharing": sharing, "heads": ks.heads}
        shared["empty"] = self.empty if ks.length else 0.0
        shared |= {"start": self.start} if self.bounded and not paging else {}
        params = {**shared, "rows": rows, "blocks": self._blocks(target), "hidden": -math.inf}
        params["scale"] = 1.0 / math.sqrt(qs.dim) if self.scale is None else self.scale
        units = tiled and attention_matrices.serves(plain, self._places, target)
        params |= {} if units else {**qs.strides("q"), **ks.strides("k"), **vs.strides("v")}
        if new:
            params["new_batch"] = new[0].numel // qs.batch if paging is None else ks.heads * ks.dim
            reads, writes = [self.q, *new], [self.k, self.v]
        if rotary and turn:
            reads = [*rotary.xs, reads[-1], *rotary.tables]
            params |= rotary.place
        mask = self._mask
        if mask is not None:
            reads.append(mask.tensor)
            params |= dict(zip(("mask_batch", "mask_head", "mask_row", "mask_key"), mask.strides, strict=True))
            params |= {"mask_first": mask.first, "fill": mask.fill}
        if paging:
            reads += [paging.rows, paging.tables]
            params |= paging.params(self.k)
        form = replace(plain, split=splits > 1, new=new[0].dtype if new else None, turn=turn)
        result, parts = self.y, None
        if form.split:
            part_quads = ks.batch * ks.heads * rows * (form.value_quads + 1)
            result = yield Scratch((splits, part_quads, 4), DType.F32)
            merge_form = Merge(form.value_quads, form.cached, form.paged)
            parts = Parts(result, paging and paging.rows, merge_form, {**shared, "apart": part_quads})
        else:
            params |= ys.strides("y")
        others = sum(x.nbytes for x in reads if x not in (self.q, self.k, self.v))
        if units:
            kernel = by_matrices.tiles(form, target)
            reads, block_counts = yield from attention_matrices.prepared(self, form, self._places, shared, target)
            params |= block_counts
        elif tiled:
            kernel = by_tiles.tiles(form, target)
        else:
            count = few.rows_of_block(few.most_rows(qs.dim), rows)
            kernel = few.rows(form, count, sharing if new else 1, target)
        first = self.start.value if isinstance(self.start, Sym) else self.start
        first = ks.length - 1 if paging else first  # at most
        pairs, keys = visible(qs.length, ks.length, self.causal, first if self.bounded else None)
        cached = (ks.nbytes(self.k) + vs.nbytes(self.v)) * keys // largest(ks.length, 1)
        written = sum(cache.dtype.nbytes(x.numel) for x, cache in zip(new or (), writes, strict=True))
        yield Dispatch(
            kernel,
            reads,
            [*writes, result],
            ks.batch * ks.heads * self._blocks(target) * splits,
            params,
            flops=2 * qs.batch * qs.heads * pairs * (qs.dim + vs.dim),
            read_bytes=cached + qs.nbytes(self.q) + others,
            write_bytes=written + result.nbytes,
            label=f"{rotary.label}, {self.label}" if rotary and turn else self.label,
        )
        return parts

    @property
    def _places(self) -> tuple[HeadLayout, ...]:
        """The layouts of q, k, v and y."""
        if self.at is not None:
            return self.at
        if self.paging:
            return self._paged_places
        q, k, v = (x.shape for x in (self.q, self.k, self.v))
        first = self.heads_first
        return head_layout(q, first), head_layout(k, first), head_layout(v, first), head_layout((*q[:-1], v[-1]), first)

    @property
    def _paged_places(self) -> tuple[HeadLayout, ...]:
        """The layouts of q, k, v and y, where each row of q and y is a batch."""
        assert self.paging
        qs, ks, vs = (head_layout(x.shape, False) for x in (self.q, self.k, self.v))
        ys = head_layout((*self.q.shape[:-1], vs.dim), False)
        q, y = (x._replace(batch=x.length, length=1, by_batch=x.by_row) for x in (qs, ys))
        k, v = (x._replace(batch=q.batch, length=self.paging.keys) for x in (ks, vs))
        return q, k, v, y

    @property
    def _mask(self) -> Mask | None:
        if not isinstance(self.mask, Tensor):
            return self.mask
        qs, ks, _, _ = self._places
        return Mask(self.mask, broadcast_strides(self.mask.shape, (qs.batch, qs.heads, qs.length, ks.length)))

    @property
    def _rows(self) -> int:
        """The rows of a key-value head."""
        qs, ks, _, _ = self._places
        return qs.length * (qs.heads // ks.heads)

    def _tiled(self, target: Target) -> bool:
        """Return True if rows are computed in tiles: these are full enough, and enough of them keep the GPU busy."""
        _, ks, vs, _ = self._places
        fits = vs.dim <= by_tiles.TILE_DIM and target.workgroup(128) == by_tiles.TILE_THREADS
        if self.paging or not (self._rows > FEW_ROWS and fits and not target.software):
            return False
        tiles = ks.batch * ks.heads * -(-self._rows // by_tiles.TILE_ROWS) * -(-ks.length // TILES_PART)
        return not 4 * tiles < target.device_class.units

    def _blocks(self, target: Target) -> int:
        """Return the number of blocks of a key-value head's rows."""
        block = by_tiles.TILE_ROWS if self._tiled(target) else few.most_rows(self._places[0].dim)
        return -(-self._rows // block)

    @property
    def width(self) -> int:
        """The elements of a result row over all heads of [B, S, H, D]."""
        return self.q.shape[-2] * self.v.shape[-1]

    @property
    def quads(self) -> bool:
        """True if vectors consist of aligned quads."""
        return all(x.quads for x in self._places)

    def _form(self, target: Target) -> AttentionForm:
        """Return the form of a kernel that is not split and takes no new keys."""
        (qs, _, vs, _), mask = self._places, self._mask
        return AttentionForm(
            self.q.dtype,
            self.k.dtype,
            self.v.dtype,
            self.y.dtype if self.quads else store_type(self.y.dtype, target),
            Masked(mask.tensor.dtype, mask.replaces, mask.hides) if mask else None,
            qs.dim,
            vs.dim,
            self.quads,
            cached=self.bounded,
            causal=self.causal,
            split=False,
            paged=self.paging is not None,
        )


def _part(tiled: bool, target: Target) -> int:
    """Return the number of keys of a part."""
    if tiled:
        return TILES_PART
    return RESIDENT_PART if target.resident else ROWS_PART


def visible(queries: int, keys: int, causal: bool, start: int | None) -> tuple[int, int]:
    """Return the number of visible pairs of query and key, and the end of the visible keys; `start` is the position."""
    first = 0 if start is None else largest(start, 0)
    if causal:
        triangle = largest(smallest(queries, keys - first), 0)  # queries that see one key more than the one before
        pairs = triangle * first + triangle * (triangle + 1) // 2 + (queries - triangle) * keys
        return pairs, smallest(first + queries, keys)
    end = keys if start is None else smallest(first + queries, keys)
    return queries * end, end
