"""Files are written whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ptegpu.errors import ExportError
from ptegpu.files import check_writable, write


def test_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.pte"
    for data in (b"first", b"second"):
        check_writable(path)
        write(path, data)
        assert data == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pte"
    path.write_bytes(b"first")

    def full(part: Path, data: bytes) -> None:
        part.touch()
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        write(path, b"second")
    assert (b"first", [path]) == (path.read_bytes(), list(tmp_path.iterdir()))


def test_through_links_and_into_devices(tmp_path: Path) -> None:
    (tmp_path / "link.pte").symlink_to(tmp_path / "a.pte")
    for path in (tmp_path / "link.pte", Path(os.devnull)):
        check_writable(path)
        write(path, b"data")
    assert (True, b"data") == ((tmp_path / "link.pte").is_symlink(), (tmp_path / "a.pte").read_bytes())
    assert not Path(os.devnull).is_file()


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept.pte").write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "kept.pte")
    check_writable(tmp_path / "new.pte")
    for path, message in (
        (tmp_path / "none" / "m.pte", f"{tmp_path}/none/m.pte cannot be written: there is no folder {tmp_path}/none"),
        (tmp_path, f"{tmp_path} is a folder; give the name of a file in it, as {tmp_path}/model.pte"),
        (tmp_path / "kept.pte", f"{tmp_path}/kept.pte cannot be written: permission denied"),
    ):
        with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
            check_writable(path)
