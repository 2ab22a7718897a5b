"""Fast and quiet exports of PyTorch modules, for tests and tools that check the results themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from torch._C import DispatchKey, _dispatch_get_registrations_for_dispatch_key
from torch._export import utils
from torch._ops import OperatorBase

import ptegpu.export
from ptegpu.export import cache_patterns, quiet

__all__ = ["cache_patterns", "export", "hasten", "quiet"]

export = partial(ptegpu.export.export, check=False)


@cache
def hasten() -> None:
    """Make every export in this process an eighth faster, with the same bytes.

    An export looks up every operator that PyTorch can decompose three times and registers kernels for 21 keys, each
    time evaluating the generic types of the same annotations.
    """
    OperatorBase.py_impl = _py_impl(OperatorBase.py_impl)  # type: ignore[method-assign]
    utils._materialize_cpp_cia_ops = _when_there_are_more(utils._materialize_cpp_cia_ops)


def _py_impl(original: Callable[..., Any]) -> Callable[..., Any]:
    def py_impl(self: OperatorBase, key: Any) -> Callable[[Any], Any]:
        if not isinstance(key, DispatchKey) or key == DispatchKey.Python or key in self.py_kernels:
            return original(self, key)

        def register(function):  # without annotations: each call would evaluate them
            self.py_kernels[key] = function
            self._dispatch_cache.clear()
            return function

        return register

    return py_impl


def _when_there_are_more(materialize: Callable[[], None]) -> Callable[[], None]:
    registered: list[str] = []

    def call() -> None:
        operators = _dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if operators != registered:
            materialize()
            registered[:] = operators

    return call
