"""Mutated and swept programs, a slice of `python -m tools.mutate` and `tools.sweep`: errors name the defect."""

from __future__ import annotations

import random
from collections import Counter

from tests import mutants
from tests.cases import device
from tests.sweep import changes, outcome
from tests.test_few import PROBLEMS

SEEDS = ("control.pte", "mlp.pte", "state", "int64")
SMALL = sorted(PROBLEMS, key=lambda name: sum(a.nbytes for a in PROBLEMS[name].arrays.values()))[:200]


def test_mutants_run_or_are_refused() -> None:
    rng = random.Random(14)
    seeds = [mutants.read(mutants.program_of(PROBLEMS[name])) for name in SMALL[::10]]
    seeds += [mutants.read(content) for name, content in mutants.programs().items() if name in SEEDS]
    outcomes = [mutants.run(mutants.mutant(rng.choice(seeds), rng), device()) for _ in range(150)]
    assert [] == [f for f in outcomes if f[0].startswith("wrong")]
    counts = Counter(kind for kind, _ in outcomes)
    assert counts["ran"] > 10 and counts["InvalidProgram"] > 30


def test_mutants_are_read_or_refused() -> None:
    rng = random.Random(15)
    seeds = [mutants.read(path.read_bytes()) for path in sorted(mutants.DATA.glob("*.pt[ed]"))]
    outcomes = [mutants.parsed(mutants.mutant(rng.choice(seeds), rng)) for _ in range(400)]
    assert [] == [f for f in outcomes if f[0].startswith("wrong")]
    assert {"read", "InvalidProgram"} == {kind for kind, _ in outcomes}


def test_a_place_of_a_mutant_is_what_was_read() -> None:
    read = mutants.read(mutants.program_of(PROBLEMS[SMALL[0]]))
    assert {"B", "b", "i", "I", "H"} <= {p.code for p in read.places}
    assert all(0 <= p.at < len(read.content) for p in read.places)


def test_one_field_changed_runs_or_is_refused() -> None:
    rng = random.Random(16)
    wrong, counts = [], Counter[str]()
    for name in rng.sample(SMALL, 25):
        problem = PROBLEMS[name]
        every = list(changes(problem.case, problem.eager))
        for changed in rng.sample(every, min(6, len(every))):
            kind, message = outcome(changed, device())
            counts[kind] += 1
            if kind.startswith("wrong"):
                wrong.append((name, changed.what, kind, message))
    assert [] == wrong
    assert counts["ran"] > 10 and counts["InvalidProgram"] > 30
