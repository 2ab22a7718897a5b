"""The command of docs/adding-a-command.md works as the page shows it, and groups of options expand."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
import typer

from ptegpu.cli.options import AsJson, LoadFlags, SamplingFlags, command
from ptegpu.cli.report import CommandReport

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "adding-a-command.md"
Capture = pytest.CaptureFixture[str]


def run(function: Any, *arguments: object) -> int:
    app = typer.Typer()
    app.command()(command(function))
    return app([str(a) for a in arguments], standalone_mode=False) or 0


def test_the_page(mlp: Path, capsys: Capture) -> None:
    source = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert source
    module = types.ModuleType("ptegpu.cli.count")
    module.__package__ = "ptegpu.cli"
    exec(compile(source[1], "count.py", "exec", dont_inherit=True), vars(module))
    assert 0 == run(module.count, mlp, "--most", 1)
    assert "mlp.pte · 3 operators\n" in (out := capsys.readouterr().out)
    assert "aten.linear.default" in out and "aten.relu.default" not in out
    run(module.count, mlp, "--json")
    assert {"aten.linear.default": 2, "aten.relu.default": 1} == json.loads(capsys.readouterr().out)["operators"]


SAMPLING = SamplingFlags(7, top_p=0.5)


def test_groups(capsys: Capture) -> None:
    def show(*, loading: LoadFlags, sampling: SamplingFlags = SAMPLING, limit: int = 3) -> CommandReport:
        return CommandReport({"limit": limit, "cache": loading.options().cache, **sampling.options()}, exit_code=4)

    assert 4 == run(show, "--limit", 5, "--cache", "f16", "--top-k", 2, "--json")
    record = json.loads(capsys.readouterr().out)
    assert (5, "f16", 7, 2, 0.5) == tuple(record[name] for name in ("limit", "cache", "max_tokens", "top_k", "top_p"))


def test_a_command_may_print_its_report_itself(capsys: Capture) -> None:
    def serve(*, json: AsJson = False) -> None:
        report = CommandReport({"url": "http://localhost"})
        report.line("Serving ", ("http://localhost", "bold"))
        report.print(json)

    run(serve)
    run(serve, "--json")
    assert 'Serving http://localhost\n{\n  "url": "http://localhost"\n}\n' == capsys.readouterr().out
