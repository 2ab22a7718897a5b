"""Linear layers whose weights are packed integers of 4 or 8 bits: dequantised on the way into a product in floats.

For a few rows of x, `GEMVS` says how the work is shared out; for more, the weight goes through tiles of `matmul`.
Products of the same few rows can share a dispatch: `abreast`, `paired`. It can also compute the RMS norm that the rows
are the result of: `normalised`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..dtypes import FLOATS, DType
from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels.linear_q4 import WHOLE, Gemv, Packing, by_subgroups, gemv, loader
from ..kernels.matmul import LARGE, MEDIUM, SMALL, add_parts, gemm
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from .matmul import Finishing, Product, fills, in_parts, one_by_one
from .pointwise import cast
from .registry import Dispatch, Out, Scratch, Steps, op

MAX_GEMV_ROWS = 8
FEWEST_LANES = 8


@dataclass(frozen=True, slots=True)
class Weight:
    """A packed weight with its scales, one for each `group` elements of a row."""

    packed: Tensor  # (N, bytes)
    scales: Tensor  # (groups, at least N), or (at least N)
    bits: int
    group: int
    high_first: bool = False
    first: int = 0  # column of the scales where this part of a weight begins

    def packing(self, k: int) -> Packing:
        aligned = self.packed.shape[1] % 4 == 0
        run = WHOLE if self.group >= k else self.group & -self.group
        return Packing(self.bits, self.high_first, aligned, run, self.packed.dtype, self.scales.dtype)

    def params(self) -> dict[str, int]:
        stride = self.scales.shape[-1]
        row_bytes = self.packed.shape[1]
        return {"row_bytes": row_bytes, "group": self.group, "scale_stride": stride, "scale_first": self.first}

    def dispatch(self, p: Product, kernel: KernelSpec, groups: int, **extra: int) -> Dispatch:
        reads = [p.a, self.packed, self.scales, *p.added]
        params = p.params(**self.params(), **extra)
        return Dispatch(kernel, reads, [p.y], groups, params, flops=2 * p.m * p.n * p.k)


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to share out a product of few rows, and into how many parts K is cut."""

    gemv: Gemv
    parts: int = 1
    when: Callable[[int, int, int], bool] = lambda m, n, k: True


