"""Pooling over one to three axes: each output is the largest, or the mean, of a window of its plane.

Windows are `sliding` (a kernel of `P.k`, steps of `P.s`, `P.p` of padding, taps `P.d` apart along each axis) or `even`
stretches of the input, one per output. An invocation computes four consecutive outputs, so it can write every dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .convolution import flat
from .functions import functions
from .wgsl import COMPUTE, KernelSpec, Storage, build

Extent = Literal["sliding", "even"]
Divisor = Literal["window", "inside", "number"]  # the window with its padding, its part inside, or `P.divisor`


@cached(128)
def largest(x: DType, y: DType, indices: bool, extent: Extent, rank: int, target: Target) -> KernelSpec:
    """Find the largest element of each window, or NaN if there is one, and with `indices` its position in the plane.

    Of equal elements, the first counts; of NaNs, the last.
    """
    axes = range(rank)
    kind = COMPUTE[x]
    better = "v > best.value || is_nan(v)" if kind == "f32" else "v > best.value"
    body = _bounds(extent, axes, dilated=True)
    if extent == "sliding":
        body += [f"b{k} = select(b{k}, b{k} + (P.d{k} - 1 - b{k}) / P.d{k} * P.d{k}, b{k} < 0);" for k in axes]
    body += [
        f"var best = Best(P.lowest, {flat('b', axes)});",
        *_loops(axes, [f"P.d{k}" if extent == "sliding" else "1" for k in axes]),
        f"let at = {flat('r', axes)};",
        "let v = x_at(u32(plane + at));",
        f"if ({better}) {{ best = Best(v, at); }}",
        *["}"] * rank,
        "return best;",
    ]
    writes = {"y": Storage(y, 4)} | ({"where_": Storage(DType.I32, 4)} if indices else {})
    lines = [f"let l{j} = pooled(min(q * 4u + {j}u, P.n - 1u));" for j in range(4)]
    lines.append(f"y_put4(q, vec4<{kind}>({', '.join(f'l{j}.value' for j in range(4))}));")
    if indices:
        lines.append(f"where__put4(q, vec4<i32>({', '.join(f'l{j}.at' for j in range(4))}));")
    return _pool(
        "pool_largest",
        f"struct Best {{ value: {kind}, at: i32 }}\nfn pooled(i: u32) -> Best",
        body,
        lines,
        x,
        writes,
        [("lowest", kind), *_params(extent, "kspd", axes)],
        target,
    )


@cached(128)
def mean(x: DType, y: DType, divisor: Divisor, extent: Extent, rank: int, target: Target) -> KernelSpec:
    """Compute the mean of each window; padding counts as zeros."""
    axes = range(rank)
    body = _bounds(extent, axes, dilated=False)
    if extent == "sliding":
        for k in axes:
            body += [f"let w{k} = min(b{k} + P.k{k}, P.i{k} + P.p{k}) - b{k};", f"b{k} = max(b{k}, 0);"]
    extents = {"window": [f"w{k}" for k in axes], "inside": [f"(e{k} - b{k})" for k in axes], "number": ["P.divisor"]}
    body += [
        "var sum = 0.0;",
        *_loops(axes, ["1" for _ in axes]),
        f"sum += x_at(u32(plane + {flat('r', axes)}));",
        *["}"] * rank,
        f"let empty = {' || '.join(f'e{k} <= b{k}' for k in axes)};",
        f"return select(sum / f32({' * '.join(extents[divisor])}), 0.0, empty);",
    ]
    lanes = ", ".join(f"pooled(min(q * 4u + {j}u, P.n - 1u))" for j in range(4))
    number = [("divisor", "f32")] if divisor == "number" else []
    return _pool(
        "pool_mean",
        "fn pooled(i: u32) -> f32",
        body,
        [f"y_put4(q, vec4<f32>({lanes}));"],
        x,
        {"y": Storage(y, 4)},
        [*number, *_params(extent, "ksp", axes)],
        target,
    )


def _params(extent: Extent, sliding: str, axes: Iterable[int]) -> list[tuple[str, str]]:
    return [(f"{n}{k}", "i32") for k in axes for n in ("io" + sliding if extent == "sliding" else "io")]


def _bounds(extent: Extent, axes: range, dilated: bool) -> list[str]:
    """Declare the begin (`b`) and end (`e`) of output `i`'s window along each axis, and the offset of its plane."""
    lines = ["var rest = i;"]
    for k in reversed(axes):
        lines += [f"let c{k} = i32(rest % u32(P.o{k})); rest = rest / u32(P.o{k});"]
        if extent == "even":
            lines += [f"var b{k} = c{k} * P.i{k} / P.o{k};", f"let e{k} = ((c{k} + 1) * P.i{k} - 1) / P.o{k} + 1;"]
        else:
            reach = f"(P.k{k} - 1) * P.d{k} + 1" if dilated else f"P.k{k}"
            lines += [f"var b{k} = c{k} * P.s{k} - P.p{k};", f"let e{k} = min(b{k} + {reach}, P.i{k});"]
    size = " * ".join(f"P.i{k}" for k in axes)
    return [*lines, f"let plane = i32(rest) * {size};"]


def _loops(axes: Iterable[int], steps: list[str]) -> list[str]:
    return [f"for (var r{k} = b{k}; r{k} < e{k}; r{k} += {step}) {{" for k, step in zip(axes, steps, strict=True)]


def _pool(
    name: str,
    signature: str,
    body: list[str],
    lines: list[str],
    x: DType,
    writes: dict[str, Storage],
    params: list[tuple[str, str]],
    target: Target,
) -> KernelSpec:
    text = "\n".join(body)
    main = ["let q = group * WG + lid;", "if (q * 4u >= P.n) { return; }", *lines]
    return build(
        name,
        main,
        target=target,
        reads={"x": Storage(x)},
        writes=writes,
        params=[("n", "u32"), *params],
        helpers=f"{functions(text)}\n{signature} {{\n{text}\n}}",
    )
