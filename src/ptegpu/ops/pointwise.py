"""From tensors to a dispatch of the elementwise generator: broadcasting, collapsing, and views by strides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..dtypes import DType
from ..graph.graph import Shape, Sym, Tensor
from ..kernels.elementwise import NAMES, elementwise
from ..kernels.wgsl import COMPUTE
from ..plan.target import Target
from .registry import Dispatch


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor read through strides (in elements, over the output's shape) from an offset.

    With `sym`, the offset grows by `sym * factor`, read on the GPU.
    """

    tensor: Tensor
    strides: tuple[int, ...]
    offset: int = 0
    sym: Sym | None = None
    factor: int = 0


def contiguous(shape: Shape) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def broadcast_strides(shape: Shape, to: Shape) -> tuple[int, ...]:
    """Strides that read a contiguous tensor of `shape` as if it had the shape `to`."""
    own = contiguous(shape)
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(shape, own, strict=True))


def collapse(shape: Shape, strides: Sequence[tuple[int, ...]]) -> tuple[Shape, list[tuple[int, ...]]]:
    """Drop dimensions of one and merge neighbours that every operand walks as one."""
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
    operands: Sequence[Tensor | Strided],
    out: Tensor,
    target: Target,
    *,
    shape: Shape | None = None,
    scalars: Mapping[str, tuple[str, int | float]] | None = None,
    compute: DType | None = None,
) -> Dispatch:
    """A dispatch that computes `body` for every element of `out`.

    Tensors broadcast to the output; `shape` is another factorisation of the output's elements for the strides of
    `Strided` operands (a repeat walks twice as many dimensions). `compute` is the dtype the operands are converted to.
    """
    shape = out.shape if shape is None else shape
    views = [t if isinstance(t, Strided) else Strided(t, broadcast_strides(t.shape, shape)) for t in operands]
    n = math.prod(shape)
    sizes, strides = collapse(shape, [v.strides for v in views])
    modes = [_mode(v, s, n) for v, s in zip(views, strides, strict=True)]
    rank = len(sizes) if any(m in ("strided", "symbolic") for m in modes) else 0
    params: dict[str, int | float | Sym] = {"n": n}
    params |= {f"d{k}": sizes[k] for k in range(rank)}
    for letter, v, s, mode in zip(NAMES, views, strides, modes, strict=False):
        if mode in ("strided", "symbolic"):
            params[f"{letter}_offset"] = v.offset
            params |= {f"{letter}_s{k}": s[k] for k in range(rank)}
        if mode == "symbolic":
            params |= {f"{letter}_sym": v.sym or 0, f"{letter}_factor": v.factor}
    scalars = scalars or {}
    params |= {k: value for k, (_, value) in scalars.items()}
    kernel = elementwise(
        name,
        body,
        tuple((v.tensor.dtype, mode) for v, mode in zip(views, modes, strict=True)),
        out.dtype,
        rank,
        tuple((k, t) for k, (t, _) in scalars.items()),
        COMPUTE[compute] if compute else None,
        target,
    )
    groups = -(-n // (4 * kernel.kernel.workgroup))
    return Dispatch(kernel, [v.tensor for v in views], [out], groups, params)


def _mode(view: Strided, strides: tuple[int, ...], n: int) -> str:
    if view.sym is not None:
        return "symbolic"
    if view.offset:
        return "strided"
    if not any(strides):
        return "one"
    return "quad" if strides == (1,) and view.tensor.numel == n else "strided"


def cast(x: Tensor, out: Tensor, target: Target) -> Dispatch:
    """Copy with conversion, as PyTorch casts: floats truncate towards zero, anything nonzero is true."""
    source, to = COMPUTE[x.dtype], COMPUTE[out.dtype]
    if source == to:
        body = "a"
    elif to == "bool":
        body = f"a != {source}(0)"
    else:
        body = f"{to}(a)"
    return pointwise("copy" if x.dtype is out.dtype else "cast", body, [Strided(x, contiguous(out.shape))], out, target)
