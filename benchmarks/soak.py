"""Ask a server for a long time as nobody should: `python -m benchmarks.soak --minutes 10 --clients 20`.

Clients ask, leave in the middle, and send what is malformed, at random. Then a second server is told to stop while they
do. What has to hold: no answer is a failure of the server, the same request always has the same answer, memory does not
grow, nothing is left running, and the server that stops finishes what it began.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from .clients import Connection, Refused, events
from .serve import MODEL

EVERY = 2.0  # seconds between two looks at the memory
FLAT = 0.02  # growth of the memory in the second half, as a share
FIXED = 12  # requests that are asked again and again
TEXTS = ("Once upon a time", "The wolf", "A king had three sons", "In the forest", "She said", "The mill stood still")
BUSY = ("ptegpu_running", "ptegpu_queue", "ptegpu_cache_pages_used")
BROKEN: tuple[tuple[str, bytes], ...] = (
    ("application/json", b"{"),
    ("application/json", b"[1, 2]"),
    ("application/json", b'{"prompt": "x", "max_tokens": -1}'),
    ("application/json", b'{"prompt": "x", "temperature": NaN}'),
    ("application/json", b'{"prompt": "x", "temperature": 1e999}'),
    ("application/json", b'{"prompt": "x", "unknown": 1}'),
    ("application/json", b'{"prompt": [99999999]}'),
    ("application/json", b'{"prompt": []}'),
    ("application/json", b'{"prompt": {"a": 1}}'),
    ("application/json", b'{"prompt": "x", "n": 1000}'),
    ("application/json", b'{"prompt": "x", "model": "nobody"}'),
    ("application/json", b'{"prompt": "\\ud800"}'),
    ("application/json", b"[" * 100_000),
    ("application/json", b'{"prompt": "' + b"word " * 5000 + b'"}'),
    ("application/json", b'{"prompt": "' + b"x" * (2 << 20) + b'"}'),
    ("application/json", b"\xff\xfe\x00"),
    ("text/plain", b'{"prompt": "x"}'),
)


class Soak:
    """The clients of one server."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.chosen = url, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.answers: dict[int, str] = {}  # of fixed requests
        self.stopping = False

    async def client(self, end: float) -> None:
        while time.monotonic() < end and not self.stopping:
            try:
                what = self.chosen.random()
                await (self.asks(self.any()) if what < 0.6 else self.leaves() if what < 0.8 else self.sends_nonsense())
            except (OSError, asyncio.IncompleteReadError) as error:
                if not self.stopping:
                    self.errors.append(f"{type(error).__name__}: {error}")
                self.counts["no connection"] += 1

    def request(self, number: int) -> dict[str, Any]:
        """That of a number is always the same."""
        drawn = random.Random(number)
        body: dict[str, Any] = {"prompt": drawn.choice(TEXTS), "max_tokens": drawn.randrange(1, 40), "seed": number}
        body |= drawn.choice([{}, {"temperature": 0}, {"temperature": 0.8, "top_p": 0.9}, {"repeat_penalty": 1.2}])
        return body | drawn.choice([{}, {}, {"stop": ["the"]}, {"stop": "."}])

    def any(self) -> int:
        return self.chosen.randrange(FIXED) if self.chosen.random() < 0.5 else self.chosen.randrange(100, 10**6)

    async def asks(self, number: int) -> None:
        text, reason = "", None
        try:
            async for event in events(f"{self.url}/completions", self.request(number) | {"stream": True}):
                choice = event["choices"][0]
                text, reason = text + choice["text"], choice["finish_reason"] or reason
        except Refused as error:
            expected = error.status == 429 or (self.stopping and "the server is stopping" in str(error))
            self.counts[f"{error.status}{'' if error.status != 200 else ', then stopped'}"] += 1
            if not expected:
                self.errors.append(str(error))
            await asyncio.sleep(self.chosen.random())
            return
        self.counts["200"] += 1
        if reason not in ("stop", "length"):
            self.errors.append(f"a stream ended without a reason, after {text!r}")
        elif number < FIXED and self.answers.setdefault(number, text) != text:
            self.errors.append(f"request {number} had {self.answers[number]!r}, then {text!r}")

    async def leaves(self) -> None:
        """Before the answer, in the middle of it, or of the request."""
        self.counts["left"] += 1
        body = json.dumps(self.request(self.chosen.randrange(10**6)) | {"stream": True, "max_tokens": 60}).encode()
        async with Connection(f"{self.url}/completions") as connection:
            how = self.chosen.random()
            await connection.post(body[: len(body) // 2] if how < 0.2 else body, length=len(body))
            if how < 0.4:
                await asyncio.sleep(self.chosen.random())
                return
            await connection.status()
            async for _ in connection.parts():
                if self.chosen.random() < 0.2:
                    return

    async def sends_nonsense(self) -> None:
        kind, body = self.chosen.choice(BROKEN)
        path = self.chosen.choice(["completions", "completions", "chat/completions", "embeddings", "nowhere"])
        method = self.chosen.choice(["POST", "POST", "POST", "PUT"])
        async with Connection(f"{self.url}/{path}") as connection:
            try:
                await connection.post(body, kind=kind, method=method)
            except ConnectionError:  # it is refused before all of it was sent
                pass
            try:
                status = await connection.status()
            except ConnectionError:
                self.counts["refused by closing"] += 1
                return
        self.counts[str(status)] += 1
        if not 400 <= status < 500:
            self.errors.append(f"{status} for {method} {path} {body[:60]!r}")


@asynccontextmanager
async def served(model: Path, *more: str) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own, in a process."""
    command = [sys.executable, "-m", "ptegpu", "serve", str(model), "--port", "0", "--json", "--precision", "exact"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([*command, *more], env=paths, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = ""
            while not said.endswith("}\n"):
                assert process.stdout is not None
                line = await asyncio.to_thread(process.stdout.readline)
                if not line:
                    raise SystemExit(f"the server ended with {process.wait()}")
                said += line
            yield process, json.loads(said)["url"]
        finally:
            process.kill()


def resident(number: int) -> float:
    """MB of memory of a process and of those that it started."""
    try:
        own = int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
        children = " ".join(path.read_text() for path in Path(f"/proc/{number}/task").glob("*/children"))
    except FileNotFoundError:  # it has ended
        return 0.0
    return own + sum(resident(int(child)) for child in children.split())


async def metrics(url: str) -> dict[str, float]:
    async with Connection(url.replace("/v1", "/metrics")) as connection:
        await connection.post(b"", method="GET")
        assert await connection.status() == 200
        text = b"".join([part async for part in connection.parts()]).decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def until_idle(url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of a server that nobody asks any more, and what of them is not 0 although it should be."""
    for _ in range(100):
        found = await metrics(url)
        left = {name: value for name, value in found.items() if name.startswith(BUSY) and value}
        if not left:
            break
        await asyncio.sleep(0.1)
    return found, left


async def soak(given: argparse.Namespace) -> list[str]:
    """For a long time."""
    async with served(given.model, "--sequences", "8", "--queue", "10") as (process, url):
        load = Soak(url, given.seed)
        end = time.monotonic() + 60 * given.minutes
        clients = [asyncio.create_task(load.client(end)) for _ in range(given.clients)]
        sizes = []
        while not all(task.done() for task in clients):
            await asyncio.sleep(EVERY)
            sizes.append(resident(process.pid))
            if len(sizes) % 15 == 0:
                print(f"{len(sizes) * EVERY:.0f} s: {sizes[-1]:.1f} MB, {dict(load.counts)}", flush=True)
        for task in clients:
            task.result()
        found, left = await until_idle(url)
    quarter = max(1, len(sizes) // 4)
    before, after = median(sizes[quarter : 2 * quarter]), median(sizes[-quarter:])
    tokens = sum(value for name, value in found.items() if name.startswith("ptegpu_generated_tokens_total"))
    print(f"answers: {dict(load.counts)}; {tokens:.0f} tokens; {len(load.errors)} errors")
    print(f"memory: {sizes[0]:.1f} MB at first, {before:.1f} in the second quarter, {after:.1f} in the last")
    print(f"left over: {left or 'nothing'}")
    failures = [*load.errors[:5], *([f"left over: {left}"] if left else [])]
    if after > before * (1 + FLAT):
        failures.append(f"memory grew from {before:.1f} to {after:.1f} MB in the second half")
    return failures


async def stop(given: argparse.Namespace) -> list[str]:
    """A server that is told to stop meanwhile."""
    async with served(given.model, "--sequences", "8", "--queue", "10", "--drain", "60") as (process, url):
        load = Soak(url, given.seed + 1)
        end = time.monotonic() + 120
        clients = [asyncio.create_task(load.client(end)) for _ in range(given.clients)]
        await asyncio.sleep(min(20.0, 30 * given.minutes))
        before = dict(load.counts)
        load.stopping = True  # they ask nothing new; what they asked is to be answered
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        code = await asyncio.to_thread(process.wait, 120)
        took = time.monotonic() - began
        await asyncio.gather(*clients)
    print(f"stopping: {before} before the signal, {dict(load.counts)} after; ended with {code} in {took:.1f} s")
    unfinished = load.counts["200, then stopped"]
    failures = load.errors[:5] + ([f"the server ended with {code}"] if code else [])
    return failures + ([f"{unfinished} streams were not finished"] if unfinished else [])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL, help="a .pte file (the bundled one)")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    failures = [*asyncio.run(soak(given)), *asyncio.run(stop(given))]
    for failure in failures:
        print(f"failed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
