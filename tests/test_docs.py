"""Tests of the documentation: links resolve, generated pages are current, and the names in it exist."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from tools import operators

import ptegpu.portable
from ptegpu import errors
from ptegpu.cli.export import FloatType
from ptegpu.cli.export import export as export_commands
from ptegpu.cli.options import Embedding, Quantize
from ptegpu.compiler.program import cut_methods, read_source
from ptegpu.export import wrapped
from ptegpu.export.config_keys import ConfigKeys
from ptegpu.export.families import FAMILIES
from ptegpu.export.hf_models import POOLINGS
from ptegpu.export.llm import GROUPS, LlmOptions, metadata
from ptegpu.graph import match
from ptegpu.models.tasks.specs import TASKS
from ptegpu.ops import elementwise
from ptegpu.plan.save import to_bytes
from ptegpu.portable.registry import PORTABLE
from tests.exporting import export
from tests.test_layers import LAYERS
from tests.zoo.tasks import MODELS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CHOICES: dict[str, Any] = {"--dtype": FloatType, "--quantize": Quantize, "--embedding": Embedding, "--group": GROUPS}
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken(page: Path) -> list[str]:
    """Return the links of a page to files or headings that do not exist."""
    links = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            links.append(link)
    return links


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_resolve(page: Path) -> None:
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


def table(page: str, first: str) -> list[list[str]]:
    """Return the rows of the table of a page in docs/ whose header begins with these cells."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    (body,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in body.splitlines()]


