"""Operators that assemble a tensor: concatenation, overlays, padding, triangles and rolling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ..errors import ShapeError
from ..graph.graph import Sym, Tensor
from ..kernels import concat as kernels
from ..plan.target import Target
from .moves import position, span
from .pointwise import by_quad, contiguous, word
from .registry import Dispatch, Number, Out, Scratch, Steps, SymInt, normalise_dim, op

READS = 7  # tensors that one dispatch can read within a browser's limits


@op("aten.cat.default", elements=("tensors",))
def cat(tensors: list[Tensor], dim: int = 0, *, target: Target) -> Steps:
    """Like PyTorch, skip empty vectors, whatever the rank of the others."""
    parts = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    first = parts[0].shape
    d = normalise_dim(dim, len(first))
    rest = [(*x.shape[:d], *x.shape[d + 1 :]) for x in parts]
    if any(r != rest[0] for r in rest) or any(x.rank != len(first) for x in parts):
        raise ShapeError(f"{', '.join(str(list(x.shape)) for x in parts)} cannot be joined along dimension {dim}")
    out = yield Out([*first[:d], sum(x.shape[d] for x in parts), *first[d + 1 :]])
    yield from joined(parts, math.prod(first[:d]), out, target)


@op("aten.stack.default", elements=("tensors",))
def stack(tensors: list[Tensor], dim: int = 0, *, target: Target) -> Steps:
    first = tensors[0].shape
    d = normalise_dim(dim, len(first) + 1)
    if any(x.shape != first for x in tensors):
        raise ShapeError(f"{', '.join(str(list(x.shape)) for x in tensors)} cannot be stacked")
    out = yield Out([*first[:d], len(tensors), *first[d:]])
    yield from joined(tensors, math.prod(first[:d]), out, target)


def joined(tensors: Sequence[Tensor], rows: int, out: Tensor, target: Target) -> Steps:
    """Join the tensors, each seen as `rows` rows, side by side; use scratch if they exceed one dispatch."""
    parts = [x for x in tensors if x.numel]
    while len(parts) > READS:
        merged = []
        for k in range(0, len(parts), READS):
            group = parts[k : k + READS]
            merged.append((yield Scratch((rows, sum(x.numel for x in group) // rows), out.dtype)))
            yield _join(group, rows, merged[-1], target)
        parts = merged
    if parts:
        yield _join(parts, rows, out, target)


def _join(parts: Sequence[Tensor], rows: int, out: Tensor, target: Target) -> Dispatch:
    widths = [x.numel // rows for x in parts]
    unit = 4 if all(w % 4 == 0 for w in widths) else 1
    params, end = {"n": out.numel, "width": sum(widths) // unit}, 0
    for name, w in zip(kernels.NAMES, widths):
        end += w // unit
        params |= {f"{name}_width": w // unit, f"{name}_end": end}
    return by_quad(kernels.join(tuple(x.dtype for x in parts), out.dtype, unit == 4, target), parts, out, params)


@op("aten.slice_scatter.default", elements=("x", "source"))
def slice_scatter(
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: SymInt | None = None,
    end: SymInt | None = None,
    step: int = 1,
    *,
    target: Target,
) -> Steps:
    """Return `x` with a slice replaced."""
    d = normalise_dim(dim, x.rank)
    first, count = span(x.shape[d], start, end, step)
    shape = (*x.shape[:d], count, *x.shape[d + 1 :])
    if source.shape != shape:
        raise ShapeError(f"a slice of {list(shape)} cannot be replaced by {list(source.shape)}")
    out = yield Out(x.shape, x.dtype)
    yield _overlay(x, source, d, start if isinstance(start, Sym) else first, count, step, out, target)


@op("aten.select_scatter.default", elements=("x", "source"))
def select_scatter(x: Tensor, source: Tensor, dim: int, index: SymInt, *, target: Target) -> Steps:
    """Return `x` with a selection replaced."""
    d = normalise_dim(dim, x.rank)
    first = position(x, d, index)
    shape = (*x.shape[:d], *x.shape[d + 1 :])
    if source.shape != shape:
        raise ShapeError(f"a selection of {list(shape)} cannot be replaced by {list(source.shape)}")
    out = yield Out(x.shape, x.dtype)
    yield _overlay(x, source, d, index if isinstance(index, Sym) else first, 1, 1, out, target)


def _overlay(
    x: Tensor, source: Tensor, dim: int, start: SymInt, count: int, step: int, out: Tensor, target: Target
) -> Dispatch:
    inner = math.prod(x.shape[dim + 1 :])
    unit = 4 if inner % 4 == 0 else 1
    kernel = kernels.overlay(x.dtype, source.dtype, isinstance(start, Sym), unit == 4, target)
    params = {"size": x.shape[dim], "inner": inner // unit, "count": count, "step": step, "start": start}
    return by_quad(kernel, [x, source], out, params)


@op("aten.constant_pad_nd.default", wide=True)
def constant_pad(x: Tensor, pad: list[int], value: Number = 0, *, target: Target) -> Steps:
    """Pad with a value: `pad` has two numbers per dimension, from the last one on; a negative one crops."""
    if len(pad) % 2 or len(pad) > 2 * x.rank:
        raise ShapeError(f"{pad} cannot pad {list(x.shape)}")
    pairs = [(0, 0)] * (x.rank - len(pad) // 2) + list(zip(pad[-2::-2], pad[-1::-2]))
    shape = [n + low + high for n, (low, high) in zip(x.shape, pairs, strict=True)]
    if min(shape, default=0) < 0:
        raise ShapeError(f"{pad} removes more than {list(x.shape)} has")
    out = yield Out(shape, x.dtype)
    axes = [RemappedAxis("pad" if any(p) else "plain", m, n, p[0]) for m, n, p in zip(shape, x.shape, pairs)]
    yield _remap(x, axes, value, out, target)


def _triangle(sign: Literal["<=", ">="], x: Tensor, diagonal: int, target: Target) -> Steps:
    if x.rank < 2:
        raise ShapeError(f"{list(x.shape)} is not a matrix")
    out = yield Out(x.shape, x.dtype)
    kernel = kernels.triangle(x.dtype, sign, target)
    height, width = x.shape[-2:]
    most = height + width  # further away, all diagonals have the same effect
    params = {"n": x.numel, "width": width, "height": height, "diagonal": max(-most, min(diagonal, most))}
    yield by_quad(kernel, [x], out, params)


@op("aten.tril.default", wide=True)
def tril(x: Tensor, diagonal: int = 0, *, target: Target) -> Steps:
    """Return matrices with zeros above a diagonal."""
    yield from _triangle("<=", x, diagonal, target)


@op("aten.triu.default", wide=True)
def triu(x: Tensor, diagonal: int = 0, *, target: Target) -> Steps:
    """Return matrices with zeros below a diagonal."""
    yield from _triangle(">=", x, diagonal, target)


@op("aten.roll.default", wide=True)
def roll(x: Tensor, shifts: list[int], dims: Sequence[int] = (), *, target: Target) -> Steps:
    """Roll along dimensions or, without any, all elements in their order in memory."""
    shape = x.shape if dims else (x.numel,)
    total = [0] * len(shape)
    for shift, dim in zip(shifts, dims or [0], strict=True):
        total[normalise_dim(dim, len(shape))] += shift
    out = yield Out(x.shape, x.dtype)
    axes = [RemappedAxis("roll" if s else "plain", n, n, -s % max(n, 1)) for n, s in zip(shape, total, strict=True)]
    yield _remap(x, axes, 0, out, target)


class RemappedAxis(NamedTuple):
    """One axis of an output, and how its coordinates are padded or rolled."""

    kind: kernels.Axis
    to: int  # the output's size
    size: int  # the input's
    low: int


def _remap(x: Tensor, axes: Sequence[RemappedAxis], fill: Number, out: Tensor, target: Target) -> Dispatch:
    merged: list[RemappedAxis] = []
    for axis in axes:
        if merged and axis.kind == "plain":  # it moves along with the axis before it
            kind, to, size, low = merged[-1]
            merged[-1] = RemappedAxis(kind, to * axis.to, size * axis.size, low * axis.size)
        else:
            merged.append(axis)
    kernel = kernels.remap(x.dtype, tuple(a.kind for a in merged), target)
    params: dict[str, int | float | Sym] = {"n": out.numel, "fill": word(fill, x.dtype)}
    for k, (a, stride) in enumerate(zip(merged, contiguous(tuple(a.size for a in merged)), strict=True)):
        params |= {f"d{k}": a.to, f"s{k}": stride}
        if a.kind != "plain":
            params[f"low{k}"] = a.low
        if a.kind == "pad":
            params[f"size{k}"] = a.size
    return by_quad(kernel, [x], out, params)
