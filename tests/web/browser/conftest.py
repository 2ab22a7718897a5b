"""One Chromium job for all tests here. Only `make test-web` collects them: PTEGPU_CHROMIUM is the browser, or ""."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.web.browser import sites

ROOT = Path(__file__).resolve().parents[3]
CHROMIUM = os.environ.get("PTEGPU_CHROMIUM")
collect_ignore_glob = [] if CHROMIUM else ["test_*.py"] if CHROMIUM is None else ["test_browser.py"]


LOG: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LOG:
        terminalreporter.section("in Chromium")
        terminalreporter.write_line("\n".join(LOG))


@dataclass
class Job:
    folder: Path
    programs: dict[str, sites.Program]
    generations: list[Any]
    results: dict[str, Any]
    log: str

    def __getitem__(self, step: str) -> Any:
        result = self.results.get(step, {"error": f"did not run:\n{self.log}"})
        assert "error" not in result, f"{step}: {result['error']}"
        return result["value"]


@contextmanager
def served() -> Iterator[str]:
    """Yield the address of a server with a fake engine."""
    command = [sys.executable, "-m", "tests.serve.serving", "0.1", "1", sites.SERVED["key"]]
    paths = {"PYTHONPATH": ":".join([str(ROOT / "src"), str(ROOT), *sys.path])}
    with subprocess.Popen(command, env=paths, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("web")
    programs, generations = sites.make(folder)
    command = ["node", ROOT / "web" / "test" / "browser" / "job.mjs", folder, ROOT / "build" / "web-screens"]
    with served() as url:
        done = subprocess.run([*command, url], text=True, timeout=960, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    LOG[:] = done.stdout.splitlines()
    path = folder / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    return Job(folder, {p.name: p for p in programs}, generations, results, done.stdout)
