"""An entry of the corpus to programs: exported with and without partitions, with PyTorch's answers to its calls."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ptegpu.export import lower, trace
from tests.exporting import export, quiet
from tests.saved import Call, Program

HALF = 1e-2  # the tolerance of float16


@dataclass(frozen=True)
class R:
    """A random tensor: normal floats, or ints from `low` to `high` - 1, or bools."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: int = -9
    high: int = 10

    def make(self) -> torch.Tensor:
        if self.dtype.is_floating_point:
            return torch.randn(self.shape).to(self.dtype)
        if self.dtype is torch.bool:
            return torch.rand(self.shape) < 0.5
        signed = self.dtype.is_signed
        return torch.randint(self.low if signed else 0, self.high, self.shape).to(self.dtype)


def r(*shape: int) -> R:
    """A random float32 tensor."""
    return R(shape)


def ids(high: int, *shape: int) -> R:
    """A random int64 tensor of 0 to `high` - 1."""
    return R(shape, torch.int64, 0, high)


def v(*values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of these values."""
    return torch.tensor(values, dtype=dtype)


def twice(*inputs: Any) -> list[tuple[Any, ...]]:
    """Two calls with the same kinds of inputs; random ones differ."""
    return [inputs, inputs]


@dataclass(frozen=True)
class Entry:
    """A module, or a function, and its calls in order; it is traced with the first."""

    module: Callable[..., Any]  # makes a module if it is one of `made`, else it is the function itself
    calls: Sequence[tuple[Any, ...]]
    dynamic: Any = None  # per input, as torch.export takes it
    made: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of the partitioner
    tolerance: float = 1e-4
    wide: bool = True  # PyTorch answers in float64; else as it is
    delegate: bool = True  # False: the exporter's partitions are wrong, and left out
    bounded: bool = True  # False: sizes have no upper bound, which `export` refuses
    reset: bool = False  # the first call comes once more, after a reset
    methods: Mapping[str, Callable[[nn.Module], nn.Module]] = field(default_factory=dict)  # beside `forward`
    others: Mapping[str, Sequence[tuple[Any, ...]]] = field(default_factory=dict)  # calls of these methods


def module(make: Callable[[], nn.Module], *calls: tuple[Any, ...], dynamic: Any = None, **options: Any) -> Entry:
    """An entry of a module that `make` makes."""
    return Entry(make, calls, dynamic, made=True, **options)


def function(f: Callable[..., Any], *calls: tuple[Any, ...], dynamic: Any = None, **options: Any) -> Entry:
    """An entry of a function of tensors."""
    return Entry(f, calls, dynamic, **options)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs)


def programs(name: str, entry: Entry, feature: str) -> list[Program]:
    """Export an entry both ways and let PyTorch answer its calls. What the exporter refuses is an error."""
    torch.manual_seed(zlib.crc32(name.encode()))
    model = entry.module() if entry.made else Function(entry.module)
    model = model.requires_grad_(False)
    if not entry.made or entry.wide:
        model = model.eval()
    parts = {"forward": model, **{m: part(model) for m, part in entry.methods.items()}}
    given = {m: [_made(c) for c in (entry.calls if m == "forward" else entry.others[m])] for m in parts}
    calls = [call for m, part in parts.items() for call in _answered(part, given[m], m, entry)]
    if entry.reset:
        first = calls[0]
        calls.append(Call(first.inputs, first.wanted, first.method, reset=True, result=first.result))
    _check_that_calls_differ(name, calls)
    shapes = entry.dynamic if entry.made or entry.dynamic is None else (tuple(entry.dynamic),)
    found = []
    for delegate in (True, False) if entry.delegate else (False,):
        if entry.methods:
            traced = {m: trace(copy.deepcopy(part), given[m][0]) for m, part in parts.items()}
            data = lower(traced, delegate=delegate, options=dict(entry.options)).data
        elif not entry.bounded:
            data = lower(trace(copy.deepcopy(model), given["forward"][0], shapes), delegate=delegate).data
        else:
            options = dict(entry.options) if delegate else None
            example = given["forward"][0]
            data = export(copy.deepcopy(model), example, dynamic_shapes=shapes, delegate=delegate, options=options)
        found.append(
            Program(
                name if delegate else f"{name}, undelegated",
                data,
                calls,
                tolerance=entry.tolerance,
                features=(feature,),
            )
        )
    return found


def _made(value: Any) -> Any:
    return tree_map(lambda a: a.make() if isinstance(a, R) else a, value)


def _answered(part: nn.Module, given: Sequence[tuple[Any, ...]], method: str, entry: Entry) -> list[Call]:
    own = _answers(part, given)
    with _wide() if entry.wide else nullcontext():
        exact = _answers(copy.deepcopy(part).double(), [_widened(c) for c in given]) if entry.wide else own
    found = []
    for inputs, result, wide in zip(given, own, exact, strict=True):
        leaves, spec = tree_flatten(result)
        wanted = [_as(w, leaf) for w, leaf in zip(tree_flatten(wide)[0], leaves, strict=True)]
        structure = tree_unflatten(list(range(len(leaves))), spec)
        found.append(Call(tree_map(plain, list(inputs)), wanted, method, result=structure))
        Program("", b"", found, tolerance=entry.tolerance).compare(len(found) - 1, [plain(leaf) for leaf in leaves])
    return found


def _answers(part: nn.Module, given: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What a fresh copy returns for calls in order."""
    with quiet(), torch.no_grad():
        part = copy.deepcopy(part)
        return [copy.deepcopy(part(*copy.deepcopy(inputs))) for inputs in given]


@contextmanager
def _wide() -> Iterator[None]:
    """Let tensors that a module creates have float64, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _widened(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    widened: tuple[Any, ...] = tree_map(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, inputs
    )
    return widened


def plain(value: Any) -> Any:
    """A tensor as an array; bfloat16 as its bits."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.contiguous().view(torch.uint16).numpy() if value.dtype is torch.bfloat16 else value.numpy()


def _as(exact: Any, like: Any) -> Any:
    return plain(exact.to(like.dtype)) if isinstance(exact, torch.Tensor) else exact


def _check_that_calls_differ(name: str, calls: Sequence[Call]) -> None:
    """Raise unless some call of each method has another result than the first: a constant proves little."""
    for method in {c.method for c in calls}:
        first, *rest = (c.wanted for c in calls if c.method == method)
        if not any(
            np.shape(a) != np.shape(b) or not np.array_equal(a, b) for w in rest for a, b in zip(first, w, strict=True)
        ):
            raise ValueError(f"{name}: every call of {method!r} has the same result")
