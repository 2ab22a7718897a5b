"""One record for all matrix products, and one table of algorithms that compute them.

A `Product` describes its rows (plain, RMS-normalised, int8, or windows of an image), its matrix (floats, or 4-bit or
8-bit ints with scales, perhaps in parts), its epilogue (bias, formula, bounds), and the sibling products of the same
rows that are computed with it. Rules yield products, fused nodes extend them (`fused.py`), and `VARIANTS` chooses the
algorithm. Floats are summed in f32, ints in i32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels.gemm import DEPTH, LARGE, MEDIUM, SLICED, SMALL, Tile, blocks, gemm
from ..kernels.gemv import gemv_columns, gemv_rows
from ..kernels.matmul import Epilogue, GemmForm, add_parts, outer
from ..kernels.packing import WHOLE, Packing, loader
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from ..sizes import ceil, largest, smallest
from . import conv_products, int8_products, packed_gemv, tensor_core_products
from .conv_products import ConvWindow
from .pointwise import cast
from .registry import Dispatch, Scratch, Steps, Work

if TYPE_CHECKING:
    from .attention_record import AttentionWork
    from .norm import RmsNorm

MAX_ROWS_ALONG_N = 4  # against a matrix stored along N
THREADS = 256  # invocations of a workgroup as `DeviceClass.busy` counts them
SPLIT_K_BELOW = 3  # fifths of a busy GPU below which K is split: above, adding up costs what it gains (on an H200)
Strides = tuple[int, int, int]  # in elements, over (batch, row, column)


@dataclass(frozen=True, slots=True)
class BoundEpilogue:
    """An epilogue with its numbers and its tensors, which have the shape of the result or of its last dimensions."""

    kernel: Epilogue
    tensors: tuple[Tensor, ...]
    numbers: Mapping[str, float]

    def without(self, t: Tensor, name: str = "beside") -> BoundEpilogue:
        """Return the epilogue with the kernel's variable `name` in place of the operand `t`."""
        operands = tuple(None if x is t else d for d, x in zip(self.kernel.operands, self.tensors, strict=True))
        kernel = replace(self.kernel, operands=operands, beside=name)
        return replace(self, kernel=kernel, tensors=tuple(x for x in self.tensors if x is not t))


@dataclass(frozen=True, slots=True)
class Packed:
    """The format of a matrix of packed ints (N, bytes), with one scale for each `group` elements of a row."""

    scales: Tensor  # (groups, at least N), or (at least N)
    bits: int
    group: int
    high_first: bool = False
    first: int = 0  # column of the scales where this part of a matrix begins


@dataclass(frozen=True, slots=True)
class Int8:
    """The quantisation of rows, with a scale and a zero point per row or for all rows, and of results."""

    scale: Tensor | float
    zero: Tensor | int
    sums: Tensor  # sums of the matrix per group: int32 (groups, at least N), or (at least N)
    out_scale: float = 1.0
    out_zero: int = 0
    relu: bool = False


