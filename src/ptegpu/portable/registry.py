"""NumPy kernels for operators that run on the host, keyed by the name of the functional overload.

    @portable("aten.topk.default")
    def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]: ...

The positional parameters are the operator's schema (`graph/schema.py`), with `Array` for `Tensor`. If the operator also
has a rule for the GPU, the kernel accepts whatever the rule accepts (a test compares them). Arrays of bfloat16 are
float32.

A kernel returns an array or a tuple of arrays of any dtype; `call` casts them to the declared one. A keyword-only
parameter `outs` receives the declared outputs.

`call` checks the sizes of results before a kernel computes. If a result can be larger than the arguments broadcast
together, the kernel must declare `sizes` or call `afford`. `PORTABLE` imports a family of kernels (`families.py`) when
one of its operators is looked up.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError, InvalidProgram, PtegpuError, UnsupportedProgram
from ..graph.schema import Number as Number
from ..graph.schema import Options as Options
from ..graph.schema import Schema, Traits, describe, parameters_of
from ..limits import exceeded, left
from .families import FAMILIES

Array: TypeAlias = np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])
_NONSENSE = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
_NONE = Traits()
Sizes: TypeAlias = Callable[..., Sequence[int]]  # of bound arguments


@dataclass(frozen=True, slots=True)
class OutSpec:
    """An output as the program declares it: `sizes` are upper bounds where shapes are dynamic, None if unknown."""

    dtype: DType
    sizes: tuple[int, ...] | None = None

    @property
    def numpy(self) -> np.dtype:
        """Return the dtype of its array: bfloat16 is float32 here."""
        return np.dtype(np.float32) if self.dtype is DType.BF16 else self.dtype.numpy


@dataclass(frozen=True, eq=False, slots=True)
class HostKernel(Schema):
    """A registered kernel and how to call it."""

    function: Callable[..., Any]
    wants_outs: bool = False
    random: bool = False  # results differ from call to call
    sizes: Sizes | None = None  # the shape of its result
    facts: Traits = _NONE  # its traits, unless a rule for the GPU declares them

    def __call__(self, *args: Any, **extras: Any) -> Any:
        """Return the function's result for arguments of the program."""
        return self.function(*self.bind(args), **extras)


def kernel_of(
    name: str, function: Callable[..., Any], random: bool = False, sizes: Sizes | None = None, **traits: Any
) -> HostKernel:
    """Return a function as a kernel; `traits` are those of `Traits`."""
    wants_outs = "outs" in inspect.signature(function).parameters
    return HostKernel(name, parameters_of(function), function, wants_outs, random, sizes, Traits(**traits))


class HostKernels(MutableMapping[str, HostKernel]):
    """The kernels by name; a family is imported when one of its operators is looked up."""

    def __init__(self) -> None:
        self._kernels: dict[str, HostKernel] = {}
        self._families: dict[str, list[str]] = {}
        for family, names in FAMILIES.items():
            for name in names.split():
                self._families.setdefault(name, []).append(family)

    def __getitem__(self, name: str) -> HostKernel:
        if name not in self._kernels:
            for family in self._families.get("".join(name.split(".")[1:2]), ()):
                import_module(f".{family}", __package__)
        return self._kernels[name]

    def __setitem__(self, name: str, kernel: HostKernel) -> None:
        self._kernels[name] = kernel

    def __delitem__(self, name: str) -> None:
        del self._kernels[self[name].name]

    def __iter__(self) -> Iterator[str]:
        for family in FAMILIES:
            import_module(f".{family}", __package__)
        return iter(self._kernels)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_taken(self, name: str, module: str) -> bool:
        """Return True if `module` cannot register this name. A family being imported must not import others here."""
        return name in (self._kernels if module.startswith(f"{__package__}.") else self)


PORTABLE = HostKernels()


def portable(
    *names: str, random: bool = False, sizes: Sizes | None = None, **traits: Any
) -> Callable[[Function], Function]:
    """Register a kernel under each name.

    Set `random` if results differ from call to call. `sizes` returns the result's shape for bound arguments. `traits`
    are those of `graph/schema.py` that hold wherever the operator runs; a rule for the GPU declares its own.
    """

    def register(function: Function) -> Function:
        for name in names:
            if PORTABLE.is_taken(name, function.__module__):
                raise ValueError(
                    f"kernel {name} is registered already: give yours another name, "
                    f"or delete ptegpu.portable.PORTABLE[{name!r}] first"
                )
            PORTABLE[name] = kernel_of(name, function, random, sizes, **traits)
        return function

    return register


