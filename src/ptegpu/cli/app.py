"""The commands of `ptegpu`. Errors are one line on stderr: exit code 1, or 2 if the command line is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

import ptegpu

from ..errors import PtegpuError
from ..printing import shown
from .chat import chat
from .compile import compile_program
from .console import print_error
from .demo import demo
from .doctor import doctor
from .evaluate import evaluate
from .export import export
from .generate import generate
from .inspect import inspect
from .options import command
from .profile import profile
from .run import run
from .serve import serve
from .transcribe import transcribe
from .web import web

UsageError: Any = typer.BadParameter.__mro__[1]  # typer gives it no public name

app = typer.Typer(
    help="Run ExecuTorch programs (.pte) on any GPU, through WebGPU.",
    epilog="With any command, --debug shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (run, inspect, compile_program, web, profile, doctor, generate, chat, transcribe, serve, evaluate)
for _function in _COMMANDS:
    app.command(_function.__name__.partition("_")[0])(command(_function))
app.add_typer(export)
app.add_typer(demo)


def _version(is_set: bool) -> None:
    if is_set:
        print(f"ptegpu {ptegpu.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run_line(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = app([a for a in arguments if a != "--debug"], prog_name="ptegpu", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as e:
        if message := _usage(e):
            print_error(message)
        return 2
    except BrokenPipeError:
        raise
    except (PtegpuError, OSError, ModuleNotFoundError) as e:
        if "--debug" in arguments or not (message := _message(e)):
            raise
        print_error(message)
        return 1


def _usage(e: Any) -> str:
    """Return what is wrong with the command line and where its help is; empty if the help was shown already."""
    if type(e).__name__ == "NoArgsIsHelpError":
        return ""
    command = e.ctx.command_path if e.ctx else "ptegpu"
    text = e.format_message().replace("Value error, ", "").rstrip(".")
    return f"{text}{' See' if text.endswith('?') else '; see'} {command} --help"


_PACKAGES = {
    "wgpu": "wgpu==0.32.*",
    "tokenizers": "ptegpu[llm]",
    "jinja2": "ptegpu[llm]",
    "torch": "ptegpu[export]",
    "starlette": "ptegpu[serve]",
    "uvicorn": "ptegpu[serve]",
}


def _message(e: Exception) -> str:
    """Return the message to print; empty for an error that is not the user's."""
    if isinstance(e, OSError) and e.strerror:
        return f"{shown(str(e.filename))}: {e.strerror}" if e.filename else e.strerror
    if isinstance(e, ModuleNotFoundError):
        package = (e.name or "").partition(".")[0]
        missing = _PACKAGES.get(package)
        return f"{package} is not installed. Run: pip install '{missing}'" if missing else ""
    return str(e)
