"""NumPy kernels for operators that run on the host, keyed by the name of the functional overload.

    @portable("aten.topk.default")
    def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]: ...

A kernel takes the arguments of the out variant's schema in order, without the outputs: arrays (bfloat16 as float32),
Python scalars, lists, None. It returns an array or a tuple of arrays of any dtype; `call` casts them to the declared
one. A keyword-only parameter `outs` receives the declared outputs: that is where operators find a dtype that their
out variant drops (`full`, `arange`, `_to_copy`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError, InvalidProgram, PtegpuError, UnsupportedProgram

Array: TypeAlias = np.ndarray
Number: TypeAlias = int | float | bool
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class OutSpec:
    """An output as the program declares it: `sizes` are upper bounds where shapes are dynamic."""

    dtype: DType
    sizes: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()

    @property
    def numpy(self) -> np.dtype:
        """What kernels compute it in: bfloat16 is float32 here."""
        return np.dtype(np.float32) if self.dtype is DType.BF16 else self.dtype.numpy


@dataclass(frozen=True, eq=False, slots=True)
class Kernel:
    """A registered kernel and how to call it."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]  # (name, default or inspect.Parameter.empty)
    wants_outs: bool
    random: bool = False  # gives other results every time

    def bind(self, args: Sequence[Any]) -> list[Any]:
        """All positional arguments: trailing ones may be left to their defaults, NumPy scalars become 0-d arrays."""
        if len(args) > len(self.parameters):
            raise InvalidProgram(f"{self.name} takes {len(self.parameters)} arguments, the program gives {len(args)}")
        for name, default in self.parameters[len(args) :]:
            if default is inspect.Parameter.empty:
                raise InvalidProgram(f"{self.name}: argument '{name}' is missing")
        given = [np.asarray(a) if isinstance(a, np.generic) else a for a in args]
        return given + [default for _, default in self.parameters[len(args) :]]


PORTABLE: dict[str, Kernel] = {}


def portable(*names: str, random: bool = False) -> Callable[[Function], Function]:
    """Register a kernel under each name; `random` if it gives other results every time."""

    def register(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        positional = tuple((p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        wants_outs = any(p.name == "outs" and p.kind is p.KEYWORD_ONLY for p in parameters)
        for name in names:
            if name in PORTABLE:
                raise ValueError(
                    f"kernel {name} is registered already: give yours another name, "
                    f"or delete ptegpu.portable.PORTABLE[{name!r}] first"
                )
            PORTABLE[name] = Kernel(name, function, positional, wants_outs, random)
        return function

    return register


def call(name: str, args: Sequence[Any], outs: Sequence[OutSpec]) -> list[Array]:
    """Run a kernel. The results are contiguous arrays of the declared dtypes that share no memory with `args`."""
    kernel = PORTABLE.get(name)
    if kernel is None:
        raise UnsupportedProgram(f"{name} has no kernel on the host")
    values = kernel.bind(args)
    extras = {"outs": tuple(outs)} if kernel.wants_outs else {}
    try:
        with np.errstate(all="ignore"):
            found = kernel.function(*values, **extras)
            results = found if isinstance(found, tuple | list) else (found,)
            if len(results) != len(outs):
                raise InvalidProgram(f"{len(results)} results, but the program declares {len(outs)}")
            return [_own(cast(r, o.numpy), values) for r, o in zip(results, outs)]
    except PtegpuError as e:
        raise type(e)(f"{name}: {e}") from e
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
        given = ", ".join(map(_describe, values))
        raise ExecutionError(f"{name}({given}) failed: {e}") from e


def cast(x: Any, dtype: np.dtype) -> Array:
    """`x` as `dtype`: floats truncate towards zero, and wrap around where the target is unsigned."""
    x = np.asarray(x)
    if x.dtype.kind == "f" and dtype.kind == "u":
        x = x.astype(np.int64)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    return np.asarray(x, dtype, order="C")


def _own(x: Array, args: Sequence[Any]) -> Array:
    """`x`, copied if it could share memory with an argument."""
    arrays = [a for arg in args for a in (arg if isinstance(arg, tuple | list) else (arg,)) if isinstance(a, Array)]
    return x.copy() if any(np.may_share_memory(x, a) for a in arrays) else x


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value)
