"""What the commands share: tables and JSON on stdout, errors and progress on stderr, numbers as people read them."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 160  # columns where there is no terminal to ask
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")  # Unicode's categories
PATIENCE = 1.0  # seconds before a spinner says what is going on


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; colours only where it is a terminal."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def say(*parts: str | tuple[str, str], end: str = "\n") -> None:
    """One line on stdout, in plain pieces and (text, style) pieces."""
    shown = [visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts]
    console().print(Text.assemble(*shown), end=end, soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> None:
    """A table on stdout; `right` are the columns of numbers. Cells are text, never markup."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(visible(str(cell))) for cell in row))
    console().print(table)


def print_json(value: Any) -> None:
    """`value` on stdout; infinities and NaN, which JSON lacks, as strings."""
    text = json.dumps(_finite(value), indent=2, ensure_ascii=not _is_utf8(sys.stdout.encoding))
    print(re.sub("[\ud800-\udfff]", lambda lone: _escaped(lone[0]), text))


def _is_utf8(encoding: str | None) -> bool:
    return (encoding or "utf-8").lower().replace("-", "") == "utf8"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_error(message: str) -> None:
    """`error: …` on stderr, as many lines as the message has."""
    console(stderr=True).print(Text.assemble(("error:", "bold red"), " ", visible(message)), soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs, if that takes more than a second and a person is watching."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield
        return
    status = terminal.status(Text(f"{what} …"))
    timer = threading.Timer(PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def size(nbytes: int) -> str:
    """12 bytes, 3.4 kB, 5.6 MB, 7.8 GB."""
    if nbytes < 1000:
        return f"{nbytes} bytes"
    power = min(int(math.log10(nbytes)) // 3, 4)
    return f"{nbytes / 1000**power:.3g} {'_kMGT'[power]}B"


def visible(text: str) -> str:
    """The text with escapes for what would hide, reorder or end it: control and format characters, lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in _UNSEEN else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def counted(count: int, noun: str) -> str:
    """1 plan, 2 plans."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """45 µs, 6.7 ms, 8.9 s."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def dims(shape: Sequence[int]) -> str:
    """1×3×8×8; a scalar has none."""
    return "×".join(map(str, shape)) or "scalar"


def number(value: float) -> str:
    """Four digits, enough to recognise a value."""
    return f"{value:.4g}"
