"""Programs with int64, masks, tables and bfloat16: exact where it matters, and one plan where the GPU does the work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import device
from tests.exporting import export
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import ptegpu
from ptegpu.plan.save import to_bytes
from ptegpu.portable import PORTABLE

BIG = 2**40
LENGTH = Dim("length", min=2, max=12)
EITHER = pytest.mark.parametrize("delegate", [True, False], ids=["partitions", "undelegated"])


def ids(n: int) -> torch.Tensor:
    return torch.randint(0, 9, (1, n))


def check(program: ptegpu.Program, module: nn.Module, *inputs: Any) -> None:
    got, want = program(*inputs), module(*inputs)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        torch.testing.assert_close(g, w.detach(), atol=1e-5, rtol=1e-5)


class Buckets(nn.Module):
    """Relative positions as in T5: log 0 is −inf, which becomes the least int64 and is not selected."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.biases = nn.Embedding(9, 4), nn.Embedding(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        here = torch.arange(ids.shape[1])
        distance = here[None, :] - here[:, None]
        side = (distance > 0).to(torch.int64) * 8
        distance = distance.abs()
        far = 4 + (torch.log(distance.float() / 4) / 2.0 * 4).to(torch.int64)
        bucket = side + torch.where(distance < 4, distance, torch.minimum(far, torch.full_like(far, 7)))
        x = self.tokens(ids)
        return torch.softmax(x @ x.mT + self.biases(bucket)[..., 0], -1) @ x


class Positions(nn.Module):
    """Positions counted over a mask, as in RoBERTa."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 4), nn.Embedding(14, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = ids.ne(1).to(torch.int32)
        return self.tokens(ids) + self.places((torch.cumsum(mask, 1) * mask).long() + 1)


@EITHER
@pytest.mark.parametrize("module", [Buckets, Positions])
def test_int64_that_the_gpu_cannot_compute_is_one_plan_still(module: type[nn.Module], delegate: bool) -> None:
    instance = module().eval()
    with ptegpu.load(export(instance, (ids(9),), dynamic_shapes=({1: LENGTH},), delegate=delegate)) as program:
        for n in (9, 2, 12, 9, 5):
            check(program, instance, ids(n))
        assert 1 == len(program.method("forward").plans)


class Shifted(nn.Module):
    """Windows as in Swin: a roll, a mask by the window of each position, and reflected edges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.roll(self.conv(x), (-1, -1), (2, 3))
        part = torch.zeros(1, 1, 4, 4)
        part[:, :, -1] = 1
        part[:, :, :, -1] += 2
        part = part.reshape(16)
        mask = torch.where(part[:, None] == part[None, :], 0.0, -10.0)
        flat = x.flatten(2)
        return torch.softmax(flat.mT @ flat + mask, -1)


@EITHER
def test_what_depends_on_no_input_is_computed_at_load(delegate: bool) -> None:
    module, x = Shifted().eval(), torch.randn(1, 2, 4, 4)
    with ptegpu.load(export(module, (x,), delegate=delegate)) as program:
        check(program, module, x)
        assert program.method("forward").in_one_plan


class Shares(Buckets):
    """Positions relative to the length, so they differ for each length."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        here = torch.arange(ids.shape[1]) * 15 // ids.shape[1]
        bucket = torch.log(here.double() + 1).to(torch.int64)
        return self.tokens(ids) + self.biases(bucket)


def test_what_depends_on_sizes_is_computed_once_per_size(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Shares().eval()
    name = "aten.log.default"
    counted: list[int] = []
    kernel = PORTABLE[name]
    real = kernel.function
    object.__setattr__(kernel, "function", lambda *a: counted.append(1) or real(*a))
    monkeypatch.setitem(PORTABLE, name, kernel)
    try:
        with ptegpu.load(export(module, (ids(9),), dynamic_shapes=({1: LENGTH},), delegate=False)) as program:
            for n, expected in ((9, 1), (9, 1), (5, 2), (9, 2), (5, 2)):
                check(program, module, ids(n))
                assert expected == len(counted)
    finally:
        object.__setattr__(kernel, "function", real)


class SizesOut(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.shape[0]) * BIG


def test_a_remembered_result_is_the_callers_own() -> None:
    x = np.zeros(4, np.float32)
    shapes = ({0: Dim("n", min=2, max=8)},)
    with ptegpu.load(export(SizesOut(), (torch.zeros(4),), dynamic_shapes=shapes, delegate=False)) as program:
        program(x)[:] = 7
        np.testing.assert_array_equal(np.arange(4) * BIG, program(x))


class Chosen(nn.Module):
    """The row selected by a state, which is then incremented."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(1, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = self.n.item()
        torch._check(k >= 0)
        torch._check(k < 4)
        row = torch.exp(x)[k]
        self.n.add_(1)
        return row * 2


