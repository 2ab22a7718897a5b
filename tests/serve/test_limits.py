"""Keys, limits, clients that disconnect, and invalid bodies."""

from __future__ import annotations

import json
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tests.serve.conftest import Running, Start, wait_until
from tests.serve.fake import encode, words

from ptegpu.errors import InvalidInput
from ptegpu.serve import ApiKeys, ServeLimits, bind, read_keys
from ptegpu.serve.errors import ApiError
from ptegpu.serve.limits import parse
from ptegpu.serve.openai import read_chat, read_completion, read_embeddings

PROMPT = "the fox and the owl"
LONE = (
    '{"model": "fake", "prompt": "\ud800"}',
    '{"model": "fake", "prompt": "\\ud800"}',
)  # half of a pair of surrogates
FORMS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le")  # encodings that json.loads detects
KEY, OTHER = "k" * 24, "o" * 24


def test_without_keys_everyone_may_ask_and_with_keys_those_who_have_one(start: Start) -> None:
    assert ["fake", "rows"] == [m.id for m in start().openai("whatever").models.list()]
    server = start(keys=ApiKeys([OTHER, KEY]))
    assert ["fake", "rows"] == [m.id for m in server.openai(KEY).models.list()]
    assert server.openai(OTHER).completions.create(model="fake", prompt=PROMPT).choices
    for wrong in ("x", KEY[:-1], KEY + "k"):
        with pytest.raises(openai.AuthenticationError, match="a valid API key is needed") as raised:
            server.openai(wrong).completions.create(model="fake", prompt=PROMPT)
        assert "invalid_api_key" == raised.value.code
    assert 401 == server.post("/v1/completions", {}).status_code
    for path, status in (("/v1/models", 401), ("/v1/models/fake", 401), ("/metrics", 401), ("/healthz", 200)):
        assert status == httpx2.get(f"{server.url}{path}").status_code
    headers = {"Authorization": f"Basic {KEY}"}
    assert 401 == httpx2.get(f"{server.url}/v1/models", headers=headers).status_code


def test_each_key_is_an_owner_of_requests(start: Start) -> None:
    server = start(keys=ApiKeys([OTHER, KEY]))
    for key in (OTHER, KEY, KEY):
        server.openai(key).completions.create(model="fake", prompt=PROMPT)
    first, second, third = server.engine.owners
    assert first != second == third
    assert not {KEY, OTHER} & {first, second}


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# mine\n\n  {KEY}\n")
    assert not read_keys()
    assert "" == read_keys().owner(None)
    assert [True, False] == [bool(read_keys(file).owner(f"Bearer {key}")) for key in (KEY, OTHER)]
    monkeypatch.setenv("PTEGPU_API_KEYS", f"{OTHER}, {'p' * 16}")
    assert [True, True, False] == [bool(read_keys(file).owner(f"bearer {key}")) for key in (KEY, OTHER, "q" * 16)]
    file.write_text("# none\n")
    with pytest.raises(InvalidInput, match="keys has no keys: write one on each line, or leave --keys out"):
        read_keys(file)
    for wrong in ("short", f"{KEY} {OTHER}", "ü" * 20):
        file.write_text(wrong)
        with pytest.raises(InvalidInput, match=r"a key in .*keys is not 16 or more ASCII characters without a space"):
            read_keys(file)


def test_a_body_that_is_too_large(start: Start) -> None:
    server = start(limits=ServeLimits(body=1000))
    with pytest.raises(openai.APIStatusError, match="the body is larger than 1000 bytes: send less") as raised:
        server.openai().completions.create(model="fake", prompt="x" * 1000)
    assert 413 == raised.value.status_code
    parts = (b" " * 100 for _ in range(20))  # sent without a Content-Length
    headers = {"Content-Type": "application/json"}
    assert 413 == httpx2.post(f"{server.url}/v1/completions", content=parts, headers=headers).status_code


def test_a_body_must_say_that_it_is_json(server: Running) -> None:
    refused = httpx2.post(f"{server.url}/v1/completions", content="{}", headers={"Content-Type": "text/plain"})
    assert (415, "the body must be JSON: send the header Content-Type: application/json") == (
        refused.status_code,
        refused.json()["error"]["message"],
    )


