"""Load a language model with many requests: `python -m benchmarks.serve [SCENARIO ...]`. docs/benchmarks.md has more.

python -m benchmarks.serve                               the bundled model, through a server that the command starts
python -m benchmarks.serve --in-process                  the engine of batches itself, without HTTP
python -m benchmarks.serve --url http://HOST:PORT/v1     a server that runs
python -m benchmarks.serve clients arrivals --in-process --model model.pte --json found.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import ptegpu
from ptegpu.format import read_program
from ptegpu.models.card import read_card
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.signature import read_signature

from .clients import (
    Answer,
    Ask,
    Http,
    InProcess,
    Target,
    as_they_come,
    figures,
    lengths,
    prompt_of,
    some_at_a_time,
    timed,
    together,
)

MODEL = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
TABLE_WIDTH = 160  # where there is no terminal
SHORT = 16  # tokens of a prompt
CLOSE = {"exact": 1e-3, "other": 5e-2}  # log-probabilities, relative to 1 or to themselves
Row = dict[str, Any]


class Load:
    """One run of the command."""

    def __init__(self, given: argparse.Namespace, target: Target, alone: Callable[[Ask], Answer] | None) -> None:
        self.given, self.target, self.alone = given, target, alone
        self.context, self.vocabulary = given.context, given.vocabulary
        self.chosen = random.Random(given.seed)
        self.finished: list[Answer] = []  # of the busiest case of the latest scenario

    def short(self, count: int, tokens: int | None = None) -> list[Ask]:
        length, most = min(SHORT, self.context // 4), tokens or self.given.max_tokens
        most = min(most, self.context - length)
        return [Ask(prompt_of(length, self.vocabulary, self.chosen), most) for _ in range(count)]

    async def warm(self, asks: Sequence[Ask], clients: int) -> None:
        """What is done the first time shall not count."""
        await some_at_a_time(self.target, asks, clients)

    async def clients(self) -> AsyncIterator[Row]:
        """So many clients write at once, after short prompts: tokens per second of all together."""
        one = 0.0
        if self.alone is not None:
            warm, asked = self.short(2)
            self.alone(warm)
            answer = self.alone(asked)
            yield row("LanguageModel", figures([answer], answer.times[-1] - answer.started), together([answer]))
        for count in self.given.clients:
            await self.warm(self.short(count, 8), count)
            asks = self.short(count)
            answers, seconds = await timed(some_at_a_time(self.target, asks, len(asks)))
            rate = together(answers)
            one = one or rate
            self.finished = answers
            ratio = f"{rate / one:.1f} × {self.given.clients[0]}" if count > self.given.clients[0] else ""
            yield row(f"{count} client{'s' * (count > 1)}", figures(answers, seconds), rate, ratio)

    async def arrivals(self) -> AsyncIterator[Row]:
        """Some clients write while long prompts keep coming: the time between the tokens of those who write."""
        count, seconds, rate = self.given.writers, self.given.seconds, self.given.rate
        length = min(self.given.prompt, self.context - 16)
        await self.warm([*self.short(count, 8), *self._long(length, 2)], count + 2)
        for prompts in (0, max(1, round(rate * seconds))):
            end = time.perf_counter() + seconds
            coming = asyncio.create_task(as_they_come(self.target, self._long(length, prompts), rate, self.chosen))
            answers, took = await timed(some_at_a_time(self.target, self._until(end), count))
            came = await coming
            found = figures(answers, took)
            between, notes = found["between ms"], []
            if between:
                notes.append(f"p99 {between['p99'] / between['p50']:.2f} × p50")
            if prompts:
                found["arrivals"] = figures(came, took)
                first = found["arrivals"]["first ms"].get("p50", 0.0)
                notes.append(f"{prompts} prompts of {length}, {rate:g}/s, first token {first:.0f} ms (p50)")
                notes.append(f"{beside(answers, came):.0%} of tokens beside one")
                found["errors"] += found["arrivals"]["errors"]
                found["first error"] = found["first error"] or found["arrivals"]["first error"]
            self.finished = [*answers, *came]
            yield row(f"{count} writing{', prompts arrive' if prompts else ''}", found, note="; ".join(notes))

    def _long(self, length: int, count: int) -> list[Ask]:
        return [Ask(prompt_of(length, self.vocabulary, self.chosen), 4) for _ in range(count)]

    def _until(self, end: float) -> Iterator[Ask]:
        while time.perf_counter() < end:
            yield from self.short(1)

    async def closed(self) -> AsyncIterator[Row]:
        """Requests of many lengths, some at a time, and one at a time."""
        async for made in self._mixed(lambda asks: some_at_a_time(self.target, asks, self.given.users)):
            yield made

    async def open(self) -> AsyncIterator[Row]:
        """Requests of many lengths that come by chance, and one at a time."""
        async for made in self._mixed(lambda asks: as_they_come(self.target, asks, self.given.rate, self.chosen)):
            yield made

    async def _mixed(self, load: Callable[[Sequence[Ask]], Any]) -> AsyncIterator[Row]:
        given = self.given
        pairs = lengths(given.requests, self.context, given.max_tokens, random.Random(given.seed))
        asks, again = (  # of the same lengths, but no page of the others is of use
            [Ask(prompt_of(length, self.vocabulary, self.chosen), most) for length, most in pairs] for _ in range(2)
        )
        await self.warm(self.short(given.users, 8), given.users)
        answers, seconds = await timed(load(asks))
        self.finished = answers
        how = f"{given.users} clients" if given.scenario == "closed" else f"{given.rate:g} a second"
        many = figures(answers, seconds)
        one_by_one, seconds = await timed(some_at_a_time(self.target, again, 1))
        one = figures(one_by_one, seconds)
        yield row(how, many, note=f"{many['tok/s'] / one['tok/s']:.1f} × one at a time")
        yield row("one at a time", one)

    async def check(self, exact: bool) -> str:
        """Some of those who were answered together, once more by themselves: how many differ, in words; "" if none."""
        good = [a for a in self.finished if a.tokens and not a.error]
        some = random.Random(self.given.seed).sample(good, min(self.given.check, len(good)))
        differ = []
        for answer in some:
            alone = self.alone(answer.ask) if self.alone else await self.target.ask(answer.ask)
            why = difference(answer, alone, exact)
            differ += [why] if why else []
        self.checked = len(some)
        return f"{len(differ)} of {len(some)} differ from the same alone: {differ[0]}" if differ else ""


def row(case: str, found: Row, decode: float | None = None, note: str = "") -> Row:
    return {"case": case, **found, "decode tok/s": decode, "note": note}


def beside(answers: Sequence[Answer], came: Sequence[Answer]) -> float:
    """The share of tokens that came while a prompt was on its way to its first token."""
    busy = [(a.started, a.times[0]) for a in came if a.times]
    times = [t for a in answers for t in a.times[1:]]
    return sum(any(begin <= t <= end for begin, end in busy) for t in times) / max(1, len(times))


def difference(many: Answer, alone: Answer, exact: bool) -> str:
    """What differs. Rounding may turn a near tie, after which texts differ; in exact mode there is no such thing."""
    close = CLOSE["exact" if exact else "other"]
    pairs = zip(many.tokens, alone.tokens, many.logprobs, alone.logprobs)
    for k, (a, b, p, q) in enumerate(pairs):
        if abs(p - q) > close * max(1.0, abs(q)):
            return f"token {k} has log-probability {p:.5f}, not {q:.5f}"
        if a != b:
            return f"token {k} is {a!r}, not {b!r}" if exact else ""
    return "" if len(many.tokens) == len(alone.tokens) else f"{len(many.tokens)} tokens, not {len(alone.tokens)}"


def one_by_one(model: LanguageModel) -> Callable[[Ask], Answer]:
    def ask(asked: Ask) -> Answer:
        answer = Answer(asked, time.perf_counter())
        made = model.generate(asked.prompt, max_tokens=asked.max_tokens, stop_tokens=())
        answer.tokens, answer.logprobs = made.tokens, made.logprobs
        first = time.perf_counter() - made.timings.decode_s
        step = made.timings.decode_s / max(1, len(made.tokens) - 1)
        answer.times = [first + step * k for k in range(len(made.tokens))]
        return answer

    return ask


# --- the command


SCENARIOS = ("clients", "arrivals", "closed", "open")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(SCENARIOS)} (all of them)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a .pte file (the bundled one)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--in-process", action="store_true", help="the engine itself, without a server")
    where.add_argument("--url", help="of a server that runs, with /v1 at its end")
    parser.add_argument("--key", default="", help="for that server")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64], metavar="N", help="of `clients`")
    parser.add_argument("--writers", type=int, default=16, help="of `arrivals`: clients that write (16)")
    parser.add_argument("--prompt", type=int, default=512, help="of `arrivals`: tokens of prompts that arrive (512)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of `arrivals`, twice (20)")
    parser.add_argument("--users", type=int, default=16, help="of `closed`: clients (16)")
    parser.add_argument("--rate", type=float, default=4.0, help="of `arrivals` and `open`: requests per second (4)")
    parser.add_argument("--requests", type=int, default=64, help="of `closed` and `open` (64)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer at most (128)")
    parser.add_argument("--check", type=int, default=4, help="answers to compare with the same alone, each time (4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, help="that of the model; 1024 where it is not known")
    parser.add_argument("--vocabulary", type=int, help="that of the model; 256 where it is not known")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto", choices=("auto", "wgpu", "dawn"))
    parser.add_argument("--precision", default="auto", choices=("auto", "exact", "fast"))
    parser.add_argument("--cache", default="f32", choices=("f32", "f16"))
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--memory", type=float, help="GiB for the cache")
    parser.add_argument("--beside", type=int, help="in the process: rows of prompts beside those that write")
    parser.add_argument("--rows", type=int, help="in the process: rows of a run")
    parser.add_argument("--no-prepare", action="store_true", help="in the process: compile what is needed on the way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return given


@contextmanager
def in_process(given: argparse.Namespace, console: Console) -> Iterator[tuple[Target, Callable[[Ask], Answer] | None]]:
    device = int(given.device) if given.device.isdigit() else given.device
    how: dict[str, Any] = {"engine": given.engine, "precision": given.precision, "cache": given.cache}
    many = {"sequences": given.sequences, "memory": None if given.memory is None else int(given.memory * 2**30)}
    many |= {name: value for name in ("beside", "rows") if (value := getattr(given, name)) is not None}
    began = time.perf_counter()
    with BatchEngine(given.model, device, queue=None, **many, **how) as engine:
        loaded = time.perf_counter()
        if not given.no_prepare:
            engine.prepare()
        ready = time.perf_counter()
        console.print(
            f"{engine.alone or 'many at once'}; loaded in {loaded - began:.1f} s, "
            f"compiled in {ready - loaded:.1f} s; {engine.stats().pages_total} pages",
            highlight=False,
        )
        if given.check:
            with LanguageModel(given.model, device, **how) as model:
                yield InProcess(engine), one_by_one(model)
        else:
            yield InProcess(engine), None


@contextmanager
def started(given: argparse.Namespace) -> Iterator[str]:
    """The address of a server that ends with this."""
    command = [sys.executable, "-m", "ptegpu", "serve", str(given.model), "--port", "0", "--json", "--queue", "1000"]
    for name in ("device", "engine", "precision", "cache", "sequences", "memory"):
        value = getattr(given, name)
        command += [] if value is None else [f"--{name}", str(value)]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(command, env=paths, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not said.endswith("}\n"):
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the server ended with {process.wait()}")
                said += line
            yield json.loads(said)["url"]
        finally:
            process.terminate()


def table(rows: Sequence[Row]) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("case", "requests", "errors", "tok/s", "decode", "first token ms", "between tokens ms", "note"):
        made.add_column(name, justify="left" if name in ("case", "note") else "right")
    for r in rows:
        decode = "" if r["decode tok/s"] is None else f"{r['decode tok/s']:,.0f}"
        times = [" / ".join(f"{v:.1f}" for v in r[name].values()) for name in ("first ms", "between ms")]
        made.add_row(r["case"], str(r["requests"]), str(r["errors"]), f"{r['tok/s']:,.0f}", decode, *times, r["note"])
    return made


async def run(load: Load, given: argparse.Namespace, console: Console) -> tuple[list[Row], list[str]]:
    found: list[Row] = []
    failures: list[str] = []
    for name in given.scenarios or SCENARIOS:
        given.scenario = name
        scenario: Callable[[], AsyncIterator[Row]] = getattr(load, name)
        rows = [{"scenario": name, **made} async for made in scenario()]
        console.print(f"\n[bold]{name}[/]: {scenario.__doc__} p50 / p95 / p99", highlight=False, soft_wrap=True)
        console.print(table(rows), highlight=False)
        found += rows
        failures += [f"{name}, {r['case']}: {r['errors']} errors: {r['first error']}" for r in rows if r["errors"]]
        if given.check:
            differ = await load.check(given.precision == "exact")
            failures += [f"{name}: {differ}"] if differ else []
            if not differ:
                console.print(f"{load.checked} of them got the same alone", highlight=False)
        if given.json:
            how = {k: str(v) if isinstance(v, Path) else v for k, v in vars(given).items() if k != "key"}
            given.json.write_text(json.dumps({"how": how, "rows": found, "failures": failures}, indent=1) + "\n")
    return found, failures


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    warnings.simplefilter("ignore", UserWarning)  # what an engine warns of is in the first line
    if not given.url:
        given.model = given.model or MODEL
        file = read_program(given.model)
        signature = read_signature(file, read_card(file))
        given.context, given.vocabulary = given.context or signature.context, given.vocabulary or signature.vocabulary
    given.context, given.vocabulary = given.context or 1024, given.vocabulary or 256
    if given.in_process:
        with in_process(given, console) as (target, alone):
            failures = asyncio.run(run(Load(given, target, alone), given, console))[1]
    elif given.url:
        failures = asyncio.run(run(Load(given, Http(given.url, given.key), None), given, console))[1]
    else:
        with started(given) as url:
            failures = asyncio.run(run(Load(given, Http(url), None), given, console))[1]
    for failure in failures:
        console.print(f"failed: {failure}", highlight=False, markup=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
