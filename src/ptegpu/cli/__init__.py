"""The command `ptegpu`. Importing it is quick, so that `main` can handle Ctrl-C while the commands are imported."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED = 130  # exit codes of shells for a process that SIGINT ends,
CLOSED_PIPE = 141  # and for one that SIGPIPE ends, as in `ptegpu … | head`


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; always raises SystemExit."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack a letter, on Windows or because of LANG
            stream.reconfigure(errors="replace")
    try:
        try:
            from .app import run_line

            code = run_line(arguments)
        finally:
            sys.stdout.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (BrokenPipeError, SystemExit) as e:  # typer turns a closed pipe into exit code 1
        if isinstance(e, SystemExit) and not isinstance(e.__context__, BrokenPipeError):
            raise
        _discard_output()
        sys.exit(CLOSED_PIPE)
    except Exception as e:  # an interrupt while a class is created becomes a RuntimeError
        if not _from_interrupt(e):
            raise
        sys.exit(INTERRUPTED)


def _from_interrupt(e: BaseException | None) -> bool:
    return e is not None and (isinstance(e, KeyboardInterrupt) or _from_interrupt(e.__cause__ or e.__context__))


def _discard_output() -> None:
    """Drop the output left for streams whose reader is gone: Python would report an error at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
