"""OpenAI's formats: reading requests, and writing replies, at once and in chunks.

An unsupported parameter is refused unless its value changes nothing. Only parameters that cannot influence the reply
are ignored.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..models.text.batch import Finished, Piece
from .errors import ApiError, invalid

if TYPE_CHECKING:
    from ..models.text.batch import BatchOptions

Body = Mapping[str, Any]
Prompt = str | list[int]

STOPS = 16  # stop strings of a request
COMPLETION_TOKENS = 16  # OpenAI's default for completions
SEEDS = 1 << 32
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
REASONS = {"stop": "stop", "length": "length", "context": "length"}

COMMON = {"model", "n", "stream", "stream_options", "stop", "seed", "temperature", "top_p", "max_tokens", "logprobs"}
OURS = {"top_k", "min_p", "repeat_penalty"}  # beyond OpenAI's
CHAT = COMMON | OURS | {"messages", "max_completion_tokens", "top_logprobs"}
COMPLETION = COMMON | OURS | {"prompt"}
EMBEDDINGS = {"model", "input", "encoding_format"}
WITHOUT_INFLUENCE = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls",
}  # fmt: skip
NEUTRAL: dict[str, Sequence[Any]] = {  # values of unsupported parameters that change nothing
    "frequency_penalty": [0],
    "presence_penalty": [0],
    "logit_bias": [{}],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "response_format": [{"type": "text"}],
    "modalities": [["text"]],
    "best_of": [1],
    "echo": [False],
    "suffix": [""],
    "dimensions": [],
}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request for text."""

    chat: bool
    model: str | None
    prompts: Sequence[Prompt]  # of a completion
    messages: Sequence[Mapping[str, str]]  # of a chat
    n: int
    stream: bool
    usage: bool  # at the end of a stream
    logprobs: bool
    top_logprobs: bool
    max_tokens: int | None
    options: BatchOptions  # but for max_tokens

    @property
    def choices(self) -> int:
        return self.n * (1 if self.chat else len(self.prompts))


def read_chat(body: Body) -> GenerationRequest:
    """Read a body of /v1/chat/completions."""
    _check_names(body, CHAT)
    logprobs, top = _bool(body, "logprobs"), _int(body, "top_logprobs", 0, 20)
    if top and not logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    return _request(body, chat=True, messages=_messages(body), logprobs=logprobs, top_logprobs=bool(top))


def read_completion(body: Body) -> GenerationRequest:
    """Read a body of /v1/completions."""
    _check_names(body, COMPLETION)
    top = _int(body, "logprobs", 0, 20)
    prompts = _prompts(body, "prompt")
    return _request(body, chat=False, prompts=prompts, logprobs=top is not None, top_logprobs=bool(top))


def read_embeddings(body: Body) -> tuple[str | None, list[Prompt], bool]:
    """Read a body of /v1/embeddings; return the model, the texts, and whether to send vectors as base64."""
    _check_names(body, EMBEDDINGS)
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise invalid("encoding_format must be float or base64", "encoding_format")
    return _text(body, "model"), _prompts(body, "input"), encoding == "base64"


def _request(body: Body, *, chat: bool, logprobs: bool, top_logprobs: bool, **texts: Any) -> GenerationRequest:
    limit = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    stream, stream_options = _bool(body, "stream"), body.get("stream_options")
    if stream_options is not None:
        if not isinstance(stream_options, dict) or not stream:
            raise invalid("stream_options is an object, and needs stream: true", "stream_options")
        _check_names(stream_options, {"include_usage", "include_obfuscation"})
    options: dict[str, Any] = {
        "temperature": _number(body, "temperature", 0, 2, 1.0),
        "top_p": _number(body, "top_p", 0, 1, 1.0, above=True),
        "stop": _stops(body),
    }
    extra = {
        "top_k": _int(body, "top_k", 0, 2**31 - 1),
        "min_p": _number(body, "min_p", 0, 1, None),
        "repeat_penalty": _number(body, "repeat_penalty", 0, 100, None, above=True),
        "seed": _int(body, "seed", -(2**63), 2**63 - 1),
    }
    options |= {name: value for name, value in extra.items() if value is not None}
    return GenerationRequest(
        chat=chat,
        model=_text(body, "model"),
        prompts=texts.get("prompts", ()),
        messages=texts.get("messages", ()),
        n=_int(body, "n", 1, 128) or 1,
        stream=stream,
        usage=_bool(stream_options or {}, "include_usage"),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        max_tokens=_int(body, limit, 1, 2**31 - 1) or (None if chat else COMPLETION_TOKENS),
        options=options,  # type: ignore[arg-type]
    )


