"""The locked requirements: they match pyproject.toml and have hashes; and their audit."""

from __future__ import annotations

import io
import json
import re
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pip")  # its vendored packaging reads requirements
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
from tools import audit, lock

FOLDER = lock.ROOT / "requirements"


def read(file: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return requirements and hashes by name."""
    text = (FOLDER / f"{file}.txt").read_text("utf-8").replace("\\\n", "")
    locked = {}
    for line in filter(None, text.splitlines()[1:]):
        pin, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
        requirement = Requirement(pin)
        locked[canonicalize_name(requirement.name)] = (requirement, hashes)
    return locked


@pytest.mark.parametrize("file", lock.EXTRAS)
def test_the_lock_is_of_this_pyproject(file: str) -> None:
    first = (FOLDER / f"{file}.txt").read_text("utf-8").splitlines()[0]
    assert f"# Written by `make lock`, of {lock.digest()}" == first, "run: make lock"


@pytest.mark.parametrize("file", lock.EXTRAS)
def test_every_requirement_is_locked_with_hashes(file: str) -> None:
    locked = read(file)
    for requirement in [*lock.requirements(lock.EXTRAS[file]), *map(Requirement, lock.BUILD)]:
        (pin,) = locked[canonicalize_name(requirement.name)][0].specifier
        assert "==" == pin.operator and requirement.specifier.contains(pin.version), requirement
    for requirement, hashes in locked.values():
        assert hashes and all(re.fullmatch("[0-9a-f]{64}", h) for h in hashes), requirement


def test_all_files_agree_with_each_other_and_with_the_constraints() -> None:
    pins: dict[str, set[str]] = {}
    texts = [(lock.ROOT / "constraints.txt").read_text("utf-8").split()]
    for requirement in [*map(Requirement, *texts), *(r for file in lock.EXTRAS for r, _ in read(file).values())]:
        pins.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    assert [] == [name for name, versions in pins.items() if len(versions) > 1]


def test_wheels_of_our_pythons_and_machines_fit() -> None:
    wheels = {
        "a-1-py3-none-any.whl": True,
        "a-1-py2.py3-none-any.whl": True,
        "a-1-cp312-cp312-manylinux_2_28_aarch64.whl": True,
        "a-1-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": True,
        "a-1-cp310-cp310-manylinux_2_28_x86_64.whl": False,
        "a-1-cp311-cp311-musllinux_1_2_x86_64.whl": False,
        "a-1-cp311-cp311-win_amd64.whl": False,
    }
    assert wheels == {name: lock.fits(name) for name in wheels}


def answer(monkeypatch: pytest.MonkeyPatch, result_of: Any) -> None:
    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        queries = json.loads(request.data)["queries"]  # type: ignore[arg-type]
        return io.BytesIO(json.dumps({"results": [result_of(query) for query in queries]}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


def test_an_audit_names_what_is_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    count = len(audit.pins())
    answer(monkeypatch, lambda query: {})
    assert 0 == audit.main()
    assert f"{count} packages, 0 with known vulnerabilities\n" == capsys.readouterr().out
    answer(monkeypatch, lambda q: {"vulns": [{"id": "X-1"}, {"id": "X-2"}]} if q["package"]["name"] == "numpy" else {})
    assert 1 == audit.main()
    version = next(version for name, version in audit.pins() if name == "numpy")
    expected = f"numpy {version}: X-1, X-2\n{count} packages, 1 with known vulnerabilities\n"
    assert expected == capsys.readouterr().out


@pytest.mark.parametrize(
    "error",
    [urllib.error.URLError("no route"), urllib.error.HTTPError("u", 403, "Forbidden", Message(), None)],
    ids=str,
)
def test_an_audit_without_its_database_says_so(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def urlopen(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert 2 == audit.main()
    errors = f"error: nothing was audited: {audit.DATABASE} does not answer ({error})\n"
    assert ("", errors) == tuple(capsys.readouterr())


def test_every_pin_is_audited(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        '# made\none==1.0 ; python_version == "3.11" \\\n    --hash=sha256:00\ntwo-b==2rc1\n'
    )
    assert [("one", "1.0"), ("two-b", "2rc1")] == audit.pins(tmp_path)
