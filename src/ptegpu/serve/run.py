"""Uvicorn around an app: a socket that is bound before models are loaded, and an end that lets requests finish."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn

from ..errors import InvalidInput
from .app import Serving


def bind(host: str = "127.0.0.1", port: int = 8000) -> socket.socket:
    """A socket that does not listen yet; InvalidInput where the address is taken, or is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
        return made
    except (OSError, UnicodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "this is no host"
        raise InvalidInput(f"{host}, port {port}: {why}; give others with --host and --port") from None


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(serving: Serving, bound: socket.socket, started: Callable[[], object] = lambda: None) -> None:
    """Answers until SIGTERM or SIGINT, and returns when all requests have ended; a second SIGINT ends them at once."""
    Server(configured(serving), serving, started).run([bound])


def configured(serving: Serving) -> uvicorn.Config:
    return uvicorn.Config(
        serving.app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(serving.limits.drain) + 5,  # for what does not heed its deadline
    )


class Server(uvicorn.Server):
    """Which drains, and does not raise the signal again: an end that was asked for is no failure."""

    def __init__(self, config: uvicorn.Config, serving: Serving, started: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._serving, self._told, self._ending = serving, started, False

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._told()

    async def shutdown(self, sockets: Any = None) -> None:
        self._serving.drain()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self._ending and sig == signal.SIGINT
        self.should_exit = self._ending = True
