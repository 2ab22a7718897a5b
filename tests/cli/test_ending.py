"""The end of a command's process that is interrupted, or whose output is not read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.test_layers import SRC

ENTRY = "from ptegpu.cli import main; main()"

# SIGINT at the moment a module is looked for.
INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""


def started(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SRC)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )


@pytest.mark.parametrize("module", ["typer", "rich.console", "numpy", "ptegpu.cli.run", "wgpu", "ptegpu.gpu.session"])
def test_an_interrupt_before_the_command_runs(module: str, mlp: Path) -> None:
    with started(INTERRUPT.format(module=module) + ENTRY, "run", mlp) as process:
        out, err = process.communicate(timeout=100)
    assert (130, b"", b"") == (process.returncode, out, err)


IN_A_CLASS = """
import sys

class Attribute:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            type("Owner", (), {"attribute": Attribute()})

sys.meta_path.insert(0, Interrupt())
"""


def test_an_interrupt_while_a_class_is_made(mlp: Path) -> None:
    """Python 3.11 raises a RuntimeError there."""
    with started(IN_A_CLASS + ENTRY, "run", mlp) as process:
        out, err = process.communicate(timeout=100)
    assert (130, b"", b"") == (process.returncode, out, err)


def test_an_interrupt_while_it_starts(mlp: Path) -> None:
    code = ENTRY.replace("main()", "print('up', flush=True); main()")
    ends = []
    for delay in range(30, 500, 50):
        with started(code, "run", mlp) as process:
            assert process.stdout and process.stdout.read(3) == b"up\n"
            time.sleep(delay / 1000)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=100)
        ends.append((process.returncode, err))
    assert {(130, b"")} <= set(ends) <= {(130, b""), (0, b"")}  # a fast machine is done before the last ones


@pytest.mark.parametrize("arguments", [["inspect", "{mlp}"], ["inspect", "{mlp}", "--json"], ["--help"], ["--version"]])
def test_a_closed_pipe_ends_it_quietly(arguments: list[str], mlp: Path) -> None:
    with started(ENTRY, *(argument.format(mlp=mlp) for argument in arguments)) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        err = process.stderr.read()
    assert (141, b"") == (process.returncode, err)


def test_an_error_that_nobody_reads_ends_it_quietly() -> None:
    with started(ENTRY, "inspect", "nowhere.pte") as process:
        assert process.stdout and process.stderr
        process.stderr.close()
        process.stdout.read()
    assert 141 == process.returncode
