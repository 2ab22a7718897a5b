"""A pytest plugin for runs without PyTorch: `pytest -p tests.torchless -m "not torch"`.

It blocks imports of PyTorch, ExecuTorch and torchao, installed or not. Test files that import them are skipped, and the
summary counts them. Any other error in a file still fails. Tests that import them only when they run are marked
`torch`.
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
    """An import finder that refuses blocked modules."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def is_blocked(error: BaseException) -> bool:
    """Return True if an error, or one that caused it, is the failed import of a blocked module."""
    names = [e.name or "" for e in chain(error) if isinstance(e, ModuleNotFoundError)]
    return any(name.partition(".")[0] in BLOCKED for name in names)


class Module(pytest.Module):
    """A test file; it has no tests if it imports a blocked module."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except Exception as error:
            if not is_blocked(error):
                raise
        self.config.stash[FILES].add(str(self.path))
        for name, module in list(sys.modules.items()):  # partly loaded: nothing else may import it
            if getattr(module, "__file__", None) == str(self.path):
                del sys.modules[name]
        return []


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FILES] = set()
    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Module:
    return Module.from_parent(parent, path=module_path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)  # only in a worker of pytest-xdist
    if output is not None:
        output["left out"] = sorted(session.config.stash[FILES])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[FILES].update(node.workeroutput["left out"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(f"{len(config.stash[FILES])} test files need PyTorch: `make test` runs them")
