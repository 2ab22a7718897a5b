"""A diagram as SVG, and as a self-contained HTML page with panning, zooming and details.

All text is inside boxes that do not overlap. Text too long for a box is cut there and complete in the box's title.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from rich.cells import cell_len, set_cell_size

from ..printing import shown
from .diagram import Box, Diagram
from .layout import BoxLayout, Spot, layout
from .page import PAGE
from .palette import SOLID, style

MARGIN, LINE = 24.0, 14.0  # around everything; the height of a line of text
EM = 0.62  # the widest advance of the monospace fonts of the style sheet
NAME, SMALL, TITLE = 11 * EM, 10 * EM, 14 * EM  # width of a character
PAD = 12.0  # left and right of the text in a box
MAX_LABEL, MAX_LINE, MAX_TITLE = 48, 44, 90  # characters
MAX_CONSTANTS = 3  # named in a box
MIN_WIDTH = 420.0
SWATCH = 18.0
TIP = 9.0  # length of an arrow's tip


@dataclass(frozen=True, slots=True)
class BoxText:
    """The text of a box: its name and the lines below it, which determine its size."""

    name: str
    lines: tuple[str, ...]

    @property
    def size(self) -> tuple[float, float]:
        widest = max([cell_len(self.name) * NAME, *(cell_len(line) * SMALL for line in self.lines)])
        return widest + 2 * PAD, 12 + LINE * (1 + len(self.lines))


def svg_of(drawn: Diagram) -> str:
    """Draw a diagram."""
    texts = [box_text(box) for box in drawn.boxes]
    top = [k for k, box in enumerate(drawn.boxes) if box.kind == "input"]
    placed = layout([c.size for c in texts], drawn.edges, top)
    return _svg(drawn, texts, placed)


def html_page(drawn: Diagram) -> str:
    """Draw a diagram in a page."""
    return PAGE.format(title=_xml(drawn.title), svg=svg_of(drawn))


def box_text(box: Box) -> BoxText:
    """Return the text of a box: its name, its first constants and its results."""
    rest = len(box.constants) - MAX_CONSTANTS
    lines = [*box.constants[:MAX_CONSTANTS], *([f"and {rest} more"] if rest > 0 else [])]
    lines += (
        [f"→ {box.value_text}" if box.kind not in ("input", "output", "state") else box.value_text]
        if box.value_text
        else []
    )
    return BoxText(_short(box.label, MAX_LABEL), tuple(_short(line, MAX_LINE) for line in lines))


def _short(text: str, most: int) -> str:
    """Cut a line to `most` columns, without characters that move or hide other text."""
    line = shown(text)
    return line if cell_len(line) <= most else set_cell_size(line, most - 1).rstrip() + "…"


def _xml(*lines: str) -> str:
    return escape("\n".join(map(shown, lines)))


def _svg(drawn: Diagram, texts: list[BoxText], placed: BoxLayout) -> str:
    title = _short(drawn.title, MAX_TITLE)
    width = max(placed.width, cell_len(title) * TITLE, MIN_WIDTH) + 2 * MARGIN
    legend, top = _legend(drawn, width)
    height = placed.height + top + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}">',
        f"<title>{_xml(drawn.title)}</title>",
        f"<style>{style()}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + 4}">{escape(title)}</text>',
        *legend,
        f'<g transform="translate({(width - placed.width) / 2:.1f} {top:.1f})">',
        *_lines(drawn, placed),
        *(_box(k, box, texts[k], placed.boxes[k]) for k, box in enumerate(drawn.boxes)),
    ]
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _legend(drawn: Diagram, width: float) -> tuple[list[str], float]:
    """Return an entry for each colour of the picture, in rows, and the y at which the rows end."""
    parts = []
    x, y = MARGIN, MARGIN + 16
    for name, kind in dict.fromkeys((_class(box), box.kind) for box in drawn.boxes):
        step = SWATCH + 6 + len(name) * NAME + 16
        if x + step > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + LINE + 4
        parts.append(
            f'<g class="legend {_classes(name, kind)}">{_shape(kind, x, y, SWATCH, 11)}</g>'
            f'<text class="entry" x="{x + SWATCH + 6:.1f}" y="{y + 9.5:.1f}">{name}</text>'
        )
        x += step
    return parts, y + LINE + 18


def _class(box: Box) -> str:
    return box.group if box.kind == "operator" else box.kind


def _classes(name: str, kind: str) -> str:
    return f"{name} solid" if kind in SOLID else name


def _lines(drawn: Diagram, placed: BoxLayout) -> list[str]:
    """Return curves between neighbouring ranks; arrows reach a box side by side, ordered by their origin."""
    parts = []
    for upper, lower in placed.segments:
        x1, x2 = upper.x, lower.x
        if lower.box is not None:
            arriving = sorted(lower.above, key=lambda s: s.x)
            place = next(k for k, s in enumerate(arriving) if s is upper)
            step = min(14.0, lower.width / (len(arriving) + 1))
            x2 += (place - (len(arriving) - 1) / 2) * step
        end = lower.top - (TIP if lower.box is not None else 0)  # a tip points straight down
        bend = (upper.bottom + end) / 2
        path = (
            f"M{x1:.1f} {upper.y + upper.height / 2:.1f}V{upper.bottom:.1f}"
            f"C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} {x2:.1f} {end:.1f}"
        )
        path += f"V{lower.bottom:.1f}" if lower.box is None else f"V{lower.y - lower.height / 2:.1f}"
        tip = f' data-to="{lower.box}" marker-end="url(#tip)"' if lower.box is not None else ""
        ints = " int" if drawn.boxes[upper.owner].ints else ""
        parts.append(f'<path class="line{ints}" data-from="{upper.owner}"{tip} d="{path}"/>')
    return parts


def _shape(kind: str, left: float, top: float, width: float, height: float) -> str:
    """Return the outline of a box; inputs and outputs are round, branches pointed, operators have a bar."""
    if kind == "branch":
        right, middle, corner = left + width, top + height / 2, min(8.0, width / 4)
        points = f"{left:.1f} {middle:.1f} {left + corner:.1f} {top:.1f} {right - corner:.1f} {top:.1f} "
        points += f"{right:.1f} {middle:.1f} {right - corner:.1f} {top + height:.1f} {left + corner:.1f} "
        return f'<polygon class="body" points="{points}{top + height:.1f}"/>'
    radius = min(13.0, height / 2) if kind in ("input", "output") else 3
    at = f'x="{left:.1f}" y="{top:.1f}"'
    body = f'<rect class="body" {at} width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"/>'
    return f'{body}<rect class="bar" {at} width="5" height="{height:.1f}" rx="2"/>' if kind == "operator" else body


def _box(number: int, box: Box, drawn: BoxText, spot: Spot) -> str:
    left, top = spot.x - spot.width / 2, spot.y - spot.height / 2
    title = [box.label, *box.details, *([box.value_text] if box.kind not in ("operator", "host") else [])]
    texts = [f'<text class="name" x="{spot.x:.1f}" y="{top + 17:.1f}" text-anchor="middle">{escape(drawn.name)}</text>']
    for k, line in enumerate(drawn.lines):
        y = top + 17 + LINE * (k + 1)
        texts.append(f'<text class="small" x="{spot.x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>')
    return (
        f'<g class="box {_classes(_class(box), box.kind)}" data-id="{number}"><title>{_xml(*title)}</title>'
        f"{_shape(box.kind, left, top, spot.width, spot.height)}{''.join(texts)}</g>"
    )
