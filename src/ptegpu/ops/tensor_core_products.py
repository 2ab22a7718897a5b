"""Products on matrix units, where the adapter has them.

If the requested precision allows it, inputs are rounded to f16. Otherwise each element is split into two of f16, which
takes three times as long and is as accurate as f32.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels import tensor_core_blocks
from ..kernels import tensor_core_products as kernels
from ..kernels.tensor_core_blocks import LANES, NEEDS, ROWS, SHARE, SPAN, BlockSource
from ..kernels.tensor_core_products import DEPTH, LARGE, TILES, MatrixTile
from ..kernels.tensor_core_rows import MOST_EIGHTS, finish_rows
from ..plan.target import Target
from ..sizes import ceil, largest, smallest
from .registry import Dispatch, Scratch, Step, Steps, Work

if TYPE_CHECKING:
    from .norm import RmsNorm
    from .product import Product

# Minimum sizes, measured on an H200: below them, the other kernels are as fast.
SHORTEST, FEWEST = 64, 48  # K; rows and columns
FEW = 5  # rows, where the blocks of the weight are kept between runs
WORTH = 1 << 27  # multiply-adds
WORTH_FEW = 1 << 25  # multiply-adds, for fewer than FEWEST rows
WORTH_TWICE = 1 << 29  # multiply-adds, where elements are split in two
NARROW = 64  # channels of a convolution whose elements are split in two
SUM_BYTES = 1 << 29  # maximum size of the partial sums
EXACT = 32 * DEPTH  # maximum length of a part of K whose sum is as accurate as one in f32
PART, PART_FEW = 32 * DEPTH, 8 * DEPTH  # minimum length of a part of K, for large tiles and for small ones
SLICES = 32  # parts of an image in the search for its largest element
SLOTS, SLOTS_FEW = 2, 4  # workgroups that a unit runs at the same time, for large tiles and for small ones


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The rows of an operand as blocks of f16, with the factor per row that undoes their scaling (None: not scaled)."""

    blocks: Tensor
    scales: Tensor | None

    @property
    def reads(self) -> list[Tensor]:
        return [self.blocks, *([self.scales] if self.scales else [])]


