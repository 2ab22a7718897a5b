"""Checkpoint folders in place of programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ptegpu.export
from ptegpu.errors import ExportError, InvalidInput
from ptegpu.models.checkpoints import exported_once

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
SMOLVLM = {"model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"]}
BERT = {"model_type": "bert", "architectures": ["BertModel"]}


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Return the list of exports: the exporter and the target of each."""
    calls: list[tuple[str, Path]] = []
    for name in ("export_speech", "export_llm", "export_hf"):

        def export(folder: Path, target: Path, name: str = name, **_: Any) -> None:
            calls.append((name, target))
            target.write_bytes(b"program")
            target.with_suffix(".tokenizer.json").write_bytes(b"tokenizer")

        monkeypatch.setattr(ptegpu.export, name, export)
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "a" / "cache"))
    return calls


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_by_what_it_holds(exports: list[tuple[str, Path]], tmp_path: Path) -> None:
    for config in ({"model_type": "whisper"}, LLAMA, SMOLVLM, BERT):
        folder = write(tmp_path / str(config["model_type"]), config)
        assert exported_once(folder) == exports[-1][1]
    assert ["export_speech", "export_llm", "export_llm", "export_hf"] == [name for name, _ in exports]


def test_it_is_exported_once_until_it_changes(exports: list[tuple[str, Path]], tmp_path: Path) -> None:
    folder, other = write(tmp_path / "one", LLAMA), write(tmp_path / "other", LLAMA)
    first, other_first = exported_once(folder), exported_once(other)
    assert first == exported_once(str(folder)) != other_first
    write(folder, LLAMA | {"vocab_size": 7})
    second = exported_once(folder)
    assert [first, other_first, second] == [target for _, target in exports] and 3 == len({first, other_first, second})
    left = sorted(p.name for p in second.parent.iterdir())
    ends = (".pte", ".sums.json", ".tokenizer.json")
    assert sorted(f"{p.stem}{end}" for p in (other_first, second) for end in ends) == left


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    for source in (b"bytes", tmp_path, "model.pte", None):
        assert source == exported_once(source)


def test_where_nothing_can_be_kept(exports: list[tuple[str, Path]], tmp_path: Path, monkeypatch: Any) -> None:
    folder = write(tmp_path / "one", LLAMA)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ExportError, match=r"file cannot be written \(File exists\): set PTEGPU_CACHE to another folder"
    ):
        exported_once(folder)
    monkeypatch.setenv("PTEGPU_CACHE", "off")
    with pytest.raises(InvalidInput, match="one is a folder, and PTEGPU_CACHE=off: export it to a file first"):
        exported_once(folder)


def swap(path: Path) -> None:
    path.write_bytes(b"another")


def link_away(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "elsewhere")


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("end", [".pte", ".tokenizer.json", ".sums.json"])
@pytest.mark.parametrize("harm", [swap, Path.unlink, link_away, make_pipe])
def test_an_entry_that_is_not_as_it_was_written_is_made_again(
    exports: list[tuple[str, Path]], tmp_path: Path, harm: Callable[[Path], object], end: str
) -> None:
    folder = write(tmp_path / "one", LLAMA)
    target = exported_once(folder)
    harm(target.with_suffix(end))
    assert target == exported_once(folder) == exported_once(folder)
    assert 2 == len(exports)
    assert (b"program", b"tokenizer") == (target.read_bytes(), target.with_suffix(".tokenizer.json").read_bytes())
    assert not any(p.is_symlink() for p in target.parent.iterdir())
    assert not (tmp_path / "a" / "elsewhere").exists()


def test_an_entry_that_was_copied_is_kept(exports: list[tuple[str, Path]], tmp_path: Path) -> None:
    target = exported_once(write(tmp_path / "one", LLAMA))
    os.utime(target, ns=(1, 1))
    assert target == exported_once(tmp_path / "one")
    assert 1 == len(exports)


def test_a_link_to_an_equal_program_is_not_an_entry(exports: list[tuple[str, Path]], tmp_path: Path) -> None:
    target = exported_once(write(tmp_path / "one", LLAMA))
    target.rename(tmp_path / "moved")
    target.symlink_to(tmp_path / "moved")
    exported_once(tmp_path / "one")
    assert 2 == len(exports) and not target.is_symlink()
