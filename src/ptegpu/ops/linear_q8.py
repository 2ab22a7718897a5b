"""Linear layers on int8 activations: with weights of 4 bits and parameters per row, or of 8 bits and given ones.

x becomes words of four int8 first (`packed_rows`), unless it already is; then a few rows go through `GEMVS`, more
through tiles. The sums are integers, so they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import FLOATS, DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Tensor
from ..kernels.linear_q4 import WHOLE, Gemv
from ..kernels.linear_q8 import Form, gemm, gemv, pack_rows
from ..kernels.matmul import MEDIUM, SMALL
from ..kernels.wgsl import KernelSpec, store_type
from ..plan.target import Target
from . import linear_q4
from .linear_q4 import Weight
from .pointwise import Source, Strided, broadcast_strides, cast, pointwise
from .registry import Dispatch, Out, Scratch, Step, Steps, op

MAX_GEMV_ROWS = 4
WAY = Gemv(rows=4, lanes=32, slots=4)
ACTIVATIONS = ("none", "relu")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of int8 with their parameters: one of each per row, or two numbers for all."""

    words: Tensor  # int8 (M, at least K), rows whole words
    scale: Tensor | float
    zero: Tensor | int
    k: int

    @property
    def count(self) -> int:
        return math.prod(self.words.shape[:-1])


@dataclass(frozen=True, slots=True)
class Output:
    """How results become int8; float ones leave it as it is."""

    scale: float = 1.0
    zero: int = 0
    relu: bool = False


FLOAT = Output()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _dtype(given: Tensor | float) -> DType | None:
    return given.dtype if isinstance(given, Tensor) else None


