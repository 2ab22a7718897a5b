"""The layered layout: what must hold for every graph."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ptegpu.explain.layout import BoxLayout, layout


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]], list[int]]:
    count = draw(st.integers(1, 25))
    size = st.tuples(st.floats(20, 200), st.floats(20, 80))
    pair = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    edges = draw(st.lists(pair, max_size=50)) if count > 1 else []
    return draw(st.lists(size, min_size=count, max_size=count)), edges, draw(st.lists(st.just(0), max_size=1))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_boxes_do_not_overlap_and_arrows_go_down(
    graph: tuple[list[tuple[float, float]], list[tuple[int, int]], list[int]],
) -> None:
    sizes, edges, top = graph
    placed = layout(sizes, edges, top)
    for k, a in enumerate(placed.boxes):
        assert (a.width, a.height) == sizes[k]
        assert -1e-6 <= a.x - a.width / 2 <= a.x + a.width / 2 <= placed.width + 1e-6
        assert -1e-6 <= a.y - a.height / 2 <= a.y + a.height / 2 <= placed.height + 1e-6
        for b in placed.boxes[k + 1 :]:
            apart_x = abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-6
            apart_y = abs(a.y - b.y) >= (a.height + b.height) / 2 - 1e-6
            assert apart_x or apart_y
    for source, target in edges:
        assert _way(placed, source, target)


def _way(placed: BoxLayout, source: int, target: int) -> bool:
    """Return whether a line leads from one box down to the other."""
    spots = [placed.boxes[source]]
    while spots:
        spot = spots.pop()
        for lower in spot.below:
            assert lower.y > spot.y
            if lower.box == target:
                return True
            if lower.box is None:
                spots.append(lower)
    return False


def test_a_chain_is_straight() -> None:
    placed = layout([(80, 26)] * 50, list(pairwise(range(50))), [0])
    assert len({round(spot.x, 3) for spot in placed.boxes}) == 1
    assert len(placed.segments) == 49


def test_lines_of_one_box_are_shared() -> None:
    chain = list(pairwise(range(10)))
    placed = layout([(80, 26)] * 10, [*chain, *((0, k) for k in range(3, 10))], [0])
    points = {id(lower) for _, lower in placed.segments if lower.box is None}
    assert len(points) == 8  # one per rank between the first and the last box
