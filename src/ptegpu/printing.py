"""Untrusted text made safe to print: names from files, text of a model, messages that contain either.

Control and format characters (C0, C1, bidirectional overrides, lone surrogates, …) become escapes, so that the text can
neither control a terminal nor hide, reorder or end the text around it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

LONGEST = 2000  # characters of a message, and of a line
CUT = " … "  # replaces the middle of a longer text
LAST = 40  # characters reserved for the number of lines left out
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")  # Unicode's categories
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str, most: int = LONGEST) -> str:
    """Return one line of at most `most` characters: the beginning and the end of a longer text."""
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    is_long = len(text) > 2 * most  # escaping all of it would take long
    escaped = "".join(map(_escape, text[:most] + text[-most:] if is_long else text))
    if len(escaped) <= most and not is_long:
        return escaped
    end = (most - len(CUT)) // 3
    return escaped[: most - len(CUT) - end] + CUT + escaped[len(escaped) - end :]


def shown_lines(lines: Iterable[str], most: int = LONGEST) -> list[str]:
    """Return each line as `shown` does, at most `most` characters in all; the last line counts those left out."""
    texts = [shown(line, most) for line in lines]
    if sum(map(len, texts)) + len(texts) <= most + 1:
        return texts
    left = most - LAST
    first = [shown(texts[0], left)]
    while (left := left - len(first[-1]) - 1) > len(texts[len(first)]):
        first.append(texts[len(first)])
    return [*first, f"… and {len(texts) - len(first):,} more lines"]


def streamed(text: str) -> str:
    """Escape what controls a terminal in a piece of a text; lines, tabs and joiners of letters stay."""
    return _CONTROL.sub(lambda match: _escape(match[0]), text.replace("\r\n", "\n"))


def json_shown(text: str) -> str:
    """Escape invisible characters in a JSON text, without changing its meaning."""
    return re.sub("[\x7f-\U0010ffff]", lambda match: _json_escape(match[0]), text)


def _escape(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    return character.encode("unicode_escape").decode("ascii")


def _json_escape(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN:
        return character
    words = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{words[k]:02x}{words[k + 1]:02x}" for k in range(0, len(words), 2))
