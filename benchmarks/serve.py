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
    joint_rate,
    lengths,
    prompt_of,
    some_at_a_time,
    timed,
)

MODEL = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
TABLE_WIDTH = 160  # without a terminal
SHORT = 16  # tokens of a prompt
CLOSE = {"exact": 1e-3, "other": 5e-2}  # log-probabilities, relative to 1 or to themselves
Row = dict[str, Any]


class Load:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, target: Target, single: Callable[[Ask], Answer] | None) -> None:
        self.options, self.target, self.single = options, target, single
        self.context, self.vocabulary = options.context, options.vocabulary
        self.chosen = random.Random(options.seed)
        self.finished: list[Answer] = []  # of the busiest case of the latest scenario

    def short(self, count: int, tokens: int | None = None) -> list[Ask]:
        length, most = min(SHORT, self.context // 4), tokens or self.options.max_tokens
        most = min(most, self.context - length)
        return [Ask(prompt_of(length, self.vocabulary, self.chosen), most) for _ in range(count)]

    async def warm(self, asks: Sequence[Ask], clients: int) -> None:
        """Do the work of first runs, which must not count."""
        await some_at_a_time(self.target, asks, clients)

    async def clients(self) -> AsyncIterator[Row]:
        """Several clients write at once, after short prompts: tokens per second of all."""
        first_rate = 0.0
        if self.single is not None:
            warm, request = self.short(2)
            self.single(warm)
            answer = self.single(request)
            yield row("LanguageModel", figures([answer], answer.times[-1] - answer.started), joint_rate([answer]))
        for count in self.options.clients:
            await self.warm(self.short(count, 8), count)
            asks = self.short(count)
            answers, seconds = await timed(some_at_a_time(self.target, asks, len(asks)))
            rate = joint_rate(answers)
            first_rate = first_rate or rate
            self.finished = answers
            ratio = f"{rate / first_rate:.1f} × {self.options.clients[0]}" if count > self.options.clients[0] else ""
            yield row(f"{count} client{'s' * (count > 1)}", figures(answers, seconds), rate, ratio)

    async def arrivals(self) -> AsyncIterator[Row]:
        """Some clients write while long prompts keep coming: the time between the tokens of those who write."""
        count, seconds, rate = self.options.writers, self.options.seconds, self.options.rate
        length = min(self.options.prompt, self.context - 16)
        await self.warm([*self.short(count, 8), *self._long(length, 2)], count + 2)
        for prompts in (0, max(1, round(rate * seconds))):
            end = time.perf_counter() + seconds
            coming = asyncio.create_task(as_they_come(self.target, self._long(length, prompts), rate, self.chosen))
            answers, took = await timed(some_at_a_time(self.target, self._until(end), count))
            came = await coming
            results = figures(answers, took)
            between, notes = results["between ms"], []
            if between:
                notes.append(f"p99 {between['p99'] / between['p50']:.2f} × p50")
            if prompts:
                results["arrivals"] = figures(came, took)
                first = results["arrivals"]["first ms"].get("p50", 0.0)
                notes.append(f"{prompts} prompts of {length}, {rate:g}/s, first token {first:.0f} ms (p50)")
                notes.append(f"{beside(answers, came):.0%} of tokens beside one")
                results["errors"] += results["arrivals"]["errors"]
                results["first error"] = results["first error"] or results["arrivals"]["first error"]
            self.finished = [*answers, *came]
            yield row(f"{count} writing{', prompts arrive' if prompts else ''}", results, note="; ".join(notes))

    def _long(self, length: int, count: int) -> list[Ask]:
        return [Ask(prompt_of(length, self.vocabulary, self.chosen), 4) for _ in range(count)]

    def _until(self, end: float) -> Iterator[Ask]:
        while time.perf_counter() < end:
            yield from self.short(1)

    async def closed(self) -> AsyncIterator[Row]:
        """Requests of many lengths, some at a time, and one at a time."""
        async for result in self._mixed(lambda asks: some_at_a_time(self.target, asks, self.options.users)):
            yield result

    async def open(self) -> AsyncIterator[Row]:
        """Requests of many lengths that come by chance, and one at a time."""
        async for result in self._mixed(lambda asks: as_they_come(self.target, asks, self.options.rate, self.chosen)):
            yield result

    async def _mixed(self, load: Callable[[Sequence[Ask]], Any]) -> AsyncIterator[Row]:
        options = self.options
        pairs = lengths(options.requests, self.context, options.max_tokens, random.Random(options.seed))
        asks, again = (  # of the same lengths, but no page of the others is of use
            [Ask(prompt_of(length, self.vocabulary, self.chosen), most) for length, most in pairs] for _ in range(2)
        )
        await self.warm(self.short(options.users, 8), options.users)
        answers, seconds = await timed(load(asks))
        self.finished = answers
        case = f"{options.users} clients" if options.scenario == "closed" else f"{options.rate:g} a second"
        loaded = figures(answers, seconds)
        answers_in_turn, seconds = await timed(some_at_a_time(self.target, again, 1))
        sequential = figures(answers_in_turn, seconds)
        yield row(case, loaded, note=f"{loaded['tok/s'] / sequential['tok/s']:.1f} × one at a time")
        yield row("one at a time", sequential)

    async def check(self, exact: bool) -> str:
        """Repeat some answers one at a time; return a message about those that differ, or an empty string."""
        good = [a for a in self.finished if a.tokens and not a.error]
        some = random.Random(self.options.seed).sample(good, min(self.options.check, len(good)))
        differ = []
        for answer in some:
            expected = self.single(answer.ask) if self.single else await self.target.ask(answer.ask)
            why = difference(answer, expected, exact)
            differ += [why] if why else []
        self.checked = len(some)
        return f"{len(differ)} of {len(some)} differ from the same alone: {differ[0]}" if differ else ""


def row(case: str, figures: Row, decode: float | None = None, note: str = "") -> Row:
    return {"case": case, **figures, "decode tok/s": decode, "note": note}


def beside(answers: Sequence[Answer], came: Sequence[Answer]) -> float:
    """Return the share of tokens that arrived while a prompt was being processed."""
    busy = [(a.started, a.times[0]) for a in came if a.times]
    times = [t for a in answers for t in a.times[1:]]
    return sum(any(begin <= t <= end for begin, end in busy) for t in times) / max(1, len(times))


def difference(answer: Answer, other: Answer, exact: bool) -> str:
    """Return the first difference, or an empty string. Unless `exact`, texts may differ after a near tie."""
    close = CLOSE["exact" if exact else "other"]
    pairs = zip(answer.tokens, other.tokens, answer.logprobs, other.logprobs)
    for k, (a, b, p, q) in enumerate(pairs):
        if abs(p - q) > close * max(1.0, abs(q)):
            return f"token {k} has log-probability {p:.5f}, not {q:.5f}"
        if a != b:
            return f"token {k} is {a!r}, not {b!r}" if exact else ""
    return "" if len(answer.tokens) == len(other.tokens) else f"{len(answer.tokens)} tokens, not {len(other.tokens)}"


def one_by_one(model: LanguageModel) -> Callable[[Ask], Answer]:
    def ask(request: Ask) -> Answer:
        answer = Answer(request, time.perf_counter())
        generation = model.generate(request.prompt, max_tokens=request.max_tokens, stop_tokens=())
        answer.tokens, answer.logprobs = generation.tokens, generation.logprobs
        first = time.perf_counter() - generation.timings.decode_s
        step = generation.timings.decode_s / max(1, len(generation.tokens) - 1)
        answer.times = [first + step * k for k in range(len(generation.tokens))]
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
    parser.add_argument("--cache", default="f32", choices=("f32", "f16", "q8"))
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--memory", type=float, help="GiB for the cache")
    parser.add_argument("--beside", type=int, help="in the process: rows of prompts beside those that write")
    parser.add_argument("--rows", type=int, help="in the process: rows of a run")
    parser.add_argument("--no-prepare", action="store_true", help="in the process: compile what is needed on the way")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    return options


@contextmanager
def in_process(
    options: argparse.Namespace, console: Console
) -> Iterator[tuple[Target, Callable[[Ask], Answer] | None]]:
    device = int(options.device) if options.device.isdigit() else options.device
    load_options: dict[str, Any] = {"engine": options.engine, "precision": options.precision, "cache": options.cache}
    limits = {"sequences": options.sequences, "memory": None if options.memory is None else int(options.memory * 2**30)}
    limits |= {name: value for name in ("beside", "rows") if (value := getattr(options, name)) is not None}
    began = time.perf_counter()
    with BatchEngine(options.model, device, queue=None, **limits, **load_options) as engine:
        loaded = time.perf_counter()
        if not options.no_prepare:
            engine.prepare()
        ready = time.perf_counter()
        console.print(
            f"{engine.alone or 'many at once'}; loaded in {loaded - began:.1f} s, "
            f"compiled in {ready - loaded:.1f} s; {engine.stats().pages_total} pages",
            highlight=False,
        )
        if options.check:
            with LanguageModel(options.model, device, **load_options) as model:
                yield InProcess(engine), one_by_one(model)
        else:
            yield InProcess(engine), None


@contextmanager
def started(options: argparse.Namespace) -> Iterator[str]:
    """Start a server and yield its address. The server ends with the block."""
    command = [sys.executable, "-m", "ptegpu", "serve", str(options.model), "--port", "0", "--json", "--queue", "1000"]
    for name in ("device", "engine", "precision", "cache", "sequences", "memory"):
        value = getattr(options, name)
        command += [] if value is None else [f"--{name}", str(value)]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(command, env=paths, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            output = ""
            while not output.endswith("}\n"):
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the server ended with {process.wait()}")
                output += line
            yield json.loads(output)["url"]
        finally:
            process.terminate()


def table(rows: Sequence[Row]) -> Table:
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("case", "requests", "errors", "tok/s", "decode", "first token ms", "between tokens ms", "note"):
        grid.add_column(name, justify="left" if name in ("case", "note") else "right")
    for r in rows:
        decode = "" if r["decode tok/s"] is None else f"{r['decode tok/s']:,.0f}"
        times = [" / ".join(f"{v:.1f}" for v in r[name].values()) for name in ("first ms", "between ms")]
        grid.add_row(r["case"], str(r["requests"]), str(r["errors"]), f"{r['tok/s']:,.0f}", decode, *times, r["note"])
    return grid


async def run(load: Load, options: argparse.Namespace, console: Console) -> tuple[list[Row], list[str]]:
    results: list[Row] = []
    failures: list[str] = []
    for name in options.scenarios or SCENARIOS:
        options.scenario = name
        scenario: Callable[[], AsyncIterator[Row]] = getattr(load, name)
        rows = [{"scenario": name, **result} async for result in scenario()]
        console.print(f"\n[bold]{name}[/]: {scenario.__doc__} p50 / p95 / p99", highlight=False, soft_wrap=True)
        console.print(table(rows), highlight=False)
        results += rows
        failures += [f"{name}, {r['case']}: {r['errors']} errors: {r['first error']}" for r in rows if r["errors"]]
        if options.check:
            differ = await load.check(options.precision == "exact")
            failures += [f"{name}: {differ}"] if differ else []
            if not differ:
                console.print(f"{load.checked} of them got the same alone", highlight=False)
        if options.json:
            settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k != "key"}
            document = {"how": settings, "rows": results, "failures": failures}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    return results, failures


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    warnings.simplefilter("ignore", UserWarning)  # what an engine warns of is in the first line
    if not options.url:
        options.model = options.model or MODEL
        file = read_program(options.model)
        signature = read_signature(file, read_card(file))
        options.context = options.context or signature.context
        options.vocabulary = options.vocabulary or signature.vocabulary
    options.context, options.vocabulary = options.context or 1024, options.vocabulary or 256
    if options.in_process:
        with in_process(options, console) as (target, single):
            failures = asyncio.run(run(Load(options, target, single), options, console))[1]
    elif options.url:
        failures = asyncio.run(run(Load(options, Http(options.url, options.key), None), options, console))[1]
    else:
        with started(options) as url:
            failures = asyncio.run(run(Load(options, Http(url), None), options, console))[1]
    for failure in failures:
        console.print(f"failed: {failure}", highlight=False, markup=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
