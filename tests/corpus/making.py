"""Programs from entries of the corpus: exported with and without partitions, with PyTorch's answers to their calls."""

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
    """Describe a random float32 tensor."""
    return R(shape)


def ids(high: int, *shape: int) -> R:
    """Describe a random int64 tensor of 0 to `high` - 1."""
    return R(shape, torch.int64, 0, high)


def v(*values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of these values."""
    return torch.tensor(values, dtype=dtype)


def twice(*inputs: Any) -> list[tuple[Any, ...]]:
    """Return two calls with inputs of the same kinds; random ones differ."""
    return [inputs, inputs]


@dataclass(frozen=True)
class Entry:
    """A module or a function, and its calls in order; the first is traced."""

    module: Callable[..., Any]  # makes the module if `is_module`, else the function itself
    calls: Sequence[tuple[Any, ...]]
    dynamic: Any = None  # per input, as torch.export takes it
    is_module: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of the partitioner
    tolerance: float = 1e-4
    wide: bool = True  # PyTorch answers in float64, else in the dtypes of the entry
    delegate: bool = True  # False: omit partitions, which the exporter gets wrong
    bounded: bool = True  # False: sizes have no upper bound; `export` would refuse them
    reset: bool = False  # repeat the first call after a reset
    methods: Mapping[str, Callable[[nn.Module], nn.Module]] = field(default_factory=dict)  # beside `forward`
    others: Mapping[str, Sequence[tuple[Any, ...]]] = field(default_factory=dict)  # calls of these methods


def module(make: Callable[[], nn.Module], *calls: tuple[Any, ...], dynamic: Any = None, **options: Any) -> Entry:
    """Return an entry of a module that `make` makes."""
    return Entry(make, calls, dynamic, is_module=True, **options)


def function(f: Callable[..., Any], *calls: tuple[Any, ...], dynamic: Any = None, **options: Any) -> Entry:
    """Return an entry of a function of tensors."""
    return Entry(f, calls, dynamic, **options)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *inputs: Any) -> Any:
        return self.f(*inputs)


def programs(name: str, entry: Entry, feature: str) -> list[Program]:
    """Export an entry both ways and let PyTorch answer its calls. Raise what the exporter raises."""
    torch.manual_seed(zlib.crc32(name.encode()))
    model = entry.module() if entry.is_module else Function(entry.module)
    model = model.requires_grad_(False)
    if not entry.is_module or entry.wide:
        model = model.eval()
    parts = {"forward": model, **{m: part(model) for m, part in entry.methods.items()}}
    inputs = {m: [_inputs_of(c) for c in (entry.calls if m == "forward" else entry.others[m])] for m in parts}
    calls = [call for m, part in parts.items() for call in _answered(part, inputs[m], m, entry)]
    if entry.reset:
        first = calls[0]
        calls.append(Call(first.inputs, first.expected, first.method, reset=True, result=first.result))
    _check_that_calls_differ(name, calls)
    shapes = entry.dynamic if entry.is_module or entry.dynamic is None else (tuple(entry.dynamic),)
    exported = []
    for delegate in (True, False) if entry.delegate else (False,):
        if entry.methods:
            traced = {m: trace(copy.deepcopy(part), inputs[m][0]) for m, part in parts.items()}
            data = lower(traced, delegate=delegate, options=dict(entry.options)).data
        elif not entry.bounded:
            data = lower(trace(copy.deepcopy(model), inputs["forward"][0], shapes), delegate=delegate).data
        else:
            options = dict(entry.options) if delegate else None
            example = inputs["forward"][0]
            data = export(copy.deepcopy(model), example, dynamic_shapes=shapes, delegate=delegate, options=options)
        exported.append(
            Program(
                name if delegate else f"{name}, undelegated",
                data,
                calls,
                tolerance=entry.tolerance,
                features=(feature,),
            )
        )
    return exported


def _inputs_of(value: Any) -> Any:
    return tree_map(lambda a: a.make() if isinstance(a, R) else a, value)


def _answered(part: nn.Module, call_inputs: Sequence[tuple[Any, ...]], method: str, entry: Entry) -> list[Call]:
    own = _answers(part, call_inputs)
    with _wide() if entry.wide else nullcontext():
        exact = _answers(copy.deepcopy(part).double(), [_widened(c) for c in call_inputs]) if entry.wide else own
    calls = []
    for inputs, result, wide in zip(call_inputs, own, exact, strict=True):
        leaves, spec = tree_flatten(result)
        expected = [_as(w, leaf) for w, leaf in zip(tree_flatten(wide)[0], leaves, strict=True)]
        structure = tree_unflatten(list(range(len(leaves))), spec)
        calls.append(Call(tree_map(plain, list(inputs)), expected, method, result=structure))
        Program("", b"", calls, tolerance=entry.tolerance).compare(len(calls) - 1, [plain(leaf) for leaf in leaves])
    return calls


def _answers(part: nn.Module, call_inputs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the results of a fresh copy for calls in order."""
    with quiet(), torch.no_grad():
        part = copy.deepcopy(part)
        return [copy.deepcopy(part(*copy.deepcopy(inputs))) for inputs in call_inputs]


@contextmanager
def _wide() -> Iterator[None]:
    """Make float64 the default for tensors that a module creates."""
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
    """Return a tensor as an array, a bfloat16 one as its bits."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.contiguous().view(torch.uint16).numpy() if value.dtype is torch.bfloat16 else value.numpy()


def _as(exact: Any, like: Any) -> Any:
    return plain(exact.to(like.dtype)) if isinstance(exact, torch.Tensor) else exact


def _check_that_calls_differ(name: str, calls: Sequence[Call]) -> None:
    """Raise unless some call of each method has another result than the first: a constant proves little."""
    for method in {c.method for c in calls}:
        first, *rest = (c.expected for c in calls if c.method == method)
        if not any(
            np.shape(a) != np.shape(b) or not np.array_equal(a, b) for w in rest for a, b in zip(first, w, strict=True)
        ):
            raise ValueError(f"{name}: every call of {method!r} has the same result")
