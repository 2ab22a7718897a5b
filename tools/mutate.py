"""Mutate programs, delegates, data files and bundles by their structure, and read, load and run the mutants.

    python -m tools.mutate --count 1000000                  # read only
    python -m tools.mutate --count 100000 --load --run      # in full; add -O after python to remove asserts
    python -m tools.mutate --count 100000 --load --run --state mutate.json   # resumes

Mutant `n` of a seed is always the same. Counts by outcome come last. A mutant that raised an unexpected error is saved
under `--save`, and the status is 1. `python -m tools.fuzz` changes files by coverage.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console
from tests import mutants
from tests.cases import device
from tests.plan import mutants as documents

import ptegpu

EVERY = 200  # mutants between two saves of the state
app = typer.Typer(add_completion=False, help=__doc__)
console = Console()


@app.command()
def main(
    count: int = 10_000,
    load: bool = typer.Option(False, "--load", help="load readable files"),
    run: bool = typer.Option(False, "--run", help="call loaded programs with zeros and ones"),
    seed: int = 0,
    corpus: Path | None = typer.Option(None, help="a folder of further .pte files"),
    save: Path = typer.Option(Path("build/mutants"), help="folder for files that cause errors"),
    state: Path | None = typer.Option(None, help="file with the progress, to resume from"),
) -> None:
    """Mutate."""
    done, counts = _progress(state)
    errors = Counter[tuple[str, str]]()
    for number, name, content, data in _mutants(range(done, count), seed, corpus):
        if load and not name.endswith(".bundle"):  # whose kernels may be any text
            outcome, message = mutants.run(content, device(), data=data, call=run)
        else:
            outcome, message = _read(name, content if data is None or name == "dynamic" else data[0])
        counts[outcome] += 1
        if outcome.startswith("wrong"):
            save.mkdir(parents=True, exist_ok=True)
            (save / f"{seed}-{number}").write_bytes(content if data is None or name == "dynamic" else data[0])
            errors[outcome, message.split(": ")[0]] += 1
            with (save / "wrong.txt").open("a") as f:
                f.write(f"{seed}-{number} | {name[:60]} | {outcome} | {message[:300]!r}\n")
        if state is not None and number % EVERY == EVERY - 1:
            state.write_text(json.dumps({"done": number + 1, "counts": counts}))
    console.print(f"{counts.total()} mutants, assertions {'on' if __debug__ else 'off'}:")
    for outcome, n in counts.most_common():
        console.print(f"  {n:9} {outcome}", markup=False)
    for (outcome, place), n in errors.most_common(40):
        console.print(f"  {n:9} {outcome} at {place}", markup=False)
    raise typer.Exit(any(outcome.startswith("wrong") for outcome in counts))


def _progress(state: Path | None) -> tuple[int, Counter[str]]:
    if state is None or not state.exists():
        return 0, Counter()
    saved = json.loads(state.read_text())
    return saved["done"], Counter(saved["counts"])


def _mutants(numbers: range, seed: int, corpus: Path | None) -> Iterator[tuple[int, str, bytes, list[bytes] | None]]:
    """Yield the numbers, names, contents and data files of mutants."""
    seeds = mutants.seeds()
    seeds |= {p.name: p.read_bytes() for p in sorted(corpus.rglob("*.pte"))} if corpus else {}
    readable = {}
    for name, content in seeds.items():
        try:
            readable[name] = mutants.read(content)
        except ptegpu.PtegpuError:
            continue
    data = {p.name: mutants.read(p.read_bytes()) for p in sorted(mutants.DATA.glob("*.ptd"))}
    dynamic = mutants.read((mutants.DATA / "dynamic.pte").read_bytes())
    bundles = [documents.parts(_bundle(seeds[name])) for name in ("mlp.pte", "control.pte", "state")]
    names, files = list(readable), list(data)
    for number in numbers:
        rng = random.Random(f"{seed}:{number}")
        match number % 20:
            case 0:
                document, rest = rng.choice(bundles)
                ((_, changed),) = documents.mutants(document, 1, rng.randrange(2**31))
                yield number, f"{number}.bundle", documents.whole(changed, rest), None
            case 1:
                name = rng.choice(files)
                others = [data[f].content for f in files if f != name]
                yield number, name, dynamic.content, [mutants.mutant(data[name], rng), *others]
            case 2:
                yield number, "dynamic", mutants.mutant(dynamic, rng), [d.content for d in data.values()]
            case _:
                name = rng.choice(names)
                yield number, name, mutants.mutant(readable[name], rng), None


def _bundle(content: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        ptegpu.compile(content).save(path := Path(folder) / "bundle")
        return path.read_bytes()


def _read(name: str, content: bytes) -> tuple[str, str]:
    if not name.endswith(".bundle"):
        return mutants.parsed(content)
    try:
        ptegpu.Bundle.load(content)
    except ptegpu.PtegpuError as e:
        return type(e).__name__, str(e)
    except Exception as e:
        return f"wrong: {type(e).__name__}", str(e)
    return "read", ""


if __name__ == "__main__":
    app()
