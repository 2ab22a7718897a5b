"""Normalisation of rows to zero mean and unit variance, or to unit mean square, with scale and shift.

The variance is computed from deviations from the mean, never as a difference of large numbers. Lanes hold their row in
registers, so that it is loaded once. A longer row is split into pieces of `P.piece` loads: one kernel computes the sum
of each piece and the squares of the deviations from its own mean, and a second one combines them and writes the
results. Rows and parameters have one of three layouts:

- "element": rows are contiguous, and their elements have weights and biases (layer norm, RMS norm);
- "channel": rows are contiguous and hold `P.span` channels of `P.inner` loads; `P.sets` rows hold all channels (group
  norm);
- "row": rows are channels, in pieces of `P.inner` loads that are `P.stride` apart (batch norm).
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .lanes import SUM, Lanes, Stage, Sweep, cut_params, cut_place, stage_name
from .wgsl import ACROSS, KernelSpec, Storage, build, u32s

Layout = Literal["element", "channel", "row"]

_PARAMS: dict[Layout, tuple[str, ...]] = {
    "element": (),
    "channel": ("inner", "span", "sets"),
    "row": ("inner", "stride"),
}


@cached(512)
def norm(
    stage: Stage,
    layout: Layout,
    centred: bool,  # the mean is subtracted
    x: DType,
    out: DType,
    weight: DType | None,
    bias: DType | None,
    mean: DType | None,  # the dtype of the rows' means; None: not written
    rstd: DType | None,
    quads: bool,  # loads are aligned quads
    registers: int,  # loads that each lane keeps in registers
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    four, element = ("4", "vec4<f32>") if quads else ("", "f32")
    at = "base + j" if layout != "row" else "base + (j / P.inner) * P.stride + j % P.inner"
    place, begin, end = cut_place(stage, lanes)
    sweep = Sweep(lanes, registers, f"x_at{four}({at})", begin, end)
    result = "(v - mean) * rstd" if centred else "v * rstd"
    if weight:
        result = f"{result} * {_affine('weight', layout, four)}"
    if bias:
        result = f"{result} + {_affine('bias', layout, four)}"
    body = [place, f"  let base = row * {'P.inner' if layout == 'row' else 'P.length'};", sweep.start(element)]
    deviation = "v - mean" if centred else "v"
    if stage == "results":
        each = f"  for (var k = lane; k < P.parts; k += {lanes.count}u) {{ let i = row * P.parts + k;"
        size = _piece_size("k", quads)
        if centred:
            body += [
                "  var sum = 0.0;",
                f"{each} sum += sums_at(i); }}",
                lanes.agree("total", "sum", SUM, "agreed_sums"),
                "  let mean = total / P.count;",
            ]
        apart = f"let n = {size}; let d = sums_at(i) / n - mean; squares += n * d * d; " if centred else ""
        body += [
            "  var squares = 0.0;",
            f"{each} squares += spreads_at(i); {apart}}}",
            lanes.agree("spread", "squares", SUM, "agreed_spreads"),
        ]
    else:
        count = "P.count" if stage == "whole" else _piece_size("part", quads)
        if centred:
            body += [
                f"  var sum = {element}();",
                sweep.each("sum += v;"),
                lanes.agree("total", "across(sum)", SUM, "agreed_sums"),
                f"  let mean = total / max({count}, 1.0);",
            ]
        body += [
            f"  var squares = {element}();",
            sweep.each(f"let d = {deviation}; squares += d * d;"),
            lanes.agree("spread", "across(squares)", SUM, "agreed_spreads"),
        ]
    reads = {"x": Storage(x, 4 if quads else 1)}
    writes: dict[str, Storage] = {}
    numbers = {n: Storage(DType.F32) for n in (["sums"] if centred else []) + ["spreads"]}
    if stage == "statistics":
        total = "sums_put(row * P.parts + part, total); " if centred else ""
        body.append(f"  if (live && lane == 0u) {{ {total}spreads_put(row * P.parts + part, spread); }}")
        writes = numbers
    else:
        body += [
            "  let rstd = inverseSqrt(spread / P.count + P.eps);",
            "  if (live) {",
            sweep.each(f"y_put{four}({at}, {result});"),
            "  }",
        ]
        for name, dtype in (("weight", weight), ("bias", bias)):
            if dtype:
                reads[name] = Storage(dtype, 4 if quads and layout == "element" else 1)
        reads |= numbers if stage == "results" else {}
        writes["y"] = Storage(out, 4 if quads else 1)
        once = "live && lane == 0u" if stage == "whole" else "live && lane == 0u && part == 0u"
        for name, dtype in (("mean", mean), ("rstd", rstd)):
            if dtype:
                body.append(f"  if ({once}) {{ {name}_of_put(row, {name}); }}")
                writes[f"{name}_of"] = Storage(dtype)
    names = u32s("rows", "length", *_PARAMS[layout])
    return build(
        stage_name(f"norm_{layout}" if centred else "rms_norm", stage),
        "\n".join(body),
        target=target,
        reads=reads,
        writes=writes,
        params=[*names, *cut_params(stage), ("count", "f32"), ("eps", "f32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", *(f"agreed_{n}" for n in numbers)),
        helpers=ACROSS[element],
        subgroups=lanes.by_subgroup,
    )


def _piece_size(part: str, quads: bool) -> str:
    return f"f32(min(P.piece, P.length - {part} * P.piece) * {4 if quads else 1}u)"


def _affine(name: str, layout: Layout, four: str) -> str:
    """Return the weight or bias of load `j`, which is within one channel."""
    match layout:
        case "element":
            return f"{name}_at{four}(j)"
        case "channel":
            return f"{name}_at((row % P.sets) * P.span + j / P.inner)"
        case "row":
            return f"{name}_at(row)"
