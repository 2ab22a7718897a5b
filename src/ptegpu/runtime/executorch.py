"""The names of `executorch.runtime`, for code written against it.

    from ptegpu import Method, Program, Runtime, Verification  # instead of: from executorch.runtime import …

    outputs = Runtime.get().load_program("model.pte").load_method("forward").execute([x])

Where it differs from ExecuTorch 1.5:

- `load_program` makes every method ready, so it raises errors that `load_method` raises in ExecuTorch.
- Errors are `RuntimeError`, `IndexError`, `KeyError` and `TypeError` in the same places, with other messages.
- Inputs may be NumPy arrays, lists and numbers, and torch tensors of any strides; NumPy in, NumPy out.
- A dynamic input must not exceed the bound of each dimension; ExecuTorch bounds their product.
- `repr` of a method's metadata also works if an input is not a tensor. A negative index is an `IndexError`.
- Operators have the names of their functional variants: `aten.add.Tensor`, not `aten::add.out`.
- There is no ETDump; `Method.profile` and `ptegpu profile` measure the time of every kernel.
- There is no `get_attribute`: only the outputs of a program can be read.
"""

from __future__ import annotations

import functools
import os
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from ..errors import InvalidInput, InvalidProgram
from ..gpu import Engine
from ..graph.importer import BACKENDS
from ..ops import REGISTRY
from ..plan.target import Precision
from ..portable import PORTABLE
from .program import Program, load


class Verification(Enum):
    """The level of checks requested for a program. ptegpu always checks everything."""

    Minimal = 0
    InternalConsistency = 1


class BackendRegistry:
    """The delegates that ptegpu can run."""

    @property
    def registered_backend_names(self) -> list[str]:
        return list(BACKENDS)

    def is_available(self, backend_name: str) -> bool:
        return backend_name in BACKENDS


class OperatorRegistry:
    """The operators that ptegpu can run, on the GPU or on the host."""

    @property
    def operator_names(self) -> set[str]:
        return {*REGISTRY, *PORTABLE}


class Runtime:
    """The entry point, a singleton."""

    backend_registry = BackendRegistry()
    operator_registry = OperatorRegistry()

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> Runtime:
        return Runtime()

    def load_program(
        self,
        data: bytes | bytearray | memoryview | BinaryIO | Path | str,
        *,
        verification: Verification = Verification.InternalConsistency,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
        data_path: Path | str | None = None,
        device: str | int = "auto",
        engine: Engine = "auto",
        precision: Precision = "auto",
    ) -> Program:
        """Load from a path, bytes or an open file; `data_path` is a `.ptd` file with constants that live outside."""
        if not isinstance(data, str | os.PathLike | bytes | bytearray | memoryview) and not hasattr(data, "read"):
            raise TypeError(f"a program is bytes, a path or an open file, not {type(data).__name__}")
        if enable_etdump:
            raise InvalidInput("ptegpu makes no ETDump: leave enable_etdump out, and use Method.profile")
        try:
            return load(data, data_path, device, engine=engine, precision=precision)
        except OSError as e:
            raise InvalidProgram(f"cannot be read: {e.strerror}", path=str(e.filename or data)) from e