def test_the_item_of_a_state_can_be_read() -> None:
    module, x = Chosen(), torch.randn(4, 3)
    with ptegpu.load(export(Chosen(), (x,), delegate=False)) as program:
        for _ in range(3):
            check(program, module, x)
        program.reset()
        check(program, Chosen(), x)


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Embedding(9, 4)

    def forward(self, ids: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        return self.weight(ids * far)


def test_an_index_beyond_int32_is_out_of_range() -> None:
    module, inputs = Rows(), (ids(5), torch.tensor([1]))
    with ptegpu.load(export(module, inputs, delegate=False)) as program:
        check(program, module, *inputs)
        message = r"is out of range for aten::embedding.out #\d+, which takes 0 to 8"
        with pytest.raises(ptegpu.IndexOutOfRange, match=message):
            program(torch.full((1, 5), 3), torch.tensor([2**40]))
        check(program, module, *inputs)


class Applied(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: torch.Tensor) -> Any:
        return self.function(a)


MOVES: dict[str, Any] = {
    "clamp": lambda a: a.clamp(-5, 2**34),
    "clamp within 32 bits": lambda a: a.clamp(-5, 9),
    "sort": lambda a: tuple(a.sort()),
    "topk": lambda a: tuple(a.topk(2)),
    "max": lambda a: (a.max(), *a.max(0)),
    "min": lambda a: (a.min(), a.amin(0), torch.minimum(a, a.flip(0))),
    "argmax": lambda a: (a.argmax(), a.argmin()),
    "cat": lambda a: torch.cat([a, a.flip(0)]),
    "stack": lambda a: torch.stack([a, a]),
    "comparisons": lambda a: (a > 3, a == a.flip(0), a <= -(2**31)),
    "float": lambda a: a.float() / 2,
    "where": lambda a: torch.where(a > 3, a, a.flip(0)),
    "gather": lambda a: a.gather(0, torch.tensor([3, 0, 1])),
    "index_select": lambda a: a.index_select(0, torch.tensor([3, 0])),
    "slices and views": lambda a: (a[1:3], a.view(2, 2).t(), a[None].expand(3, 4), a.roll(1)),
    "into host arithmetic and back": lambda a: (a.flip(0) // 3).sort()[0].float(),
}
EDGES = [2**31 - 1, -(2**31)], [2**31, -(2**31) - 1], [2**40, -(2**40)], [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("name", MOVES)
def test_int64_inputs_beyond_32_bits_are_exact_outside_a_delegate(name: str) -> None:
    module = Applied(MOVES[name])
    data = export(module, (torch.tensor([1, 2, 3, 4]),), delegate=False)
    bundle = to_bytes(ptegpu.compile(data, targets=device().target))
    for source in (data, bundle):
        with ptegpu.load(source, device=device()) as program:
            for first, last in EDGES:
                a = torch.tensor([first, 7, last, -5])
                got, want = program(a), module(a)
                pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
                assert all(g.dtype == w.dtype and torch.equal(g, w) for g, w in pairs), (name, first, last)


@pytest.mark.parametrize("value", [3000000000, -3000000000, 2**31, -(2**31) - 1, 2**40])
@pytest.mark.parametrize("delegate", [True, False])
def test_int64_is_padded_with_numbers_beyond_32_bits(value: int, delegate: bool) -> None:
    module = Applied(lambda a: F.pad(a, (1, 2), value=value))
    data = export(module, (torch.tensor([1, 2, 3, 4]),), delegate=delegate)
    with ptegpu.load(data, device=device()) as program:
        for a in (torch.tensor([1, 2, 3, 4]), torch.tensor([BIG, -7, 3, -BIG])):
            assert torch.equal(program(a), module(a))


SYMBOLS: dict[str, Any] = {
    "mul": lambda a: a + a[0].item() * 3000000000,
    "add": lambda a: a * (a[0].item() + 3000000000),
    "sub": lambda a: a - (a[1].item() - 6000000000),
    "floordiv": lambda a: a + (a[0].item() * 2**40) // 3,
    "neg": lambda a: a + -(a[0].item() * 3000000000),
    "two symbols": lambda a: a + a[0].item() * 100000 * (a[1].item() * 10000),
    "float64": lambda a: a.double() * (a[0].item() * 3000000000),
}


@pytest.mark.parametrize("name", SYMBOLS)
@pytest.mark.parametrize("delegate", [True, False])
def test_symbolic_ints_beyond_32_bits_are_exact(name: str, delegate: bool) -> None:
    module = Applied(SYMBOLS[name])
    data = export(module, (torch.tensor([1, 2, 3, 4]),), delegate=delegate)
    with ptegpu.load(data, device=device()) as program:
        for a in (torch.tensor([1, 2, 3, 4]), torch.tensor([-5, 9, 3, 4]), torch.tensor([7, BIG // 2**12, 3, BIG])):
            got, want = program(a), module(a)
            assert got.dtype == want.dtype and torch.equal(got, want), (name, a)


def test_int64_beyond_32_bits_is_refused_where_large_weights_follow() -> None:
    module = nn.Sequential(Applied(torch.Tensor.float), nn.Linear(4, 2**17))
    with ptegpu.load(export(module, (torch.tensor([1, 2, 3, 4]),), delegate=False), device=device()) as program:
        with pytest.raises(ptegpu.InvalidInput, match="the int64 value 1099511627776 does not fit int32"):
            program(torch.tensor([1, BIG, 3, 4]))


def test_bfloat16_is_computed_on_the_gpu_and_rounded_as_pytorch_does() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)).bfloat16()
    x = torch.randn(3, 8).bfloat16()
    with ptegpu.load(export(module, (x,))) as program:
        assert program.method("forward").in_one_plan
        got, want = program(x), module(x).detach()
    assert torch.bfloat16 is got.dtype
    step = 2.0**-8  # between neighbours, relative
    torch.testing.assert_close(got.float(), want.float(), atol=0, rtol=2 * step)


class Mixed(nn.Module):
    """A cast to bfloat16 and back loses what bfloat16 has no bits for."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.bfloat16()
        return y.float(), F.pad(y, (1, 0)).float()


def test_a_cast_to_bfloat16_rounds() -> None:
    module, x = Mixed(), torch.tensor([[1.00390625, 1.01171875, -3.14159265, 1e-3, float("inf"), float("nan")]])
    with ptegpu.load(export(module, (x,))) as program:
        for got, want in zip(program(x), module(x), strict=True):
            torch.testing.assert_close(got, want, atol=0, rtol=0, equal_nan=True)


class Counted(nn.Module):
    """int64 arithmetic on results of the GPU with a known range: positions, counts, and values derived from them."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        best = torch.argmax(x.flatten(1), 1)
        row, column = best // x.shape[2], best % x.shape[2]
        positive = x > 0
        return row, column, positive.sum((1, 2)), positive.long().cumsum(2) * 3 - 1, (7 - 2 * row).abs().clamp(0, 5)


@EITHER
def test_int64_that_is_proved_to_fit_is_computed_on_the_gpu(delegate: bool) -> None:
    module, shapes = Counted(), ({0: Dim("batch", min=1, max=5)},)
    with ptegpu.load(export(module, (torch.randn(3, 4, 6),), dynamic_shapes=shapes, delegate=delegate)) as program:
        for n in (3, 1, 5):
            check(program, module, torch.randn(n, 4, 6))
        assert program.method("forward").in_one_plan


class Branches(nn.Module):
    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))


def test_bfloat16_comes_out_of_a_branch() -> None:
    module, x = Branches(), torch.tensor([1.5, -3.0, 0.25]).bfloat16()
    with ptegpu.load(export(module, (x, torch.ones(1)), delegate=False)) as program:
        for flag in (torch.ones(1), -torch.ones(1)):
            check(program, module, x, flag)
