"""Products of few rows with packed weights, one or several per dispatch; `GEMVS` divides the work among invocations.

Products of the same rows are siblings. A pair consists of two siblings, where the epilogue of the second one takes the
result of the first one, which is then never stored. A dispatch can also compute the RMS norm that makes the rows, or
merge the parts of an attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..graph.graph import Sym, Tensor
from ..kernels import linear_q4 as kernels
from ..kernels import linear_q4_walks as walking
from ..kernels.gemv import Gemv, by_subgroups
from ..kernels.linear_q4_rows import InputRows
from ..kernels.linear_q4_walks import WalkForm
from ..kernels.packing import WHOLE
from ..kernels.wgsl import ELEMENT_BYTES, KernelSpec, writable
from ..plan.target import Target
from ..sizes import ceil, smallest
from . import tensor_core_products
from .registry import Dispatch, Scratch, Step, Steps

if TYPE_CHECKING:
    from .attention_record import AttentionWork, Parts
    from .norm import RmsNorm
    from .product import Product

ROWS = (1, 2, 4, 8)  # row counts of generated kernels
MAX_ROWS = ROWS[-1]
FEWEST_LANES = 8
WALKED = 65536  # columns from which workgroups stay and walk over them, in dispatches of their own
WALKERS = 4  # such workgroups per unit
WALKED_LOADS = 2  # preferred number of loads of a column by a lane
MOST_PARTS = 16  # maximum parts of an attention that a product merges: every workgroup reads them all


@dataclass(frozen=True, slots=True)
class GemvChoice:
    """A row of `GEMVS`: how to divide the work, and for which sizes."""

    gemv: Gemv
    when: Callable[[int, int, int], bool] = lambda m, n, k: True


GEMVS = (  # by the rows of x and the size (N, K) of the weight; the first choice whose condition holds is taken
    GemvChoice(Gemv(rows=4, lanes=32, words=1, slots=8), when=lambda m, n, k: m > 1 and n >= 8192),
    GemvChoice(Gemv(rows=4, lanes=256, words=1), when=lambda m, n, k: m > 1 and k >= 4096),
    GemvChoice(Gemv(rows=2, lanes=64, words=1, slots=2), when=lambda m, n, k: m > 1),
    GemvChoice(Gemv(rows=4, lanes=32, slots=8, staged=True, digits=True), when=lambda m, n, k: n >= 65536),
    GemvChoice(Gemv(rows=4, lanes=64, slots=4, staged=True, digits=True), when=lambda m, n, k: k >= 4096),
    GemvChoice(Gemv(rows=8, lanes=32, slots=8, staged=True, digits=True), when=lambda m, n, k: n >= 12288),
    GemvChoice(Gemv(rows=4, lanes=32, slots=8, staged=True, digits=True), when=lambda m, n, k: n >= 4096),
    GemvChoice(Gemv(rows=4, lanes=64, slots=4, staged=True, digits=True)),
)
BY_CLASS = {"software": (GemvChoice(Gemv(rows=4, lanes=1, slots=16)),)}  # without workgroup memory and barriers


def kernel_rows(m: int) -> int:
    """Return the row count of the kernel that computes m rows."""
    return next(rows for rows in ROWS if m <= rows)


def fitted(gemv: Gemv, blocks: Callable[[int], int], row_bytes: int, target: Target) -> Gemv:
    """Return the choice within the limits of adapter and weight; `blocks(words)` is the number of loads of a row."""
    words = math.gcd(row_bytes, 4 * gemv.words) // 4 if row_bytes % 4 == 0 else 1
    needed = 1 << (blocks(words) - 1).bit_length()
    lanes = min(gemv.lanes, max(needed, FEWEST_LANES), target.workgroup(256))
    slots = max(1, min(gemv.slots, target.workgroup(256) // lanes))
    return replace(gemv, lanes=lanes, words=words, slots=slots)


def _reduced_bytes(gemv: Gemv, sums: int, squares: int, target: Target) -> int:
    """Return the workgroup memory in which lanes add up `sums` per row of the weight, and `squares` for all rows."""
    each = gemv.lanes // target.subgroup_size if by_subgroups(gemv, target) else gemv.lanes
    return (sums * gemv.rows + squares) * each * gemv.slots * 4


@dataclass(frozen=True, slots=True)
class GemvPlan:
    """The division of one dispatch's work; a block is one load of a row of the weight."""

    gemv: Gemv
    row_blocks: int
    tail: bool
    quads: bool

    def groups(self, n: int) -> int:
        return ceil(n, self.gemv.rows * self.gemv.slots)


