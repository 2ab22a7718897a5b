"""Dispatches of the elementwise generator, made from tensors by broadcasting, collapsing and strides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..dtypes import DType
from ..errors import InvalidProgram
from ..graph.graph import Shape, Sym, Tensor
from ..kernels.elementwise import BY_STRIDES, ElementwiseOperand, Mode, elementwise
from ..kernels.wgsl import COMPUTE, KernelSpec
from ..plan.target import Target
from ..sizes import Size, real, smallest
from .registry import Dispatch, Formula, Number

NAMES = "abcdefgh"  # of operands, in their order


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor read through strides (in elements, over the output's shape) from an offset.

    With `sym`, the kernel adds `factor` times that index into a dimension of `size` to the offset; a negative index
    counts from the end.
    """

    tensor: Tensor
    strides: tuple[int, ...]
    offset: int = 0
    sym: Sym | None = None
    factor: int = 0
    size: int = 0


Source: TypeAlias = Tensor | Strided | Number


def contiguous(shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def broadcast_strides(shape: Shape, to: Shape) -> tuple[int, ...]:
    """Return strides that read a contiguous tensor of `shape` as if it had the shape `to`."""
    own = contiguous(shape)
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(shape, own, strict=True))


def collapse(shape: Shape, strides: Sequence[tuple[int, ...]]) -> tuple[Shape, list[tuple[int, ...]]]:
    """Drop dimensions of size 1 and merge neighbours that are contiguous for every operand."""
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for k, n in enumerate(shape):
        if n == 1:
            continue
        if sizes and all(m[-1] == s[k] * n for m, s in zip(merged, strides, strict=True)):
            sizes[-1] *= n
            for m, s in zip(merged, strides, strict=True):
                m[-1] = s[k]
        else:
            sizes.append(n)
            for m, s in zip(merged, strides, strict=True):
                m.append(s[k])
    return tuple(sizes), [tuple(m) for m in merged]


