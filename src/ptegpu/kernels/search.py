"""Where values belong in sequences that are in order, by bisection."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .concat import chosen
from .elementwise import convert
from .wgsl import COMPUTE, KernelSpec, u32s


@cached(64)
def search(values: DType, sequence: DType, compute: DType, right: bool, sorter: bool, target: Target) -> KernelSpec:
    """For each value `a` how many of the `P.length` elements `b` of its sequence are below it or, with `right`, not
    above it. `P.count` values have one sequence, and sequences are `P.apart`. A NaN is above all; with a `sorter`, `c`
    says where the elements in order are."""
    kind = COMPUTE[compute]
    place = "base + u32(clamp(c_at(base + middle), 0, i32(P.length) - 1))" if sorter else "base + middle"
    above = f"there {'>' if right else '>='} v"
    lines = [
        f"let v = {convert('a_at(i)', COMPUTE[values], kind)};",
        "let base = i / P.count * P.apart;",
        "var low = 0u; var high = P.length;",
        "while (low < high) {",
        "  let middle = (low + high) / 2u;",
        f"  let there = {convert(f'b_at({place})', COMPUTE[sequence], kind)};",
        f"  if ({above}) {{ high = middle; }} else {{ low = middle + 1u; }}",
        "}",
        "return i32(low);",
    ]
    sources = {"a": values, "b": sequence, **({"c": DType.I32} if sorter else {})}
    params = u32s("n", "count", "apart", "length")
    return chosen("search", lines, sources, DType.I32, params, False, target)
