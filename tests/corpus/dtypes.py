"""Every dtype in the operators that support it; ints beyond 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .making import HALF, Entry, R, function, r, twice, v

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def of(dtype: torch.dtype, f: Callable[..., Any], *inputs: Any, low: int = -9) -> Entry:
    """Return an entry of a function of tensors of a dtype; bfloat16 is computed in bfloat16, not in float64."""
    tensors = [R(x, dtype, low) if isinstance(x, tuple) else x for x in inputs]
    tolerance = HALF if dtype is torch.float16 else 1e-4
    return function(f, *twice(*tensors), wide=dtype is not torch.bfloat16, tolerance=tolerance)


ANY: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda x, y: (x + y) * x - y, ((3, 5), (5,))),
    "comparisons": (lambda x, y: ((x > y), (x <= y), x == y), ((3, 5), (5,))),
    "moves": (lambda x, y: torch.cat([x.flip(0), y.t()], 0)[1:, ::2].permute(1, 0), ((3, 5), (5, 2))),
    "where": (lambda x, y: torch.where(x > y, x, y), ((4, 5), (4, 5))),
    "order": (lambda x: (x.sort(-1)[0], x.amax(0), x.argmin(1)), ((4, 7),)),
    "index": (lambda x, k: x[k] + x[0], ((6, 3), R((4,), torch.int64, 0, 6))),
    "clamp and abs": (lambda x: x.clamp(0, 3) + x.abs(), ((4, 5),)),
}
OF_FLOATS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "functions": (lambda x: torch.tanh(x) + torch.sigmoid(x) * torch.exp(-x.abs()), ((4, 5),)),
    "sums": (lambda x: (x.sum(0).float(), x.mean().float()), ((4, 5),)),
    "product": (lambda x, y: (x @ y).float(), ((3, 4), (4, 2))),
    "softmax": (lambda x: x.softmax(-1).float() + 1, ((3, 6),)),
}
OF_INTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "bits": (lambda x, y: (x & y, x | y, x ^ y, ~x), ((3, 5), (3, 5))),
    "division": (lambda x, y: (x // (y.abs() + 1), x % (y.abs() + 1)), ((3, 5), (3, 5))),
    "sums": (lambda x: (x.sum(0), x.cumsum(1), x.prod(1)), ((3, 4),)),
}
MOST = {torch.float16: 1e-2, torch.bfloat16: 1e-2}


def _floats(name: str, dtype: torch.dtype, f: Callable[..., Any], shapes: tuple[Any, ...]) -> Entry:
    inputs = [R(s, dtype) for s in shapes]
    return function(f, *twice(*inputs), tolerance=MOST.get(dtype, 1e-4))


CASTS = (*FLOATS, *INTS, torch.bool)


def _cast(source: torch.dtype, target: torch.dtype) -> Entry:
    return function(lambda x: x.to(target), *twice(R((4, 6), source, 0, 9)), wide=False)


def _of_bools(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x & y, x | y, x ^ y, ~x, x.any(0), y.all(1), x.sum(0), x.float().mean()


LARGE = 3_000_000_000
WIDE = [(v(1, -5, 2**31 - 1, 7),), (v(2**33, -(2**40), 3, 0),)]
BEYOND: dict[str, Callable[[Tensor], Any]] = {
    "a sum with a constant": lambda a: a + LARGE,
    "a product with a constant": lambda a: a * LARGE,
    "a difference from a constant": lambda a: LARGE - a,
    "a comparison with a constant": lambda a: a > LARGE,
    "a clamp": lambda a: (a + LARGE).clamp(0, LARGE + 5),
    "a sort": lambda a: (a + LARGE).sort()[0],
    "a topk": lambda a: (a + LARGE).topk(2)[0],
    "a maximum": lambda a: (a + LARGE).max(),
    "a maximum along a dimension": lambda a: tuple((a + LARGE).max(0)),
    "a cat": lambda a: torch.cat([a + LARGE, a]),
    "a flip": lambda a: (a * LARGE).flip(0),
    "a cast to float": lambda a: (a + LARGE).float() / 2,
    "a where": lambda a: torch.where(a > 0, a + LARGE, a - LARGE),
    "a slice": lambda a: (a + LARGE)[1:3] * 2,
    "a gather": lambda a: (a + LARGE).gather(0, (a % 4).abs()),
    "a remainder": lambda a: (a + LARGE) % 1000,
    "a floor division": lambda a: (a * LARGE) // 7,
    "a cumulative sum": lambda a: (a + LARGE).cumsum(0),
    "a square": lambda a: a * a,
}

DTYPES: dict[str, Entry] = {
    **{f"{name} of {short(d)}": of(d, f, *s) for name, (f, s) in ANY.items() for d in (*FLOATS, *INTS)},
    **{
        f"{name} of {short(d)}": _floats(name, d, f, s)
        for name, (f, s) in OF_FLOATS.items()
        for d in FLOATS
        if (name, d) != ("functions", torch.bfloat16)  # PyTorch rounds intermediate results of these
    },
    **{f"{name} of {short(d)}": of(d, f, *s) for name, (f, s) in OF_INTS.items() for d in INTS},
    **{f"{short(d)} to {short(t)}": _cast(d, t) for d, t in zip(CASTS, (*CASTS[3:], *CASTS[:3]))},
    "logic of bool": function(_of_bools, *twice(R((3, 4), torch.bool), R((3, 4), torch.bool))),
    "masks of bool": function(lambda x, m: x.masked_fill(m, -1.0) * 2, *twice(r(3, 4), R((3, 4), torch.bool))),
    "a choice by bool": function(lambda m, x, y: torch.where(m, x, y), *twice(R((3, 4), torch.bool), r(3, 4), r(4))),
    "int and float together": function(lambda x, n: x * n + n / 2, *twice(r(3, 4), R((3, 4), torch.int64))),
    "int32 and int64 together": function(
        lambda a, b: a + b * 2, *twice(R((3, 4), torch.int32), R((3, 4), torch.int64))
    ),
    "uint8 and float together": function(lambda a, x: a / 255 - x, *twice(R((3, 4), torch.uint8), r(3, 4))),
    "float16 and float32 together": function(
        lambda h, x: h * x + h, *twice(R((3, 4), torch.float16), r(3, 4)), tolerance=HALF
    ),
    "one_hot": function(lambda k: F.one_hot(k, 5), *twice(R((6,), torch.int64, 0, 5))),
    "shifts of int32": function(lambda a: (a << 2, a >> 1), *twice(R((3, 4), torch.int32))),
}
INPUTS: dict[str, Callable[[Tensor], Any]] = {
    "a clamp of inputs": lambda a: a.clamp(-5, 2**34),
    "a sort of inputs": lambda a: a.sort()[0],
    "a topk of inputs": lambda a: a.topk(2)[0],
    "a maximum of inputs": lambda a: a.max(),
    "a cat of inputs": lambda a: torch.cat([a, a.flip(0)]),
    "a comparison of inputs": lambda a: a > 3,
    "a cast of inputs to float": lambda a: a.float(),
    "a where of inputs": lambda a: torch.where(a > 3, a, -a),
}
BEYOND_32: dict[str, Entry] = {f"{name}, beyond 32 bits": function(f, *WIDE) for name, f in BEYOND.items()} | {
    # Partitions accept only int32 inputs.
    f"{name}, beyond 32 bits": function(f, *WIDE, delegate=False)
    for name, f in INPUTS.items()
}
