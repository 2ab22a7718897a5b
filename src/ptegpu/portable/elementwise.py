"""Elementwise operators: unary functions, arithmetic, comparisons, logic, and selection by a condition."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..errors import ExecutionError
from .promotion import compute_type, floats, promoted, result_type, to
from .registry import Array, Number, portable

UnaryFunction = Callable[[Array], Array]
BinaryFunction = Callable[[Array, Array], Array]

_ERF_STEP = 1 / 16
_ERF_KNOTS = np.arange(0, 6 + _ERF_STEP, _ERF_STEP)  # beyond 6, erf is 1 in double precision
_ERF_VALUES = np.array([math.erf(k) for k in _ERF_KNOTS])


def erf(x: Array) -> Array:
    """Return the error function to double precision, by its Taylor series around the nearest knot."""
    size = np.minimum(np.abs(x.astype(np.float64)), 6)
    nearest = np.rint(np.nan_to_num(size) / _ERF_STEP).astype(np.intp)
    knot = _ERF_KNOTS[nearest]
    d = size - knot
    before, coefficient = np.zeros_like(knot), 2 / math.sqrt(math.pi) * np.exp(-knot * knot)
    total, d_power = _ERF_VALUES[nearest] + coefficient * d, d
    for n in range(1, 11):  # of the derivative: n c[n] = -2 (knot c[n-1] + c[n-2])
        before, coefficient = coefficient, -2 * (knot * coefficient + before) / n
        d_power = d_power * d
        total = total + coefficient * d_power / (n + 1)
    return np.copysign(total, x)


def _lgamma(x: float) -> float:
    """Return log(abs(gamma(x))): inf at the poles 0, -1, -2, … and at both infinities."""
    return math.inf if math.isinf(x) or (x <= 0 and x == math.floor(x)) else math.lgamma(x)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _unary(name: str, function: UnaryFunction, apply: Callable[[UnaryFunction, Array], Array]) -> None:
    @portable(f"aten.{name}.default")
    def kernel(x: Array) -> Array:
        return apply(function, x)


_FLOAT: dict[str, UnaryFunction] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "lgamma": np.vectorize(_lgamma, otypes=[np.float64]),
    "log2": np.log2,
    "reciprocal": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
for _name, _function in _FLOAT.items():
    _unary(_name, _function, lambda function, x: function(*floats(x)))

_ANY_DTYPE: dict[str, UnaryFunction] = {
    "_conj_physical": np.conj,
    "abs": np.abs,
    "bitwise_not": np.invert,
    "isinf": np.isinf,
    "isnan": np.isnan,
    "logical_not": np.logical_not,
    "neg": np.negative,
    "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "sign": lambda x: (x > 0).astype(np.int8) - (x < 0).astype(np.int8),  # 0 for NaN
}
for _name, _function in _ANY_DTYPE.items():
    _unary(_name, _function, lambda function, x: function(x))

for _name, _function in {"ceil": np.ceil, "floor": np.floor, "round": np.rint, "trunc": np.trunc}.items():
    _unary(_name, _function, lambda function, x: function(x) if x.dtype.kind == "f" else x)


@portable("aten.elu.default")
def elu(x: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    (x,) = floats(x)
    return np.where(x > 0, x * scale, np.expm1(x * input_scale) * (alpha * scale))


@portable("aten.gelu.default")
def gelu(x: Array, approximate: str = "none") -> Array:
    (x,) = floats(x)
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)).astype(x.dtype))


@portable("aten.hardtanh.default")
def hardtanh(x: Array, low: Number = -1, high: Number = 1) -> Array:
    return np.clip(x, to(low, x.dtype), to(high, x.dtype))


@portable("aten.leaky_relu.default")
def leaky_relu(x: Array, slope: Number = 0.01) -> Array:
    (x,) = floats(x)
    return np.where(x > 0, x, x * slope)


@portable("aten.logit.default")
def logit(x: Array, eps: float | None = None) -> Array:
    (x,) = floats(x)
    if eps is not None:
        x = np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


def _binary(
    names: tuple[str, ...], function: BinaryFunction, operands: Callable[..., tuple[Array, ...]] = promoted
) -> None:
    @portable(*(f"aten.{name}" for name in names))
    def kernel(x: Array | Number, y: Array | Number) -> Array:
        return function(*operands(x, y))


def _nonzero(divisor: Array) -> None:
    if divisor.dtype.kind != "f" and not divisor.all():
        raise ExecutionError("integer division by zero")


def floor_divide(a: Array, b: Array) -> Array:
    _nonzero(b)
    return np.floor_divide(a, b)


def truncated_divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    _nonzero(b)
    quotient = np.floor_divide(a, b)
    return quotient + ((np.remainder(a, b) != 0) & (quotient < 0))


def remainder(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of the divisor."""
    _nonzero(b)
    return np.remainder(a, b)


