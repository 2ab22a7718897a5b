"""Boxes and arrows in layers from top to bottom, after Sugiyama: ranks, order within a rank, coordinates.

An arrow that crosses ranks passes through a point in each. Arrows out of one box share their points, so a value used
in many places is one line with branches.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

GAP_X = 22.0  # between boxes of a rank
GAP_Y, MAX_GAP_Y = 28.0, 84.0  # between ranks, larger if lines go far to the side
POINT = 10.0  # room for a line between boxes
SWEEPS = 12
STRAIGHT = 8.0  # weight of a straight line relative to a box below another


@dataclass(slots=True)
class Spot:
    """A box, or a point (`box` is None) of a line out of the box `owner`. (x, y) is its centre.

    `top` and `bottom` are the edges of its rank. Lines bend only between ranks, so they cross no box.
    """

    owner: int
    width: float
    height: float
    rank: int
    box: int | None = None
    x: float = 0.0
    y: float = 0.0
    top: float = 0.0
    bottom: float = 0.0
    above: list[Spot] = field(default_factory=list)
    below: list[Spot] = field(default_factory=list)


@dataclass(slots=True)
class BoxLayout:
    boxes: list[Spot]
    segments: list[tuple[Spot, Spot]]  # between neighbouring ranks, from above to below
    width: float
    height: float


def layout(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], top: Sequence[int]) -> BoxLayout:
    """Place boxes of (width, height), with connected parts side by side.

    Edges go from lower to higher numbers; the boxes in `top` stay in the first rank of their part.
    """
    edges = list(dict.fromkeys(edges))
    ranks = _ranks(len(sizes), edges, set(top))
    boxes = [Spot(k, w, h, ranks[k], k) for k, (w, h) in enumerate(sizes)]
    total = BoxLayout(boxes, [], 0.0, 0.0)
    for part in _parts(len(sizes), edges):
        _place([boxes[k] for k in part], [e for e in edges if e[0] in part], boxes, total)
    return total


def _parts(count: int, edges: Sequence[tuple[int, int]]) -> list[dict[int, None]]:
    """Return the boxes of each connected part, by number."""
    part_of: list[dict[int, None]] = [{k: None} for k in range(count)]
    for a, b in edges:
        if part_of[a] is not part_of[b]:
            part_of[a].update(part_of[b])
            for k in list(part_of[b]):
                part_of[k] = part_of[a]
    return list({id(part): part for part in part_of}.values())


def _place(part: list[Spot], edges: Sequence[tuple[int, int]], boxes: list[Spot], total: BoxLayout) -> None:
    """Lay out one part to the right of the earlier ones."""
    first = min(spot.rank for spot in part)
    rows: list[list[Spot]] = [[] for _ in range(max(spot.rank for spot in part) - first + 1)]
    for spot in part:
        spot.rank -= first
        rows[spot.rank].append(spot)
    total.segments += _connect(boxes, edges, rows)
    _order(rows)
    _place_x(rows)
    _straighten(rows)
    total.height = max(total.height, _place_y(rows))
    left = total.width + (2 * GAP_X if total.width else 0.0)
    total.width = left + _shift(rows, left)


def _ranks(count: int, edges: Sequence[tuple[int, int]], top: set[int]) -> list[int]:
    """Return the longest path from a source to each box; sources outside `top` move down to their first use."""
    ranks = [0] * count
    fed = {target for _, target in edges}
    for source, target in sorted(edges, key=lambda e: e[1]):
        ranks[target] = max(ranks[target], ranks[source] + 1)
    users: dict[int, int] = {}
    for source, target in edges:
        users[source] = min(ranks[target], users.get(source, ranks[target]))
    for k, rank in users.items():
        if k not in fed and k not in top:
            ranks[k] = rank - 1
    return ranks


def _connect(boxes: list[Spot], edges: Sequence[tuple[int, int]], rows: list[list[Spot]]) -> list[tuple[Spot, Spot]]:
    segments: list[tuple[Spot, Spot]] = []
    points: dict[tuple[int, int], Spot] = {}  # by (box, rank)

    def link(a: Spot, b: Spot) -> None:
        a.below.append(b)
        b.above.append(a)
        segments.append((a, b))

    for source, target in edges:
        last = boxes[source]
        for rank in range(boxes[source].rank + 1, boxes[target].rank):
            if (source, rank) not in points:
                points[source, rank] = Spot(source, POINT, 0.0, rank)
                rows[rank].append(points[source, rank])
                link(last, points[source, rank])
            last = points[source, rank]
        link(last, boxes[target])
    return segments


def _order(rows: list[list[Spot]]) -> None:
    """Sort each rank by the mean place of its neighbours, down and up; use the order with the fewest crossings."""
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _sort(row, rows, (lambda s: s.above) if down else (lambda s: s.below))
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
        if fewest == 0:
            break
    for row, order in zip(rows, best):
        row[:] = order


def _sort(row: list[Spot], rows: list[list[Spot]], neighbours: Callable[[Spot], list[Spot]]) -> None:
    ranks = {s.rank for spot in row for s in neighbours(spot)}
    places = {id(s): k for rank in ranks for k, s in enumerate(rows[rank])}
    keys = {}
    for k, spot in enumerate(row):
        around = [places[id(s)] for s in neighbours(spot)]
        keys[id(spot)] = sum(around) / len(around) if around else float(k)
    row.sort(key=lambda s: keys[id(s)])


def _crossings(rows: list[list[Spot]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        place = {id(s): k for k, s in enumerate(lower)}
        earlier_ends: list[int] = []
        for spot in upper:
            ends = sorted(place[id(s)] for s in spot.below)
            total += sum(len(earlier_ends) - bisect_right(earlier_ends, end) for end in ends)
            for end in ends:
                insort(earlier_ends, end)
    return total


def _place_x(rows: list[list[Spot]]) -> None:
    """Move each spot towards its neighbours above and below, lines more strongly than boxes."""
    for row in rows:
        x = 0.0
        for spot in row:
            spot.x = x + spot.width / 2
            x += spot.width + GAP_X
    for sweep in range(4 * SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _settle(row, [_wish(spot) for spot in row])


def _wish(spot: Spot) -> float:
    total = weights = 0.0
    for other in (*spot.above, *spot.below):
        weight = STRAIGHT if spot.box is None and other.box is None else 1.0
        total += weight * other.x
        weights += weight
    return total / weights if weights else spot.x


def _settle(row: list[Spot], wishes: Sequence[float]) -> None:
    """Place spots nearest to their wishes (least squares), keeping order and distance: pool adjacent violators."""
    blocks: list[list[float]] = []  # [sum of weight × wish, weight, spots]
    offsets, offset = [], 0.0
    for k, spot in enumerate(row):
        if k:
            offset += (row[k - 1].width + spot.width) / 2 + GAP_X
        offsets.append(offset)
        weight = STRAIGHT if spot.box is None else 1.0
        blocks.append([weight * (wishes[k] - offset), weight, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            tail = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], tail)]
    k = 0
    for total, weight, count in blocks:
        for _ in range(int(count)):
            row[k].x = total / weight + offsets[k]
            k += 1


def _straighten(rows: list[list[Spot]]) -> None:
    """Align the boxes of a chain, then the points of a line, as far as a common x is free."""
    chains: dict[int, list[tuple[Spot, list[Spot], int]]] = {}  # by owner: (spot, its row, its place)
    lines: dict[int, list[tuple[Spot, list[Spot], int]]] = {}
    chain_of: dict[int, int] = {}  # of a box, by the first one's number
    for row in rows:
        for k, spot in enumerate(row):
            if spot.box is None:
                lines.setdefault(spot.owner, []).append((spot, row, k))
                continue
            before = spot.above[0] if len(spot.above) == 1 and len(spot.above[0].below) == 1 else spot
            first = chain_of[spot.box] = chain_of.get(before.owner if before.box is not None else spot.box, spot.box)
            chains.setdefault(first, []).append((spot, row, k))
    for spots in (*chains.values(), *lines.values()):
        run: list[Spot] = []
        low, high = -math.inf, math.inf
        for spot, row, k in spots:
            left = row[k - 1].x + (row[k - 1].width + spot.width) / 2 + GAP_X if k else -math.inf
            right = row[k + 1].x - (row[k + 1].width + spot.width) / 2 - GAP_X if k + 1 < len(row) else math.inf
            if max(low, left) > min(high, right):
                _align(run, low, high)
                run, low, high = [], -math.inf, math.inf
            run.append(spot)
            low, high = max(low, left), min(high, right)
        _align(run, low, high)


def _align(run: Sequence[Spot], low: float, high: float) -> None:
    if run and low <= high:
        x = min(max(median(s.x for s in run), low), high)
        for spot in run:
            spot.x = x


def _place_y(rows: list[list[Spot]]) -> float:
    y = 0.0
    for row in rows:
        tallest = max(s.height for s in row)
        for spot in row:
            spot.y, spot.top, spot.bottom = y + tallest / 2, y, y + tallest
            if spot.box is None:
                spot.height = tallest
        farthest = max((abs(spot.x - lower.x) for spot in row for lower in spot.below), default=0.0)
        gap = min(GAP_Y + farthest / 8, MAX_GAP_Y)
        y += tallest + gap
    return y - gap


def _shift(rows: list[list[Spot]], left: float) -> float:
    """Move everything to the right of `left` and return the width."""
    spots = [s for row in rows for s in row]
    start = min(s.x - s.width / 2 for s in spots)
    for spot in spots:
        spot.x += left - start
    return max(s.x + s.width / 2 for s in spots) - left