def pointwise(
    name: str,
    body: str,
    operands: Sequence[Source],
    out: Tensor,
    target: Target,
    *,
    shape: Shape | None = None,
    scalars: Mapping[str, Number] | None = None,
    compute: DType | None = None,
    helpers: str = "",
) -> Dispatch:
    """Return a dispatch that computes `body` for every element of `out`.

    The body calls the operands `a`, `b`, `c`, …, and the scalars by their names. Tensors broadcast to the output;
    `shape` is another factorisation of the output's elements for the strides of `Strided` operands (a repeat walks
    twice as many dimensions). Operands are converted to `compute`, which is also the dtype of numbers; without it,
    numbers have the output's dtype. `helpers` are functions that the body calls.
    """
    shape = out.shape if shape is None else shape
    n = math.prod(shape)
    numbers = {**{k: x for k, x in zip(NAMES, operands) if not isinstance(x, Tensor | Strided)}, **(scalars or {})}
    flat = not any(isinstance(x, Strided) or (isinstance(x, Tensor) and x.shape != shape) for x in operands)
    views = {
        k: x if isinstance(x, Strided) else Strided(x, () if flat else broadcast_strides(x.shape, shape))
        for k, x in zip(NAMES, operands)
        if isinstance(x, Tensor | Strided)
    }
    sizes: Shape = (n,)
    collapsed: list[tuple[int, ...]] = [(1,)] * len(views)
    if not flat:
        sizes, collapsed = collapse(shape, [v.strides for v in views.values()])
    strides = dict(zip(views, collapsed, strict=True))
    modes = {k: _mode(v, strides[k], sizes) for k, v in views.items()}
    rank = len(sizes) if any(m in BY_STRIDES for m in modes.values()) else 0
    rows = rank > 0 and sizes[-1] % 4 == 0
    if rows:
        modes = {k: _row_mode(views[k], strides[k]) if m == "strided" else m for k, m in modes.items()}
        sizes = (*sizes[:-1], sizes[-1] // 4)
    params: dict[str, int | float | Sym] = {"n": n, **{f"d{k}": sizes[k] for k in range(rank)}}
    for k, v in views.items():
        if modes[k] in BY_STRIDES:
            params |= {f"{k}_offset": v.offset, **{f"{k}_s{j}": strides[k][j] for j in range(rank)}}
        if v.sym is not None:
            params |= {f"{k}_sym": v.sym, f"{k}_size": v.size, f"{k}_factor": v.factor}
    kind = compute or out.dtype
    params |= {k: word(x, kind) for k, x in numbers.items()}
    kernel = elementwise(
        name,
        body,
        (
            *(ElementwiseOperand(k, v.tensor.dtype, modes[k], v.sym is not None) for k, v in views.items()),
            *(ElementwiseOperand(k, kind, "number") for k in numbers),
        ),
        out.dtype,
        rank,
        rows,
        compute,
        target,
        helpers,
    )
    groups = -(-n // (4 * kernel.kernel.workgroup))
    plain = tuple(x for x in operands if not isinstance(x, Strided))
    simple = len(plain) == len(operands) and shape == out.shape
    formula = Formula(body, plain, scalars or {}, compute) if simple else None
    bytes_by_tensor = {v.tensor: v.tensor.nbytes if flat else _bytes_read(v, shape) for v in views.values()}
    needed = sum(bytes_by_tensor.values())
    return Dispatch(kernel, [v.tensor for v in views.values()], [out], groups, params, formula, read_bytes=needed)


def by_quad(
    kernel: KernelSpec, read: Sequence[Tensor], out: Tensor, params: Mapping[str, int | float | Sym], *others: Tensor
) -> Dispatch:
    """Return a dispatch of a kernel whose invocations write four elements each, of `out` and of `others` like it."""
    groups = -(-out.numel // (4 * kernel.kernel.workgroup))
    return Dispatch(kernel, read, [out, *others], groups, {"n": out.numel, **params})


def walk_params(sizes: Shape, strides: Mapping[str, Sequence[int]]) -> dict[str, int | float | Sym]:
    """Return the parameters of a walk over collapsed dimensions: `d0`, … and `<name>_s0`, … of each operand."""
    params: dict[str, int | float | Sym] = {f"d{k}": n for k, n in enumerate(sizes)}
    return params | {f"{name}_s{k}": s for name, walk in strides.items() for k, s in enumerate(walk)}


def _bytes_read(view: Strided, shape: Shape) -> int:
    """Return the number of bytes that a view over this shape reads of its tensor."""
    elements = math.prod(n for n, stride in zip(shape, view.strides, strict=True) if stride)
    return smallest(elements * view.tensor.dtype.size, view.tensor.nbytes)


def _mode(view: Strided, strides: tuple[int, ...], sizes: Shape) -> Mode:
    if view.sym is not None or view.offset:
        return "strided"
    if not any(strides):
        return "one"
    return "quad" if strides == contiguous(sizes) else "strided"


def _row_mode(view: Strided, strides: tuple[int, ...]) -> Mode:
    """Return the mode of a strided operand if the innermost dimension is a multiple of four."""
    if strides[-1] == 0:
        return "splat"
    aligned = all(s % 4 == 0 for s in (*strides[:-1], view.offset, view.factor))
    return "row" if strides[-1] == 1 and aligned else "strided"


def word(value: Number, dtype: DType) -> Number:
    """Return a number as a parameter of the compute type of `dtype`; raise InvalidProgram if an int does not fit."""
    match COMPUTE[dtype]:
        case "f32":
            return real(value)
        case "bool":
            return int(bool(value))
        case _ if isinstance(value, Size) and -(2**31) <= value < 2**31:
            return value
        case _ if math.isfinite(value) and -(2**31) <= int(value) < 2**31:
            return int(value)
        case _:
            raise InvalidProgram(f"the scalar {value} does not fit int32")


def cast(x: Tensor, out: Tensor, target: Target) -> Dispatch:
    """Return a copy with conversion, as PyTorch casts: floats truncate towards zero, anything nonzero is true."""
    name = "copy" if x.dtype is out.dtype else "cast"
    return pointwise(name, "a", [Strided(x, contiguous(out.shape))], out, target, compute=out.dtype)
