"""Softmax and its logarithm along rows, or along columns that are `P.inner` apart.

Lanes keep their row in registers: its largest element, the sum of exponentials and the results need one load. A longer
row is cut into pieces of `P.piece` loads: one kernel writes the two numbers of each piece, and a second one combines
them and writes the results.
"""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .lanes import MAX, SUM, Lanes, Stage, Sweep, cut_params, cut_place, stage_name
from .reduce import Quads
from .wgsl import ACROSS, LARGEST, LOWEST, KernelSpec, Storage, build, u32s


@cached(512)
def softmax(
    stage: Stage,
    x: DType,
    out: DType,
    log: bool,
    quads: Quads,
    held: int,  # loads each lane keeps in registers
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    """Normalise rows; if no element is above -inf, the scale is `P.blank`."""
    width = 4 if quads else 1
    four, element = ("4", "vec4<f32>") if quads else ("", "f32")
    abreast = quads == "abreast"
    number, several = ("vec4<f32>", "4") if abreast else ("f32", "")  # of a row
    largest, across = ("high", "sum") if abreast else ("largest(high)", "across(sum)")
    at = "base + j * P.inner" if lanes.columns else "base + j"
    base = "(row / P.inner) * P.length * P.inner + row % P.inner" if lanes.columns else "row * P.length"
    place, begin, end = cut_place(stage, lanes)
    sweep = Sweep(lanes, held, f"{element}(x_at{four}({at}))", begin, end)
    body = [place, f"  let base = {base};", sweep.start(element)]
    if stage == "results":
        piece = "k * P.rows + row" if lanes.columns else "row * P.parts + k"
        each = f"  for (var k = lane; k < P.parts; k += {lanes.count}u) {{ let i = {piece};"
        body += [
            f"  var high = {number}({LOWEST});",
            f"{each} high = max(high, tops_at{several}(i)); }}",
            lanes.agree("top", "high", MAX, "agreed_tops"),
            f"  var sum = {number}();",
            f"{each} sum += totals_at{several}(i) * exp(tops_at{several}(i) - top); }}",
            lanes.agree("total", "sum", SUM, "agreed_totals"),
        ]
    else:
        body += [
            f"  var high = {element}({LOWEST});",
            sweep.each("high = max(high, v);"),
            lanes.agree("top", largest, MAX, "agreed_tops"),
            f"  var sum = {element}();",
            sweep.each("sum += exp(v - top);") if log else sweep.put("exp(v - top)") + "\n" + sweep.each("sum += v;"),
            lanes.agree("total", across, SUM, "agreed_totals"),
        ]
    numbers = {"tops": Storage(DType.F32, 4 if abreast else 1), "totals": Storage(DType.F32, 4 if abreast else 1)}
    reads, writes = {"x": Storage(x, width)}, {"y": Storage(out, width)}
    if stage == "statistics":
        piece = "part * P.rows + row" if lanes.columns else "row * P.parts + part"
        put = f"tops_put{several}({piece}, top); totals_put{several}({piece}, total);"
        body.append(f"  if (live && lane == 0u) {{ {put} }}")
        writes = numbers
    else:
        scale = "log(total)" if log else "1.0 / total"
        result = "v - top - scale" if log else "v * scale" if stage == "whole" else "exp(v - top) * scale"
        body += [
            f"  let scale = select({scale}, {number}(P.blank), total == {number}());",
            "  if (live) {",
            sweep.each(f"y_put{four}({at}, {result});"),
            "  }",
        ]
        reads |= numbers if stage == "results" else {}
    return build(
        stage_name("log_softmax" if log else "softmax", stage),
        "\n".join(body),
        target=target,
        reads=reads,
        writes=writes,
        params=[*u32s("rows", "length", "inner"), *cut_params(stage), ("blank", "f32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared(number, "agreed_tops", "agreed_totals"),
        helpers=f"{LARGEST[element]}\n{ACROSS[element]}",
        subgroups=lanes.by_subgroup,
    )
