"""Softmax and its logarithm along rows, or along columns that are `P.inner` apart.

Three walks over a row: its largest element, the sum of exponentials, the results. A row that fits the lanes' registers
is loaded once.
"""

from __future__ import annotations

from functools import lru_cache

from ..dtypes import DType
from ..plan.target import Target
from .lanes import MAX, SUM, Lanes, Sweep
from .wgsl import KernelSpec, Storage, build

LOWEST = "-3.4028234663852886e38"  # finite, so that -inf - top is -inf and never NaN


@lru_cache(maxsize=512)
def softmax(
    x: DType,
    out: DType,
    log: bool,
    quads: bool,  # rows of whole quads
    held: int,  # loads each lane keeps in registers; 0: loaded on every walk
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    """Where no element is above -inf, the scale is `P.blank`."""
    four, element = ("4", "vec4<f32>") if quads else ("", "f32")
    at = "base + j * P.inner" if lanes.columns else "base + j"
    base = "(row / P.inner) * P.length * P.inner + row % P.inner" if lanes.columns else "row * P.length"
    sweep = Sweep(lanes, held, f"{element}(x_at{four}({at}))")
    result = "v - top - scale" if log else "exp(v - top) * scale"
    scale = "log(total)" if log else "1.0 / total"
    body = [
        lanes.place(),
        f"  let base = {base};",
        sweep.start(element),
        f"  var high = {element}({LOWEST});",
        sweep.each("high = max(high, v);"),
        lanes.agree("top", "largest(high)", MAX, "tops"),
        f"  var part = {element}();",
        sweep.each("part += exp(v - top);"),
        lanes.agree("total", "across(part)", SUM, "totals"),
        f"  let scale = select({scale}, P.blank, total == 0.0);",
        "  if (live) {",
        sweep.each(f"y_put{four}({at}, {result});"),
        "  }",
    ]
    return build(
        "log_softmax" if log else "softmax",
        "\n".join(body),
        target=target,
        reads={"x": Storage(x, 4 if quads else 1)},
        writes={"y": Storage(out, 4 if quads else 1)},
        params=[("rows", "u32"), ("length", "u32"), ("inner", "u32"), ("blank", "f32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", "tops", "totals"),
        helpers=HELPERS[quads],
        subgroups=lanes.by_subgroup,
    )


HELPERS = {
    True: (
        "fn largest(v: vec4<f32>) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }\n"
        "fn across(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }"
    ),
    False: "fn largest(v: f32) -> f32 { return v; }\nfn across(v: f32) -> f32 { return v; }",
}
