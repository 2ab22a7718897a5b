"""Change programs, delegates, files of data and bundles by their structure, and read, load and run what comes of it.

    python -m tools.mutate --count 1000000                  # read only
    python -m tools.mutate --count 100000 --load --run      # all the way; add -O after python for asserts that are gone
    python -m tools.mutate --count 100000 --load --run --state mutate.json   # goes on where it ended

Mutant `n` of a seed is always the same one. Counts by what became of them come last; each that raised what it may not
is saved under `--save`, and the status is 1. `python -m tools.fuzz` changes files by coverage.
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

EVERY = 200  # mutants between two looks at the state
app = typer.Typer(add_completion=False, help=__doc__)
console = Console()


@app.command()
def main(
    count: int = 10_000,
    load: bool = typer.Option(False, "--load", help="load what is read"),
    run: bool = typer.Option(False, "--run", help="call what is loaded, with zeros and ones"),
    seed: int = 0,
    corpus: Path | None = typer.Option(None, help="a folder of further .pte files"),
    save: Path = typer.Option(Path("build/mutants"), help="where files that do wrong go"),
    state: Path | None = typer.Option(None, help="where to note how far it is, and go on from"),
) -> None:
    """Mutate."""
    done, counts = _known(state)
    wrong = Counter[tuple[str, str]]()
    for number, name, content, data in _mutants(range(done, count), seed, corpus):
        if load and not name.endswith(".bundle"):  # whose kernels may be any text
            how, words = mutants.run(content, device(), data=data, call=run)
        else:
            how, words = _read(name, content if data is None or name == "dynamic" else data[0])
        counts[how] += 1
        if how.startswith("wrong"):
            save.mkdir(parents=True, exist_ok=True)
            (save / f"{seed}-{number}").write_bytes(content if data is None or name == "dynamic" else data[0])
            wrong[how, words.split(": ")[0]] += 1
            with (save / "wrong.txt").open("a") as f:
                f.write(f"{seed}-{number} | {name[:60]} | {how} | {words[:300]!r}\n")
        if state is not None and number % EVERY == EVERY - 1:
            state.write_text(json.dumps({"done": number + 1, "counts": counts}))
    console.print(f"{counts.total()} mutants, assertions {'on' if __debug__ else 'off'}:")
    for how, n in counts.most_common():
        console.print(f"  {n:9} {how}", markup=False)
    for (how, where), n in wrong.most_common(40):
        console.print(f"  {n:9} {how} at {where}", markup=False)
    raise typer.Exit(any(how.startswith("wrong") for how in counts))


def _known(state: Path | None) -> tuple[int, Counter[str]]:
    if state is None or not state.exists():
        return 0, Counter()
    found = json.loads(state.read_text())
    return found["done"], Counter(found["counts"])


def _mutants(numbers: range, seed: int, corpus: Path | None) -> Iterator[tuple[int, str, bytes, list[bytes] | None]]:
    """Their numbers, names, contents, and the data that they go with."""
    seeds = mutants.seeds()
    seeds |= {p.name: p.read_bytes() for p in sorted(corpus.rglob("*.pte"))} if corpus else {}
    known = {}
    for name, content in seeds.items():
        try:
            known[name] = mutants.read(content)
        except ptegpu.PtegpuError:
            continue
    data = {p.name: mutants.read(p.read_bytes()) for p in sorted(mutants.DATA.glob("*.ptd"))}
    dynamic = mutants.read((mutants.DATA / "dynamic.pte").read_bytes())
    bundles = [documents.parts(_bundle(seeds[name])) for name in ("mlp.pte", "control.pte", "state")]
    names, files = list(known), list(data)
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
                yield number, name, mutants.mutant(known[name], rng), None


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
