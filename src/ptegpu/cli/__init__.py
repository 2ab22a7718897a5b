"""The command `ptegpu`. Importing it takes no time, so `main` can handle Ctrl-C while the commands are imported."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED = 130  # exit codes as shells have them for a process that SIGINT ends,
CLOSED_PIPE = 141  # and for one that SIGPIPE ends: `ptegpu … | head` then ends like any other command before `head`


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; always ends in SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whose encoding may lack a letter, on Windows or where LANG says so
            stream.reconfigure(errors="replace")
    try:
        try:
            from .app import run_line

            code = run_line(given)
        finally:
            sys.stdout.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (BrokenPipeError, SystemExit) as e:  # typer makes exit code 1 of a closed pipe
        if isinstance(e, SystemExit) and not isinstance(e.__context__, BrokenPipeError):
            raise
        _let_go()
        sys.exit(CLOSED_PIPE)
    except Exception as e:  # Python makes a RuntimeError of an interrupt while a class is made, as imports do
        if not _from_interrupt(e):
            raise
        sys.exit(INTERRUPTED)


def _from_interrupt(e: BaseException | None) -> bool:
    return e is not None and (isinstance(e, KeyboardInterrupt) or _from_interrupt(e.__cause__ or e.__context__))


def _let_go() -> None:
    """Drops what is left for streams whose reader is gone: Python would complain about it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
