"""Text that others wrote, as people may see it: names from files, words of a model, messages with either in them.

Control and format characters (C0, C1, bidirectional overrides, lone surrogates, …) become escapes: what is printed can
neither steer a terminal nor hide, reorder or end the text around it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

LONGEST = 2000  # characters of a message, and of a line
CUT = " … "  # instead of the middle of what is longer
LAST = 40  # characters that are enough to say how many lines there are
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")  # Unicode's categories
_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text: str, most: int = LONGEST) -> str:
    """One line of at most so many characters; of what is longer, its beginning and its end."""
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    is_long = len(text) > 2 * most  # the rest of it takes no time
    escaped = _escaped(text[:most] + text[-most:] if is_long else text)
    if len(escaped) <= most and not is_long:
        return escaped
    end = (most - len(CUT)) // 3
    return escaped[: most - len(CUT) - end] + CUT + escaped[len(escaped) - end :]


def shown_lines(lines: Iterable[str], most: int = LONGEST) -> list[str]:
    """Each as `shown` gives it, of at most so many characters together; the last line says how many are left out."""
    found = [shown(line, most) for line in lines]
    if sum(map(len, found)) + len(found) <= most + 1:
        return found
    left = most - LAST
    kept = [shown(found[0], left)]
    while (left := left - len(kept[-1]) - 1) > len(found[len(kept)]):
        kept.append(found[len(kept)])
    return [*kept, f"… and {len(found) - len(kept):,} more lines"]


def streamed(text: str) -> str:
    """A piece of a text for a terminal: lines, tabs and what joins letters stay, what steers a terminal does not."""
    return _STEERING.sub(lambda found: _escape(found[0]), text.replace("\r\n", "\n"))


def json_shown(text: str) -> str:
    """A JSON text with escapes for characters that nobody sees; its meaning is the same."""
    return re.sub("[\x7f-\U0010ffff]", lambda found: _json_escape(found[0]) if _unseen(found[0]) else found[0], text)


def _escaped(text: str) -> str:
    return "".join(_escape(c) if _unseen(c) else c for c in text)


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _json_escape(character: str) -> str:
    words = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{words[k]:02x}{words[k + 1]:02x}" for k in range(0, len(words), 2))
