"""Bounds on tokenizers of strangers: how much the steps of a `tokenizer.json` may lengthen a text."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import InvalidInput

GROWTH = 64  # the factor by which a normalizer or a decoder may lengthen a text
ADDED = 4096  # tokens that may be put around a text
STEPS = 256  # of a normalizer, a pre-tokenizer or a decoder: each step reads all of a text
CHARACTER = 4  # bytes of a character at most, which byte-level steps write as characters
SPACED = 3  # characters that BERT's normalizer writes for a Chinese character: itself, between spaces
NEVER_EMPTY = re.compile(  # a pattern of characters and character sets, none of them optional
    r"(?:(?:[^\\()\[\]{}*+?|^$]|\\[nrtsSdDwW\W]|\[[^\\\[\]]+\])(?:\+|\{[1-9]\d*,?\d*\})?)+"
)


def check_growth(path: Path, content: bytes) -> None:
    """Raise InvalidInput for a tokenizer that may lengthen a text too much, see `GROWTH`, `ADDED` and `STEPS`."""
    try:
        parts = json.loads(content, object_pairs_hook=_object)
    except InvalidInput as e:
        raise InvalidInput(f"{path} is refused: {e}") from None
    except (ValueError, RecursionError):
        return  # the library will refuse it
    if not isinstance(parts, dict):
        return
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        steps = list(_steps(parts.get(name)))
        if not all(isinstance(step.get("type"), str) for step in steps):  # the library guesses their type
            raise InvalidInput(f"{path} is refused: a step of its {name} has no type")
        if len(steps) > STEPS:
            raise InvalidInput(f"{path} is refused: its {name} has {len(steps):,} steps, more than {STEPS}")
        if _growth(parts.get(name)) > GROWTH:
            raise InvalidInput(f"{path} is refused: its {name} may make a text more than {GROWTH} times as long")
    repeats, added = _template_cost(parts.get("post_processor"))
    if repeats:
        raise InvalidInput(f"{path} is refused: its post_processor repeats a text")
    if added > ADDED:
        raise InvalidInput(f"{path} is refused: its post_processor adds {added:,} tokens, more than {ADDED:,}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Refuse one with a key twice: the library may take the other value."""
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise InvalidInput(f"it has the key {repeated!r} twice in one object")
    return members


def _steps(root: object) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, such as a normalizer, in order, including those inside sequences."""
    stack = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += reversed(part)
        elif isinstance(part, dict):
            yield part
            stack += [part[key] for key in ("normalizers", "pretokenizers", "decoders", "processors") if key in part]


def _growth(root: object) -> float:
    """Return an upper bound of the factor by which the steps lengthen a text.

    A replacement of characters that no earlier step wrote does not multiply the text of the earlier steps, unless a
    step in between changes their characters. A prefix may be put before each part of a text, even a single character.
    """
    growth, changed = 1.0, False
    written: set[str] = set()  # characters that the replacements so far may write
    for part in _steps(root):
        kind, replaced, prepended = part.get("type"), _replaced(part), part.get("prepend")
        if replaced is not None:
            old, new, factor = replaced
            multiplies = changed or not old or not written.isdisjoint(old)
            growth = growth * factor if multiplies else max(growth, factor)
            written |= set(new)
        elif kind == "Prepend" and isinstance(prepended, str):
            growth += len(prepended)
            written |= set(prepended)
        elif kind == "Metaspace":
            growth *= 2
            changed = True
        elif kind == "Precompiled":
            texts = _texts(part.get("precompiled_charsmap"))
            growth *= max([1, *map(len, texts)])
            written |= set("".join(texts))
            changed = True
        elif kind == "ByteLevel":
            growth *= CHARACTER
            changed = True
        elif kind not in ("Sequence", "Strip", "Fuse", "ByteFallback"):
            spread = [_spread(kind, c) for c in written]
            growth *= max([SPACED if kind == "BertNormalizer" else 1, *map(len, spread)])
            written |= set("".join(spread))
            changed = changed or bool(written) or kind == "BertNormalizer"
        if growth > GROWTH:
            break
    return growth


def _spread(kind: object, character: str) -> str:
    """Return the text that a step writes for a character, or a longer one."""
    if kind == "Lowercase":
        return character.lower()
    if kind == "BertNormalizer":
        return unicodedata.normalize("NFD", character).lower()
    if kind in ("NFC", "NFD"):
        return unicodedata.normalize("NFD", character)
    return unicodedata.normalize("NFKD", character) if kind in ("NFKC", "NFKD") else character


def _replaced(part: dict[str, Any]) -> tuple[str | None, str, float] | None:
    """Return the text that a step replaces (None for a pattern), the new text, and the factor by which texts grow.

    Return None for a step without a replacement. A pattern that matches an empty text matches between all characters.
    """
    kind, pattern, new = part.get("type"), part.get("pattern"), part.get("content")
    if kind in ("BPEDecoder", "CTC"):
        old, new = part.get("suffix" if kind == "BPEDecoder" else "word_delimiter_token"), " "
    elif kind == "Replace" and isinstance(pattern, dict) and isinstance(new, str):
        old = pattern.get("String")
        if old is None:
            is_never_empty = NEVER_EMPTY.fullmatch(str(pattern.get("Regex")))
            return None, new, max(1, len(new)) if is_never_empty else 1 + len(new)
    else:
        return None
    return (old, new, max(1, len(new) / len(old)) if old else 1 + len(new)) if isinstance(old, str) else None


def _texts(charsmap: object) -> list[str]:
    """Return the texts that a table of SentencePiece writes for characters."""
    try:
        data = base64.b64decode(charsmap)  # type: ignore[arg-type]  # of any type
    except (ValueError, TypeError):
        return []  # the library will refuse it
    start = 4 + int.from_bytes(data[:4], "little")  # after a trie: texts, each with a zero at its end
    return [text.decode(errors="replace") for text in data[start:].split(b"\0")]


def _template_cost(root: object) -> tuple[bool, int]:
    """Return whether a template has a text more than once, and the number of tokens that templates add."""
    repeats, added = False, 0
    for part in _steps(root):
        special = part.get("special_tokens")
        for pieces in (part.get("single"), part.get("pair")):
            names: Counter[tuple[str, str]] = Counter()
            for piece in (p for p in pieces if isinstance(p, dict)) if isinstance(pieces, list) else ():
                names.update((kind, str(v.get("id"))) for kind, v in piece.items() if isinstance(v, dict))
            repeats |= any(kind == "Sequence" and n > 1 for (kind, _), n in names.items())
            for (kind, name), n in names.items():
                token = special.get(name) if kind == "SpecialToken" and isinstance(special, dict) else None
                ids = token.get("ids") if isinstance(token, dict) else None
                added += n * len(ids) if isinstance(ids, list) else 0
    return repeats, added
