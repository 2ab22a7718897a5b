"""Operators that move elements without arithmetic: views, joins, splits, flips, padding, strided copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ExecutionError, ShapeError
from .promotion import at_least_1d, axes, axis, inferred, result_type, to
from .registry import Array, Number, Options, portable


@portable("aten.alias_copy.default", "aten.detach_copy.default", "aten.lift_fresh_copy.default")
@portable("et_copy._h2d_copy.default", "et_copy._d2h_copy.default")
def identity(x: Array) -> Array:
    return x


@portable("aten.clone.default")
def clone(x: Array, memory_format: Any = None) -> Array:
    return x


@portable("dim_order_ops._clone_dim_order.default")
def clone_order(x: Array, non_blocking: Any = False, order: Any = None) -> Array:
    return x


@portable("aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default")
def to_copy(x: Array, options: Options = None, non_blocking: Any = False, order: Any = None) -> Array:
    return x


@portable("aten.copy.default")
def copy(x: Array, source: Array, non_blocking: bool = False) -> Array:
    return np.broadcast_to(source, x.shape)


@portable("aten.view_copy.default", "aten.reshape.default")
def view_copy(x: Array, size: Sequence[int]) -> Array:
    return x.reshape(inferred(x, size))


def _expanded(x: Array, size: Sequence[int], implicit: bool = False) -> list[int]:
    added = len(size) - x.ndim
    if added < 0:
        raise ShapeError(f"a tensor of sizes {list(x.shape)} cannot expand to {list(size)}")
    return [x.shape[k - added] if s == -1 and k >= added else s for k, s in enumerate(size)]


@portable("aten.expand_copy.default", sizes=_expanded)
def expand_copy(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    return np.broadcast_to(x, _expanded(x, size))


@portable("aten.permute_copy.default")
def permute_copy(x: Array, dims: Sequence[int]) -> Array:
    return x.transpose([axis(d, x.ndim) for d in dims])


@portable("aten.transpose_copy.int")
def transpose_copy(x: Array, dim0: int, dim1: int) -> Array:
    return np.swapaxes(x, axis(dim0, x.ndim), axis(dim1, x.ndim)) if x.ndim else x


@portable("aten.t_copy.default")
def t_copy(x: Array) -> Array:
    return x.T


@portable("aten.squeeze_copy.dims", "aten.squeeze_copy.dim")
def squeeze_copy(x: Array, dim: Sequence[int]) -> Array:
    return x.squeeze(tuple(d for d in (axes(dim, x.ndim) if dim else ()) if x.shape[d] == 1))


@portable("aten.unsqueeze_copy.default")
def unsqueeze_copy(x: Array, dim: int) -> Array:
    return np.expand_dims(x, axis(dim, x.ndim + 1))


@portable("aten.select_copy.int")
def select_copy(x: Array, dim: int, index: int) -> Array:
    return x[selection(x, dim, index)]


def selection(x: Array, dim: int, index: int) -> tuple[slice | int, ...]:
    """Return the subscript of one position along a dimension."""
    along = axis(dim, x.ndim)
    if x.ndim == 0 or not -x.shape[along] <= index < x.shape[along]:
        raise ExecutionError(f"index {index} is out of range for dimension {dim} of sizes {list(x.shape)}")
    return (slice(None),) * along + (index,)


@portable("aten.slice_copy.Tensor")
def slice_copy(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[stretch(x, dim, start, end, step)]


def stretch(x: Array, dim: int, start: int | None, end: int | None, step: int = 1) -> tuple[slice, ...]:
    """Return the subscript of a slice along a dimension; bounds are clamped to its size."""
    if step < 1:
        raise ExecutionError(f"a slice needs a positive step, not {step}")
    return (slice(None),) * axis(dim, x.ndim) + (slice(start, end, step),)


@portable("aten.narrow_copy.default")
def narrow_copy(x: Array, dim: int, start: int, length: int) -> Array:
    along = axis(dim, x.ndim)
    first = start + x.shape[along] if start < 0 else start
    if not 0 <= first <= first + length <= x.shape[along]:
        raise ExecutionError(f"{length} elements from {start} exceed dimension {dim} of sizes {list(x.shape)}")
    return x[stretch(x, along, first, first + length)]


@portable("aten.split_copy.Tensor")
def split_copy(x: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    along = axis(dim, x.ndim)
    starts = range(0, max(x.shape[along], 1), size) if size else [0]
    return tuple(x[stretch(x, along, s, s + size)] for s in starts)


@portable("aten.split_with_sizes_copy.default")
def split_with_sizes_copy(x: Array, sizes: Sequence[int], dim: int = 0) -> tuple[Array, ...]:
    along = axis(dim, x.ndim)
    ends = np.cumsum(sizes)
    if sum(sizes) != x.shape[along]:
        raise ShapeError(f"sizes {list(sizes)} do not add up to dimension {dim} of {list(x.shape)}")
    return tuple(x[stretch(x, along, e - n, e)] for n, e in zip(sizes, ends.tolist()))


@portable("aten.unbind_copy.int")
def unbind_copy(x: Array, dim: int = 0) -> tuple[Array, ...]:
    return tuple(np.moveaxis(x, axis(dim, x.ndim), 0))


@portable("aten.cat.default")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = result_type(*tensors)
    parts = [to(t, dtype) for t in tensors if t.shape != (0,)] or [to(tensors[0], dtype)]  # [0] joins anything
    return np.concatenate(parts, axis(dim, parts[0].ndim))


@portable("aten.stack.default")
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = result_type(*tensors)
    return np.stack([to(t, dtype) for t in tensors], axis(dim, tensors[0].ndim + 1))


@portable("aten.slice_scatter.default")
def slice_scatter(
    x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    result = x.copy()
    result[stretch(x, dim, start, end, step)] = source
    return result


@portable("aten.select_scatter.default")
def select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    result = x.copy()
    result[selection(x, dim, index)] = source
    return result


@portable("aten.flip.default")
def flip(x: Array, dims: Sequence[int]) -> Array:
    return np.flip(x, axes(dims, x.ndim)) if dims else x


@portable("aten.roll.default")
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    if not dims:
        return np.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return np.roll(x, tuple(shifts), tuple(dims)) if x.ndim else x


def _repeated(x: Array, repeats: Sequence[int]) -> list[int]:
    if len(repeats) < x.ndim:
        raise ShapeError(f"{len(repeats)} repeats for a tensor of sizes {list(x.shape)}")
    return [r * n for r, n in zip(repeats, [1] * (len(repeats) - x.ndim) + list(x.shape))]


@portable("aten.repeat.default", sizes=_repeated)
def repeat(x: Array, repeats: Sequence[int]) -> Array:
    result_sizes = _repeated(x, repeats)
    sizes = [1] * (len(repeats) - x.ndim) + list(x.shape)
    pairs = [n for pair in zip(repeats, sizes) for n in pair]  # np.tile crashes if the sizes overflow
    spread = np.broadcast_to(x.reshape([1 if k % 2 == 0 else n for k, n in enumerate(pairs)]), pairs)
    return spread.reshape(result_sizes)


@portable("aten.tril.default")
def tril(x: Array, diagonal: int = 0) -> Array:
    return np.tril(x, diagonal)


@portable("aten.triu.default")
def triu(x: Array, diagonal: int = 0) -> Array:
    return np.triu(x, diagonal)


@portable("aten.diagonal_copy.default")
def diagonal_copy(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return np.diagonal(x, offset, axis(dim1, x.ndim), axis(dim2, x.ndim))


@portable("aten.as_strided_copy.default", sizes=lambda x, size, *_: size)
def as_strided_copy(x: Array, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Array:
    """Return a strided copy; strides count elements of a contiguous `x`."""
    where = np.full(tuple(size), offset or 0, np.intp)
    for k, (n, s) in enumerate(zip(size, stride)):
        where += (np.arange(n) * s).reshape([-1] + [1] * (len(size) - k - 1))
    if where.size and not 0 <= where.min() <= where.max() < x.size:
        raise ExecutionError(f"strides {list(stride)} reach outside a tensor of {x.size} elements")
    return x.reshape(-1)[where]


def _unfolded(x: Array, dim: int, size: int, step: int) -> list[int]:
    along = axis(dim, x.ndim)
    if x.ndim == 0:
        return [min(size, 1)]
    return [(n - size) // step + 1 if k == along else n for k, n in enumerate(x.shape)] + [size]


@portable("aten.unfold_copy.default", sizes=_unfolded)
def unfold_copy(x: Array, dim: int, size: int, step: int) -> Array:
    along = axis(dim, x.ndim)
    if x.ndim == 0:
        return at_least_1d(x)[:size]
    if size > x.shape[along]:
        raise ExecutionError(f"windows of {size} exceed dimension {dim} of sizes {list(x.shape)}")
    return np.lib.stride_tricks.sliding_window_view(x, size, along)[stretch(x, along, None, None, step)]


@portable("aten.pixel_shuffle.default")
def pixel_shuffle(x: Array, factor: int) -> Array:
    *batch, c, h, w = x.shape
    r, n = factor, len(x.shape) - 3
    blocks = x.reshape(*batch, c // (r * r), r, r, h, w)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)  # (…, C, H, r, W, r)
    return blocks.transpose(order).reshape(*batch, c // (r * r), h * r, w * r)


@portable("aten.pixel_unshuffle.default")
def pixel_unshuffle(x: Array, factor: int) -> Array:
    *batch, c, h, w = x.shape
    r, n = factor, len(x.shape) - 3
    blocks = x.reshape(*batch, c, h // r, r, w // r, r)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)  # (…, C, r, r, H, W)
    return blocks.transpose(order).reshape(*batch, c * r * r, h // r, w // r)


def pad_widths(x: Array, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Return (before, after) for every dimension; `pad` lists them from the last dimension on."""
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]


