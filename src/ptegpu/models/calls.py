"""Calls of a program's methods that run on the GPU while the host goes on, where a method is one plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ExecutionError

if TYPE_CHECKING:
    from ..runtime.method import Running


class Completed:
    """A call that has ended, in place of one that is running."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def result(self) -> list[Any]:
        return self._results

    resident = result


def start(method: Any, arguments: Sequence[Any], hold: bool = False, read: bool = True) -> Running | Completed:
    """Start a method if it is one plan; else run it to its end. The next start also submits what is on `hold`."""
    return method.start(arguments, hold, read) if method.in_one_plan else Completed(method.execute(arguments))


def not_finite(position: int) -> ExecutionError:
    return ExecutionError(f"the model's logits at position {position} are not finite numbers")
