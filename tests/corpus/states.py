"""States: counters, means, caches, rings and recurrences, in every dtype, with every kind of write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from .making import HALF, Entry, R, ids, module, r, v

SETTLED = {"alias_buffer_mutations": True}


class Stateful(nn.Module):
    """A module with buffers that computes a function of itself and its input."""

    def __init__(self, f: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.f = f
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Any:
        return self.f(self, x)


def state(f: Callable[..., Any], *calls: tuple[Any, ...], tolerance: float = 1e-4, **buffers: Tensor) -> Entry:
    """Return an entry of a function of the module and x that writes these buffers."""
    return module(lambda: Stateful(f, **buffers), *calls, reset=True, tolerance=tolerance, options=SETTLED)


def add(m: Any, x: Tensor) -> Tensor:
    m.total.add_(x)
    return m.total * 2


def replaced(m: Any, x: Tensor) -> Tensor:
    before = m.last + 0
    m.last.copy_(x)
    return before


def decayed(m: Any, x: Tensor) -> Tensor:
    m.mean.mul_(0.9).add_(x * 0.1)
    return x - m.mean


def statistics(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    m.count.add_(1)
    delta = x - m.mean
    m.mean.add_(delta / m.count)
    m.squares.add_(delta * (x - m.mean))
    return m.mean + 0, m.squares / m.count


def shifted(m: Any, x: Tensor) -> Tensor:
    m.past.copy_(torch.cat([m.past[:, 1:], x], 1))
    return m.past.sum(1)


def recurrent(m: Any, x: Tensor) -> Tensor:
    m.h.copy_(torch.tanh(x @ m.w + m.h @ m.u))
    return m.h * 1


def largest(m: Any, x: Tensor) -> Tensor:
    m.top.copy_(torch.maximum(m.top, x))
    return m.top - x


def flagged(m: Any, x: Tensor) -> Tensor:
    m.seen.logical_or_(x > 1)
    return m.seen.float() * x


def counted(m: Any, x: Tensor) -> Tensor:
    m.n.add_(1)
    return x * m.n


def untouched(m: Any, x: Tensor) -> Tensor:
    m.n.add_(1)
    return x * 2


def conv(m: Any, x: Tensor) -> Tensor:
    frames = torch.cat([m.past, x], 2)
    m.past.copy_(frames[:, :, -2:])
    return F.conv1d(frames, m.w)


def scattered(m: Any, x: Tensor) -> Tensor:
    m.bins.scatter_add_(0, x, torch.ones_like(x, dtype=m.bins.dtype))
    return m.bins * 1


def put(m: Any, x: Tensor) -> Tensor:
    m.bins.index_put_((x,), torch.ones(3))
    return m.bins.cumsum(0)


def swapped(m: Any, x: Tensor) -> Tensor:
    a = m.a + 0
    m.a.copy_(m.b)
    m.b.copy_(a + x)
    return m.a - m.b


def twice_written(m: Any, x: Tensor) -> Tensor:
    m.total.add_(x)
    m.total.mul_(2)
    m.total.sub_(1)
    return m.total + 0


def read_before_and_after(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    before = m.total * 1
    m.total.add_(x)
    return before, m.total * 1


def filled(m: Any, x: Tensor) -> Tensor:
    before = m.total * 1
    m.total.zero_()
    m.total[0] = x[0]
    return before


def returned(m: Any, x: Tensor) -> Tensor:
    m.total.add_(x)
    return m.total


class Attention(nn.Module):
    """Attention with caches of keys and values, written at a position."""

    def __init__(self, kind: str, heads: int = 1) -> None:
        super().__init__()
        self.kind, self.heads = kind, heads
        self.qkv = nn.Linear(4 * heads, 12 * heads)
        self.register_buffer("k", torch.zeros(1, heads, 8, 4))
        self.register_buffer("v", torch.zeros(1, heads, 8, 4))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:  # (1, T, D), (T,) → (1, T, D)
        t = x.shape[1]
        q, k, v = (s.view(1, t, self.heads, 4).transpose(1, 2) for s in self.qkv(x).chunk(3, -1))
        if self.kind == "index_copy":
            self.k.index_copy_(2, position, k)
            self.v.index_copy_(2, position, v)
        else:
            self.k[:, :, position] = k
            self.v[:, :, position] = v
        mask = torch.arange(8)[None] <= position[:, None]
        y = F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask[None, None])
        return y.transpose(1, 2).reshape(1, t, -1)


def tokens(*steps: tuple[int, int], heads: int = 1) -> list[tuple[Any, ...]]:
    return [(r(1, t, 4 * heads), torch.arange(start, start + t)) for start, t in steps]


TIME = {1: Dim("t", min=1, max=8)}
POSITIONS = {0: Dim("t", min=1, max=8)}


class Steps(nn.Module):
    """A cell that keeps its state."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(3, 4)  # type: ignore[call-arg]
        self.register_buffer("h", torch.zeros(2, 4))
        self.register_buffer("c", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.cell, nn.LSTMCell):
            h, c = self.cell(x, (self.h, self.c))
            self.c.copy_(c)
        else:
            h = self.cell(x, self.h)
        self.h.copy_(h)
        return h * 2


