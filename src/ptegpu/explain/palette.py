"""The colours and style sheet of a graph's picture, for light and dark backgrounds; safe for colour-blind readers.

A fill is a tint of the colour, so that text on it keeps its contrast. Boxes other than GPU operators differ in shape.
"""

from __future__ import annotations

from collections.abc import Iterable

Colours = tuple[str, str]  # on a light background, on a dark one

GROUND: Colours = ("#ffffff", "#0d1117")
INK: Colours = ("#1f2328", "#e6edf3")
FAINT: Colours = ("#57606a", "#9ea7b1")
LINE: Colours = ("#8c959f", "#6e7681")
MARKED: Colours = ("#cf222e", "#ff7b72")  # lines of the box under the pointer

# The purpose of a GPU operator, by the module that defines it. A fused node has the colour of the first group listed
# here that one of its parts belongs to.
GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "cache", "rope"),
    "convolution": ("convolution", "q8ta_conv"),
    "product": ("matmul", "linear_q4", "linear_q8", "training"),
    "norm": ("norm", "softmax"),
    "reduction": ("reduce", "pooling", "sample"),
    "lookup": ("embedding", "index"),
    "elementwise": ("elementwise", "pointwise", "quantize", "fill"),
    "moves": ("views", "moves", "concat", "resampling"),
    "size": ("symbols",),
}
OTHER = "other"

COLOURS: dict[str, Colours] = {
    "input": ("#0b5fce", "#58a6ff"),
    "output": ("#116329", "#56d364"),
    "state": ("#8a4b00", "#e3b341"),
    "branch": ("#57606a", "#b1bac4"),
    "host": ("#bc4c00", "#ffa657"),
    "unsupported": ("#cf222e", "#ff7b72"),
    "attention": ("#720679", "#cf2bb8"),
    "convolution": ("#007169", "#2dc590"),
    "product": ("#3f2ec9", "#3e7bff"),
    "norm": ("#a97cd6", "#e593fa"),
    "reduction": ("#c62c01", "#ff890f"),
    "lookup": ("#daa61e", "#ffe459"),
    "elementwise": ("#1e987d", "#74ffe4"),
    "moves": ("#a7b0ba", "#59616c"),
    "size": ("#7d8590", "#9198a1"),
    OTHER: ("#4d2c1d", "#9c702c"),
}
SOLID = ("input", "output", "state", "unsupported")  # filled with their colour, with text in the background's

_SHAPES = """
text { font: 11px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre }
.title { font-size: 14px; font-weight: bold }
.name { font-weight: bold }
.small { font-size: 10px }
.body { fill: currentColor; fill-opacity: .14; stroke: currentColor; stroke-width: 1.4 }
.bar { fill: currentColor }
.solid .body { fill-opacity: 1 }
.host .body { stroke-dasharray: 5 3; stroke-width: 1.8 }
.size .body { fill-opacity: 0; stroke-dasharray: 1.5 2.5 }
.size .bar { fill: none }
.unsupported .body { stroke-width: 3 }
.line { fill: none; stroke-width: 1.3 }
.int { stroke-dasharray: 2 3; stroke-width: 1 }
.box:hover .body { stroke-width: 3 }
"""


def group(families: Iterable[str]) -> str:
    """Return the group of an operator that consists of these families."""
    present = set(families)
    return next((name for name, members in GROUPS.items() if present & set(members)), OTHER)


def style() -> str:
    """Return the style sheet: shapes, colours on a light background, colours on a dark one if that is preferred."""
    return f"{_SHAPES}{_colours(0)}@media (prefers-color-scheme: dark) {{\n{_colours(1)}}}\n"


def _colours(mode: int) -> str:
    rules = [
        f".ground {{ fill: {GROUND[mode]} }}",
        f"text {{ fill: {INK[mode]} }}",
        f".small {{ fill: {FAINT[mode]} }}",
        f".line {{ stroke: {LINE[mode]} }}",
        f".tip {{ fill: {LINE[mode]} }}",
        f".marked {{ stroke: {MARKED[mode]}; stroke-width: 2.2 }}",
        *(f".{name} {{ color: {colours[mode]} }}" for name, colours in COLOURS.items()),
        f".solid text {{ fill: {GROUND[mode]} }}",
    ]
    return "\n".join(rules) + "\n"