GEMVS = (  # by rows of x and the size (N, K) of the weight; the first that fits is taken, the last one always does
    Choice(Gemv(rows=4, lanes=32, words=1, slots=8), when=lambda m, n, k: m > 1 and n >= 8192),
    Choice(Gemv(rows=4, lanes=256, words=1), when=lambda m, n, k: m > 1 and k >= 4096),
    Choice(Gemv(rows=2, lanes=64, words=1, slots=2), when=lambda m, n, k: m > 1),
    Choice(Gemv(rows=8, lanes=32, slots=4, staged=True), when=lambda m, n, k: n >= 65536),
    Choice(Gemv(rows=8, lanes=32, slots=8, staged=True), when=lambda m, n, k: n >= 8192),
    Choice(Gemv(rows=4, lanes=256, words=1), when=lambda m, n, k: k >= 4096),
    Choice(Gemv(rows=1, lanes=256, words=1), when=lambda m, n, k: n <= 1024),
    Choice(Gemv(rows=1, lanes=32, slots=8, staged=True)),
)
BY_CLASS = {"software": (Choice(Gemv(rows=4, lanes=32, slots=2)),)}  # workgroup memory and barriers gain nothing there


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


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
class Norm:
    """Rows are brought to unit mean square, and their elements multiplied with a weight."""

    weight: Tensor  # (K)
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Few(Dispatch):
    """All of a product of few rows of x, or of several, with what it takes to compute it along with others."""

    product: Product
    weight: Weight
    further: tuple[Few, ...] = ()  # what else it computes

    def alike(self, other: Few) -> bool:
        """Whether both read the same x, and weights stored the same way, and give results of the same type."""
        p, q, v, w = self.product, other.product, self.weight, other.weight
        stored = v.packing(p.k) == w.packing(q.k) and (v.group, v.packed.shape[1]) == (w.group, w.packed.shape[1])
        return stored and p.a is q.a and p.y.dtype is q.y.dtype

    @property
    def operands(self) -> list[Tensor]:
        """What it reads besides x."""
        return [self.weight.packed, self.weight.scales, *self.product.added]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the work is shared out. A block is one load of a row of the weight."""

    how: Gemv
    row_blocks: int
    part_blocks: int
    parts: int  # of K
    tail: bool
    quads: bool

    def groups(self, n: int) -> int:
        """Workgroups for a part of K and n columns."""
        return _ceil(n, self.how.rows * self.how.slots)


def _share(p: Product, weights: Sequence[Weight], columns: int, normed: bool, target: Target) -> Sharing:
    """For p, or products with several weights that have so many columns together, of rows as they are or `normed`."""
    row_bytes, packing = weights[0].packed.shape[1], weights[0].packing(p.k)

    def blocks(words: int) -> int:
        return _ceil(p.k, words * packing.elements)

    choice = next(c for c in BY_CLASS.get(target.device_class.name, GEMVS) if c.when(p.m, columns, p.k))
    how = fitted(choice.gemv, blocks, row_bytes, target)
    if _is_pair(p):  # a set of lanes has rows of both
        how = replace(how, rows=_ceil(how.rows, 2))
    sums, squares = p.m * (1 + _is_pair(p)), p.m * normed
    while _reduced_bytes(how, sums, squares, target) > target.max_shared_bytes:
        if how.rows > 1:
            how = replace(how, rows=how.rows // 2)
        else:
            how = replace(how, slots=how.slots // 2) if how.slots > 1 else replace(how, lanes=how.lanes // 2)
    row_blocks = blocks(how.words)
    part_blocks = _ceil(row_blocks, choice.parts) if len(weights) == 1 else row_blocks
    staged_bytes = (p.m * part_blocks * how.words * packing.elements + squares * how.lanes * how.slots) * 4
    if staged_bytes + _reduced_bytes(how, sums, squares, target) > target.max_shared_bytes:
        how = replace(how, staged=False)
    quads = packing.run not in (WHOLE, 1, 2) and how.rows % 4 == 0
    quads = quads and all(w.scales.shape[-1] % 4 == 0 and w.first % 4 == 0 for w in weights)
    tail = p.k % (how.words * packing.elements) != 0
    return Sharing(how, row_blocks, part_blocks, _ceil(row_blocks, part_blocks), tail, quads)


def _is_pair(p: Product) -> bool:
    """Whether its finish reads what another product gives, in the same dispatch."""
    return p.finish is not None and None in p.finish.kernel.operands


def _gemv(p: Product, weight: Weight, target: Target) -> Steps:
    s = _share(p, [weight], p.n, False, target)
    p = replace(p, alpha=weight.packing(p.k).unit)
    if s.parts == 1:
        yield _few(p, weight, (), None, target)
        return
    groups = s.groups(p.n)
    sums = yield Scratch((s.parts, p.m, p.n), DType.F32)
    q = p.partial(sums)
    kernel = gemv(q.form(target, quads=False), weight.packing(p.k), s.how, p.m, s.tail, s.part_blocks, s.quads, target)
    yield weight.dispatch(q, kernel, s.parts * groups, blocks=groups, row_blocks=s.row_blocks)
    adding = add_parts(p.form(target, quads=False), target)
    groups = _ceil(p.m * p.n, adding.kernel.workgroup)
    yield Dispatch(adding, [sums, *p.added], [p.y], groups, p.params(parts=s.parts))


def _few(p: Product, weight: Weight, further: Sequence[Few], norm: Norm | None, target: Target, label: str = "") -> Few:
    """One dispatch for p and further products; if p is one of a pair, the other's result is not stored."""
    rest = [f.product for f in further]
    stored = [] if _is_pair(p) else rest
    weights = [weight, *(f.weight for f in further)]
    columns = p.n + sum(q.n for q in rest)
    s = _share(p, weights, columns, norm is not None, target)
    kernel = gemv(
        p.form(target, quads=False),
        weight.packing(p.k),
        s.how,
        p.m,
        s.tail,
        s.part_blocks,
        s.quads,
        target,
        tuple(q.bias.dtype if q.bias else None for q in rest),
        norm.weight.dtype if norm else None,
    )
    groups = [s.groups(q.n) for q in (p, *stored)]
    extra = {"blocks": groups[0], "row_blocks": s.row_blocks}
    extra |= {f"scale_stride_{w}": f.weight.scales.shape[-1] for w, f in enumerate(further, 1)}
    for w, q in enumerate(stored, 1):
        extra |= {f"n_{w}": q.n, f"blocks_{w}": groups[w]}
    activations = [p.a, norm.weight] if norm else [p.a]
    return Few(
        kernel,
        [*activations, weight.packed, weight.scales, *(t for f in further for t in f.operands), *p.added],
        [p.y, *(q.y for q in stored)],
        sum(groups),
        {**p.params(**weight.params(), **extra), **({"eps": norm.eps} if norm else {})},
        flops=2 * p.m * columns * p.k,
        label=label,
        product=p,
        weight=weight,
        further=tuple(further),
    )