def _check_names(body: Body, names: set[str]) -> None:
    for name, value in body.items():
        if name in names or name in WITHOUT_INFLUENCE or value is None:
            continue
        if name not in NEUTRAL:
            raise invalid(f"there is no parameter {name[:64]!r}: leave it out", name[:64], "unknown_parameter")
        if value not in NEUTRAL[name]:
            raise invalid(f"{name} is not supported: leave it out", name, "unsupported_parameter")


def _bool(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return bool(value)


def _int(body: Body, name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high):
        raise invalid(f"{name} must be an int from {low} to {high}", name)
    return value


def _number(
    body: Body, name: str, low: float, high: float, default: float | None, *, above: bool = False
) -> float | None:
    value = body.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        bounds = f"above {low} and at most {high}" if above else f"from {low} to {high}"
        raise invalid(f"{name} must be a number {bounds}", name)
    return float(value)


def _text(body: Body, name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{name} must be a text", name)
    return value


def _stops(body: Body) -> list[str]:
    value = body.get("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > STOPS or not all(isinstance(s, str) and s for s in stops):
        raise invalid(f"stop must be a text, or a list of {STOPS} at most, and none of them empty", "stop")
    return stops


def _prompts(body: Body, name: str) -> list[Prompt]:
    value = body.get(name)
    prompts = [value] if isinstance(value, str) or _is_tokens(value) else value
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) or _is_tokens(p) for p in prompts):
        raise invalid(f"{name} must be a text, a list of tokens, or a list of these", name)
    return prompts


def _is_tokens(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(t, int) and not isinstance(t, bool) for t in value)


def _messages(body: Body) -> list[dict[str, str]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a list with one message at least", "messages")
    return [_message(m, f"messages[{k}]") for k, m in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, dict) or message.get("role") not in list(ROLES):
        raise invalid(f"{where} must be an object whose role is one of {', '.join(ROLES)}", where)
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, dict) and p.get("type") == "text" else None for p in content]
        content = "".join(parts) if all(isinstance(p, str) for p in parts) else None  # type: ignore[arg-type]
    if not isinstance(content, str) or message.get("tool_calls"):
        raise invalid(
            f"{where}.content must be a text, or a list of parts of type text: models here read no other", where
        )
    return {"role": ROLES[message["role"]], "content": content}


def seed_of(options: BatchOptions, choice: int) -> BatchOptions:
    """Return the options of one of several choices; each has a seed of its own."""
    seed = options.get("seed")
    return options if seed is None else {**options, "seed": (seed + choice) % SEEDS}


@dataclass(slots=True)
class PartialChoice:
    """One reply, as far as it has come."""

    text: list[str] = field(default_factory=list)
    tokens: list[Piece] = field(default_factory=list)
    finished: Finished | None = None

    def add(self, event: Piece | Finished) -> None:
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.text.append(event.text)
            self.tokens += [event] if event.token is not None else []


