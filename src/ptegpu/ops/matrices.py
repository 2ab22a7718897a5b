"""Products on matrix units, where the adapter has them.

If the precision asked for allows it, inputs are rounded to f16. Otherwise each is two of f16, which takes three times
as long and is as good as f32.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels import tensor_core_blocks
from ..kernels import tensor_core_products as kernels
from ..kernels.tensor_core_blocks import LANES, NEEDS, ROWS, SHARE, SPAN, Rows
from ..kernels.tensor_core_products import DEPTH, LARGE, TILES, MatrixTile
from ..plan.target import Target
from ..sizes import ceil, largest, smallest
from .registry import Dispatch, Scratch, Step, Steps

if TYPE_CHECKING:
    from .norm import Norm
    from .product import Product

SHORTEST, FEWEST = 64, 48  # K, and rows and columns, below which others are as fast
FEW = 5  # rows from which on that holds where weights stay as blocks
WORTH_FEW = 1 << 25  # multiply-adds of such few rows below which others are as fast
WORTH = 1 << 27  # multiply-adds below which three dispatches take longer than one (H200)
WORTH_TWICE = 1 << 29  # the same where each is computed three times
SUM_BYTES = 1 << 29  # that sums may take
EXACT = 32 * DEPTH  # of K at most in a sum that is to be as good as one of f32
PART, PART_FEW = 32 * DEPTH, 8 * DEPTH  # of K at least, where it is in parts; of tiles that are small
NARROW = 64  # channels of a convolution that f32 computes as fast as three products of f16
SLICES = 32  # of an image whose largest element is looked for
SLOTS, SLOTS_FEW = 2, 4  # workgroups that a unit computes side by side; the same


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows as `tensor_core_blocks.prepare` lays them out, and what undoes the scaling of each (None: they were f16)."""

    blocks: Tensor
    scales: Tensor | None

    @property
    def reads(self) -> list[Tensor]:
        return [self.blocks, *([self.scales] if self.scales else [])]


