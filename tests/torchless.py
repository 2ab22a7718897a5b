"""A plugin of pytest for where PyTorch is not, or is not wanted: `pytest -p tests.torchless -m "not torch"`.

PyTorch, ExecuTorch and torchao cannot be imported, installed or not. Test files that import them are left out, and how
many is said at the end. Whatever else goes wrong in a file fails as ever. Tests that import them only when they run
are marked `torch`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

BLOCKED = ("torch", "executorch", "torchao")
FILES = pytest.StashKey[set[str]]()


class Blocker:
    """The first that Python asks for a module."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def is_blocked(error: BaseException) -> bool:
    """Whether it is about, or was raised from one about, a module that is blocked."""
    names = [e.name or "" for e in chain(error) if isinstance(e, ModuleNotFoundError)]
    return any(name.partition(".")[0] in BLOCKED for name in names)


class Module(pytest.Module):
    """A file of tests; without any if what it imports is blocked."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except Exception as error:
            if not is_blocked(error):
                raise
        self.config.stash[FILES].add(str(self.path))
        for name, module in list(sys.modules.items()):  # half a module, which nobody else shall import
            if getattr(module, "__file__", None) == str(self.path):
                del sys.modules[name]
        return []


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FILES] = set()
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Module:
    return Module.from_parent(parent, path=module_path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # of a process of pytest-xdist
    if output is not None:
        output["left out"] = sorted(session.config.stash[FILES])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[FILES].update(node.workeroutput["left out"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(f"{len(config.stash[FILES])} files of tests need PyTorch: `make test` runs them")
