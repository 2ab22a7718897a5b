"""Binary search in sorted sequences."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .concat import chosen
from .elementwise import convert
from .wgsl import COMPUTE, KernelSpec, u32s


@cached(64)
def search(values: DType, sequence: DType, compute: DType, right: bool, sorter: bool, target: Target) -> KernelSpec:
    """Count, for each value `a`, the elements `b` of its sequence that are below it or, with `right`, not above it.

    Each sequence has `P.length` elements and serves `P.count` values; sequences are `P.apart`. A NaN is above all. With
    a `sorter`, `c` holds the positions of the elements in order.
    """
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
