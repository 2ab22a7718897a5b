"""Products of few rows with packed weights, alone or several in one dispatch: `GEMVS` says how they are shared out.

Products of the same rows are siblings. A pair are two whose second one's finish reads what the first one gives, which
is then never stored. The dispatch can also compute the RMS norm that the rows are the result of, or merge the parts of
an attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..graph.graph import Sym, Tensor
from ..kernels import linear_q4 as kernels
from ..kernels.gemv import Gemv, by_subgroups
from ..kernels.linear_q4_rows import InputRows
from ..kernels.packing import WHOLE
from ..kernels.wgsl import writable
from ..plan.target import Target
from ..sizes import ceil, smallest
from . import matrices
from .registry import Dispatch, Steps

if TYPE_CHECKING:
    from .attention_record import Attention, Parts
    from .norm import Norm
    from .product import Product

ROWS = (1, 2, 4, 8)  # that kernels are generated for
MAX_ROWS = ROWS[-1]
FEWEST_LANES = 8
WALKERS = 4  # workgroups per unit, where they walk
MOST_PARTS = 16  # of an attention that a product merges: every workgroup reads all that are used


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to share out a product of few rows."""

    gemv: Gemv
    when: Callable[[int, int, int], bool] = lambda m, n, k: True


GEMVS = (  # by rows of x and the size (N, K) of the weight; the first that fits is taken, the last one always does
    Choice(Gemv(rows=4, lanes=32, words=1, slots=8), when=lambda m, n, k: m > 1 and n >= 8192),
    Choice(Gemv(rows=4, lanes=256, words=1), when=lambda m, n, k: m > 1 and k >= 4096),
    Choice(Gemv(rows=2, lanes=64, words=1, slots=2), when=lambda m, n, k: m > 1),
    Choice(Gemv(rows=4, lanes=32, slots=8, staged=True, digits=True, walks=True), when=lambda m, n, k: n >= 65536),
    Choice(Gemv(rows=4, lanes=64, slots=4, staged=True, digits=True), when=lambda m, n, k: k >= 4096),
    Choice(Gemv(rows=8, lanes=32, slots=8, staged=True, digits=True), when=lambda m, n, k: n >= 12288),
    Choice(Gemv(rows=4, lanes=32, slots=8, staged=True, digits=True), when=lambda m, n, k: n >= 4096),
    Choice(Gemv(rows=4, lanes=64, slots=4, staged=True, digits=True)),
)
BY_CLASS = {"software": (Choice(Gemv(rows=4, lanes=1, slots=16)),)}  # workgroup memory and barriers are dear there


def kernel_rows(m: int) -> int:
    """Of the kernel that computes m rows."""
    return next(rows for rows in ROWS if m <= rows)


