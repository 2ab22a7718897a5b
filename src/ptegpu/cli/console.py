"""Tables and JSON on stdout, errors and progress on stderr, for all commands."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import TextWrapper
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..models.checkpoints import STARTING
from ..printing import json_shown, shown, shown_lines

PIPE_WIDTH = 160  # columns where there is no terminal to ask
SHORTEST = 12  # columns that names have in a table at least
LABEL = 80  # characters beside a bar
PATIENCE = 1.0  # seconds before a spinner says what is going on


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; colours only where it is a terminal."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def say(*parts: str | tuple[str, str], end: str = "\n") -> None:
    """One line on stdout, in plain pieces and (text, style) pieces."""
    console().print(_assembled(parts), end=end, soft_wrap=True)


def explain(text: str, head: str = "", style: str = "", indent: int = 0) -> None:
    """A sentence on stdout after a styled head; a terminal breaks it between words and indents what follows."""
    out, line = console(), " " * len(head) + shown(text)
    fill = TextWrapper(out.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    lines = fill.wrap(line) if out.is_terminal else [line]
    say((head, style), lines[0][len(head) :])
    for more in lines[1:]:
        say(more)


def _assembled(parts: Sequence[str | tuple[str, str]]) -> Text:
    return Text.assemble(*(shown(part) if isinstance(part, str) else (shown(part[0]), part[1]) for part in parts))


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Sequence[int] = (),
    optional: Sequence[int] = (),
) -> None:
    """A table on stdout; `right` are the columns of numbers. Cells are text, never markup.

    A column that is empty is left out, and so are `optional` ones, the first first, where the table is too wide.
    """
    cells = [[cell if isinstance(cell, Text) else Text(shown(str(cell))) for cell in row] for row in rows]
    kept = [k for k in range(len(columns)) if not cells or any(row[k].plain for row in cells)]
    whole = {0, *right}  # columns whose lines are not broken
    least = {k: _least([columns[k], *(row[k].plain for row in cells)], k in whole) for k in kept}
    out, dropped = console(), [k for k in optional if k in kept]
    while dropped and _width(least[k] for k in kept) > out.width:
        kept.remove(dropped.pop(0))
    excess = _width(least[k] for k in kept) - out.width
    if excess > 0:
        least[kept[0]] = max(least[kept[0]] - excess, SHORTEST)
    style: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD, "pad_edge": False}
    table = Table(title=title or None, padding=(0, 1, 0, 0), **style)
    for k in kept:
        width = least[k] if k in whole else None
        table.add_column(columns[k], justify="right" if k in right else "left", overflow="fold", width=width)
    for row in cells:
        table.add_row(*(row[k] for k in kept))
    with out.capture() as captured:
        out.print(table)
    lines = captured.get().splitlines()
    print("\n".join(lines if out.is_terminal else [line.rstrip() for line in lines]))


def _least(texts: Iterable[str], whole: bool) -> int:
    """The width of the longest line, or word."""
    return max(cell_len(part) for text in texts for part in ((text.splitlines() if whole else text.split()) or [""]))


def _width(widths: Iterable[int]) -> int:
    """Of a table, with the space around its columns."""
    return sum(width + 2 for width in widths)


def print_json(value: Any) -> None:
    """`value` on stdout; infinities and NaN, which JSON lacks, as strings."""
    print(json_shown(json.dumps(_finite(value), indent=2, ensure_ascii=not _is_utf8(sys.stdout.encoding))))


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
    note(message, ("error:", "bold red"), " ")


def note(text: str, *head: tuple[str, str] | str, style: str = "") -> None:
    """Lines on stderr after a styled head."""
    lines = "\n".join(shown_lines(text.split("\n")))
    console(stderr=True).print(Text.assemble(*head, (lines, style)), soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs, if that takes more than a second and a person is watching."""
    terminal = console(stderr=True)
    status = terminal.status(Text(shown(f"{what} …", LABEL)))
    with _patiently(status.start, status.stop, terminal):
        yield


@contextmanager
def bars(*phases: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each phase on stderr, if the block takes more than a second and a person is watching. It is given what
    to tell: a phase, how much of it is done, of how much. The phases named here are shown before they are told of.
    Without a terminal, an export of a folder, which takes minutes, is told of in lines."""
    terminal = console(stderr=True)
    aloud = False
    columns = (TextColumn("{task.description:<16}", markup=False), BarColumn(30), TimeElapsedColumn())
    drawn = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    tasks: dict[str, TaskID] = {phase: drawn.add_task(shown(phase, LABEL), total=None) for phase in phases}

    def report(phase: str, done: int, of: int) -> None:
        nonlocal aloud
        if phase not in tasks:
            tasks[phase] = drawn.add_task(shown(phase, LABEL), total=None)
            if phase == STARTING and not terminal.is_terminal:
                aloud = True
                note("the folder is exported, which takes a while; the program is kept in the cache", "note: ")
            if aloud:
                note(f"{phase} …")
        if of > 1 or done == of:
            drawn.update(tasks[phase], completed=done, total=of)

    with _patiently(drawn.start, drawn.stop, terminal):
        yield report


@contextmanager
def _patiently(start: Callable[[], None], stop: Callable[[], None], terminal: Console) -> Iterator[None]:
    """A block that something is shown for once it takes more than a second."""
    if not terminal.is_terminal:
        yield
        return
    timer = threading.Timer(PATIENCE, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        stop()


@contextmanager
def bar(what: str) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr, where a person is watching, to be told: how much is done, of how much, what is next."""
    terminal = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as drawn:
        task = drawn.add_task(shown(what, LABEL), total=None)

        def update(done: int, total: int, now: str = "") -> None:
            drawn.update(task, completed=done, total=total, description=shown(f"{what} {now}".rstrip(), LABEL))

        yield update
