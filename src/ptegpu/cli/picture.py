"""A diagram as SVG, and as an HTML page with panning, zooming and details; self-contained, nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from .analysis import Analysis
from .diagram import Box, Diagram, diagram
from .layout import Layout, Spot, layout

MARGIN, LINE = 24.0, 14.0  # around everything; the height of a line of text
CHAR = 6.7  # width of a character of 11-pixel monospace
MAX_CONSTANTS = 3  # named in a box
MAX_GIVES = 44  # characters on an arrow

KIND_COLOURS = {
    "input": "#1f6feb",
    "output": "#0a7f43",
    "state": "#9a6700",
    "branch": "#57606a",
    "host": "#fb8500",
    "unsupported": "#d1242f",
}
FAMILY_COLOURS = {
    "matmul": "#4c6ef5",
    "elementwise": "#2f9e44",
    "pointwise": "#2f9e44",
    "views": "#adb5bd",
    "symbols": "#ced4da",
    "moves": "#868e96",
    "index": "#868e96",
    "reduce": "#e8590c",
    "softmax": "#ae3ec9",
    "norm": "#0c8599",
    "embedding": "#f59f00",
    "rope": "#c2255c",
}
OTHER_COLOUR = "#74b816"

STYLE = """
text { font: 11px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1f2328 }
.title { font-weight: bold; font-size: 14px }
.box rect { stroke-width: 1.5; fill-opacity: .16 }
.box .name { font-weight: bold }
.box .constant, .gives { fill: #57606a; font-size: 10px }
.end rect { fill-opacity: .9 } .end .name { fill: #fff }
.line { fill: none; stroke: #8c959f; stroke-width: 1.3 }
.box:hover rect { fill-opacity: .4 } .end:hover rect { fill-opacity: 1 }
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
html, body {{ margin: 0; height: 100%; overflow: hidden; background: #fff; font: 13px system-ui, sans-serif }}
svg {{ width: 100vw; height: 100vh; cursor: grab; display: block }}
#details {{ position: fixed; right: 12px; top: 12px; max-width: 34em; padding: 8px 12px; white-space: pre-wrap;
  background: #fffe; border: 1px solid #d0d7de; border-radius: 8px; font: 12px ui-monospace, monospace;
  pointer-events: none }}
#details:empty {{ display: none }}
</style></head><body>
{svg}
<div id="details"></div>
<script>
const svg = document.querySelector("svg"), details = document.getElementById("details");
const full = svg.getAttribute("viewBox").split(" ").map(Number);
let [x, y] = full, scale = Math.min(1.5, Math.max(0.4, innerWidth / full[2])), drag = null;
const show = () => svg.setAttribute("viewBox", `${{x}} ${{y}} ${{innerWidth / scale}} ${{innerHeight / scale}}`);
x -= (innerWidth / scale - full[2]) / 2;
svg.addEventListener("wheel", e => {{
  e.preventDefault();
  if (e.ctrlKey || e.metaKey || !e.deltaX && Math.abs(e.deltaY) >= 50) {{
    const next = Math.min(8, Math.max(0.02, scale * Math.exp(-e.deltaY / 400)));
    x += e.clientX / scale - e.clientX / next; y += e.clientY / scale - e.clientY / next; scale = next;
  }} else {{ x += e.deltaX / scale; y += e.deltaY / scale; }}
  show();
}}, {{ passive: false }});
svg.addEventListener("pointerdown", e => {{ drag = [e.clientX, e.clientY]; svg.setPointerCapture(e.pointerId); }});
svg.addEventListener("pointerup", () => drag = null);
svg.addEventListener("pointermove", e => {{
  if (!drag) return;
  x -= (e.clientX - drag[0]) / scale; y -= (e.clientY - drag[1]) / scale; drag = [e.clientX, e.clientY];
  show();
}});
svg.addEventListener("dblclick", () => {{
  [x, y] = full; scale = Math.min(innerWidth / full[2], innerHeight / full[3]);
  show();
}});
for (const box of svg.querySelectorAll(".box")) {{
  const id = box.dataset.id, lines = svg.querySelectorAll(`[data-from="${{id}}"], [data-to="${{id}}"]`);
  box.addEventListener("pointerenter", () => {{
    details.textContent = box.querySelector("title").textContent;
    for (const line of lines) line.style.cssText = "stroke: #d1242f; stroke-width: 2.2";
  }});
  box.addEventListener("pointerleave", () => {{
    details.textContent = "";
    for (const line of lines) line.style.cssText = "";
  }});
}}
addEventListener("resize", show); show();
</script></body></html>
"""


@dataclass(frozen=True, slots=True)
class Picture:
    title: str
    svg: str


def draw(found: Analysis, title: str) -> Picture:
    """The picture of a method."""
    drawn = diagram(found, title)
    sizes = [_size(box) for box in drawn.boxes]
    placed = layout(sizes, drawn.edges, [k for k, box in enumerate(drawn.boxes) if box.kind == "input"])
    return Picture(drawn.title, _svg(drawn, placed))


def html_page(picture: Picture) -> str:
    """The page: drag to move, wheel to zoom, double click for all of it, hover for details."""
    return PAGE.format(title=escape(picture.title), svg=picture.svg)


def _constant_lines(box: Box) -> list[str]:
    lines = box.constants[:MAX_CONSTANTS]
    rest = len(box.constants) - len(lines)
    return [*lines, *([f"and {rest} more"] if rest else [])]


def _size(box: Box) -> tuple[float, float]:
    lines = _constant_lines(box)
    longest = max([len(box.label) * 1.05, *((len(line) + 2) * 0.92 for line in lines)])
    return longest * CHAR + 20, 12 + LINE * (1 + len(lines))


def _colour(box: Box) -> str:
    return KIND_COLOURS.get(box.kind) or FAMILY_COLOURS.get(box.family, OTHER_COLOUR)


def _svg(drawn: Diagram, placed: Layout) -> str:
    legend = _legend(drawn)
    top = MARGIN + 2 * LINE + 14
    width = max(placed.width, len(drawn.title) * 9, sum(len(name) * CHAR + 34 for name, _ in legend)) + 2 * MARGIN
    shift = (width - placed.width) / 2
    height = placed.height + top + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#8c959f"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN}">{escape(drawn.title)}</text>',
    ]
    x = MARGIN
    for name, colour in legend:
        parts.append(f'<rect x="{x:.1f}" y="{MARGIN + 10}" width="10" height="10" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14:.1f}" y="{MARGIN + 19}">{escape(name)}</text>')
        x += len(name) * CHAR + 34
    parts.append(f'<g transform="translate({shift:.1f} {top:.1f})">')
    parts += _lines(placed)
    parts += [_box(k, box, placed.boxes[k]) for k, box in enumerate(drawn.boxes)]
    parts += [_gives(box, placed.boxes[k]) for k, box in enumerate(drawn.boxes) if box.gives and placed.boxes[k].below]
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _legend(drawn: Diagram) -> list[tuple[str, str]]:
    return list(dict.fromkeys((b.family if b.kind == "operator" else b.kind, _colour(b)) for b in drawn.boxes))


def _lines(placed: Layout) -> list[str]:
    """Curves between neighbouring ranks; arrows arrive at a box side by side, ordered by where they come from."""
    parts = []
    for upper, lower in placed.segments:
        x1, y1, x2, y2 = upper.x, upper.y + upper.height / 2, lower.x, lower.y - lower.height / 2
        if lower.box is not None:
            arriving = sorted(lower.above, key=lambda s: s.x)
            place = next(k for k, s in enumerate(arriving) if s is upper)
            step = min(14.0, lower.width / (len(arriving) + 1))
            x2 += (place - (len(arriving) - 1) / 2) * step
        bend = (y1 + y2) / 2
        path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} {x2:.1f} {y2:.1f}"
        if lower.box is None:
            path += f"V{lower.y + lower.height / 2:.1f}"
        tip = ' marker-end="url(#tip)"' if lower.box is not None else ""
        to = f' data-to="{lower.box}"' if lower.box is not None else ""
        parts.append(f'<path class="line" data-from="{upper.owner}"{to} d="{path}"{tip}/>')
    return parts


def _box(number: int, box: Box, spot: Spot) -> str:
    colour = _colour(box)
    left, top = spot.x - spot.width / 2, spot.y - spot.height / 2
    ends = " end" if box.kind in ("input", "output", "state", "unsupported") else ""
    rounding = 13 if box.kind in ("input", "output") else 5
    title = "\n".join([box.label, *box.details, *([f"carries {box.gives}"] if not box.details and box.gives else [])])
    texts = [f'<text class="name" x="{spot.x:.1f}" y="{top + 17:.1f}" text-anchor="middle">{escape(box.label)}</text>']
    for k, line in enumerate(_constant_lines(box)):
        texts.append(
            f'<text class="constant" x="{left + 10:.1f}" y="{top + 17 + LINE * (k + 1):.1f}">▪ {escape(line)}</text>'
        )
    return (
        f'<g class="box{ends}" data-id="{number}"><title>{escape(title)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{spot.width:.1f}" height="{spot.height:.1f}" rx="{rounding}" '
        f'fill="{colour}" stroke="{colour}"/>{"".join(texts)}</g>'
    )


def _gives(box: Box, spot: Spot) -> str:
    text = box.gives if len(box.gives) <= MAX_GIVES else f"{box.gives[: MAX_GIVES - 1]}…"
    return f'<text class="gives" x="{spot.x + 7:.1f}" y="{spot.y + spot.height / 2 + 13:.1f}">{escape(text)}</text>'
