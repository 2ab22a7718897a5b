"""The fixture of the JavaScript tests: Python's results for settings, tokens, texts and templates.

PYTHONPATH=src:. python -m tests.web.llm_fixture       # writes web/test/llm.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tests.llm.test_text import byte_fallback
from tests.zoo.words import tokenizer as byte_level

from ptegpu.errors import InvalidInput
from ptegpu.models.template import ChatTemplate
from ptegpu.models.text.sampling import Sampling
from ptegpu.models.tokenizer import Detokenizer, StopStrings, Tokenizer

ROOT = Path(__file__).parents[2]
DEMO, TEMPLATES, FILE = ROOT / "src/ptegpu/demo", ROOT / "web/test/templates", ROOT / "web/test/llm.json"

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.1, "seed": 4294967295},
    {"temperature": 1e-40, "top_k": 2147483647, "top_p": 1e-50, "min_p": 1e-300, "repeat_penalty": 1e-50},
    {"temperature": 1e300, "min_p": 1, "repeat_penalty": 1e300},
    {"temperature": 3, "top_p": 1 / 3, "seed": 2147483648},
    {"top_k": 5, "top_p": 0.5, "repeat_penalty": 0.9},
    *({"temperature": t / 10, "top_p": t / 21, "min_p": t / 97, "repeat_penalty": 1 + t / 7} for t in range(1, 21)),
]
ODD = [
    "",
    " ",
    "\n\n\n",
    "  two  spaces ",
    "Müller's 日本語 🦊🏽 e\u0301 \ufeffx",
    "it's I'LL 1234567 ...!?",
    "a<|end|>b",
    "\t\u00a0x\u2003",
]
TEXTS = ["Hello wor wörld 🦊🏽 e\u0301 \n\t  x", "日本", " lead", "\ufffd!", "👩‍👩‍👧", "Märchen: 日 end"]
STOPS = [["b", "aba"], ["<end>", "\n\n"], ["ab", "abc", ""], ["🦊", "é"], []]
PIECES = [
    ["xaba"],
    ["xab", "a"],
    ["Hello<e", "x\n", "!"],
    ["a", "\n", "\n", "b"],
    ["", "x🦊y"],
    ["caf", "é"],
    ["<en", "d", ">"],
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CALL = {"id": "123456789", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None, True, 'ü\n"<']}}}


def conversation(*turns: str | dict[str, Any]) -> list[dict[str, Any]]:
    """Return a conversation that begins with the user; each turn is a text or a message."""
    roles = ("user", "assistant")
    return [t if isinstance(t, dict) else {"role": roles[k % 2], "content": t} for k, t in enumerate(turns)]


SYSTEM = {"role": "system", "content": "  Be brief. "}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    conversation("Hi"),
    conversation(" Hi\n", "  Hello! ", "Wie geht's? 🦊"),
    [SYSTEM, *conversation("Hi")],
    [SYSTEM, *conversation("Hi", "<think>\nhm\n</think>\n\nHello", "Bye", "<think>now</think>So long")],
    [
        *conversation("1+2.5?", {"role": "assistant", "content": "", "tool_calls": [CALL]}),
        {"role": "tool", "content": "3.5"},
    ],
    conversation("Hi", {"role": "user", "content": "again"}),
    conversation("Hi", {"role": "oracle", "content": "?"}),
    [{"role": "developer", "content": "x"}, {"role": "user", "content": "", "name": "anna lena"}],
    [],
]
HI = conversation(" hi ", "ü")
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "image"}]}
]  # for templates that take them
SNIPPETS = [
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{{ messages[1] | tojson }}{{ messages | tojson(indent=2) }}",
    "{%- generation %}\n{{ messages[1].content }}{% endgeneration -%}\n",
    "{{ 'now' if strftime_now('%Y') | int > 2000 }}",
    "  {% if tools is none %}\nnone\n  {% endif %}\n",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ messages[0].content.strip().upper() }}",
    "{% for k in range(3) %}{{ k }}{% endfor %}{% for k in range(5, 1, -2) %}{{ k }}{% endfor %}",
    "{{ 1 if none is none and True }}{{ 2 if None is none and not false }}",
    "{{ messages[0]['content'] if messages[0]['role'] == 'user' else 'x' }}{{ messages[-1].role }}{{ missing }}.",
    "{{ raise_exception('roles must alternate') }}",
    "{% for m in missing %}{{ m }}{% else %}nothing{% endfor %}",
]
REFUSED = [
    "{% if %}",
    "{{ messages[0] ",
    "{% for m in messages %}",
    "{% unknown %}",
    "{{ messages[5].role }}",
    "{{ missing.a.b }}",
]


class Plain:
    """A tokenizer with the interface that `Detokenizer` needs."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)


def settings(options: dict[str, Any]) -> dict[str, Any]:
    chosen = Sampling(**({"seed": 7} | options))
    return {"given": options, "how": chosen.flags, "words": [chosen.words(step).tolist() for step in (0, 300)]}


def pieces(tokenizer: tokenizers.Tokenizer, text: str) -> dict[str, Any]:
    tokens = tokenizer.encode(text).ids
    after = Detokenizer(Plain(tokenizer), tokenizer.encode("Hello").ids)  # type: ignore[arg-type]
    parts = [after.push(t) for t in tokens]
    cut = Detokenizer(Plain(tokenizer))  # type: ignore[arg-type]
    return {
        "text": text,
        "tokens": tokens,
        "pieces": parts,
        "cut": [cut.push(t) for t in tokens[:-1]] + [cut.finish()],
    }


def stopped(stops: list[str], texts: list[str]) -> dict[str, Any]:
    passing = StopStrings(stops)
    shown = [passing.push(piece) for piece in texts]
    return {"stops": stops, "given": texts, "shown": [*shown, passing.finish()], "stopped": passing.stopped}


def rendered(source: str, messages: list[dict[str, Any]], prompt: bool = True) -> str | dict[str, str]:
    try:
        return ChatTemplate(source, SPECIAL).render(messages, add_generation_prompt=prompt)
    except InvalidInput as e:
        return {"error": str(e)}


def make() -> dict[str, Any]:
    """Return the content of the fixture."""
    tales = Tokenizer(DEMO / "tales.tokenizer.json", "tales.")
    lines = (DEMO / "tales.heldout.txt").read_text("utf-8").splitlines()[:24]
    both = {"byte-level": byte_level(), "byte-fallback": byte_fallback()}
    sources = {path.stem: path.read_text("utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))}
    return {
        "settings": [settings(s) for s in SETTINGS],
        "tales": {
            "lines": [tales.encode(line) for line in lines],
            "odd": [[t, tales.encode(t)] for t in ODD],
            "eos": tales.eos,
        },
        "tokenizers": {
            name: {"json": json.loads(tokenizer.to_str()), "texts": [pieces(tokenizer, t) for t in TEXTS]}
            for name, tokenizer in both.items()
        },
        "stops": [stopped(s, p) for s in STOPS for p in PIECES],
        "special": SPECIAL,
        "conversations": CONVERSATIONS,
        "messages": {"parts": PARTS, "snippets": HI, "refused": conversation("x")},
        "templates": {
            name: [[rendered(source, c, prompt) for prompt in (True, False)] for c in CONVERSATIONS]
            for name, source in sources.items()
        },
        "parts": {n: rendered(sources[n], PARTS) for n in ("turns", "chatml")},
        "snippets": [[s, rendered(s, HI)] for s in SNIPPETS],
        "refused": [[s, rendered(s, conversation("x"))] for s in REFUSED],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(), ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
