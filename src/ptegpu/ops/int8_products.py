"""Products of int8 rows with packed weights, whose integer sums are exact.

Few rows are computed by lanes along K, more rows by tiles, and depthwise convolutions element by element.
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
from ..kernels.linear_q8 import Int8Form
from ..kernels.packing import WHOLE
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from ..sizes import ceil
from .packed_gemv import fitted, kernel_rows
from .registry import Dispatch, Scratch, Step, Steps

if TYPE_CHECKING:
    from .product import Product

MAX_ROWS = 4
GEMV = Gemv(rows=4, lanes=32, slots=4)


def _dtype(parameter: Tensor | float) -> DType | None:
    """Return the dtype of a parameter that each row has its own of; None if one number is for all rows."""
    return parameter.dtype if isinstance(parameter, Tensor) else None


def quantised(p: Product, target: Target) -> Generator[Step, Any, Product]:
    """Quantise the rows of p and pack them into words in the order of its weight; return the product of those rows."""
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
    return ceil(p.k, 4) if p.window else p.a.shape[-1] // 4


def _form(p: Product, target: Target) -> Int8Form:
    """Return the form of the kernel, which stores four columns at a time, or four rows of a column for windows."""
    assert p.packed and p.int8
    quads = p.m % 4 == 0 if p.window else p.y_strides[1] % 4 == 0 and p.y_offset % 4 == 0
    gather = None
    if w := p.window:  # a transposed convolution has its scales along the channels of one group
        gather = q8ta_conv.window(w.transposed, p.depth % 4 == 0, w.transposed and p.matrix_count != 1)
    return Int8Form(
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
        gather,
    )


def _numbers(p: Product) -> dict[str, int | float]:
    """Return the quantisation parameters that all rows share."""
    assert p.int8
    x = p.int8
    numbers = {"x_scale": x.scale, "x_zero": x.zero}
    if not p.y.dtype.is_float:
        numbers |= {"y_inverse": 1.0 / x.out_scale, "y_zero": float(x.out_zero)}
    return {name: number for name, number in numbers.items() if not isinstance(number, Tensor)}


def _dispatch(p: Product, kernel: KernelSpec, groups: int, *, sums: bool, **extra: int) -> Dispatch:
    assert p.packed and p.int8
    optional = (p.int8.sums if sums else None, p.bias, p.int8.scale, p.int8.zero)
    reads = [p.a, *p.matrix, *(t for t in optional if isinstance(t, Tensor))]
    params: dict[str, int | float] = {"m": p.m, "n": p.n, "x_words": _words(p), **p.scaling, **_numbers(p)}
    params["first"] = params.pop("scale_first")
    params |= {"scale_groups": ceil(p.k, p.packed.group), "y_row": p.y_strides[1], "y_first": p.y_offset}
    if p.window:
        params |= {"sets": p.matrix_count or 1, "depth": p.depth, **p.window.params("iokspd")}
    return Dispatch(kernel, reads, [p.y], groups, {**params, **extra}, flops=p.flops, label=p.label)


def gemv(p: Product, target: Target) -> Steps:
    form = _form(p, target)

    def blocks(words: int) -> int:
        return ceil(p.k, words * form.elements)

    gemv = fitted(GEMV, blocks, p.b.shape[1], target)
    while p.a.shape[-1] % (gemv.words * form.elements):  # the words of x are loaded together as well
        gemv = replace(gemv, words=gemv.words // 2)
    kernel = kernels.gemv(form, gemv, kernel_rows(p.m), target)
    groups = ceil(p.n, gemv.rows * gemv.slots)
    yield _dispatch(p, kernel, groups, sums=form.bits == 8, row_blocks=blocks(gemv.words))


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
