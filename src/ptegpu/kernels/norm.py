"""Rows brought to zero mean and unit variance, or to unit mean square, then scaled and shifted.

The variance is that of the deviations from the mean, a second walk, never a difference of large numbers. A row that
fits the lanes' registers is loaded once. Rows and parameters are laid out in one of three ways:

- "element": rows are contiguous, and each of their elements has its weight and bias (layer norm, RMS norm);
- "channel": rows are contiguous and hold `P.span` channels of `P.inner` loads; `P.sets` rows hold all (group norm);
- "row": rows are the channels, in pieces of `P.inner` loads that are `P.stride` apart (batch norm).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from .lanes import SUM, Lanes, Sweep
from .wgsl import KernelSpec, Storage, build

Layout = Literal["element", "channel", "row"]

_PARAMS: dict[Layout, tuple[str, ...]] = {
    "element": (),
    "channel": ("inner", "span", "sets"),
    "row": ("inner", "stride"),
}
_ACROSS = {
    "f32": "fn across(v: f32) -> f32 { return v; }",
    "vec4<f32>": "fn across(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }",
}


@lru_cache(maxsize=512)
def norm(
    layout: Layout,
    centred: bool,  # the mean is subtracted
    x: DType,
    out: DType,
    weight: DType | None,
    bias: DType | None,
    mean: DType | None,  # what the mean of each row is written as, if at all
    rstd: DType | None,
    quads: bool,  # all walks are by aligned quads
    held: int,  # loads each lane keeps in registers; 0: loaded on every walk
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    four, element = ("4", "vec4<f32>") if quads else ("", "f32")
    at = "base + j" if layout != "row" else "base + (j / P.inner) * P.stride + j % P.inner"
    sweep = Sweep(lanes, held, f"x_at{four}({at})")
    result = "(v - mean) * rstd" if centred else "v * rstd"
    if weight:
        result = f"{result} * {_affine('weight', layout, four)}"
    if bias:
        result = f"{result} + {_affine('bias', layout, four)}"
    body = [lanes.place(), f"  let base = row * {'P.inner' if layout == 'row' else 'P.length'};", sweep.start(element)]
    if centred:
        body += [
            f"  var sum = {element}();",
            sweep.each("sum += v;"),
            lanes.agree("total", "across(sum)", SUM, "sums"),
            "  let mean = total / max(P.count, 1.0);",
        ]
    deviation = "v - mean" if centred else "v"
    body += [
        f"  var squares = {element}();",
        sweep.each(f"let d = {deviation}; squares += d * d;"),
        lanes.agree("spread", "across(squares)", SUM, "spreads"),
        "  let rstd = inverseSqrt(spread / P.count + P.eps);",
        "  if (live) {",
        sweep.each(f"y_put{four}({at}, {result});"),
        "  }",
    ]
    writes = {"y": Storage(out, 4 if quads else 1)}
    for name, dtype in (("mean", mean), ("rstd", rstd)):
        if dtype:
            body.append(f"  if (live && lane == 0u) {{ {name}_of_put(row, {name}); }}")
            writes[f"{name}_of"] = Storage(dtype)
    reads = {"x": Storage(x, 4 if quads else 1)}
    for name, dtype in (("weight", weight), ("bias", bias)):
        if dtype:
            reads[name] = Storage(dtype, 4 if quads and layout == "element" else 1)
    names = ("rows", "length", *_PARAMS[layout])
    return build(
        f"norm_{layout}" if centred else "rms_norm",
        "\n".join(body),
        target=target,
        reads=reads,
        writes=writes,
        params=[*((n, "u32") for n in names), ("count", "f32"), ("eps", "f32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", *(["sums"] if centred else []), "spreads"),
        helpers=_ACROSS[element],
        subgroups=lanes.by_subgroup,
    )


def _affine(name: str, layout: Layout, four: str) -> str:
    """The weight or bias of load `j`; a load lies in one channel."""
    match layout:
        case "element":
            return f"{name}_at{four}(j)"
        case "channel":
            return f"{name}_at((row % P.sets) * P.span + j / P.inner)"
        case "row":
            return f"{name}_at(row)"
