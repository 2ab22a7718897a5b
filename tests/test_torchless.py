"""The plugin of `make test-quick`: what needs PyTorch is left out and counted, everything else counts as ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "test_plain.py": "def test_it(): pass",
    "test_needs.py": "import torch.nn\ndef test_it(): assert False",
    "test_asks.py": "from test_needs import test_it as other\ndef test_it(): pass",
    "test_exports.py": "import ptegpu.export\ndef test_it(): assert False",
    "test_late.py": "import pytest\n@pytest.mark.torch\ndef test_it():\n    import executorch",
}


def run(folder: Path, files: dict[str, str], *more: str) -> tuple[int, list[str]]:
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'src'} .\nmarkers = torch\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.torchless", "--rootdir", str(folder)]
    command += ["-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider", str(folder), *more]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stdout.splitlines()


def test_what_needs_pytorch_is_left_out_and_counted(tmp_path: Path) -> None:
    for processes in ("0", "2"):
        code, lines = run(tmp_path, FILES, "-m", "not torch", "-n", processes)
        assert 0 == code, "\n".join(lines)
        assert "3 test files need PyTorch: `make test` runs them" in lines
        assert lines[-1].startswith("1 passed")


def test_a_test_that_imports_it_when_it_runs_fails_unless_it_is_marked(tmp_path: Path) -> None:
    code, lines = run(tmp_path, FILES)
    assert 1 == code
    assert any(line.endswith("ModuleNotFoundError: No module named 'executorch'") for line in lines)
    assert lines[-1].startswith("1 failed, 1 passed")


def test_any_other_failure_to_import_is_one(tmp_path: Path) -> None:
    wrong = ("import no_such_module", "from ptegpu import no_such_name", "raise ValueError('torch')")
    files = {f"test_{k}.py": f"{text}\ndef test_it(): pass" for k, text in enumerate(wrong)}
    code, lines = run(tmp_path, files)
    assert 2 == code
    assert "0 test files need PyTorch: `make test` runs them" in lines
    assert "3 errors" in lines[-1]