def abreast(few: Sequence[Few], target: Target) -> list[Dispatch]:
    """The same products in fewer dispatches: as many in each as are alike and as the adapter binds."""
    found: list[list[Few]] = []
    for f in few:
        last = found[-1] if found else []
        bound = 1 + sum(len(g.operands) + 1 for g in (*last, f))
        plain = not any(g.product.finish for g in (*last, f))
        if last and plain and last[0].alike(f) and bound <= target.max_storage_buffers:
            last.append(f)
        else:
            found.append([f])
    return [_side_by_side(fs, target) if len(fs) > 1 else fs[0] for fs in found]


def _side_by_side(few: Sequence[Few], target: Target) -> Few:
    first, *further = few
    return _few(first.product, first.weight, further, None, target, ", ".join(f.label for f in few))


def paired(first: Few, second: Few, target: Target) -> Dispatch | None:
    """Both in one dispatch that does not store the first's result, if the second's finish is all that reads it."""
    p, finish = second.product, second.product.finish
    if not first.alike(second) or first.product.finish or first.product.n != p.n or finish is None:
        return None
    operands = zip(finish.kernel.operands, finish.tensors, strict=True)
    kernel = replace(finish.kernel, operands=tuple(None if t is first.product.y else d for d, t in operands))
    tensors = tuple(t for t in finish.tensors if t is not first.product.y)
    bound = len(second.read) - len(finish.tensors) + len(tensors) + len(first.operands) + 1
    if len(tensors) == len(finish.tensors) or bound > target.max_storage_buffers:
        return None
    p = replace(p, finish=Finishing(kernel, tensors, finish.numbers))
    return _few(p, second.weight, [first], None, target, f"{first.label}, {second.label}")


def normalised(few: Few, x: Tensor, norm: Norm, target: Target) -> Few | None:
    """The same products of the norm of x, if the adapter binds what that takes, and they read it only as their rows."""
    bound = len(few.read) + len(few.write) + 1
    if bound > target.max_storage_buffers or list(few.read).count(few.product.a) > 1:
        return None
    return _few(replace(few.product, a=x), few.weight, few.further, norm, target, few.label)


def tiled(p: Product, weight: Weight, target: Target) -> Steps:
    """A product in tiles of `matmul`, with the weight transposed or as it is."""
    tile = next(t for t in (LARGE, MEDIUM, SMALL) if t is SMALL or fills(t, p, target))
    rows, columns = _ceil(p.m, tile.size), _ceil(p.n, tile.size)
    load = loader(weight.packing(p.k)) if p.transposed else loader(weight.packing(p.n), width="P.n")

    def run(q: Product, parts: int, k_part: int) -> Dispatch:
        kernel = gemm(q.form(target, quads=True), tile, target, load)
        groups = parts * rows * columns
        return weight.dispatch(q, kernel, groups, row_tiles=rows, column_tiles=columns, k_part=k_part)

    yield from in_parts(p, rows * columns, tile.threads, run, target)


