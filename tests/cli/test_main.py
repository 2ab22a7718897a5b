"""Behaviour shared by all commands: help, version, errors on stderr, exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Invoke
from tests.test_layers import SRC

import ptegpu
from ptegpu.cli import main
from ptegpu.cli.console import bar, bars, explain, print_error, print_json, progress, show_table
from ptegpu.errors import InvalidProgram
from ptegpu.models.checkpoints import STARTING
from ptegpu.units import counted, dims, duration, size

Capture = pytest.CaptureFixture[str]


def test_version(invoke: Invoke) -> None:
    ended = invoke("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"ptegpu {ptegpu.__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "inspect", "compile", "web", "serve", "profile", "doctor", "demo"])
def test_help_names_the_options(invoke: Invoke, command: str) -> None:
    assert command in invoke("--help").out
    ended = invoke(command, "--help")
    assert ended.code == 0
    assert "--json" in ended.out


def test_usage_errors_have_their_own_code(invoke: Invoke) -> None:
    assert invoke("walk").code == 2
    assert invoke("run").code == 2
    assert invoke("run", "x.pte", "--nothing").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspekt"], "No such command 'inspekt'. Did you mean 'inspect'? See ptegpu --help"),
        (["inspect"], "Missing argument 'model'; see ptegpu inspect --help"),
        (["inspect", "x.pte", "y.pte"], "Got unexpected extra argument(s) (y.pte); see ptegpu inspect --help"),
        (["run", "x.pte", "--quux"], "No such option: --quux; see ptegpu run --help"),
        (
            ["profile", "x.pte", "--by", "colour"],
            "Invalid value for '--by': 'colour' is not one of 'kernel', 'operator', 'dispatch'; "
            "see ptegpu profile --help",
        ),
        (
            ["inspect", "x.pte", "--graph", "x.png"],
            "Invalid value for --graph: x.png must end in .svg or .html; see ptegpu inspect --help",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(invoke: Invoke, arguments: list[str], message: str) -> None:
    ended = invoke(*arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        ("inspect", "--graph", "x.svg"),
        ("compile", "--output", "x.bundle"),
        ("profile", "--trace", "x.json"),
        ("run", "--save", "x.npz"),
    ],
)
def test_where_nothing_can_be_written(
    invoke: Invoke, mlp: Path, tmp_path: Path, command: str, option: str, name: str
) -> None:
    file, folder = tmp_path / "nowhere" / name, tmp_path / name
    ended = invoke(command, mlp, option, file)
    expected = f"error: {option} {file}: there is no folder {file.parent}; create it first\n"
    assert (ended.code, ended.out, ended.err) == (1, "", expected)
    folder.mkdir()
    ended = invoke(command, mlp, option, folder)
    assert (ended.code, ended.out, ended.err) == (1, "", f"error: {option} {folder} is a folder; name a file in it\n")


def test_without_a_command_there_is_help(invoke: Invoke) -> None:
    ended = invoke()
    assert (ended.code, ended.err) == (2, "")
    assert "Usage: ptegpu" in ended.out


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


def test_letters_that_stdout_lacks_are_no_error(data: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); from ptegpu.cli import main; main()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", code, "inspect", str(data / "dynamic.pte")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dynamic.pte ? 4.82 kB" in done.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment)
    assert json.loads(done.stdout)["methods"][0]["name"] == "forward"


def test_json_has_only_what_can_be_encoded(capsys: Capture) -> None:
    print_json({"name": "\udcff×"})
    out = capsys.readouterr().out
    assert out == '{\n  "name": "\\udcff×"\n}\n'
    assert json.loads(out)["name"] == "\udcff×"


ROWS = [["aten.a_long_name.default", 12, "1.5 µs", "why not so many words"], ["x", 1, "2 s", "because"]]


def table(capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int, **more: Any) -> list[str]:
    monkeypatch.setattr("ptegpu.cli.console.PIPE_WIDTH", width)
    show_table(["operator", "count", "time", "why"], ROWS, right=(1, 2), **more)
    lines = capsys.readouterr().out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) <= width
    return lines


def test_a_table_breaks_text_but_no_numbers(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = table(capsys, monkeypatch, 120)
    assert wide[1] == " operator                  count    time  why"
    assert wide[3] == " aten.a_long_name.default     12  1.5 µs  why not so many words"
    assert wide[4] == " x                             1     2 s  because"
    narrow = table(capsys, monkeypatch, 54)
    assert narrow[3:5] == [
        " aten.a_long_name.default     12  1.5 µs  why not so",
        "                                          many words",
    ]
    narrower = table(capsys, monkeypatch, 44)
    assert narrower[3] == " aten.a_long_name.d     12  1.5 µs  why not"
    assert narrower[4].startswith(" efault ")


def test_columns_that_may_go_and_empty_ones(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(capsys, monkeypatch, 44, optional=(1, 2))[1] == " operator                    time  why"
    assert table(capsys, monkeypatch, 36, optional=(1, 2))[1] == " operator                  why"
    monkeypatch.setattr("tests.cli.test_main.ROWS", [["a", 1, "", ""]])
    assert table(capsys, monkeypatch, 80)[1] == " operator  count"


def test_sentences_are_broken_between_words(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    explain("one two three four", "note: ", indent=6)
    assert capsys.readouterr().out == "note: one two three four\n"
    monkeypatch.setattr("ptegpu.cli.console.console", lambda: Console(width=16, force_terminal=True, color_system=None))
    explain("one two three four", "note: ", indent=6)
    assert capsys.readouterr().out == "note: one two\n      three four\n"


def test_an_error_of_several_lines(capsys: Capture) -> None:
    print_error("[bold]two\n  lines")
    assert capsys.readouterr() == ("", "error: [bold]two\n  lines\n")


def test_json_has_no_infinities(capsys: Capture) -> None:
    print_json({"a": [float("inf"), float("nan"), 1.5]})
    assert capsys.readouterr().out == '{\n  "a": [\n    "inf",\n    "nan",\n    1.5\n  ]\n}\n'


def test_progress_is_silent_in_pipes(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.cli.console.PATIENCE", 0.0)
    with progress("Loading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_pipe_is_told_of_an_export(capsys: Capture) -> None:
    with bars("Loading") as report:
        for phase in (STARTING, "Tracing"):
            report(phase, 0, 1)
            report(phase, 1, 1)
    lines = ["note: the folder is exported, which takes a while; the program is kept in the cache"]
    assert ("", "\n".join([*lines, "Starting PyTorch …", "Tracing …", ""])) == capsys.readouterr()


def test_bars_are_for_people_who_waited_a_second(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.cli.console.PATIENCE", 0.0)
    with bars("Loading") as report:
        report("Compiling kernels", 1, 2)
    assert capsys.readouterr() == ("", "")
    shown = io.StringIO()
    monkeypatch.setattr("ptegpu.cli.console.console", lambda stderr: Console(file=shown, force_terminal=True, width=80))
    with bars("Loading") as report:
        time.sleep(0.05)
        report("Compiling kernels", 1, 2)
        report("Compiling kernels", 2, 2)
    assert "Loading" in shown.getvalue() and "Compiling kernels" in shown.getvalue()


def test_a_bar_is_for_people_only(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with bar("Compiling") as step:
        step(1, 2, "forward.0")
    assert capsys.readouterr() == ("", "")
    shown = Console(force_terminal=True, width=80, color_system=None, file=io.StringIO())
    monkeypatch.setattr("ptegpu.cli.console.console", lambda *, stderr: shown)
    with bar("Compiling [a]") as step:
        step(1, 2, "forward.0")
    assert "Compiling [a] forward.0" in shown.file.getvalue()  # type: ignore[attr-defined]
    assert "1/2" in shown.file.getvalue()  # type: ignore[attr-defined]


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
