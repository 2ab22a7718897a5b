"""Products of int8 rows with packed weights: few rows by lanes along K, more by tiles; channel by channel, one by one.

The sums are integers, so they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..graph.graph import Tensor
from ..kernels import linear_q8 as kernels
from ..kernels import q8ta_conv
from ..kernels.gemm import Tile
from ..kernels.gemv import Gemv
from ..kernels.linear_q8 import Form
from ..kernels.packing import WHOLE
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from ..sizes import ceil
from .packed_gemv import fitted, kernel_rows
from .registry import Dispatch, Scratch, Step, Steps

if TYPE_CHECKING:
    from .product import Product

MAX_ROWS = 4
WAY = Gemv(rows=4, lanes=32, slots=4)


def _dtype(given: Tensor | float) -> DType | None:
    """Of one number for each row; None if all have the same."""
    return given.dtype if isinstance(given, Tensor) else None


def quantised(p: Product, target: Target) -> Generator[Step, Any, Product]:
    """Steps that pack the rows of p into words as its weight needs them, unless they are; they return what is left."""
    assert p.packed and p.int8
    x, scale, zero, bits = p.a, p.int8.scale, p.int8.zero, p.packed.bits
    if x.dtype is DType.I8 and bits == 8 and p.k % 4 == 0:
        return p
    words = ceil(p.k, 32 // bits) * (8 // bits)
    packed = yield Scratch((p.m, 4 * words), DType.I8)
    params: dict[str, int | float] = {"rows": p.m, "k": p.k, "words": words}
    reads = [x, *(t for t in (scale, zero) if isinstance(t, Tensor))]
    if x.dtype.is_float and not isinstance(scale, Tensor) and not isinstance(zero, Tensor):
        params |= {"x_inverse": 1.0 / scale, "x_zero": float(zero)}
    kernel = kernels.pack_rows(x.dtype, _dtype(scale), _dtype(zero), bits == 4, target)
    groups = ceil(p.m * words, kernel.kernel.workgroup)
    yield Dispatch(kernel, reads, [packed], groups, params, label=p.label)
    return replace(p, a=packed)


def _words(p: Product) -> int:
    """Of a row of x."""
    return ceil(p.k, 4) if p.window else p.a.shape[-1] // 4


def _form(p: Product, target: Target) -> Form:
    """Rows are stored four columns at a time, those of windows a column four rows at a time."""
    assert p.packed and p.int8
    quads = p.m % 4 == 0 if p.window else p.y_strides[1] % 4 == 0 and p.y_first % 4 == 0
    return Form(
        p.packed.bits,
        p.packing.run,
        p.b.dtype,
        p.packed.scales.dtype,
        p.bias.dtype if p.bias else None,
        p.y.dtype if quads else store_type(p.y.dtype, target),
        p.int8.relu,
        _dtype(p.int8.scale),
        _dtype(p.int8.zero),
        quads,
        p.packing.aligned,
        # A transposed convolution has its scales along the channels of one group.
        q8ta_conv.window(w.transposed, p.depth % 4 == 0, w.transposed and p.sets != 1) if (w := p.window) else None,
    )


def _numbers(p: Product) -> dict[str, int | float]:
    """The parameters of quantisation that are the same for all rows."""
    assert p.int8
    x = p.int8
    given = {"x_scale": x.scale, "x_zero": x.zero}
    if not p.y.dtype.is_float:
        given |= {"y_inverse": 1.0 / x.out_scale, "y_zero": float(x.out_zero)}
    return {name: number for name, number in given.items() if not isinstance(number, Tensor)}


def _dispatch(p: Product, kernel: KernelSpec, groups: int, *, sums: bool, **extra: int) -> Dispatch:
    assert p.packed and p.int8
    given = (p.int8.sums if sums else None, p.bias, p.int8.scale, p.int8.zero)
    reads = [p.a, *p.matrix, *(t for t in given if isinstance(t, Tensor))]
    params: dict[str, int | float] = {"m": p.m, "n": p.n, "x_words": _words(p), **p.scaling, **_numbers(p)}
    params["first"] = params.pop("scale_first")
    params |= {"scale_groups": ceil(p.k, p.packed.group), "y_row": p.y_strides[1], "y_first": p.y_first}
    if p.window:
        params |= {"sets": p.sets or 1, "depth": p.depth, **p.window.params("iokspd")}
    return Dispatch(kernel, reads, [p.y], groups, {**params, **extra}, flops=p.flops, label=p.label)


def gemv(p: Product, target: Target) -> Steps:
    form = _form(p, target)

    def blocks(words: int) -> int:
        return ceil(p.k, words * form.elements)

    how = fitted(WAY, blocks, p.b.shape[1], target)
    while p.a.shape[-1] % (how.words * form.elements):  # words of x are loaded together too
        how = replace(how, words=how.words // 2)
    kernel = kernels.gemv(form, how, kernel_rows(p.m), target)
    groups = ceil(p.n, how.rows * how.slots)
    yield _dispatch(p, kernel, groups, sums=form.bits == 8, row_blocks=blocks(how.words))


def gemm(tile: Tile) -> Callable[[Product, Target], Steps]:
    def steps(p: Product, target: Target) -> Steps:
        assert p.packed and p.int8
        rows, columns = ceil(p.m, tile.size), ceil(p.n, tile.size)
        form = _form(p, target)
        tiles = {"row_tiles": rows, "column_tiles": columns, "sums_stride": p.int8.sums.shape[-1]}
        tiles["group_words"] = _words(p) if form.run == WHOLE else p.packed.group // 4
        yield _dispatch(p, kernels.gemm(form, tile, target), p.batch * rows * columns, sums=True, **tiles)

    return steps


def depthwise(p: Product, target: Target) -> Steps:
    assert p.packed and p.int8
    bias = p.bias.dtype if p.bias else None
    kernel = q8ta_conv.depthwise(p.b.dtype, p.packed.scales.dtype, bias, p.int8.relu, target)
    assert p.window
    params = {"count": p.y.numel, "channels": p.a.shape[1], **p.window.params("iokspd"), **_numbers(p)}
    groups = ceil(p.y.numel, 4 * kernel.kernel.workgroup)
    yield Dispatch(kernel, [p.a, *p.matrix, *p.added], [p.y], groups, params, flops=p.flops, label=p.label)
