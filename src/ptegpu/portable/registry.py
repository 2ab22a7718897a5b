"""NumPy kernels for operators that run on the host, keyed by the name of the functional overload.

    @portable("aten.topk.default")
    def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]: ...

The positional parameters are the operator's schema (`ops/schema.py`), with `Array` for `Tensor`. If the operator has a
rule for the GPU too, the rule's schema is the one, and the kernel must agree with it. Arrays of bfloat16 are float32.

A kernel returns an array or a tuple of arrays of any dtype; `call` casts them to the declared one. A keyword-only
parameter `outs` receives the declared outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError, InvalidProgram, PtegpuError, UnsupportedProgram
from ..ops import REGISTRY
from ..ops.schema import Number as Number
from ..ops.schema import Options as Options
from ..ops.schema import Parameter, Schema, accepts, describe, parameters_of

Array: TypeAlias = np.ndarray
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
    own: Schema  # of its signature
    wants_outs: bool = False
    random: bool = False  # gives other results every time

    @property
    def schema(self) -> Schema:
        """The operator's."""
        return REGISTRY.get(self.name, self.own)

    def __call__(self, *args: Any, **extras: Any) -> Any:
        """What the function returns for arguments of the program."""
        return self.function(*self.schema.bind(args), **extras)


def kernel_of(name: str, function: Callable[..., Any], random: bool = False) -> Kernel:
    """A function as a kernel; TypeError if it is not what the operator's GPU rule takes."""
    own, signature = Schema(name, parameters_of(function)), inspect.signature(function)
    rule = REGISTRY.get(name)
    if rule is not None and not _agree(own.parameters, rule.parameters):
        raise TypeError(f"the kernel of {name} takes {signature}, its GPU rule {inspect.signature(rule.rule)}")
    return Kernel(name, function, own, "outs" in signature.parameters, random)


def _agree(own: Sequence[Parameter], wanted: Sequence[Parameter]) -> bool:
    """Whether a kernel has the parameters of the schema; they may take more kinds, where overloads share a kernel."""
    same = [(p.name, p.default) for p in own] == [(p.name, p.default) for p in wanted]
    return same and all(accepts(p.kinds, w.kinds) for p, w in zip(own, wanted))


PORTABLE: dict[str, Kernel] = {}


def portable(*names: str, random: bool = False) -> Callable[[Function], Function]:
    """Register a kernel under each name; `random` if it gives other results every time."""

    def register(function: Function) -> Function:
        for name in names:
            if name in PORTABLE:
                raise ValueError(
                    f"kernel {name} is registered already: give yours another name, "
                    f"or delete ptegpu.portable.PORTABLE[{name!r}] first"
                )
            PORTABLE[name] = kernel_of(name, function, random)
        return function

    return register


def call(name: str, args: Sequence[Any], outs: Sequence[OutSpec]) -> list[Array]:
    """Run a kernel. The results are contiguous arrays of the declared dtypes that share no memory with `args`."""
    kernel = PORTABLE.get(name)
    if kernel is None:
        raise UnsupportedProgram(f"{name} has no kernel on the host")
    values = kernel.schema.bind(args)
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
        given = ", ".join(map(describe, values))
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
