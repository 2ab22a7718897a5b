"""Misuse a server for a long time: `python -m benchmarks.soak --minutes 10 --clients 20`.

Clients send requests, disconnect early, and send malformed requests, at random. Then a second server is stopped in the
meantime. The server must not fail, the same request must always have the same answer, memory must not grow, no request
may be left running, and the server that stops must finish the requests it has begun.
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

EVERY = 2.0  # seconds between two measurements of memory
FLAT = 0.02  # growth of the memory in the second half, as a share
FIXED = 12  # requests that are repeated
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
        """Return the request with this number, which is always the same."""
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
        """Disconnect before the answer, in the middle of it, or in the middle of the request."""
        self.counts["left"] += 1
        body = json.dumps(self.request(self.chosen.randrange(10**6)) | {"stream": True, "max_tokens": 60}).encode()
        async with Connection(f"{self.url}/completions") as connection:
            chance = self.chosen.random()
            await connection.post(body[: len(body) // 2] if chance < 0.2 else body, length=len(body))
            if chance < 0.4:
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
            except ConnectionError:  # refused before it was sent completely
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
    """Start a server in a process, and yield both the process and the address."""
    command = [sys.executable, "-m", "ptegpu", "serve", str(model), "--port", "0", "--json", "--precision", "exact"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([*command, *more], env=paths, stdout=subprocess.PIPE, text=True) as process:
        try:
            output = ""
            while not output.endswith("}\n"):
                assert process.stdout is not None
                line = await asyncio.to_thread(process.stdout.readline)
                if not line:
                    raise SystemExit(f"the server ended with {process.wait()}")
                output += line
            yield process, json.loads(output)["url"]
        finally:
            process.kill()


def resident(number: int) -> float:
    """Return the MB of memory of a process and its children."""
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
    """Return the metrics of a server without requests, and those of them that should be 0 but are not."""
    for _ in range(100):
        values = await metrics(url)
        left = {name: value for name, value in values.items() if name.startswith(BUSY) and value}
        if not left:
            break
        await asyncio.sleep(0.1)
    return values, left


async def soak(options: argparse.Namespace) -> list[str]:
    """Run clients for a long time, and return failures."""
    async with served(options.model, "--sequences", "8", "--queue", "10") as (process, url):
        load = Soak(url, options.seed)
        end = time.monotonic() + 60 * options.minutes
        clients = [asyncio.create_task(load.client(end)) for _ in range(options.clients)]
        sizes = []
        while not all(task.done() for task in clients):
            await asyncio.sleep(EVERY)
            sizes.append(resident(process.pid))
            if len(sizes) % 15 == 0:
                print(f"{len(sizes) * EVERY:.0f} s: {sizes[-1]:.1f} MB, {dict(load.counts)}", flush=True)
        for task in clients:
            task.result()
        values, left = await until_idle(url)
    quarter = max(1, len(sizes) // 4)
    before, after = median(sizes[quarter : 2 * quarter]), median(sizes[-quarter:])
    tokens = sum(value for name, value in values.items() if name.startswith("ptegpu_generated_tokens_total"))
    print(f"answers: {dict(load.counts)}; {tokens:.0f} tokens; {len(load.errors)} errors")
    print(f"memory: {sizes[0]:.1f} MB at first, {before:.1f} in the second quarter, {after:.1f} in the last")
    print(f"left over: {left or 'nothing'}")
    failures = [*load.errors[:5], *([f"left over: {left}"] if left else [])]
    if after > before * (1 + FLAT):
        failures.append(f"memory grew from {before:.1f} to {after:.1f} MB in the second half")
    return failures


async def stop(options: argparse.Namespace) -> list[str]:
    """Stop a server while clients use it, and return failures."""
    async with served(options.model, "--sequences", "8", "--queue", "10", "--drain", "60") as (process, url):
        load = Soak(url, options.seed + 1)
        end = time.monotonic() + 120
        clients = [asyncio.create_task(load.client(end)) for _ in range(options.clients)]
        await asyncio.sleep(min(20.0, 30 * options.minutes))
        before = dict(load.counts)
        load.stopping = True  # no new requests; pending ones must be answered
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
    options = parser.parse_args(arguments)
    failures = [*asyncio.run(soak(options)), *asyncio.run(stop(options))]
    for failure in failures:
        print(f"failed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