def _room(sets: int, m: int, k: int, scaled: bool, twice: bool, of: Sequence[Tensor]) -> Generator[Step, Any, Prepared]:
    """Where rows of that many sets are to be laid out. If they are those of constants, they may stay there."""
    same = all(isinstance(n, int) for n in (sets, m, k))  # in every run
    key = ("matrices", twice, *of) if same and _constant(of) else ()
    each = ROWS * SPAN * (2 if twice else 1)
    blocks = yield Scratch((sets, ceil(m, ROWS), ceil(k, DEPTH) * (DEPTH // SPAN), each), DType.F16, key)
    return Prepared(blocks, (yield Scratch((sets, m), DType.F32, (*key, "scales") if key else ())) if scaled else None)


def _constant(tensors: Sequence[Tensor]) -> bool:
    return all(t.kind == "constant" for t in tensors)


def _prepare(
    source: Rows, reads: list[Tensor], m: int, k: int, to: Prepared, p: Product, target: Target, **params: float
) -> Dispatch:
    """Lays out m rows of each set, from number `first_row` on."""
    sets, row_blocks, k_blocks, each = to.blocks.shape
    across = target.workgroup(256) // ROWS if p.window else 0
    kernel = tensor_core_blocks.prepare(source, target, across, each > ROWS * SPAN)
    parts = ceil(m, ROWS if across else SHARE)
    params = {"first_row": 0, **params, "m": m, "k": k, "parts": parts, "row_blocks": row_blocks}
    params["k_blocks"] = k_blocks
    return Dispatch(kernel, reads, to.reads, sets * parts, params, label=p.label, once=_constant(reads))


def _windows(p: Product, to: Prepared, target: Target) -> Steps:
    """Lays out the windows of images, as if they were those of one."""
    source, image = tensor_core_blocks.windows(p.b.dtype, p.windowed.kernel), p.b.numel // p.batch
    places = {"columns": p.n, "image": image, "slices": SLICES, **p.windowed.places}
    reads = [p.b]
    if source.scaled:
        tops = yield Scratch((p.batch, SLICES), DType.F32)
        words = {"slices": SLICES, "each": ceil(image, SLICES), "image": image}
        kernel = tensor_core_blocks.tops(p.b.dtype, target)
        yield Dispatch(kernel, [p.b], [tops], p.batch * SLICES, words, label=p.label)
        reads.append(tops)
    yield _prepare(source, reads, p.batch * p.n, p.k, to, p, target, **places)


def _source(p: Product) -> Rows:
    """The columns of b."""
    if p.packed:
        return tensor_core_blocks.packed(p.packing)
    return tensor_core_blocks.rows(p.b.dtype, p.k % 4 == 0) if p.transposed else tensor_core_blocks.columns(p.b.dtype)


def _multiplied(products: Sequence[Product], target: Target, norm: Norm | None = None) -> Steps:
    """Products of the same rows at once; where there are several, each has a number of columns that fills blocks.
    If the rows are the result of a norm, it is computed on the way."""
    p, n = products[0], sum(q.n for q in products)
    batch = p.batch
    if p.window:  # all images are one
        batch, n = 1, p.batch * p.n
    twice, tile = not rounds(p, target), tile_of(p)
    source, given = tensor_core_blocks.rows(p.a.dtype, p.k % 4 == 0), replace(p, window=None)
    reads, eps = [p.a], {}
    if norm:
        if norm.row:
            yield norm.row
        source, eps = tensor_core_blocks.rows(norm.x.dtype, p.k % 4 == 0, norm.weight.dtype), {"eps": norm.eps}
        reads, given = [norm.x, norm.weight], replace(given, label=norm.label)
    a = yield from _room(p.sets or batch, p.m, p.k, source.scaled, twice, reads)
    yield _prepare(source, reads, p.m, p.k, a, given, target, **eps)
    if p.window:
        b = yield from _room(1, n, p.k, p.b.dtype is not DType.F16, twice, [p.b])
        yield from _windows(p, b, target)
    else:
        b = yield from _room(batch, n, p.k, _source(p).scaled, twice, [t for q in products for t in q.matrix])
        first = 0
        for q in products:
            yield _prepare(_source(q), q.matrix, q.n, q.k, b, q, target, first_row=first, **q.scaling)
            first += q.n
    rows, columns = ceil(p.m, tile.rows), ceil(n, tile.columns)
    slots, least = (SLOTS, PART // 2 if twice else PART) if tile is LARGE else (SLOTS_FEW, PART_FEW)
    parts = smallest(slots * target.device_class.busy // largest(1, batch * rows * columns), p.k // least)
    parts = largest(1, parts)
    if twice:
        parts = largest(parts, ceil(p.k, EXACT))
    k_part = ceil(ceil(p.k, parts), DEPTH) * DEPTH
    parts = ceil(p.k, k_part)
    height, width = rows * tile.rows, columns * tile.columns
    sums = yield Scratch((parts, batch, height, width), DType.F32)
    params = {"row_tiles": rows, "column_tiles": columns, "batch": batch, "sets": p.sets or batch}
    params |= {"k_part": k_part, "row_blocks": a.blocks.shape[1], "column_blocks": b.blocks.shape[1]}
    params |= {"k_blocks": a.blocks.shape[2]}
    groups, flops, label = (
        parts * batch * rows * columns,
        sum(q.flops for q in products),
        ", ".join(q.label for q in products if q.label),
    )
    kernel = kernels.multiply(tile, target, twice)
    yield Dispatch(kernel, [a.blocks, b.blocks], [sums], groups, params, flops=flops, label=label)
    scaled = a.scales is not None, b.scales is not None
    found = [sums, *a.reads[1:], *b.reads[1:]]
    steps = {"parts": parts, "part_step": batch * height * width, "width": width}
    if len(products) > 1 and all(map(_bare, products)) and len(found) + len(products) <= target.max_storage_buffers:
        words = steps | {"batch": 1, "sets": 1, "m": p.m, "n": n, "z_step": 0}
        words |= {f"n{k}": q.n for k, q in enumerate(products)}
        kernel = kernels.spread(tuple(q.y.dtype for q in products), scaled, target)
        yield Dispatch(
            kernel, found, [q.y for q in products], ceil(p.m * n // 4, kernel.kernel.workgroup), words, label=label
        )
        return
    firsts = [sum(q.n for q in products[:k]) for k in range(len(products))]
    pair = _paired(products)
    for q, first in [(pair, firsts[-1])] if pair else zip(products, firsts, strict=True):
        plain = replace(q, window=None)
        aligned = not p.window or p.n % 4 == 0
        kernel = kernels.finish(plain.form(target, quads=True), scaled, target, aligned)
        groups = ceil(q.batch * q.m * ceil(q.n, 4), kernel.kernel.workgroup)
        place = {"first": first, "z_step": q.n if q.window else height * width} | ({"other": 0} if pair else {})
        yield Dispatch(kernel, [*found, *q.added], [q.y], groups, q.params(**steps, **place), label=q.label)


def _bare(p: Product) -> bool:
    """Whether results are stored as they are, one after the other."""
    changed = p.bias or p.finish or p.clamp or p.alpha != 1
    return bool(not changed and p.y_strides[1:] == (p.n, 1) and p.y_first == 0 and p.n % 4 == 0)


def _paired(products: Sequence[Product]) -> Product | None:
    """The second of two, if the first is only there for its finish."""
    if len(products) != 2 or not products[1].finish:
        return None
    (first, second), finish = products, products[1].finish
    same = first.n == second.n and first.y in finish.tensors and second.y_strides[1:] == (second.n, 1)
    if not same or not _bare(first) or second.y_first != 0:
        return None
    operands = zip(finish.kernel.operands, finish.tensors, strict=True)
    kernel = replace(
        finish.kernel, operands=tuple(None if t is first.y else d for d, t in operands), beside="besides[i & 3u]"
    )
    tensors = tuple(t for t in finish.tensors if t is not first.y)
    return replace(second, finish=replace(finish, kernel=kernel, tensors=tensors))


def gemm(p: Product, target: Target) -> Steps:
    yield from _multiplied([p], target)


def alongside(products: Sequence[Product], target: Target, norm: Norm | None = None) -> Steps:
    """Products one after the other, maybe of the result of a norm; those of the same rows that matrix units compute at
    once."""
    runs: list[list[Product]] = []
    for p in products:
        same = runs and p.a is runs[-1][0].a and p.m == runs[-1][0].m and runs[-1][-1].n % ROWS == 0
        if same and all(_joins(q, target) for q in (p, *runs[-1])):
            if _fits(p, sum(q.n for q in (*runs[-1], p)), target):
                runs[-1].append(p)
                continue
        runs.append([p])
    done = [_joins(run[0], target) and worth(run, target) for run in runs]
    if norm and (done != [True] or any(norm.y is t for p in products for t in p.added)):
        yield norm
        norm = None
    for run, here in zip(runs, done, strict=True):
        if here:
            yield from _multiplied(run, target, norm)
        else:
            yield from run


def take(products: Sequence[Product], target: Target) -> bool:
    """Whether matrix units compute all of these, of the same rows."""
    return bool(products) and all(_joins(p, target) for p in products) and worth(products, target)


def _joins(p: Product, target: Target) -> bool:
    return may(p, target) and not p.b.parts and p.batch == 1 and _source(p).scaled


def tile_of(p: Product) -> MatrixTile:
    """The smallest that has all rows, or the largest."""
    return next((tile for tile in TILES if p.m <= tile.rows), LARGE)


def _fits(p: Product, n: int, target: Target) -> bool:
    """Whether blocks and sums can be bound for n columns."""
    batch, n = (1, p.batch * n) if p.window else (p.batch, n)
    height, width = ceil(p.m, LARGE.rows) * LARGE.rows, ceil(n, LARGE.columns) * LARGE.columns
    blocks = largest((p.sets or batch) * height, batch * width) * ceil(p.k, DEPTH) * DEPTH
    most = smallest(target.max_binding_bytes, target.max_buffer_bytes)
    if rounds(p, target):
        return largest(2 * blocks, 4 * batch * height * width) <= most
    sums = 4 * batch * height * width * ceil(p.k, EXACT)
    return largest(4 * blocks, sums) <= most and sums <= SUM_BYTES


def has(target: Target) -> bool:
    """Whether there are matrix units."""
    units = target.f16 and all(m in target.matrices for m in NEEDS)
    return units and target.subgroup_size == LANES and target.max_invocations >= max(LARGE.threads, 256)


def rounds(p: Product, target: Target) -> bool:
    """Whether inputs may be rounded to f16, or are f16."""
    if p.a.dtype is p.b.dtype is DType.F16:
        return True
    if target.precision == "auto":
        return bool(p.packed) or (p.a if p.window else p.b).dtype is DType.F16
    return target.precision == "fast"


def serves(p: Product, target: Target) -> bool:
    """Whether matrix units may compute it, and would do so faster."""
    return may(p, target) and worth([p], target)


def worth(products: Sequence[Product], target: Target) -> bool:
    """Whether they would compute products of the same rows faster."""
    p, n = products[0], sum(q.n for q in products)
    if not rounds(p, target):
        least = WORTH_TWICE
    else:
        least = WORTH if p.m >= FEWEST else WORTH_FEW
    return bool(p.batch * p.m * n * p.k >= least)


def may(p: Product, target: Target) -> bool:
    """Whether they may compute it, if there is enough to do."""
    if not has(target):
        return False
    if LARGE.shared_bytes > target.max_shared_bytes or 4 + len(p.added) > target.max_storage_buffers:
        return False
    if not _fits(p, p.n, target):
        return False
    if p.int8 or not (p.a.dtype.is_float and (p.packed or p.b.dtype.is_float)):
        return False
    if p.window and (p.transposed or p.sets != 1 or (not rounds(p, target) and p.m <= NARROW)):
        return False
    stays = target.kept_bytes > 0 and p.packed and p.b.kind == "constant" and rounds(p, target)
    enough = p.k >= SHORTEST and p.m >= (FEW if stays else FEWEST) and p.n >= FEWEST
    return bool((p.transposed or not p.packed) and enough)
