"""The names of `executorch.runtime`, for code written against it.

from ptegpu import Runtime
outputs = Runtime.get().load_program("model.pte").load_method("forward").execute([x])
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InvalidInput
from ..format import Method as FileMethod
from ..format import Tensor
from ..graph.importer import BACKENDS
from ..ops import REGISTRY
from ..portable import PORTABLE
from . import program
from .program import BoundMethod, Source


class Verification(Enum):
    """How thoroughly a program is checked. ptegpu always proves everything, whichever is asked for."""

    Minimal = 0
    InternalConsistency = 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What an input or output tensor looks like; `sizes` are upper bounds where shapes are dynamic."""

    _tensor: Tensor

    def sizes(self) -> tuple[int, ...]:
        return self._tensor.sizes

    def dtype(self) -> str:
        return self._tensor.dtype.value

    def is_memory_planned(self) -> bool:
        return self._tensor.planned

    def nbytes(self) -> int:
        return self._tensor.nbytes


@dataclass(frozen=True, slots=True)
class MethodMeta:
    """The signature of a method."""

    _method: FileMethod

    def name(self) -> str:
        return self._method.name

    def num_inputs(self) -> int:
        return len(self._method.inputs)

    def num_outputs(self) -> int:
        return len(self._method.outputs)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        return self._tensor(self._method.inputs, index, "input")

    def output_tensor_meta(self, index: int) -> TensorInfo:
        return self._tensor(self._method.outputs, index, "output")

    def _tensor(self, ids: tuple[int, ...], index: int, what: str) -> TensorInfo:
        value = self._method.values[ids[index]]
        if not isinstance(value, Tensor):
            raise InvalidInput(f"{what} {index} of {self._method.name} is no tensor")
        return TensorInfo(value)


class Method:
    """A loaded method."""

    def __init__(self, method: BoundMethod, metadata: MethodMeta) -> None:
        self._method = method
        self.metadata = metadata

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run with a sequence of inputs; a list of outputs."""
        return self._method.execute(inputs)


class Program:
    """A program whose methods are loaded one by one."""

    def __init__(self, loaded: program.Program) -> None:
        self._program = loaded
        self._files = {m.name: m for m in loaded.file.methods}

    @property
    def method_names(self) -> set[str]:
        return set(self._files)

    def load_method(self, name: str) -> Method:
        return Method(self._program.method(name), self.metadata(name))

    def metadata(self, method_name: str) -> MethodMeta:
        return MethodMeta(self._files[method_name])


class BackendRegistry:
    """The delegates that can run."""

    @property
    def registered_backend_names(self) -> list[str]:
        return list(BACKENDS)

    def is_available(self, backend_name: str) -> bool:
        return backend_name in BACKENDS


class OperatorRegistry:
    """The operators that can run, on the GPU or on the host."""

    @property
    def operator_names(self) -> set[str]:
        return {*REGISTRY, *PORTABLE}


class Runtime:
    """The way in; there is one."""

    backend_registry = BackendRegistry()
    operator_registry = OperatorRegistry()

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def get() -> Runtime:
        return Runtime()

    def load_program(
        self,
        data: Source | Path | BinaryIO,
        *,
        verification: Verification = Verification.InternalConsistency,
        device: str | int = "auto",
    ) -> Program:
        """Load from a path, bytes or an open file."""
        source = data if isinstance(data, str | os.PathLike | bytes | bytearray | memoryview) else data.read()
        return Program(program.load(source, device=device))