def code(cell: str) -> list[str]:
    """Return the texts in backticks of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_families_of_the_exporter_are_in_its_page() -> None:
    rows = table("export.md", "`model_type` | models")
    assert {name: family.title for name, family in FAMILIES.items()} == {code(r[0])[0]: r[1] for r in rows}
    for name, _, particular in rows:
        for key in code(particular):
            assert "is refused" in particular
            assert key == FAMILIES[code(name)[0]].refused(ConfigKeys(Path("config.json"), {key: True}))


def command(name: str) -> Any:
    (selected,) = (c for c in typer.main.get_group(export_commands).commands.values() if c.name == name)
    return selected


def option_tables() -> list[list[list[str]]]:
    """Return the tables of options in docs/export.md in order: first of `llm`, then of `hf`."""
    text = (ROOT / "docs" / "export.md").read_text("utf-8")
    bodies = re.findall(r"^\| option \| default \| meaning \|\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[[c.strip() for c in line.strip().strip("|").split("|")] for line in body.splitlines()] for body in bodies]


@pytest.mark.parametrize(("name", "index"), [("llm", 0), ("hf", 1)])
def test_the_options_of_the_exporter_are_in_its_page(name: str, index: int) -> None:
    rows = option_tables()[index]
    in_text = {"--output", "--task"}  # options that the page explains outside the tables
    options = {
        p.secondary_opts[0] if p.secondary_opts else p.opts[-1]: p for p in command(name).params if p.opts[0][0] == "-"
    }
    assert set(options) - in_text == {option for row in rows for option in code(row[0])}
    for names, default, meaning in rows:
        for option in code(names):
            assert default in defaults(options[option]), option
            if option in CHOICES and "as below" not in meaning:
                choices = {str(choice) for choice in CHOICES[option]}
                assert choices <= set(re.findall(r"\w+", f"{default} {meaning}")), option
                assert choices >= set(code(meaning)), option


def defaults(option: Any) -> list[str]:
    """Return the texts that the page may show as the default of an option."""
    if isinstance(option.default, bool):
        return ["", "no"]
    if option.opts == ["--embedding"]:
        return ["as `--quantize`"]
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    return str(shown).split(", ") if isinstance(shown, str) else [f"{shown:g}"]


def test_the_tasks_of_the_exporter_are_in_its_page() -> None:
    rows = {row[0]: row for row in table("export.md", "task | architectures")}
    assert set(TASKS) == set(rows)
    assert all(pooling in rows["sentence-embedding"][1] for pooling in POOLINGS)
    for task, spec in TASKS.items():
        context = {"--context"} if spec.context else set()
        options = {option.split()[0] for option in code(rows[task][2])} - {"--out"}
        assert options == {f"--{kind}" for kind in spec.inputs} | context
    shown = {(task, ending.removeprefix("…")) for task, row in rows.items() for ending in code(row[1]) if "…" in ending}
    supported = {(task, ending) for task, spec in TASKS.items() for ending in spec.endings}
    assert shown <= supported
    assert supported - shown == {
        ("image-classification", "ForImageClassificationWithTeacher"),  # a variant of a listed class
        (
            "zero-shot-image-classification",
            "ForZeroShotImageClassification",
        ),  # CLIPModel is one
        ("feature-extraction", "ForPreTraining"),
        ("audio-feature-extraction", "ForPreTraining"),
        ("image-feature-extraction", "ForMaskedImageModeling"),
    }


@pytest.mark.parametrize(
    ("kind", "name", "task"),
    [
        ("text", "bert", "feature-extraction"),
        ("image", "vit", "image-classification"),
        ("audio", "wav2vec2", "speech-recognition"),
    ],
)
def test_the_inputs_of_each_kind_are_in_the_page(kind: str, name: str, task: Any) -> None:
    text = (ROOT / "docs" / "export.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| {kind} \| (.*) \|$", text, re.MULTILINE)
    shapes = [shape.split(", ") for shape in code(row)]
    _, inputs, _ = wrapped(MODELS[name]()[0], task)
    assert all(str(x.dtype).removeprefix("torch.") in row and x.dim() in map(len, shapes) for x in inputs)


def test_the_methods_of_a_language_model_are_in_the_page() -> None:
    text = (ROOT / "docs" / "export.md").read_text("utf-8")
    (body,) = re.findall(r"^\| method \| \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    config: Any = SimpleNamespace(vocab=9, layers=[0], bos=1, eos=[2])
    assert set(metadata(config, LlmOptions())) == {
        name for line in body.splitlines() for name in code(line.split("|")[1])
    }


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
    fixed_plan, rows = map(json.loads, re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    file = export(Worked(), (torch.ones(2, 3),))
    (joined,) = cut_methods(read_source(file))["forward"].graphs.values()
    saved = to_bytes(ptegpu.compile(file))
    assert repr(joined.graph) in page
    assert f"{len(file):,} bytes" in page and f"{len(saved):,} bytes" in page
    assert fixed_plan == first_plan(saved)
    sized = export(Worked(), (torch.ones(2, 3),), dynamic_shapes={"x": {0: torch.export.Dim("n", max=8)}})
    plan = first_plan(to_bytes(ptegpu.compile(sized)))
    assert rows == {k: plan["rows"][int(k)] for k in rows}
    assert [[16], 1] == plan["families"][0]["steps"][0][0][1][0][2]  # the grid that these rows compute


def first_plan(saved: bytes) -> Any:
    """Return the first plan of a bundle, located as docs/bundles.md describes."""
    length = int.from_bytes(saved[8:16], "little")
    return json.loads(saved[48 : 48 + length])["variants"][0]["methods"][0]["plans"][0]


def test_every_path_in_the_tree_exists() -> None:
    (tree,) = re.findall(r"## The tree\n.*?```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    folder, inner, missing = ROOT, ROOT, []
    for line in tree.splitlines():
        name = re.split(r"\s", line.lstrip("├└│─ "))[0]
        depth = len(line) - len(line.lstrip("├└│─ "))
        path = (ROOT, folder, inner)[min(depth // 4, 2)] / name
        if depth == 0:
            folder = path
        elif depth == 4:
            inner = path
        if not path.exists():
            missing.append(str(path.relative_to(ROOT)))
    assert [] == missing


def test_the_operators_shown_in_full_are_those_of_the_source() -> None:
    page = (ROOT / "docs" / "adding-an-operator.md").read_text("utf-8")
    shown = [b for b in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if b.startswith("@op(")]
    source = "".join(path.read_text("utf-8") for path in sorted((ROOT / "src" / "ptegpu" / "ops").glob("*.py")))
    assert len(shown) >= 3 and [] == [block for block in shown if block not in source]


def test_the_pass_shown_in_full_is_that_of_the_source() -> None:
    page = (ROOT / "docs" / "adding-a-pass.md").read_text("utf-8")
    (shown,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert (ROOT / "src" / "ptegpu" / "passes" / "channels.py").read_text("utf-8").endswith(shown)
    patterns = [code(row[0])[0].partition("(") for row in table("adding-a-pass.md", "pattern | matches")]
    assert {"Op", "Leaf", "Number", "Either"} == {name for name, call, _ in patterns if call and hasattr(match, name)}


def packages() -> set[str]:
    """Return the names of the packages and modules directly under src/ptegpu."""
    names = {p.stem for p in (ROOT / "src" / "ptegpu").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    return names - {"__init__", "__main__"}


def test_every_package_is_in_the_tree() -> None:
    (tree,) = re.findall(
        r"^src/ptegpu/\n(.*?)^\w", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    shown = set(re.findall(r"^[├└]── (\w+)(?:/|\.py)", tree, re.MULTILINE))
    assert packages() == shown - {"__init__", "demo"}


def test_the_rows_of_the_architecture_are_those_that_are_checked() -> None:
    rows = [set(code(row[1])) for row in table("architecture.md", "row | package")]
    titles = {"__init__": "ptegpu"}  # names that the page spells differently
    assert [{titles.get(name, name) for name in names if name != "__main__"} for names in LAYERS] == rows
    assert packages() | {"ptegpu"} == set().union(*rows)


def test_the_helpers_for_elementwise_operators_exist() -> None:
    named = [n for row in table("adding-an-operator.md", "helper | for") for n in code(row[0]) if n.isidentifier()]
    assert len(named) >= 6 and [] == [name for name in named if not hasattr(elementwise, name)]


def test_families_that_errors_shows_as_unsupported_are() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    shown = re.findall(r"model_type '(\w+)' is not supported", page)
    assert shown and [] == [name for name in shown if name in FAMILIES]


def test_operators_that_draw_random_numbers_are_named() -> None:
    page = (ROOT / "docs" / "operators.md").read_text("utf-8")
    (paragraph,) = re.findall(r"^- \*\*Randomness\.\*\* (.*?)(?=^- |^$)", page, re.MULTILINE | re.DOTALL)
    assert {name for name, kernel in PORTABLE.items() if kernel.random} <= set(code(paragraph))


def test_the_first_page_says_how_to_install_without_a_clone() -> None:
    text = (ROOT / "docs" / "start.md").read_text("utf-8")
    (section,) = re.findall(r"^## Install\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert all(text in section for text in ("pip install .", "git+", "pip wheel", "PyPI"))
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(extras) == set(rows)


def test_extras_that_pages_name_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {
        (p.name, e)
        for p in PAGES
        for names in re.findall(r"ptegpu\[([\w,]+)\]", p.read_text("utf-8"))
        for e in names.split(",")
    }
    assert named and [] == [(page, extra) for page, extra in named if extra not in extras]