def test_a_request_that_takes_too_long(start: Start) -> None:
    server = start(limits=ServeLimits(seconds=0.3), delay=0.05)
    with pytest.raises(openai.APIStatusError, match=r"this took longer than 0\.3 seconds: ask for less") as raised:
        server.openai(max_retries=2).completions.create(model="fake", prompt=PROMPT, max_tokens=50)
    assert 504 == raised.value.status_code
    assert ["cancelled"] == server.engine.ended  # once: the client is told not to try again
    with pytest.raises(openai.APIError, match=r"this took longer than 0\.3 seconds"):
        list(server.openai().completions.create(model="fake", prompt=PROMPT, max_tokens=50, stream=True))
    assert 0 == server.engine.running == server.serving.slots["fake"].taken


def test_a_full_queue_says_when_to_come_back(start: Start) -> None:
    server = start(limits=ServeLimits(queue=1), sequences=1, delay=0.5)
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": 50}
    waiting = [threading.Thread(target=server.post, args=("/v1/completions", body)) for _ in range(2)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: (server.engine.running, server.engine.waiting) == (1, 1))
    assert (1, 1) == (server.metric('ptegpu_running{model="fake"}'), server.metric('ptegpu_queue{model="fake"}'))
    for options in ({}, {"stream": True}):
        refused = server.post("/v1/completions", body | options)
        assert (429, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
    server.engine.delay = 0.0
    for thread in waiting:
        thread.join()
    assert 200 == server.post("/v1/completions", body).status_code
    refused = server.post("/v1/completions", body | {"n": 3})
    assert (400, "3 choices at once are more than this server takes: ask for 2 at most") == (
        refused.status_code,
        refused.json()["error"]["message"],
    )
    server.engine.busy = True
    with pytest.raises(openai.RateLimitError):
        server.openai().completions.create(model="fake", prompt=PROMPT)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(start: Start, stream: bool) -> None:
    server = start(sequences=1, delay=0.02)
    body = json.dumps({"model": "fake", "prompt": [PROMPT], "max_tokens": 60, "n": 2, "stream": stream}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: (server.engine.running, server.engine.waiting) == (1, 1))
        if stream:
            assert client.recv(10)
    wait_until(lambda: server.engine.running == server.engine.waiting == 0)
    assert ["cancelled"] == server.engine.ended
    wait_until(lambda: server.serving.slots["fake"].taken == 0)
    assert 1 == server.metric('ptegpu_requests_total{endpoint="/v1/completions",status="499"}')
    response = server.openai().completions.create(model="fake", prompt=PROMPT, max_tokens=2, temperature=0)
    assert words(encode(PROMPT), 0, 2) == response.choices[0].text


def test_openais_client_cancels_a_stream(start: Start) -> None:
    server = start(delay=0.02)
    stream = server.openai().completions.create(model="fake", prompt=PROMPT, max_tokens=50, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: server.engine.ended == ["cancelled"])
    assert server.engine.steps < 50


def test_many_clients_some_of_which_go_away_or_make_no_sense(start: Start) -> None:
    server = start(sequences=4, delay=0.002, limits=ServeLimits(queue=6))
    statuses: list[int] = []

    def ask(k: int) -> None:
        rng = random.Random(k)
        body: dict[str, Any] = {"model": "fake", "prompt": f"{PROMPT} {k}", "max_tokens": rng.randrange(1, 40)}
        body |= {"stream": rng.random() < 0.5, "n": rng.randrange(1, 3)}
        if rng.random() < 0.2:
            body[rng.choice(NAMES)] = nonsense(rng)
        patience = 0.03 if rng.random() < 0.3 else 60
        try:
            statuses.append(server.post("/v1/completions", body, timeout=patience).status_code)
        except httpx2.TimeoutException:
            statuses.append(499)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(150)))
    wait_until(lambda: server.serving.slots["fake"].taken == server.engine.running == server.engine.waiting == 0)
    assert {200, 400, 429, 499} >= set(statuses) >= {200, 400, 499}
    assert 200 == server.post("/v1/completions", {"model": "fake", "prompt": PROMPT}).status_code


