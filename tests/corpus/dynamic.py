"""Dynamic sizes: batch × length in all kinds of operators, empty ones, derived ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from tests.zoo.modules import Block, Encoder

from .making import Entry, R, function, ids, module, r

BATCH, LENGTH = Dim("batch", min=1, max=4), Dim("length", min=2, max=12)
BT = {0: BATCH, 1: LENGTH}
SHAPES = ((3, 9), (4, 12), (1, 2), (1, 12), (4, 2), (2, 5))


def grown(f: Callable[[Tensor], Any], *rest: int, **options: Any) -> Entry:
    """Return an entry of a function of (batch, length, *rest) at six sizes."""
    return function(f, *((r(b, t, *rest),) for b, t in SHAPES), dynamic=(BT,), **options)


def layer(make: Callable[[], nn.Module], *rest: int, **options: Any) -> Entry:
    """Return an entry of a module of (batch, length, *rest)."""
    return module(make, *((r(b, t, *rest),) for b, t in SHAPES), dynamic=(BT,), **options)


def text(make: Callable[[], nn.Module]) -> Entry:
    return module(make, *((ids(20, b, t),) for b, t in SHAPES), dynamic=(BT,))


def attention(x: Tensor) -> Tensor:
    h = x.unflatten(-1, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(h, h * 0.5, h, is_causal=True).transpose(1, 2).flatten(2)


def masked(x: Tensor) -> Tensor:
    t = x.shape[1]
    scores = x @ x.transpose(1, 2)
    return scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf")).softmax(-1)


def rotary(x: Tensor) -> Tensor:
    t = x.shape[1]
    angles = torch.arange(t, dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def pooled(x: Tensor, m: Tensor) -> Tensor:
    return (x * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1)


class Positions(nn.Module):
    """Embeddings of tokens plus learnt positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) + self.places(torch.arange(x.shape[1]))


