"""Products on matrix units, where the adapter has them and the precision asked for allows rounding to f16."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels import matrices as kernels
from ..kernels.matmul import add_parts
from ..kernels.matrices import DEPTH, LANES, LARGE, NEEDS, ROWS, SHARE, SPAN, MatrixTile, Rows
from ..plan.target import Target
from ..sizes import ceil, largest, smallest
from .registry import Dispatch, Scratch, Step, Steps

if TYPE_CHECKING:
    from .product import Product

SHORTEST, FEWEST = 64, 48  # K, and rows and columns, below which others are as fast
PART = 16 * DEPTH  # of K at least, where it is in parts
SLOTS = 2  # workgroups that a unit computes side by side


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows as `kernels.prepare` lays them out, and what undoes the scaling of each (None: they were f16)."""

    blocks: Tensor
    scales: Tensor | None

    @property
    def reads(self) -> list[Tensor]:
        return [self.blocks, *([self.scales] if self.scales else [])]


def prepared(
    source: Rows, reads: list[Tensor], sizes: tuple[int, int, int], label: str, target: Target, **params: int
) -> Generator[Step, Any, Prepared]:
    """Steps that lay out rows of `sizes` (sets, m, k); they return where."""
    sets, m, k = sizes
    row_blocks, k_blocks = ceil(m, ROWS), ceil(k, DEPTH) * (DEPTH // SPAN)
    blocks = yield Scratch((sets, row_blocks, k_blocks, ROWS * SPAN), DType.F16)
    found = Prepared(blocks, (yield Scratch((sets, m), DType.F32)) if source.scaled else None)
    quads = ceil(m, SHARE)
    params |= {"m": m, "k": k, "quads": quads, "row_blocks": row_blocks, "k_blocks": k_blocks}
    yield Dispatch(kernels.prepare(source, target), reads, found.reads, sets * quads, params, label=label)
    return found


def left(p: Product, target: Target) -> Generator[Step, Any, Prepared]:
    """The rows of a."""
    sizes = p.sets or p.batch, p.m, p.k
    return (yield from prepared(kernels.rows(p.a.dtype, p.k % 4 == 0), [p.a], sizes, p.label, target))


def right(p: Product, target: Target) -> Generator[Step, Any, Prepared]:
    """The columns of b."""
    if p.packed:
        source = kernels.packed(p.packing)
    else:
        source = kernels.rows(p.b.dtype, p.k % 4 == 0) if p.transposed else kernels.columns(p.b.dtype)
    return (yield from prepared(source, p.matrix, (p.batch, p.n, p.k), p.label, target, **p.scaling))


def gemm(tile: MatrixTile) -> Callable[[Product, Target], Steps]:
    def steps(p: Product, target: Target) -> Steps:
        a = p.prepared or (yield from left(p, target))
        b = yield from right(p, target)
        scaled = a.scales is not None, b.scales is not None
        rows, columns = ceil(p.m, tile.rows), ceil(p.n, tile.columns)
        counts: dict[str, int | float] = {"row_tiles": rows, "column_tiles": columns, "row_blocks": a.blocks.shape[1]}
        counts |= {"column_blocks": b.blocks.shape[1], "k_blocks": a.blocks.shape[2]}

        def run(q: Product, parts: int, k_part: int) -> Dispatch:
            kernel = kernels.multiply(q.form(target, quads=False), tile, scaled, target)
            params = q.params(k_part=k_part) | counts
            groups = parts * p.batch * rows * columns
            return Dispatch(kernel, [*a.reads, *b.reads, *q.added], [q.y], groups, params, flops=q.flops, label=q.label)

        slots = SLOTS * target.device_class.busy
        wanted = smallest(slots // largest(1, p.batch * rows * columns), largest(1, p.k // PART))
        if wanted < 2:
            yield run(p, 1, a.blocks.shape[2] * SPAN)
            return
        k_part = ceil(ceil(p.k, wanted), DEPTH) * DEPTH
        parts = ceil(p.k, k_part)
        sums = yield Scratch((parts, p.batch, p.m, p.n), DType.F32)
        yield run(p.partial(sums), parts, k_part)
        kernel = add_parts(p.form(target, quads=False), target)
        groups = ceil(p.batch * p.m * p.n, kernel.kernel.workgroup)
        yield Dispatch(kernel, [sums, *p.added], [p.y], groups, p.params(parts=parts), label=p.label)

    return steps


def alongside(products: Sequence[Product], target: Target) -> Steps:
    """Products one after the other; those of the same rows have them prepared once."""
    shared: Prepared | None = None
    for p, further in zip(products, [*products[1:], None], strict=True):
        again = further is not None and further.a is p.a and serves(further, target)
        if serves(p, target) and (shared or again):
            shared = shared or (yield from left(p, target))
            yield replace(p, prepared=shared)
        else:
            yield p
        shared = shared if again else None


def serves(p: Product, target: Target) -> bool:
    """Whether matrix units may compute it, and would do so faster: what rounds inputs to f16 must be allowed to."""
    if target.precision == "exact" or not target.f16 or any(m not in target.matrices for m in NEEDS):
        return False
    if target.subgroup_size != LANES or max(LARGE.threads, 256) > target.max_invocations:
        return False
    if LARGE.shared_bytes > target.max_shared_bytes or 5 + len(p.added) > target.max_storage_buffers:
        return False
    if p.int8 or p.window or not (p.a.dtype.is_float and (p.packed or p.b.dtype.is_float)):
        return False
    if target.precision == "auto" and not p.packed and p.b.dtype is not DType.F16:
        return False
    return bool((p.transposed or not p.packed) and p.k >= SHORTEST and p.m >= FEWEST and p.n >= FEWEST)