def _divided(products: Sequence[Product], pair: bool, normed: bool, target: Target) -> GemvPlan:
    """Return the division of work for a pair, or for products of the same rows, perhaps normed ones."""
    p, columns = products[0], sum(q.n for q in products)
    row_bytes, packing = p.b.shape[1], p.packing

    def blocks(words: int) -> int:
        return ceil(p.k, words * packing.elements)

    choice = next(c for c in BY_CLASS.get(target.device_class.name, GEMVS) if c.when(p.m, columns, p.k))
    gemv = fitted(choice.gemv, blocks, row_bytes, target)
    if pair:  # a set of lanes has rows of both
        gemv = replace(gemv, rows=ceil(gemv.rows, 2))
    rows = kernel_rows(p.m)
    sums, squares = rows * (1 + pair), rows * normed
    while _reduced_bytes(gemv, sums, squares, target) > target.max_shared_bytes:
        if gemv.rows > 1:
            gemv = replace(gemv, rows=gemv.rows // 2)
        else:
            gemv = replace(gemv, slots=gemv.slots // 2) if gemv.slots > 1 else replace(gemv, lanes=gemv.lanes // 2)
    row_blocks, elements = blocks(gemv.words), gemv.words * packing.elements
    if gemv.digits and (rows > 1 or elements < 8 or not packing.shares(elements)):
        gemv = replace(gemv, digits=False)
    left = target.max_shared_bytes - _reduced_bytes(gemv, sums, squares, target) - 4 * squares * gemv.lanes * gemv.slots
    for option in ("digits", "staged"):
        if getattr(gemv, option) and InputRows(gemv, packing, rows, row_blocks).staged_bytes() > left:
            gemv = replace(gemv, **{option: False})
    quads = packing.run not in (WHOLE, 1, 2) and gemv.rows % 4 == 0
    weights = [q.packed for q in products if q.packed]
    quads = quads and all(w.scales.shape[-1] % 4 == 0 and w.first % 4 == 0 for w in weights)
    return GemvPlan(gemv, row_blocks, p.k % elements != 0, quads)


@dataclass(frozen=True, slots=True)
class WalkPlan:
    """The division of one dispatch's work among workgroups that stay and walk over the columns."""

    form: WalkForm
    launched: int  # upper bound of workgroups

    @staticmethod
    def of(products: Sequence[Product], pair: bool, normed: bool, target: Target) -> WalkPlan | None:
        """Return the division; None if workgroups should not stay, or if adapter or weights do not allow it."""
        p, columns = products[0], sum(q.n for q in products)
        resident = target.resident
        if (
            p.m != 1
            or (target.software and not resident)
            or not (resident or (columns >= WALKED and len(products) == 1))
        ):
            return None
        size, packing, row_bytes, workgroup = target.subgroup_size, p.packing, p.b.shape[1], target.workgroup(256)
        words = math.gcd(row_bytes, 16) // 4 if row_bytes % 4 == 0 else 1
        elements = words * packing.elements
        if not target.subgroups or size < walking.SMALLEST_SUBGROUP or size > workgroup or size & (size - 1):
            return None
        if elements < 8 or elements // 8 > size or not packing.shares(elements):
            return None
        weights = [q.packed for q in products if q.packed]
        if not target.kept_bytes and any(w.scales.shape[-1] % 4 or w.first % 4 for w in weights):
            return None
        blocks, lanes = ceil(p.k, elements), size
        while lanes < workgroup and lanes * WALKED_LOADS < blocks:
            lanes *= 2
        layout = Gemv(walking.COLUMNS, lanes, words, workgroup // lanes)
        digits = 3 if target.precision == "exact" else 2
        form = WalkForm(layout, packing, blocks, p.k % elements != 0, digits, size)
        memory = form.memory(1 + pair, normed).values()
        if sum(ELEMENT_BYTES[kind] * count for kind, count in memory) > target.max_shared_bytes:
            return None
        return WalkPlan(form, resident or WALKERS * target.device_class.busy)


def _scale_quads(q: Product, target: Target) -> Generator[Step, Any, tuple[Tensor, dict[str, int]]]:
    """Return the scales of a weight as quads of four columns, and where these are, in quads.

    Quads of the same columns become neighbours if their copy can be kept between runs.
    """
    assert q.packed is not None
    scales, first, stride = q.packed.scales, q.packed.first, q.packed.scales.shape[-1]
    sets, groups = ceil(q.n, walking.COLUMNS), math.prod(scales.shape) // stride
    if not target.kept_bytes or groups == 1:
        return scales, {"scale_first": first // 4, "scale_set": 1, "scale_step": stride // 4}
    kernel = walking.by_sets(scales.dtype, target)
    key = ("scales by sets", scales, first, q.n)
    quads = yield Scratch((sets, groups, walking.COLUMNS), scales.dtype, key)
    params = {"sets": sets, "scale_groups": groups, "scale_first": first, "scale_stride": stride, "n": q.n}
    launched = ceil(sets * groups, kernel.kernel.workgroup)
    yield Dispatch(kernel, [scales], [quads], launched, params, label=q.label, once=scales.kind == "constant")
    return quads, {"scale_first": 0, "scale_set": groups, "scale_step": 1}


def serves(p: Product, target: Target) -> bool:
    """Return True if the product is computed here."""
    supported = p.packed is not None and p.transposed and p.k > 0 and p.m <= min(MAX_ROWS, target.few_rows)
    return bool(supported and not tensor_core_products.serves(p, target))


def gemv(p: Product, target: Target) -> Steps:
    yield from GemvGroup((p,)).steps(target)


@dataclass(frozen=True, slots=True)
class GemvGroup:
    """Products of the same rows in one dispatch. All results are stored, except for that of the first one of a pair."""

    products: tuple[Product, ...]
    pair: bool = False
    norm: RmsNorm | None = None
    parts: Parts | None = None  # merged into the rows

    @property
    def read(self) -> list[Tensor]:
        first, *further = reversed(self.products) if self.pair else self.products
        operands = [t for q in further for t in (*q.matrix, *q.added)]
        return [*self._activations(first), *first.matrix, *operands, *first.added]

    @property
    def write(self) -> list[Tensor]:
        return [q.y for q in (self.products[1:] if self.pair else self.products)]

    def fits(self, target: Target) -> bool:
        """Return True if the adapter can bind all operands and results."""
        return len(self.read) + len(self.write) <= target.max_storage_buffers

    def normed(self, norm: RmsNorm) -> GemvGroup | None:
        """Return the group with the norm that makes its rows; None if another operand reads the norm's result."""
        return replace(self, norm=norm) if self.read.count(norm.y) == 1 else None

    def steps(self, target: Target) -> Steps:
        first, *further = reversed(self.products) if self.pair else self.products
        walk = WalkPlan.of([first, *further], self.pair, self.norm is not None, target)
        yield from self._walked(walk, first, further, target) if walk else self._divided(first, further, target)

    def _walked(self, walk: WalkPlan, first: Product, further: Sequence[Product], target: Target) -> Steps:
        stored, slots = [first, *(() if self.pair else further)], walk.form.layout.slots
        kernel = walking.walks(
            replace(first, alpha=1.0).form(target, quads=False),
            walk.form,
            target,
            tuple(q.bias.dtype if q.bias else None for q in further),
            self.norm.weight.dtype if self.norm else None,
            self.parts.merge if self.parts else None,
        )
        params: dict[str, int | float | Sym] = {**replace(first, alpha=1.0).params()}
        params |= {"row_bytes": first.b.shape[1], "group": first.packed.group if first.packed else 1}
        scales = []
        for w, q in enumerate([first, *further]):
            quads, places = yield from _scale_quads(q, target)
            scales.append(quads)
            params |= {f"{name}_{w}" if w else name: value for name, value in places.items()}
        for w, q in enumerate(stored):
            suffix = f"_{w}" if w else ""
            params |= {f"n{suffix}": q.n, f"quads{suffix}": ceil(q.n, walking.COLUMNS)}
        sets = sum(ceil(q.n, walking.COLUMNS) for q in stored)
        groups = smallest(ceil(sets, slots), walk.launched)
        params |= {"rounds": ceil(sets, groups * slots)}
        read = self._activations(first)
        for q, quads in zip([first, *further], scales, strict=True):
            read += [q.b, quads, *(q.added if q is not first else ())]
        yield self._dispatch(kernel, [*read, *first.added], groups, params)

    def _activations(self, first: Product) -> list[Tensor]:
        if self.norm:
            return [self.norm.source[0], self.norm.weight]
        return list(self.parts.reads) if self.parts else [first.a]

    def _dispatch(self, kernel: KernelSpec, read: list[Tensor], groups: int, params: dict[str, Any]) -> Dispatch:
        params["a_first"] = self.norm.source[1] if self.norm else 0
        params |= {"eps": self.norm.eps} if self.norm else {}
        params |= self.parts.params if self.parts else {}
        labels = [self.norm.label] if self.norm else []
        label = ", ".join([*labels, *(q.label for q in self.products)])
        flops = sum(q.flops for q in self.products)
        return Dispatch(kernel, read, self.write, groups, params, flops=flops, label=label)

    def _divided(self, first: Product, further: Sequence[Product], target: Target) -> Steps:
        s = _divided([first, *further], self.pair, self.norm is not None, target)
        first = replace(first, alpha=1.0 if s.gemv.digits else first.packing.unit)
        kernel = kernels.gemv(
            first.form(target, quads=False),
            first.packing,
            s.gemv,
            kernel_rows(first.m),
            first.m != kernel_rows(first.m),
            s.tail,
            s.row_blocks,
            s.quads,
            target,
            tuple(q.bias.dtype if q.bias else None for q in further),
            self.norm.weight.dtype if self.norm else None,
            self.parts.merge if self.parts else None,
        )
        stored = [first] if self.pair else [first, *further]
        groups = [s.groups(q.n) for q in stored]
        params: dict[str, int | float | Sym] = {
            **first.params(**first.scaling, blocks=groups[0], row_blocks=s.row_blocks)
        }
        params |= {f"scale_stride_{w}": q.scaling["scale_stride"] for w, q in enumerate(further, 1)}
        for w, q in enumerate(stored[1:], 1):
            params |= {f"n_{w}": q.n, f"blocks_{w}": groups[w]}
        yield self._dispatch(kernel, self.read, sum(groups), params)


def _paired(products: Sequence[Product], target: Target) -> GemvGroup | None:
    """Return two products as one group if the second one's epilogue can take the first one's result; else None."""
    if len(products) != 2:
        return None
    (first, second), epilogue = products, products[1].epilogue
    if not first.alike(second) or first.epilogue or first.n != second.n:
        return None
    if not epilogue or first.y not in epilogue.tensors:
        return None
    pair = GemvGroup((first, replace(second, epilogue=epilogue.without(first.y))), pair=True)
    return pair if pair.fits(target) else None


def _grouped(products: Sequence[Product], target: Target) -> list[GemvGroup]:
    """Return groups of products, in order, which are alike and which the adapter can bind."""
    groups: list[GemvGroup] = []
    for p in products:
        if groups:
            longer = GemvGroup((*groups[-1].products, p))
            plain = not any(q.epilogue for q in longer.products)
            if plain and longer.products[0].alike(p) and longer.fits(target):
                groups[-1] = longer
                continue
        groups.append(GemvGroup((p,)))
    return groups


def siblings(p: Product, target: Target) -> Steps:
    """Compute a product with its siblings and its norm, in as few dispatches as possible."""
    products = [q for q in (replace(p, siblings=(), norm=None), *p.siblings) if q.m * q.n > 0]
    if tensor_core_products.serves_all(products, target):
        yield from tensor_core_products.in_order(products, target, p.norm)
        return
    here = [q for q in products if serves(q, target) and not q.b.parts]
    rest = [q for q in products if not serves(q, target) or q.b.parts]
    pair = _paired(here, target)
    groups = [pair] if pair else _grouped(here, target)
    if p.norm and all(serves(q, target) and writable(q.y.dtype, target) for q in rest):
        every = [*groups, *(GemvGroup((part,)) for q in rest for part in q.columns(q.y))]
        normed = [g for g in (g.normed(p.norm) for g in every) if g and g.fits(target)]
        if len(normed) == len(every):
            for g in normed:
                yield from g.steps(target)
            return
    norm = p.norm
    if norm and groups:
        yield norm
        norm = None
    for g in groups:
        yield from g.steps(target)
    yield from tensor_core_products.in_order(rest, target, norm)


def after_attention(p: Product, attention: AttentionWork, target: Target) -> Steps:
    """Compute an attention and the product of its result, which merges the attention's parts if it stages its rows."""
    p = replace(p, attention=None)
    if serves(p, target) and p.m * p.n > 0 and p.k == attention.width and not p.b.parts:
        walked = WalkPlan.of([p], False, False, target) is not None
        staged = attention.quads and (walked or _divided([p], False, False, target).gemv.staged)
        if staged and 1 < attention.splits(target) <= MOST_PARTS:
            parts = yield from attention.attended(target)
            yield from GemvGroup((p,), parts=parts).steps(target)
            return
    yield attention
    yield p
