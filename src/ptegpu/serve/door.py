"""What a connection may do before the app knows who asks: bytes, headers and seconds of a request's head; its Host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..site.hosts import Hosts
from .errors import ApiError
from .limits import Limits

App = Callable[[Any, Any, Any], Awaitable[None]]
PART = 4096  # bytes that are read and parsed at once: the head's size is checked after each, and others have their turn


class Door:
    """An ASGI app around another one, which it protects from too many headers and from names that are not ours."""

    def __init__(self, app: App, hosts: Hosts, limits: Limits) -> None:
        self._app, self._hosts, self._limits = app, hosts, limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        error = self._error(scope["headers"]) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        headers = [*((name.lower(), value) for name, value in error.headers.items()), *_head(error).items()]
        pairs = [(name.encode(), value.encode()) for name, value in headers]
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


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol for one connection, within these limits.

    Its parser, h11, refuses heads above `h11_max_incomplete_event_size`, but uvicorn lets a request take any time to
    arrive, and an answer any time to be read. Both end here. A body in chunks of one byte takes seconds for each MiB to
    be parsed, so an event loop must not read much of it at once: the buffer is ours, and small.
    """

    class Bounded(H11Protocol, asyncio.BufferedProtocol):  # type: ignore[misc]
        _arrives: asyncio.TimerHandle | None = None  # until a request has to be there
        _read: asyncio.TimerHandle | None = None  # until the client has to read on

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._buffer = bytearray(PART)
            self._await_request()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for timer in (self._arrives, self._read):
                if timer is not None:
                    timer.cancel()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self._buffer

        def buffer_updated(self, nbytes: int) -> None:
            if not self.transport.is_closing():
                self.data_received(bytes(memoryview(self._buffer)[:nbytes]))
                self._await_request()

        def _await_request(self) -> None:
            """Set the deadline of a request that is arriving; bytes that arrive do not extend it."""
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering and self._arrives is not None:
                self._arrives.cancel()
                self._arrives = None
            elif not answering and self._arrives is None and not self.transport.is_closing():
                self._arrives = self.loop.call_later(limits.head_seconds, self._late)

        def _late(self) -> None:
            if self.transport.is_closing():
                return
            if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:  # a part of a head
                late = f"the request did not arrive within {limits.head_seconds:g} seconds"
                self._refuse(ApiError(408, late, "request_too_slow"))
            else:
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer has begun
                self.transport.close()
            elif len(self.conn.trailing_data[0]) > limits.head:
                large = f"the head of the request is larger than {limits.head} bytes"
                self._refuse(ApiError(431, large, "headers_too_large"))
            else:
                self._refuse(ApiError(400, "this is no HTTP request"))

        def _refuse(self, error: ApiError) -> None:
            headers = [*_head(error).items(), ("connection", "close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=_body(error)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
            if self.cycle is not None:
                self.cycle.disconnected = True  # an app that still answers the request is not heard
            self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._read = self.loop.call_later(limits.seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._read is not None:
                self._read.cancel()
                self._read = None

    return Bounded


def _body(error: ApiError) -> bytes:
    return json.dumps(error.body).encode()


def _head(error: ApiError) -> dict[str, str]:
    return {"content-type": "application/json", "content-length": str(len(_body(error)))}
