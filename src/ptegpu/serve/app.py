"""The routes: the page, OpenAI's API, health, metrics. A request is a task, which ends when its client disconnects."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import InvalidInput, PtegpuError, QueueFull
from ..models.text.prompts import PromptTooLong
from ..printing import shown
from .engine import Embeds, Engine, Event, Finished, Writes
from .errors import ApiError, invalid
from .keys import ApiKeys
from .limits import ServeLimits, Slots, read_json
from .metrics import Metrics
from .openai import (
    REASONS,
    GenerationRequest,
    PartialChoice,
    ReplyFormat,
    model_object,
    no_model,
    read_chat,
    read_completion,
    read_embeddings,
    seed_of,
)
from .page import page_routes

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Numbered = AsyncGenerator[tuple[int, Event], None]  # events with the number of their choice
DISCONNECTED = 499  # nginx's status for a client that did not wait
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Serving:
    """Models behind OpenAI's API; `app` is for an ASGI server. The page offers `examples`, by model."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        keys: ApiKeys | None = None,
        limits: ServeLimits | None = None,
        examples: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.engines, self.keys, self.limits = engines, keys or ApiKeys(), limits or ServeLimits()
        self.metrics = Metrics()
        self.slots = {name: Slots(e.model.sequences, self.limits.queue) for name, e in engines.items()}
        self.draining = False
        self._turns = {name: asyncio.Lock() for name in engines}
        self._created = int(time.time())
        self._deadlines: set[asyncio.Timeout] = set()  # of running requests
        post = {
            "/v1/chat/completions": self._generation(read_chat),
            "/v1/completions": self._generation(read_completion),
            "/v1/embeddings": self._embeddings,
        }
        routes = [
            *page_routes(bool(self.keys), examples or {}),
            Route("/healthz", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            *(Route(path, _Endpoint(self, path, handler), methods=["POST"]) for path, handler in post.items()),
        ]
        self.app = Starlette(
            routes=routes, exception_handlers=dict.fromkeys((HTTPException, ApiError), _error_response)
        )

    def drain(self) -> None:
        """Refuse new requests; running ones have the seconds that the limits give them."""
        self.draining = True
        end = asyncio.get_running_loop().time() + self.limits.drain
        for deadline in self._deadlines:
            deadline.reschedule(min(end, deadline.when() or end))

    def check(self, request: Request) -> str:
        """Authenticate a request; return its owner or raise ApiError."""
        owner = self.keys.owner(request.headers.get("authorization"))
        if owner is None:
            missing = "a valid API key is needed: send the header Authorization: Bearer KEY"
            raise ApiError(401, missing, "invalid_api_key")
        return owner or (request.client.host if request.client else "")

    async def within_limits(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for as long as a request may take."""
        if self.draining:
            work.close()
            raise _stopping()
        deadline = asyncio.timeout(self.limits.seconds)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                await work
        except TimeoutError:
            late = f"this took longer than {self.limits.seconds:g} seconds: ask for less"
            raise _stopping() if self.draining else ApiError(504, late, "time_limit") from None
        finally:
            self._deadlines.discard(deadline)

    def _engine(self, name: str | None) -> tuple[str, Engine]:
        if name is None and len(self.engines) == 1:
            return next(iter(self.engines.items()))
        if name is None or name not in self.engines:
            raise no_model(name or "", list(self.engines))
        return name, self.engines[name]

    async def _health(self, request: Request) -> Response:
        stats = {name: engine.stats() for name, engine in self.engines.items()}
        errors = {name: s.error for name, s in stats.items() if s.error}
        down = {name: s.down for name, s in stats.items() if s.down}
        status = "stopping" if self.draining else "failed" if errors else "degraded" if down else "ok"
        body = {"status": status, "errors": errors, "workers_down": down}
        return JSONResponse(body, 200 if status in ("ok", "degraded") else 503)

    async def _metrics(self, request: Request) -> Response:
        self.check(request)
        return PlainTextResponse(self.metrics.text(self.engines), media_type="text/plain; version=0.0.4")

    async def _models(self, request: Request) -> Response:
        self.check(request)
        return JSONResponse({"object": "list", "data": [self._described(name) for name in self.engines]})

    async def _model(self, request: Request) -> Response:
        self.check(request)
        return JSONResponse(self._described(self._engine(request.path_params["name"])[0]))

    def _described(self, name: str) -> dict[str, Any]:
        model, writes = self.engines[name].model, isinstance(self.engines[name], Writes)
        kind = "embeddings" if not writes else "chat" if model.has_chat else "text"
        return model_object(
            name, self._created, kind, model.context, min(self.limits.tokens, model.context) if writes else 0
        )

    def _generation(self, read: Callable[[Mapping[str, Any]], GenerationRequest]) -> Handler:
        async def handle(body: Mapping[str, Any], owner: str, writer: ResponseWriter) -> None:
            request = read(body)
            name, engine = self._engine(request.model)
            if not isinstance(engine, Writes):
                raise invalid(f"{name} is an encoder and writes no text: ask /v1/embeddings", "model", "wrong_model")
            if request.choices > self.limits.choices:
                raise invalid(f"{request.choices} choices are too many: ask for {self.limits.choices} at most", "n")
            with self.slots[name].take(request.choices):
                prompts = await _encoded(engine, request)
                if (request.max_tokens or 0) > self.limits.tokens:
                    raise invalid(f"max_tokens is {self.limits.tokens} at most on this server", "max_tokens")
                max_tokens = request.max_tokens or self.limits.tokens
                options: Any = request.options | {"max_tokens": max_tokens, "owner": owner}
                streams = [engine.stream(p, seed_of(options, k)) for p in prompts for k in range(request.n)]
                try:
                    async with aclosing(self._counted(name, merged(streams))) as events:
                        await (_stream if request.stream else _at_once)(ReplyFormat(request, name), events, writer)
                except QueueFull:
                    raise self.slots[name].full() from None

        return handle

    async def _counted(self, model: str, events: Numbered) -> Numbered:
        """Pass events on, and count them."""
        started, latest, add = time.monotonic(), dict[int, float](), self.metrics.add
        async with aclosing(events):
            async for k, event in events:
                now = time.monotonic()
                if isinstance(event, Finished):
                    if event.reason not in REASONS:
                        raise _stopping()  # the engine was closed
                    self.metrics.count("prompt_tokens", event.prompt_tokens, model=model)
                    self.metrics.count("cached_tokens", event.cached_tokens, model=model)
                elif event.token is not None:
                    self.metrics.count("generated_tokens", model=model)
                    if k in latest:
                        add("token_seconds", now - latest[k], model=model)
                    else:
                        add("first_token_seconds", now - started, model=model)
                    latest[k] = now
                yield k, event
        add("request_seconds", time.monotonic() - started, model=model)

    async def _embeddings(self, body: Mapping[str, Any], owner: str, writer: ResponseWriter) -> None:
        model, texts, packed = read_embeddings(body)
        name, engine = self._engine(model)
        if not isinstance(engine, Embeds):
            raise invalid(
                f"{name} is a language model and gives no embeddings: serve an encoder", "model", "wrong_model"
            )
        if len(texts) > self.limits.choices:
            raise invalid(f"{len(texts)} texts are too many: send {self.limits.choices} at most", "input")
        with self.slots[name].take(1):
            started = time.monotonic()
            prompts = [await _tokens(engine, text, "input") for text in texts]
            async with self._turns[name]:  # waiting requests take no thread
                rows = await asyncio.to_thread(engine.embed, prompts)
            self.metrics.add("request_seconds", time.monotonic() - started, model=name)
        count = sum(map(len, prompts))
        self.metrics.count("prompt_tokens", count, model=name)
        vectors = [base64.b64encode(r.astype("<f4").tobytes()).decode() if packed else r.tolist() for r in rows]
        data = [{"object": "embedding", "index": k, "embedding": v} for k, v in enumerate(vectors)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        await writer.json({"object": "list", "data": data, "model": name, "usage": usage})


class ResponseWriter:
    """A response: one JSON object, or events. An error becomes either, depending on what was sent before it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0  # until something is sent

    async def json(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        await self._start(status, {"Content-Type": "application/json", **(headers or {})})
        await self._send({"type": "http.response.body", "body": _json(body)})

    async def event(self, body: Any) -> None:
        if not self.status:
            await self._start(200, EVENTS)
        data = body if isinstance(body, bytes) else _json(body)
        await self._send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def error(self, error: ApiError) -> None:
        if not self.status:
            await self.json(error.body, error.status, error.headers)
        else:
            self.status = error.status  # for the metrics; the client has another one
            await self.event(error.body)
            await self.end()

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


Handler = Callable[[Mapping[str, Any], str, ResponseWriter], Coroutine[Any, Any, None]]


class _Endpoint:
    """A route that takes JSON, with keys, limits and errors."""

    def __init__(self, serving: Serving, path: str, handler: Handler) -> None:
        self._serving, self._path, self._handler = serving, path, handler

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        writer, request = ResponseWriter(send), Request(scope, receive)
        try:
            owner = self._serving.check(request)
            await self._serving.within_limits(self._run(request, owner, writer))
        except ClientDisconnect:
            writer.status = DISCONNECTED
        except Exception as e:
            await writer.error(api_error(e))
        self._serving.metrics.count("requests", endpoint=self._path, status=str(writer.status))

    async def _run(self, request: Request, owner: str, writer: ResponseWriter) -> None:
        body = await read_json(request, self._serving.limits.body)
        work = asyncio.create_task(self._handler(body, owner, writer))
        disconnect = asyncio.create_task(_disconnect(request.receive))
        try:
            await asyncio.wait({work, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
        finally:
            for task in (work, disconnect):
                task.cancel()
            await asyncio.gather(work, disconnect, return_exceptions=True)
        work.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merged(streams: Sequence[AsyncGenerator[Event, None]]) -> Numbered:
    """Merge the events of several streams as they come, each with the number of its stream. An error ends all."""
    queue: asyncio.Queue[tuple[int, Event | BaseException | None]] = asyncio.Queue()

    async def pump(k: int, stream: AsyncGenerator[Event, None]) -> None:
        try:
            async with aclosing(stream):
                async for event in stream:
                    queue.put_nowait((k, event))
            queue.put_nowait((k, None))
        except Exception as e:
            queue.put_nowait((k, e))

    tasks = [asyncio.create_task(pump(k, stream)) for k, stream in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            k, event = await queue.get()
            if event is None:
                left -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield k, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _at_once(form: ReplyFormat, events: Numbered, writer: ResponseWriter) -> None:
    choices = [PartialChoice() for _ in range(form.request.choices)]
    async for k, event in events:
        choices[k].add(event)
    await writer.json(form.complete(choices))


async def _stream(form: ReplyFormat, events: Numbered, writer: ResponseWriter) -> None:
    """Send events as they come. Nothing is sent before the first one, so an error until then has its own status."""
    choices = [PartialChoice() for _ in range(form.request.choices)]
    started: set[int] = set()
    async for k, event in events:
        chunks = [form.event(k, event)] if k in started else [form.first(k), form.event(k, event)]
        started.add(k)
        for chunk in chunks:
            if chunk is not None:
                await writer.event(chunk)
        if isinstance(event, Finished):
            choices[k].add(event)
    if (usage := form.last(choices)) is not None:
        await writer.event(usage)
    await writer.event(b"[DONE]")
    await writer.end()


async def _encoded(engine: Writes, request: GenerationRequest) -> list[list[int]]:
    """Return the tokens of the prompts, checked."""
    if not request.chat:
        return [await _tokens(engine, prompt, "prompt") for prompt in request.prompts]
    if not engine.model.has_chat:
        raise invalid(f"{engine.model.name} has no chat template: ask /v1/completions", "model", "wrong_model")
    return [await _tokens(engine, request.messages, "messages", engine.encode_chat)]


async def _tokens(
    engine: Engine, prompt: Any, param: str, encode: Callable[[Any], list[int]] | None = None
) -> list[int]:
    """Return the tokens of a text, of tokens, or of what `encode` takes; raise ApiError unless they suit the model."""
    model = engine.model
    encode = engine.encode if encode is None and isinstance(prompt, str) else encode
    try:
        tokens = list(prompt) if encode is None else await asyncio.to_thread(encode, prompt)
    except PromptTooLong as e:
        raise invalid(f"{e}: send less", param, "context_length_exceeded") from None
    if not tokens:
        raise invalid(f"{param} is empty: send some text", param)
    if len(tokens) > model.context:
        long = f"{param} has {len(tokens)} tokens, the context of {model.name} holds {model.context}: send less"
        raise invalid(long, param, "context_length_exceeded")
    if not all(0 <= t < model.vocabulary for t in tokens):
        raise invalid(f"{param} has a token outside the vocabulary of {model.vocabulary}", param)
    return tokens


def api_error(e: Exception) -> ApiError:
    """Return the error for the client; log what is not the client's fault."""
    if isinstance(e, ApiError):
        return e
    if isinstance(e, InvalidInput):
        return invalid(str(e))
    for line in "".join(traceback.format_exception(e)).splitlines():
        print(shown(line), file=sys.stderr)
    reason = str(e) if isinstance(e, PtegpuError) else "see the server's log"
    return ApiError(500, f"the model failed: {reason}", "engine_failed")


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping: try again later", "stopping", retry=5)


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


async def _error_response(request: Request, e: Exception) -> Response:
    if isinstance(e, HTTPException):
        messages = {404: f"there is no {request.url.path[:200]} here", 405: f"{request.method} is not possible here"}
        e = ApiError(e.status_code, messages.get(e.status_code, str(e.detail)))
    assert isinstance(e, ApiError)
    return JSONResponse(e.body, e.status, e.headers)
