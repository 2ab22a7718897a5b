"""The choice of a scale and a zero point from the extremes of a row and zero."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import convert
from .lanes import MAX, Agreement, Lanes
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s

MIN = Agreement("min({a}, {b})")

# Statements that declare `scale` and `zero`, both f32, from `low` ≤ 0 ≤ `high`.
RULES = {
    "ASYMMETRIC": (
        "let scale = max((high - low) / (P.last - P.first), P.eps);"
        " let zero = clamp(P.first - round(low / scale), P.first, P.last);"
    ),
    "SYMMETRIC": (
        "let scale = max(max(-low, high) / ((P.last - P.first) * 0.5), P.eps);"
        " let zero = trunc((P.last + P.first + 1.0) * 0.5);"
    ),
    "SYMMETRIC_NO_CLIPPING_ERR": (
        "let scale = max(max(low / P.first, high / P.last), P.eps); let zero = trunc((P.last + P.first + 1.0) * 0.5);"
    ),
    # The end of the range with the smaller rounding error is exact.
    "PER_TOKEN": (
        "let scale = max((high - low) / (P.last - P.first), P.eps);"
        " let below = low / scale; let above = high / scale;"
        " let exact = select(P.last - above, P.first - below, P.first + below + P.last + above > 0.0);"
        " let zero = round(clamp(exact, P.first, P.last));"
    ),
}
PARAMS = [*u32s("rows", "length"), ("first", "f32"), ("last", "f32"), ("eps", "f32")]


def _store(rule: str, scale: DType, zero: DType) -> list[str]:
    return [
        f"    {RULES[rule]}",
        f"    scale_put(row, {convert('scale', 'f32', COMPUTE[scale])});",
        f"    zero_put(row, {convert('zero', 'f32', COMPUTE[zero])});",
    ]


@cached(64)
def choose_qparams(
    rule: str, x: DType, scale: DType, zero: DType, quads: bool, lanes: Lanes, target: Target
) -> KernelSpec:
    """Choose parameters for rows of x [rows, length], in loads of four elements if `quads`."""
    low, high = "v", "v"
    if quads:
        low, high = (f"{f}({f}(v.x, v.y), {f}(v.z, v.w))" for f in ("min", "max"))
    body = [
        lanes.place(),
        "  var lowest = 0.0; var highest = 0.0;",
        f"  for (var i = lane; i < P.length; i += {lanes.count}u) {{",
        f"    let v = x_at{'4' if quads else ''}(row * P.length + i);",
        f"    lowest = min(lowest, {low}); highest = max(highest, {high});",
        "  }",
        lanes.agree("low", "lowest", MIN, "lows"),
        lanes.agree("high", "highest", MAX, "highs"),
        "  if (live && lane == 0u) {",
        *_store(rule, scale, zero),
        "  }",
    ]
    return build(
        "choose_qparams",
        "\n".join(body),
        target=target,
        reads={"x": Storage(x, 4 if quads else 1)},
        writes={"scale": Storage(scale), "zero": Storage(zero)},
        params=PARAMS,
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", "lows", "highs"),
        subgroups=lanes.by_subgroup,
    )


@cached(64)
def qparams_of_extremes(rule: str, scale: DType, zero: DType, target: Target) -> KernelSpec:
    """Choose parameters from the lowest and highest value of each row, in f32."""
    body = [
        "  let row = group * WG + lid;",
        "  if (row < P.rows) {",
        "    let low = min(lowest_at(row), 0.0); let high = max(highest_at(row), 0.0);",
        *_store(rule, scale, zero),
        "  }",
    ]
    reads = {"lowest": Storage(DType.F32), "highest": Storage(DType.F32)}
    writes = {"scale": Storage(scale), "zero": Storage(zero)}
    return build("qparams_of_extremes", "\n".join(body), target=target, reads=reads, writes=writes, params=PARAMS)
