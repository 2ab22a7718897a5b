"""Elementwise operators: one line each. The body is scalar WGSL over `a` (and `b`, `c`), computed in the output's type.

Halves are computed in f32 and rounded once, as PyTorch does; 8-bit ints in i32 and wrapped. `lesser` and `greater` keep
NaN, which WGSL's own `min` and `max` may drop.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram
from ..graph.graph import Tensor
from ..kernels.wgsl import COMPUTE
from ..plan.target import Target
from ..sizes import Size
from . import spans
from .pointwise import pointwise
from .prefix_stable import pointwise as along_sizes
from .registry import Number, Out, Steps, broadcast, define, op

Bodies = Mapping[str, str]  # by compute type: "f32" | "i32" | "bool"
BOUNDS: Mapping[DType, tuple[Number, Number]] = {
    DType.I32: (-(2**31), 2**31 - 1),
    DType.I8: (-128, 127),
    DType.U8: (0, 255),
    DType.BOOL: (0, 1),
}
AND = "aten.logical_and.default"
ROUND = "ptegpu.round_to_bfloat16.default"
LESSER = {"f32": "lesser(a, b)", "i32": "min(a, b)", "bool": "a && b"}
GREATER = {"f32": "greater(a, b)", "i32": "max(a, b)", "bool": "a || b"}
HYPOT = (  # squares only numbers of at most 1, so it cannot overflow
    "if (is_inf(a) || is_inf(b)) { return select(abs(b), abs(a), is_inf(a)); } "
    "let m = greater(abs(a), abs(b)); let r = lesser(abs(a), abs(b)) / m; "
    "return select(m * sqrt(1.0 + r * r), m, m == 0.0);"
)


def floats(body: str) -> Bodies:
    """Return a body for floats only; ints and bools are converted, as the declared output is a float."""
    return {"f32": body}


def numbers(body: str) -> Bodies:
    """Return one body for floats and ints."""
    return {"f32": body, "i32": body}


def body_for(name: str, bodies: Bodies, dtype: DType) -> str:
    """Return the body in the compute type of `dtype`; raise InvalidProgram if the operator has none for it."""
    try:
        return bodies[COMPUTE[dtype]]
    except KeyError:
        raise InvalidProgram(f"{name} is not defined for {dtype.value}") from None


def combine(
    name: str, bodies: Bodies, operands: Sequence[Tensor | Number], out: Tensor, target: Target, **scalars: Number
) -> Steps:
    """Yield the steps of an operator whose tensors broadcast and are computed in the output's type."""
    body = body_for(name, bodies, out.dtype)
    out = yield Out(broadcast(*(x.shape for x in operands if isinstance(x, Tensor))))
    operands = [wrapped(x, out.dtype) for x in operands]
    yield pointwise(name, body, operands, out, target, compute=out.dtype, scalars=scalars)


def wrapped(value: Any, dtype: DType) -> Any:
    """Return an operand of an 8-bit tensor, whose dtype an int scalar takes first; leave any other as it is."""
    if dtype not in (DType.I8, DType.U8) or not isinstance(value, int | Size):
        return value
    low, high = BOUNDS[dtype]
    if low <= value <= high:
        return value
    inside = (value - low) % 256 + low
    return inside if isinstance(inside, Size) else int(inside)


def elementwise(names: Sequence[str], rule: Callable[..., Steps], **traits: Any) -> None:
    """Register an operator whose tensors broadcast."""
    define(names, rule, "steps", prefix=along_sizes, **traits)