@dataclass(frozen=True, slots=True)
class Product(Work):
    """y[z, row, column] = alpha · a[z, row, :] · b[z, :, column] + beta · bias[z, row, column].

    With `matrix_count`, b and bias have that number of matrices, and z takes matrix z modulo that number. With
    `window`, a is an image and its rows are windows.
    """

    a: Tensor  # (batch, m, k)
    b: Tensor  # (matrices, k, n), or (matrices, n, k) if transposed
    transposed: bool
    batch: int
    m: int
    n: int
    k: int
    y: Tensor
    y_strides: Strides
    y_offset: int = 0
    bias: Tensor | None = None
    bias_strides: Strides = (0, 0, 0)
    bias_offset: int = 0
    alpha: float = 1.0
    beta: float = 1.0
    clamp: tuple[float, float] | None = None
    matrix_count: int | None = None
    window: ConvWindow | None = None
    packed: Packed | None = None
    int8: Int8 | None = None
    norm: RmsNorm | None = None  # computes a
    attention: AttentionWork | None = None  # computes a
    epilogue: BoundEpilogue | None = None
    siblings: tuple[Product, ...] = ()  # the last one's epilogue may read the first one's result
    label: str = ""

    def steps(self, target: Target) -> Steps:
        """Compute the parts of the matrix one by one, each for its columns of the result."""
        if self.siblings or self.norm:
            yield from packed_gemv.siblings(self, target)
            return
        if self.attention:
            yield from packed_gemv.after_attention(self, self.attention, target)
            return
        if self.batch * self.m * self.n == 0:
            return
        # Parts share the result, so the cast that a packed dtype may need comes once, after all of them.
        out, firsts = self.y, [first for first, _ in self.b.parts]
        quads = self.int8 and self.y_strides[1] % 4 == 0 and all(first % 4 == 0 for first in firsts)
        written = store_type(out.dtype, target) if firsts and not quads else out.dtype
        y = out if written is out.dtype else (yield Scratch(out.shape, written))
        quantised = (yield from int8_products.quantised(self, target)) if self.int8 and not self.window else self
        for part in quantised.columns(y):
            if part.n == 1 and not (part.transposed or part.matrix_count or part.packed):
                part = replace(part, transposed=True)
            if part.packed and part.k == 0 and not part.int8:  # nothing to unpack
                part = replace(part, b=part.a, packed=None)
            yield from choose(part, target).steps(part, target)
        if y is not out:
            yield replace(cast(y, out, target), label=self.label)

    def columns(self, y: Tensor) -> list[Product]:
        """Return a product for each part of the matrix, with its columns of y."""
        products = []
        for first, part in self.b.parts:
            packed, bias = self.packed and replace(self.packed, first=first), first * self.bias_strides[2]
            columns = replace(self, b=part, packed=packed, n=part.shape[0], y=y, y_offset=first, bias_offset=bias)
            products.append(columns)
        return products or [self]

    @property
    def added(self) -> list[Tensor]:
        """The tensors that a kernel with the epilogue reads in addition to the matrices."""
        return [*([self.bias] if self.bias else []), *(self.epilogue.tensors if self.epilogue else ())]

    @property
    def flops(self) -> int:
        if self.window and self.window.transposed:
            return 2 * math.prod(self.window.kernel) * self.a.numel * self.n
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def windowed(self) -> ConvWindow:
        assert self.window is not None
        return self.window

    @property
    def depth(self) -> int:
        """The channels of a group of the image."""
        return self.a.shape[1] // (self.matrix_count or 1)

    @property
    def channels(self) -> int:
        return self.n * (self.matrix_count or 1)

    @property
    def packing(self) -> Packing:
        """The storage format of the matrix."""
        assert self.packed is not None
        p, width = self.packed, self.k if self.transposed else self.n
        run = WHOLE if p.group >= width else p.group & -p.group
        return Packing(p.bits, p.high_first, self.b.shape[1] % 4 == 0, run, self.b.dtype, p.scales.dtype)

    def alike(self, other: Product) -> bool:
        """Return True if both read the same rows and matrices of one packing, and have results of one dtype."""
        if not self.packed or not other.packed or self.packing != other.packing:
            return False
        widths = (self.packed.group, self.b.shape[1]) == (other.packed.group, other.b.shape[1])
        return widths and self.a is other.a and self.y.dtype is other.y.dtype

    def form(self, target: Target, *, quads: bool) -> GemmForm:
        """Return the form of the kernel, which stores four elements at a time if it can (`quads`) and y allows it."""
        _, row, column = self.y_strides
        quads = quads and column == 1 and row % 4 == 0 and self.y_offset % 4 == 0
        return GemmForm(
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
            self.epilogue.kernel if self.epilogue else None,
        )

    def params(self, **extra: int) -> dict[str, int | float]:
        """Return the parameters that all float kernels share, and `extra` ones."""
        words: dict[str, int | float] = {"batch": self.batch, "sets": self.matrix_count or self.batch}
        words |= {"m": self.m, "n": self.n, "k": self.k}
        words |= dict(zip(("y_batch", "y_row", "y_column"), self.y_strides, strict=True))
        words |= {"y_first": self.y_offset, "alpha": self.alpha}
        if self.bias:
            words |= dict(zip(("bias_batch", "bias_row", "bias_column"), self.bias_strides, strict=True))
            words |= {"bias_first": self.bias_offset, "beta": self.beta}
        return words | self.epilogue_numbers | extra

    @property
    def epilogue_numbers(self) -> dict[str, int | float]:
        bounds = dict(zip(("low", "high"), self.clamp, strict=True)) if self.clamp else {}
        return {**bounds, **(self.epilogue.numbers if self.epilogue else {})}

    @property
    def scaling(self) -> dict[str, int]:
        """The parameters of `packing.loader` if b is packed."""
        if (p := self.packed) is None:
            return {}
        layout = {"row_bytes": self.b.shape[1], "group": p.group}
        return layout | {"scale_stride": p.scales.shape[-1], "scale_first": p.first}

    @property
    def matrix(self) -> list[Tensor]:
        """The tensors that hold b."""
        return [self.b, self.packed.scales] if self.packed else [self.b]

    def dispatch(self, kernel: KernelSpec, groups: int, **extra: int) -> Dispatch:
        params = self.params(**extra, **self.scaling, **(self.window.places if self.window else {}))
        reads = [self.a, *self.matrix, *self.added]
        return Dispatch(kernel, reads, [self.y], groups, params, flops=self.flops, label=self.label)

    def swapped(self) -> Product:
        """Return the same product as yᵀ = bᵀ · aᵀ, in which an image is stored along its positions."""
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
        """Return the product without its epilogue; kernels leave a sum per part of K in `sums` [parts, batch, m, n]."""
        strides = (self.m * self.n, self.n, 1)
        return replace(self, y=sums, y_strides=strides, y_offset=0, bias=None, alpha=1.0, clamp=None, epilogue=None)


