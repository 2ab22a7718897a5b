"""Functions of `functions.wgsl` on the adapter against NumPy in float64: over the domain of each and at its edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.cases import device
from tests.kernels.running import run

from ptegpu.dtypes import DType
from ptegpu.kernels.functions import _library, functions
from ptegpu.kernels.wgsl import Storage, build
from ptegpu.plan.device_arrays import from_device, to_device

F32, I32 = DType.F32, DType.I32
INF, NAN, PI = math.inf, math.nan, math.pi
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, INF, -INF, NAN, LARGEST, -LARGEST, SMALLEST, 1e-6, -1e-6]
INTS = [0, 1, -1, 2, -2, 3, 7, -7, 10, 31, 46341, 2**31 - 1, -(2**31)]


def span(low: float, high: float, count: int = 201) -> list[float]:
    return [float(v) for v in np.linspace(low, high, count)]


@dataclass(frozen=True)
class F:
    """The expected values of a function of floats, for all edge values or pairs of them, and for `more`."""

    want: Callable[..., Any]  # on float64
    more: Sequence[float] = ()
    near: float = 1e-6  # relative tolerance
    floor: float = SMALLEST  # absolute tolerance: for results near zero at arguments that are not
    edges: bool = True
    arity: int = 1
    call: str = ""  # an expression of `a` and `b`; by default the function of both


def _bfloat16(a: np.ndarray) -> np.ndarray:
    """Round to 8 bits of mantissa, ties to even."""
    return to_device(from_device(a.astype(np.float32), DType.BF16), DType.BF16, "a")


TURNS = [*span(-30, 30), *span(-16384, 16384), *span(16384, 1.1e5), 1e10, -1e20, 1e30]
FLOATS = {
    "nan": F(lambda a: np.full_like(a, NAN), call="nan()"),
    "is_nan": F(np.isnan, near=0, call="select(0.0, 1.0, is_nan(a))"),
    "bfloat16": F(_bfloat16, near=0),
    "is_inf": F(np.isinf, near=0, call="select(0.0, 1.0, is_inf(a))"),
    "lesser": F(np.minimum, near=0, arity=2),
    "greater": F(np.maximum, near=0, arity=2),
    "within": F(lambda a: np.clip(a, -1.5, 2.0), near=0, call="within(a, -1.5, 2.0)"),
    "quarters": F(lambda a: np.rint(a * 2 / PI), span(-9e4, 9e4), near=0, edges=False),
    "quarter_sin": F(np.sin, span(-PI / 4, PI / 4), edges=False),
    "quarter_cos": F(np.cos, span(-PI / 4, PI / 4), edges=False),
    "turned": F(np.sin, span(-9, 9), floor=1e-7, edges=False, call="turned(a, quarters(a), i32(quarters(a)))"),
    "far_turned": F(np.sin, [*span(-2e4, -2), *span(2, 1e9), 1e20, 3e38], edges=False, call="far_turned(a, 0)"),
    "sine": F(np.sin, TURNS, floor=3e-7),
    "cosine": F(np.cos, TURNS, floor=3e-7),
    "tangent": F(np.tan, [*span(-1.5, 1.5), *span(-30, 30, 100)], near=3e-6, floor=3e-7),
    "unit_atan": F(np.arctan, span(-1, 1), edges=False),
    "arctan": F(np.arctan, [*span(-9, 9), 1e20, -1e9]),
    "arctan2": F(np.arctan2, arity=2),
    "half_asin": F(np.arcsin, span(-0.5, 0.5), edges=False),
    "arcsin": F(np.arcsin, span(-1, 1)),
    "arccos": F(np.arccos, span(-1, 1), floor=3e-7),
    "expm1": F(np.expm1, [*span(-3, 3), 80.0, -80.0]),
    "log1p": F(np.log1p, [*span(-0.99, 3), 1e8, 1e30]),
    "hyperbolic_sine": F(np.sinh, [*span(-9, 9), 80.0, 89.0, -89.0], near=3e-6),
    "hyperbolic_cosine": F(np.cosh, [*span(-9, 9), 80.0, 89.0], near=3e-6),
    "hyperbolic_tangent": F(np.tanh, span(-18, 18)),
    "arsinh": F(np.arcsinh, [*span(-9, 9), 1e8, 1e9, 1e12, -1e30]),
    "arcosh": F(np.arccosh, [*span(1, 9), 1.0001, 1e8, 1e9, 1e12, 1e30]),
    "artanh": F(np.arctanh, span(-0.9999, 0.9999), near=3e-6),
    "erf": F(np.vectorize(math.erf), span(-5, 5)),
    "sigmoid": F(lambda a: 1 / (1 + np.exp(-a)), span(-80, 80), near=2e-5),  # exp is off by ulps that grow with |a|
    "power": F(np.power, arity=2, near=1e-5),
    "fmod": F(np.fmod, arity=2, near=0),
    "remainder": F(np.mod, arity=2, near=2e-7),
    "floor_quotient": F(lambda a, b: np.where(b == 0, a / b, np.floor_divide(a, b)), arity=2, near=5e-7),
    "trunc_quotient": F(lambda a, b: np.trunc(a.astype(np.float32) / b.astype(np.float32)), arity=2, near=1.2e-7),
}


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def whole_power(a: int, b: int) -> int:
    return pow(a, b) if 0 <= b < 64 else pow(a, b, 2**32) if b >= 0 else {1: 1, -1: 1 - 2 * (b % 2)}.get(a, 0)


WHOLE: dict[str, Callable[[int, int], int]] = {
    "whole_power": whole_power,
    "whole_fmod": lambda a, b: int(math.copysign(abs(a) % abs(b), a)),
    "whole_remainder": lambda a, b: a % b,
    "whole_floor_quotient": lambda a, b: a // b,
}
WORDS = {"two_over_pi", "product"}


def test_every_function_is_tested() -> None:
    assert set(_library()) == {*FLOATS, *WHOLE, *WORDS}


def called(call: str, arrays: Sequence[np.ndarray], writes: Sequence[DType]) -> list[np.ndarray]:
    """Run `call`, which writes `y` and `z` at `i` for the elements `a` and `b`."""
    gpu, count = device(), len(arrays[0])
    body = ["let i = group * WG + lid;", "if (i >= P.n) { return; }"]
    body += [f"let {name} = x{name}_at(i);" for name, _ in zip("ab", arrays)]
    spec = build(
        "called",
        "\n".join([*body, call]),
        target=gpu.target,
        reads={f"x{name}": Storage(DType.of(x.dtype)) for name, x in zip("ab", arrays)},
        writes={name: Storage(dtype) for name, dtype in zip("yz", writes)},
        params=[("n", "u32")],
        workgroup=64,
        helpers=functions(call),
    )
    return run(spec, arrays, [count] * len(writes), gpu, groups=-(-count // 64), params={"n": count})


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    f = FLOATS[name]
    if f.arity == 2:
        values = [*EDGES, *np.random.default_rng(0).uniform(-9, 9, 12)]
        pairs = np.array(list(itertools.product(values, values)), np.float32)
        arrays = [np.ascontiguousarray(column) for column in pairs.T]
    else:
        arrays = [np.array([*(EDGES if f.edges else ()), *f.more], np.float32)]
    call = f.call or f"{name}({', '.join('ab'[: f.arity])})"
    (got,) = called(f"y_put(i, {call});", arrays, [F32])
    with np.errstate(all="ignore"):
        want = np.asarray(f.want(*(a.astype(np.float64) for a in arrays)), np.float64)
        rounded = want.astype(np.float32)
        right = np.abs(got - want) <= f.near * np.abs(want) + (f.floor if f.near else 0.0)
        right |= (got == np.sign(want) * INF) & (np.abs(want) * (1 + f.near) > LARGEST)  # it may round to infinity
    finite = np.isfinite(rounded)
    right = np.where(finite, right, (got == rounded) | (np.isnan(got) & np.isnan(rounded)))
    wrong = [(*(a[k] for a in arrays), got[k], want[k]) for k in np.flatnonzero(~right)]
    assert [] == wrong


@pytest.mark.parametrize("name", ["arcsin", "log1p", "hyperbolic_sine"])
def test_the_sign_of_zero_stays(name: str) -> None:
    (got,) = called(f"y_put(i, {name}(a));", [np.array([0.0, -0.0], np.float32)], [F32])
    assert [False, True] == np.signbit(got).tolist()


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str) -> None:
    pairs = [(a, b) for a, b in itertools.product(INTS, INTS) if b or name == "whole_power"]
    arrays = [np.array(column, np.int32) for column in zip(*pairs)]
    (got,) = called(f"y_put(i, {name}(a, b));", arrays, [I32])
    want = [wrapped(WHOLE[name](a, b)) for a, b in pairs]
    assert [] == [(*pair, int(g), w) for pair, g, w in zip(pairs, got, want) if g != w]


def test_products_of_words() -> None:
    pairs = list(itertools.product(INTS, INTS))
    arrays = [np.array(column, np.int32) for column in zip(*pairs)]
    call = (
        "let p = product(bitcast<u32>(a), bitcast<u32>(b));\ny_put(i, bitcast<i32>(p.x)); z_put(i, bitcast<i32>(p.y));"
    )
    low, high = called(call, arrays, [I32, I32])
    want = [(a % 2**32) * (b % 2**32) for a, b in pairs]
    assert want == [int(h) * 2**32 + int(l) for l, h in zip(low.view(np.uint32), high.view(np.uint32))]


def test_the_bits_of_two_over_pi() -> None:
    def arctan_of_one_over(n: int, unit: int) -> int:
        return sum((-1) ** k * unit // ((2 * k + 1) * n ** (2 * k + 1)) for k in range(200))

    unit = 1 << 400
    pi = 4 * (4 * arctan_of_one_over(5, unit) - arctan_of_one_over(239, unit))
    bits = (2 * unit << 192) // pi  # of 2/π, after 32 zeros
    places = np.arange(161, dtype=np.int32)
    (got,) = called("y_put(i, bitcast<i32>(two_over_pi(u32(a))));", [places], [I32])
    want = [(bits >> 192 + 32 - 32 - int(at)) % 2**32 for at in places]
    assert want == got.view(np.uint32).tolist()


def test_a_module_gets_what_it_calls_and_what_that_needs() -> None:
    assert "" == functions("let x = other(3) + sine;")
    assert {"fmod", "is_inf", "nan"} == set(_names(functions("y = fmod(a, b);")))
    assert {"remainder", "fmod", "is_inf", "nan", "is_nan"} == set(
        _names(functions("remainder(is_nan(a), fmod(a, b))"))
    )


def _names(text: str) -> list[str]:
    return [line.split("(")[0].removeprefix("fn ") for line in text.splitlines() if line.startswith("fn ")]
