"""Elementwise operators: one line each. The body is scalar WGSL over `a` (and `b`, `c`), computed in the output's type.

Halves are computed in f32 and rounded once, as PyTorch does; 8-bit ints in i32 and wrapped. NaN is never lost in a
`min` or `max`, whose WGSL forms may drop it: comparisons are written out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..dtypes import FLOATS, NUMBERS, DType
from ..errors import InvalidProgram
from ..graph.graph import Tensor
from ..kernels.wgsl import COMPUTE
from ..plan.target import Target
from .pointwise import pointwise
from .registry import Number, Out, Steps, broadcast, define, op

Bodies = str | Mapping[str, str]  # one body for all compute types, or one per "f32" | "i32" | "bool"


def body_for(name: str, bodies: Bodies, dtype: DType) -> str:
    """The body in the compute type of `dtype`; InvalidProgram if the operator has none for it."""
    if isinstance(bodies, str):
        return bodies
    try:
        return bodies[COMPUTE[dtype]]
    except KeyError:
        raise InvalidProgram(f"{name} is not defined for {dtype.value}") from None


def promoted(*tensors: Tensor) -> DType:
    """The dtype operands are compared or combined in: a float beats an int, an int beats a bool."""
    order = [DType.BOOL, DType.U8, DType.I8, DType.I32, DType.F16, DType.F32]
    return max((t.dtype for t in tensors), key=order.index)


def unary(names: str | Sequence[str], bodies: Bodies, *, dtypes: Sequence[DType] = FLOATS) -> None:
    """An operator of one tensor; an int operand of a float operator is converted first."""
    names = [names] if isinstance(names, str) else names

    def rule(x: Tensor, *, outs: tuple[Tensor, ...], target: Target) -> Steps:
        out = yield Out(x.shape)
        yield pointwise(names[0], body_for(names[0], bodies, out.dtype), [x], out, target, compute=out.dtype)

    define(names, rule, "steps", dtypes=dtypes)


def binary(names: str | Sequence[str], bodies: Bodies, *, dtypes: Sequence[DType] = NUMBERS) -> None:
    """An operator of two tensors that broadcast, computed in the output's type."""
    names = [names] if isinstance(names, str) else names

    def rule(x: Tensor, y: Tensor, *, target: Target) -> Steps:
        out = yield Out(broadcast(x.shape, y.shape))
        yield pointwise(names[0], body_for(names[0], bodies, out.dtype), [x, y], out, target, compute=out.dtype)

    define(names, rule, "steps", dtypes=dtypes)


def scaled(name: str, body: str, *, scalar: bool) -> None:
    """`add` and `sub`: the second operand, a tensor or a scalar, is multiplied by `alpha`."""

    def tensors(x: Tensor, y: Tensor, alpha: Number = 1, *, target: Target) -> Steps:
        out = yield Out(broadcast(x.shape, y.shape))
        kind = COMPUTE[out.dtype]
        yield pointwise(name, body, [x, y], out, target, compute=out.dtype, scalars={"alpha": (kind, alpha)})

    def with_scalar(x: Tensor, other: Number, alpha: Number = 1, *, target: Target) -> Steps:
        out = yield Out(x.shape)
        kind = COMPUTE[out.dtype]
        text = body.replace("b", "P.other", 1) if body.count("b") == 1 else body
        yield pointwise(
            name, text, [x], out, target, compute=out.dtype, scalars={"alpha": (kind, alpha), "other": (kind, other)}
        )

    define([name], with_scalar if scalar else tensors, "steps", dtypes=NUMBERS)


def scalar(name: str, bodies: Bodies, *, dtypes: Sequence[DType] = NUMBERS) -> None:
    """An operator of a tensor and a scalar, which the body calls `P.b`."""

    def rule(x: Tensor, other: Number, *, target: Target) -> Steps:
        out = yield Out(x.shape)
        text = body_for(name, bodies, out.dtype)
        kind = COMPUTE[out.dtype]
        yield pointwise(name, text, [x], out, target, compute=out.dtype, scalars={"b": (kind, other)})

    define([name], rule, "steps", dtypes=dtypes)


def compare(base: str, symbol: str) -> None:
    """`base.Tensor` and `base.Scalar`: bools from operands compared in their common type."""

    def tensors(x: Tensor, y: Tensor, *, target: Target) -> Steps:
        out = yield Out(broadcast(x.shape, y.shape), DType.BOOL)
        common = promoted(x, y)
        common = DType.I32 if common is DType.BOOL else common
        yield pointwise(base, f"a {symbol} b", [x, y], out, target, compute=common)

    def with_scalar(x: Tensor, other: Number, *, target: Target) -> Steps:
        out = yield Out(x.shape, DType.BOOL)
        whole = not x.dtype.is_float and float(other).is_integer()
        common = DType.I32 if whole else DType.F32
        value = (COMPUTE[common], other)
        yield pointwise(base, f"a {symbol} P.b", [x], out, target, compute=common, scalars={"b": value})

    define([f"{base}.Tensor"], tensors, "steps", wide=True)
    define([f"{base}.Scalar"], with_scalar, "steps", wide=True)


unary("aten.abs.default", "abs(a)", dtypes=NUMBERS)
unary("aten.neg.default", "-a", dtypes=NUMBERS)
unary("aten.exp.default", "exp(a)")
unary("aten.sqrt.default", "sqrt(a)")
unary("aten.rsqrt.default", "inverseSqrt(a)")
unary("aten.relu.default", {"f32": "select(a, 0.0, a < 0.0)", "i32": "max(a, 0)"}, dtypes=NUMBERS)
unary("aten.sigmoid.default", "1.0 / (1.0 + exp(-a))")

binary("aten.mul.Tensor", {"f32": "a * b", "i32": "a * b", "bool": "a && b"})
binary("aten.div.Tensor", {"f32": "a / b"}, dtypes=FLOATS)
scaled("aten.add.Tensor", "a + P.alpha * b", scalar=False)
scaled("aten.sub.Tensor", "a - P.alpha * b", scalar=False)
scalar("aten.mul.Scalar", "a * P.b")

compare("aten.eq", "==")
compare("aten.ne", "!=")
compare("aten.lt", "<")
compare("aten.le", "<=")
compare("aten.gt", ">")
compare("aten.ge", ">=")


@op("aten.where.self", wide=True)
def where(condition: Tensor, x: Tensor, y: Tensor, *, target: Target) -> Steps:
    out = yield Out(broadcast(condition.shape, x.shape, y.shape))
    kind = COMPUTE[out.dtype]
    yield pointwise("where", f"select({kind}(c), {kind}(b), a)", [condition, x, y], out, target)