def call(name: str, args: Sequence[Any], outs: Sequence[OutSpec]) -> list[Array]:
    """Run a kernel. Return contiguous arrays of the declared dtypes that share no memory with `args`."""
    kernel = PORTABLE.get(name)
    if kernel is None:
        raise UnsupportedProgram(f"{name} has no kernel on the host")
    values = kernel.bind(args)
    extras = {"outs": tuple(outs)} if kernel.wants_outs else {}
    check_sizes(kernel, values, outs)
    try:
        with np.errstate(all="ignore"):
            returned = kernel.function(*values, **extras)
            results = returned if isinstance(returned, tuple | list) else (returned,)
            if len(results) != len(outs):
                raise InvalidProgram(f"{len(results)} results, but the program declares {len(outs)}")
            return [_own(cast(r, o.numpy), values) for r, o in zip(results, outs)]
    except PtegpuError as e:
        raise type(e)(f"{name}: {e}") from e
    except _NONSENSE as e:
        raise ExecutionError(f"{name}({', '.join(map(describe, values))}) failed: {e}") from e


def check_sizes(kernel: HostKernel, values: Sequence[Any], outs: Sequence[OutSpec]) -> None:
    """Raise if a result would exceed the sizes that the program declares, or the memory limit."""
    shape: Sequence[int] | None = None
    if kernel.sizes is not None:
        with suppress(PtegpuError, *_NONSENSE):  # the kernel itself reports invalid arguments
            shape = kernel.sizes(*values)
    if shape is None:
        afford(_upper_bound(values, outs))
        return
    for out in outs:
        if out.sizes is not None and (len(shape) != len(out.sizes) or any(map(operator.gt, shape, out.sizes))):
            raise ExecutionError(f"its result is {list(shape)}, the program allows at most {list(out.sizes)}")
    afford(math.prod(shape) * sum(o.numpy.itemsize for o in outs))


def _upper_bound(values: Sequence[Any], outs: Sequence[OutSpec]) -> int:
    """Return an upper bound of the bytes of the results, from the arguments and the program's declarations."""
    arrays = [v for v in values if isinstance(v, Array)]
    lists = [[a for a in v if isinstance(a, Array)] for v in values if isinstance(v, list | tuple)]
    largest = max([1, *(a.size for a in arrays), *(sum(a.size for a in items) for items in lists)])
    grown = [math.prod(max(n, 1) for n in a.shape) for a in arrays]  # elements after a sum over an empty dimension
    with suppress(ValueError):  # if they do not broadcast
        grown.append(math.prod(np.broadcast_shapes(*(a.shape for a in arrays))))
    nbytes = max(largest, *grown) * max([o.numpy.itemsize for o in outs], default=1)
    if max(grown) > largest or any(o.sizes is None for o in outs):
        return nbytes
    return min(nbytes, sum(math.prod(o.sizes or ()) * o.numpy.itemsize for o in outs))


def afford(nbytes: int) -> None:
    """Raise LimitExceeded if a kernel is about to allocate more than the program may still take."""
    if nbytes > left():
        raise exceeded("memory", nbytes, left(), "a call on the host")


def cast(x: Any, dtype: np.dtype) -> Array:
    """Return `x` as `dtype`: floats truncate towards zero, and wrap around if the target is unsigned."""
    x = np.asarray(x)
    if x.dtype.kind == "f" and dtype.kind == "u":
        x = x.astype(np.int64)
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    return np.asarray(x, dtype, order="C")


def _own(x: Array, args: Sequence[Any]) -> Array:
    """Return `x`, copied if it could share memory with an argument."""
    arrays = [a for arg in args for a in (arg if isinstance(arg, tuple | list) else (arg,)) if isinstance(a, Array)]
    return x.copy() if any(np.may_share_memory(x, a) for a in arrays) else x
