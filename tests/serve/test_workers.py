"""A process for each GPU: requests go to the one with the fewest; a process that ends is reported and restarted."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from tests.serve import fake_worker as fakes
from tests.serve.conftest import Running, wait_until

from ptegpu.errors import InvalidInput, InvalidProgram
from ptegpu.serve import Serving, bind, url_of, workers
from ptegpu.serve.run import DrainingServer, configured
from ptegpu.serve.worker import sendable
from ptegpu.serve.workers import open_workers


@contextmanager
def served(*makes: Callable[..., Any]) -> Iterator[Running]:
    reports: list[tuple[str, int, int]] = []
    names = [(str(k), make) for k, make in enumerate(makes)]
    with closing(open_workers("fake", names, lambda *progress: reports.append(progress))) as engine:
        serving = Serving({"fake": engine})
        bound = bind(port=0)
        url, server = url_of(bound), DrainingServer(configured(serving), serving)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield Running(url, engine, serving, server, thread)  # type: ignore[arg-type]
        finally:
            server.should_exit = True
            thread.join(60)


def ask(running: Running, prompt: str = "a fox", tokens: int = 20) -> str:
    response = running.openai().completions.create(model="fake", prompt=prompt, max_tokens=tokens)
    return response.choices[0].text


def streamed(running: Running) -> openai.Stream[Any]:
    return running.openai().completions.create(model="fake", prompt="x", max_tokens=900, stream=True)


def health(running: Running) -> tuple[int, str, dict[str, int]]:
    answer = httpx2.get(f"{running.url}/healthz")
    return answer.status_code, answer.json()["status"], answer.json()["workers_down"]


def test_two_workers_share_requests_and_one_that_ends_comes_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "FIRST", 0.05)
    slow = partial(fakes.make_batch, 0.02)
    with served(slow, slow) as running, ExitStack() as open_ones:
        text = ask(running).split()
        assert [text[0]] * 20 == text  # one process writes one text
        processes = []
        for _ in range(4):  # each is still running when the next begins
            processes.append(int(next(iter(open_ones.enter_context(streamed(running)))).choices[0].text))
        assert sorted(processes[:2]) == sorted(processes[2:]) and 2 == len(set(processes))
        open_ones.close()
        wait_until(lambda: running.metric('ptegpu_running{model="fake"}') == 0)
        assert (200, "ok", {}) == health(running)
        wait_until(lambda: running.metric('ptegpu_cache_pages{model="fake"}') == 16)  # pages of both

        with streamed(running) as stream:
            first = int(next(iter(stream)).choices[0].text)
            other = sum(set(processes)) - first
            os.kill(first, signal.SIGKILL)
            with pytest.raises(openai.APIError, match="the model's worker ended, and is started again"):
                list(stream)
        assert str(other) == ask(running).split()[0]
        wait_until(lambda: health(running) == (200, "ok", {}))
        assert 1 == running.metric('ptegpu_restarts_total{model="fake"}')
    expected = "worker fake on [01]: the process ended with code -9; it is started again in 0.05 s\n"
    assert re.fullmatch(expected, capfd.readouterr().err)


def test_without_a_worker_requests_are_refused_and_health_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(workers, "FIRST", 600)
    with served(partial(fakes.make_once, tmp_path / "mark")) as running:
        process = int(ask(running, tokens=1))
        with pytest.raises(openai.BadRequestError, match="the chat template refuses this"):
            refused = [{"role": "user", "content": fakes.REFUSE}]
            running.openai().chat.completions.create(model="fake", messages=refused)  # type: ignore[call-overload]
        with streamed(running) as stream:
            next(iter(stream))
        wait_until(
            lambda: running.metric('ptegpu_running{model="fake"}') == 0
        )  # a client that disconnects frees its place
        with pytest.raises(openai.InternalServerError, match="the model's worker ended"):
            ask(running, fakes.LOSE)
        wait_until(lambda: not is_alive(process))
        wait_until(lambda: health(running) == (503, "failed", {"fake": 1}))
        assert {"fake": "fake on 0: the GPU device was lost"} == httpx2.get(f"{running.url}/healthz").json()["errors"]
        with pytest.raises(openai.InternalServerError) as failed:
            ask(running)
        assert (503, "worker_lost") == (failed.value.status_code, failed.value.code)
        assert "5" == failed.value.response.headers["retry-after"]


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_encoders_too_and_what_cannot_start_says_why() -> None:
    with closing(open_workers("rows", [("0", fakes.make_encoder)])) as engine:
        tokens = engine.encode("a fox")
        np.testing.assert_array_equal(fakes.rows(["a fox"]), engine.embed([tokens]))  # type: ignore[union-attr]
        assert not hasattr(engine, "stream")
    with pytest.raises(InvalidInput, match="there is no such GPU"):
        open_workers("rows", [("0", fakes.make_none)])


def test_errors_go_to_another_process_with_their_words() -> None:
    assert isinstance(sendable(InvalidInput("no")), InvalidInput)
    sent = sendable(InvalidProgram("bad", offset=3, path="a.pte"))
    assert "a.pte: bad (at byte 3)" == str(sent)
    missing = sendable(FileNotFoundError(2, "No such file", "a.pte"))
    assert isinstance(missing, FileNotFoundError) and missing.filename == "a.pte"
