"""One record for all matrix products, and one table of the ways to compute them.

A `Product` says where its rows come from (as they are, an RMS norm of them, int8, windows of an image), what its matrix
is (floats, ints of 4 or 8 bits with scales, in parts), what is done to each result (bias, a formula, bounds), and which
other products of the same rows are computed along with it. Rules yield it; a fused node adds to it (`fused.py`); and
`VARIANTS` says which kernel does it best. Floats are summed in f32, ints in i32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels.gemm import DEPTH, LARGE, MEDIUM, SLICED, SMALL, Tile, blocks, gemm
from ..kernels.gemv import gemv_columns, gemv_rows
from ..kernels.matmul import Finish, Form, add_parts, outer
from ..kernels.packing import WHOLE, Packing, loader
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from ..sizes import ceil, largest, smallest
from . import conv_products, int8_products, matrices, packed_gemv
from .conv_products import Window
from .pointwise import cast
from .registry import Dispatch, Scratch, Steps, Work

if TYPE_CHECKING:
    from .attention_record import Attention
    from .norm import Norm

MAX_ROWS_ALONG_N = 4  # against a matrix stored along N
THREADS = 256  # of the workgroups that `DeviceClass.busy` counts
WORTH_PARTS = 3  # fifths of these: with more at work, adding up parts costs what they gain (measured on an H200)
Strides = tuple[int, int, int]  # in elements, over (batch, row, column)


@dataclass(frozen=True, slots=True)
class Finishing:
    """What is done to each element of a product before it is stored, with numbers and with tensors of its shape, or
    of its last dimensions."""

    kernel: Finish
    tensors: tuple[Tensor, ...]
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Packed:
    """The scales of a matrix of packed ints (N, bytes), one for each `group` elements of a row."""

    scales: Tensor  # (groups, at least N), or (at least N)
    bits: int
    group: int
    high_first: bool = False
    first: int = 0  # column of the scales where this part of a matrix begins


@dataclass(frozen=True, slots=True)
class Int8:
    """Rows become int8, each by its scale and zero point, or all by the same; and how results become int8 again."""

    scale: Tensor | float
    zero: Tensor | int
    sums: Tensor  # of the matrix' groups: int32 (groups, at least N), or (at least N)
    out_scale: float = 1.0
    out_zero: int = 0
    relu: bool = False


@dataclass(frozen=True, slots=True)
class Product(Work):
    """y[z, row, column] = alpha · a[z, row, :] · b[z, :, column] + beta · bias[z, row, column].

    With `sets`, b and bias have only so many matrices, and z takes number z modulo that. With `window`, a is an image
    and its rows are windows. `swapped` exchanges a and b, with what belongs to them.
    """

    a: Tensor  # (batch, m, k)
    b: Tensor  # (batch or sets, k, n), or (batch or sets, n, k) if transposed
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
    window: Window | None = None
    packed: Packed | None = None
    int8: Int8 | None = None
    norm: Norm | None = None  # its result is a
    attention: Attention | None = None  # the same
    finish: Finishing | None = None
    siblings: tuple[Product, ...] = ()  # the last one's finish may read what the first one gives
    label: str = ""

    def steps(self, target: Target) -> Steps:
        """One product per part of the matrix, each for its columns of the result."""
        if self.siblings or self.norm:
            yield from packed_gemv.together(self, target)
            return
        if self.attention:
            yield from packed_gemv.merged(self, self.attention, target)
            return
        if self.batch * self.m * self.n == 0:
            return
        # Parts share the result, so the cast that a packed dtype may need comes once, after all of them.
        out, firsts = self.y, [first for first, _ in self.b.parts]
        quads = self.int8 and self.y_strides[1] % 4 == 0 and all(first % 4 == 0 for first in firsts)
        written = store_type(out.dtype, target) if firsts and not quads else out.dtype
        y = out if written is out.dtype else (yield Scratch(out.shape, written))
        whole = (yield from int8_products.quantised(self, target)) if self.int8 and not self.window else self
        for part in whole.columns(y):
            yield from _multiply(part, target)
        if y is not out:
            yield replace(cast(y, out, target), label=self.label)

    def columns(self, y: Tensor) -> list[Product]:
        """A product for each part of the matrix, with its columns of y."""
        if not self.b.parts:
            return [self]
        found = []
        for first, part in self.b.parts:
            packed = replace(self.packed, first=first) if self.packed else None
            bias_first = first * self.bias_strides[2]
            columns = replace(self, b=part, packed=packed, n=part.shape[0], y=y, y_first=first, bias_first=bias_first)
            found.append(columns)
        return found

    @property
    def added(self) -> list[Tensor]:
        """What a kernel that stores results reads beside the matrices."""
        return [*([self.bias] if self.bias else []), *(self.finish.tensors if self.finish else ())]

    @property
    def flops(self) -> int:
        if self.window and self.window.transposed:
            return 2 * math.prod(self.window.kernel) * self.a.numel * self.n
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def windowed(self) -> Window:
        """The window of a product that has one."""
        assert self.window is not None
        return self.window

    @property
    def depth(self) -> int:
        """Channels of a group of the image."""
        return self.a.shape[1] // (self.sets or 1)

    @property
    def channels(self) -> int:
        """Channels of the output."""
        return self.n * (self.sets or 1)

    @property
    def packing(self) -> Packing:
        """How the matrix is stored, for kernels."""
        assert self.packed is not None
        p, width = self.packed, self.k if self.transposed else self.n
        run = WHOLE if p.group >= width else p.group & -p.group
        return Packing(p.bits, p.high_first, self.b.shape[1] % 4 == 0, run, self.b.dtype, p.scales.dtype)

    def alike(self, other: Product) -> bool:
        """Whether both read the same rows, and packed matrices stored the same way, and give the same type."""
        if not self.packed or not other.packed or self.packing != other.packing:
            return False
        widths = (self.packed.group, self.b.shape[1]) == (other.packed.group, other.b.shape[1])
        return widths and self.a is other.a and self.y.dtype is other.y.dtype

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
            self.window.gather if self.window else None,
            self.finish.kernel if self.finish else None,
        )

    def params(self, **extra: int) -> dict[str, int | float]:
        """Those of the epilogue, which every kernel of floats has."""
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

    @property
    def scaling(self) -> dict[str, int]:
        """The parameters by which kernels find the elements of a packed b."""
        if self.packed is None:
            return {}
        p = self.packed
        known = {"row_bytes": self.b.shape[1], "group": p.group}
        return known | {"scale_stride": p.scales.shape[-1], "scale_first": p.first}

    @property
    def matrix(self) -> list[Tensor]:
        """What b is read from."""
        return [self.b, self.packed.scales] if self.packed else [self.b]

    def dispatch(self, kernel: KernelSpec, groups: int, **extra: int) -> Dispatch:
        params = self.params(**extra, **self.scaling, **(self.window.places if self.window else {}))
        reads = [self.a, *self.matrix, *self.added]
        return Dispatch(kernel, reads, [self.y], groups, params, flops=self.flops, label=self.label)

    def swapped(self) -> Product:
        """yᵀ = bᵀ · aᵀ. An image is then stored along its positions."""
        batch, row, column = self.y_strides
        bias_batch, bias_row, bias_column = self.bias_strides
        return replace(
            self,
            a=self.b,
            b=self.a,
            transposed=self.transposed and not self.window,
            m=self.n,
            n=self.m,
            y_strides=(batch, column, row),
            bias_strides=(bias_batch, bias_column, bias_row),
        )

    def partial(self, sums: Tensor) -> Product:
        """The bare sums, those over each part of K behind each other, into [parts, batch, m, n]."""
        strides = (self.m * self.n, self.n, 1)
        return replace(self, y=sums, y_strides=strides, y_first=0, bias=None, alpha=1.0, clamp=None, finish=None)


def convolved(x: Tensor, b: Tensor, window: Window, groups: int, channels: int, y: Tensor, **more: Any) -> Product:
    """A product per image and group of windows of x: positions of the output by its channels."""
    depth, m, n = x.shape[1] // groups, math.prod(window.out), channels // groups
    sizes = x.shape[0] * groups, m, n, depth * math.prod(window.kernel)
    more |= {"bias_strides": (n, 0, 1), "sets": groups, "window": window}
    return Product(x, b, True, *sizes, y, (m * n, 1, m), **more)


def one_by_one(p: Product, target: Target) -> Steps:
    """An invocation per element, for a short K, also of 0: nothing is loaded then."""
    kernel = outer(p.form(target, quads=False), target)
    yield p.dispatch(kernel, ceil(p.batch * p.m * p.n, kernel.kernel.workgroup))


def _gemv_rows(p: Product, target: Target) -> Steps:
    """More rows of b per workgroup where there are many; more invocations along K where K is long."""
    outputs = p.batch * p.n
    many = 32 * target.device_class.busy
    columns = 4 if outputs >= 2 * many and p.m <= 4 else 2 if outputs >= many else 1
    loads = p.k // 4 if p.k % 4 == 0 else p.k
    workgroup = target.workgroup(next((w for w in (256, 128, 64) if loads >= 4 * w), 32))
    blocks = ceil(p.n, columns)
    kernel = gemv_rows(p.form(target, quads=False), packed_gemv.kernel_rows(p.m), columns, workgroup, target)
    yield p.dispatch(kernel, p.batch * blocks, blocks=blocks)


def _gemv_rows_swapped(p: Product, target: Target) -> Steps:
    yield from _gemv_rows(p.swapped(), target)


def _gemv_columns(p: Product, target: Target) -> Steps:
    lanes = 32 if p.n > 64 else 16 if p.n > 32 else 8
    blocks = ceil(p.n, 4 * lanes)

    def run(q: Product, parts: int, k_part: int) -> Dispatch:
        kernel = gemv_columns(q.form(target, quads=True), packed_gemv.kernel_rows(p.m), lanes, target)
        return q.dispatch(kernel, parts * p.batch * blocks, blocks=blocks, k_part=k_part)

    yield from _over_k(p, blocks, THREADS, run, target)


def _gemm(tile: Tile) -> Callable[[Product, Target], Steps]:
    def steps(p: Product, target: Target) -> Steps:
        rows, columns = ceil(p.m, tile.size), ceil(p.n, tile.size)
        load = loader(p.packing, "P.k" if p.transposed else "P.n") if p.packed else None

        def run(q: Product, parts: int, k_part: int) -> Dispatch:
            kernel = gemm(q.form(target, quads=True), tile, target, load)
            groups = parts * p.batch * rows * columns
            return q.dispatch(kernel, groups, row_tiles=rows, column_tiles=columns, k_part=k_part)

        yield from _over_k(p, rows * columns, tile.threads, run, target)

    return steps


def _blocks(p: Product, target: Target) -> Steps:
    """An invocation for a few elements, which shares nothing: where barriers are dear."""
    load = loader(p.packing, "P.k" if p.transposed else "P.n") if p.packed else None
    rows = packed_gemv.kernel_rows(p.m) if p.m <= packed_gemv.MAX_ROWS else packed_gemv.MAX_ROWS
    kernel = blocks(p.form(target, quads=True), rows, target, load)
    yield p.dispatch(kernel, ceil(p.batch * ceil(p.m, rows) * ceil(p.n, 4), kernel.kernel.workgroup))


def most_parts(k: int) -> int:
    """Into how many parts a K is worth cutting."""
    return largest(1, k // (16 * DEPTH))


def _over_k(
    p: Product, tiles: int, threads: int, run: Callable[[Product, int, int], Dispatch], target: Target
) -> Steps:
    """One dispatch, or, where it would leave the GPU idle, one over parts of K and one that adds them up."""
    running, busy = tiles * p.batch * threads, target.device_class.busy * THREADS
    wanted = smallest(2 * busy // running, most_parts(p.k))
    if wanted < 2 or 5 * running > WORTH_PARTS * busy:
        yield run(p, 1, p.k)
        return
    k_part = ceil(ceil(p.k, wanted), DEPTH) * DEPTH
    parts = ceil(p.k, k_part)
    sums = yield Scratch((parts, p.batch, p.m, p.n), DType.F32)
    yield run(p.partial(sums), parts, k_part)
    kernel = add_parts(p.form(target, quads=False), target)
    groups = ceil(p.batch * p.m * p.n, kernel.kernel.workgroup)
    yield Dispatch(kernel, [sums, *p.added], [p.y], groups, p.params(parts=parts), label=p.label)


def fills(tile: Tile, p: Product, target: Target) -> bool:
    """Whether such tiles, K in parts, keep a GPU busy, and there are rows and columns for more than half of one."""
    tiles, busy = p.batch * ceil(p.m, tile.size) * ceil(p.n, tile.size), target.device_class.busy
    enough = tiles >= busy or tiles * most_parts(p.k) >= 2 * busy
    return enough and min(p.m, p.n) > tile.size // 2 and tile.threads <= target.max_invocations


def _leaves_idle(p: Product, target: Target) -> bool:
    """Whether small tiles would be too few to keep a GPU busy, and K is long enough for slices."""
    threads = p.batch * ceil(p.m, SMALL.size) * ceil(p.n, SMALL.size) * SMALL.threads
    return (
        p.k >= 8 * DEPTH and SLICED.threads <= target.max_invocations and threads < target.device_class.busy * THREADS
    )


def _fills_whole(tile: Tile, p: Product, target: Target) -> bool:
    """The same for int8, whose K is never in parts."""
    tiles = p.batch * ceil(p.m, tile.size) * ceil(p.n, tile.size)
    return tiles >= target.device_class.busy and (not p.window or p.n > tile.size // 2)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    steps: Callable[[Product, Target], Steps]
    when: Callable[[Product, Target], object] = lambda p, target: True


VARIANTS = (  # the first that fits is taken; the last one always does
    Variant("int8 channel by channel", int8_products.depthwise, lambda p, _: p.int8 and not p.transposed),
    Variant("int8 gemv", int8_products.gemv, lambda p, _: p.int8 and p.m <= int8_products.MAX_ROWS and not p.window),
    Variant("int8 gemm 64", int8_products.gemm(MEDIUM), lambda p, target: p.int8 and _fills_whole(MEDIUM, p, target)),
    Variant("int8 gemm 32", int8_products.gemm(SMALL), lambda p, _: p.int8),
    Variant("transposed, by phases", conv_products.phases, conv_products.has_phases),
    Variant("transposed", conv_products.transposed, lambda p, _: p.window and p.window.transposed),
    Variant("whole image", conv_products.whole, conv_products.is_whole),
    Variant("pointwise", conv_products.pointwise, conv_products.is_pointwise),
    Variant("direct", conv_products.direct, conv_products.is_narrow),
    Variant("windows", conv_products.gathered, lambda p, _: p.window and p.transposed),
    Variant("outer", one_by_one, lambda p, _: (p.k <= 8 or not p.a.dtype.is_float) and not (p.packed or p.window)),
    Variant("packed gemv", packed_gemv.gemv, packed_gemv.serves),
    Variant("blocks", _blocks, lambda p, target: target.software),
    Variant("gemv rows", _gemv_rows, lambda p, _: p.transposed and p.m <= packed_gemv.MAX_ROWS and not p.packed),
    Variant(
        "gemv rows, swapped",
        _gemv_rows_swapped,
        lambda p, _: p.transposed and p.n <= packed_gemv.MAX_ROWS and not p.packed,
    ),
    Variant("gemv columns", _gemv_columns, lambda p, _: p.m <= MAX_ROWS_ALONG_N and not p.packed),
    Variant("matrices", matrices.gemm, matrices.serves),
    Variant("gemm 128", _gemm(LARGE), lambda p, target: fills(LARGE, p, target)),
    Variant("gemm 64", _gemm(MEDIUM), lambda p, target: fills(MEDIUM, p, target)),
    Variant("gemm 32 in slices", _gemm(SLICED), _leaves_idle),
    Variant("gemm 32", _gemm(SMALL)),
)


def choose(p: Product, target: Target) -> Variant:
    return next(v for v in VARIANTS if v.when(p, target))


def _multiply(p: Product, target: Target) -> Steps:
    """The steps of a product whose matrix is whole."""
    if p.n == 1 and not (p.transposed or p.sets or p.packed):
        p = replace(p, transposed=True)
    if p.packed and p.k == 0 and not p.int8:  # there is nothing to unpack
        p = replace(p, b=p.a, packed=None)
    yield from choose(p, target).steps(p, target)