def packed_rows(
    x: Tensor, scale: Tensor | float, zero: Tensor | int, bits: int, target: Target
) -> Generator[Step, Any, Tensor]:
    """Steps that pack x into words as weights of that many bits need them; they return the words."""
    k = x.shape[-1]
    if x.dtype is DType.I8 and bits == 8 and k % 4 == 0:
        return x
    m = math.prod(x.shape[:-1])
    words = _ceil(k, 32 // bits) * (8 // bits)
    packed = yield Scratch((m, 4 * words), DType.I8)
    params: dict[str, int | float] = {"rows": m, "k": k, "words": words}
    reads = [x, *(t for t in (scale, zero) if isinstance(t, Tensor))]
    if x.dtype.is_float and not isinstance(scale, Tensor) and not isinstance(zero, Tensor):
        params |= {"x_inverse": 1.0 / scale, "x_zero": float(zero)}
    kernel = pack_rows(x.dtype, _dtype(scale), _dtype(zero), bits == 4, target)
    yield Dispatch(kernel, reads, [packed], _ceil(m * words, kernel.kernel.workgroup), params)
    return packed


@dataclass(frozen=True, slots=True)
class Product:
    """Int8 rows times a packed weight."""

    x: Rows
    weight: Weight
    sums: Tensor  # of the weight's groups: int32 (groups, at least N), or (at least N)
    bias: Tensor | None
    y: Tensor
    output: Output = FLOAT

    def form(self, target: Target) -> Form:
        w, y, x = self.weight, self.y, self.x
        n = y.shape[-1]
        quads = n % 4 == 0 and self.weight.first % 4 == 0
        run = w.packing(x.k).run
        stored = y.dtype if quads else store_type(y.dtype, target)
        return Form(
            w.bits,
            run,
            w.packed.dtype,
            w.scales.dtype,
            self.bias.dtype if self.bias else None,
            stored,
            self.output.relu,
            _dtype(x.scale),
            _dtype(x.zero),
            quads,
            w.packed.shape[1] % 4 == 0,
        )

    @property
    def groups(self) -> int:
        return _ceil(self.x.k, self.weight.group)

    def dispatch(self, kernel: KernelSpec, groups: int, *, sums: bool, **extra: int | float) -> Dispatch:
        x, w, y = self.x, self.weight, self.y
        given = (self.sums if sums else None, self.bias, x.scale, x.zero)
        reads = [x.words, w.packed, w.scales, *(t for t in given if isinstance(t, Tensor))]
        n = y.shape[-1]
        params: dict[str, int | float] = {
            "m": x.count,
            "n": w.packed.shape[0],
            "x_words": x.words.shape[-1] // 4,
            "row_bytes": w.packed.shape[1],
            "group": w.group,
            "scale_stride": w.scales.shape[-1],
            "scale_groups": self.groups,
            "first": w.first,
            "y_row": n,
            "y_first": w.first,
        }
        params |= {} if isinstance(x.scale, Tensor) else {"x_scale": x.scale}
        params |= {} if isinstance(x.zero, Tensor) else {"x_zero": x.zero}
        params |= {} if y.dtype.is_float else {"y_inverse": 1.0 / self.output.scale, "y_zero": float(self.output.zero)}
        return Dispatch(kernel, reads, [y], groups, params | extra, flops=2 * x.count * w.packed.shape[0] * x.k)

    def steps(self, target: Target) -> Steps:
        m, n = self.x.count, self.weight.packed.shape[0]
        if m * n == 0:
            return
        yield self._gemv(target) if m <= MAX_GEMV_ROWS else self._gemm(target)

    def _gemv(self, target: Target) -> Dispatch:
        form = self.form(target)
        n, row_bytes = self.weight.packed.shape

        def blocks(words: int) -> int:
            return _ceil(self.x.k, words * form.elements)

        how = linear_q4.fitted(WAY, blocks, row_bytes, target)
        while self.x.words.shape[-1] % (how.words * form.elements):  # words of x are loaded together too
            how = replace(how, words=how.words // 2)
        kernel = gemv(form, how, self.x.count, target)
        groups = _ceil(n, how.rows * how.slots)
        return self.dispatch(kernel, groups, sums=form.bits == 8, row_blocks=blocks(how.words))

    def _gemm(self, target: Target) -> Dispatch:
        m, n = self.x.count, self.weight.packed.shape[0]
        tile = MEDIUM if _ceil(m, MEDIUM.size) * _ceil(n, MEDIUM.size) >= target.device_class.busy else SMALL
        rows, columns = _ceil(m, tile.size), _ceil(n, tile.size)
        form = self.form(target)
        whole = form.run == WHOLE
        extra = {"group_words": self.x.words.shape[-1] // 4 if whole else self.weight.group // 4}
        extra |= {"sums_stride": self.sums.shape[-1], "row_tiles": rows, "column_tiles": columns}
        return self.dispatch(gemm(form, tile, target), rows * columns, sums=True, **extra)


def products(product: Product, target: Target) -> Steps:
    """A weight in parts is one product per part, each for its columns of the result."""
    parts = product.weight.packed.parts
    if not parts:
        yield from product.steps(target)
        return
    # Parts share the result, so the cast that a packed dtype may need comes once, after all of them.
    out = product.y
    quads = out.shape[-1] % 4 == 0 and all(first % 4 == 0 for first, _ in parts)
    written = out.dtype if quads else store_type(out.dtype, target)
    y = out if written is out.dtype else (yield Scratch(out.shape, written))
    for first, part in parts:
        weight = replace(product.weight, packed=part, first=first)
        yield from replace(product, weight=weight, y=y).steps(target)
    if y is not out:
        yield cast(y, out, target)


def is_relu(activation: str) -> bool:
    if activation not in ACTIVATIONS:
        raise InvalidProgram(f"the activation '{activation}' is not one of {', '.join(ACTIVATIONS)}")
    return activation == "relu"


def check_sums(sums: Tensor, n: int, groups: int) -> None:
    if sums.dtype is not DType.I32 or sums.shape[-1] < n or math.prod(sums.shape[:-1]) < groups:
        raise ShapeError(f"weight sums {sums.dtype.value}{list(sums.shape)} do not fit {n} rows of {groups} groups")


@op("et_vk.linear_dq8ca_q4gsw.default", splits=("weights",), dtypes=FLOATS)
def linear_dq8ca_q4gsw(
    x: Tensor,
    input_scales: Tensor,
    input_zero_points: Tensor,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    group_size: int,
    bias: Tensor | None = None,
    *,
    target: Target,
) -> Steps:
    """x (…, K) is quantised to int8 with a scale and a zero point per row; weights as those of `linear_q4gsw`.

    Unlike ExecuTorch's reference, which does not, it quantises x, as the pattern that the operator replaces does.
    """
    weight = Weight(weights, weight_scales, 4, group_size)
    linear_q4.check(x, weight, bias)
    k, m, n = x.shape[-1], math.prod(x.shape[:-1]), weights.shape[0]
    if input_scales.numel != m or input_zero_points.numel != m:
        shapes = f"{list(input_scales.shape)} and {list(input_zero_points.shape)}"
        raise ShapeError(f"scales and zero points of shapes {shapes} do not fit {m} rows")
    check_sums(weight_sums, n, _ceil(k, group_size))
    out = yield Out((*x.shape[:-1], n))
    if not m * n:
        return
    packing = weight.packing(k)
    if k and packing.aligned and (packing.run == WHOLE or packing.run >= 8):
        words = yield from packed_rows(x, input_scales, input_zero_points, 4, target)
        rows = Rows(words, input_scales, input_zero_points, k)
        yield from products(Product(rows, weight, weight_sums, bias, out), target)
        return
    rounded = yield Scratch(x.shape, DType.F32)
    strides = broadcast_strides((*x.shape[:-1], 1), x.shape)
    sources: list[Source] = [x, Strided(input_scales, strides), Strided(input_zero_points, strides)]
    body = "(clamp(round(a * (1.0 / b)) + c, -128.0, 127.0) - c) * b"
    yield pointwise("linear_dq8ca_round", body, sources, rounded, target, compute=DType.F32)
    yield from linear_q4.products(rounded, weight, bias, out, target)


def linear_q8(
    x: Tensor,
    scale: float,
    zero: int,
    weight: Weight,
    sums: Tensor,
    bias: Tensor | None,
    target: Target,
    output: Output = FLOAT,
) -> Steps:
    """A linear layer with weights of 8 bits and the same parameters for all of x, which is quantised first if float."""
    linear_q4.check(x, weight, bias)
    check_sums(sums, weight.packed.shape[0], 1)
    out = yield Out((*x.shape[:-1], weight.packed.shape[0]))
    if not out.numel:
        return
    words = yield from packed_rows(x, scale, zero, 8, target)
    rows = Rows(words, scale, zero, x.shape[-1])
    yield from products(Product(rows, weight, sums, bias, out, output), target)


@op("et_vk.linear_q8ta_q8csw.default", splits=("weights",), dtypes=(DType.I8, *FLOATS))
def linear_q8ta_q8csw(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    bias: Tensor | None = None,
    *,
    target: Target,
) -> Steps:
    """weights (N, K), int8; scales, sums and bias (N), maybe padded. The result is float.

    Unlike ExecuTorch's reference, which does not, it quantises x, as the pattern that the operator replaces does.
    """
    weight = Weight(weights, weight_scales, 8, max(1, weights.shape[-1]))
    yield from linear_q8(x, input_scale, input_zero_point, weight, weight_sums, bias, target)


@op("et_vk.q8ta_linear.default", "et_vk.q8ta_linear_gemv.default", splits=("weights",), dtypes=(DType.I8,))
def q8ta_linear(
    x: Tensor,
    input_scale: float,
    input_zero_point: int,
    weights: Tensor,
    weight_sums: Tensor,
    weight_scales: Tensor,
    output_scale: float,
    output_zero_point: int,
    bias: Tensor | None = None,
    activation: str = "none",
    *,
    target: Target,
) -> Steps:
    """The same with a result in int8."""
    relu = is_relu(activation)
    weight = Weight(weights, weight_scales, 8, max(1, weights.shape[-1]))
    output = Output(output_scale, output_zero_point, relu)
    yield from linear_q8(x, input_scale, input_zero_point, weight, weight_sums, bias, target, output)
