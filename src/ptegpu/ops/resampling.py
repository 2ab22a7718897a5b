"""Upsampling, padding with pixels of the image, grid sampling, and a detector's grid of anchor points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import resampling as kernels
from ..plan.target import Target
from .pointwise import by_quad, pointwise
from .registry import Dispatch, Out, Steps, define, op

INTERPOLATIONS: tuple[kernels.Interpolation, ...] = ("bilinear", "nearest", "bicubic")
PADDINGS: tuple[kernels.Padding, ...] = ("zeros", "border", "reflection")


class MappedAxis(NamedTuple):
    """One axis of an output, and how its coordinates map to the input."""

    kind: kernels.Axis
    size: int  # of the input
    to: int  # of the output
    params: dict[str, float] = {}  # noqa: RUF012 (never written)


def _map(x: Tensor, axes: Sequence[MappedAxis], out: Tensor, target: Target) -> Dispatch:
    """Return a dispatch that maps the last axes, and leaves those before them as they are."""
    lead = math.prod(x.shape[: x.rank - len(axes)])
    all_axes = [MappedAxis("plain", lead, lead), *axes]
    kernel = kernels.mapped(x.dtype, tuple(a.kind for a in all_axes), target)
    params: dict[str, int | float] = {"n": out.numel}
    for k, a in enumerate(all_axes):
        params |= {f"d{k}": a.to, f"size{k}": a.size, **{f"{n}{k}": v for n, v in a.params.items()}}
    return by_quad(kernel, [x], out, params)


def _image(x: Tensor) -> tuple[int, int]:
    """Return the height and width of a batch of images."""
    if x.rank != 4 or not all(x.shape[2:]):
        raise ShapeError(f"images have the shape (batch, channels, height, width), not {list(x.shape)}")
    return x.shape[2], x.shape[3]


def _output_size(x: Tensor, output_size: Sequence[int] | None, factors: Sequence[float | None] | None) -> list[int]:
    size = _image(x)
    if output_size:
        to = list(output_size)
    elif factors and None not in factors:
        to = [math.floor(n * f) for n, f in zip(size, factors) if f is not None]
    else:
        raise InvalidProgram("an upsampling needs an output size or scale factors")
    if len(to) != 2 or min(to) < 1:
        raise ShapeError(f"{list(x.shape)} cannot be resampled to {to}")
    return to


def _step(size: int, to: int, factor: float | None) -> float:
    """Return the number of input pixels per output pixel."""
    if size == to:
        return 1.0
    return 1.0 / factor if factor is not None and factor > 0 else size / to


def _nearest(x: Tensor, to: Sequence[int], factors: Sequence[float | None], target: Target) -> Steps:
    size = _image(x)
    out = yield Out((*x.shape[:2], *to), x.dtype)
    steps = [0.5 if m == 2 * n else _step(n, m, f) for n, m, f in zip(size, to, factors, strict=True)]
    axes = [MappedAxis("nearest", n, m, {"scale": s}) for n, m, s in zip(size, to, steps, strict=True)]
    yield _map(x, axes, out, target)


@op("aten.upsample_nearest2d.vec", wide=True)
def upsample_nearest2d_vec(
    x: Tensor, output_size: list[int] | None, scale_factors: list[float] | None, *, target: Target
) -> Steps:
    factors = (None, None) if output_size else scale_factors or ()
    yield from _nearest(x, _output_size(x, output_size, scale_factors), factors, target)


@op("aten.upsample_nearest2d.default", wide=True)
def upsample_nearest2d(
    x: Tensor, output_size: list[int], scales_h: float | None = None, scales_w: float | None = None, *, target: Target
) -> Steps:
    yield from _nearest(x, _output_size(x, output_size, None), (scales_h, scales_w), target)


def _bilinear(
    x: Tensor, to: Sequence[int], align_corners: bool, factors: Sequence[float | None], target: Target
) -> Steps:
    size = _image(x)
    out = yield Out((*x.shape[:2], *to), x.dtype)
    if align_corners:
        down, right = ((n - 1) / (m - 1) if m > 1 else 0.0 for n, m in zip(size, to, strict=True))
    else:
        down, right = (_step(n, m, f) for n, m, f in zip(size, to, factors, strict=True))
    kernel = kernels.bilinear(x.dtype, align_corners, target)
    sizes = {"rows": to[0], "columns": to[1], "height": size[0], "width": size[1]}
    yield by_quad(kernel, [x], out, {**sizes, "down": down, "right": right})


@op("aten.upsample_bilinear2d.vec", fits="x float")
def upsample_bilinear2d_vec(
    x: Tensor, output_size: list[int] | None, align_corners: bool, scale_factors: list[float] | None, *, target: Target
) -> Steps:
    factors = (None, None) if output_size else scale_factors or ()
    yield from _bilinear(x, _output_size(x, output_size, scale_factors), align_corners, factors, target)


@op("aten.upsample_bilinear2d.default", fits="x float")
def upsample_bilinear2d(
    x: Tensor,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
    *,
    target: Target,
) -> Steps:
    yield from _bilinear(x, _output_size(x, output_size, None), align_corners, (scales_h, scales_w), target)


@op("aten.grid_sampler_2d.default", fits="x float")
def grid_sampler_2d(
    x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool, *, target: Target
) -> Steps:
    """Sample x (N, C, H, W) at grid (N, H', W', 2): (x, y), from -1 to 1 across the image."""
    height, width = _image(x)
    if grid.rank != 4 or grid.shape[0] != x.shape[0] or grid.shape[3] != 2:
        raise ShapeError(f"a grid of {list(grid.shape)} does not fit images of {list(x.shape)}")
    if interpolation_mode not in range(3) or padding_mode not in range(3):
        raise InvalidProgram(f"interpolation {interpolation_mode} is not supported with padding {padding_mode}")
    out = yield Out((*x.shape[:2], *grid.shape[1:3]), x.dtype)
    kernel = kernels.grid_sample(
        x.dtype, grid.dtype, INTERPOLATIONS[interpolation_mode], PADDINGS[padding_mode], align_corners, target
    )
    sizes = {"positions": math.prod(grid.shape[1:3]), "channels": x.shape[1], "height": height, "width": width}
    yield by_quad(kernel, [x, grid], out, sizes)


def _pads(name: str, kind: kernels.Axis, rank: int) -> None:
    """Register padding of the last `rank` dimensions with pixels of the image; a negative one crops."""

    def rule(x: Tensor, padding: list[int], *, target: Target) -> Steps:
        if x.rank not in (rank + 1, rank + 2) or len(padding) != 2 * rank or not all(x.shape[-rank:]):
            raise ShapeError(f"{padding} cannot pad the last {rank} dimensions of {list(x.shape)}")
        size = x.shape[-rank:]
        pairs = list(zip(padding[-2::-2], padding[-1::-2]))
        to: Shape = tuple(n + low + high for n, (low, high) in zip(size, pairs, strict=True))
        if kind == "reflect" and any(max(pair) >= n for n, pair in zip(size, pairs, strict=True)):
            raise ShapeError(f"{padding} reflects more than {list(x.shape)} has")
        if min(to) < 1:
            raise ShapeError(f"{padding} removes more than {list(x.shape)} has")
        out = yield Out((*x.shape[:-rank], *to), x.dtype)
        axes = [MappedAxis(kind, n, m, {"low": low}) for n, m, (low, _) in zip(size, to, pairs, strict=True)]
        yield _map(x, axes, out, target)

    define([f"aten.{name}_pad{rank}d.default"], rule, "steps", wide=True)


for _rank in (1, 2, 3):
    _pads("reflection", "reflect", _rank)
    _pads("replication", "replicate", _rank)


@op("et_vk.grid_priors.default", fits="x any[..., h, w] -> float")
def grid_priors(x: Tensor, stride: int, offset: float, *, target: Target) -> Steps:
    """Return the centres (x, y) of the cells of a feature map (…, H, W), row by row, in pixels of the image."""
    height, width = x.shape[-2:]
    out = yield Out((height * width, 2))
    body = "let cell = i / 2u; let w = u32(width); "
    body += "return (f32(select(cell / w, cell % w, (i & 1u) == 0u)) + offset) * stride;"
    scalars = {"width": width, "stride": stride, "offset": offset}
    yield pointwise("grid_priors", body, [], out, target, scalars=scalars)
