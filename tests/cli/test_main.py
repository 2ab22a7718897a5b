"""What all commands share: help, version, errors on stderr, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Invoke
from tests.test_layers import SRC

import ptegpu
from ptegpu.cli import main
from ptegpu.cli.console import counted, dims, duration, print_error, print_json, progress, size
from ptegpu.errors import InvalidProgram


def test_version(invoke: Invoke) -> None:
    ended = invoke("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"ptegpu {ptegpu.__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "inspect", "profile", "doctor", "demo"])
def test_help_names_the_options(invoke: Invoke, command: str) -> None:
    assert command in invoke("--help").out
    ended = invoke(command, "--help")
    assert ended.code == 0
    assert "--json" in ended.out


def test_usage_errors_have_their_own_code(invoke: Invoke) -> None:
    assert invoke("walk").code == 2
    assert invoke("run").code == 2
    assert invoke("run", "x.pte", "--nothing").code == 2


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_missing_file_is_one_line(invoke: Invoke, command: str) -> None:
    ended = invoke(command, "nowhere.pte", "--json")
    assert (ended.code, ended.out, ended.err) == (1, "", "error: nowhere.pte: No such file or directory\n")


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_broken_file_is_one_line(invoke: Invoke, tmp_path: Path, mlp: Path, command: str) -> None:
    broken = tmp_path / "broken.pte"
    broken.write_bytes(mlp.read_bytes()[:20])
    ended = invoke(command, broken)
    expected = f"error: {broken}: truncated: the file ends in its header, after 20 bytes (at byte 8)\n"
    assert (ended.code, ended.out, ended.err) == (1, "", expected)


def test_a_foreign_file_is_named(invoke: Invoke, tmp_path: Path) -> None:
    foreign = tmp_path / "model.onnx"
    foreign.write_bytes(b"GGUF and so on, and so on")
    expected = f"error: {foreign}: not an ExecuTorch program (.pte): this looks like a GGUF model (at byte 0)\n"
    assert invoke("inspect", foreign).err == expected


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pte"
    empty.touch()
    with pytest.raises(InvalidProgram, match="it is empty"):
        main(["inspect", str(empty), "--debug"])


def test_a_closed_pipe_is_no_error(mlp: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); from ptegpu.cli import main; main()"
    command = [sys.executable, "-c", code, "inspect", str(mlp), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_an_error_of_several_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("[bold]two\n  lines")
    assert capsys.readouterr() == ("", "error: [bold]two\n  lines\n")


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("inf"), float("nan"), 1.5]})
    assert capsys.readouterr().out == '{\n  "a": [\n    "inf",\n    "nan",\n    1.5\n  ]\n}\n'


def test_progress_is_silent_in_pipes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.cli.console.PATIENCE", 0.0)
    with progress("Loading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_numbers_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 1_234_567, 5 * 10**9)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "1.23 MB",
        "5 GB",
    ]
    assert [duration(s) for s in (1.5e-5, 0.0123, 2.5)] == ["15 µs", "12.3 ms", "2.5 s"]
    assert [counted(n, "plan") for n in (0, 1, 1200)] == ["0 plans", "1 plan", "1,200 plans"]
    assert [dims(s) for s in ((), (2, 3))] == ["scalar", "2×3"]