def convolved(x: Tensor, b: Tensor, window: ConvWindow, groups: int, channels: int, y: Tensor, **more: Any) -> Product:
    """Return a product per image and group with the windows of x as rows: (output positions, output channels)."""
    depth, m, n = x.shape[1] // groups, math.prod(window.out), channels // groups
    sizes = x.shape[0] * groups, m, n, depth * math.prod(window.kernel)
    more |= {"bias_strides": (n, 0, 1), "matrix_count": groups, "window": window}
    return Product(x, b, True, *sizes, y, (m * n, 1, m), **more)


def one_by_one(p: Product, target: Target) -> Steps:
    """Compute with an invocation per element, for a short K; a K of 0 loads nothing."""
    kernel = outer(p.form(target, quads=False), target)
    yield p.dispatch(kernel, ceil(p.batch * p.m * p.n, kernel.kernel.workgroup))


def _gemv_rows(p: Product, target: Target) -> Steps:
    """Compute with more rows of b per workgroup for many columns, and more invocations along K for a long K."""
    outputs, busy = p.batch * p.n, 32 * target.device_class.busy
    columns = 4 if outputs >= 2 * busy and p.m <= 4 else 2 if outputs >= busy else 1
    loads = p.k // 4 if p.k % 4 == 0 else p.k
    workgroup = target.workgroup(next((w for w in (256, 128, 64) if loads >= 4 * w), 32))
    blocks = ceil(p.n, columns)
    kernel = gemv_rows(p.form(target, quads=False), packed_gemv.kernel_rows(p.m), columns, workgroup, target)
    yield p.dispatch(kernel, p.batch * blocks, blocks=blocks)


def _gemv_columns(p: Product, target: Target) -> Steps:
    lanes = 32 if p.n > 64 else 16 if p.n > 32 else 8
    blocks = ceil(p.n, 4 * lanes)

    def run(q: Product, parts: int, k_part: int) -> Dispatch:
        kernel = gemv_columns(q.form(target, quads=True), packed_gemv.kernel_rows(p.m), lanes, target)
        return q.dispatch(kernel, parts * p.batch * blocks, blocks=blocks, k_part=k_part)

    yield from _split_k(p, blocks, THREADS, run, target)


def _gemm(tile: Tile) -> Callable[[Product, Target], Steps]:
    def steps(p: Product, target: Target) -> Steps:
        rows, columns = ceil(p.m, tile.size), ceil(p.n, tile.size)
        load = loader(p.packing, "P.k" if p.transposed else "P.n") if p.packed else None

        def run(q: Product, parts: int, k_part: int) -> Dispatch:
            kernel = gemm(q.form(target, quads=True), tile, target, load)
            groups = parts * p.batch * rows * columns
            return q.dispatch(kernel, groups, row_tiles=rows, column_tiles=columns, k_part=k_part)

        yield from _split_k(p, rows * columns, tile.threads, run, target)

    return steps


def _blocks(p: Product, target: Target) -> Steps:
    """Compute a few elements per invocation without workgroup memory, where barriers are expensive."""
    load = loader(p.packing, "P.k" if p.transposed else "P.n") if p.packed else None
    rows = packed_gemv.kernel_rows(p.m) if p.m <= packed_gemv.MAX_ROWS else packed_gemv.MAX_ROWS
    kernel = blocks(p.form(target, quads=True), rows, target, load)
    yield p.dispatch(kernel, ceil(p.batch * ceil(p.m, rows) * ceil(p.n, 4), kernel.kernel.workgroup))


