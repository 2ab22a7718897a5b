"""Expressions and guards as text, and what sizes cost: each against the plan itself."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from tests.cli.conftest import DATA
from tests.exporting import export

import ptegpu
from ptegpu.cli.inputs import one_size_each, parse_sizes
from ptegpu.dtypes import DType
from ptegpu.explain.costs import costs
from ptegpu.explain.guards import GuardText, numpy_calls, plan_report
from ptegpu.plan.numbers import compile_rows
from ptegpu.plan.plan import Choice, Family, Input, Plan, Row
from ptegpu.plan.resolve import plan_at

DEMO = Path(ptegpu.__file__).parent / "demo"
INPUTS = (Input("tokens", 0, DType.I32, (4, 256), dynamic=True), Input("how"), Input("input 2", 1, DType.I32, (8,)))


def plan_of(rows: tuple[Row, ...], guards: tuple[int, ...] = (), choices: tuple[Choice, ...] = ()) -> Plan:
    return Plan("made up", (), (), INPUTS, (Family(guards, (choices,) if choices else (), ()),), rows=rows)


ROWS: tuple[Row, ...] = (
    ("size", 0, 0),
    ("size", 0, 1),
    ("int", 1, 0),
    ("const", 0, 0),
    ("const", 9, 0),
    ("item", 3, 2),  # 5
    ("lt", 1, 4),
    ("lt", 4, 1),
    ("ge", 4, 1),
    ("add", 0, 1),
    ("mul", 9, 4),  # 10
    ("sub", 0, 9),
    ("sub", 3, 1),
    ("floordiv", 12, 4),
    ("sub", 3, 13),
    ("min", 10, 14),  # 15
    ("mod", 11, 9),
    ("div", 0, 4),
    ("ceil", 17, 17),
    ("eq", 5, 2),
    ("sub", 3, 12),  # 20
    ("const", 0.5, 0),
    ("mul", 1, 21),
    ("const", -3, 0),
    ("add", 1, 23),
    ("sub", 3, 9),  # 25
    ("eq", 0, 3),
    ("mul", 0, 1),
    ("lt", 27, 4),
    ("ne", 1, 3),
    ("floordiv", 1, 4),  # 30
    ("ge", 30, 0),
    ("ge", 1, 4),
)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (2, "how"),
        (5, "item 0 of input 2"),
        (6, "tokens[1] < 9"),
        (7, "tokens[1] > 9"),
        (8, "tokens[1] <= 9"),
        (10, "(tokens[0] + tokens[1]) * 9"),
        (11, "tokens[0] - (tokens[0] + tokens[1])"),
        (13, "(-tokens[1]) // 9"),
        (14, "ceil(tokens[1] / 9)"),
        (15, "min((tokens[0] + tokens[1]) * 9, ceil(tokens[1] / 9))"),
        (16, "(tokens[0] - (tokens[0] + tokens[1])) % (tokens[0] + tokens[1])"),
        (18, "ceil(tokens[0] / 9)"),
        (19, "item 0 of input 2 == how"),
        (20, "tokens[1]"),
        (22, "tokens[1] * 0.5"),
        (24, "tokens[1] + -3"),
        (25, "-(tokens[0] + tokens[1])"),
    ],
)
def test_rows_as_text(row: int, text: str) -> None:
    assert GuardText(plan_of(ROWS))(row) == text


def test_every_text_means_what_its_row_does() -> None:
    text, rows = GuardText(plan_of(ROWS)), range(len(ROWS))
    for shapes in ((1, 1), (2, 9), (3, 10), (4, 256)):
        inputs = [shapes, 7, (8,)]
        expected = compile_rows(ROWS, list(rows))(inputs, lambda _, __: 7)
        names = {"tokens": shapes, "how": 7, "ceil": math.ceil, "min": min, "max": max}
        for row in rows:
            got = eval(text(row).replace("item 0 of input 2", "7"), names)
            assert got == expected[row], text(row)


def test_long_expressions_are_cut_short() -> None:
    rows: list[Row] = [("size", 0, 1)]
    for k in range(5000):
        rows.append(("mul" if k % 2 else "add", k, k))
    text = GuardText(plan_of(tuple(rows)))
    assert "row" in text(5000)
    assert max(len(text(k)) for k in range(len(rows))) < 200


def test_guards_of_any_plan_can_be_shown() -> None:
    """A file may hold guards that no program leads to."""
    rows: list[Row] = [("size", 0, 0), ("const", 2**70, 0), ("mul", 0, 1), ("lt", 2, 1)]
    rows += [("eq", 0, 1), ("const", 5, 0), ("eq", 0, 5)]
    wide = Input("tokens", 0, DType.I32, (2**40, 2**40), dynamic=True)
    for guards, where in (
        ((3,), [f"tokens[0] * {2**70} < {2**70}"]),
        ((4,), [f"tokens[0] == {2**70}"]),
        ((6,), ["tokens[0] == 5"]),
        ((4, 6), [f"tokens[0] == {2**70}", "tokens[0] == 5"]),
    ):
        plan = Plan("made up", (), (), (wide,), (Family(guards, (), ()),), rows=tuple(rows))
        (family,) = plan_report(plan)["families"]
        assert family["where"] == where


def test_guards_that_follow_from_others_are_left_out() -> None:
    choices = (Choice((29, 32, 31), ()), Choice((6,), (), "too small"))
    report = plan_report(plan_of(ROWS, (29, 26), choices))
    (family,) = report["families"]
    assert family["where"] == ["tokens[0] == 0", "tokens[1] >= 1"]
    assert family["guards"] == ["tokens[1] != 0", "tokens[0] == 0"]
    (step,) = family["steps"]
    assert [c["where"] for c in step["choices"]] == [["tokens[1] >= 9"], ["tokens[1] <= 8"]]
    assert [c["guards"] for c in step["choices"]] == [["tokens[1] >= 9"], ["tokens[1] < 9"]]
    assert [c["refusal"] for c in step["choices"]] == ["", "too small"]
    assert report["sizes"] == {"tokens[0]": 4, "tokens[1]": 256, "how": None}
    assert (report["choices"], report["expressions"], report["nodes"]) == (2, len(ROWS), 1)


def test_what_is_no_range_stays_a_guard() -> None:
    (family,) = plan_report(plan_of(ROWS, (28, 19)))["families"]
    assert family["where"] == ["tokens[0] * tokens[1] < 9", "item 0 of input 2 == how"]
    (family,) = plan_report(plan_of((*ROWS, ("ne", 30, 4), ("ne", 10, 4)), (33, 34)))["families"]
    assert family["where"] == ["tokens[1] // 9 != 9", "(tokens[0] + tokens[1]) * 9 != 9"]
    (family,) = plan_report(plan_of((*ROWS, ("sub", 12, 4), ("ne", 33, 23), ("ne", 33, 4)), (34, 35)))["families"]
    assert (family["where"], family["guards"]) == ([], [])
    (family,) = plan_report(plan_of((*ROWS, ("sub", 1, 4), ("ne", 33, 23)), (34,)))["families"]
    assert (family["where"], family["guards"]) == (["tokens[1] != 6"], ["tokens[1] - 9 != -3"])


@pytest.mark.parametrize("model", [DATA / "dynamic.pte", DEMO / "tales.pte"])
def test_texts_hold_where_guards_do(model: Path) -> None:
    data = [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"] if model.name == "dynamic.pte" else None
    (plan,) = ptegpu.compile(model, data, methods="forward").methods[0]["forward"].plans
    report, rest = plan_report(plan), [i.shape for i in plan.inputs[1:]]
    for n in range(plan.inputs[0].shape[1] + 1):
        for batch in (0, 1):
            shapes = [(batch, n), *rest]
            for family, shown in zip(plan.families, report["families"], strict=True):
                inside = _all(plan, family.guards, shapes)
                assert _means(plan, shown, shapes) == inside
                if not inside:
                    continue
                step_guards = {tuple(c.guards for c in choices) for choices in family.steps}
                meanings = {tuple(_means(plan, c, shapes) for c in step["choices"]) for step in shown["steps"]}
                assert meanings == {tuple(_all(plan, guards, shapes) for guards in choices) for choices in step_guards}


def _all(plan: Plan, guards: tuple[int, ...], shapes: list[tuple[int, ...]]) -> bool:
    return all(compile_rows(plan.rows, list(guards))(shapes, lambda _, __: 0))


def _means(plan: Plan, shown: dict[str, Any], shapes: list[tuple[int, ...]]) -> bool:
    """Return whether the text matches the sizes, after checking that the guards agree."""

    def row(number: int) -> int:  # what would be too long a text
        return compile_rows(plan.rows, [number])(shapes, lambda _, __: 0)[0]  # type: ignore[no-any-return]

    names = {"shapes": shapes, "ceil": math.ceil, "min": min, "max": max, "row": row}

    def hold(texts: list[str]) -> bool:
        spelled = (re.sub(r"row (\d+)", r"row(\1)", re.sub(r"input (\d)", r"shapes[\1]", t)) for t in texts)
        return all(eval(text, names) for text in spelled)

    holds = hold(shown["where"])
    if 0 not in shapes[0]:  # by which Python does not divide
        assert hold(shown["guards"]) == holds
    return holds


def test_costs_are_those_of_the_plan_at_that_size() -> None:
    outer = ptegpu.compile(DEMO / "tales.pte", methods="forward").methods[0]["forward"]
    (plan,) = outer.plans
    for n in (1, 5, 256):
        (cost,) = costs(outer, {"input 0[1]": n})
        here = [d for d in plan_at(plan, [(1, n), (1,)], lambda _, __: 0).dispatches if 0 not in d.grid]
        assert (cost.dispatches, cost.flops) == (len(here), sum(d.flops for d in here))  # type: ignore[misc]
        assert cost.workgroups == sum(d.grid[0] * d.grid[1] for d in here)  # type: ignore[operator]
        assert cost.read_bytes + cost.write_bytes == sum(d.nbytes for d in here)
        family = plan.families[(cost.family or 0) - 1]
        assert sum(cost.choices.values()) == sum(len(choices) > 1 for choices in family.steps)


def test_what_must_be_equal_is_named_once(tmp_path: Path) -> None:
    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    rows = torch.export.Dim("rows", min=2, max=8)
    file = tmp_path / "add.pte"
    export(Add(), (torch.ones(4, 3), torch.ones(4, 3)), file, dynamic_shapes=({0: rows}, {0: rows}))
    outer = ptegpu.compile(file).methods[0]["forward"]
    (cost,) = costs(outer, {"input 0[0]": 5})
    assert cost.sizes == {"input 0[0]": 5, "input 0[1]": 3, "input 1[0]": 5, "input 1[1]": 3}
    assert cost.write_bytes == 5 * 3 * 4
    (cost,) = costs(outer, {})
    assert cost.write_bytes == 8 * 3 * 4


def test_sizes_go_from_plan_to_plan(tmp_path: Path) -> None:
    class Between(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cat([x, x], 1).relu()
            return y.masked_scatter(y > 1, y) + y  # the first on the host

    file = tmp_path / "between.pte"
    rows = torch.export.Dim("rows", min=2, max=8)
    export(Between(), (torch.ones(4, 3),), file, dynamic_shapes=({0: rows},), delegate=False)
    outer = ptegpu.compile(file).methods[0]["forward"]
    assert numpy_calls(outer) == {"aten.masked_scatter.default": 1}
    first, second = costs(outer, {"input 0[0]": 5})
    assert first.sizes == {"input 0[0]": 5, "input 0[1]": 3}
    assert sorted(second.sizes.values()) == [5, 5, 6, 6]
    assert second.write_bytes == 5 * 6 * 4


def test_sizes_on_the_command_line() -> None:
    texts = ["input 0[1]=1..3", " input 0[1] = 8", "how=-1,4..5"]
    assert parse_sizes(texts) == {"input 0[1]": [1, 2, 3, 8], "how": [-1, 4, 5]}
    assert one_size_each(["how=3"]) == {"how": 3}
    for text in ("3", "=3", "how=", "how=1..", "how=a", "how=1,,2"):
        with pytest.raises(typer.BadParameter):
            parse_sizes([text])
