"""Reading and writing of files: atomic writes, checks of paths, limits."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ptegpu.errors import ExportError, InvalidInput
from ptegpu.files import check_inside, check_writable, naming, read, read_object, read_text, write


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


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pte"

    def full(part: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *([str(part)] if data else []))

    monkeypatch.setattr(Path, "write_bytes", full)
    for data in (b"", b"data"):  # the system names no file, or the temporary one
        with pytest.raises(OSError) as raised:
            write(path, data)
        named = (raised.value.errno, raised.value.strerror, raised.value.filename)
        assert (errno.ENOSPC, "No space left on device", str(path)) == named
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError) as missing, naming(path):
        os.stat(tmp_path / "none")
    assert str(path) == missing.value.filename


def test_through_links_and_into_devices(tmp_path: Path) -> None:
    (tmp_path / "link.pte").symlink_to(tmp_path / "a.pte")
    for path in (tmp_path / "link.pte", Path(os.devnull)):
        check_writable(path)
        write(path, b"data")
    assert (True, b"data") == ((tmp_path / "link.pte").is_symlink(), (tmp_path / "a.pte").read_bytes())
    assert not Path(os.devnull).is_file()


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked.pte").write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "locked.pte")
    check_writable(tmp_path / "new.pte")
    for path, message in (
        (tmp_path / "none" / "m.pte", f"{tmp_path}/none/m.pte cannot be written: there is no folder {tmp_path}/none"),
        (tmp_path, f"{tmp_path} is a folder; give the name of a file in it, as {tmp_path}/model.pte"),
        (tmp_path / "locked.pte", f"{tmp_path}/locked.pte cannot be written: permission denied"),
    ):
        with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
            check_writable(path)


@pytest.mark.parametrize("reading", [read, read_text, read_object])
def test_what_may_never_end_is_not_read(reading: Callable[..., object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in (
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "a folder"),
        ("/dev/zero", "not a regular"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(f"{path} is {what}")):
            reading(path, InvalidInput)
    with pytest.raises(FileNotFoundError):
        reading(tmp_path / "missing", InvalidInput)


def test_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": 1}')
    assert (b'{"a": 1}', '{"a": 1}', {"a": 1}) == (
        read(path, InvalidInput, 8),
        read_text(path, InvalidInput),
        read_object(path, InvalidInput),
    )
    with pytest.raises(InvalidInput, match=r"a\.json has more than 7 bytes$"):
        read(path, InvalidInput, 7)
    for content, reason in (
        (b"\xff", "is not JSON: "),
        (b"[" * 100_000, "is not JSON: it is nested too deeply"),
        (b"[]", "does not hold a JSON object"),
    ):
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=re.escape(f"{path} {reason}")):
            read_object(path, InvalidInput)


def test_links_stay_in_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside").touch()
    (folder / "real").touch()
    (folder / "in").symlink_to("real")
    (folder / "out").symlink_to(tmp_path / "outside")
    for name in ("real", "in", "missing"):
        check_inside(folder / name, folder, InvalidInput)
    for name in ("out", "../outside"):
        with pytest.raises(InvalidInput, match=re.escape(f"{name} leads out of its folder")):
            check_inside(folder / name, folder, InvalidInput)