class Gru(nn.Module):
    """A GRU with dynamic batch and length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)[0]
        return y


def images(make: Callable[[], nn.Module], *sizes: tuple[int, int, int]) -> Entry:
    dims = {0: BATCH, 2: Dim("height", min=4, max=12), 3: Dim("width", min=4, max=14)}
    return module(make, *((r(b, 3, h, w),) for b, h, w in sizes), dynamic=(dims,))


IMAGES = ((2, 8, 9), (4, 12, 14), (1, 4, 4), (3, 5, 13))
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax over the length": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum over the length": lambda x: x.sum(1),
    "mean over the batch": lambda x: x.mean(0),
    "max over the length": lambda x: tuple(x.max(1)),
    "argmax over the length": lambda x: x.argmax(1),
    "cumsum over the length": lambda x: x.cumsum(1),
    "std over the length": lambda x: x.std(1),
    "sort over the length": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(2, 1)[0],
    "transposed": lambda x: x.transpose(0, 1) * 2,
    "flattened": lambda x: x.flatten(0, 1) + 1,
    "flattened to one": lambda x: x.flatten() * 2,
    "reshaped": lambda x: x.reshape(x.shape[0], x.shape[1] * 2, 4).sum(2),
    "split and cat": lambda x: torch.cat([s * (k + 1) for k, s in enumerate(x.split(2, -1))], 1),
    "stacked": lambda x: torch.stack([x, x * 2], 2),
    "padded": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "rolled": lambda x: x.roll(1, 1),
    "flipped": lambda x: x.flip(1) - x,
    "the last of the length": lambda x: x[:, -1] * 2,
    "expanded": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x,
    "repeated": lambda x: x.repeat(1, 2, 1),
    "repeated in place": lambda x: x.repeat_interleave(2, 1),
    "outer product": lambda x: x @ x.transpose(1, 2),
    "einsum": lambda x: torch.einsum("btd,bsd->bts", x, x * 0.5),
    "causal attention": attention,
    "causal mask": masked,
    "rotary positions": rotary,
    "scaled by the length": lambda x: x * x.shape[1] / x.shape[0],
    "the sizes as outputs": lambda x: (x * 2, x.shape[0], x.shape[1] + 1),
    "layer norm": lambda x: F.layer_norm(x, (8,)),
    "normalised": lambda x: F.normalize(x, dim=-1),
    "interpolated": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2.0, mode="nearest"),
    "conv1d": lambda x: F.conv1d(x.transpose(1, 2), torch.ones(3, 8, 3) / 8, padding=1),
    "ones like it": lambda x: torch.ones_like(x).cumsum(1) * x,
    "an arange": lambda x: x + torch.arange(x.shape[1])[None, :, None],
    "a tril": lambda x: torch.ones(x.shape[1], x.shape[1]).tril() @ x,
    "a comparison of positions": lambda x: (torch.arange(x.shape[1]) < 3)[None, :, None] * x,
}
OF_THREE: dict[str, Callable[[Tensor], Any]] = {  # the exporter treats results of length 1 separately
    "all but the last": lambda x: x[:, :-1] - x[:, 1:],
    "every second": lambda x: x[:, ::2] * 2,
}
EMPTY = {0: Dim("n", min=0, max=6)}


def empty(f: Callable[[Tensor], Any], *rest: int) -> Entry:
    """Return an entry of a function of a tensor that may have no rows."""
    return function(f, *((r(n, *rest),) for n in (3, 0, 6, 1)), dynamic=(EMPTY,))


N = Dim("n", min=1, max=5)
AUTO: Sequence[Any] = ({0: Dim.AUTO, 1: Dim.AUTO},)

DYNAMIC: dict[str, Entry] = {
    **{f"{name}, at every size": grown(f, 8) for name, f in FUNCTIONS.items()},
    **{
        f"{name}, from three on": function(
            f,
            *((r(b, t, 8),) for b, t in ((3, 9), (4, 12), (1, 3))),
            dynamic=({0: BATCH, 1: Dim("length", min=3, max=12)},),
        )
        for name, f in OF_THREE.items()
    },
    "linear, at every size": layer(lambda: nn.Linear(8, 3), 8),
    "two linears, at every size": layer(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), 8),
    "a block of a transformer, at every size": layer(lambda: Block(8, 2), 8),
    "an encoder, at every size": text(lambda: Encoder(1, 8, 2, 20)),
    "an embedding, at every size": text(lambda: nn.Embedding(20, 6)),
    "positions, at every size": text(Positions),
    "a GRU, at every batch": module(Gru, *((r(b, 5, 4),) for b in (3, 4, 1)), dynamic=({0: BATCH},)),
    "a mean of what is real, at every size": function(
        pooled, *((r(b, t, 4), R((b, t), torch.float32)) for b, t in SHAPES), dynamic=(BT, BT)
    ),
    "a sum of two, at every size": function(
        lambda x, y: x * y + 1, *((r(b, t), r(b, t)) for b, t in SHAPES), dynamic=(BT, BT)
    ),
    "lengths of two kinds, at every size": function(
        lambda x, y: x @ y.transpose(1, 2),
        *((r(b, t, 4), r(b, s, 4)) for b, t, s in ((2, 5, 3), (4, 12, 7), (1, 2, 1), (3, 2, 7))),
        dynamic=(BT, {0: BATCH, 1: Dim("other", min=1, max=7)}),
    ),
    "conv2d, at every size": images(lambda: nn.Conv2d(3, 4, 3, padding=1), *IMAGES),
    "strided conv2d, at every size": images(lambda: nn.Conv2d(3, 4, 3, 2, 1), *IMAGES),
    "a small network, at every size": images(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        *IMAGES,
    ),
    "upsampled, at every size": images(lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), *IMAGES),
    "transposed conv2d, at every size": images(lambda: nn.ConvTranspose2d(3, 2, 2, 2), *IMAGES),
    "group norm, at every size": images(lambda: nn.GroupNorm(3, 3), *IMAGES),
    "channel statistics, at every size": images(lambda: nn.InstanceNorm2d(3), *IMAGES),
    "a size that is twice another": function(
        lambda x, y: x.repeat(2, 1) + y, *((r(n, 3), r(2 * n, 3)) for n in (3, 5, 1)), dynamic=({0: N}, {0: 2 * N})
    ),
    "a size that is one more": function(
        lambda x, y: F.pad(x, (0, 0, 0, 1)) + y,
        *((r(n, 3), r(n + 1, 3)) for n in (3, 5, 1)),
        dynamic=({0: N}, {0: N + 1}),
    ),
    "three sizes": function(
        lambda x: x.transpose(0, 2).softmax(-1),
        *((r(*s),) for s in ((2, 3, 4), (5, 5, 5), (1, 1, 1), (5, 1, 3))),
        dynamic=({0: N, 1: Dim("m", min=1, max=5), 2: Dim("k", min=1, max=5)},),
    ),
    "no rows, elementwise": empty(lambda x: x * 2 + 1, 3),
    "no rows, linear": empty(lambda x: F.linear(x, torch.ones(2, 3)), 3),
    "no rows, softmax": empty(lambda x: x.softmax(-1), 3),
    "no rows, summed": empty(lambda x: x.sum(0), 3),
    "no rows, cat": empty(lambda x: torch.cat([x, torch.ones(2, 3)], 0), 3),
    "no rows, transposed": empty(lambda x: x.t() * 2, 3),
    "no rows, flattened": empty(lambda x: x.flatten() + 1, 3),
    "no rows, product": empty(lambda x: x @ torch.ones(3, 2), 3),
    "no rows, inner product": empty(lambda x: x.t() @ x, 3),
    "a fixed size of none": function(lambda x, y: torch.cat([x, y], 0) * 2, (r(0, 3), r(2, 3)), (r(0, 3), r(2, 3))),
    "an empty slice": function(lambda x: (x[2:2], x * 2), (r(3, 4),), (r(3, 4),)),
    "batch one and more": function(
        lambda x: x.squeeze(1) * x.shape[0], *((r(n, 1, 3),) for n in (3, 1, 5)), dynamic=({0: N},)
    ),
}
UNBOUNDED: dict[str, Entry] = {
    f"{name}, without an upper bound": function(
        f, *((r(*s),) for s in ((10, 10), (3, 7), (1, 10), (10, 2))), dynamic=AUTO, bounded=False
    )
    for name, f in {
        "abs": lambda x: x.abs(),
        "a sum": lambda x: x.sum(1) * 2,
        "a product": lambda x: x @ x.t(),
        "a softmax": lambda x: x.softmax(-1),
    }.items()
}
