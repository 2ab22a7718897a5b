"""Cases of operators with their arguments; the oracle is the operator in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import executorch.exir.passes.dim_order_ops_registry
import executorch.kernels.quantized  # noqa: F401  (both register operators)
import numpy as np
import torch

from ptegpu.dtypes import DType
from ptegpu.portable import PORTABLE, OutSpec, call

DROPPED = ("dtype", "layout", "device", "pin_memory")
EXACT = ("moves", "index")  # families that only copy
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-2}

NAN, INF = float("nan"), float("inf")
BIG = 2**40 + 3  # an int64 that fits neither int32 nor float32


@dataclass(frozen=True)
class Case:
    """`args` are those of the out variant; `dtype` is for operators with a dtype only in the functional overload."""

    name: str
    args: tuple[Any, ...]
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        return f"{self.name.removesuffix('.default')}({', '.join(map(_short, self.args))})"


def case(name: str, *args: Any, dtype: torch.dtype | None = None) -> Case:
    return Case(name if name.count(".") > 1 else f"aten.{name}", args, dtype)


def f(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal random values that depend only on the sizes."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes) + 1), dtype=torch.float64).to(dtype)


def positive(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return f(*sizes, dtype=dtype).abs() + 0.125


def i(*sizes: int, low: int = -9, high: int = 10, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, sizes, generator=torch.Generator().manual_seed(sum(sizes) + 2)).to(dtype)


def b(*sizes: int) -> torch.Tensor:
    return i(*sizes, low=0, high=2).bool()


def distinct(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a shuffled range, which has exactly one sorted order."""
    count = int(np.prod(sizes))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return (order - count // 2).reshape(sizes).to(dtype)


def t(values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def schema(name: str) -> torch._C.FunctionSchema:
    namespace, base, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)._schema


def parameters(name: str) -> list[torch._C.Argument]:
    """Return a kernel's parameters: those of the functional overload that its out variant also has."""
    arguments = schema(name).arguments
    dropped = DROPPED if any(a.name == "pin_memory" for a in arguments) else ()
    return [a for a in arguments if a.name not in dropped]


def expected(case: Case) -> list[torch.Tensor]:
    namespace, base, overload = case.name.split(".")
    positional, named = [], {} if case.dtype is None else {"dtype": case.dtype}
    for argument, value in zip(parameters(case.name), case.args):
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    function = getattr(getattr(getattr(torch.ops, namespace), base), overload)
    result = function(*positional, **named)
    return list(result) if isinstance(result, tuple | list) else [result]


def to_numpy(value: Any) -> Any:
    """Convert an argument to the host's form: bfloat16 becomes float32, and a dtype its number in the file."""
    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    if isinstance(value, list):
        return [to_numpy(v) for v in value]
    return 0 if isinstance(value, torch.dtype) else value


def spec(value: torch.Tensor | None) -> OutSpec:
    if value is None:
        return OutSpec(DType.F32, (1,))
    name = str(value.dtype).removeprefix("torch.")
    dtype = {"complex64": DType.F32}.get(name) or DType(name)
    return OutSpec(dtype, tuple(value.shape))


def check(case: Case) -> None:
    references = expected(case)
    results = call(case.name, to_numpy(list(case.args)), [spec(w) for w in references])
    assert len(references) == len(results)
    for w, g in zip(references, results):
        if w is not None:
            compare(w, g, exact=is_exact(case))


def is_exact(case: Case) -> bool:
    return PORTABLE[case.name].function.__module__.rpartition(".")[2] in EXACT


def compare(reference: torch.Tensor, result: np.ndarray, *, exact: bool) -> None:
    assert list(reference.shape) == list(result.shape)
    array = to_numpy(reference)
    assert array.dtype == result.dtype
    assert result.flags.c_contiguous
    if exact or array.dtype.kind != "f":
        np.testing.assert_array_equal(result, array)
    else:
        tolerance = TOLERANCE.get(reference.dtype, 1e-5)
        scale = float(np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0))
        np.testing.assert_allclose(result, array, rtol=tolerance, atol=tolerance * min(1.0, scale))


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_short, value))}]"
    return str(value)
