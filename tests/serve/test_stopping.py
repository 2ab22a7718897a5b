"""SIGTERM: new requests are refused, running ones finish or get an error, and the process exits with code 0."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import openai
import pytest
from tests.serve.conftest import wait_until
from tests.serve.fake import encode, words

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPT = "the fox"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a signal")


@contextmanager
def running(delay: float, drain: float) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI]]:
    command = [sys.executable, "-m", "tests.serve.serving", str(delay), str(drain)]
    paths = {"PYTHONPATH": ":".join([str(ROOT / "src"), str(ROOT), *sys.path])}
    with subprocess.Popen(
        command, env=paths, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            yield process, openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=60)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_finished(number: signal.Signals) -> None:
    with running(0.02, 60) as (process, client):
        stream = client.completions.create(model="fake", prompt=PROMPT, max_tokens=40, temperature=0, stream=True)
        text = next(iter(stream)).choices[0].text
        process.send_signal(number)
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert words(encode(PROMPT), 0, 40) == text
        out, err = process.communicate(timeout=60)
        assert (0, "ended\n", "") == (process.returncode, out, err)


def test_what_takes_too_long_is_told_and_nothing_new_is_taken() -> None:
    with running(0.05, 3.0) as (process, client):
        stream = client.completions.create(model="fake", prompt=PROMPT, max_tokens=900, stream=True)
        next(iter(stream))
        process.terminate()
        wait_until(lambda: is_refused(client.models.list))
        assert process.poll() is None
        with pytest.raises(openai.APIError, match="the server is stopping: try again later"):
            list(stream)
        out, err = process.communicate(timeout=60)
        assert (0, "ended\n", "") == (process.returncode, out, err)


def is_refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except openai.APIConnectionError as e:
        return isinstance(e.__cause__, httpx2.ConnectError)
    return False


def test_an_idle_server_ends_at_once_though_a_connection_is_open() -> None:
    with running(0.0, 600) as (process, client):
        assert client.models.list()
        process.terminate()
        out, err = process.communicate(timeout=60)
        assert (0, "ended\n", "") == (process.returncode, out, err)
