"""The documentation is true: links lead somewhere, generated pages are current, names in it exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tools import operators

from ptegpu import errors
from ptegpu.compiler.program import compile, cut_methods, read_source
from ptegpu.plan.save import to_bytes
from tests.exporting import export

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken(page: Path) -> list[str]:
    """Links of a page to files or headings that do not exist."""
    found = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [] == broken(page)


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n[x](page.md#a-b-c) [y](no.md) [z](#no) [w](https://example.org)\n```\n[v](no.md)\n```\n"
    )
    assert ["no.md", "#no"] == broken(page)


def test_the_page_of_operators_is_current() -> None:
    current = (ROOT / "docs" / "operators.md").read_text("utf-8")
    assert operators.page() == current, "run: python -m tools.operators > docs/operators.md"


def test_the_exporter_has_153_operators_in_delegates() -> None:
    assert 153 == len(operators.DELEGATE) == len(set(operators.DELEGATE))


def test_every_error_is_explained() -> None:
    classes = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    assert classes - {"PtegpuError"} == set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    tree = re.findall(r"^(?:│   |    )?[├└]── (\w+)|^(PtegpuError)$", page, re.MULTILINE)
    assert classes == {a or b for a, b in tree}


class Worked(torch.nn.Module):
    """The module of the worked example in docs/architecture.md."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.w)


def test_the_worked_example_is_what_the_code_prints() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    whole, rows = map(json.loads, re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    file = export(Worked(), (torch.ones(2, 3),))
    (joined,) = cut_methods(read_source(file))["forward"].joined.graphs.values()
    saved = to_bytes(compile(file))
    assert repr(joined.graph) in page
    assert f"{len(file):,} bytes" in page and f"{len(saved):,} bytes" in page
    assert whole == first_plan(saved)
    sized = export(Worked(), (torch.ones(2, 3),), dynamic_shapes={"x": {0: torch.export.Dim("n", max=8)}})
    plan = first_plan(to_bytes(compile(sized)))
    assert rows == {k: plan["rows"][int(k)] for k in rows}
    assert [[16], 1] == plan["families"][0]["steps"][0][0][1][0][2]  # the grid that these rows explain


def first_plan(saved: bytes) -> Any:
    """As docs/bundles.md says that it is found."""
    length = int.from_bytes(saved[8:16], "little")
    return json.loads(saved[48 : 48 + length])["variants"][0]["methods"][0]["plans"][0]


def test_what_the_tree_in_the_readme_names_exists() -> None:
    (tree,) = re.findall(r"## The tree\n.*?```\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    folder, inner, missing = ROOT, ROOT, []
    for line in tree.splitlines():
        name = re.split(r"\s", line.lstrip("├└│─ "))[0]
        depth = len(line) - len(line.lstrip("├└│─ "))
        place = (ROOT, folder, inner)[min(depth // 4, 2)] / name
        if depth == 0:
            folder = place
        elif depth == 4:
            inner = place
        if not place.exists():
            missing.append(str(place.relative_to(ROOT)))
    assert [] == missing


def test_the_operators_shown_in_full_are_those_of_the_source() -> None:
    page = (ROOT / "docs" / "adding-an-operator.md").read_text("utf-8")
    shown = [b for b in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if b.startswith("@op(")]
    source = "".join(path.read_text("utf-8") for path in sorted((ROOT / "src" / "ptegpu" / "ops").glob("*.py")))
    assert len(shown) >= 3 and [] == [block for block in shown if block not in source]