def fitted(how: Gemv, blocks: Callable[[int], int], row_bytes: int, target: Target) -> Gemv:
    """The choice within what the weight's rows, K, and the adapter allow. `blocks` counts loads of that many words."""
    words = math.gcd(row_bytes, 4 * how.words) // 4 if row_bytes % 4 == 0 else 1
    needed = 1 << (blocks(words) - 1).bit_length()
    lanes = min(how.lanes, max(needed, FEWEST_LANES), target.workgroup(256))
    slots = max(1, min(how.slots, target.workgroup(256) // lanes))
    return replace(how, lanes=lanes, words=words, slots=slots)


def _reduced_bytes(how: Gemv, sums: int, squares: int, target: Target) -> int:
    """Workgroup memory in which lanes add up `sums` for each row of the weight, and `squares` for all."""
    each = how.lanes // target.subgroup_size if by_subgroups(how, target) else how.lanes
    return (sums * how.rows + squares) * each * how.slots * 4


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the work is shared out. A block is one load of a row of the weight."""

    how: Gemv
    row_blocks: int
    tail: bool
    quads: bool

    def groups(self, n: int) -> int:
        """Workgroups for n columns."""
        return ceil(n, self.how.rows * self.how.slots)


def _share(products: Sequence[Product], pair: bool, normed: bool, target: Target) -> Sharing:
    """For products of the same rows, as they are or `normed`, or for a pair."""
    p, columns = products[0], sum(q.n for q in products)
    row_bytes, packing = p.b.shape[1], p.packing

    def blocks(words: int) -> int:
        return ceil(p.k, words * packing.elements)

    choice = next(c for c in BY_CLASS.get(target.device_class.name, GEMVS) if c.when(p.m, columns, p.k))
    how = fitted(choice.gemv, blocks, row_bytes, target)
    if pair:  # a set of lanes has rows of both
        how = replace(how, rows=ceil(how.rows, 2))
    rows = kernel_rows(p.m)
    sums, squares = rows * (1 + pair), rows * normed
    while _reduced_bytes(how, sums, squares, target) > target.max_shared_bytes:
        if how.rows > 1:
            how = replace(how, rows=how.rows // 2)
        else:
            how = replace(how, slots=how.slots // 2) if how.slots > 1 else replace(how, lanes=how.lanes // 2)
    row_blocks, elements = blocks(how.words), how.words * packing.elements
    if how.digits and (rows > 1 or elements < 8 or not packing.shares(elements)):
        how = replace(how, digits=False)
    left = target.max_shared_bytes - _reduced_bytes(how, sums, squares, target) - 4 * squares * how.lanes * how.slots
    if how.digits and InputRows(how, packing, rows, row_blocks).staged_bytes() > left:
        how = replace(how, digits=False)
    if how.staged and InputRows(how, packing, rows, row_blocks).staged_bytes() > left:
        how = replace(how, staged=False)
    quads = packing.run not in (WHOLE, 1, 2) and how.rows % 4 == 0
    weights = [q.packed for q in products if q.packed]
    quads = quads and all(w.scales.shape[-1] % 4 == 0 and w.first % 4 == 0 for w in weights)
    return Sharing(how, row_blocks, p.k % (how.words * packing.elements) != 0, quads)


def serves(p: Product, target: Target) -> bool:
    """Whether p is computed here."""
    few = p.packed is not None and p.transposed and p.k > 0 and p.m <= min(MAX_ROWS, target.few_rows)
    return bool(few and not matrices.serves(p, target))


def gemv(p: Product, target: Target) -> Steps:
    yield Bundle((p,)).dispatch(target)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Products of the same rows in one dispatch, all stored but the first of a pair."""

    products: tuple[Product, ...]
    pair: bool = False
    norm: Norm | None = None
    parts: Parts | None = None  # the rows are what these are merged to

    @property
    def read(self) -> list[Tensor]:
        first, *further = reversed(self.products) if self.pair else self.products
        activations = [self.parts.tensor if self.parts else first.a]
        if self.norm:
            activations = [self.norm.source[0], self.norm.weight]
        operands = [t for q in further for t in (*q.matrix, *q.added)]
        return [*activations, *first.matrix, *operands, *first.added]

    @property
    def write(self) -> list[Tensor]:
        return [q.y for q in (self.products[1:] if self.pair else self.products)]

    def fits(self, target: Target) -> bool:
        """Whether the adapter binds what it reads and writes."""
        return len(self.read) + len(self.write) <= target.max_storage_buffers

    def normed(self, norm: Norm) -> Bundle | None:
        """The same of rows that are that norm's result, unless they are needed for more than the products."""
        return replace(self, norm=norm) if self.read.count(norm.y) == 1 else None

    def dispatch(self, target: Target) -> Dispatch:
        first, *further = reversed(self.products) if self.pair else self.products
        s = _share([first, *further], self.pair, self.norm is not None, target)
        first = replace(first, alpha=1.0 if s.how.digits else first.packing.unit)
        kernel = kernels.gemv(
            first.form(target, quads=False),
            first.packing,
            s.how,
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
        params: dict[str, int | float | Sym] = {}
        params |= first.params(**first.scaling, blocks=groups[0], row_blocks=s.row_blocks)
        params |= {f"scale_stride_{w}": q.scaling["scale_stride"] for w, q in enumerate(further, 1)}
        for w, q in enumerate(stored[1:], 1):
            params |= {f"n_{w}": q.n, f"blocks_{w}": groups[w]}
        params["a_first"] = self.norm.source[1] if self.norm else 0
        params |= {"eps": self.norm.eps} if self.norm else {}
        params |= self.parts.params if self.parts else {}
        labels = [self.norm.label] if self.norm else []
        label = ", ".join([*labels, *(q.label for q in self.products)])
        flops = sum(q.flops for q in self.products)
        launched = sum(groups)
        if s.how.walks and len(stored) == 1:
            launched = smallest(launched, WALKERS * target.device_class.busy)
        return Dispatch(kernel, self.read, self.write, launched, params, flops=flops, label=label)


def _paired(products: Sequence[Product], target: Target) -> Bundle | None:
    """Two products as a pair, if they are one."""
    if len(products) != 2:
        return None
    first, second = products
    finish = second.finish
    if not first.alike(second) or first.finish or first.n != second.n or not finish or first.y not in finish.tensors:
        return None
    operands = zip(finish.kernel.operands, finish.tensors, strict=True)
    kernel = replace(finish.kernel, operands=tuple(None if t is first.y else d for d, t in operands))
    tensors = tuple(t for t in finish.tensors if t is not first.y)
    bundle = Bundle((first, replace(second, finish=replace(finish, kernel=kernel, tensors=tensors))), pair=True)
    return bundle if bundle.fits(target) else None


def _abreast(products: Sequence[Product], target: Target) -> list[Bundle]:
    """As many in each dispatch as are alike and as the adapter binds."""
    found: list[Bundle] = []
    for p in products:
        if found:
            longer = Bundle((*found[-1].products, p))
            plain = not any(q.finish for q in longer.products)
            if plain and longer.products[0].alike(p) and longer.fits(target):
                found[-1] = longer
                continue
        found.append(Bundle((p,)))
    return found


def together(p: Product, target: Target) -> Steps:
    """A product with its siblings and its norm, in as few dispatches as there can be; otherwise one after the other."""
    products = [q for q in (replace(p, siblings=(), norm=None), *p.siblings) if q.m * q.n > 0]
    if matrices.take(products, target):
        yield from matrices.alongside(products, target, p.norm)
        return
    whole = [q for q in products if serves(q, target) and not q.b.parts]
    rest = [q for q in products if not serves(q, target) or q.b.parts]
    pair = _paired(whole, target)
    bundles = [pair] if pair else _abreast(whole, target)
    if p.norm and all(serves(q, target) and writable(q.y.dtype, target) for q in rest):
        every = [*bundles, *(Bundle((part,)) for q in rest for part in q.columns(q.y))]
        normed = [b for b in (b.normed(p.norm) for b in every) if b and b.fits(target)]
        if len(normed) == len(every):
            yield from (b.dispatch(target) for b in normed)
            return
    norm = p.norm
    if norm and bundles:
        yield norm
        norm = None
    yield from (b.dispatch(target) for b in bundles)
    yield from matrices.alongside(rest, target, norm)


def merged(p: Product, attention: Attention, target: Target) -> Steps:
    """A product of what attention gives; if that comes in parts, and rows are staged, it merges these itself."""
    p = replace(p, attention=None)
    if serves(p, target) and p.m * p.n > 0 and p.k == attention.width and not p.b.parts:
        staged = attention.quads and _share([p], False, False, target).how.staged
        if staged and 1 < attention.splits(target) <= MOST_PARTS:
            parts = yield from attention.attended(target)
            yield Bundle((p,), parts=parts).dispatch(target)
            return
    yield attention
    yield p