THREE = [(r(3, 4),)] * 3
SUMS = {
    f"a sum in {str(d).removeprefix('torch.')}": state(
        add, *[(R((5,), d, 0, 5),)] * 3, total=torch.zeros(5, dtype=d), tolerance=HALF if d is torch.float16 else 1e-4
    )
    for d in (torch.float32, torch.float16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
}

STATES: dict[str, Entry] = {
    **SUMS,
    "a state that starts elsewhere": state(add, *THREE, total=torch.arange(12.0).view(3, 4)),
    "the input before": state(replaced, *THREE, last=torch.ones(3, 4)),
    "a decayed mean": state(decayed, *THREE, mean=torch.zeros(3, 4)),
    "statistics in three states": state(
        statistics, *THREE, count=torch.zeros(()), mean=torch.zeros(3, 4), squares=torch.zeros(3, 4)
    ),
    "frames that shift": state(shifted, *[(r(3, 1),)] * 5, past=torch.zeros(3, 4)),
    "a recurrence": state(recurrent, *THREE, h=torch.zeros(3, 4), w=torch.eye(4) * 0.7, u=torch.full((4, 4), 0.2)),
    "the largest so far": state(largest, *THREE, top=torch.full((3, 4), -9.0)),
    "a bool state": state(flagged, *THREE, seen=torch.zeros(3, 4, dtype=torch.bool)),
    "a counter": state(counted, *THREE, n=torch.zeros((), dtype=torch.int64)),
    "a counter in int32": state(counted, *THREE, n=torch.zeros(1, dtype=torch.int32)),
    "a counter in float32": state(counted, *THREE, n=torch.zeros(1)),
    "a state that no output needs": state(untouched, *THREE, n=torch.zeros(1)),
    "a streaming convolution": state(conv, *[(r(1, 3, 5),)] * 3, past=torch.zeros(1, 3, 2), w=torch.ones(2, 3, 3)),
    "a histogram": state(scattered, *[(ids(6, 4),)] * 3, bins=torch.zeros(6)),
    "marks by index_put": state(put, (v(0, 2, 4),), (v(1, 2, 3),), (v(5, 5, 5),), bins=torch.zeros(6)),
    "two states that trade places": state(swapped, *THREE, a=torch.zeros(3, 4), b=torch.ones(3, 4)),
    "a state that is written three times": state(twice_written, *THREE, total=torch.zeros(3, 4)),
    "a state read before and after": state(read_before_and_after, *THREE, total=torch.zeros(3, 4)),
    "a state that is cleared": state(filled, *THREE, total=torch.zeros(3, 4)),
    "a state that is returned": state(returned, *THREE, total=torch.zeros(3, 4)),
    "a cache by index_copy": module(
        lambda: Attention("index_copy"), *tokens((0, 1), (1, 1), (2, 1), (3, 1)), reset=True, options=SETTLED
    ),
    "a cache by index_put": module(
        lambda: Attention("index_put"), *tokens((0, 1), (1, 1), (2, 1), (3, 1)), reset=True, options=SETTLED
    ),
    "a cache of several heads": module(
        lambda: Attention("index_copy", 2), *tokens((0, 2), (2, 2), (4, 2), heads=2), reset=True, options=SETTLED
    ),
    "a cache of prompts and steps": module(
        lambda: Attention("index_copy"),
        *tokens((0, 4), (4, 1), (5, 3), (0, 8)),
        dynamic=(TIME, POSITIONS),
        reset=True,
        options=SETTLED,
    ),
    "a cache of prompts by index_put": module(
        lambda: Attention("index_put"),
        *tokens((0, 4), (4, 1), (5, 3)),
        dynamic=(TIME, POSITIONS),
        reset=True,
        options=SETTLED,
    ),
    "a GRU that keeps its state": module(lambda: Steps(nn.GRUCell), *[(r(2, 3),)] * 3, reset=True, options=SETTLED),
    "an LSTM that keeps its state": module(lambda: Steps(nn.LSTMCell), *[(r(2, 3),)] * 3, reset=True, options=SETTLED),
    "an RNN that keeps its state": module(lambda: Steps(nn.RNNCell), *[(r(2, 3),)] * 3, reset=True, options=SETTLED),
}
