"""Uvicorn around an app: a socket bound before models are loaded, and a shutdown that lets requests finish."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

import uvicorn

from ..errors import InvalidInput
from ..site.hosts import Hosts
from .app import Serving
from .guard import RequestGuard, protocol


def bind(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """Return a socket that does not listen yet; raise InvalidInput if the address is in use or invalid."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
        return bound
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "this is not a host"
        raise InvalidInput(f"{host}, port {port}: {reason}; give others with --host and --port") from None


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    serving: Serving,
    bound: socket.socket,
    started: Callable[[], object] = lambda: None,
    hosts: Iterable[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, and return when all requests have ended; a second SIGINT ends them at once.

    `hosts` are the names that clients may use, besides loopback names and the bound address.
    """
    DrainingServer(configured(serving, [bound.getsockname()[0], *hosts]), serving, started).run([bound])


def configured(serving: Serving, hosts: Iterable[str] = ()) -> uvicorn.Config:
    limits = serving.limits
    return uvicorn.Config(
        RequestGuard(serving.app, Hosts(hosts), limits),
        http=protocol(limits),
        loop="asyncio",  # uvloop reads MiBs from one connection before others have their turn
        h11_max_incomplete_event_size=limits.head,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.drain) + 5,  # for requests that ignore their deadlines
    )


class DrainingServer(uvicorn.Server):
    """A server that drains, and does not raise the signal again: a requested shutdown is not a failure."""

    def __init__(self, config: uvicorn.Config, serving: Serving, started: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._serving, self._on_start, self._ending = serving, started, False

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: Any = None) -> None:
        self._serving.drain()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self._ending and sig == signal.SIGINT
        self.should_exit = self._ending = True
