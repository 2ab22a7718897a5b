"""Control flow: branches by data, nested, with several results; loops that the exporter supports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch.export import Dim

from .making import Entry, R, function, module, r, v

BOTH = [(torch.full((3, 4), s) + torch.arange(4.0),) for s in (1.0, -9.0, 0.5, -4.0)]


def by_sum(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))


def then_more(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.exp(), lambda a: a.abs(), (x * 0.5,)).sum(0) + 1


def two_results(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda a: (a * 2, a.sum(0)), lambda a: (a - 1, a.amax(0)), (x,))


def nested(x: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return torch.cond(a.amax() > 3.2, lambda b: b * 2, lambda b: b * 3, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a - 1, (x,))


def in_a_row(x: Tensor) -> Tensor:
    y = torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))
    return torch.cond(y.amin() > -9, lambda a: a + 10, lambda a: a * a, (y,))


def by_a_flag(x: Tensor, flag: Tensor) -> Tensor:
    return torch.cond(flag, lambda a: a.tanh(), lambda a: a.relu(), (x,))


def by_an_int(x: Tensor, n: Tensor) -> Tensor:
    return torch.cond(n.sum() > 2, lambda a: a @ a.t(), lambda a: a[:3, :3] * 2, (x,))


def by_any(x: Tensor) -> Tensor:
    return torch.cond((x > 3).any(), lambda a: a.softmax(-1), lambda a: a.neg(), (x,))


def of_ints(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a * 3, lambda a: a // 2, (x,))


def of_constants(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a + torch.arange(4.0), lambda a: a * 2, (x,))


def by_size(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > x.shape[0], lambda a: a * 2, lambda a: a - 1, (x,))


def two_operands(x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(x.sum() > y.sum(), lambda a, b: a - b, lambda a, b: b @ a.t() @ a, (x, y))


def mapped(x: Tensor) -> Tensor:
    return map_over(lambda a: a.cumsum(0) * 2, x)


def mapped_with_another(x: Tensor, w: Tensor) -> Tensor:
    return map_over(lambda a, b: a @ b, x, w)


class Experts(nn.Module):
    """A choice between two layers by the input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: self.left(a), lambda a: self.right(a).relu(), (x,))


class Deep(nn.Module):
    """A trunk, a branch and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.head = nn.Linear(4, 4), nn.Conv1d(3, 3, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.trunk(x)
        z = torch.cond(x.sum() > 0, lambda a: self.one(a[None])[0], lambda a: a.flip(0), (y,))
        return self.head(torch.relu(z) + y)


class Remembers(nn.Module):
    """A branch that depends on a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n.add_(1)
        return torch.cond(self.n > 2, lambda a: a * 10, lambda a: a + 1, (x,))


SIGNS = [(R((3, 4), torch.int64, 0, 9),), (R((3, 4), torch.int64, -9, 0),)]
ROWS = {0: Dim("rows", min=2, max=6)}
CONTROL: dict[str, Entry] = {
    "cond by a sum": function(by_sum, *BOTH),
    "cond between operators": function(then_more, *BOTH),
    "cond with two results": function(two_results, *BOTH),
    "cond in cond": function(nested, *BOTH),
    "cond after cond": function(in_a_row, *BOTH),
    "cond by a flag": function(by_a_flag, (r(3, 4), torch.tensor(True)), (r(3, 4), torch.tensor(False))),
    "cond by an int": function(by_an_int, (r(3, 4), v(1, 3)), (r(3, 4), v(1, 1))),
    "cond by any": function(by_any, *BOTH),
    "cond of ints": function(of_ints, *SIGNS),
    "cond of int32": function(of_ints, *((R((3, 4), torch.int32, s, s + 9),) for s in (0, -9))),
    "cond with a constant": function(of_constants, *BOTH),
    "cond by a size": function(
        by_size, *((torch.full((n, 4), s),) for n, s in ((3, 1.0), (2, -1.0), (6, 0.1), (5, 2.0))), dynamic=(ROWS,)
    ),
    "cond of two operands": function(two_operands, *[(r(3, 4), r(3, 4))] * 4),
    "cond of layers": module(Experts, *BOTH),
    "cond between layers": module(Deep, *BOTH),
    "cond by a state": module(Remembers, *[(r(3, 4),)] * 4, reset=True),
    "map": function(mapped, *[(r(3, 4),)] * 2),
    "map with another": function(mapped_with_another, *[(r(3, 4), r(4, 2))] * 2),
}