def multiply(p: Product, weight: Weight, target: Target) -> Steps:
    """The steps of a product with a packed weight; none if it has no elements."""
    if p.m * p.n == 0:
        return
    if not p.k:
        yield from one_by_one(p, target)
        return
    yield from (_gemv if p.m <= MAX_GEMV_ROWS else tiled)(p, weight, target)


def check(x: Tensor, weight: Weight, bias: Tensor | None) -> None:
    """ShapeError unless x (…, K), the weight's N rows, its scales and the bias belong together."""
    packed, scales = weight.packed, weight.scales
    if not x.rank:
        raise ShapeError("x must have at least one dimension")
    if packed.rank != 2:
        raise ShapeError(f"the weight must have 2 dimensions, not the shape {list(packed.shape)}")
    k, n, group = x.shape[-1], packed.shape[0], weight.group
    if packed.shape[1] * 8 < k * weight.bits:
        raise ShapeError(f"rows of {packed.shape[1]} bytes do not hold {k} elements of {weight.bits} bits")
    if group < 1 or scales.shape[-1] < n or math.prod(scales.shape[:-1]) * group < k:
        raise ShapeError(f"scales of shape {list(scales.shape)} do not fit {n} rows of {k} in groups of {group}")
    if bias is not None and bias.numel < n:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not fit {n} columns")


def products(
    x: Tensor, weight: Weight, bias: Tensor | None, out: Tensor, target: Target, finish: Finishing | None = None
) -> Steps:
    """out = x · weightᵀ + bias. A weight in parts is one product per part, each for its columns of the result."""
    k, n, m = x.shape[-1], weight.packed.shape[0], math.prod(x.shape[:-1])
    whole = Product(x, weight.packed, True, 1, m, n, k, out, (m * n, n, 1), 0, bias, (0, 0, 1), finish=finish)
    if not weight.packed.parts:
        yield from multiply(whole, weight, target)
        return
    # Parts share the result, so the cast that a packed dtype may need comes once, after all of them.
    written = store_type(out.dtype, target)
    y = out if written is out.dtype else (yield Scratch(out.shape, written))
    for first, part in weight.packed.parts:
        columns = replace(whole, b=part, n=part.shape[0], y=y, y_first=first, bias_first=first)
        yield from multiply(columns, replace(weight, packed=part, first=first), target)
    if y is not out:
        yield cast(y, out, target)


def linear(x: Tensor, weight: Weight, bias: Tensor | None, target: Target, finish: Finishing | None) -> Steps:
    check(x, weight, bias)
    out = yield Out((*x.shape[:-1], weight.packed.shape[0]))
    yield from products(x, weight, bias, out, target, finish)


@op("et_vk.linear_q4gsw.default", splits=("weights",), dtypes=FLOATS, abreast=True)
def linear_q4gsw(
    x: Tensor, weights: Tensor, weight_scales: Tensor, group_size: int, bias: Tensor | None = None, *, target: Target,
    finish: Finishing | None = None,
) -> Steps:  # fmt: skip
    """weights (N, K / 2), even elements in the low half, offset by 8; scales (K / group, N). All may be padded."""
    yield from linear(x, Weight(weights, weight_scales, 4, group_size), bias, target, finish)


@op("et_vk.linear_qcs4w.default", splits=("weight",), dtypes=FLOATS, abreast=True)
def linear_qcs4w(
    x: Tensor, weight: Tensor, scales: Tensor, *, target: Target, finish: Finishing | None = None
) -> Steps:
    """weight (N, K / 2), even elements in the high half, offset by 8; scales (N).

    Unlike ExecuTorch's reference, which forgets to, it subtracts the offset that the packing adds.
    """
    packed = Weight(weight, scales, 4, max(1, 2 * weight.shape[-1]), high_first=True)
    yield from linear(x, packed, None, target, finish)


@op("aten._weight_int8pack_mm.default", splits=("weight",), dtypes=FLOATS, abreast=True)
def weight_int8pack_mm(
    x: Tensor, weight: Tensor, scales: Tensor, *, target: Target, finish: Finishing | None = None
) -> Steps:
    """weight (N, K), int8; scales (N)."""
    yield from linear(x, Weight(weight, scales, 8, max(1, weight.shape[-1])), None, target, finish)
