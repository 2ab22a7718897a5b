"""NumPy kernels for operators that run on the host, keyed by the name of the functional overload.

    @portable("aten.topk.default")
    def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]: ...

The positional parameters are the operator's schema (`ops/schema.py`), with `Array` for `Tensor`. If the operator has a
rule for the GPU too, the rule's schema is the one, and the kernel must agree with it. Arrays of bfloat16 are float32.

A kernel returns an array or a tuple of arrays of any dtype; `call` casts them to the declared one. A keyword-only
parameter `outs` receives the declared outputs.

`call` knows the sizes of results before a kernel computes: by the operator's rule, else by `sizes`, which an operator
without one needs where its result can be larger than its arguments.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..dtypes import DType
from ..errors import ExecutionError, InvalidProgram, PtegpuError, UnsupportedProgram
from ..graph.graph import Tensor
from ..limits import exceeded, left
from ..ops import REGISTRY
from ..ops.registry import Traits
from ..ops.schema import Number as Number
from ..ops.schema import Options as Options
from ..ops.schema import Parameter, Schema, accepts, describe, parameters_of

Array: TypeAlias = np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])
_NONSENSE = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
NONE = Traits()
Sizes: TypeAlias = Callable[..., Sequence[int]]  # of bound arguments


@dataclass(frozen=True, slots=True)
class OutSpec:
    """An output as the program declares it: `sizes` are upper bounds where shapes are dynamic, None if unknown."""

    dtype: DType
    sizes: tuple[int, ...] | None = None
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
    sizes: Sizes | None = None  # the shape of its result, where no rule of the GPU says it
    facts: Traits = NONE  # what others may rely on, where no rule of the GPU says it

    @property
    def schema(self) -> Schema:
        """The operator's."""
        return REGISTRY.get(self.name, self.own)

    def __call__(self, *args: Any, **extras: Any) -> Any:
        """What the function returns for arguments of the program."""
        return self.function(*self.schema.bind(args), **extras)


def kernel_of(
    name: str, function: Callable[..., Any], random: bool = False, sizes: Sizes | None = None, **traits: Any
) -> Kernel:
    """A function as a kernel; TypeError if it is not what the operator's GPU rule takes."""
    own, signature = Schema(name, parameters_of(function)), inspect.signature(function)
    rule = REGISTRY.get(name)
    if rule is not None and not _agree(own.parameters, rule.parameters):
        raise TypeError(f"the kernel of {name} takes {signature}, its GPU rule {inspect.signature(rule.rule)}")
    return Kernel(name, function, own, "outs" in signature.parameters, random, sizes, Traits(**traits))


def _agree(own: Sequence[Parameter], wanted: Sequence[Parameter]) -> bool:
    """Whether a kernel has the parameters of the schema; they may take more kinds, where overloads share a kernel."""
    same = [(p.name, p.default) for p in own] == [(p.name, p.default) for p in wanted]
    return same and all(accepts(p.kinds, w.kinds) for p, w in zip(own, wanted))


PORTABLE: dict[str, Kernel] = {}


def portable(
    *names: str, random: bool = False, sizes: Sizes | None = None, **traits: Any
) -> Callable[[Function], Function]:
    """Register a kernel under each name.

    `random`: it gives other results every time. `sizes` returns their shape. `traits` are those of `ops/registry.py`
    that hold wherever the operator runs; if the GPU has a rule for it, they belong there.
    """

    def register(function: Function) -> Function:
        for name in names:
            if name in PORTABLE:
                raise ValueError(
                    f"kernel {name} is registered already: give yours another name, "
                    f"or delete ptegpu.portable.PORTABLE[{name!r}] first"
                )
            PORTABLE[name] = kernel_of(name, function, random, sizes, **traits)
        return function

    return register


def call(name: str, args: Sequence[Any], outs: Sequence[OutSpec]) -> list[Array]:
    """Run a kernel. The results are contiguous arrays of the declared dtypes that share no memory with `args`."""
    kernel = PORTABLE.get(name)
    if kernel is None:
        raise UnsupportedProgram(f"{name} has no kernel on the host")
    values = kernel.schema.bind(args)
    extras = {"outs": tuple(outs)} if kernel.wants_outs else {}
    check_sizes(kernel, values, outs)
    try:
        with np.errstate(all="ignore"):
            found = kernel.function(*values, **extras)
            results = found if isinstance(found, tuple | list) else (found,)
            if len(results) != len(outs):
                raise InvalidProgram(f"{len(results)} results, but the program declares {len(outs)}")
            return [_own(cast(r, o.numpy), values) for r, o in zip(results, outs)]
    except PtegpuError as e:
        raise type(e)(f"{name}: {e}") from e
    except _NONSENSE as e:
        given = ", ".join(map(describe, values))
        raise ExecutionError(f"{name}({given}) failed: {e}") from e


def check_sizes(kernel: Kernel, values: Sequence[Any], outs: Sequence[OutSpec]) -> None:
    """That the results fit what the program declares, and what it may take, before they are computed."""
    shapes = _shapes(kernel, values, outs)
    if shapes is None:
        arrays = [v for v in values if isinstance(v, Array)]
        lists = [[a for a in v if isinstance(a, Array)] for v in values if isinstance(v, list | tuple)]
        sizes = [1, *(a.size for a in arrays), *(sum(a.size for a in items) for items in lists)]
        with suppress(ValueError):  # they do not broadcast
            sizes.append(math.prod(np.broadcast_shapes(*(a.shape for a in arrays))))
        nbytes = max(sizes) * max([o.numpy.itemsize for o in outs], default=1)
    else:
        for shape, out in zip(shapes, outs):
            if out.sizes is not None and (len(shape) != len(out.sizes) or any(map(operator.gt, shape, out.sizes))):
                raise ExecutionError(f"its result is {list(shape)}, the program allows at most {list(out.sizes)}")
        nbytes = sum(math.prod(s) * o.numpy.itemsize for s, o in zip(shapes, outs))
    afford(nbytes)


def afford(nbytes: int) -> None:
    """LimitExceeded if the program may not take so much more, which a kernel is about to."""
    if nbytes > left():
        raise exceeded("memory", nbytes, left(), "a call on the host")


def _shapes(kernel: Kernel, values: Sequence[Any], outs: Sequence[OutSpec]) -> Sequence[Sequence[int]] | None:
    """Those of the results; None if nobody says."""
    rule = REGISTRY.get(kernel.name)
    try:
        if kernel.sizes is not None:
            return [kernel.sizes(*values)]
        if rule is not None:
            tensors = [Tensor(f"result {k}", o.dtype.device, o.sizes or ()) for k, o in enumerate(outs)]
            return rule.infer([_stand_in(v) for v in values], tensors, any_dtype=True)
    except (PtegpuError, *_NONSENSE):
        pass  # the rule is the GPU's, which computes less; and the kernel says what makes no sense
    return None


def _stand_in(value: Any) -> Any:
    """A tensor of this shape, for rules, which look at nothing else."""
    if isinstance(value, Array):
        return Tensor("an operand", DType.of(value.dtype).device, value.shape)
    return tuple(map(_stand_in, value)) if isinstance(value, list | tuple) else value


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