def _padded(x: Array, pad: Sequence[int], *_: Any) -> list[int]:
    return [n + a + b for n, (a, b) in zip(x.shape, pad_widths(x, pad))]


@portable("aten.constant_pad_nd.default", sizes=_padded)
def constant_pad_nd(x: Array, pad: Sequence[int], value: Number = 0) -> Array:
    widths = pad_widths(x, pad)
    cropped = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths))]
    return np.pad(cropped, [(max(a, 0), max(b, 0)) for a, b in widths], constant_values=to(value, x.dtype).item())


@portable(*(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)), sizes=_padded)
def replication_pad(x: Array, padding: Sequence[int]) -> Array:
    for along, (a, b) in enumerate(pad_widths(x, padding)):
        n = x.shape[along]
        x = x.take(np.clip(np.arange(-a, n + b), 0, n - 1), along)
    return x


@portable(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)), sizes=_padded)
def reflection_pad(x: Array, padding: Sequence[int]) -> Array:
    for along, (a, b) in enumerate(pad_widths(x, padding)):
        n = x.shape[along]
        if max(a, b) >= n and max(a, b) > 0:
            raise ShapeError(f"padding {max(a, b)} must be less than size {n} of dimension {along}")
        x = x.take(n - 1 - np.abs(n - 1 - np.abs(np.arange(-a, n + b))), along)
    return x


@portable("aten.view_as_real_copy.default", sizes=lambda x: [*x.shape, 2])
def view_as_real_copy(x: Array) -> Array:
    return np.stack([x.real, x.imag], -1)
