"""Kernels that choose a source for each output element: joining, overlaying, padding, rolling.

As in `elementwise`, an invocation writes four consecutive elements, so it can write every dtype. Joining and overlaying
count in elements or, if all widths are multiples of four, in quads.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import WRAPPED, convert, decode, param_type, sizes
from .wgsl import COMPUTE, ZERO, KernelSpec, Storage, build, u32s

NAMES = "abcdefgh"
Axis = Literal["plain", "pad", "roll"]


@cached(1024)
def join(sources: tuple[DType, ...], out: DType, quads: bool, target: Target) -> KernelSpec:
    """Put rows side by side: row r of the output is row r of each source in turn.

    Each source x has rows of `P.x_width`, and ends at column `P.x_end` of the output's rows of `P.width`.
    """
    params = u32s("n", "width")
    lines, before = ["let row = i / P.width;", "let column = i % P.width;"], ""
    for k, (x, dtype) in enumerate(zip(NAMES, sources)):
        params += u32s(f"{x}_width", f"{x}_end")
        value = _element(x, f"row * P.{x}_width + column{before}", dtype, out, quads)
        last = k == len(sources) - 1
        lines.append(f"return {value};" if last else f"if (column < P.{x}_end) {{ return {value}; }}")
        before = f" - P.{x}_end"
    return chosen("join", lines, dict(zip(NAMES, sources)), out, params, quads, target)


@cached(1024)
def overlay(x: DType, source: DType, symbolic: bool, quads: bool, target: Target) -> KernelSpec:
    """Replace every `step`-th slice of `a` (outer, size, inner) by one of `b` (outer, count, inner), from `start` on,
    which is a parameter or a symbolic int.
    """
    params = [*u32s("n", "size", "inner", "count"), ("step", "i32")]
    params += [("start", "sym" if symbolic else "i32")]
    start = "wrapped(sym(P.start), i32(P.size))" if symbolic else "P.start"
    lines = [
        "let r = i / P.inner;",
        f"let k = i32(r % P.size) - {start};",
        "if (k >= 0 && k % P.step == 0 && u32(k / P.step) < P.count) {",
        "  let row = (r / P.size) * P.count + u32(k / P.step);",
        f"  return {_element('b', 'row * P.inner + i % P.inner', source, x, quads)};",
        "}",
        f"return {_element('a', 'i', x, x, quads)};",
    ]
    helpers = WRAPPED if symbolic else ""
    return chosen("overlay", lines, {"a": x, "b": source}, x, params, quads, target, helpers)


@cached(1024)
def remap(dtype: DType, axes: tuple[Axis, ...], target: Target) -> KernelSpec:
    """Read `a` at coordinates that each axis k of the output changes: "pad" subtracts `P.low{k}` and gives `P.fill`
    outside of `P.size{k}`; "roll" adds `P.low{k}` and wraps around.
    """
    rank = len(axes)
    params = [*sizes(rank), ("fill", param_type(dtype))]
    lines = decode("c", "i", rank)
    inside, terms = ["true"], []
    for k, axis in enumerate(axes):
        params.append((f"s{k}", "i32"))
        if axis == "plain":
            terms.append(f"c{k} * P.s{k}")
            continue
        params.append((f"low{k}", "i32"))
        if axis == "pad":
            params.append((f"size{k}", "i32"))
            lines.append(f"  let m{k} = c{k} - P.low{k};")
            inside.append(f"m{k} >= 0 && m{k} < P.size{k}")
        else:
            lines.append(f"  let m{k} = (c{k} + P.low{k}) % i32(P.d{k});")
        terms.append(f"m{k} * P.s{k}")
    fill = "P.fill != 0u" if COMPUTE[dtype] == "bool" else "P.fill"
    lines += [f"if ({' && '.join(inside)}) {{ return a_at(u32({' + '.join(terms)})); }}", f"return {fill};"]
    return chosen("remap", lines, {"a": dtype}, dtype, params, False, target)


@cached(32)
def triangle(dtype: DType, sign: Literal["<=", ">="], target: Target) -> KernelSpec:
    """Zero matrices of `P.height` × `P.width` except where column - row is on one side of `P.diagonal`."""
    lines = [
        "let column = i32(i % P.width); let row = i32(i / P.width % P.height);",
        f"if (column - row {sign} P.diagonal) {{ return a_at(i); }}",
        f"return {ZERO[COMPUTE[dtype]]};",
    ]
    params = [*u32s("n", "width", "height"), ("diagonal", "i32")]
    return chosen("triangle", lines, {"a": dtype}, dtype, params, False, target)


def _element(x: str, at: str, dtype: DType, out: DType, quads: bool) -> str:
    """Return the element (or quad) of `x` at a position, in the output's compute type."""
    if not quads:
        return convert(f"{x}_at({at})", COMPUTE[dtype], COMPUTE[out])
    value, own, to = f"{x}_at4({at})", COMPUTE[dtype], COMPUTE[out]
    if own != to and to == "bool":
        return f"!({value} == vec4<{own}>())"
    return value if own == to else f"vec4<{to}>({value})"


def chosen(
    name: str,
    lines: list[str],
    sources: dict[str, DType],
    out: DType,
    params: list[tuple[str, str]],
    quads: bool,
    target: Target,
    helpers: str = "",
) -> KernelSpec:
    """Return a kernel from the body of a function that returns the output's element (or quad) number i."""
    element = f"vec4<{COMPUTE[out]}>"
    if quads:
        result, body = element, "  y_put4(q, chosen(q));"
    else:
        lanes = ", ".join(f"chosen(min(q * 4u + {lane}u, P.n - 1u))" for lane in range(4))
        result, body = COMPUTE[out], f"  y_put4(q, {element}({lanes}));"
    function = [f"fn chosen(i: u32) -> {result} {{", *lines, "}"]
    return build(
        name,
        f"  let q = group * WG + lid;\n  if (q * 4u >= P.n) {{ return; }}\n{body}",
        target=target,
        reads={x: Storage(d, 4 if quads else 1) for x, d in sources.items()},
        writes={"y": Storage(out, 4)},
        params=params,
        helpers="\n".join([helpers, *function] if helpers else function),
    )
