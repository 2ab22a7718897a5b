"""The generator of all kernels that compute each output element from a few input elements.

An invocation makes four consecutive output elements, so that bools, bytes and halves fill whole words. The operator's
body is a scalar WGSL expression (or statements with `return`) over its operands' names, `i`, the number of the output
element, and the library of `functions.wgsl`. Each operand has a mode:

- "quad": laid out like the output: one aligned load of four;
- "one": a single element for all outputs;
- "strided": offset + Σ coordinate · stride over the collapsed output shape (broadcasts, permutes, slices, flips);
- "number": a parameter.

If the innermost dimension is a multiple of four (`rows`), the four lanes share the outer coordinates, which are
computed once, and one load can serve a strided operand:

- "row": the lanes are neighbours and aligned;
- "splat": the lanes share one element.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ..dtypes import INTS, DType
from ..plan.target import Target
from ..sizes import cached
from .functions import functions
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s

Mode = Literal["quad", "one", "strided", "row", "splat", "number"]
BY_STRIDES = ("strided", "row", "splat")


class ElementwiseOperand(NamedTuple):
    """The operand `name` of a body: its dtype, and the mode in which the kernel reads it."""

    name: str
    dtype: DType
    mode: Mode
    symbolic: bool = False  # its offset grows by a symbolic int


@cached(4096)
def elementwise(
    name: str,
    body: str,
    operands: tuple[ElementwiseOperand, ...],
    out: DType,
    rank: int,  # of the collapsed output shape; 0 if no operand has strides
    rows: bool,  # the innermost size is a multiple of four, and counted in quads
    compute: DType | None,  # the type operands are converted to; None: each its own
    target: Target,
    helpers: str = "",  # functions that the body calls
) -> KernelSpec:
    params = sizes(rank)
    reads: dict[str, Storage] = {}
    lines = ["  let q = group * WG + lid;", "  if (q * 4u >= P.n) { return; }"]
    if rows:
        lines += decode("c", "q", rank, inner=4)
    for o in operands:
        if o.mode == "number":
            params.append((o.name, param_type(o.dtype)))
            continue
        reads[o.name] = Storage(o.dtype, 4 if o.mode in ("quad", "row") else 1)
        if o.mode in BY_STRIDES:
            params += [(f"{o.name}_offset", "i32"), *((f"{o.name}_s{k}", "i32") for k in range(rank))]
            base = f"P.{o.name}_offset"
            if o.symbolic:
                params += [(f"{o.name}_{p}", t) for p, t in (("sym", "sym"), ("size", "i32"), ("factor", "i32"))]
                base += f" + wrapped(sym(P.{o.name}_sym), P.{o.name}_size) * P.{o.name}_factor"
            lines.append(f"  let {o.name}_base = {base};")
        lines += _loaded_once(o, rank)
    for lane in range(4):
        if rank and not rows:
            lines += decode(f"c{lane}_", f"min(q * 4u + {lane}u, P.n - 1u)", rank)
        values = [f"q * 4u + {lane}u"]
        for o in operands:
            values.append(_computed(_lane(o, lane, rank, rows), o.dtype, compute or o.dtype))
        lines.append(f"  let v{lane} = apply({', '.join(values)});")
    lines.append(f"  y_put4(q, vec4<{COMPUTE[out]}>(v0, v1, v2, v3));")

    arguments = ", ".join(["i: u32", *(f"{o.name}: {COMPUTE[compute or o.dtype]}" for o in operands)])
    statements = body if "return" in body else f"return {body};"
    library = [functions(body + helpers), helpers, f"fn apply({arguments}) -> {COMPUTE[out]} {{ {statements} }}"]
    if any(o.symbolic for o in operands):
        library.append(WRAPPED)
    return build(
        name,
        "\n".join(lines),
        target=target,
        reads=reads,
        writes={"y": Storage(out, 4)},
        params=params,
        helpers="\n".join(h for h in library if h),
    )


# An index with PyTorch's meaning: a negative one counts from the end. It is clamped to the dimension.
WRAPPED = "fn wrapped(i: i32, size: i32) -> i32 { return clamp(select(i, i + size, i < 0), 0, max(size - 1, 0)); }"


def _loaded_once(o: ElementwiseOperand, rank: int) -> list[str]:
    """Return the load that all four lanes share, if there is one."""
    match o.mode:
        case "quad":
            return [f"  let {o.name}_quad = {o.name}_at4(q);"]
        case "one":
            return [f"  let {o.name}_one = {o.name}_at(0u);"]
        case "row":
            return [f"  let {o.name}_quad = {o.name}_at4(u32({address(o.name, 'c', rank)}) >> 2u);"]
        case "splat":
            return [f"  let {o.name}_one = {o.name}_at(u32({address(o.name, 'c', rank)}));"]
        case _:
            return []


def _lane(o: ElementwiseOperand, lane: int, rank: int, rows: bool) -> str:
    match o.mode:
        case "quad" | "row":
            return f"{o.name}_quad.{'xyzw'[lane]}"
        case "one" | "splat":
            return f"{o.name}_one"
        case "number":
            return f"(P.{o.name} != 0u)" if o.dtype is DType.BOOL else f"P.{o.name}"
        case _ if rows:
            return f"{o.name}_at(u32({address(o.name, 'c', rank)} + {lane} * P.{o.name}_s{rank - 1}))"
        case _:
            return f"{o.name}_at(u32({address(o.name, f'c{lane}_', rank)}))"


def decode(prefix: str, number: str, rank: int, *, inner: int = 1) -> list[str]:
    """Return statements that split a flat number into i32 coordinates by the sizes `P.d0` …; the last is multiplied by
    `inner`.
    """
    lines = [f"  var {prefix}r = {number};"]
    for k in reversed(range(1, rank)):
        lines.append(f"  let {prefix}{k} = i32({prefix}r % P.d{k}){_times(k, rank, inner)};")
        lines.append(f"  {prefix}r = {prefix}r / P.d{k};")
    lines.append(f"  let {prefix}0 = i32({prefix}r){_times(0, rank, inner)};")
    return lines


def sizes(rank: int) -> list[tuple[str, str]]:
    """Return the parameters that `decode` needs: the number of elements and the sizes."""
    return u32s("n", *(f"d{k}" for k in range(rank)))


def place(name: str, rank: int, prefix: str = "c") -> str:
    """Return Σ coordinate · stride of an operand."""
    return " + ".join(f"{prefix}{k} * P.{name}_s{k}" for k in range(rank)) or "0"


def param_type(dtype: DType) -> str:
    """Return the type of a number among the parameters, which cannot be bools."""
    return {"bool": "u32"}.get(COMPUTE[dtype], COMPUTE[dtype])


def _times(k: int, rank: int, inner: int) -> str:
    return f" * {inner}" if k == rank - 1 and inner > 1 else ""


def address(name: str, prefix: str, rank: int) -> str:
    """Return the address of an operand's element, from its base and strides."""
    return " + ".join([f"{name}_base", *(f"{prefix}{k} * P.{name}_s{k}" for k in range(rank))])


def _computed(value: str, source: DType, to: DType) -> str:
    """Return an expression for an operand in the type it is computed in; an int converted to 8 bits wraps."""
    converted = convert(value, COMPUTE[source], COMPUTE[to])
    if source in (to, DType.BOOL) or source not in INTS:
        return converted
    return {DType.I8: f"extractBits({converted}, 0u, 8u)", DType.U8: f"({converted} & 255)"}.get(to, converted)


def convert(value: str, source: str, to: str) -> str:
    """Return an expression that converts `value` from compute type `source` to `to`."""
    if source == to:
        return value
    if to == "bool":
        return f"!({value} == {source}(0))"  # naga's `!=` is false for NaN
    return f"{to}({value})"
