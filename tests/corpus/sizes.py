"""Sizes and positions that come from data: in static graphs by `.item()`, and as symbolic ints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from .making import Entry, R, function, ids, module, r, v


def item(p: Tensor, low: int, high: int, k: int = 0) -> int:
    """Return an element of `p` as a size, with its range low..high for the exporter."""
    i = p[k].item()
    torch._check(i >= low)
    torch._check(i <= high)
    return i  # type: ignore[return-value]


def by_item(f: Callable[[Tensor, int], Any], low: int, high: int, shape: tuple[int, ...] = (9, 8)) -> Entry:
    """Return an entry of a function of x and a value in low..high, with a call for each value."""
    calls = [(R(shape), v(i)) for i in (min(low + 2, high), *range(low, high + 1))]
    return function(lambda x, p: f(x, item(p, low, high)), *calls)


ITEMS: dict[str, Entry] = {
    "narrow": by_item(lambda x, i: x.narrow(0, i, 4) * 2, 0, 5),
    "narrow in dimension 1": by_item(lambda x, i: x.narrow(1, i, 3) + 1, 0, 5),
    "narrow, alone": by_item(lambda x, i: x.narrow(0, i, 4), 0, 5),
    "narrow to a length": by_item(lambda x, i: x.narrow(0, 1, i).exp(), 1, 8),
    "slice from the start": by_item(lambda x, i: x[:i].sum(0), 1, 9),
    "slice from the start, kept": by_item(lambda x, i: x[:i] * 3, 1, 9),
    "slice to the end": by_item(lambda x, i: x[i:] * 2, 0, 8),
    "slice to the end, summed": by_item(lambda x, i: x[i:].mean(0), 0, 8),
    "slice of both ends": by_item(lambda x, i: x[i : i + 3].abs(), 0, 6),
    "slice of both dimensions": by_item(lambda x, i: x[:i, :i].sum(), 1, 8),
    "slice with a step": by_item(lambda x, i: x[:i:2].sum(0), 1, 9),
    "slice by twice a value": by_item(lambda x, i: x[: 2 * i].sum(0), 1, 4),
    "slice by a sum": by_item(lambda x, i: x[: i + 2].amax(0), 1, 7),
    "slice before a softmax": by_item(lambda x, i: torch.softmax(x[:, :i], -1).amax(1), 1, 8),
    "slice before a product": by_item(lambda x, i: x[:, :i] @ x[:, :i].t(), 1, 8),
    "slice before cat": by_item(lambda x, i: torch.cat([x[:i], x[:2]], 0).sum(0), 1, 9),
    "slices cat together": by_item(lambda x, i: torch.cat([x[i:], x[:i]], 0) * 2, 1, 8),
    "slice from zero rows on": by_item(lambda x, i: x[:i].sum(0) + 1, 0, 9),
    "select": by_item(lambda x, i: x.select(0, i) * 2, 0, 8),
    "select in dimension 1": by_item(lambda x, i: x.select(1, i).exp(), 0, 7),
    "select by an index": by_item(lambda x, i: x[i].tanh(), 0, 8),
    "select of a row and a column": by_item(lambda x, i: x[i] * x[:, i].sum(), 0, 7),
    "view": by_item(lambda x, i: x[: 2 * i].view(i, 16).sum(0), 1, 4),
    "view of the rest": by_item(lambda x, i: x[:i].reshape(-1) * 2, 1, 9),
    "view in three dimensions": by_item(lambda x, i: x[:i].view(i, 2, 4).sum(1), 1, 9),
    "expand": by_item(lambda x, i: x[0].expand(i, 8) * 2, 1, 6),
    "repeat": by_item(lambda x, i: x[:1].repeat(i, 1).cumsum(0), 1, 6),
    "zeros of a size": by_item(lambda x, i: torch.zeros(i, 8) + x[0], 1, 6),
    "arange of a size": by_item(lambda x, i: torch.arange(i) * 2 + x[0, 0], 1, 6),
    "full of a size": by_item(lambda x, i: torch.full((i, 8), 2.5) * x[1], 1, 6),
    "pad by a size": by_item(lambda x, i: F.pad(x, (0, i)).sum(1), 0, 4),
    "the value itself": by_item(lambda x, i: x * i, 0, 5),
    "the value as an output": by_item(lambda x, i: (x[0] + i, i + 1), 0, 5),
    "the value as a float": by_item(lambda x, i: x / (i + 1) - i / 2, 0, 5),
    "linear of a slice": by_item(lambda x, i: F.linear(x[:i], torch.ones(3, 8)).relu(), 1, 9),
    "attention to a slice": by_item(
        lambda x, i: F.scaled_dot_product_attention(x[None, None, :2], x[None, None, :i], x[None, None, :i]), 1, 9
    ),
    "causal mask of a size": by_item(
        lambda x, i: x[:8].masked_fill(torch.arange(8)[None] > i, -1e9).softmax(-1), 0, 7, (9, 8)
    ),
    "layer norm of a slice": by_item(lambda x, i: F.layer_norm(x[:i], (8,)), 1, 9),
    "conv of a slice": by_item(lambda x, i: F.conv1d(x[None, :4, :i], torch.ones(2, 4, 3), padding=1).sum(2), 1, 8),
    "argmax of a slice": by_item(lambda x, i: x[:i].argmax(0), 1, 9),
    "max and where": by_item(lambda x, i: torch.where(x[:i] > 0, x[:i], x[:i] * 0.1).amax(0), 1, 9),
}


def two_items(x: Tensor, p: Tensor) -> Tensor:
    i, j = item(p, 0, 4), item(p, 1, 4, 1)
    return x.narrow(0, i, j).sum(0) * 2


def item_of_a_sum(x: Tensor, p: Tensor) -> Tensor:
    n = p.sum().item()
    torch._check(n >= 1)
    torch._check(n <= 9)
    return x[:n].sum(0)


def item_of_an_argmax(x: Tensor) -> Tensor:
    n = x[:, 0].argmax().item()
    torch._check(n >= 0)
    torch._check(n < 6)
    return x[n] * 2


def item_of_a_float(x: Tensor, s: Tensor) -> Tensor:
    return x * s[0].item()


def item_of_a_bool(x: Tensor, flag: Tensor) -> Tensor:
    return x * flag[0].item()


def split_by_an_item(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    i = item(p, 1, 8)
    return x[:i].sum(0), x[i:].sum(0)


class RowsOf(nn.Module):
    """A lookup of table rows from a position on, such as learnt positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 8))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        return x + self.table.narrow(0, item(p, 0, 7), 3)


