"""Images read at computed coordinates: upsampling, padding with pixels of the image, and sampling on a grid."""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .concat import chosen
from .elementwise import decode
from .wgsl import KernelSpec, u32s

Axis = Literal["plain", "nearest", "reflect", "replicate"]
Interpolation = Literal["bilinear", "nearest", "bicubic"]
Padding = Literal["zeros", "border", "reflection"]

# The coordinate in the input, of size `P.size`, for coordinate c of the output.
_SOURCE: dict[Axis, str] = {
    "plain": "c{k}",
    "nearest": "min(i32(f32(c{k}) * P.scale{k}), P.size{k} - 1)",
    "reflect": "P.size{k} - 1 - abs(P.size{k} - 1 - abs(c{k} - P.low{k}))",
    "replicate": "clamp(c{k} - P.low{k}, 0, P.size{k} - 1)",
}
_SOURCE_PARAMS: dict[Axis, list[tuple[str, str]]] = {
    "plain": [],
    "nearest": [("scale", "f32")],
    "reflect": [("low", "i32")],
    "replicate": [("low", "i32")],
}


@cached(256)
def mapped(dtype: DType, axes: tuple[Axis, ...], target: Target) -> KernelSpec:
    """Copy an element of the input, found axis by axis, to each element of an output of sizes `P.d`."""
    rank = len(axes)
    params = u32s("n")
    at = ""
    for k, axis in enumerate(axes):
        params += [(f"d{k}", "u32"), (f"size{k}", "i32"), *((f"{n}{k}", t) for n, t in _SOURCE_PARAMS[axis])]
        source = _SOURCE[axis].format(k=k)
        at = f"({at}) * P.size{k} + {source}" if at else source
    lines = [*decode("c", "i", rank), f"  return a_at(u32({at}));"]
    return chosen("resample", lines, {"a": dtype}, dtype, params, False, target)


@cached(64)
def bilinear(dtype: DType, align_corners: bool, target: Target) -> KernelSpec:
    """Stretch planes of `P.height` × `P.width` to `P.rows` × `P.columns`, `P.down` and `P.right` pixels per step."""
    lines = ["let column = i % P.columns; let row = i / P.columns % P.rows;"]
    lines.append("let plane = i / P.columns / P.rows * P.height;")
    for c, step, size in (("row", "down", "height"), ("column", "right", "width")):
        source = f"f32({c}) * P.{step}" if align_corners else f"max((f32({c}) + 0.5) * P.{step} - 0.5, 0.0)"
        lines += [
            f"let {step} = {source};",
            f"let {step}0 = min(u32({step}), P.{size} - 1u); let {step}1 = min({step}0 + 1u, P.{size} - 1u);",
            f"let {step}_weight = clamp({step} - f32({step}0), 0.0, 1.0);",
        ]
    for k in range(2):
        lines.append(f"let base{k} = (plane + down{k}) * P.width;")
        lines.append(f"let row{k} = mix(a_at(base{k} + right0), a_at(base{k} + right1), right_weight);")
    lines.append("return mix(row0, row1, down_weight);")
    params = [*u32s("n", "rows", "columns", "height", "width"), ("down", "f32"), ("right", "f32")]
    return chosen("bilinear", lines, {"a": dtype}, dtype, params, False, target)


@cached(128)
def grid_sample(
    x: DType, grid: DType, interpolation: Interpolation, padding: Padding, align_corners: bool, target: Target
) -> KernelSpec:
    """Sample `a` at the coordinates in `b` of each of `P.positions`: (x, y) from -1 to 1 across the image."""
    lines = [
        "let plane = i / P.positions;",
        "let at = (plane / P.channels * P.positions + i % P.positions) * 2u;",
        "let column = place(b_at(at), P.width); let row = place(b_at(at + 1u), P.height);",
    ]
    lines += {"bilinear": _BILINEAR, "nearest": _NEAREST, "bicubic": _bicubic()}[interpolation]
    place = "(v + 1.0) * 0.5 * f32(size - 1)" if align_corners else "((v + 1.0) * f32(size) - 1.0) * 0.5"
    helpers = [
        f"fn place(v: f32, size: i32) -> f32 {{ return {place}; }}",
        f"fn settled(v: f32, size: i32) -> f32 {{ {_SETTLED[padding].format(**_REFLECTION[align_corners])} }}",
        _PIXEL,
        *([_CUBIC] if interpolation == "bicubic" else []),
    ]
    params = [*u32s("n", "positions", "channels"), ("height", "i32"), ("width", "i32")]
    return chosen("grid_sample", lines, {"a": x, "b": grid}, x, params, False, target, "\n".join(helpers))


# A coordinate outside the image moved inside, except if the padding is zeros.
_SETTLED: dict[Padding, str] = {
    "zeros": "return v;",
    "border": "return clamp(v, 0.0, f32(size - 1));",
    "reflection": "let span = {span}; if (span == 0.0) {{ return 0.0; }} let t = abs(v - {low}); "
    "let flips = floor(t / span); let over = t - flips * span; let odd = flips - 2.0 * floor(flips * 0.5) == 1.0; "
    "return clamp(select(over, span - over, odd) + {low}, 0.0, f32(size - 1));",
}
_REFLECTION = {True: {"low": "0.0", "span": "f32(size - 1)"}, False: {"low": "(-0.5)", "span": "f32(size)"}}
_PIXEL = """fn pixel(plane: u32, row: i32, column: i32) -> f32 {
  if (row < 0 || row >= P.height || column < 0 || column >= P.width) { return 0.0; }
  return a_at((plane * u32(P.height) + u32(row)) * u32(P.width) + u32(column));
}"""
_NEAREST = ["return pixel(plane, i32(round(settled(row, P.height))), i32(round(settled(column, P.width))));"]
_BILINEAR = [
    "let y = settled(row, P.height); let x = settled(column, P.width);",
    "let top = floor(y); let left = floor(x);",
    "let r = i32(top); let c = i32(left);",
    "let upper = mix(pixel(plane, r, c), pixel(plane, r, c + 1), x - left);",
    "let lower = mix(pixel(plane, r + 1, c), pixel(plane, r + 1, c + 1), x - left);",
    "return mix(upper, lower, y - top);",
]
# Weights of the neighbours at distance 1 + t, t, 1 - t and 2 - t.
_CUBIC = """fn near(d: f32) -> f32 { return (1.25 * d - 2.25) * d * d + 1.0; }
fn far(d: f32) -> f32 { return -0.75 * (((d - 5.0) * d + 8.0) * d - 4.0); }
fn cubic(t: f32) -> vec4<f32> { return vec4<f32>(far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)); }"""


def _bicubic() -> list[str]:
    lines = [
        "let top = floor(row); let left = floor(column);",
        "let down = cubic(row - top); let right = cubic(column - left);",
        *(f"let r{k} = i32(settled(top + {k - 1}.0, P.height));" for k in range(4)),
        *(f"let c{k} = i32(settled(left + {k - 1}.0, P.width));" for k in range(4)),
    ]
    for k in range(4):
        pixels = ", ".join(f"pixel(plane, r{k}, c{j})" for j in range(4))
        lines.append(f"let row{k} = dot(vec4<f32>({pixels}), right);")
    return [*lines, "return dot(vec4<f32>(row0, row1, row2, row3), down);"]
