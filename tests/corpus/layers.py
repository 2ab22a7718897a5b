"""Layers of torch.nn, in float32 and in f16; operators in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import modules
from tests.zoo.modules import Block

from .making import HALF, Entry, R, function, ids, module, r, twice

F16 = {"force_fp16": True}


class First(nn.Module):
    """A layer of several results, reduced to its first one."""

    def __init__(self, layer: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(*[x] * self.times)[0]
        return y


def image(make: Callable[[], nn.Module], *shape: int) -> tuple[Callable[[], nn.Module], tuple[R, ...]]:
    return make, (r(*(shape or (2, 4, 8, 8))),)


LAYERS_BY_NAME: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "Linear": (lambda: nn.Linear(8, 5), (r(3, 8),)),
    "Linear without bias": (lambda: nn.Linear(8, 5, bias=False), (r(2, 3, 8),)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (r(2, 4, 9),)),
    "Conv1d with dilation": (lambda: nn.Conv1d(4, 6, 3, padding=2, dilation=2), (r(2, 4, 9),)),
    "Conv1d by channels": (lambda: nn.Conv1d(4, 4, 3, groups=4), (r(2, 4, 9),)),
    "Conv2d": image(lambda: nn.Conv2d(4, 6, 3, padding=1)),
    "Conv2d with stride": image(lambda: nn.Conv2d(4, 6, 3, 2, 1)),
    "Conv2d by groups": image(lambda: nn.Conv2d(4, 6, 3, groups=2)),
    "Conv2d by channels": image(lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1)),
    "Conv2d of 1 by 1": image(lambda: nn.Conv2d(4, 6, 1)),
    "Conv2d with dilation": image(lambda: nn.Conv2d(4, 6, 3, dilation=2)),
    "Conv2d that reflects": image(lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 3, 3, 2), (r(2, 4, 5),)),
    "ConvTranspose2d": image(lambda: nn.ConvTranspose2d(4, 3, 2, 2)),
    "ConvTranspose2d with padding": image(lambda: nn.ConvTranspose2d(4, 3, 3, 2, 1, 1)),
    "BatchNorm1d": (lambda: modules.lively(nn.Sequential(nn.BatchNorm1d(4))), (r(3, 4),)),
    "BatchNorm2d": image(lambda: modules.lively(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))),
    "LayerNorm": (lambda: nn.LayerNorm(8), (r(3, 8),)),
    "LayerNorm of two dimensions": (lambda: nn.LayerNorm((3, 8)), (r(2, 3, 8),)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (r(3, 8),)),
    "GroupNorm": image(lambda: nn.GroupNorm(2, 4)),
    "InstanceNorm2d": image(lambda: nn.InstanceNorm2d(4)),
    "LocalResponseNorm": image(lambda: nn.LocalResponseNorm(2)),
    "MaxPool2d": image(lambda: nn.MaxPool2d(3, 2, 1)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (r(2, 4, 9),)),
    "AvgPool2d": image(lambda: nn.AvgPool2d(2)),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 1, 1), (r(2, 4, 9),)),
    "AdaptiveAvgPool2d": image(lambda: nn.AdaptiveAvgPool2d(2)),
    "AdaptiveAvgPool2d to one": image(lambda: nn.AdaptiveAvgPool2d(1)),
    "AdaptiveMaxPool2d": image(lambda: nn.AdaptiveMaxPool2d(2)),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), (r(1, 2, 4, 4, 4),)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (r(1, 2, 4, 4, 4),)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (r(1, 2, 4, 4, 4),)),
    "Upsample to the nearest": image(lambda: nn.Upsample(scale_factor=2.0)),
    "Upsample bilinear": image(lambda: nn.Upsample(scale_factor=2.0, mode="bilinear")),
    "Upsample bicubic": image(lambda: nn.Upsample(scale_factor=2.0, mode="bicubic")),
    "PixelShuffle": image(lambda: nn.PixelShuffle(2)),
    "PixelUnshuffle": image(lambda: nn.PixelUnshuffle(2)),
    "ReflectionPad2d": image(lambda: nn.ReflectionPad2d(2)),
    "ReplicationPad2d": image(lambda: nn.ReplicationPad2d(1)),
    "ZeroPad2d": image(lambda: nn.ZeroPad2d((1, 2, 3, 0))),
    "Unfold": image(lambda: nn.Unfold(2)),
    "Embedding": (lambda: nn.Embedding(10, 6), (ids(10, 3, 4),)),
    "Embedding with padding": (lambda: nn.Embedding(10, 6, padding_idx=0), (ids(10, 3, 4),)),
    "MultiheadAttention": (lambda: First(nn.MultiheadAttention(8, 2, batch_first=True), 3), (r(2, 5, 8),)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (r(2, 5, 8),)),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
        (r(2, 5, 8), r(2, 3, 8)),
    ),
    "a block": (lambda: Block(8, 2), (r(2, 5, 8),)),
    "LSTM": (lambda: First(nn.LSTM(4, 5, batch_first=True)), (r(2, 4, 4),)),
    "GRU both ways": (lambda: First(nn.GRU(4, 5, batch_first=True, bidirectional=True)), (r(2, 4, 4),)),
    "RNN": (lambda: First(nn.RNN(4, 5, batch_first=True)), (r(2, 4, 4),)),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(1), (r(3, 8), r(3, 8))),
    "PairwiseDistance": (lambda: nn.PairwiseDistance(), (r(3, 8), r(3, 8))),
    "PReLU": (lambda: nn.PReLU(4), (r(2, 4, 5),)),
    "GLU": (lambda: nn.GLU(), (r(3, 8),)),
    "Flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (r(2, 3, 4),)),
    "Dropout": (lambda: nn.Sequential(nn.Dropout(), nn.Linear(8, 3)), (r(2, 8),)),
}
ACTIVATIONS = (
    *("ReLU", "ReLU6", "GELU", "SiLU", "Mish", "ELU", "SELU", "CELU", "Softplus", "Softsign", "Tanhshrink", "Hardtanh"),
    *("Hardswish", "Hardsigmoid", "LeakyReLU", "LogSigmoid", "Softshrink", "Hardshrink", "Sigmoid", "Tanh"),
)
IN_HALVES = (
    "Linear",
    "Conv1d",
    "Conv2d",
    "LayerNorm",
    "MaxPool2d",
    "GroupNorm",
    "a block",
    "Upsample bilinear",
    "GRU both ways",
)
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: F.relu(x * 2, inplace=True) + 1,
    "elu": lambda x: F.elu(x * 2, inplace=True) + 1,
    "leaky_relu": lambda x: F.leaky_relu(x * 2, inplace=True) + 1,
    "hardtanh": lambda x: F.hardtanh(x * 2, inplace=True) + 1,
    "hardswish": lambda x: F.hardswish(x * 2, inplace=True) + 1,
    "silu": lambda x: F.silu(x * 2, inplace=True) + 1,
    "mish": lambda x: F.mish(x * 2, inplace=True) + 1,
    "celu": lambda x: F.celu(x * 2, inplace=True) + 1,
    "selu": lambda x: F.selu(x * 2, inplace=True) + 1,
    "threshold": lambda x: F.threshold(x * 2, 0.1, 0.2, inplace=True) + 1,
    "clamp_": lambda x: (x * 2).clamp_(-1, 1) + 1,
    "add_": lambda x: (x * 2).add_(x).mul_(0.5),
    "masked_fill_": lambda x: (x * 2).masked_fill_(x > 0, -1.0),
    "a slice": lambda x: _slice_in_place(x),
    "a row": lambda x: _row_in_place(x),
    "index_add_": lambda x: torch.zeros(3, 4).index_add_(0, torch.tensor([0, 2, 0]), x),
    "scatter_": lambda x: torch.zeros(3, 4).scatter_(1, torch.tensor([[0, 2], [1, 3], [3, 0]]), x[:, :2]),
    "sub_ of a view": lambda x: _view_in_place(x),
}


def _slice_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:3] = x[:, :2]
    return y + 1


def _row_in_place(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4)
    y[1] = x.sum(0)
    return y * 2


def _view_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.t()[1].sub_(1)
    return y


def _half(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make().half()


def _halves(inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return twice(*(R(x.shape, torch.float16) if x.dtype.is_floating_point else x for x in inputs))


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "repeat_interleave by a number": lambda x: x.repeat_interleave(3, 0) * 2,
    "repeat_interleave of all": lambda x: x.repeat_interleave(2) + 1,
    "a pooling of float64": lambda x: F.avg_pool3d(x.double().view(1, 1, 3, 2, 2), 2),
    "another pooling of float64": lambda x: F.max_pool3d(x.double().view(1, 1, 3, 2, 2), 2),
    "cdist": lambda x: torch.cdist(x, x * 0.5 + 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "var and mean": lambda x: torch.var_mean(x, 1),
    "norm": lambda x: x.norm(dim=1),
    "tril and triu": lambda x: x.tril() - x.triu(1),
    "diagonal": lambda x: x.diagonal() * 2,
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "kron": lambda x: torch.kron(x[:2], x[1:]),
    "unfold": lambda x: x.unfold(1, 2, 1).sum(-1),
    "as_strided": lambda x: x.as_strided((2, 3), (4, 1)) * 2,
    "movedim": lambda x: x[None].movedim(0, 2) + 1,
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addmm": lambda x: torch.addmm(x[:, :3], x, x.t(), beta=0.5, alpha=2),
    "baddbmm": lambda x: torch.baddbmm(x[None, :, :3], x[None], x.t()[None]),
    "searchsorted by comparisons": lambda x: (x[:, :, None] > torch.tensor([-1.0, 0.0, 1.0])).sum(-1),
    "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 1:]),
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "erf and expm1": lambda x: torch.erf(x) + torch.expm1(x * 0.5),
    "pow": lambda x: x.abs().pow(1.5) + x.pow(2),
    "floor and frac": lambda x: x.floor() + x.frac() + x.trunc() + x.round(),
    "nan_to_num": lambda x: torch.nan_to_num(torch.where(x > 1, float("nan"), x), 0.5),
}

LAYERS: dict[str, Entry] = {
    **{name: module(make, *twice(*inputs)) for name, (make, inputs) in LAYERS_BY_NAME.items()},
    **{name: module(getattr(nn, name), *twice(r(3, 7))) for name in ACTIVATIONS},
    **{f"{name} as a form": function(f, *twice(r(3, 4))) for name, f in FORMS.items()},
}
HALVES: dict[str, Entry] = {
    f"{name} computed in f16": module(
        LAYERS_BY_NAME[name][0], *twice(*LAYERS_BY_NAME[name][1]), options=F16, tolerance=HALF
    )
    for name in IN_HALVES
} | {
    f"{name} of float16": module(_half(LAYERS_BY_NAME[name][0]), *_halves(LAYERS_BY_NAME[name][1]), tolerance=HALF)
    for name in IN_HALVES
}
PLACES: dict[str, Entry] = {f"{name}, in place": function(f, *twice(r(3, 4))) for name, f in IN_PLACE.items()}
