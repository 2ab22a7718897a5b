"""Saved cases and programs: they are read back completely and still check a device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.saved import app
from typer.testing import CliRunner

from ptegpu.dtypes import DType
from tests.cases import Case, Problem, T, device, tables
from tests.oracle import problem
from tests.programs import FEW, program
from tests.saved import Call, Program, read, save

SHARED = T((2, 3))


def test_a_problem(tmp_path: Path) -> None:
    original = problem(Case("aten.add.Tensor", (SHARED, SHARED, 2), atol=1e-5))
    save(tmp_path / "file", [original, original], [])
    problems, programs = read(tmp_path / "file")
    assert ([str(original.case), f"{original.case} (2)"], {}) == (list(problems), programs)
    for loaded in problems.values():
        first, second, _ = loaded.case.args
        assert first is second
        assert (SHARED.shape, SHARED.dtype, 1e-5) == (first.shape, first.dtype, loaded.case.atol)
        np.testing.assert_array_equal(original.arrays[id(SHARED)], loaded.arrays[id(first)])
        np.testing.assert_array_equal(original.golden[0].astype(np.float32), loaded.golden[0])
        loaded.check(device())
        with pytest.raises(AssertionError, match="ptegpu against float64"):
            replace(loaded, golden=[loaded.golden[0] + 0.1]).check(device())


def test_what_float32_has_no_range_for_stays_in_float64(tmp_path: Path) -> None:
    original = problem(Case("aten.mul.Tensor", (SHARED, SHARED)))
    large = [np.full_like(original.golden[0], 1e300)]
    save(tmp_path / "file", [replace(original, golden=large)], [])
    (loaded,) = read(tmp_path / "file")[0].values()
    np.testing.assert_array_equal(large[0], loaded.golden[0])


def test_a_problem_that_a_file_cannot_hold(tmp_path: Path) -> None:
    odd = problem(Case("aten.add.Tensor", (SHARED, SHARED)))
    odd = replace(odd, case=replace(odd.case, args=(*odd.case.args, DType.F32)))
    with pytest.raises(TypeError, match="cannot be saved"):
        save(tmp_path / "file", [odd], [])


def same(first: Call, second: Call) -> bool:
    values = zip([*first.inputs, *first.expected], [*second.inputs, *second.expected], strict=True)
    return (first.method, first.reset) == (second.method, second.reset) and all(
        type(a) is type(b) and np.array_equal(a, b) for a, b in values
    )


@pytest.mark.parametrize("name", ["state", "every kind of output"])
def test_a_program(name: str, tmp_path: Path) -> None:
    original = program(name)
    save(tmp_path / "file", [], [original])
    problems, programs = read(tmp_path / "file")
    assert ({}, [name]) == (problems, list(programs))
    loaded = programs[name]
    assert original.data == loaded.data
    assert len(original.calls) == len(loaded.calls)
    assert all(map(same, original.calls, loaded.calls))
    assert properties(original) == properties(loaded)
    loaded.check(device())


def properties(p: Program) -> tuple[object, ...]:
    return p.tolerance, p.graphs, list(p.host), dict(p.operators)


def test_every_expectation_is_held() -> None:
    original = program("state")
    first = original.calls[0]
    wrong = replace(first, expected=[first.expected[0] + 1e-3, *first.expected[1:]])
    for other, message in (
        (replace(original, calls=[wrong]), "call 0, output 0: error"),
        (replace(original, calls=[replace(first, expected=first.expected[:1])]), "call 0: 2 outputs, PyTorch 1"),
        (replace(original, calls=[first, first]), "call 1, output 0: error"),
        (replace(original, graphs=2), "1 graphs on the GPU"),
        (replace(original, host=["aten.topk.default"]), "on the host: "),
        (replace(original, operators={"aten.topk.default": 1}), "on the GPU: "),
    ):
        with pytest.raises(AssertionError, match=message):
            other.check(device())
    replace(original, calls=[first, replace(first, reset=True)]).check(device())


def test_the_few_are_up_to_date() -> None:
    again = "regenerate it: python -m tools.saved make tests/data/few.zip --few"
    problems, programs = read(Path(__file__).parent / "data" / "few.zip")
    assert FEW == list(programs), again
    assert {case.op for case in tables()} == {p.case.op for p in problems.values()}, again
    stale = set(problems)
    for case in tables():  # several cases may share a name
        if str(case) in stale and agree(problems[str(case)], problem(case)):
            stale.remove(str(case))
    assert set() == stale, again


def agree(saved: Problem, current: Problem) -> bool:
    try:
        saved.compare(current.right)
    except AssertionError:
        return False
    return True


def test_the_commands(tmp_path: Path) -> None:
    file, run = tmp_path / "cases.zip", CliRunner().invoke
    result = run(app, ["make", str(file), "--only", "aten.log10.default"])
    assert 0 == result.exit_code, result.output
    count = sum(case.op == "aten.log10.default" for case in tables())
    assert result.stdout.startswith(f"{file}: {count} cases, 0 programs, ")
    good = run(app, ["run", str(file), "--json"])
    runs = json.loads(good.stdout)["runs"]
    assert (0, [count] * 4, [{}] * 4) == (good.exit_code, [r["cases"] for r in runs], [r["failures"] for r in runs])
    assert {(True, False), (False, True)} <= {(r["f16"], r["subgroups"]) for r in runs} or not device().target.f16
    (tmp_path / "text").write_text("no zip")
    for wrong_use in (
        ["run", str(file), "--only", "no such name"],
        ["run", "no file"],
        ["run", str(tmp_path / "text")],
    ):
        assert 2 == run(app, wrong_use).exit_code

    original = problem(Case("aten.abs.default", (SHARED,)))
    save(file, [replace(original, golden=[original.golden[0] + 0.1])], [])
    bad = run(app, ["run", str(file)])
    assert 1 == bad.exit_code
    assert bad.stdout.count("AssertionError: ptegpu against float64") == 4