def unary(name: str, bodies: Bodies, **traits: Any) -> None:
    """Register an operator of one tensor."""

    def rule(x: Tensor, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
        yield from combine(name, bodies, [x], outs[0], target)

    elementwise([name], rule, by_row="elements", **traits)


def binary(base: str, bodies: Bodies, *, tensor: str = "Tensor", scalar: str | None = None, **traits: Any) -> None:
    """Register `base.<tensor>`, of two tensors that broadcast, and `base.<scalar>`, whose `b` is a number."""

    def rule(x: Tensor, y: Tensor | Number, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
        yield from combine(base, bodies, [x, y], outs[0], target)

    elementwise([f"{base}.{tensor}", *([f"{base}.{scalar}"] if scalar else [])], rule, **traits)


def scaled(base: str, bodies: Bodies, **traits: Any) -> None:
    """Register `add`, `sub` or `rsub`, of tensors or a tensor and a number, one of them multiplied by `alpha`."""

    def rule(x: Tensor, y: Tensor | Number, alpha: Number = 1, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
        yield from combine(base, bodies, [x, y], outs[0], target, alpha=alpha)

    elementwise([f"{base}.Tensor", f"{base}.Scalar"], rule, **traits)


def compare(base: str, body: str, **traits: Any) -> None:
    """Register `base.Tensor` and `base.Scalar`: bools from operands compared in their common type."""

    def tensors(x: Tensor, y: Tensor, *, target: Target) -> Steps:
        """Compare floats in f32.

        Unlike PyTorch, it does not round a float32 tensor without dimensions to float16 before comparing it with
        halves.
        """
        out = yield Out(broadcast(x.shape, y.shape), DType.BOOL)
        yield pointwise(base, body, [x, y], out, target, compute=common_dtype(x, y))

    def with_scalar(x: Tensor, y: Number, *, target: Target) -> Steps:
        """Convert an int scalar to the dtype of an 8-bit tensor, and any scalar to that of halves.

        Unlike PyTorch, which wraps a scalar beyond int32 and rounds int32 to compare it with an integral float, it
        compares int32 by value: on the GPU, the tensor may have been int64, and the float an int.
        """
        out = yield Out(x.shape, DType.BOOL)
        y = wrapped(y, x.dtype)
        low, high = BOUNDS[DType.I32]
        integral = not x.dtype.is_float and float(y).is_integer()
        if integral and not low <= y <= high:
            y, integral = math.copysign(math.inf, y), False
        compute = DType.I32 if integral else DType.F32
        yield pointwise(base, body, [x, rounded(y, x.dtype)], out, target, compute=compute)

    elementwise([f"{base}.Tensor"], tensors, wide=True, **traits)
    elementwise([f"{base}.Scalar"], with_scalar, wide=True, **traits)


def common_dtype(x: Tensor, y: Tensor) -> DType:
    """Return the dtype two tensors are compared in: a 0-d int takes the dtype of one with dimensions."""
    if x.dtype.is_float or y.dtype.is_float:
        return DType.F32
    if DType.BOOL in (x.dtype, y.dtype) or (x.rank == 0) == (y.rank == 0):
        return DType.I32
    return x.dtype if y.rank == 0 else y.dtype


def rounded(value: Number, dtype: DType) -> Number:
    """Return a scalar rounded to a half if it is compared with halves."""
    with np.errstate(over="ignore"):
        return float(np.float16(value)) if dtype is DType.F16 else value


def predicate(name: str, bodies: Bodies) -> None:
    """Register a test of each element: bools from the operand's own type."""

    def rule(x: Tensor, *, target: Target) -> Steps:
        out = yield Out(x.shape, DType.BOOL)
        yield pointwise(name, body_for(name, bodies, x.dtype), [x], out, target)

    elementwise([name], rule, wide=True)


def logical(name: str, body: str) -> None:
    """Register an operator of truth values: anything nonzero is true."""

    def rule(x: Tensor, y: Tensor, *, target: Target) -> Steps:
        out = yield Out(broadcast(x.shape, y.shape), DType.BOOL)
        yield pointwise(name.removesuffix(".default"), body, [x, y], out, target, compute=DType.BOOL)

    elementwise([name], rule, wide=True)


unary("aten.abs.default", numbers("abs(a)"), span=spans.absolute)
unary("aten.neg.default", numbers("-a"), span=spans.negated)
unary("aten.sign.default", {**numbers("sign(a)"), "bool": "a"}, wide=True)
unary("aten.ceil.default", {"f32": "ceil(a)", "i32": "a"}, wide=True)
unary("aten.floor.default", {"f32": "floor(a)", "i32": "a"}, wide=True)
unary("aten.trunc.default", {"f32": "trunc(a)", "i32": "a"}, wide=True)
unary("aten.round.default", {"f32": "round(a)", "i32": "a"}, wide=True)
unary("aten.exp.default", floats("exp(a)"))
unary("aten.exp2.default", floats("exp2(a)"))
unary("aten.expm1.default", floats("expm1(a)"))
unary("aten.log.default", floats("log(a)"))
unary("aten.log2.default", floats("log2(a)"))
unary("aten.log10.default", floats("log(a) * 0.4342944819"))
unary("aten.log1p.default", floats("log1p(a)"))
unary("aten.sqrt.default", floats("sqrt(a)"))
unary("aten.rsqrt.default", floats("inverseSqrt(a)"))
unary("aten.reciprocal.default", floats("1.0 / a"))
unary("aten.sin.default", floats("sine(a)"))
unary("aten.cos.default", floats("cosine(a)"))
unary("aten.tan.default", floats("tangent(a)"))
unary("aten.asin.default", floats("arcsin(a)"))
unary("aten.acos.default", floats("arccos(a)"))
unary("aten.atan.default", floats("arctan(a)"))
unary("aten.sinh.default", floats("hyperbolic_sine(a)"))
unary("aten.cosh.default", floats("hyperbolic_cosine(a)"))
unary("aten.tanh.default", floats("hyperbolic_tangent(a)"))
unary("aten.asinh.default", floats("arsinh(a)"))
unary("aten.acosh.default", floats("arcosh(a)"))
unary("aten.atanh.default", floats("artanh(a)"))
unary("aten.erf.default", floats("erf(a)"))
unary("aten.relu.default", {"f32": "greater(a, 0.0)", "i32": "max(a, 0)"}, wide=True)
unary("aten.relu6.default", {"f32": "within(a, 0.0, 6.0)", "i32": "clamp(a, 0, 6)"}, wide=True)
unary("aten.sigmoid.default", floats("sigmoid(a)"))
unary("aten.silu.default", floats("a * sigmoid(a)"))
unary("aten.mish.default", floats("a * hyperbolic_tangent(log1p(exp(a)))"))
unary("aten.hardsigmoid.default", floats("within(a + 3.0, 0.0, 6.0) / 6.0"))
unary("aten.hardswish.default", floats("a * within(a + 3.0, 0.0, 6.0) / 6.0"))
unary(ROUND, floats("bfloat16(a)"))
unary("aten.bitwise_not.default", {"i32": "~a", "bool": "!a"}, wide=True)

predicate("aten.isnan.default", {"f32": "is_nan(a)", "i32": "false", "bool": "false"})
predicate("aten.isinf.default", {"f32": "is_inf(a)", "i32": "false", "bool": "false"})
predicate("aten.logical_not.default", {"f32": "a == 0.0", "i32": "a == 0", "bool": "!a"})

scaled("aten.add", {**numbers("a + alpha * b"), "bool": "a || (alpha && b)"}, span=spans.scaled(1))
scaled("aten.sub", numbers("a - alpha * b"), span=spans.scaled(-1))
scaled("aten.rsub", numbers("b - alpha * a"))
MUL = {**numbers("a * b"), "bool": "a && b"}
binary("aten.mul", MUL, scalar="Scalar", span=spans.both(operator.mul), multiplies=True, by_row="elements")
binary("aten.div", floats("a / b"), scalar="Scalar", by_row="elements")
binary("aten.atan2", floats("arctan2(a, b)"), tensor="default")
binary("aten.hypot", floats(HYPOT), tensor="default")
binary("aten.minimum", LESSER, tensor="default", wide=True, span=spans.both(min))
binary("aten.min", LESSER, tensor="other", wide=True)
binary("aten.maximum", GREATER, tensor="default", wide=True, span=spans.both(max))
binary("aten.max", GREATER, tensor="other", wide=True)
binary("aten.bitwise_and", {"i32": "a & b", "bool": "a && b"}, scalar="Scalar", wide=True)
binary("aten.bitwise_or", {"i32": "a | b", "bool": "a || b"}, scalar="Scalar", wide=True)
binary("aten.bitwise_xor", {"i32": "a ^ b", "bool": "a != b"}, scalar="Scalar", wide=True)

logical(AND, "a && b")
logical("aten.logical_or.default", "a || b")
logical("aten.logical_xor.default", "a != b")

compare("aten.eq", "a == b")
compare("aten.ne", "!(a == b)", tests_zero=lambda a: a["y"] == 0)  # naga's `!=` is false for NaN
compare("aten.lt", "a < b")
compare("aten.le", "a <= b")
compare("aten.gt", "a > b")
compare("aten.ge", "a >= b")

POWER = {"f32": "power(a, b)", "i32": "whole_power(a, b)", "bool": "a || !b"}
POWERS = {  # exponents that need no logarithm
    -2.0: "1.0 / (a * a)",
    -1.0: "1.0 / a",
    -0.5: "inverseSqrt(a)",
    0.5: "sqrt(a)",
    1.0: "a",
    2.0: "a * a",
    3.0: "a * a * a",
    4.0: "(a * a) * (a * a)",
}
binary("aten.pow", POWER, tensor="Tensor_Tensor")


@op("aten.round.decimals")
def round_decimals(x: Tensor, decimals: int = 0, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    """Round to `decimals` digits after the point or, if negative, before it."""
    body = "round(a * ten) / ten" if decimals >= 0 else "round(a / ten) * ten"
    yield from combine("round", floats(body), [x], outs[0], target, ten=10.0 ** abs(decimals))


@op("aten.pow.Tensor_Scalar", prefix=along_sizes)
def pow_scalar(x: Tensor, y: Number, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    """Like PyTorch, use roots only for f32: other types give other results for -inf and -0."""
    root = abs(y) == 0.5 and outs[0].dtype is not DType.F32
    special = POWERS.get(float(y)) if outs[0].dtype.is_float and not root else None
    if special:
        yield from combine("pow", floats(special), [x], outs[0], target)
    else:
        yield from combine("pow", POWER, [x, y], outs[0], target)


@op("aten.pow.Scalar", prefix=along_sizes)
def scalar_pow(x: Number, y: Tensor, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from combine("pow", POWER, [x, y], outs[0], target)


WHERE = {"f32": "select(c, b, a != 0.0)", "i32": "select(c, b, a != 0)", "bool": "select(c, b, a)"}


@op("aten.where.self", elements=("x", "y"), prefix=along_sizes)
def where(condition: Tensor, x: Tensor, y: Tensor, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from combine("where", WHERE, [condition, x, y], outs[0], target)


@op("aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar", wide=True)
def where_scalar(
    condition: Tensor, x: Tensor | Number, y: Tensor | Number, *, outs: tuple[Tensor, ...], target: Target
) -> Steps:
    yield from combine("where", WHERE, [condition, x, y], outs[0], target)


@op("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", wide=True)
def masked_fill(x: Tensor, mask: Tensor, value: Tensor | Number, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from combine("where", WHERE, [mask, value, x], outs[0], target)


GELU = {
    "none": "0.5 * a * (1.0 + erf(a * 0.70710678))",
    "tanh": "0.5 * a * (1.0 + hyperbolic_tangent(0.79788456 * (a + 0.044715 * a * a * a)))",
}


@op("aten.gelu.default")
def gelu(x: Tensor, approximate: str = "none", *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    """Unlike PyTorch on a CPU, whose vectorised float32 gives NaN there, the result for inf is inf."""
    if approximate not in GELU:
        raise InvalidProgram(f"invalid approximation '{approximate}' of gelu: expected none or tanh")
    yield from combine("gelu", floats(GELU[approximate]), [x], outs[0], target)


@op("aten.leaky_relu.default")
def leaky_relu(x: Tensor, slope: Number = 0.01, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from combine("leaky_relu", floats("select(a * slope, a, a > 0.0)"), [x], outs[0], target, slope=slope)


@op("aten.elu.default")
def elu(
    x: Tensor,
    alpha: Number = 1,
    scale: Number = 1,
    input_scale: Number = 1,
    *,
    outs: tuple[Tensor, ...],
    target: Target,
) -> Steps:
    body = "select(below * expm1(a * inner), a * above, a > 0.0)"
    scalars = {"below": alpha * scale, "above": scale, "inner": input_scale}
    yield from combine("elu", floats(body), [x], outs[0], target, **scalars)


@op("aten.softplus.default")
def softplus(x: Tensor, beta: Number = 1, threshold: Number = 20, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    body = "select(log1p(exp(a * beta)) / beta, a, a * beta > threshold)"
    yield from combine("softplus", floats(body), [x], outs[0], target, beta=beta, threshold=threshold)


@op("aten.hardshrink.default")
def hardshrink(x: Tensor, threshold: Number = 0.5, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    body = "select(a, 0.0, a >= -threshold && a <= threshold)"
    yield from combine("hardshrink", floats(body), [x], outs[0], target, threshold=threshold)


CLAMP = {"f32": "lesser(greater(a, b), c)", "i32": "min(max(a, b), c)"}


@op("aten.clamp.default", wide=True, span=spans.clamped, prefix=along_sizes)
def clamp(
    x: Tensor, low: Number | None = None, high: Number | None = None, *, outs: tuple[Tensor, ...], target: Target
) -> Steps:
    """Replace a missing bound by the type's own; if the bounds cross, the upper one wins."""
    dtype = outs[0].dtype
    least, most = BOUNDS.get(dtype, (-math.inf, math.inf))
    low, high = wrapped(low, dtype), wrapped(high, dtype)
    low, high = least if low is None else max(low, least), most if high is None else min(high, most)
    yield from combine("clamp", CLAMP, [x, low, high], outs[0], target)


@op("aten.hardtanh.default")
def hardtanh(x: Tensor, low: Number = -1, high: Number = 1, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
    yield from combine("hardtanh", CLAMP, [x, low, high], outs[0], target)


@op("aten.clamp.Tensor", wide=True, span=spans.clamped, prefix=along_sizes)
def clamp_tensor(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, outs: tuple[Tensor, ...], target: Target
) -> Steps:
    if low is not None and high is not None:
        yield from combine("clamp", CLAMP, [x, low, high], outs[0], target)
    elif low is not None:
        yield from combine("clamp", GREATER, [x, low], outs[0], target)
    elif high is not None:
        yield from combine("clamp", LESSER, [x, high], outs[0], target)
    else:
        raise InvalidProgram("clamp needs a minimum or a maximum")
