"""Convolutions over one to three spatial axes, also transposed, grouped and dilated: `VARIANTS` says what serves which.

Wherever the work is a matrix product, of the weights (out channels, channels · taps) with the input or with its windows
(channels · taps, positions), the kernels of matmul do it; groups and batch count as matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..dtypes import FLOATS, DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import convolution as kernels
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from .matmul import Product, multiply
from .registry import Dispatch, Out, Scratch, Steps, op

FEW = 64  # weights per tap and group for which a transposed convolution is not worth three dispatches
NARROW = 16  # output channels of a group below which tiles of a product would be mostly idle
LONGEST_LINE = 32  # taps along the innermost axis that are worth unrolling


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes along the spatial axes."""

    size: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    out: Shape

    @property
    def axes(self) -> range:
        return range(len(self.size))

    def phases(self) -> Geometry:
        """Of the ordinary convolution by which all phases of this transposed one are found."""
        kernel = tuple(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        first = tuple(p // s for p, s in zip(self.padding, self.stride, strict=True))
        ends = ((o - 1 + p) // s for o, p, s in zip(self.out, self.padding, self.stride, strict=True))
        return Geometry(
            self.size,
            kernel,
            (1,) * len(kernel),
            tuple(d * (k - 1) - f for d, k, f in zip(self.dilation, kernel, first, strict=True)),
            self.dilation,
            tuple(end - f + 1 for end, f in zip(ends, first, strict=True)),
        )

    def params(self, names: str, axes: Iterable[int]) -> dict[str, int]:
        """The kernels' parameters of these names: i (size), o (out), k, s, p, d."""
        values = {"i": self.size, "o": self.out, "k": self.kernel}
        values |= {"s": self.stride, "p": self.padding, "d": self.dilation}
        return {f"{n}{k}": values[n][k] for n in names for k in axes}


@dataclass(frozen=True, slots=True)
class Convolution:
    x: Tensor  # (batch, channels, …)
    weight: Tensor  # (out channels, channels / groups, …), transposed (channels, out channels / groups, …)
    bias: Tensor | None
    y: Tensor
    geometry: Geometry
    transposed: bool
    groups: int
    clamp: tuple[float, float] | None

    @property
    def per_group(self) -> int:
        """Output channels of a group."""
        return self.y.shape[1] // self.groups

    @property
    def depth(self) -> int:
        """Input channels of a group."""
        return self.x.shape[1] // self.groups

    @property
    def positions(self) -> int:
        return math.prod(self.geometry.out)

    @property
    def reads(self) -> list[Tensor]:
        return [self.x, self.weight, self.bias] if self.bias else [self.x, self.weight]

    @property
    def flops(self) -> int:
        taps = math.prod(self.geometry.kernel)
        return 2 * taps * (self.x.numel * self.per_group if self.transposed else self.y.numel * self.depth)

    @property
    def bounds(self) -> dict[str, float]:
        return dict(zip(("low", "high"), self.clamp, strict=True)) if self.clamp else {}

    def storages(self, target: Target, *, quads: bool = False) -> kernels.Storages:
        stored = self.y.dtype if quads else store_type(self.y.dtype, target)
        return kernels.Storages(
            self.x.dtype, self.weight.dtype, self.bias.dtype if self.bias else None, stored, self.clamp is not None
        )

    def product(self, k: int) -> Product:
        """The weights times a matrix [k, positions] per group and image."""
        matrices = self.x.shape[0] * self.groups
        m, n = self.per_group, self.positions
        return Product(
            self.weight,
            self.x,
            False,
            matrices,
            m,
            n,
            k,
            self.y,
            (m * n, n, 1),
            bias=self.bias,
            bias_strides=(m, 1, 0),
            clamp=self.clamp,
            sets=self.groups,
        )


def _launch(c: Convolution, kernel: KernelSpec, count: int, params: dict[str, int]) -> Dispatch:
    """One invocation for each of `count` pieces of the output."""
    shared = {"count": count, "sets": c.groups, "per_group": c.per_group, "depth": c.depth}
    groups = -(-count // kernel.kernel.workgroup)
    return Dispatch(kernel, c.reads, [c.y], groups, {**shared, **params, **c.bounds}, flops=c.flops)


def _transposed(c: Convolution, target: Target) -> Steps:
    g = c.geometry
    blocks = -(-c.per_group // 4)
    count = c.x.shape[0] * c.groups * blocks * c.positions
    kernel = kernels.transposed(c.storages(target), len(g.axes), target)
    sizes = {"positions": c.positions, "blocks": blocks, "plane": math.prod(g.size), "taps": math.prod(g.kernel)}
    yield _launch(c, kernel, count, sizes | g.params("ikspdo", g.axes))


def _phases(c: Convolution, target: Target) -> Steps:
    """An ordinary convolution to `stride` times as many channels along each axis, and its phases side by side."""
    g, inner = c.geometry, c.geometry.phases()
    count = math.prod(g.stride)
    weight = yield Scratch((c.groups * count * c.per_group, c.depth, *inner.kernel), c.weight.dtype)
    kernel = kernels.phases(c.weight.dtype, len(g.axes), target)
    params = {"depth": c.depth, "per_group": c.per_group, **g.params("sk", g.axes)}
    params |= {f"t{k}": inner.kernel[k] for k in g.axes}
    yield _quads(kernel, [c.weight], weight, params)
    if count == 1:
        ordinary = replace(c, weight=weight, geometry=inner, transposed=False)
        yield from choose(ordinary, target).steps(ordinary, target)
        return
    sums = yield Scratch((c.x.shape[0], c.y.shape[1] * count, *inner.out), DType.F32)
    ordinary = Convolution(c.x, weight, None, sums, inner, False, c.groups, None)
    yield from choose(ordinary, target).steps(ordinary, target)
    storages = replace(c.storages(target, quads=True), x=DType.F32)
    kernel = kernels.interleave(storages, len(g.axes), target)
    params = {"channels": c.y.shape[1], "per_group": c.per_group, **g.params("osp", g.axes)}
    params |= {f"q{k}": inner.out[k] for k in g.axes}
    params |= {f"first{k}": g.padding[k] // g.stride[k] for k in g.axes}
    yield _quads(kernel, [sums, c.bias] if c.bias else [sums], c.y, {**params, **c.bounds})


def _has_phases(c: Convolution, target: Target) -> bool:
    """Whether outputs a stride apart take the same taps, enough of them, and scratch for all phases can be bound."""
    g = c.geometry
    apart = all(1 in (s, d) for s, d in zip(g.stride, g.dilation, strict=True))
    nbytes = 4 * c.x.shape[0] * c.y.shape[1] * math.prod((*g.stride, *g.phases().out))
    return c.transposed and apart and c.depth * c.per_group > FEW and nbytes <= target.max_binding_bytes


def _quads(kernel: KernelSpec, read: list[Tensor], write: Tensor, params: Mapping[str, int | float]) -> Dispatch:
    """One invocation for every four elements of the output."""
    groups = -(-write.numel // (4 * kernel.kernel.workgroup))
    return Dispatch(kernel, read, [write], groups, {"n": write.numel, **params})


def _whole(c: Convolution, target: Target) -> Steps:
    """The window is the whole image, so that each image is a row of a matrix."""
    m, n, k = c.x.shape[0], c.y.shape[1], c.weight.numel // c.weight.shape[0]
    strides = (m * n, n, 1)
    yield from multiply(
        Product(c.x, c.weight, True, 1, m, n, k, c.y, strides, bias=c.bias, bias_strides=(0, 0, 1), clamp=c.clamp),
        target,
    )


def _is_whole(c: Convolution, target: Target) -> bool:
    g = c.geometry
    return c.groups == 1 and g.kernel == g.size and c.positions == 1 and not any(g.padding)


def _pointwise(c: Convolution, target: Target) -> Steps:
    yield from multiply(c.product(c.depth), target)


def _is_pointwise(c: Convolution, target: Target) -> bool:
    g = c.geometry
    return max(g.kernel) == max(g.stride) == 1 and g.out == g.size and not any(g.padding)


def _direct(c: Convolution, target: Target) -> Steps:
    g = c.geometry
    *outer, last = g.axes
    y_quads = g.out[last] % 4 == 0
    line = kernels.Line(g.kernel[last], g.stride[last], g.dilation[last], g.padding[last])
    storages = c.storages(target, quads=y_quads)
    kernel = kernels.direct(storages, line, len(g.axes), g.size[last] % 4 == 0, y_quads, target)
    blocks = -(-g.out[last] // 4)
    count = c.y.numel // g.out[last] * blocks
    sizes = {"blocks": blocks, "channels": c.y.shape[1], f"i{last}": g.size[last], f"o{last}": g.out[last]}
    yield _launch(c, kernel, count, sizes | g.params("ikspdo", outer))


def _is_narrow(c: Convolution, target: Target) -> bool:
    return c.groups > 1 and c.per_group < NARROW and c.geometry.kernel[-1] <= LONGEST_LINE


def _windows(c: Convolution, target: Target) -> Steps:
    """Through the matrix of windows, which is never stored."""
    g = c.geometry
    places = {"plane": math.prod(g.size), **g.params("ispdo", g.axes)}
    product = c.product(c.depth * math.prod(g.kernel))
    yield from multiply(replace(product, gather=kernels.window(g.kernel), places=places), target)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    steps: Callable[[Convolution, Target], Steps]
    when: Callable[[Convolution, Target], bool] = lambda c, target: True


VARIANTS = (  # the first that fits is taken; the last one always does
    Variant("transposed, by phases", _phases, _has_phases),
    Variant("transposed", _transposed, lambda c, _: c.transposed),
    Variant("whole image", _whole, _is_whole),
    Variant("pointwise", _pointwise, _is_pointwise),
    Variant("direct", _direct, _is_narrow),
    Variant("windows", _windows),
)


def choose(c: Convolution, target: Target) -> Variant:
    return next(v for v in VARIANTS if v.when(c, target))


def per_axis(name: str, values: list[int], rank: int, least: int) -> Shape:
    """One number for each axis; a single one counts for all."""
    found = tuple(values) * rank if len(values) == 1 else tuple(values)
    if len(found) != rank or min(found) < least:
        raise ShapeError(f"{name} {values} does not fit {rank} dimensions")
    return found


def geometry_of(
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
) -> Geometry:
    rank = weight.rank - 2
    steps = per_axis("stride", stride, rank, 1)
    pads = per_axis("padding", padding, rank, 0)
    spread = per_axis("dilation", dilation, rank, 1)
    more = per_axis("output_padding", output_padding, rank, 0)
    size, kernel = x.shape[2:], weight.shape[2:]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, spread, strict=True)]
    if transposed:
        out = tuple((n - 1) * s - 2 * p + r + o for n, s, p, r, o in zip(size, steps, pads, reach, more, strict=True))
    else:
        out = tuple((n + 2 * p - r) // s + 1 for n, s, p, r in zip(size, steps, pads, reach, strict=True))
    if min(*size, *kernel, *out) < 1:
        raise ShapeError(f"a kernel of {list(kernel)} does not fit an input of {list(size)} with padding {list(pads)}")
    return Geometry(size, kernel, steps, pads, spread, out)


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    clamp: tuple[float, float] | None,
    target: Target,
) -> Steps:
    if not 3 <= weight.rank <= 5 or x.rank != weight.rank:
        raise ShapeError(f"a weight of {list(weight.shape)} cannot be applied to {list(x.shape)}")
    first, second = weight.shape[:2]
    given, made = (first, second * groups) if transposed else (second * groups, first)
    if groups < 1 or not given or not made or x.shape[1] != given or first % groups:
        text = f"a weight of {list(weight.shape)} in {groups} groups cannot be applied to {list(x.shape)}"
        raise ShapeError(f"{text}, transposed" if transposed else text)
    if bias is not None and bias.shape != (made,):
        raise ShapeError(f"a bias of {list(bias.shape)} does not fit {made} output channels")
    geometry = geometry_of(x, weight, stride, padding, dilation, transposed, output_padding)
    out = yield Out((x.shape[0], made, *geometry.out), x.dtype)
    if out.numel:
        c = Convolution(x, weight, bias, out, geometry, transposed, groups, clamp)
        yield from choose(c, target).steps(c, target)


@op("aten.convolution.default", dtypes=FLOATS)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *,
    target: Target,
) -> Steps:
    """x (batch, channels, …) by weight (out channels, channels / groups, …).

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, None, target)


@op("et_vk.conv_with_clamp.default", dtypes=FLOATS)
def conv_with_clamp(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_min: float | None = None,
    output_max: float | None = None,
    *,
    target: Target,
) -> Steps:
    """A convolution whose result is kept within bounds; relu has no upper one.

    Unlike PyTorch, which returns a tensor without channels, it refuses an input or a weight without channels: no known
    exporter writes one.
    """
    low = -math.inf if output_min is None else output_min
    high = math.inf if output_max is None else output_max
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    yield from _convolve(x, weight, bias, *geometry, (low, high), target)
