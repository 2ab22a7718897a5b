"""Convolutions as products, whose rows are the windows of an image and whose columns are the weights of a channel.

Most become ordinary products of the weights (out channels, channels · taps) with the input, or with its windows
(channels · taps, positions); groups and images are a batch of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import convolution as kernels
from ..kernels.matmul import Gather
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from .registry import Dispatch, Scratch, Steps

if TYPE_CHECKING:
    from .product import Product

FEW = 64  # weights per tap and group up to which a transposed convolution is not worth three dispatches
NARROW = 16  # output channels of a group below which tiles of a product would be mostly idle
FARTHEST = 1 << 24  # maximum stride, padding and dilation: offsets have 32 bits
LONGEST_LINE = 32  # maximum taps along the innermost axis that are worth unrolling


@dataclass(frozen=True, slots=True)
class ConvWindow:
    """The sizes of a convolution along its spatial axes."""

    size: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    out: Shape
    transposed: bool = False

    @property
    def axes(self) -> range:
        return range(len(self.size))

    def phases(self) -> ConvWindow:
        """Return the window of the stride-1 convolution that computes all phases of this transposed one."""
        kernel = tuple(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        first = tuple(p // s for p, s in zip(self.padding, self.stride, strict=True))
        ends = ((o - 1 + p) // s for o, p, s in zip(self.out, self.padding, self.stride, strict=True))
        return ConvWindow(
            self.size,
            kernel,
            (1,) * len(kernel),
            tuple(d * (k - 1) - f for d, k, f in zip(self.dilation, kernel, first, strict=True)),
            self.dilation,
            tuple(end - f + 1 for end, f in zip(ends, first, strict=True)),
        )

    def params(self, names: str, axes: Iterable[int] | None = None) -> dict[str, int]:
        """Return the kernels' parameters of these names: i (size), o (out), k, s, p, d."""
        values = {"i": self.size, "o": self.out, "k": self.kernel}
        values |= {"s": self.stride, "p": self.padding, "d": self.dilation}
        return {f"{n}{k}": values[n][k] for n in names for k in (self.axes if axes is None else axes)}

    @property
    def gather(self) -> Gather:
        """The WGSL that finds the elements of windows, which needs the parameters `places`."""
        return kernels.window(self.kernel)

    @property
    def places(self) -> dict[str, int]:
        return {"plane": math.prod(self.size), **self.params("ispdo")}


def per_axis(name: str, values: list[int], rank: int, least: int) -> Shape:
    """Return one number per axis; a single value counts for all axes."""
    numbers = tuple(values) * rank if len(values) == 1 else tuple(values)
    if len(numbers) != rank or min(numbers) < least:
        raise ShapeError(f"{name} {values} does not fit {rank} dimensions")
    return numbers


