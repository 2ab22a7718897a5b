"""Metrics, labels and health of a server, and the messages that clients and the log get."""

from __future__ import annotations

import re

import httpx2
import pytest
from tests.serve.conftest import Running, Start
from tests.serve.fake import FakeEngine

from ptegpu.errors import DeviceLost, InvalidInput
from ptegpu.models.text.engine import Stats
from ptegpu.printing import LONGEST
from ptegpu.serve.app import api_error
from ptegpu.serve.errors import ApiError
from ptegpu.serve.metrics import Histogram, Metrics

LINE = re.compile(r'ptegpu_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.e+-]+')


def test_what_is_counted(server: Running) -> None:
    client = server.openai()
    client.completions.create(model="fake", prompt="the fox " * 10, max_tokens=5, temperature=0)
    client.completions.create(model="fake", prompt="the fox", max_tokens=3, n=2)
    server.post("/v1/completions", {})
    expected = {
        'ptegpu_requests_total{endpoint="/v1/completions",status="200"}': 2,
        'ptegpu_requests_total{endpoint="/v1/completions",status="400"}': 1,
        'ptegpu_prompt_tokens_total{model="fake"}': 24,
        'ptegpu_cached_tokens_total{model="fake"}': 16,
        'ptegpu_generated_tokens_total{model="fake"}': 11,
        'ptegpu_running{model="fake"}': 0,
        'ptegpu_cache_pages{model="fake"}': 8,
        'ptegpu_request_seconds_count{model="fake"}': 2,
        'ptegpu_first_token_seconds_count{model="fake"}': 3,
        'ptegpu_token_seconds_count{model="fake"}': 8,
        'ptegpu_token_seconds_bucket{model="fake",le="+Inf"}': 8,
    }
    assert expected == {line: server.metric(line) for line in expected}
    answer = httpx2.get(f"{server.url}/metrics")
    assert "text/plain; version=0.0.4; charset=utf-8" == answer.headers["content-type"]
    lines = [line for line in answer.text.splitlines() if not line.startswith("# ")]
    assert [] == [line for line in lines if not LINE.fullmatch(line)]


def test_proposed_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeEngine()
    monkeypatch.setattr(fake, "stats", lambda: Stats(0, 0, 0, 0.0, 0, 0, proposed=9, accepted=7))
    lines = Metrics().text({"m": fake}).splitlines()
    assert {'ptegpu_proposed_tokens_total{model="m"} 9', 'ptegpu_accepted_tokens_total{model="m"} 7'} < set(lines)


def test_a_histogram_counts_what_is_at_most_its_bounds() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.add(value)
    assert ['x_bucket{le="1"} 2', 'x_bucket{le="2"} 3', 'x_bucket{le="+Inf"} 4', "x_sum 10.0", "x_count 4"] == list(
        histogram.lines("x", ())
    )


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.count("prompt_tokens", 2, model='a"b\\c\nd\x1b\u202e')
    assert r'ptegpu_prompt_tokens_total{model="a\"b\\c\\nd\\x1b\\u202e"} 2' in metrics.text({}).splitlines()


def test_what_clients_and_the_log_are_told_is_shown_safely(capsys: pytest.CaptureFixture[str]) -> None:
    nasty = "a\x1b[2J\nerror: x\u202e" + "A" * 10_000
    for error in (ApiError(400, nasty), api_error(RuntimeError(nasty)), api_error(InvalidInput(nasty))):
        assert error.message.isprintable() and len(error.message) <= LONGEST
    logged = capsys.readouterr().err
    assert r"RuntimeError: a\x1b[2J" in logged and all(line.isprintable() for line in logged.splitlines())


def test_health(start: Start) -> None:
    server = start()
    answer = httpx2.get(f"{server.url}/healthz")
    assert (200, {"status": "ok", "errors": {}, "workers_down": {}}) == (answer.status_code, answer.json())
    server.engine.fail = DeviceLost("gone")
    answer = httpx2.get(f"{server.url}/healthz")
    expected = {"status": "failed", "errors": {"fake": "gone"}, "workers_down": {}}
    assert (503, expected) == (answer.status_code, answer.json())