def _max_parts(k: int) -> int:
    """Return the number of parts that a K of this length is worth splitting into."""
    return largest(1, k // (16 * DEPTH))


def _split_k(
    p: Product, tiles: int, threads: int, run: Callable[[Product, int, int], Dispatch], target: Target
) -> Steps:
    """Compute in one dispatch, or split K over workgroups and add up the parts if the GPU would be idle otherwise."""
    running, busy = tiles * p.batch * threads, target.device_class.busy * THREADS
    parts = smallest(2 * busy // running, _max_parts(p.k))
    if parts < 2 or 5 * running > SPLIT_K_BELOW * busy:
        yield run(p, 1, p.k)
        return
    k_part = ceil(ceil(p.k, parts), DEPTH) * DEPTH
    parts = ceil(p.k, k_part)
    sums = yield Scratch((parts, p.batch, p.m, p.n), DType.F32)
    yield run(p.partial(sums), parts, k_part)
    kernel = add_parts(p.form(target, quads=False), target)
    groups = ceil(p.batch * p.m * p.n, kernel.kernel.workgroup)
    yield Dispatch(kernel, [sums, *p.added], [p.y], groups, p.params(parts=parts), label=p.label)


def _fills(tile: Tile, p: Product, target: Target) -> bool:
    """Return True if the tiles, with K split, keep a GPU busy and y has more than half of a tile's rows and columns."""
    tiles, busy = p.batch * ceil(p.m, tile.size) * ceil(p.n, tile.size), target.device_class.busy
    enough = tiles >= busy or tiles * _max_parts(p.k) >= 2 * busy
    return enough and min(p.m, p.n) > tile.size // 2 and tile.threads <= target.max_invocations


def _leaves_idle(p: Product, target: Target) -> bool:
    """Return True if small tiles are too few to keep a GPU busy and K is long enough for slices."""
    threads, busy = p.batch * ceil(p.m, SMALL.size) * ceil(p.n, SMALL.size) * SMALL.threads, target.device_class.busy
    return p.k >= 8 * DEPTH and SLICED.threads <= target.max_invocations and threads < busy * THREADS


def _fills_int8(tile: Tile, p: Product, target: Target) -> bool:
    """Return True if the tiles keep a GPU busy without splitting K, which int8 products never do."""
    tiles = p.batch * ceil(p.m, tile.size) * ceil(p.n, tile.size)
    return tiles >= target.device_class.busy and (not p.window or p.n > tile.size // 2)


class Algorithm(NamedTuple):
    name: str
    steps: Callable[[Product, Target], Steps]
    when: Callable[[Product, Target], object] = lambda p, target: True


VARIANTS = (  # the first whose condition holds is taken
    Algorithm("int8 channel by channel", int8_products.depthwise, lambda p, _: p.int8 and not p.transposed),
    Algorithm("int8 gemv", int8_products.gemv, lambda p, _: p.int8 and p.m <= int8_products.MAX_ROWS and not p.window),
    Algorithm("int8 gemm 64", int8_products.gemm(MEDIUM), lambda p, t: p.int8 and _fills_int8(MEDIUM, p, t)),
    Algorithm("int8 gemm 32", int8_products.gemm(SMALL), lambda p, _: p.int8),
    Algorithm("transposed, by phases", conv_products.phases, conv_products.has_phases),
    Algorithm("transposed", conv_products.transposed, lambda p, _: p.window and p.window.transposed),
    Algorithm("whole image", conv_products.whole_image, conv_products.is_whole_image),
    Algorithm("pointwise", conv_products.pointwise, conv_products.is_pointwise),
    Algorithm("direct", conv_products.direct, conv_products.is_narrow),
    Algorithm("windows", conv_products.gathered, lambda p, _: p.window and p.transposed),
    Algorithm("outer", one_by_one, lambda p, _: (p.k <= 8 or not p.a.dtype.is_float) and not (p.packed or p.window)),
    Algorithm("packed gemv", packed_gemv.gemv, packed_gemv.serves),
    Algorithm("blocks", _blocks, lambda p, t: t.software),
    Algorithm("gemv rows", _gemv_rows, lambda p, _: p.transposed and p.m <= packed_gemv.MAX_ROWS and not p.packed),
    Algorithm(
        "gemv rows, swapped",
        lambda p, t: _gemv_rows(p.swapped(), t),
        lambda p, _: p.transposed and p.n <= packed_gemv.MAX_ROWS and not p.packed,
    ),
    Algorithm("gemv columns", _gemv_columns, lambda p, _: p.m <= MAX_ROWS_ALONG_N and not p.packed),
    Algorithm("matrices", tensor_core_products.gemm, tensor_core_products.serves),
    Algorithm("gemm 128", _gemm(LARGE), lambda p, t: _fills(LARGE, p, t)),
    Algorithm("gemm 64", _gemm(MEDIUM), lambda p, t: _fills(MEDIUM, p, t)),
    Algorithm("gemm 32 in slices", _gemm(SLICED), _leaves_idle),
    Algorithm("gemm 32", _gemm(SMALL)),
)


def choose(p: Product, target: Target) -> Algorithm:
    return next(v for v in VARIANTS if v.when(p, target))