def window_of(
    size: Shape,
    kernel: Shape,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int] | None = None,
) -> ConvWindow:
    """Return the window of a convolution, which is transposed if it has an output padding."""
    rank = len(kernel)
    steps = per_axis("stride", stride, rank, 1)
    pads = per_axis("padding", padding, rank, 0)
    spread = per_axis("dilation", dilation, rank, 1)
    if max(*steps, *pads, *spread) > FARTHEST:
        raise ShapeError(f"stride {stride}, padding {padding} and dilation {dilation} exceed {FARTHEST:,}")
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, spread, strict=True)]
    if output_padding is not None:
        more = per_axis("output_padding", output_padding, rank, 0)
        out = tuple((n - 1) * s - 2 * p + r + o for n, s, p, r, o in zip(size, steps, pads, reach, more, strict=True))
    else:
        out = tuple((n + 2 * p - r) // s + 1 for n, s, p, r in zip(size, steps, pads, reach, strict=True))
    if min(*size, *kernel, *out) < 1:
        raise ShapeError(f"a kernel of {list(kernel)} does not fit an input of {list(size)} with padding {list(pads)}")
    return ConvWindow(size, kernel, steps, pads, spread, out, output_padding is not None)


def _storages(p: Product, target: Target, *, quads: bool = False) -> kernels.Storages:
    stored = p.y.dtype if quads else store_type(p.y.dtype, target)
    bias, epilogue = p.bias.dtype if p.bias else None, p.epilogue.kernel if p.epilogue else None
    return kernels.Storages(p.a.dtype, p.b.dtype, bias, stored, p.clamp is not None, epilogue)


def _launch(p: Product, kernel: KernelSpec, count: int, params: Mapping[str, int]) -> Dispatch:
    """Return a dispatch with an invocation for each of `count` pieces of the output."""
    shared = {"count": count, "sets": p.matrix_count or 1, "per_group": p.n, "depth": p.depth}
    groups = -(-count // kernel.kernel.workgroup)
    words = {**shared, **params, **p.epilogue_numbers}
    return Dispatch(kernel, [p.a, p.b, *p.added], [p.y], groups, words, flops=p.flops, label=p.label)


def _quads(
    p: Product, kernel: KernelSpec, read: list[Tensor], write: Tensor, params: Mapping[str, int | float]
) -> Dispatch:
    """Return a dispatch with an invocation for every four elements of the output."""
    groups = -(-write.numel // (4 * kernel.kernel.workgroup))
    return Dispatch(kernel, read, [write], groups, {"n": write.numel, **params}, label=p.label)


def transposed(p: Product, target: Target) -> Steps:
    w = p.windowed
    blocks = -(-p.n // 4)
    kernel = kernels.transposed(_storages(p, target), len(w.axes), target)
    sizes = {"positions": p.m, "blocks": blocks, "plane": math.prod(w.size), "taps": math.prod(w.kernel)}
    yield _launch(p, kernel, p.batch * blocks * p.m, sizes | w.params("ikspdo"))


def phases(p: Product, target: Target) -> Steps:
    """Compute by an ordinary convolution with a channel for each phase, and interleave the phases."""
    w = p.windowed
    inner, count, channels = w.phases(), math.prod(w.stride), p.channels
    weight = yield Scratch((channels * count, p.depth, *inner.kernel), p.b.dtype)
    kernel = kernels.phases(p.b.dtype, len(w.axes), target)
    params = {"depth": p.depth, "per_group": p.n, **w.params("sk")}
    params |= {f"t{k}": inner.kernel[k] for k in w.axes}
    yield _quads(p, kernel, [p.b], weight, params)
    m, n, k = math.prod(inner.out), p.n * count, p.depth * math.prod(inner.kernel)
    ordinary = replace(p, b=weight, window=inner, m=m, n=n, k=k, y_strides=(m * n, 1, m))
    if count == 1:
        yield ordinary
        return
    sums = yield Scratch((p.a.shape[0], channels * count, *inner.out), DType.F32)
    yield replace(ordinary, y=sums, bias=None, clamp=None, epilogue=None)
    storages = replace(_storages(p, target, quads=True), x=DType.F32)
    kernel = kernels.interleave(storages, len(w.axes), target)
    params = {"channels": channels, "per_group": p.n, **w.params("osp")}
    params |= {f"q{k}": inner.out[k] for k in w.axes}
    params |= {f"first{k}": w.padding[k] // w.stride[k] for k in w.axes}
    yield _quads(p, kernel, [sums, *p.added], p.y, {**params, **p.epilogue_numbers})


def has_phases(p: Product, target: Target) -> bool:
    """Return True if outputs a stride apart take the same taps, enough of them, and the scratch can be bound."""
    w = p.window
    if w is None or not w.transposed:
        return False
    apart = all(1 in (s, d) for s, d in zip(w.stride, w.dilation, strict=True))
    nbytes = 4 * p.a.shape[0] * p.channels * math.prod((*w.stride, *w.phases().out))
    return apart and p.depth * p.n > FEW and nbytes <= target.max_binding_bytes


def whole_image(p: Product, target: Target) -> Steps:
    """Compute with each image as a row of a matrix, where the window is the whole image."""
    strides = (p.batch * p.n, p.n, 1)
    yield replace(p, batch=1, m=p.batch, y_strides=strides, bias_strides=(0, 0, 1), matrix_count=None, window=None)


def is_whole_image(p: Product, target: Target) -> bool:
    w = p.window
    return bool(w and p.transposed and p.matrix_count == 1 and w.kernel == w.size and p.m == 1 and not any(w.padding))


def pointwise(p: Product, target: Target) -> Steps:
    yield replace(p.swapped(), window=None)


def is_pointwise(p: Product, target: Target) -> bool:
    w = p.window
    if w is None or not p.transposed:
        return False
    return max(w.kernel) == max(w.stride) == 1 and w.out == w.size and not any(w.padding)


def direct(p: Product, target: Target) -> Steps:
    w = p.windowed
    *outer, last = w.axes
    y_quads = w.out[last] % 4 == 0
    line = kernels.InnerWindow(w.kernel[last], w.stride[last], w.dilation[last], w.padding[last])
    storages = _storages(p, target, quads=y_quads)
    kernel = kernels.direct(storages, line, len(w.axes), w.size[last] % 4 == 0, y_quads, target)
    blocks = -(-w.out[last] // 4)
    sizes = {"blocks": blocks, "channels": p.channels, f"i{last}": w.size[last], f"o{last}": w.out[last]}
    yield _launch(p, kernel, p.y.numel // w.out[last] * blocks, sizes | w.params("ikspdo", outer))


def is_narrow(p: Product, target: Target) -> bool:
    w = p.window
    return bool(w and p.transposed and p.matrix_count != 1 and p.n < NARROW and w.kernel[-1] <= LONGEST_LINE)


def gathered(p: Product, target: Target) -> Steps:
    """Compute with the matrix of windows, which is never stored."""
    yield p.swapped()
