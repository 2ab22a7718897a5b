"""Products on matrix units, where the adapter has them and the precision asked for allows rounding to f16."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels import matrices as kernels
from ..kernels.linear_q4 import WHOLE
from ..kernels.matmul import add_parts
from ..kernels.matrices import DEPTH, LARGE, NEEDS, ROWS, SPAN, MatrixTile
from ..plan.target import Target
from ..sizes import largest, smallest
from .few import MAX_ROWS, ceil
from .registry import Dispatch, Scratch, Step, Steps

if TYPE_CHECKING:
    from .product import Product

SHORTEST = 64  # K below which others are as fast
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


def prepared(x: Tensor, sets: int, m: int, k: int, label: str, target: Target) -> Generator[Step, Any, Prepared]:
    """Steps that lay out rows x (sets, m, k); they return where."""
    row_blocks, k_blocks = ceil(m, ROWS), ceil(k, DEPTH) * (DEPTH // SPAN)
    blocks = yield Scratch((sets, row_blocks, k_blocks, ROWS * SPAN), DType.F16)
    scales = None if x.dtype is DType.F16 else (yield Scratch((sets, m), DType.F32))
    found = Prepared(blocks, scales)
    kernel = kernels.prepare(x.dtype, k % 4 == 0, target)
    params = {"m": m, "k": k, "row_blocks": row_blocks, "k_blocks": k_blocks}
    yield Dispatch(kernel, [x], found.reads, sets * m, params, label=label)
    return found


def gemm(tile: MatrixTile) -> Callable[[Product, Target], Steps]:
    def steps(p: Product, target: Target) -> Steps:
        sets = p.sets or p.batch
        a = p.prepared or (yield from prepared(p.a, sets, p.m, p.k, p.label, target))
        b = None if p.packed else (yield from prepared(p.b, p.batch, p.n, p.k, p.label, target))
        lift = lift_of(p)
        if p.packed:
            p = replace(p, alpha=p.alpha / lift)
        rows, columns = ceil(p.m, tile.rows), ceil(p.n, tile.columns)

        def run(q: Product, parts: int, k_part: int) -> Dispatch:
            scaled = a.scales is not None, b is not None and b.scales is not None
            packing = q.packing if q.packed else None
            kernel = kernels.multiply(q.form(target, quads=False), tile, packing, scaled, target)
            counts: dict[str, int | float] = {"row_tiles": rows, "column_tiles": columns, "k_part": k_part}
            counts |= {"row_blocks": a.blocks.shape[1], "k_blocks": a.blocks.shape[2]}
            counts |= q.scaling | {"lift": lift} if b is None else {"column_blocks": b.blocks.shape[1]}
            reads = [*a.reads, *(q.matrix if b is None else b.reads), *q.added]
            groups = parts * p.batch * rows * columns
            return Dispatch(kernel, reads, [q.y], groups, q.params() | counts, flops=q.flops, label=q.label)

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


def serves(p: Product, target: Target) -> bool:
    """Whether matrix units may compute it, and would do so faster: what rounds inputs to f16 must be allowed to."""
    if target.precision == "exact" or not target.f16 or any(m not in target.matrices for m in NEEDS):
        return False
    if target.subgroup_size != kernels.LANES or LARGE.threads > target.max_invocations:
        return False
    if p.int8 or p.window or not p.transposed or not p.a.dtype.is_float or LARGE.shared_bytes > target.max_shared_bytes:
        return False
    if not p.packed and target.precision == "auto" and p.b.dtype is not DType.F16:
        return False
    if p.packed and (p.k % DEPTH or p.b.shape[1] % 16 or p.packing.run not in (WHOLE, *RUNS) or not lift_of(p)):
        return False
    bound = 2 + 2 + len(p.added) + 1
    return bound <= target.max_storage_buffers and p.k >= SHORTEST and p.m > 2 * MAX_ROWS and p.n >= 64


RUNS = tuple(DEPTH << i for i in range(16))  # elements of packed weights that may share a scale


def lift_of(p: Product) -> float:
    """The power of two that brings a packed weight to where f16 is exact; 0 if its scales are not known."""
    if p.packed is None:
        return 1.0
    scales = p.packed.scales
    most = _most(scales)
    if not math.isfinite(most):
        return 0.0
    return 2.0 ** (kernels.TOP - p.packed.bits - math.frexp(most)[1]) if most else 1.0


def _most(scales: Tensor) -> float:
    """The largest of them all."""
    if scales.data is None or scales.kind != "constant":
        return math.inf
    key = id(scales.data)
    found = _known.get(key)
    if found is None or found[0]() is not scales.data:
        found = _known[key] = weakref.ref(scales.data), float(np.max(np.abs(scales.data), initial=0.0))
        weakref.finalize(scales.data, _known.pop, key, None)
    return found[1]


_known: dict[int, tuple[weakref.ref[np.ndarray], float]] = {}
