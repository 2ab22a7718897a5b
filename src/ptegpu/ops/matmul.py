"""Matrix products of any size: `Product` says what to compute, `VARIANTS` which kernel does it best.

Floats are summed in f32, ints in i32 by a plain kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ..dtypes import NUMBERS, DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels.gemv import gemv_columns, gemv_rows
from ..kernels.matmul import (
    DEPTH,
    LARGE,
    MEDIUM,
    SMALL,
    Finish,
    Form,
    Gather,
    Tile,
    add_parts,
    gemm,
    outer,
)
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from .pointwise import broadcast_strides, cast, pointwise
from .registry import Dispatch, Number, Out, Scratch, Steps, broadcast, op

MAX_GEMV_ROWS = 8  # against a matrix stored along K
MAX_ROWS_ALONG_N = 4  # against one stored along N
THREADS = 256  # of the workgroups that `DeviceClass.busy` counts
WORTH_PARTS = 0.6  # of these threads: with more at work, adding up parts costs what they gain (measured on an H200)
Strides = tuple[int, int, int]  # in elements, over (batch, row, column)


@dataclass(frozen=True, slots=True)
class Finishing:
    """What is done to each element of a product before it is stored, with tensors of its shape and with numbers."""

    kernel: Finish
    tensors: tuple[Tensor, ...]
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Product:
    """y[z, row, column] = alpha · a[z, row, :] · b[z, :, column] + beta · bias[z, row, column].

    With `sets`, a and bias have only so many matrices, and z takes number z modulo that. With `gather`, b is any
    tensor, in which the gather finds the elements by the parameters `places`.
    """

    a: Tensor  # (batch or sets, m, k)
    b: Tensor  # (batch, k, n), or (batch, n, k) if transposed
    transposed: bool
    batch: int
    m: int
    n: int
    k: int
    y: Tensor
    y_strides: Strides
    y_first: int = 0
    bias: Tensor | None = None
    bias_strides: Strides = (0, 0, 0)
    bias_first: int = 0
    alpha: float = 1.0
    beta: float = 1.0
    clamp: tuple[float, float] | None = None
    sets: int | None = None
    gather: Gather | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    finish: Finishing | None = None

    @property
    def added(self) -> list[Tensor]:
        """What a kernel that stores results reads beside the matrices."""
        return [*([self.bias] if self.bias else []), *(self.finish.tensors if self.finish else ())]

    def form(self, target: Target, *, quads: bool) -> Form:
        """What its kernel is generated for; `quads` if that kernel can store four elements at a time."""
        _, row, column = self.y_strides
        quads = quads and column == 1 and row % 4 == 0 and self.y_first % 4 == 0
        return Form(
            self.a.dtype,
            self.b.dtype,
            self.y.dtype if quads else store_type(self.y.dtype, target),
            self.bias.dtype if self.bias else None,
            self.transposed,
            self.k % 4 == 0,
            (self.k if self.transposed else self.n) % 4 == 0,
            quads,
            self.clamp is not None,
            self.gather,
            self.finish.kernel if self.finish else None,
        )

    def params(self, **extra: int) -> Mapping[str, int | float]:
        words: dict[str, int | float] = {"batch": self.batch, "sets": self.sets or self.batch}
        words |= {"m": self.m, "n": self.n, "k": self.k}
        words |= dict(zip(("y_batch", "y_row", "y_column"), self.y_strides, strict=True))
        words |= {"y_first": self.y_first, "alpha": self.alpha}
        if self.bias:
            words |= dict(zip(("bias_batch", "bias_row", "bias_column"), self.bias_strides, strict=True))
            words |= {"bias_first": self.bias_first, "beta": self.beta}
        if self.clamp:
            words |= dict(zip(("low", "high"), self.clamp, strict=True))
        if self.finish:
            words |= self.finish.numbers
        return words | extra

    def dispatch(self, kernel: KernelSpec, groups: int, **extra: int) -> Dispatch:
        flops = 2 * self.batch * self.m * self.n * self.k
        reads = [self.a, self.b, *self.added]
        return Dispatch(kernel, reads, [self.y], groups, self.params(**extra, **self.places), flops=flops)

    def swapped(self) -> Product:
        """yᵀ = bᵀ · aᵀ, both operands being stored along K."""
        batch, row, column = self.y_strides
        bias_batch, bias_row, bias_column = self.bias_strides
        return replace(
            self,
            a=self.b,
            b=self.a,
            m=self.n,
            n=self.m,
            y_strides=(batch, column, row),
            bias_strides=(bias_batch, bias_column, bias_row),
        )

    def partial(self, sums: Tensor) -> Product:
        """The bare sums, those over each part of K behind each other, into [parts, batch, m, n]."""
        strides = (self.m * self.n, self.n, 1)
        return replace(self, y=sums, y_strides=strides, y_first=0, bias=None, alpha=1.0, clamp=None, finish=None)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def one_by_one(p: Product, target: Target) -> Steps:
    """An invocation per element, for a short K, also of 0: nothing is loaded then."""
    kernel = outer(p.form(target, quads=False), target)
    yield p.dispatch(kernel, _ceil(p.batch * p.m * p.n, kernel.kernel.workgroup))


def _gemv_rows(p: Product, target: Target) -> Steps:
    """More rows of b per workgroup where there are many; more invocations along K where K is long."""
    outputs, many = p.batch * p.n, 32 * target.device_class.busy
    columns = 4 if outputs >= 2 * many and p.m <= 4 else 2 if outputs >= many else 1
    loads = p.k // 4 if p.k % 4 == 0 else p.k
    workgroup = min(1 << max(5, (loads // 4).bit_length() - 1), target.workgroup(256))
    blocks = _ceil(p.n, columns)
    kernel = gemv_rows(p.form(target, quads=False), p.m, columns, workgroup, target)
    yield p.dispatch(kernel, p.batch * blocks, blocks=blocks)


def _gemv_rows_swapped(p: Product, target: Target) -> Steps:
    yield from _gemv_rows(p.swapped(), target)


def _gemv_columns(p: Product, target: Target) -> Steps:
    lanes = 32 if p.n > 64 else 16 if p.n > 32 else 8
    blocks = _ceil(p.n, 4 * lanes)

    def run(q: Product, parts: int, k_part: int) -> Dispatch:
        kernel = gemv_columns(q.form(target, quads=True), p.m, lanes, target)
        return q.dispatch(kernel, parts * p.batch * blocks, blocks=blocks, k_part=k_part)

    yield from in_parts(p, blocks, THREADS, run, target)


def _gemm(tile: Tile) -> Callable[[Product, Target], Steps]:
    def steps(p: Product, target: Target) -> Steps:
        rows, columns = _ceil(p.m, tile.size), _ceil(p.n, tile.size)

        def run(q: Product, parts: int, k_part: int) -> Dispatch:
            kernel = gemm(q.form(target, quads=True), tile, target)
            groups = parts * p.batch * rows * columns
            return q.dispatch(kernel, groups, row_tiles=rows, column_tiles=columns, k_part=k_part)

        yield from in_parts(p, rows * columns, tile.threads, run, target)

    return steps


def most_parts(k: int) -> int:
    """Into how many parts a K is worth cutting."""
    return max(1, k // (16 * DEPTH))


def in_parts(
    p: Product, tiles: int, threads: int, run: Callable[[Product, int, int], Dispatch], target: Target
) -> Steps:
    """One dispatch, or, where it would leave the GPU idle, one over parts of K and one that adds them up."""
    running, busy = tiles * p.batch * threads, target.device_class.busy * THREADS
    wanted = min(2 * busy // running, most_parts(p.k))
    if wanted < 2 or running > WORTH_PARTS * busy:
        yield run(p, 1, p.k)
        return
    k_part = _ceil(_ceil(p.k, wanted), DEPTH) * DEPTH
    parts = _ceil(p.k, k_part)
    sums = yield Scratch((parts, p.batch, p.m, p.n), DType.F32)
    yield run(p.partial(sums), parts, k_part)
    kernel = add_parts(p.form(target, quads=False), target)
    groups = _ceil(p.batch * p.m * p.n, kernel.kernel.workgroup)
    yield Dispatch(kernel, [sums, *p.added], [p.y], groups, p.params(parts=parts))


def fills(tile: Tile, p: Product, target: Target) -> bool:
    """Whether such tiles, K in parts, keep a GPU busy, and there are rows and columns for more than half of one."""
    tiles, busy = p.batch * _ceil(p.m, tile.size) * _ceil(p.n, tile.size), target.device_class.busy
    enough = tiles >= busy or tiles * most_parts(p.k) >= 2 * busy
    return enough and min(p.m, p.n) > tile.size // 2 and tile.threads <= target.max_invocations


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    steps: Callable[[Product, Target], Steps]
    when: Callable[[Product, Target], bool] = lambda p, target: True


VARIANTS = (  # the first that fits is taken; the last one always does
    Variant("outer", one_by_one, lambda p, _: (p.k <= 8 or not p.a.dtype.is_float) and not p.gather),
    Variant("gemv rows", _gemv_rows, lambda p, _: p.transposed and p.m <= MAX_GEMV_ROWS),
    Variant("gemv rows, swapped", _gemv_rows_swapped, lambda p, _: p.transposed and p.n <= MAX_GEMV_ROWS),
    Variant("gemv columns", _gemv_columns, lambda p, _: p.m <= MAX_ROWS_ALONG_N),
    Variant("gemm 128", _gemm(LARGE), lambda p, target: fills(LARGE, p, target)),
    Variant("gemm 64", _gemm(MEDIUM), lambda p, target: fills(MEDIUM, p, target)),
    Variant("gemm 32", _gemm(SMALL)),
)


def choose(p: Product, target: Target) -> Variant:
    return next(v for v in VARIANTS if v.when(p, target))


def multiply(p: Product, target: Target) -> Steps:
    """The steps of a product; none if it has no elements."""
    if p.batch * p.m * p.n == 0:
        return
    if p.n == 1 and not (p.transposed or p.sets or p.gather):
        p = replace(p, transposed=True)
    yield from choose(p, target).steps(p, target)


def _inner(a: Shape, b: Shape, a_dim: int, b_dim: int) -> int:
    if a[a_dim] != b[b_dim]:
        raise ShapeError(f"{list(a)} and {list(b)} cannot be multiplied")
    return a[a_dim]


def _ranks(**expected: tuple[Tensor, int]) -> None:
    for name, (t, rank) in expected.items():
        if t.rank != rank:
            raise ShapeError(f"{name} must have {rank} dimensions, not the shape {list(t.shape)}")


def _added(bias: Tensor | None, beta: float, shape: Shape) -> tuple[Tensor | None, Strides]:
    """A bias and its strides over (batch, row, column); None where it counts for nothing."""
    if bias is None or beta == 0.0:
        return None, (0, 0, 0)
    if broadcast(bias.shape, shape) != shape:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not broadcast to {list(shape)}")
    strides = (0, 0, 0, *broadcast_strides(bias.shape, shape))[-3:]
    return bias, (strides[0], strides[1], strides[2])


def _batched(
    a: Tensor, b: Tensor, bias: Tensor | None, beta: float, alpha: float, y: Tensor, finish: Finishing | None
) -> Product:
    """a (…, m, k) · b (…, k, n) of two or three dimensions, the leading one equal."""
    *lead, m, k = a.shape
    n = b.shape[-1]
    bias, bias_strides = _added(bias, beta, y.shape)
    strides = (m * n, n, 1)
    batch = math.prod(lead)
    return Product(a, b, False, batch, m, n, k, y, strides, 0, bias, bias_strides, 0, alpha, beta, finish=finish)


@op("aten.mm.default", dtypes=NUMBERS)
def mm(x: Tensor, y: Tensor, *, target: Target, finish: Finishing | None = None) -> Steps:
    _ranks(x=(x, 2), y=(y, 2))
    _inner(x.shape, y.shape, 1, 0)
    out = yield Out((x.shape[0], y.shape[1]))
    yield from multiply(_batched(x, y, None, 1.0, 1.0, out, finish), target)


@op("aten.addmm.default", dtypes=NUMBERS)
def addmm(
    bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1, *, target: Target,
    finish: Finishing | None = None,
) -> Steps:  # fmt: skip
    _ranks(x=(x, 2), y=(y, 2))
    _inner(x.shape, y.shape, 1, 0)
    shape = (x.shape[0], y.shape[1])
    _added(bias, beta, shape)
    out = yield Out(shape)
    yield from multiply(_batched(x, y, bias, beta, alpha, out, finish), target)


@op("aten.bmm.default", dtypes=NUMBERS)
def bmm(x: Tensor, y: Tensor, *, target: Target, finish: Finishing | None = None) -> Steps:
    _ranks(x=(x, 3), y=(y, 3))
    _inner(x.shape, y.shape, 0, 0)
    _inner(x.shape, y.shape, 2, 1)
    out = yield Out((x.shape[0], x.shape[1], y.shape[2]))
    yield from multiply(_batched(x, y, None, 1.0, 1.0, out, finish), target)


@op("aten.baddbmm.default", dtypes=NUMBERS)
def baddbmm(
    bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1, *, target: Target,
    finish: Finishing | None = None,
) -> Steps:  # fmt: skip
    _ranks(x=(x, 3), y=(y, 3))
    _inner(x.shape, y.shape, 0, 0)
    _inner(x.shape, y.shape, 2, 1)
    shape = (x.shape[0], x.shape[1], y.shape[2])
    _added(bias, beta, shape)
    out = yield Out(shape)
    yield from multiply(_batched(x, y, bias, beta, alpha, out, finish), target)


@op("aten.linear.default", splits=("weight",), dtypes=NUMBERS)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, target: Target, finish: Finishing | None = None
) -> Steps:
    """x (…, K) · weight (N, K)ᵀ, or (K). A weight in parts is one dispatch per part, each for its own columns."""
    if not x.rank:
        raise ShapeError("x must have at least one dimension")
    if weight.rank != 2 and (weight.rank != 1 or weight.parts):
        raise ShapeError(f"weight must have 2 dimensions, not the shape {list(weight.shape)}")
    k = _inner(x.shape, weight.shape, -1, -1)
    m, n = math.prod(x.shape[:-1]), weight.shape[0] if weight.rank == 2 else 1
    shape = (*x.shape[:-1], *weight.shape[:-1])
    _added(bias, 1.0, shape)
    out = yield Out(shape)
    if bias is not None and bias.rank > 1 and out.rank != 2:  # not the same for all rows, nor in a matrix' strides
        spread = yield Scratch(shape, bias.dtype)
        yield pointwise("expand", "a", [bias], spread, target)
        bias, bias_strides = spread, (0, n, 1)
    else:
        bias, bias_strides = _added(bias, 1.0, (m, n))
    whole = Product(x, weight, True, 1, m, n, k, out, (m * n, n, 1), 0, bias, bias_strides, finish=finish)
    yield from _columns(whole, target)


def _columns(whole: Product, target: Target) -> Steps:
    """The steps of a product whose weight may be in parts."""
    out, parts = whole.y, whole.b.parts
    if not parts:
        yield from multiply(whole, target)
        return
    # Parts share the result, so the cast that a packed dtype may need comes once, after all of them.
    written = store_type(out.dtype, target)
    y = out if written is out.dtype else (yield Scratch(out.shape, written))
    for first, part in parts:
        bias_first = first * whole.bias_strides[2]
        columns = replace(whole, b=part, n=part.shape[0], y=y, y_first=first, bias_first=bias_first)
        yield from multiply(columns, target)
    if y is not out:
        yield cast(y, out, target)


@op("aten.mv.default", splits=("x",), dtypes=NUMBERS)
def mv(x: Tensor, vector: Tensor, *, target: Target) -> Steps:
    """x (N, K) · vector (K)."""
    _ranks(x=(x, 2), vector=(vector, 1))
    yield from linear(vector, x, target=target)


@op("aten.dot.default", dtypes=NUMBERS)
def dot(x: Tensor, y: Tensor, *, target: Target) -> Steps:
    _ranks(x=(x, 1), y=(y, 1))
    k = _inner(x.shape, y.shape, 0, 0)
    out = yield Out(())
    yield from multiply(Product(x, y, True, 1, 1, 1, k, out, (1, 1, 1)), target)