class Cache(nn.Module):
    """A cache of keys, written at a position and read up to it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("keys", torch.zeros(8, 4))

    def forward(self, x: Tensor, p: Tensor) -> Tensor:  # (1, 4), (1,) → (8,) or fewer
        if self.way == "index_copy":
            self.keys.index_copy_(0, p, x)
        elif self.way == "index_put":
            self.keys[p] = x
        elif self.way == "narrow":
            self.keys.narrow(0, item(p, 0, 7), 1).copy_(x)
        else:
            i = item(p, 0, 7)
            self.keys[i : i + 1] = x
        if self.way == "read to it":
            return (self.keys[: item(p, 0, 7) + 1] @ x[0]).sum(0) * 2
        return self.keys @ x[0]


def positions(n: int = 5) -> list[tuple[Any, ...]]:
    return [(r(1, 4), v(i)) for i in (2, 0, 1, 7, 3)[:n]]


def sized(f: Callable[..., Any], *values: int) -> Entry:
    """Return an entry of a function of x and a symbolic int; the first value is traced."""
    return function(f, *((r(8, 3), n) for n in values), dynamic=(None, Dim.DYNAMIC))


SIZES: dict[str, Entry] = {
    **{f"{name}, by an item": entry for name, entry in ITEMS.items()},
    "narrow by two items": function(two_items, *((r(9, 4), v(i, j)) for i in (0, 2, 4) for j in (1, 3, 4))),
    "slice by the item of a sum": function(item_of_a_sum, *((r(9, 4), v(1, i)) for i in (3, 0, 8))),
    "select by the item of an argmax": function(item_of_an_argmax, (r(6, 3),), (r(6, 3),), (r(6, 3),), (r(6, 3),)),
    "a float item": function(item_of_a_float, (r(3, 4), v(1.5)), (r(3, 4), v(-0.25))),
    "a bool item": function(item_of_a_bool, (r(3, 4), v(True)), (r(3, 4), v(False))),
    "split by an item": function(split_by_an_item, *((r(9, 4), v(i)) for i in range(1, 9))),
    "rows of a table by an item": module(RowsOf, *((r(3, 8), v(i)) for i in (3, 0, 5, 7))),
    "index_select": function(lambda x, k: x.index_select(0, k) * 2, *((r(6, 3), ids(6, 4)) for _ in range(3))),
    "index_select in dimension 1": function(lambda x, k: x.index_select(1, k), *((r(4, 6), ids(6, 3)) for _ in "ab")),
    "gather": function(lambda x, k: x.gather(1, k) + 1, *((r(4, 6), ids(6, 4, 3)) for _ in "ab")),
    "take_along_dim": function(lambda x, k: x.take_along_dim(k, 0), *((r(6, 4), ids(6, 3, 4)) for _ in "ab")),
    "cache by index_copy": module(lambda: Cache("index_copy"), *positions(), reset=True),
    "cache by index_put": module(lambda: Cache("index_put"), *positions(), reset=True),
    "cache by narrow": module(lambda: Cache("narrow"), *positions(), reset=True),
    "cache by a slice": module(lambda: Cache("slice"), *positions(), reset=True),
    "cache read to an item": module(lambda: Cache("read to it"), *positions(), reset=True),
    "slice by an int": sized(lambda x, n: x[:n] * 2, 5, 0, 1, 8),
    "narrow by an int": sized(lambda x, n: x.narrow(0, n, 3) + 1, 2, 0, 5),
    "select by an int": sized(lambda x, n: x[n] * 2, 3, 0, 7),
    "arange of an int": sized(lambda x, n: torch.arange(n) + x[0, 0], 7, 2, 5),
    "arithmetic of an int": sized(lambda x, n: x * n + n // 2 - n % 3, 5, 2, 7),
    "an int and its double as outputs": sized(lambda x, n: (x[:n], n, 2 * n), 5, 2, 7),
    "expand by an int": sized(lambda x, n: x[0].expand(n, 3) * 2, 9, 2, 5),
    "two ints": function(
        lambda x, n, m: x[:n, :m].sum(0),
        *((r(6, 6), n, m) for n, m in ((4, 3), (2, 6), (6, 2))),
        dynamic=(None, Dim.DYNAMIC, Dim.DYNAMIC),
    ),
}
