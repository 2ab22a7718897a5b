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

PIPE_WIDTH = 160  # columns without a terminal
SHORTEST = 12  # minimum width of the first column of a table
LABEL = 80  # characters beside a bar
PATIENCE = 1.0  # seconds before a spinner appears


def console(*, stderr: bool = False) -> Console:
    """Return a console on the current stream, with colours only if it is a terminal."""
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def say(*parts: str | tuple[str, str], end: str = "\n") -> None:
    """Print one line on stdout, made of plain pieces and (text, style) pieces."""
    pieces = (shown(part) if isinstance(part, str) else (shown(part[0]), part[1]) for part in parts)
    console().print(Text.assemble(*pieces), end=end, soft_wrap=True)


def explain(text: str, head: str = "", style: str = "", indent: int = 0) -> None:
    """Print a sentence after a styled head; on a terminal, break it between words and indent the other lines."""
    out, line = console(), " " * len(head) + shown(text)
    fill = TextWrapper(out.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    lines = fill.wrap(line) if out.is_terminal else [line]
    say((head, style), lines[0][len(head) :])
    for more in lines[1:]:
        say(more)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = (), optional: Sequence[int] = ()
) -> None:
    """Print a table on stdout; `right` are the columns of numbers. Cells are text, never markup.

    Empty columns are left out. If the table is too wide, so are `optional` ones, in the order given.
    """
    cells = [[cell if isinstance(cell, Text) else Text(shown(str(cell))) for cell in row] for row in rows]
    visible = [k for k in range(len(columns)) if not cells or any(row[k].plain for row in cells)]
    unbroken = {0, *right}  # columns whose lines are not broken
    widths = {k: _least_width([columns[k], *(row[k].plain for row in cells)], k in unbroken) for k in visible}

    def excess() -> int:
        return sum(widths[k] + 2 for k in visible) - out.width  # with the space around columns

    out, droppable = console(), [k for k in optional if k in visible]
    while droppable and excess() > 0:
        visible.remove(droppable.pop(0))
    if excess() > 0:
        widths[visible[0]] = max(widths[visible[0]] - excess(), SHORTEST)
    table = Table(padding=(0, 1, 0, 0), box=box.SIMPLE_HEAD, pad_edge=False)
    for k in visible:
        width = widths[k] if k in unbroken else None
        table.add_column(columns[k], justify="right" if k in right else "left", overflow="fold", width=width)
    for row in cells:
        table.add_row(*(row[k] for k in visible))
    with out.capture() as captured:
        out.print(table)
    lines = captured.get().splitlines()
    print("\n".join(lines if out.is_terminal else [line.rstrip() for line in lines]))


def _least_width(texts: Iterable[str], unbroken: bool) -> int:
    """Return the width of the longest line, or of the longest word if lines may be broken."""
    return max(cell_len(part) for text in texts for part in ((text.splitlines() if unbroken else text.split()) or [""]))


def print_json(value: Any) -> None:
    """Print `value` on stdout, with infinities and NaN, which JSON lacks, as strings."""
    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    print(json_shown(json.dumps(_finite(value), indent=2, ensure_ascii=not is_utf8)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def print_error(message: str) -> None:
    """Print `error: …` on stderr, on as many lines as the message has."""
    note(message, ("error:", "bold red"), " ")


def note(text: str, *head: tuple[str, str] | str, style: str = "") -> None:
    """Print lines on stderr after a styled head."""
    lines = "\n".join(shown_lines(text.split("\n")))
    console(stderr=True).print(Text.assemble(*head, (lines, style)), soft_wrap=True)


@contextmanager
def progress(title: str) -> Iterator[None]:
    """Show a spinner on stderr while the block runs, if that takes more than a second and stderr is a terminal."""
    terminal = console(stderr=True)
    status = terminal.status(Text(shown(f"{title} …", LABEL)))
    with _patiently(status.start, status.stop, terminal):
        yield


@contextmanager
def bars(*phases: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each phase on stderr, if the block takes more than a second and stderr is a terminal.

    Yield a function of a phase, the amount done and the total. `phases` are shown before they are reported. Without a
    terminal, the export of a folder, which takes minutes, is reported in lines.
    """
    terminal = console(stderr=True)
    in_lines = False
    columns = (TextColumn("{task.description:<16}", markup=False), BarColumn(30), TimeElapsedColumn())
    drawn = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
    tasks: dict[str, TaskID] = {phase: drawn.add_task(shown(phase, LABEL), total=None) for phase in phases}

    def report(phase: str, done: int, of: int) -> None:
        nonlocal in_lines
        if phase not in tasks:
            tasks[phase] = drawn.add_task(shown(phase, LABEL), total=None)
            if phase == STARTING and not terminal.is_terminal:
                in_lines = True
                note("the folder is exported, which takes a while; the program is kept in the cache", "note: ")
            if in_lines:
                note(f"{phase} …")
        if of > 1 or done == of:
            drawn.update(tasks[phase], completed=done, total=of)

    with _patiently(drawn.start, drawn.stop, terminal):
        yield report


@contextmanager
def _patiently(start: Callable[[], None], stop: Callable[[], None], terminal: Console) -> Iterator[None]:
    """Call `start` once the block takes more than a second, and `stop` at its end, if this is a terminal."""
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
def bar(title: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr if it is a terminal; yield a function of the amount done, total and item."""
    terminal = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as drawn:
        task = drawn.add_task(shown(title, LABEL), total=None)

        def update(done: int, total: int, item: str = "") -> None:
            drawn.update(task, completed=done, total=total, description=shown(f"{title} {item}".rstrip(), LABEL))

        yield update