def fmod(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of the dividend."""
    _nonzero(b)
    return np.fmod(a, b)


def power(base: Array, exponent: Array) -> Array:
    """Return the power; a negative power of an integer is 0 unless the base is 1 or -1."""
    if base.dtype.kind not in "iu":
        return np.power(base, exponent)
    powers = np.power(base, np.maximum(exponent, 0))
    inverse = np.where(base == 1, 1, np.where(base == -1, 1 - 2 * (exponent % 2), 0))
    return np.where(exponent < 0, inverse.astype(base.dtype), powers)


_BINARY: dict[tuple[str, ...], BinaryFunction] = {
    ("maximum.default", "max.other"): np.maximum,
    ("minimum.default", "min.other"): np.minimum,
    ("floor_divide.default",): floor_divide,
    ("fmod.Scalar", "fmod.Tensor"): fmod,
    ("mul.Scalar", "mul.Tensor"): np.multiply,
    ("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor"): power,
    ("remainder.Scalar", "remainder.Tensor"): remainder,
    ("bitwise_and.Scalar", "bitwise_and.Tensor"): np.bitwise_and,
    ("bitwise_or.Scalar", "bitwise_or.Tensor"): np.bitwise_or,
    ("bitwise_xor.Scalar", "bitwise_xor.Tensor"): np.bitwise_xor,
}
for _names, _combine in _BINARY.items():
    _binary(_names, _combine)

_binary(("atan2.default",), np.arctan2, floats)
_binary(("hypot.default",), np.hypot, floats)
_binary(("div.Scalar", "div.Tensor"), np.true_divide, floats)


@portable("aten.div.Scalar_mode", "aten.div.Tensor_mode")
def divide_with_mode(x: Array, y: Array | Number, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return np.true_divide(*floats(x, y))
    return {"floor": floor_divide, "trunc": truncated_divide}[rounding_mode](*promoted(x, y))


def _scaled(name: str, function: Callable[[Array, Array, Array], Array]) -> None:
    @portable(f"aten.{name}.Scalar", f"aten.{name}.Tensor")
    def kernel(x: Array, y: Array | Number, alpha: Number = 1) -> Array:
        a, b = promoted(x, y)
        return function(a, b, to(alpha, b.dtype))


_scaled("add", lambda a, b, alpha: a + b * alpha)
_scaled("sub", lambda a, b, alpha: a - b * alpha)
_scaled("rsub", lambda a, b, alpha: b - a * alpha)


def _shift(x: Array, y: Array | Number, function: BinaryFunction, beyond: BinaryFunction) -> Array:
    """Shift; a negative count, or one of at least the width, gives `beyond`."""
    a, b = promoted(x, y)
    width = a.dtype.itemsize * 8
    legal = (b >= 0) & (b < width)
    return np.where(legal, function(a, np.where(legal, b, 0)), beyond(a, b))


@portable("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar")
@portable("aten.__lshift__.Tensor", "aten.__lshift__.Scalar")
def bitwise_left_shift(x: Array, y: Array | Number) -> Array:
    return _shift(x, y, np.left_shift, lambda a, b: np.zeros((), a.dtype))


@portable("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar")
@portable("aten.__rshift__.Tensor", "aten.__rshift__.Scalar")
def bitwise_right_shift(x: Array, y: Array | Number) -> Array:
    return _shift(x, y, np.right_shift, lambda a, b: np.where(a < 0, -1, 0).astype(a.dtype))


def _comparison(name: str, function: BinaryFunction) -> None:
    @portable(f"aten.{name}.Scalar", f"aten.{name}.Tensor")
    def kernel(x: Array, y: Array | Number) -> Array:
        dtype = result_type(x, y)
        if dtype.kind == "i" or dtype == np.uint8:
            dtype = np.dtype(np.int64)  # a scalar outside the range of a narrow type compares by value
        return function(to(x, dtype), to(y, dtype))


for _name, _combine in {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}.items():
    _comparison(_name, _combine)

for _name, _combine in {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.items():
    _binary((f"logical_{_name}.default",), _combine, lambda *operands: operands)


@portable("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x: Array, low: Array | Number | None = None, high: Array | Number | None = None) -> Array:
    dtype = result_type(x, low, high)
    x = to(x, dtype)
    if low is not None:
        x = np.maximum(x, to(low, dtype))
    return x if high is None else np.minimum(x, to(high, dtype))


@portable("aten.where.self")
def where(condition: Array, x: Array, y: Array) -> Array:
    dtype = result_type(x, y)
    return np.where(condition.astype(bool), to(x, dtype), to(y, dtype))


@portable("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(x: Array, mask: Array, value: Array | Number) -> Array:
    return np.where(mask.astype(bool), to(value, x.dtype), x)


@portable("aten.silu.default")
def silu(x: Array) -> Array:
    x = x.astype(compute_type(x.dtype), copy=False)
    return x * sigmoid(x)
