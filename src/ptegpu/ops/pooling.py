"""Max and mean pooling over the last one to three dimensions. Windows slide, or divide the input evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import pooling as kernels
from ..plan.target import Target
from ..sizes import real
from .conv_products import per_axis
from .pointwise import by_quad
from .reduce import reduce
from .registry import Out, Rule, Steps, define

LOWEST = {DType.I32: -(2**31), DType.I8: -128, DType.U8: 0}  # the maximum of an empty window


@dataclass(frozen=True, slots=True)
class PoolWindows:
    """Sizes along the pooled axes. Without a kernel, the windows divide the input evenly."""

    size: Shape
    out: Shape
    kernel: Shape = ()
    stride: Shape = ()
    padding: Shape = ()
    dilation: Shape = ()

    @property
    def extent(self) -> kernels.Extent:
        return "sliding" if self.kernel else "even"

    @property
    def is_global(self) -> bool:
        """Return True if there is one window, which covers the plane."""
        return math.prod(self.out) == 1 and (not self.kernel or (self.kernel == self.size and not any(self.padding)))

    def params(self, names: str) -> dict[str, int | float]:
        """Return the kernels' parameters of these names: i (size), o (out), k, s, p, d."""
        values = {"i": self.size, "o": self.out, "k": self.kernel}
        values |= {"s": self.stride, "p": self.padding, "d": self.dilation}
        return {f"{n}{k}": v for n in names for k, v in enumerate(values[n])}


def _planes(x: Tensor, rank: int) -> Shape:
    """Return the sizes of the pooled axes: the last ones, after channels and perhaps a batch."""
    if x.rank not in (rank + 1, rank + 2) or not all(x.shape[-rank:]):
        raise ShapeError(f"{list(x.shape)} cannot be pooled over {rank} dimensions")
    return x.shape[-rank:]


def sliding(
    x: Tensor,
    rank: int,
    kernel_size: list[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> PoolWindows:
    """Return the windows of a kernel. In ceil mode, the last one may extend past the padding, but starts before it."""
    size = _planes(x, rank)
    kernel = per_axis("kernel_size", kernel_size, rank, 1)
    steps = per_axis("stride", list(stride), rank, 1) if stride else kernel
    pads = per_axis("padding", list(padding) or [0], rank, 0)
    spread = per_axis("dilation", list(dilation) or [1], rank, 1)
    out = []
    for n, k, s, p, d in zip(size, kernel, steps, pads, spread, strict=True):
        reach = d * (k - 1) + 1
        if 2 * p > reach:
            raise ShapeError(f"a padding of {p} is more than half of a kernel that reaches over {reach}")
        count = (n + 2 * p - reach + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        if count < 1:
            raise ShapeError(f"a kernel of {list(kernel)} does not fit {list(x.shape)} with padding {list(pads)}")
        out.append(count)
    return PoolWindows(size, tuple(out), kernel, steps, pads, spread)


def even(x: Tensor, rank: int, output_size: list[int]) -> PoolWindows:
    """Return `output_size` windows that divide the input evenly; if necessary, neighbours overlap by one."""
    return PoolWindows(_planes(x, rank), per_axis("output_size", output_size, rank, 0))


def _pooled(x: Tensor, w: PoolWindows) -> Shape:
    return (*x.shape[: x.rank - len(w.size)], *w.out)


def _largest(x: Tensor, w: PoolWindows, indices: bool, target: Target) -> Steps:
    shape = _pooled(x, w)
    out = yield Out(shape, x.dtype)
    places = [(yield Out(shape, DType.I32))] if indices else []
    kernel = kernels.largest(x.dtype, x.dtype, indices, w.extent, len(w.size), target)
    yield by_quad(kernel, [x], out, w.params("iokspd") | {"lowest": LOWEST.get(x.dtype, -math.inf)}, *places)


def _mean(x: Tensor, w: PoolWindows, count_include_pad: bool, divisor: int | None, target: Target) -> Steps:
    if divisor == 0:
        raise ShapeError("the divisor of a mean is zero")
    out = yield Out(_pooled(x, w), x.dtype)
    if w.is_global:
        axes = range(x.rank - len(w.size), x.rank)
        yield from reduce("mean", x, axes, out, target, kind="f32", divisor=real(divisor or math.prod(w.size)))
        return
    by: kernels.Divisor = "number" if divisor else "window" if count_include_pad and w.kernel else "inside"
    kernel = kernels.mean(x.dtype, x.dtype, by, w.extent, len(w.size), target)
    yield by_quad(kernel, [x], out, w.params("ioksp") | ({"divisor": float(divisor)} if divisor else {}))


def _define(rank: int) -> None:

    def max_pool(indices: bool) -> Rule:
        """Return the rule for the largest element of each window, perhaps with its position in the plane."""

        def rule(
            x: Tensor,
            kernel_size: list[int],
            stride: Sequence[int] = (),
            padding: Sequence[int] = (0,) * rank,
            dilation: Sequence[int] = (1,) * rank,
            ceil_mode: bool = False,
            *,
            target: Target,
        ) -> Steps:
            windows = sliding(x, rank, kernel_size, stride, padding, dilation, ceil_mode)
            yield from _largest(x, windows, indices, target)

        return rule

    def avg_pool(
        x: Tensor,
        kernel_size: list[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,) * rank,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        target: Target,
    ) -> Steps:
        windows = sliding(x, rank, kernel_size, stride, padding, (1,), ceil_mode)
        yield from _mean(x, windows, count_include_pad, divisor_override, target)

    def adaptive_avg_pool(x: Tensor, output_size: list[int], *, target: Target) -> Steps:
        yield from _mean(x, even(x, rank, output_size), False, None, target)

    def adaptive_max_pool(x: Tensor, output_size: list[int], *, target: Target) -> Steps:
        yield from _largest(x, even(x, rank, output_size), True, target)

    plain = "aten.adaptive_avg_pool1d" if rank == 1 else f"aten._adaptive_avg_pool{rank}d"
    define([f"aten.max_pool{rank}d_with_indices.default"], max_pool(True), "steps", fits="x number", wide=True)
    define([f"aten.max_pool{rank}d.default"], max_pool(False), "steps", fits="x number", wide=True)
    define([f"aten.avg_pool{rank}d.default"], avg_pool, "steps", fits="x float")
    define([f"{plain}.default"], adaptive_avg_pool, "steps", fits="x float")
    define([f"aten.adaptive_max_pool{rank}d.default"], adaptive_max_pool, "steps", fits="x number", wide=True)


for _rank in (1, 2, 3):
    _define(_rank)
