"""Programs from entries of the table: exported, with PyTorch's float64 answers to calls whose inputs all matter."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.exporting import export, quiet
from tests.saved import Call, Program
from tests.zoo.modules import lively

Inputs = tuple[Any, ...]
HALF = 1e-2  # the tolerance of float16
INT8 = 1e-2  # a value halfway between two steps may round to either; a step is 1/127 of the largest value
MATTERS = 0.05  # of an output's scale: an error in an input with less effect could go unnoticed


@dataclass(frozen=True)
class Model:
    """A module with random weights and the inputs of its calls; the first call is traced."""

    module: Callable[[], nn.Module]
    calls: Callable[[], Sequence[Inputs]]
    delegate: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)  # of the partitioner
    dynamic: Any = None
    state: bool = False
    # Of the `Program`: tolerance, graphs, host, operators.
    expectations: Mapping[str, Any] = field(default_factory=dict)

    def program(self, name: str) -> Program:
        torch.manual_seed(0)
        module = lively(self.module())
        calls = self.calls()
        export_options = {"dynamic_shapes": self.dynamic, "delegate": self.delegate, "options": self.options}
        data = export(copy.deepcopy(module), calls[0], **export_options)
        return answered(
            Program(name, data, (), **self.expectations), {"forward": module}, {"forward": calls}, self.state
        )


def answered(
    program: Program,
    modules: Mapping[str, nn.Module],
    calls: Mapping[str, Sequence[Inputs]],
    state: bool = False,
    wide: Callable[[nn.Module], nn.Module] | None = lambda module: copy.deepcopy(module).double(),
) -> Program:
    """Return the program with calls of each method; with `state`, repeat the first call after a reset.

    The module that `wide` makes for float64 answers them, and the module's own answers must agree. Without `wide`, for
    modules that cannot be widened, its own answers are used.
    """
    recorded: list[Call] = []
    own: list[Sequence[Any]] = []
    for method, module in modules.items():
        call_inputs = calls[method]
        _check_that_inputs_matter(module, call_inputs)
        first = answers(module, call_inputs)
        expected = answers(wide(module), [widened(c) for c in call_inputs]) if wide else first
        for inputs, results, exact in zip(call_inputs, first, expected, strict=True):
            recorded.append(Call(plain(inputs), [_as(w, f) for w, f in zip(exact, results, strict=True)], method))
        own += [plain(a) for a in first]
    if state:
        recorded.append(replace(recorded[0], reset=True))
    result = replace(program, calls=recorded)
    for k, outputs in enumerate(own):
        result.compare(k, outputs)
    return result


def answers(module: nn.Module, calls: Sequence[Inputs]) -> list[list[Any]]:
    """Return the results of a fresh copy of the module for calls in order."""
    with quiet(), torch.no_grad():
        module = copy.deepcopy(module)
        return [tree_leaves(copy.deepcopy(module(*copy.deepcopy(inputs)))) for inputs in calls]


def widened(inputs: Inputs) -> Inputs:
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


def plain(values: Sequence[Any]) -> list[Any]:
    return [v.numpy() if isinstance(v, torch.Tensor) else v for v in values]


def _as(exact: Any, like: Any) -> Any:
    return exact.to(like.dtype).numpy() if isinstance(exact, torch.Tensor) else exact


def _check_that_inputs_matter(module: nn.Module, calls: Sequence[Inputs]) -> None:
    """Check that each input, replaced by that of a later call, changes an output, and that each output changes."""
    (before,) = answers(module, calls[:1])
    changed: set[int] = set()
    for k, x in enumerate(calls[0]):
        other = next((c[k] for c in calls[1:] if _differ(c[k], x, 0.0) and np.shape(c[k]) == np.shape(x)), None)
        assert other is not None, f"input {k} is always the same, or has another shape"
        (after,) = answers(module, [(*calls[0][:k], other, *calls[0][k + 1 :])])
        affected = {n for n, (a, b) in enumerate(zip(before, after, strict=True)) if _differ(a, b, MATTERS)}
        assert affected, f"input {k} hardly matters"
        changed |= affected
    tensors = {n for n, y in enumerate(before) if isinstance(y, torch.Tensor)}
    assert tensors <= changed, f"outputs {tensors - changed} hardly change"


def _differ(a: Any, b: Any, share: float) -> bool:
    """Return whether two values differ in shape, or by more than a share of the largest magnitude."""
    if not isinstance(a, torch.Tensor):
        return bool(a != b)
    return a.shape != b.shape or bool((a.double() - b.double()).abs().max() > share * a.double().abs().max())