def _allocate(
    sets: int, m: int, k: int, scaled: bool, exact: bool, of: Sequence[Tensor]
) -> Generator[Step, Any, RowBlocks]:
    """Return scratch for the blocks of m rows of `sets` sets, which is kept between runs if they come of constants."""
    static = all(isinstance(n, int) for n in (sets, m, k))
    key = ("matrices", exact, *of) if static and _constant(of) else ()
    each = ROWS * SPAN * (2 if exact else 1)
    blocks = yield Scratch((sets, ceil(m, ROWS), ceil(k, DEPTH) * (DEPTH // SPAN), each), DType.F16, key)
    return RowBlocks(blocks, (yield Scratch((sets, m), DType.F32, (*key, "scales") if key else ())) if scaled else None)


def _constant(tensors: Sequence[Tensor]) -> bool:
    return all(t.kind == "constant" for t in tensors)


def _prepare(
    source: BlockSource, reads: list[Tensor], m: int, k: int, to: RowBlocks, p: Product, target: Target, **params: float
) -> Dispatch:
    """Return the dispatch that stores m rows of each set as blocks, from row `first_row` on."""
    sets, row_blocks, k_blocks, each = to.blocks.shape
    across = target.workgroup(256) // ROWS if p.window else 0
    share = ROWS if across else 1 if m <= TILES[-2].rows else SHARE  # more workgroups than a few rows have otherwise
    kernel = tensor_core_blocks.prepare(source, target, across, each > ROWS * SPAN, share)
    parts = ceil(m, share)
    params = {"first_row": 0, **params, "m": m, "k": k, "parts": parts, "row_blocks": row_blocks}
    params["k_blocks"] = k_blocks
    return Dispatch(kernel, reads, to.reads, sets * parts, params, label=p.label, once=_constant(reads))


def _windows(p: Product, to: RowBlocks, target: Target) -> Steps:
    """Store the windows of all images as blocks of one set."""
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


def _source(p: Product) -> BlockSource:
    """Return the columns of b as the source of blocks."""
    if p.packed:
        return tensor_core_blocks.packed(p.packing)
    return tensor_core_blocks.rows(p.b.dtype, p.k % 4 == 0) if p.transposed else tensor_core_blocks.columns(p.b.dtype)


def _multiply(
    products: Sequence[Product],
    target: Target,
    norm: RmsNorm | None = None,
    a: RowBlocks | None = None,
    following: Product | None = None,
) -> Generator[Step, Any, RowBlocks | None]:
    """Compute products of the same rows at once, and the norm that makes these rows while they become blocks.

    If there are several products, all but the last have whole blocks of columns. The rows may be blocks `a` already.
    With a `following` product, whose rows are the result, return these rows as blocks.
    """
    p, n = products[0], sum(q.n for q in products)
    batch = p.batch
    if p.window:  # the windows of all images are the columns of one product
        batch, n = 1, p.batch * p.n
    exact, tile = not rounds(p, target), tile_of(p)
    source, rows_product = tensor_core_blocks.rows(p.a.dtype, p.k % 4 == 0), replace(p, window=None)
    reads, eps = [p.a], {}
    if norm:
        if norm.row:
            yield norm.row
        source, eps = tensor_core_blocks.rows(norm.x.dtype, p.k % 4 == 0, norm.weight.dtype), {"eps": norm.eps}
        reads, rows_product = [norm.x, norm.weight], replace(rows_product, label=norm.label)
    if a is None:
        a = yield from _allocate(p.matrix_count or batch, p.m, p.k, source.scaled, exact, reads)
        yield _prepare(source, reads, p.m, p.k, a, rows_product, target, **eps)
    if p.window:
        b = yield from _allocate(1, n, p.k, p.b.dtype is not DType.F16, exact, [p.b])
        yield from _windows(p, b, target)
    else:
        b = yield from _allocate(batch, n, p.k, _source(p).scaled, exact, [t for q in products for t in q.matrix])
        first = 0
        for q in products:
            yield _prepare(_source(q), q.matrix, q.n, q.k, b, q, target, first_row=first, **q.scaling)
            first += q.n
    rows, columns = ceil(p.m, tile.rows), ceil(n, tile.columns)
    slots, least = (SLOTS, PART // 2 if exact else PART) if tile is LARGE else (SLOTS_FEW, PART_FEW)
    parts = smallest(slots * target.device_class.busy // largest(1, batch * rows * columns), p.k // least)
    parts = largest(1, parts)
    if exact:
        parts = largest(parts, ceil(p.k, EXACT))
    k_part = ceil(ceil(p.k, parts), DEPTH) * DEPTH
    parts = ceil(p.k, k_part)
    height, width = rows * tile.rows, columns * tile.columns
    sums = yield Scratch((parts, batch, height, width), DType.F32)
    params = {"row_tiles": rows, "column_tiles": columns, "batch": batch, "sets": p.matrix_count or batch}
    params |= {"k_part": k_part, "row_blocks": a.blocks.shape[1], "column_blocks": b.blocks.shape[1]}
    params |= {"k_blocks": a.blocks.shape[2]}
    groups, flops = parts * batch * rows * columns, sum(q.flops for q in products)
    label = ", ".join(q.label for q in products if q.label)
    kernel = kernels.multiply(tile, target, exact)
    yield Dispatch(kernel, [a.blocks, b.blocks], [sums], groups, params, flops=flops, label=label)
    scaled = a.scales is not None, b.scales is not None
    reads = [sums, *a.reads[1:], *b.reads[1:]]
    steps = {"parts": parts, "part_step": batch * height * width, "width": width}
    if len(products) > 1 and all(map(_is_plain, products)) and len(reads) + len(products) <= target.max_storage_buffers:
        words = steps | {"batch": 1, "sets": 1, "m": p.m, "n": n, "z_step": 0}
        words |= {f"n{k}": q.n for k, q in enumerate(products)}
        kernel = kernels.spread(tuple(q.y.dtype for q in products), scaled, target)
        groups = ceil(p.m * n // 4, kernel.kernel.workgroup)
        yield Dispatch(kernel, reads, [q.y for q in products], groups, words, label=label)
        return None
    firsts = [sum(q.n for q in products[:k]) for k in range(len(products))]
    pair = _paired(products)
    if following:
        place = {"first": firsts[-1], "z_step": 0} | ({"other": 0} if pair else {})
        return (yield from _finish_rows(pair or p, following.norm, reads, scaled, steps | place, target))
    for q, first in [(pair, firsts[-1])] if pair else zip(products, firsts, strict=True):
        plain = replace(q, window=None)
        aligned = not p.window or p.n % 4 == 0
        kernel = kernels.finish(plain.form(target, quads=True), scaled, target, aligned)
        groups = ceil(q.batch * q.m * ceil(q.n, 4), kernel.kernel.workgroup)
        place = {"first": first, "z_step": q.n if q.window else height * width} | ({"other": 0} if pair else {})
        yield Dispatch(kernel, [*reads, *q.added], [q.y], groups, q.params(**steps, **place), label=q.label)
    return None


def _finish_rows(
    q: Product,
    norm: RmsNorm | None,
    reads: Sequence[Tensor],
    scaled: tuple[bool, bool],
    sums: Mapping[str, int],
    target: Target,
) -> Generator[Step, Any, RowBlocks]:
    """Compute the result of a product from sums, and return it, or its norm, as blocks."""
    to = yield from _allocate(1, q.m, q.n, True, False, [q.y])
    threads, weights = _row_threads(q.n, target), [norm.weight] if norm else []
    form, kind = q.form(target, quads=True), norm.weight.dtype if norm else None
    kernel = finish_rows(form, scaled, kind, threads, ceil(q.n // 8, threads), target)
    params = {**q.params(**sums), **({"eps": norm.eps} if norm else {})}
    label = f"{q.label}, {norm.label}" if norm else q.label
    groups = to.blocks.shape[1] * ROWS
    yield Dispatch(kernel, [*reads, *weights, *q.added], [q.y, *to.reads], groups, params, label=label)
    return to


def _row_threads(n: int, target: Target) -> int:
    """Return the invocations that have a row of n elements."""
    return min(target.workgroup(1024), 1 << (max(1, n // 8) - 1).bit_length())


def _is_plain(p: Product) -> bool:
    """Return True if the result is contiguous, has no epilogue and whole quads."""
    changed = p.bias or p.epilogue or p.clamp or p.alpha != 1
    return bool(not changed and p.y_strides[1:] == (p.n, 1) and p.y_offset == 0 and p.n % 4 == 0)


def _paired(products: Sequence[Product]) -> Product | None:
    """Return the second of two products if its epilogue takes the first one's result; None otherwise."""
    if len(products) != 2 or not products[1].epilogue:
        return None
    (first, second), epilogue = products, products[1].epilogue
    same = first.n == second.n and first.y in epilogue.tensors and second.y_strides[1:] == (second.n, 1)
    if not same or not _is_plain(first) or second.y_offset != 0:
        return None
    return replace(second, epilogue=epilogue.without(first.y, "besides[i & 3u]"))


def gemm(p: Product, target: Target) -> Steps:
    yield from _multiply([p], target)


@dataclass(frozen=True, slots=True)
class ProductChain(Work):
    """Products whose rows, perhaps normed, are the results of the products before them."""

    products: tuple[Product, ...]
    label: str = ""

    def steps(self, target: Target) -> Steps:
        """Leave few rows as blocks for the next product where matrix units compute both."""
        blocks: RowBlocks | None = None
        for p, following in zip(self.products, (*self.products[1:], None), strict=True):
            joined = following if following and _leads_to(p, following, target) else None
            if not joined and not blocks:
                yield p
                continue
            if p.attention:
                yield p.attention
            blocks = yield from _multiply(_members(p), target, p.norm, blocks, joined)


def _members(p: Product) -> list[Product]:
    return [replace(p, siblings=(), norm=None, attention=None), *p.siblings]


def rows_of(p: Product) -> Tensor:
    """Return the tensor whose rows a product multiplies, before their norm."""
    return p.norm.x if p.norm else p.a


def result_of(p: Product) -> Product | None:
    """Return the product, or the second one of a pair, that has the only result; None if there are several."""
    members = _members(p)
    return members[0] if len(members) == 1 else _paired(members)


def _absorbs(p: Product) -> bool:
    """Return True if nothing but the product needs the result of its norm, if it has one."""
    return p.norm is None or (p.norm.row is None and not any(p.norm.y is t for q in _members(p) for t in q.added))


def _leads_to(p: Product, following: Product, target: Target) -> bool:
    """Return True if matrix units compute both products, and the first one's few rows can become blocks at once."""
    q, members = result_of(p), _members(following)
    if q is None or rows_of(following) is not q.y or not (_absorbs(p) and _absorbs(following)):
        return False
    plain = q.batch == 1 and q.y_strides[1:] == (q.n, 1) and q.y_offset == 0 and q.y.dtype is DType.F32
    if not plain or not isinstance(q.n, int) or q.n % DEPTH or q.n // 8 > MOST_EIGHTS * _row_threads(q.n, target):
        return False
    if 7 + len(q.added) > target.max_storage_buffers or not all(rounds(f, target) for f in (*_members(p), *members)):
        return False
    if not q.m <= TILES[-2].rows or q.m != members[0].m:
        return False
    return in_one(_members(p), target) and in_one(members, target)


def in_one(products: Sequence[Product], target: Target) -> bool:
    """Return True if `in_order` would compute the products at once."""
    adjoin = all(q.n % ROWS == 0 for q in products[:-1])
    return adjoin and serves_all(products, target) and _fits(products[0], sum(q.n for q in products), target)


def in_order(products: Sequence[Product], target: Target, norm: RmsNorm | None = None) -> Steps:
    """Compute products in order, after the norm that makes their rows; neighbours that matrix units serve as one."""
    runs: list[list[Product]] = []
    for p in products:
        same = runs and p.a is runs[-1][0].a and p.m == runs[-1][0].m and runs[-1][-1].n % ROWS == 0
        if same and all(_joins(q, target) for q in (p, *runs[-1])):
            if _fits(p, sum(q.n for q in (*runs[-1], p)), target):
                runs[-1].append(p)
                continue
        runs.append([p])
    on_units = [serves_all(run, target) for run in runs]
    if norm and (on_units != [True] or any(norm.y is t for p in products for t in p.added)):
        yield norm
        norm = None
    for run, by_units in zip(runs, on_units, strict=True):
        if by_units:
            yield from _multiply(run, target, norm)
        else:
            yield from run


def serves_all(products: Sequence[Product], target: Target) -> bool:
    """Return True if matrix units compute all these products of the same rows, and faster."""
    return bool(products) and all(_joins(p, target) for p in products) and _pays(products, target)


def _joins(p: Product, target: Target) -> bool:
    return _supports(p, target) and not p.b.parts and p.batch == 1 and _source(p).scaled


def tile_of(p: Product) -> MatrixTile:
    """Return the smallest tile that has all rows, or the largest tile."""
    return next((tile for tile in TILES if p.m <= tile.rows), LARGE)


def _fits(p: Product, n: int, target: Target) -> bool:
    """Return True if blocks and sums for n columns can be bound."""
    batch, n = (1, p.batch * n) if p.window else (p.batch, n)
    height, width = ceil(p.m, LARGE.rows) * LARGE.rows, ceil(n, LARGE.columns) * LARGE.columns
    blocks = largest((p.matrix_count or batch) * height, batch * width) * ceil(p.k, DEPTH) * DEPTH
    limit = smallest(target.max_binding_bytes, target.max_buffer_bytes)
    if rounds(p, target):
        return largest(2 * blocks, 4 * batch * height * width) <= limit
    sums = 4 * batch * height * width * ceil(p.k, EXACT)
    return largest(4 * blocks, sums) <= limit and sums <= SUM_BYTES


def has_matrix_units(target: Target) -> bool:
    units = target.f16 and all(m in target.matrices for m in NEEDS)
    return units and target.subgroup_size == LANES and target.max_invocations >= max(LARGE.threads, 256)


def rounds(p: Product, target: Target) -> bool:
    """Return True if inputs are f16 or may be rounded to f16."""
    if p.a.dtype is p.b.dtype is DType.F16:
        return True
    if target.precision == "auto":
        return bool(p.packed) or (p.a if p.window else p.b).dtype is DType.F16
    return target.precision == "fast"


def serves(p: Product, target: Target) -> bool:
    """Return True if matrix units can compute the product, and faster than other kernels."""
    return _supports(p, target) and _pays([p], target)


def _pays(products: Sequence[Product], target: Target) -> bool:
    """Return True if matrix units compute products of the same rows faster than other kernels."""
    p, n = products[0], sum(q.n for q in products)
    least = WORTH_TWICE if not rounds(p, target) else WORTH if p.m >= FEWEST else WORTH_FEW
    return bool(p.batch * p.m * n * p.k >= least)


def _supports(p: Product, target: Target) -> bool:
    """Return True if matrix units can compute the product, and its rows and columns fill enough of a tile."""
    if not has_matrix_units(target) or LARGE.shared_bytes > target.max_shared_bytes:
        return False
    if 4 + len(p.added) > target.max_storage_buffers or not _fits(p, p.n, target):
        return False
    if p.int8 or not (p.a.dtype.is_float and (p.packed or p.b.dtype.is_float)):
        return False
    if p.window and (p.transposed or p.matrix_count != 1 or (not rounds(p, target) and p.m <= NARROW)):
        return False
    keeps_blocks = target.kept_bytes > 0 and p.packed and p.b.kind == "constant" and rounds(p, target)
    enough = p.k >= SHORTEST and p.m >= (FEW if keeps_blocks else FEWEST) and p.n >= FEWEST
    return bool((p.transposed or not p.packed) and enough)
