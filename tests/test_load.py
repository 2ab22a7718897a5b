"""The load tests at tiny sizes: over HTTP, in the process, and their reports of wrong answers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import pytest
from benchmarks.clients import Answer, Ask, figures, joint_rate, lengths
from benchmarks.serve import difference, main
from benchmarks.soak import Soak, until_idle

from tests.serve.conftest import Start, start

__all__ = ["start"]


def answer(times: list[float], tokens: list[int], logprobs: list[float] | None = None, error: str = "") -> Answer:
    return Answer(Ask([1, 2], 9), 1.0, times, tokens, logprobs or [-1.0] * len(tokens), error)


def test_over_http(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, file = start(encoder=False, delay=0.001), tmp_path / "found.json"
    small = ["--clients", "1", "4", "--writers", "2", "--seconds", "0.2", "--requests", "6", "--users", "3"]
    options = ["--max-tokens", "8", "--rate", "50", "--context", "64", "--json", str(file)]
    assert 0 == main(["--url", f"{server.url}/v1", *small, *options])
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert ["clients"] * 2 + ["arrivals"] * 2 + ["closed"] * 2 + ["open"] * 2 == [row["scenario"] for row in rows]
    for row in rows:
        assert row["tok/s"] > 0 and not row["errors"] and set(row["first ms"]) == {"p50", "p95", "p99"}
    assert [6, 6] == [row["requests"] for row in rows if row["scenario"] == "open"]
    assert 0 == server.engine.running
    assert 4 == capsys.readouterr().out.count("4 of them got the same alone")


def test_what_goes_wrong_over_http(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(encoder=False)
    options = ["closed", "--url", f"{server.url}/v1", "--requests", "3", "--users", "1", "--max-tokens", "4"]
    assert 1 == main([*options, "--context", "640"])  # more than the model has
    assert "failed: closed, 1 clients: " in (output := capsys.readouterr().out)
    assert "Refused: 400: " in output and "context_length_exceeded" in output
    calls = iter(range(100))
    monkeypatch.setattr("tests.serve.fake.token_at", lambda *_: next(calls) + 10)
    assert 1 == main([*options, "--context", "32", "--precision", "exact"])
    assert "failed: closed: 3 of 3 differ from the same alone: token 0 has log-probability -" in capsys.readouterr().out


@pytest.mark.slow
def test_in_the_process(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    options = ["--max-tokens", "3", "--sequences", "2", "--check", "1", "--no-prepare", "--precision", "exact"]
    assert 0 == main(["clients", "--in-process", "--clients", "2", *options, "--json", str(file)])
    cases = [(row["case"], row["tokens"]) for row in json.loads(file.read_text("utf-8"))["rows"]]
    assert [("LanguageModel", 3), ("2 clients", 6)] == cases


def test_clients_that_leave_and_send_nonsense(start: Start) -> None:
    server = start(encoder=False, delay=0.001)
    load = Soak(f"{server.url}/v1", seed=0)

    async def some() -> None:
        await asyncio.gather(*(load.client(time.monotonic() + 0.8) for _ in range(4)))
        await until_idle(f"{server.url}/v1")

    while not all(load.counts[kind] for kind in ("200", "left", "400", "404")):  # a slow machine needs more rounds
        asyncio.run(some())
    assert [] == load.errors
    load.answers[3] = "something else"
    asyncio.run(load.asks(3))
    assert 1 == len(load.errors) and load.errors[0].startswith("request 3 had 'something else', then ' w")


def test_figures() -> None:
    answers = [answer([2.0, 3.0, 5.0], [1, 2, 3]), answer([2.5, 4.5], [1, 2]), answer([], [], error="no luck")]
    results = figures(answers, 4.0)
    assert (3, 1, "no luck", 5, 1.25) == tuple(
        results[k] for k in ("requests", "errors", "first error", "tokens", "tok/s")
    )
    assert {"p50": 1250, "p95": 1475, "p99": 1495} == pytest.approx(results["first ms"])
    assert 2000 == results["between ms"]["p50"]
    assert 2 / 2.0 == joint_rate(answers)  # 3.0 and 4.5, from 2.5 to 4.5


def test_answers_differ_by_more_than_rounding() -> None:
    reference = answer([], [5, 6, 7], [-1.0, -2.0, -3.0])
    assert "" == difference(reference, reference, exact=True)
    assert "" == difference(answer([], [5, 6, 9], [-1.0, -2.0, -3.01]), reference, exact=False)
    assert "token 2 is 9, not 7" == difference(answer([], [5, 6, 9], [-1.0, -2.0, -3.0]), reference, exact=True)
    assert "token 1 has log-probability -2.50000, not -2.00000" == difference(
        answer([], [5, 9, 7], [-1.0, -2.5, -3.0]), reference, exact=False
    )
    assert "2 tokens, not 3" == difference(answer([], [5, 6], [-1.0, -2.0]), reference, exact=False)


def test_lengths_are_those_of_a_seed_and_fit() -> None:
    pairs = lengths(500, 256, 64, random.Random(1))
    assert pairs == lengths(500, 256, 64, random.Random(1))
    assert all(prompt >= 1 and 1 <= answer <= 64 and prompt + answer <= 256 for prompt, answer in pairs)
    assert len({prompt for prompt, _ in pairs}) > 50
