"""One generator for everything that computes each output element from a few input elements.

An invocation makes four consecutive output elements, so that bools, bytes and halves fill whole words. The operator's
body is a scalar WGSL expression (or statements ending in `return`) over `a`, `b`, `c`, …; how each operand is indexed
is its mode:

- "quad": laid out like the output: one aligned load of four;
- "one": a single element for all outputs;
- "strided": offset + Σ coordinate · stride over the collapsed output shape (broadcasts, permutes, slices, flips);
- "symbolic": strided, and a symbolic int times a factor is added to the offset.
"""

from __future__ import annotations

from functools import lru_cache

from ..dtypes import DType
from ..plan.target import Target
from .wgsl import COMPUTE, KernelSpec, Storage, build

NAMES = "abcdefgh"


@lru_cache(maxsize=4096)
def elementwise(
    name: str,
    body: str,
    operands: tuple[tuple[DType, str], ...],  # (dtype, mode) of a, b, c, …
    out: DType,
    rank: int,  # of the collapsed output shape; 0 when no operand is strided
    scalars: tuple[tuple[str, str], ...],  # further parameters: (name, "f32" | "i32" | "u32")
    compute: str | None,  # the type operands are converted to; None: each its own
    target: Target,
) -> KernelSpec:
    workgroup = target.workgroup(256)
    reads = {n: Storage(d, 4 if mode == "quad" else 1) for n, (d, mode) in zip(NAMES, operands, strict=False)}
    params = [("n", "u32")]
    strided = [n for n, (_, mode) in zip(NAMES, operands, strict=False) if mode in ("strided", "symbolic")]
    params += [(f"d{k}", "u32") for k in range(rank)]
    for n, (_, mode) in zip(NAMES, operands, strict=False):
        if n in strided:
            params += [(f"{n}_offset", "i32"), *((f"{n}_s{k}", "i32") for k in range(rank))]
        if mode == "symbolic":
            params += [(f"{n}_sym", "sym"), (f"{n}_factor", "i32")]
    params += scalars

    lines = ["  let q = group * WG + lid;", "  if (q * 4u >= P.n) { return; }"]
    for n, (_, mode) in zip(NAMES, operands, strict=False):
        if mode == "quad":
            lines.append(f"  let {n}_quad = {n}_at4(q);")
        elif mode == "one":
            lines.append(f"  let {n}_one = {n}_at(0u);")
        elif mode == "symbolic":
            lines.append(f"  let {n}_base = P.{n}_offset + sym(P.{n}_sym) * P.{n}_factor;")
        else:
            lines.append(f"  let {n}_base = P.{n}_offset;")
    for lane in range(4):
        if strided:
            lines.append(f"  var r{lane} = min(q * 4u + {lane}u, P.n - 1u);")
            for k in reversed(range(rank)):
                if k:
                    lines.append(f"  let c{lane}_{k} = i32(r{lane} % P.d{k}); r{lane} = r{lane} / P.d{k};")
                else:
                    lines.append(f"  let c{lane}_0 = i32(r{lane});")
        values = []
        for n, (d, mode) in zip(NAMES, operands, strict=False):
            if mode == "quad":
                value = f"{n}_quad.{'xyzw'[lane]}"
            elif mode == "one":
                value = f"{n}_one"
            else:
                terms = [f"{n}_base", *(f"c{lane}_{k} * P.{n}_s{k}" for k in range(rank))]
                value = f"{n}_at(u32({' + '.join(terms)}))"
            own = COMPUTE[d]
            values.append(convert(value, own, compute or own))
        lines.append(f"  let v{lane} = apply({', '.join(values)});")
    lines.append("  y_put4(q, vec4<{}>(v0, v1, v2, v3));".format(COMPUTE[out]))

    arguments = ", ".join(f"{n}: {compute or COMPUTE[d]}" for n, (d, _) in zip(NAMES, operands, strict=False))
    statements = body if "return" in body else f"return {body};"
    return build(
        name,
        "\n".join(lines),
        target=target,
        reads=reads,
        writes={"y": Storage(out, 4)},
        params=params,
        workgroup=workgroup,
        helpers=f"fn apply({arguments}) -> {COMPUTE[out]} {{ {statements} }}",
    )


def convert(value: str, source: str, to: str) -> str:
    """A WGSL expression of compute type `source` as type `to`."""
    if source == to:
        return value
    if to == "bool":
        return f"({value} != {source}(0))"
    return f"{to}({value})"