def test_paths_and_methods_that_are_not_there(server: Running) -> None:
    wrong = server.post("/v1/files", {})
    assert (404, "there is no /v1/files here") == (wrong.status_code, wrong.json()["error"]["message"])
    wrong = httpx2.get(f"{server.url}/v1/completions")
    assert (405, "GET is not possible here") == (wrong.status_code, wrong.json()["error"]["message"])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"null", "the body must be a JSON object"),
        (b'{"model": "fake", "prompt": "\xff"}', "the body is not valid JSON"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "the body is not valid JSON"),
        (b'{"model": "fake", "prompt": "\xed\xa0\x80"}', "the body is not valid JSON"),
        *((text.encode(form, "surrogatepass"), "the body is not valid JSON") for text in LONE for form in FORMS),
        (b'{"model": "fake", "prompt": "x", "temperature": NaN}', "NaN is not a number"),
        (b'{"model": "fake", "prompt": "x", "temperature": 1e999}', "temperature must be a number from 0 to 2"),
        (b'{"model": "fake", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"model": "fake", "prompt": "x", "seed": ' + b"9" * 5000 + b"}", "the body is not valid JSON"),
        (b"{}", "prompt must be a text, a list of tokens, or a list of these"),
        (b'{"model": "fake", "prompt": ""}', "prompt is empty: send some text"),
        (b'{"model": "fake", "prompt": []}', "prompt must be a text, a list of tokens"),
        (b'{"model": "fake", "prompt": [true]}', "prompt must be a text, a list of tokens"),
        (b'{"model": "fake", "prompt": [1, 1000]}', "prompt has a token outside the vocabulary of 1000"),
        (b'{"model": "fake", "prompt": [-1]}', "prompt has a token outside the vocabulary of 1000"),
        (b'{"model": "fake", "prompt": "x", "model": 5}', "model must be a text"),
        (b'{"model": "fake", "prompt": "x", "stream": 1}', "stream must be true or false"),
        (b'{"model": "fake", "prompt": "x", "n": true}', "n must be an int from 1 to 128"),
    ],
)
def test_malformed_bodies(server: Running, raw: bytes, message: str) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    refused = httpx2.post(f"{server.url}/v1/completions", content=raw, headers=headers)
    assert 400 == refused.status_code
    assert message in refused.json()["error"]["message"]
    assert 0 == server.serving.slots["fake"].taken


NAMES = (
    "model", "prompt", "messages", "input", "n", "stream", "stream_options", "stop", "seed", "temperature", "top_p",
    "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "top_k", "tools", "echo", "encoding_format", "x",
)  # fmt: skip


def nonsense(random: random.Random, depth: int = 0) -> Any:
    leaves = (None, True, False, 0, 1, -1, 2**70, 0.5, -1e300, "", "x", "fake", "user", "text", [], {}, "\U0001f98a")
    if depth > 3 or random.random() < 0.6:
        return random.choice(leaves)
    if random.random() < 0.5:
        return [nonsense(random, depth + 1) for _ in range(random.randrange(4))]
    return {random.choice((*NAMES, "role", "content", "type")): nonsense(random, depth + 1) for _ in range(3)}


def test_nonsense_is_refused_or_read_but_never_an_accident() -> None:
    good = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    counts = {True: 0, False: 0}
    for k in range(6000):
        rng = random.Random(k)
        read, name = ((read_chat, "messages"), (read_completion, "prompt"), (read_embeddings, "input"))[k % 3]
        body = {name: good[name]} | {rng.choice(NAMES): nonsense(rng) for _ in range(rng.randrange(3))}
        try:
            read(parse(json.dumps(body).encode()))
            counts[True] += 1
        except ApiError as e:
            assert 400 == e.status and e.message and "\n" not in e.message
            counts[False] += 1
    assert min(counts.values()) > 500


def test_an_address_that_is_taken_or_is_none() -> None:
    with bind(port=0) as bound:
        bound.listen()
        port = bound.getsockname()[1]
        with pytest.raises(InvalidInput, match=rf"127\.0\.0\.1, port {port}: .*; give others with --host and --port"):
            bind(port=port)
    with pytest.raises(InvalidInput, match=r"203\.0\.113\.1, port 0: .*; give others"):  # reserved for documentation
        bind("203.0.113.1", 0)
    with pytest.raises(InvalidInput, match=r"port 0: .*; give others"):
        bind("x" * 70, 0)
