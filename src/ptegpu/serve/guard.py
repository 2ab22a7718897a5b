"""Limits of a connection before a request is authenticated: bytes, headers and seconds of its head, and its Host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..site.hosts import Hosts
from .errors import ApiError
from .limits import ServeLimits

App = Callable[[Any, Any, Any], Awaitable[None]]
PART = 4096  # bytes parsed at once; then the head's size is checked, and other connections have their turn


class RequestGuard:
    """An ASGI app that protects another one from too many headers and from foreign host names."""

    def __init__(self, app: App, hosts: Hosts, limits: ServeLimits) -> None:
        self._app, self._hosts, self._limits = app, hosts, limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        error = self._error(scope["headers"]) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in error.headers.items()} | _head(error)
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": pairs})
        await send({"type": "http.response.body", "body": _body(error)})

    def _error(self, headers: list[tuple[bytes, bytes]]) -> ApiError | None:
        if len(headers) > self._limits.headers:
            return ApiError(431, f"the request has more than {self._limits.headers} headers", "headers_too_large")
        host = next((value.decode("latin-1") for name, value in headers if name == b"host"), None)
        if not self._hosts.accepts(host):
            message = f"this server does not answer to the host {host!r}: allow it with --allow-host"
            return ApiError(403, message[:300], "host_not_allowed")
        return None


def protocol(limits: ServeLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol for one connection, within these limits.

    Its parser, h11, refuses heads above `h11_max_incomplete_event_size`, but uvicorn lets a request take any time to
    arrive, and a response any time to be read; this protocol limits both. Parsing a body in chunks of one byte takes
    seconds for each MiB, so the event loop must not read much of it at once: the buffer is small.
    """

    class BoundedProtocol(H11Protocol, asyncio.BufferedProtocol):  # type: ignore[misc]
        _arrival: asyncio.TimerHandle | None = None  # deadline for a request to arrive
        _reading: asyncio.TimerHandle | None = None  # deadline for the client to read on

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._buffer = bytearray(PART)
            self._await_request()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for timer in (self._arrival, self._reading):
                if timer is not None:
                    timer.cancel()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self._buffer

        def buffer_updated(self, nbytes: int) -> None:
            if not self.transport.is_closing():
                self.data_received(bytes(memoryview(self._buffer)[:nbytes]))
                self._await_request()

        def _await_request(self) -> None:
            """Set the deadline of an arriving request; further bytes do not extend it."""
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering and self._arrival is not None:
                self._arrival.cancel()
                self._arrival = None
            elif not answering and self._arrival is None and not self.transport.is_closing():
                self._arrival = self.loop.call_later(limits.head_seconds, self._late)

        def _late(self) -> None:
            if self.transport.is_closing():
                return
            if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:  # part of a head
                late = f"the request did not arrive within {limits.head_seconds:g} seconds"
                self._refuse(ApiError(408, late, "request_too_slow"))
            else:
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # the response has begun
                self.transport.close()
            elif len(self.conn.trailing_data[0]) > limits.head:
                large = f"the head of the request is larger than {limits.head} bytes"
                self._refuse(ApiError(431, large, "headers_too_large"))
            else:
                self._refuse(ApiError(400, "this is not an HTTP request"))

        def _refuse(self, error: ApiError) -> None:
            headers = [*_head(error).items(), ("connection", "close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=_body(error)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
            if self.cycle is not None:
                self.cycle.disconnected = True  # ignore an app that still responds
            self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading = self.loop.call_later(limits.seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None

    return BoundedProtocol


def _body(error: ApiError) -> bytes:
    return json.dumps(error.body).encode()


def _head(error: ApiError) -> dict[str, str]:
    return {"content-type": "application/json", "content-length": str(len(_body(error)))}
