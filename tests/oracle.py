"""The two oracles of cases: PyTorch in float64 is the reference, and PyTorch in float32 must agree with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .cases import Case, Problem, S, T, compare, declared, device, graph_of, plan_of, run_plan, tolerance, walk

__all__ = ["Case", "Problem", "S", "T", "check", "compare", "device", "graph_of", "plan_of", "problem", "run_plan"]


DEFINED_BY = {
    "et_vk": "executorch.backends.vulkan.custom_ops_lib",
    "llama": "executorch.extension.llm.custom_ops.custom_ops",
}


def torch_of(array: np.ndarray, wide: bool) -> torch.Tensor:
    t = torch.from_numpy(array.copy())
    if t.is_floating_point():
        return t.double() if wide else t
    return t.long() if t.dtype == torch.int32 else t


def reference(case: Case, arrays: dict[int, np.ndarray], *, wide: bool) -> list[np.ndarray]:
    """Return PyTorch's outputs, then the final values of mutated arguments; `wide` computes in float64."""

    def value(a: Any) -> Any:
        return torch_of(arrays[id(a)], wide) if isinstance(a, T) else a.value if isinstance(a, S) else a

    args = walk(list(case.args), value)
    result = case.reference(*args) if case.reference else call(torch_operator(case.op), args)
    outs = list(result) if isinstance(result, tuple | list) else [result]
    outs += [args[k] for k in case.mutated]
    return [o.detach().contiguous().numpy() for o in outs]


def call(operator: Any, args: Sequence[Any]) -> Any:
    """Apply an operator to arguments in schema order; pass keyword-only ones by name."""
    positional, named = [], {}
    for a, parameter in zip(args, operator._schema.arguments, strict=False):
        if parameter.kwarg_only:
            named[parameter.name] = a
        else:
            positional.append(a)
    return operator(*positional, **named)


def torch_operator(name: str) -> Callable[..., Any]:
    packet, overload = name.rsplit(".", 1)
    namespace, base = packet.split(".", 1)
    if namespace in DEFINED_BY:
        importlib.import_module(DEFINED_BY[namespace])
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)


def problem(case: Case, seed: int = 0) -> Problem:
    """Make values for a case and PyTorch's results in float32 and float64, which must agree."""
    rng = np.random.default_rng(seed)
    arrays: dict[int, np.ndarray] = {}

    def make(a: Any) -> None:
        if isinstance(a, T):
            arrays[id(a)] = a.make(rng)

    walk(list(case.args), make)
    golden = reference(case, arrays, wide=True)
    eager = reference(case, arrays, wide=False)
    for k, (want, first) in enumerate(zip(golden, eager, strict=True)):
        dtype = declared(case, first)
        if dtype.is_float:
            compare(first, want, tolerance(case, dtype, k), "PyTorch float32 against float64")
    return Problem(case, arrays, eager, golden)


def check(
    case: Case, *, f16: bool = True, subgroups: bool = True, limits: str = "adapter", seed: int = 0, **target: Any
) -> None:
    """Run a case on the adapter and compare it with both oracles; `target` changes the compilation target."""
    problem(case, seed).check(device(f16, subgroups, limits), **target)
