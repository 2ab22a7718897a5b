"""`ptegpu export`: what it prints, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Invoke, invoke  # noqa: F401 (a fixture)
from tests.test_layers import run_blocked
from tests.zoo.checkpoints import write

SOURCE = """
import torch
class Cumulative(torch.nn.Module):
    def forward(self, x): return torch.cumsum(x + 1, 1)
def cumulative(): return Cumulative(), (torch.ones(2, 3),)
"""

FAILING = """
import torch
class Failing(torch.nn.Module):
    def forward(self, x): return x / self.missing
def failing(): return Failing(), (torch.ones(2, 3),)
"""


def test_a_language_model(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    write(tmp_path / "source", "qwen3", {"num_hidden_layers": 1})
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    command = ("export", "llm", tmp_path / "source", "-o", tmp_path / "m.pte")
    ended = invoke(*command, "--quantize", "4bit", "--group", 64, "--max-seq", 4)
    assert (0, "") == (ended.code, ended.err)
    name, model, matrices, tokens, delegated, check, times, files = ended.out.splitlines()
    assert re.fullmatch(r"m\.pte · [\d.]+ kB", name)
    shape = "1 layer of 64, 4 heads of 32, 2 for keys, vocabulary 96"
    assert f"  model       qwen3, 61,696 parameters: {shape}" == model
    assert "  matrices    9 in 4 bits in groups of 64" == matrices
    assert "  tokens      4 in one call, 64 remembered" == tokens
    assert re.fullmatch(r"  delegated   \d+ operators in 1 partition, nothing outside", delegated)
    far = r"logits at most [\d.e-]+ from eager PyTorch's, of which the largest is [\d.]+"
    assert re.fullmatch(f"  check       {far}; the same choice after 5 tokens", check)
    phases = ("reading weights", "tracing", "lowering", "checking", "writing")
    assert re.fullmatch("  time        " + " · ".join(f"{phase} [\\d.]+ (s|ms|µs)" for phase in phases), times)
    assert "  files       m.pte, m.tokenizer.json, m.tokenizer_config.json" == files


def test_a_module(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (tmp_path / "cumulative_model.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    command = ("export", "torch", "cumulative_model:cumulative", "-o", tmp_path / "c.pte", "--dynamic", "0:0=1..9")
    ended = invoke(*command)
    assert (0, "") == (ended.code, ended.err)
    lines = [line.split() for line in ended.out.splitlines() if line.strip()]
    assert ["delegated", "2", "operators", "in", "1", "partition"] in lines
    assert ["aten.cumsum.default", "1", "the", "partitioner", "has", "no", "such", "operator"] in lines
    assert ["check", "at", "most", "0", "from", "eager", "PyTorch"] in lines
    actual = json.loads(invoke(*command, "--no-delegate", "--no-check", "--json").out)
    assert (0, None, []) == (actual["partitions"], actual["difference"], actual["notes"])
    assert {"aten.add.Tensor", "aten.cumsum.default"} <= {row["operator"] for row in actual["outside"]}


def test_errors_are_one_line(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    ended = invoke("export", "llm", tmp_path, "-o", tmp_path / "m.pte")
    expected = f"error: {tmp_path} has no config.json: give the folder of a Hugging Face checkpoint\n"
    assert (1, "", expected) == (ended.code, ended.out, ended.err)
    assert 2 == invoke("export", "llm", tmp_path).code
    assert 2 == invoke("export", "llm", tmp_path, "-o", "m.pte", "--quantize", "3bit").code


def test_a_model_of_the_hub(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    ended = invoke("export", "llm", "some-lab/Some-Model.v1", "-o", tmp_path / "m.pte")
    message = (
        "error: there is no folder some-lab/Some-Model.v1. If this is a model of the Hugging Face Hub, download it and "
        "give the folder Some-Model.v1 instead:\n  hf download some-lab/Some-Model.v1 --local-dir Some-Model.v1\n"
    )
    assert (1, "", message) == (ended.code, ended.out, ended.err)
    ended = invoke("export", "llm", tmp_path / "none", "-o", tmp_path / "m.pte")
    assert (1, f"error: there is no folder {tmp_path}/none\n") == (ended.code, ended.err)


@pytest.mark.parametrize("what", [("llm", "x"), ("torch", "x:y")])
def test_where_nothing_can_be_written(what: tuple[str, str], tmp_path: Path) -> None:
    """The message appears before PyTorch, which is blocked here, is imported."""
    output = tmp_path / "none" / "m.pte"
    done = run_blocked(f"from ptegpu.cli import main; main(['export', *{what}, '-o', {str(output)!r}])")
    message = f"error: {output} cannot be written: there is no folder {tmp_path}/none\n"
    assert (1, "", message) == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("kind", ["llm", "hf", "speech"])
def test_folders_that_are_none(kind: str, tmp_path: Path) -> None:
    """They are refused with one message, before PyTorch, which is blocked here, is imported."""
    empty, file = tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    for folder, message in (
        (empty, f"{empty} has no config.json: give the folder of a Hugging Face checkpoint"),
        (file, f"{file} is a file: give the folder of a Hugging Face checkpoint"),
        (tmp_path / "none", f"there is no folder {tmp_path}/none"),
    ):
        command = ["export", kind, str(folder), "-o", str(tmp_path / "m.pte")]
        done = run_blocked(f"from ptegpu.cli import main; main({command!r})")
        assert (1, "", f"error: {message}\n") == (done.returncode, done.stdout, done.stderr)


def test_failures_in_the_users_code(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    path = tmp_path / "failing_model.py"
    path.write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    ended = invoke("export", "torch", "failing_model:failing", "-o", tmp_path / "f.pte")
    assert (1, "") == (ended.code, ended.out)
    frame = f'  File "{path}", line 4, in forward\n    def forward(self, x): return x / self.missing\n'
    message = "error: PyTorch cannot trace this module: AttributeError: 'Failing' object has no attribute 'missing'\n"
    assert message + frame == re.sub(r" +[~^]+\n", "", ended.err)
    assert not (tmp_path / "f.pte").exists()


def test_the_same_as_json(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    from ptegpu.export import Lowered

    monkeypatch.setattr("ptegpu.export.pipeline.lower", lambda *_, **__: Lowered(b"123", 1))
    folder = write(tmp_path / "source", "llama")
    command = ("export", "llm", folder, "-o", tmp_path / "m.pte", "--no-check", "--json", "--dtype", "float16")
    actual = invoke(*command).json()
    assert {"Reading weights", "Tracing", "Lowering", "Writing"} == set(actual.pop("seconds"))
    assert {
        "files": [str(tmp_path / "m.pte")],
        "nbytes": 3,
        "family": "llama",
        "parameters": 80192,
        "layers": 2,
        "vocab_size": 96,
        "dtype": "float16",
        "quantize": "none",
        "group": 32,
        "embedding": "float",
        "max_seq": 64,
        "max_context": 64,
        "matrices": {"float16": 15},
        "partitions": 1,
        "delegated": {},
        "outside": [],
        "check": None,
        "notes": [f"{folder} has no tokenizer.json: the model takes and returns tokens, not text"],
    } == actual


def test_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = ["export", "llm", str(tmp_path), "-o", str(tmp_path / "y.pte")]
    done = run_blocked(f"from ptegpu.cli import main; main({command!r})")
    message = (
        "error: torch is blocked: this layer must import without it. To export, run: pip install 'ptegpu[export]'\n"
    )
    assert (1, "", message) == (done.returncode, done.stdout, done.stderr)
