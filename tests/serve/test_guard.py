"""Limits on unauthenticated connections: raw sockets, and clients that never finish."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx2
import pytest
from tests.serve.conftest import Running, Start, wait_until
from uvicorn.protocols.http.h11_impl import H11Protocol

from ptegpu.serve import ApiKeys, ServeLimits
from ptegpu.serve.guard import PART
from ptegpu.site.hosts import Hosts

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
LIMITS = ServeLimits(head=8192, headers=20, head_seconds=0.3)


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)


def answer(client: socket.socket) -> bytes:
    """Return everything until the server closes the connection."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (HEAD + b"Connection: close\r\n\r\n", 200),
        (HEAD + b"x: " + b"a" * (8192 - len(HEAD) - 2), 431),  # one endless header: 8,193 bytes of a head
        (b"GET /" + b"a" * 8188, 431),  # an endless path
        (HEAD + b"a:b\r\n" * 18 + b"Connection: close\r\n\r\n", 200),
        (HEAD + b"a:b\r\n" * 19 + b"Connection: close\r\n\r\n", 431),
        (HEAD + b"a:b\r\n" * 5000 + b"Connection: close\r\n\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_the_head_of_a_request_is_bounded(start: Start, raw: bytes, status: int) -> None:
    server = start(keys=ApiKeys(["k" * 24]), limits=LIMITS)
    with connect(server) as client:
        client.sendall(raw)
        try:
            answered = answer(client)
        except ConnectionResetError:  # the server does not read the rest
            assert len(raw) > 20_000
        else:
            assert b"HTTP/1.1 %d " % status == answered[:13]
    assert 200 == httpx2.get(f"{server.url}/healthz").status_code


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (b"", b""),  # nothing at all, or x after x
        (b"GET /healthz HT", b"HTTP/1.1 408 "),
        (HEAD + b"x: ", b"HTTP/1.1 408 "),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 401 "),
        (HEAD + b"Content-Length: 1000\r\n\r\n", b"HTTP/1.1 200 "),
    ],
)
@pytest.mark.parametrize("drip", [False, True])
def test_a_request_that_never_ends_is_closed(start: Start, begin: bytes, status: bytes, drip: bool) -> None:
    server = start(keys=ApiKeys(["k" * 24]), limits=LIMITS)
    server.server.config.timeout_keep_alive = 1  # seconds, for requests that are answered before they arrive
    with connect(server) as client:
        client.sendall(begin)
        answered = client.recv(13) if status and b"408" not in status else b""
        for _ in range(300 if drip else 0):
            time.sleep(0.02)
            try:
                client.sendall(b"x")
            except OSError:  # closed
                break
        else:
            assert not drip, "the connection stays open while bytes arrive"
        try:
            answered += answer(client)
        except ConnectionResetError:
            assert drip
        else:
            assert status == answered[:13] or (drip and not begin and b"HTTP/1.1 408 " == answered[:13])


def test_a_connection_reads_little_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body in chunks of one byte takes long to parse, so other requests get a turn after each part of it."""
    turn, reads = [0], list[tuple[int, int]]()

    def count_turns(loop: asyncio.AbstractEventLoop) -> None:
        turn[0] += 1
        loop.call_soon(count_turns, loop)

    def receive(self: H11Protocol, data: bytes) -> None:
        if not reads:
            count_turns(self.loop)
        reads.append((turn[0], len(data)))
        received(self, data)

    received = H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", receive)
    server = start()
    with connect(server) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        assert b"HTTP/1.1 200 " == client.recv(13)
        client.sendall(b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n")
        wait_until(lambda: sum(size for _, size in reads) > 6 * 20_000)
    assert len(reads) == len({turn for turn, _ in reads})
    assert max(size for _, size in reads) <= PART


def test_an_answer_to_a_request_that_was_refused_is_dropped(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    server = start()
    with connect(server) as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nno size of a chunk\r\n")
        answered = answer(client)
    assert b"HTTP/1.1 400 " == answered[:13] and 1 == answered.count(b"HTTP/1.1")
    server.stop()
    assert "WARNING:  Invalid HTTP request received.\n" == capfd.readouterr().err


def test_a_connection_that_waits_between_requests_stays_open(start: Start) -> None:
    server = start(limits=LIMITS)
    with httpx2.Client(base_url=server.url) as client:
        for _ in range(2):
            assert 200 == client.get("/healthz").status_code
            assert len(server.server.server_state.connections) == 1
            time.sleep(2 * LIMITS.head_seconds)


def test_a_client_that_does_not_read_its_answer_is_let_go(start: Start) -> None:
    """The client requests 26 MB, more than buffers hold, so the server must wait for it."""
    server = start(limits=ServeLimits(seconds=0.3))
    connections = server.server.server_state.connections
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /chat.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        wait_until(lambda: connections)
        wait_until(lambda: not connections)


@pytest.mark.parametrize(
    ("names", "header", "accepted"),
    [
        ([], "localhost", True),
        ([], "LocalHost.:8000", True),
        ([], "127.0.0.1:8000", True),
        ([], "127.9.9.9", True),
        ([], "[::1]:8000", True),
        ([], None, True),
        ([], "", False),
        ([], "evil.example", False),
        ([], "localhost.evil.example:8000", False),
        ([], "127.0.0.1.evil.example", False),
        ([], "localhost@evil.example", False),
        ([], "192.0.2.7", False),
        ([], "[2001:db8::1]:80", False),
        (["127.0.0.1"], "192.0.2.7", False),
        (["0.0.0.0"], "192.0.2.7:8000", True),  # any address is accepted
        (["::"], "[2001:db8::1]:80", True),
        (["0.0.0.0"], "evil.example", False),
        (["Models.example.org"], "models.example.org:443", True),
        (["models.example.org"], "evil.models.example.org", False),
        (["*"], "evil.example", True),
    ],
)
def test_the_names_that_a_server_answers_to(names: list[str], header: str | None, accepted: bool) -> None:
    assert accepted is Hosts(names).accepts(header)


def test_requests_for_other_hosts_are_refused(start: Start) -> None:
    server = start(hosts=["models.example.org"])
    for path in ("/", "/healthz", "/v1/models", "/nowhere"):
        refused = httpx2.get(f"{server.url}{path}", headers={"Host": "evil.example"})
        message = "this server does not answer to the host 'evil.example': allow it with --allow-host"
        assert (403, message) == (refused.status_code, refused.json()["error"]["message"])
    for host in ("localhost", "models.example.org"):
        assert 200 == httpx2.get(f"{server.url}/v1/models", headers={"Host": host}).status_code
    body = {"model": "fake", "prompt": "x"}
    assert 403 == server.post("/v1/completions", body, headers={"Host": "evil.example"}).status_code
    assert 0 == server.engine.steps
