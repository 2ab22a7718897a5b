"""Change one field at a time of every operator case, and plan and run each under poison.

    python -m tools.sweep                          # all cases; hours
    python -m tools.sweep --few                    # one case of each operator
    python -m tools.sweep --plain                  # all cases as they are
    python -m tools.sweep --only softmax --seed 3 --share 0.1
    PTEGPU_ENGINE=dawn python -m tools.sweep --few

Ends with counts. The status is 1 after an access outside a buffer or an unexpected error.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from tests.cases import Case, T, device, tables, walk
from tests.oracle import reference
from tests.sweep import changes, outcome

FEW = 4096
app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def main(
    small: bool = typer.Option(False, "--few", help="one case of each operator"),
    only: str = typer.Option("", help="only operators with this in their name"),
    plain: bool = typer.Option(False, "--plain", help="the cases as they are"),
    share: float = typer.Option(1.0, help="of the changes, chosen at random"),
    seed: int = 0,
    log: Path | None = typer.Option(None, help="where to write each that is wrong"),
) -> None:
    """Sweep."""
    cases = [c for c in tables() if only in c.op]
    if small:
        cases = list({c.op: c for c in sorted(cases, key=_elements)}.values())
    chance, counts, errors = random.Random(seed), Counter[str](), Counter[tuple[str, str]]()
    console = Console()
    for number, case in enumerate(track(cases, "Sweeping", console=console)):
        if log is not None:
            log.with_suffix(".at").write_text(f"{number} of {len(cases)}: {case}, {counts.total()} changes\n")
        for changed in changes(case, _results(case)):
            if chance.random() >= share or (plain and changed.what):
                continue
            outcome_name, message = outcome(changed, device())
            counts[outcome_name] += 1
            if outcome_name.startswith("wrong"):
                errors[case.op, outcome_name] += 1
                if log is not None:
                    with log.open("a") as f:
                        f.write(f"{outcome_name} | {case} | {changed.what} | {message[:300]!r}\n")
    console.print(f"{counts.total()} changes of {len(cases)} cases on {device()!r}:", markup=False)
    for outcome_name, count in sorted(counts.items()):
        console.print(f"  {count:8} {outcome_name}", markup=False)
    for (op, outcome_name), count in errors.most_common():
        console.print(f"  {count:8} {outcome_name}: {op}", markup=False)
    raise typer.Exit(bool(errors))


def _elements(case: Case) -> int:
    """Return a sort key by elements: the largest case of at most FEW comes last, and represents its operator."""
    sizes: list[int] = []
    walk(list(case.args), lambda a: sizes.append(math.prod(a.shape)) if isinstance(a, T) else None)
    return sum(sizes) if sum(sizes) <= FEW else -sum(sizes)


def _results(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays: dict[int, np.ndarray] = {}

    def make(a: Any) -> None:
        if isinstance(a, T):
            arrays[id(a)] = a.make(rng)

    walk(list(case.args), make)
    return reference(case, arrays, wide=False)


if __name__ == "__main__":
    app()
