"""`start` runs a server with a fake engine on a free port, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest
from tests.serve.fake import FakeEncoder, FakeEngine

from ptegpu.serve import ApiKeys, ServeLimits, Serving, bind, url_of
from ptegpu.serve.run import DrainingServer, configured

Start = Callable[..., "Running"]


@dataclass
class Running:
    url: str
    engine: FakeEngine
    serving: Serving
    server: DrainingServer
    thread: threading.Thread

    def openai(self, key: str = "any", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **{"max_retries": 0, "timeout": 60} | options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        """Send a request without OpenAI's client, which refuses some invalid ones."""
        return httpx2.post(f"{self.url}{path}", json=body, **{"timeout": 60} | options)

    def metric(self, line: str) -> float:
        text = httpx2.get(f"{self.url}/metrics").text
        return float(next(x for x in text.splitlines() if x.startswith(f"{line} ")).rpartition(" ")[2])

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()


def wait_until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("this did not happen within 30 seconds")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Running] = []

    def run(
        keys: ApiKeys | None = None,
        limits: ServeLimits | None = None,
        encoder: bool = True,
        hosts: Sequence[str] = (),
        **options: Any,
    ) -> Running:
        engine = FakeEngine(**options)
        rows = {"rows": FakeEncoder()} if encoder else {}
        serving = Serving({"fake": engine, **rows}, keys, limits)
        bound = bind(port=0)
        url, server = url_of(bound), DrainingServer(configured(serving, hosts), serving)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        started.append(Running(url, engine, serving, server, thread))
        return started[-1]

    yield run
    for running in started:
        running.stop()


@pytest.fixture
def server(start: Start) -> Running:
    return start()
