"""Chat templates from `tokenizer_config.json`, rendered by Jinja2 in a sandbox with a budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from ..errors import InvalidInput
from .sandbox import STEP, Sandbox

LONGEST = 1 << 18  # characters of a template
BUDGET = 1 << 24  # of a conversation, see `sandbox`: some 200,000 steps, or 16 million characters
FOR_EACH = 256  # added to the budget for each character of a conversation
FORM = 200  # characters of a format for dates

Message = Mapping[str, Any]  # {"role": "user" | "assistant" | "system", "content": …}


class ChatTemplate:
    """A template with the special tokens that it may name, such as `bos_token`."""

    def __init__(self, source: object, special: Mapping[str, str]) -> None:
        self._special = dict(special)
        text = _default(source)
        if len(text) > LONGEST:
            raise InvalidInput(f"the chat template is invalid: {len(text):,} characters; the limit is {LONGEST:,}")
        self._environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self._environment.add_filter("tojson", _to_json)
        self._environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        try:
            with self._environment.within(BUDGET):
                self._template = self._environment.from_string(text)
        except Exception as e:  # of any type, from the template
            raise InvalidInput(f"the chat template is invalid: {_message(e)}") from None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the conversation in the format that the model was trained with."""
        values = {"messages": [dict(m) for m in messages], "add_generation_prompt": add_generation_prompt}
        try:
            with self._environment.within(BUDGET + FOR_EACH * _characters(values["messages"])):
                return self._template.render(**self._special, **values, tools=None, documents=None)
        except Exception as e:  # of any type, from the template
            raise InvalidInput(f"the chat template refuses this conversation: {_message(e)}") from None


def _message(e: Exception) -> str:
    return str(e) or type(e).__name__


def _characters(value: object) -> int:
    """Return the characters of a conversation. Each item counts as `STEP` more."""
    if isinstance(value, str):
        return len(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return STEP + sum(map(_characters, inside))


def _default(source: object) -> str:
    """Return a template's text; of a list of {"name", "template"}, the one named default, or the first."""
    if isinstance(source, str):
        return source
    items = [t for t in source if isinstance(t, dict)] if isinstance(source, list) else []
    named = {str(t["name"]): str(t["template"]) for t in items if {"name", "template"} <= set(t)}
    if not named:
        raise InvalidInput("the chat template is neither a text nor a list of named texts")
    return named.get("default") or next(iter(named.values()))


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks a model's text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if not (indent is None or (isinstance(indent, int) and indent <= 16)):
        raise ValueError("tojson indents by 16 at most")
    if separators is not None and sum(map(len, separators)) > 16:
        raise ValueError("the separators of tojson are too long")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    if len(form) > FORM:
        raise ValueError("the format of a date is too long")
    return datetime.now().strftime(form)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