class ReplyFormat:
    """The format of the replies to one request."""

    def __init__(self, request: GenerationRequest, model: str) -> None:
        self.request, self.model = request, model
        self._id = f"{'chatcmpl' if request.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._sent = [0] * request.choices  # characters of each

    def complete(self, choices: Sequence[PartialChoice]) -> dict[str, Any]:
        """Return the object of a reply that is not streamed."""
        objects = []
        for k, choice in enumerate(choices):
            assert choice.finished
            text = "".join(choice.text)
            message = {"role": "assistant", "content": text, "refusal": None}
            content = {"message": message} if self.request.chat else {"text": text}
            objects.append(self._choice(k, content, choice.tokens, REASONS[choice.finished.reason]))
        return self._object(objects, chunk=False) | {"usage": self._usage(choices)}

    def first(self, choice: int) -> dict[str, Any] | None:
        """Return the first chunk of a choice; None if it has no special one."""
        content = {"delta": {"role": "assistant", "content": ""}}
        return self._chunk(self._choice(choice, content, None, None)) if self.request.chat else None

    def event(self, choice: int, event: Piece | Finished) -> dict[str, Any] | None:
        """Return the chunk for an event; None if it adds nothing yet."""
        chat = self.request.chat
        if isinstance(event, Finished):
            content: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            return self._chunk(self._choice(choice, content, None, REASONS[event.reason]))
        tokens = [event] if event.token is not None and self.request.logprobs else None
        if not event.text and not tokens:
            return None
        content = {"delta": {"content": event.text}} if chat else {"text": event.text}
        start = self._sent[choice]
        self._sent[choice] += len(event.text)
        return self._chunk(self._choice(choice, content, tokens, None, start))

    def last(self, choices: Sequence[PartialChoice]) -> dict[str, Any] | None:
        """Return the chunk with the usage, if the request includes it."""
        return self._object([], chunk=True) | {"usage": self._usage(choices)} if self.request.usage else None

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._object([choice], chunk=True) | ({"usage": None} if self.request.usage else {})

    def _object(self, choices: list[dict[str, Any]], chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.request.chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self.model, "choices": choices}

    def _choice(
        self, index: int, content: dict[str, Any], tokens: Sequence[Piece] | None, reason: str | None, start: int = 0
    ) -> dict[str, Any]:
        logprobs = None if tokens is None or not self.request.logprobs else self._logprobs(tokens, start)
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[Piece], start: int) -> dict[str, Any]:
        """Return the log-probabilities of the chosen tokens. The GPU gives no others, so "top" has only that one."""
        top = self.request.top_logprobs
        if self.request.chat:
            entries = [{"token": p.text, "logprob": _finite(p), "bytes": _bytes(p)} for p in tokens]
            return {"content": [e | {"top_logprobs": [dict(e)] if top else []} for e in entries], "refusal": None}
        return {
            "tokens": [p.text for p in tokens],
            "token_logprobs": [_finite(p) for p in tokens],
            "top_logprobs": [{p.text: _finite(p)} for p in tokens] if top else None,
            "text_offset": list(accumulate((len(p.text) for p in tokens[:-1]), initial=start)) if tokens else [],
        }

    def _usage(self, choices: Sequence[PartialChoice]) -> dict[str, Any]:
        """Count tokens; a prompt counts once, however many replies it has."""
        ends = [c.finished for c in choices if c.finished]
        firsts = ends[:: self.request.n]
        prompt, generated = sum(e.prompt_tokens for e in firsts), sum(e.tokens for e in ends)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(e.cached_tokens for e in firsts)},
        }


def _bytes(piece: Piece) -> list[int]:
    return list(piece.text.encode() if piece.raw is None else piece.raw)


def _finite(piece: Piece) -> float:
    return piece.logprob if math.isfinite(piece.logprob) else -9999.0  # as OpenAI does; JSON has no infinity


def model_object(name: str, created: int, kind: str, context: int, max_tokens: int) -> dict[str, Any]:
    """Return an entry of /v1/models; its kind and limits are additions to OpenAI's."""
    ours = {"kind": kind, "context": context, "max_tokens": max_tokens}
    return {"id": name, "object": "model", "created": created, "owned_by": "ptegpu", **ours}


def no_model(name: str, names: Sequence[str]) -> ApiError:
    return ApiError(404, f"there is no model {name[:64]!r} here: take {' or '.join(names)}", "model_not_found", "model")
