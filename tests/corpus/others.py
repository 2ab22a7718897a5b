"""Several methods in one file, and linear layers with quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from tests.exporting import quiet
from tests.programs.int8 import everywhere, weights

from .making import Entry, Function, module, r, twice


class Parts(nn.Module):
    """An autoencoder with its halves as separate methods."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(6, width), nn.Tanh())
        self.decode = nn.Sequential(nn.Linear(width, 6), nn.Sigmoid())

    def forward(self, x: Tensor) -> Any:
        return self.decode(self.encode(x))


class Counting(nn.Module):
    """A state that only `forward` writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("n", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.n.add_(1)
        y: Tensor = self.layer(x) * self.n
        return y


def encoder(m: nn.Module) -> nn.Module:
    assert isinstance(m, Parts)
    return m.encode


def decoder(m: nn.Module) -> nn.Module:
    assert isinstance(m, Parts)
    return m.decode


def of(f: Callable[..., Any]) -> Callable[[nn.Module], nn.Module]:
    return lambda m: Function(f)


X, H = twice(r(2, 6)), twice(r(2, 4))
METHODS: dict[str, Entry] = {
    "a whole and its halves": module(
        Parts, *X, methods={"encode": encoder, "decode": decoder}, others={"encode": X, "decode": H}
    ),
    "a whole and one half": module(Parts, *X, methods={"encode": encoder}, others={"encode": X}),
    "a state and a method without": module(
        Counting, *[(r(2, 6),)] * 3, methods={"twice": of(lambda x: x * 2)}, others={"twice": X}, reset=True
    ),
    "methods with other inputs": module(
        Parts, *X, methods={"add": of(lambda x, y: x + y)}, others={"add": twice(r(3), r(3))}
    ),
    "methods that return dicts": module(
        Parts, *X, methods={"split": of(lambda x: {"a": x[0], "b": x[1]})}, others={"split": X}
    ),
    "a method that branches": module(
        Parts,
        *X,
        methods={"branch": of(lambda x: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,)))},
        others={"branch": [(torch.ones(3),), (-torch.ones(3),)]},
    ),
    "four methods": module(
        Parts,
        *X,
        methods={
            "encode": encoder,
            "decode": decoder,
            "norm": of(lambda x: x / x.norm()),
            "best": of(lambda x: x.argmax(-1)),
        },
        others={"encode": X, "decode": H, "norm": X, "best": X},
    ),
}


def converted(make: Callable[[], nn.Module], quantizer: Callable[[], Any], *shape: int) -> nn.Module:
    """Return a module quantized through PT2E and calibrated on noise."""
    with quiet():
        observed = prepare_pt2e(torch.export.export(make().eval(), (torch.randn(shape),)).module(), quantizer())
        for _ in range(4):
            observed(torch.randn(shape))
        result: nn.Module = convert_pt2e(observed)
    return result


def packed(make: Callable[[], nn.Module], bits: int, group: int = 32) -> nn.Module:
    """Return a module whose linear layers have 8-bit or 4-bit weights of torchao."""
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_

    model = make().eval()
    granularity = PerAxis(0) if bits == 8 else PerGroup(group)
    with quiet():
        quantize_(model, IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=granularity))
    return model


def two() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))


STEPS = {"wide": False, "tolerance": 1e-2}  # a value halfway between two steps may round to either
EXACT = {"wide": False, "tolerance": 1e-4}
QUANTIZED: dict[str, Entry] = {
    "a linear in int8": module(
        partial(converted, lambda: nn.Linear(32, 8), everywhere, 4, 32), *twice(r(4, 32)), **STEPS
    ),
    "two linears in int8": module(partial(converted, two, everywhere, 4, 32), *twice(r(4, 32)), **STEPS),
    "convolutions in int8": module(
        partial(converted, convolutions, everywhere, 1, 4, 6, 6), *twice(r(1, 4, 6, 6)), **STEPS
    ),
    "a linear with weights in int8": module(
        partial(converted, lambda: nn.Linear(32, 8), weights, 4, 32), *twice(r(4, 32)), **EXACT
    ),
    "two linears with weights in int8": module(partial(converted, two, weights, 4, 32), *twice(r(4, 32)), **EXACT),
    "one row through weights in int8": module(
        partial(converted, lambda: nn.Linear(32, 8, bias=False), weights, 1, 32), *twice(r(1, 32)), **EXACT
    ),
    "a linear with packed weights of 8 bits": module(
        partial(packed, lambda: nn.Sequential(nn.Linear(32, 8)), 8), *twice(r(4, 32)), **EXACT
    ),
    "a linear with packed weights of 4 bits": module(
        partial(packed, lambda: nn.Sequential(nn.Linear(64, 16)), 4), *twice(r(4, 64)), **EXACT
    ),
    "a row through packed weights of 4 bits": module(
        partial(packed, lambda: nn.Sequential(nn.Linear(64, 16, bias=False)), 4), *twice(r(1, 64)), **EXACT
    ),
    "two linears with packed weights of 4 bits": module(
        partial(packed, lambda: nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 8)), 4),
        *twice(r(4, 64)),
        **EXACT,
    ),
}
