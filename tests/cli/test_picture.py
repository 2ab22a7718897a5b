"""Pictures of graphs: right names, text that never overlaps, colours that everyone can tell apart, XML for any name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from unicodedata import east_asian_width
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.cli.conftest import DATA, Invoke

from ptegpu.explain.diagram import Box, Diagram, short_name
from ptegpu.explain.palette import COLOURS, FAINT, GROUND, GROUPS, INK, OTHER, SOLID, group, style
from ptegpu.explain.picture import MAX_LABEL, html_page, svg_of
from ptegpu.printing import LONGEST

DEMO = DATA.parent.parent / "src" / "ptegpu" / "demo"
SVG = "{http://www.w3.org/2000/svg}"
SIZES = {"title": 14.0, "small": 10.0}  # of fonts, by class; else 11

HOSTILE = [
    "a\x00b\x1b[31mred\x07\x7f\x85",
    "\u202eevil\u2066\u200e\u2069",
    "<script>alert('1')</script>&amp;\"'",
    "]]><!-- -->",
    "\ud800 and \udfff",
    "\ufffe\uffff\u2028\u2029",
    "漢字" * 40,
    "🙂" * 40,
    "x" * 10_000,
    "two\nlines\tand\ra tab",
    "aten..default",
    "",
]


@dataclass(frozen=True)
class Written:
    """A text of a picture with the room that it takes, by the metrics of a wide monospace font."""

    text: str
    left: float
    right: float
    top: float
    bottom: float


def texts(svg: str) -> list[Written]:
    root = ElementTree.fromstring(svg)
    inner = root.find(f"{SVG}g[@transform]")
    assert inner is not None
    dx, dy = map(float, re.findall(r"[-\d.]+", inner.get("transform", "")))
    moved = {id(e) for e in inner.iter(f"{SVG}text")}
    return [_written(e, *((dx, dy) if id(e) in moved else (0.0, 0.0))) for e in root.iter(f"{SVG}text")]


def _written(e: ElementTree.Element, dx: float, dy: float) -> Written:
    text, size = e.text or "", SIZES.get(e.get("class", ""), 11.0)
    width = sum(2 if east_asian_width(c) in "WF" else 1 for c in text) * size * 0.61
    x, y = float(e.get("x", 0)) + dx, float(e.get("y", 0)) + dy
    left = x - width / 2 if e.get("text-anchor") == "middle" else x
    return Written(text, left, left + width, y - 0.8 * size, y + 0.22 * size)


def check(svg: str) -> None:
    """No text touches another, or leaves the picture, or its box."""
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox", "").split())
    boxes = sorted(texts(svg), key=lambda t: t.top)
    for k, a in enumerate(boxes):
        assert 0 <= a.left <= a.right <= width and 0 <= a.top <= a.bottom <= height, a
        for b in boxes[k + 1 :]:
            if b.top >= a.bottom:
                break
            assert a.right <= b.left or b.right <= a.left, (a, b)
    for box in root.iter(f"{SVG}g"):
        if "box" in box.get("class", "").split():
            left, top, right, bottom = _extent(box)
            for e in box.iter(f"{SVG}text"):
                t = _written(e, 0, 0)
                assert left <= t.left <= t.right <= right and top <= t.top <= t.bottom <= bottom, t


def _extent(box: ElementTree.Element) -> tuple[float, float, float, float]:
    body = next(e for e in box if e.get("class") == "body")
    if points := body.get("points"):
        numbers = list(map(float, points.split()))
        return min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2])
    x, y, w, h = (float(body.get(name, 0)) for name in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def made_up(count: int, seed: int, names: list[str] | None = None) -> Diagram:
    """A graph as models have them: mostly a chain, with branches, long ways around, constants and states."""
    rng = random.Random(seed)
    labels = names or ["mm", "view_copy", "rms_norm + linear_q4gsw ×3", "sdpa_with_kv_cache", "if"]
    boxes = [Box("input", "input 0", value_text="1×256 i64")]
    edges = []
    for k in range(1, count):
        kind = rng.choices(["operator", "state", "host", "branch", "unsupported"], [20, 1, 2, 1, 1])[0]
        shown = rng.choice([*GROUPS, OTHER]) if kind == "operator" else ""
        constants = [f"weight {rng.randint(1, 4096)}×64 f32"] * rng.randint(0, 5)
        boxes.append(Box(kind, rng.choice(labels), shown, [], constants, "1×2×3 f32"))  # type: ignore[arg-type]
        if kind != "state":
            sources = {max(0, k - 1 - int(rng.expovariate(0.6))) for _ in range(rng.randint(1, 3))}
            edges += [(source, k) for source in sources]
    boxes.append(Box("output", "output 0", value_text="1×2×3 f32"))
    return Diagram("made up", boxes, [*edges, (count - 1, count)])


@pytest.mark.parametrize("count", [5, 17, 60, 150, 300])
def test_text_never_overlaps(count: int) -> None:
    for seed in range(3):
        check(svg_of(made_up(count, seed)))


@pytest.mark.parametrize("name", ["mlp", "cnn", "dynamic", "control", "methods", "tales", "digits"])
def test_text_never_overlaps_in_real_programs(invoke: Invoke, tmp_path: Path, name: str) -> None:
    file = next(p for p in (DATA / f"{name}.pte", DEMO / f"{name}.pte") if p.exists())
    assert invoke("inspect", file, "--graph", tmp_path / "graph.svg").code == 0
    check((tmp_path / "graph.svg").read_text("utf-8"))


def curves(svg: str) -> Iterator[list[tuple[float, float]]]:
    """Each line as points."""
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "line" in path.get("class", "").split():
            n = list(map(float, re.findall(r"-?[\d.]+", path.get("d", ""))))
            (x1, y0, y1, _, bend, x2, _, _, y2, y3), steps = n, [k / 20 for k in range(21)]
            points = [((1 - t) ** 2 * (1 + 2 * t) * x1 + t * t * (3 - 2 * t) * x2, _y(t, y1, bend, y2)) for t in steps]
            yield [(x1, y0), *points, (x2, y3)]


def _y(t: float, y1: float, bend: float, y2: float) -> float:
    return (1 - t) ** 3 * y1 + 3 * (1 - t) ** 2 * t * bend + 3 * (1 - t) * t * t * bend + t**3 * y2


@pytest.mark.parametrize("seed", range(3))
def test_lines_cross_no_box(seed: int) -> None:
    svg = svg_of(made_up(80, seed))
    boxes = [e for e in ElementTree.fromstring(svg).iter(f"{SVG}g") if "box" in e.get("class", "").split()]
    extents = [_extent(box) for box in boxes]
    assert len(extents) == 81
    for points in curves(svg):
        for x, y in points:
            assert not any(l + 0.2 < x < r - 0.2 and t + 0.2 < y < b - 0.2 for l, t, r, b in extents), (x, y)


def test_any_name_is_well_formed() -> None:
    diagram = made_up(40, 1, HOSTILE)
    for k, name in enumerate(HOSTILE):
        diagram.boxes[k + 1].label = name
        diagram.boxes[k + 1].details.append(name)
        diagram.boxes[k + 1].constants = [name]
        diagram.boxes[k + 1].value_text = name
    diagram.title = "".join(HOSTILE)
    svg = svg_of(diagram)
    check(svg)
    svg.encode("utf-8")
    html_page(diagram).encode("utf-8")
    names = [e.text or "" for e in ElementTree.fromstring(svg).iter(f"{SVG}text") if e.get("class") == "name"]
    assert names[1] == r"a\x00b\x1b[31mred\x07\x7f\x85"
    assert names[2] == r"\u202eevil\u2066\u200e\u2069"
    assert names[3] == HOSTILE[2]
    assert names[5] == r"\ud800 and \udfff"
    assert names[9] == "x" * (MAX_LABEL - 1) + "…"
    assert names[10] == r"two\nlines\tand\ra tab"
    titles = [e.text or "" for e in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    first, *_ = titles[10].split("\n")  # the first title is the picture's
    assert LONGEST == len(first) and first.startswith("x" * 1000)


def test_hostile_names_of_a_file(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file, svg = tmp_path / "\udcff\x1b<&.pte", tmp_path / "graph.svg"
    file.write_bytes(mlp.read_bytes().replace(b"aten.linear.default", b"aten.\x1b]0<&\x07.default"))
    ended = invoke("inspect", file, "--graph", svg)
    assert (ended.code, ended.err) == (0, "")
    ended.out.encode("utf-8")
    assert ended.out.startswith(r"\udcff\x1b<&.pte · ")
    assert "\x1b" not in ended.out
    assert r"aten.\x1b]0<&\x07.default" in ended.out
    lines = [t.text for t in texts(svg.read_text("utf-8"))]
    assert lines[0] == r"\udcff\x1b<&.pte · forward"
    assert r"\x1b]0<&\x07" in lines
    report = invoke("inspect", file, "--json")
    report.out.encode("utf-8")
    assert report.json()["file"] == str(file)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("aten.view_copy.default", "view_copy"),
        ("sdpa_with_kv_cache.default", "sdpa_with_kv_cache"),
        ("sym_size.int", "sym_size"),
        ("aten.sym_size.int", "sym_size"),
        ("aten.sym_numel", "sym_numel"),
        ("executorch_prim.mul.Scalar", "mul"),
        ("add", "add"),
        ("fused(rms_norm+linear_q4gsw+linear_q4gsw)", "rms_norm + linear_q4gsw ×2"),
    ],
)
def test_names(operator: str, name: str) -> None:
    assert short_name(operator) == name


def test_the_bundled_language_model(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "graph.svg"
    assert invoke("inspect", DEMO / "tales.pte", "--graph", file).code == 0
    root = ElementTree.fromstring(file.read_text("utf-8"))
    boxes = [e for e in root.iter(f"{SVG}g") if "box" in e.get("class", "").split()]
    shown = {(box.get("class", "").split()[1], box.findtext(f"{SVG}text")) for box in boxes}
    assert {
        ("input", "input 0"),
        ("size", "sym_size"),
        ("lookup", "embedding_q4gsw"),
        ("product", "rms_norm + linear_q4gsw ×3"),
        ("product", "rms_norm + linear_q4gsw ×2 + sigmoid + mul ×2"),
        ("attention", "apply_rotary_emb_hf + sdpa_with_kv_cache + view…"),
        ("state", "state"),
    } <= shown
    assert not any("default" in name or "fused" in name for _, name in shown if name)
    legend = [e.text for e in root.iter(f"{SVG}text") if e.get("class") == "entry"]
    assert legend == ["input", "size", "lookup", "product", "moves", "state", "attention", "output"]


def test_a_branch_leads_to_what_it_decides(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "graph.svg"
    assert invoke("inspect", data / "control.pte", "--graph", file).code == 0
    root = ElementTree.fromstring(file.read_text("utf-8"))
    boxes = [e for e in root.iter(f"{SVG}g") if "box" in e.get("class", "").split()]
    names = {e.get("data-id"): e.findtext(f"{SVG}text") for e in boxes}
    branch = next(number for number, name in names.items() if name == "if")
    lines = [e for e in root.iter(f"{SVG}path") if e.get("data-from") == branch]
    assert {names[e.get("data-to")] for e in lines} == {"mul", "sub"}


def test_why_the_host_runs_it_is_in_the_title(invoke: Invoke, tmp_path: Path, counting: Path) -> None:
    assert invoke("inspect", counting, "--graph", tmp_path / "graph.svg").code == 0
    titles = [e.text or "" for e in ElementTree.parse(tmp_path / "graph.svg").getroot().iter(f"{SVG}title")]
    assert any("on the host: int64, exact only on the host" in title for title in titles)


CVD = {  # how a colour looks, in linear light: as it is, without red, without green, without blue (Machado, 2009)
    "all": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    to_cones = [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696]]
    to_cones.append([0.08830246, 0.28171884, 0.6299787])
    to_lab = [[0.21045426, 0.79361779, -0.00407205], [1.9779985, -2.4285922, 0.45059371]]
    to_lab.append([0.02590404, 0.78277177, -0.80867577])
    return np.array(to_lab) @ np.cbrt(np.clip(np.array(to_cones) @ light, 0, None))


def contrast(a: str, b: str) -> float:
    high, low = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_colours_can_be_told_apart(mode: int) -> None:
    assert len({colours[mode] for colours in COLOURS.values()}) == len(COLOURS)
    alike = [name for name in (*GROUPS, OTHER) if name != "size"]  # of one shape; sizes are dotted
    for a, b in combinations(alike, 2):
        for vision in CVD.values():
            first, second = (oklab(np.clip(vision @ linear(COLOURS[name][mode]), 0, 1)) for name in (a, b))
            assert np.linalg.norm(first - second) > 0.07, (a, b)
    for name, colours in COLOURS.items():
        assert contrast(colours[mode], GROUND[mode]) > (4.5 if name in SOLID else 2.1), name
    assert min(contrast(INK[mode], GROUND[mode]), contrast(FAINT[mode], GROUND[mode])) > 4.5


def test_colours_follow_the_ground() -> None:
    light, dark = style().split("@media (prefers-color-scheme: dark)")
    for name, colours in COLOURS.items():
        assert f".{name} {{ color: {colours[0]} }}" in light
        assert f".{name} {{ color: {colours[1]} }}" in dark


def test_groups() -> None:
    assert group(["norm", "linear_q4", "elementwise"]) == "product"
    assert group(["elementwise"]) == "elementwise"
    assert group(["something new"]) == group([]) == OTHER
