"""Distances between rows, by any norm."""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import decode
from .functions import functions
from .wgsl import KernelSpec, Storage, build, u32s

Norm = Literal["0", "1", "2", "inf", "p"]

# The new total for a difference d, and the distance for the last total.
_NORMS: dict[Norm, tuple[str, str]] = {
    "0": ("total + select(1.0, 0.0, d == 0.0)", "total"),
    "1": ("total + d", "total"),
    "2": ("total + d * d", "sqrt(total)"),
    "inf": ("greater(total, d)", "total"),
    "p": ("total + power(d, P.p)", "power(total, 1.0 / P.p)"),
}


@cached(64)
def distance(norm: Norm, a: DType, b: DType, out: DType, rank: int, lanes: int, target: Target) -> KernelSpec:
    """Set output element c to the distance of the rows of `P.width` loads that begin at Σ c·a_s and Σ c·b_s."""
    add, end = _NORMS[norm]
    four = "4" if lanes == 4 else ""
    kind = "vec4<f32>" if lanes == 4 else "f32"
    terms = [f"apart.{x}" for x in "xyzw"] if lanes == 4 else ["apart"]
    at = {n: " + ".join(f"u32(c{k}) * P.{n}_s{k}" for k in range(rank)) or "0u" for n in "ab"}
    lines = ["  let e = group * WG + lid;", "  if (e >= P.n) { return; }", *decode("c", "e", rank)]
    lines += [
        f"  let from_a = {at['a']}; let from_b = {at['b']};",
        "  var total = 0.0;",
        "  for (var j = 0u; j < P.width; j++) {",
        f"    let apart: {kind} = abs(a_at{four}(from_a + j) - b_at{four}(from_b + j));",
        *(f"    {{ let d = {term}; total = {add}; }}" for term in terms),
        "  }",
        f"  y_put(e, {end});",
    ]
    params = u32s("n", "width", *(f"d{k}" for k in range(rank)), *(f"{x}_s{k}" for x in "ab" for k in range(rank)))
    return build(
        "distance",
        "\n".join(lines),
        target=target,
        reads={"a": Storage(a, lanes), "b": Storage(b, lanes)},
        writes={"y": Storage(out)},
        params=[*params, *([("p", "f32")] if norm == "p" else [])],
        helpers=functions(f"{add} {end}"),
    )
