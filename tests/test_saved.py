"""What was saved is read back whole, and still holds a device to PyTorch."""

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
    given = problem(Case("aten.add.Tensor", (SHARED, SHARED, 2), atol=1e-5))
    save(tmp_path / "file", [given, given], [])
    problems, programs = read(tmp_path / "file")
    assert ([str(given.case), f"{given.case} (2)"], {}) == (list(problems), programs)
    for found in problems.values():
        one, other, _ = found.case.args
        assert one is other
        assert (SHARED.shape, SHARED.dtype, 1e-5) == (one.shape, one.dtype, found.case.atol)
        np.testing.assert_array_equal(given.arrays[id(SHARED)], found.arrays[id(one)])
        np.testing.assert_array_equal(given.golden[0].astype(np.float32), found.golden[0])
        found.check(device())
        with pytest.raises(AssertionError, match="ptegpu against float64"):
            replace(found, golden=[found.golden[0] + 0.1]).check(device())


def test_what_float32_has_no_range_for_stays_in_float64(tmp_path: Path) -> None:
    given = problem(Case("aten.mul.Tensor", (SHARED, SHARED)))
    large = [np.full_like(given.golden[0], 1e300)]
    save(tmp_path / "file", [replace(given, golden=large)], [])
    (found,) = read(tmp_path / "file")[0].values()
    np.testing.assert_array_equal(large[0], found.golden[0])


def test_a_problem_that_a_file_cannot_hold(tmp_path: Path) -> None:
    odd = problem(Case("aten.add.Tensor", (SHARED, SHARED)))
    odd = replace(odd, case=replace(odd.case, args=(*odd.case.args, DType.F32)))
    with pytest.raises(TypeError, match="cannot be saved"):
        save(tmp_path / "file", [odd], [])


def same(one: Call, other: Call) -> bool:
    values = zip([*one.inputs, *one.wanted], [*other.inputs, *other.wanted], strict=True)
    return (one.method, one.reset) == (other.method, other.reset) and all(
        type(a) is type(b) and np.array_equal(a, b) for a, b in values
    )


@pytest.mark.parametrize("name", ["state", "every kind of output"])
def test_a_program(name: str, tmp_path: Path) -> None:
    given = program(name)
    save(tmp_path / "file", [], [given])
    problems, programs = read(tmp_path / "file")
    assert ({}, [name]) == (problems, list(programs))
    found = programs[name]
    assert given.data == found.data
    assert len(given.calls) == len(found.calls)
    assert all(map(same, given.calls, found.calls))
    assert known(given) == known(found)
    found.check(device())


def known(p: Program) -> tuple[object, ...]:
    return p.tolerance, p.graphs, list(p.host), dict(p.operators)


def test_every_expectation_is_held() -> None:
    given = program("state")
    first = given.calls[0]
    wrong = replace(first, wanted=[first.wanted[0] + 1e-3, *first.wanted[1:]])
    for other, message in (
        (replace(given, calls=[wrong]), "call 0, output 0: error"),
        (replace(given, calls=[replace(first, wanted=first.wanted[:1])]), "call 0: 2 outputs, PyTorch 1"),
        (replace(given, calls=[first, first]), "call 1, output 0: error"),
        (replace(given, graphs=2), "1 graphs on the GPU"),
        (replace(given, host=["aten.topk.default"]), "on the host: "),
        (replace(given, operators={"aten.topk.default": 1}), "on the GPU: "),
    ):
        with pytest.raises(AssertionError, match=message):
            other.check(device())
    replace(given, calls=[first, replace(first, reset=True)]).check(device())


def test_the_few_are_up_to_date() -> None:
    again = "make it anew: python -m tools.saved make tests/data/few.zip --few"
    problems, programs = read(Path(__file__).parent / "data" / "few.zip")
    assert FEW == list(programs), again
    assert {case.op for case in tables()} == {p.case.op for p in problems.values()}, again
    stale = set(problems)
    for case in tables():  # of one name there may be several
        if str(case) in stale and agree(problems[str(case)], problem(case)):
            stale.remove(str(case))
    assert set() == stale, again


def agree(found: Problem, made: Problem) -> bool:
    try:
        found.compare(made.right)
    except AssertionError:
        return False
    return True


def test_the_commands(tmp_path: Path) -> None:
    file, run = tmp_path / "cases.zip", CliRunner().invoke
    made = run(app, ["make", str(file), "--only", "aten.log10.default"])
    assert 0 == made.exit_code, made.output
    count = sum(case.op == "aten.log10.default" for case in tables())
    assert made.stdout.startswith(f"{file}: {count} cases, 0 programs, ")
    good = run(app, ["run", str(file), "--json"])
    found = json.loads(good.stdout)["runs"]
    assert (0, [count] * 4, [{}] * 4) == (good.exit_code, [r["cases"] for r in found], [r["failures"] for r in found])
    assert {(True, False), (False, True)} <= {(r["f16"], r["subgroups"]) for r in found} or not device().target.f16
    (tmp_path / "text").write_text("no zip")
    for wrong_use in (
        ["run", str(file), "--only", "no such name"],
        ["run", "no file"],
        ["run", str(tmp_path / "text")],
    ):
        assert 2 == run(app, wrong_use).exit_code

    given = problem(Case("aten.abs.default", (SHARED,)))
    save(file, [replace(given, golden=[given.golden[0] + 0.1])], [])
    bad = run(app, ["run", str(file)])
    assert 1 == bad.exit_code
    assert bad.stdout.count("AssertionError: ptegpu against float64") == 4
