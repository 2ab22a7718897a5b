"""Structured inputs and results: dicts, lists, numbers, None; results that are inputs, repeated, or constant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from .making import Entry, R, function, ids, r, twice

N = Dim("n", min=1, max=5)
STRUCTURES: dict[str, Entry] = {
    "a dict": function(lambda x: {"sum": x.sum(0), "twice": x * 2}, *twice(r(3, 4))),
    "a dict of dicts": function(lambda x: {"a": {"b": x + 1, "c": x.sum()}, "d": x * 2}, *twice(r(3, 4))),
    "a dict in no order": function(lambda x: {"z": x + 1, "a": x * 2, "m": x.exp()}, *twice(r(3, 4))),
    "a list": function(lambda x: [x + 1, x * 2], *twice(r(3, 4))),
    "a tuple of one": function(lambda x: (x + 1,), *twice(r(3, 4))),
    "a list of one": function(lambda x: [x + 1], *twice(r(3, 4))),
    "tuples in lists": function(lambda x: [(x + 1, x.sum(0)), (x * 2,)], *twice(r(3, 4))),
    "lists in dicts": function(lambda x: {"layers": [x + k for k in range(3)], "last": x * 3}, *twice(r(3, 4))),
    "None between": function(lambda x: (x + 1, None, x * 2), *twice(r(3, 4))),
    "None in a dict": function(lambda x: {"a": x + 1, "b": None}, *twice(r(3, 4))),
    "numbers": function(lambda x: (x + 1, 3, 2.5, True), *twice(r(3, 4))),
    "an input as it came": function(lambda x: (x, x * 2), *twice(r(3, 4))),
    "only an input as it came": function(lambda x, y: (y, x), *twice(r(3, 4), r(2))),
    "a result twice": function(lambda x: ((y := x * 2), y), *twice(r(3, 4))),
    "a result and its view": function(lambda x: ((y := x * 2), y.t(), y.view(-1)), *twice(r(3, 4))),
    "a constant beside": function(lambda x: (torch.arange(4), x + 1), *twice(r(3, 4))),
    "an input that nothing needs": function(lambda x, y: x * 2, *twice(r(3, 4), r(2))),
    "a dict of inputs": function(lambda d: d["a"] + d["b"] * 2, *twice({"a": r(3, 4), "b": r(4)})),
    "a list of inputs": function(lambda xs: xs[0] @ xs[1] + xs[2], *twice([r(3, 4), r(4, 2), r(2)])),
    "a tuple in a dict of inputs": function(
        lambda d, x: {"y": d["p"][0] * x + d["p"][1]}, *twice({"p": (r(3, 4), r(4))}, r(3, 4))
    ),
    "a dict that changes its size": function(
        lambda d: {"y": d["x"] * 2, "n": d["x"].shape[0]},
        *(({"x": r(n, 3)},) for n in (3, 1, 5)),
        dynamic=({"x": {0: N}},),
    ),
    "a scalar tensor": function(lambda x: x.sum(), *twice(r(3, 4))),
    "a scalar input": function(lambda x, s: x * s, *twice(r(3, 4), r())),
    "five inputs": function(lambda a, b, c, d, e: a @ b + c * d - e, *twice(r(3, 4), r(4, 2), r(2), r(3, 2), r(1))),
    "outputs of many dtypes": function(
        lambda x, k: (x > 0, x.argmax(1), k * 2, x.half(), x.to(torch.int32), k.to(torch.uint8)),
        *twice(r(3, 4), ids(9, 5)),
        tolerance=1e-2,
    ),
    "ten outputs": function(lambda x: tuple(x[k] * (k + 1) for k in range(10)), *twice(r(10, 4))),
    "a tensor of rank six": function(lambda x: x.permute(5, 4, 3, 2, 1, 0) * 2, *twice(r(1, 2, 3, 2, 1, 2))),
    "a bool output": function(lambda x: x.isfinite() & (x > 0), *twice(r(3, 4))),
}


def _unpacked(x: Tensor) -> Any:
    a, b = x.unbind(0)
    return {"first": a, "rest": [b, a + b]}


def _masked(x: Tensor) -> Tensor:
    return (x * 2).masked_scatter(x > 0, x.exp())


def _host_between(x: Tensor) -> Tensor:
    return _masked(x.relu() - x.sigmoid()).softmax(-1)


def _host_twice(x: Tensor) -> Tensor:
    return _masked(_masked(x + 1).tanh() * 2).sum(0) + 1


def _int64_between(x: Tensor, k: Tensor) -> Tensor:
    return (x.exp() + 1) * (k * k // 3).float() - x.sigmoid()


def _sorted_between(x: Tensor) -> Tensor:
    return (x.tanh() * 3).sort(-1)[0].softmax(-1) + 1


def _cumulative_between(x: Tensor) -> Tensor:
    return (x.relu() + 1).cumprod(0).log().sigmoid() @ torch.ones(4, 2)


def _apart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return _masked(x.tanh()).exp(), _masked(y.sigmoid()).log()


def _long(x: Tensor) -> Tensor:
    for _ in range(3):
        x = _masked(x.tanh() + 0.5).sigmoid() - 0.5
    return x


DELEGATES: dict[str, Entry] = {
    "unbind to a dict": function(_unpacked, *twice(r(2, 4))),
    "the host between": function(_host_between, *twice(r(3, 4))),
    "the host twice": function(_host_twice, *twice(r(3, 4))),
    "the host three times": function(_long, *twice(r(3, 4))),
    "int64 between": function(_int64_between, *twice(r(3, 4), R((3, 4), torch.int64))),
    "a sort between": function(_sorted_between, *twice(r(3, 4))),
    "a product between": function(_cumulative_between, *twice(r(3, 4))),
    "two that are apart": function(_apart, *twice(r(3, 4), r(3, 4))),
    "the host first": function(lambda x: _masked(x).sigmoid() * 2, *twice(r(3, 4))),
    "the host last": function(lambda x: _masked(x.sigmoid() - 0.5), *twice(r(3, 4))),
    "only the host": function(lambda x: x.masked_scatter(x > 0, x), *twice(r(3, 4)), *twice(r(3, 4))),
    "the host at every size": function(
        _host_between, *((r(n, 4),) for n in (3, 1, 5, 2)), dynamic=({0: Dim("n", min=1, max=5)},)
    ),
    "two hosts at every size": function(
        _host_twice, *((r(n, 4),) for n in (3, 1, 5, 2)), dynamic=({0: Dim("n", min=1, max=5)},)
    ),
}
