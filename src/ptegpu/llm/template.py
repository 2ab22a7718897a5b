"""Chat templates as `tokenizer_config.json` gives them, rendered by Jinja2 in its sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidInput

Message = Mapping[str, Any]  # {"role": "user" | "assistant" | "system", "content": …}


class ChatTemplate:
    """A template with the special tokens that it may name: `bos_token`, `eos_token`, …"""

    def __init__(self, source: object, special: Mapping[str, str]) -> None:
        self._special = dict(special)
        try:
            self._template = _environment().from_string(_default(source))
        except TemplateError as e:
            raise InvalidInput(f"the chat template is invalid: {e}") from None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as the model was trained to see it."""
        try:
            return self._template.render(
                **self._special,
                messages=[dict(m) for m in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
            )
        except (TemplateError, TypeError, ValueError, LookupError) as e:
            raise InvalidInput(f"the chat template refuses this conversation: {e}") from None


def _default(source: object) -> str:
    """A template's text; of several, in a list of {"name", "template"}, the one named default, or the first."""
    if isinstance(source, str):
        return source
    named = {}
    if isinstance(source, list):
        named = {t["name"]: t["template"] for t in source if isinstance(t, dict) and {"name", "template"} <= set(t)}
    if not named:
        raise InvalidInput("the chat template is neither a text nor a list of named texts")
    return str(named.get("default") or next(iter(named.values())))


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
