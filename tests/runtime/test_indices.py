"""Indices and positions out of range: refused before anything runs where the host knows them, else as documented."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.cases import close
from tests.exporting import export
from tests.oracle import torch_operator
from torch import Tensor, nn
from torch.export import Dim

import ptegpu
from ptegpu.compiler.indices import FOLLOWED
from ptegpu.ops import REGISTRY

ROWS, WIDTH = 10, 4
GOOD = torch.tensor([[1, 9, 0]])


class Table(nn.Module):
    """A function of a table [10, 4] and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.table = nn.Parameter(torch.arange(1.0, 1 + ROWS * WIDTH).reshape(ROWS, WIDTH))

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.table, *inputs)


def refusal(program: ptegpu.Program, *inputs: Any) -> str:
    """Return the message of the error that inputs raise."""
    with pytest.raises(ptegpu.IndexOutOfRange) as error:
        program(*inputs)
    assert isinstance(error.value, IndexError) and isinstance(error.value, ptegpu.InvalidInput)
    return str(error.value)


def same(got: Any, want: Any) -> None:
    """Compare two tuples, or one tensor each."""
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        close(g, w.detach())


def load(module: nn.Module, inputs: tuple[Any, ...], *, delegate: bool = True, **options: Any) -> ptegpu.Program:
    torch_operator("et_vk.embedding_q4gsw.default")  # defines the namespace
    return ptegpu.load(export(module, inputs, delegate=delegate, **options))


PACKED = torch.arange(ROWS * WIDTH, dtype=torch.uint8).reshape(ROWS, WIDTH) * 5
SCALES = torch.rand(ROWS, 1) + 0.5

FOUR_BIT = PACKED, SCALES, None, -8, 7
# Operators that look up, and the lowest index of each.
OPERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "embedding": (lambda t, i: F.embedding(i, t), 0),
    "embedding_4bit": (lambda t, i: torch.ops.quantized_decomposed.embedding_4bit(*FOUR_BIT, i), 0),
    "gather": (lambda t, i: torch.gather(t, 0, i.long()), 0),
    "index_select": (lambda t, i: torch.index_select(t, 0, i.reshape(-1)), 0),
    "index.Tensor": (lambda t, i: t[i], -ROWS),
    "index_put": (lambda t, i: torch.index_put(t, (i,), torch.tensor(5.0)), -ROWS),
    "scatter.src": (lambda t, i: t.scatter(0, i.long(), t * 3), 0),
    "scatter.value": (lambda t, i: t.scatter(0, i.long(), 7.0), 0),
    "embedding_q4gsw": (lambda t, i: torch.ops.et_vk.embedding_q4gsw(PACKED, SCALES, 8, i, False), 0),
}


def operators(delegate: bool) -> list[str]:
    """List the operators; the exporter uses the last one only in delegates."""
    return list(OPERATORS) if delegate else list(OPERATORS)[:-1]


NAMES = {  # of the calls in messages: the exporter puts some into delegates
    True: [
        "aten.embedding.default #2 of delegate 0",
        "quantized_decomposed::embedding_4bit.out #0",
        "aten.gather.default #3 of delegate 0",
        "aten.index_select.default #5 of delegate 0",
        "aten::index.Tensor_out #1",
        "aten::index_put.out #5",
        "aten::scatter.src_out #2",
        "aten::scatter.value_out #3",
        "et_vk.embedding_q4gsw.default #6 of delegate 0",
    ],
    False: [
        "aten::embedding.out #0",
        "quantized_decomposed::embedding_4bit.out #1",
        "aten::gather.out #2",
        "aten::index_select.out #3",
        "aten::index.Tensor_out #4",
        "aten::index_put.out #6",
        "aten::scatter.src_out #7",
        "aten::scatter.value_out #8",
    ],
}


def of_all(names: Iterable[str]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function of a table and indices that applies every operator to its own indices."""
    return lambda t, *indices: tuple(OPERATORS[name][0](t, i) for name, i in zip(names, indices, strict=True))


@pytest.mark.parametrize("delegate", [True, False])
def test_an_index_out_of_range_is_refused(delegate: bool) -> None:
    names = operators(delegate)
    module = Table(of_all(names))
    good = [GOOD.clone() for _ in names]
    with load(module, tuple(good), delegate=delegate) as program:
        for k, name in enumerate(names):
            low = OPERATORS[name][1]
            for bad in (-11, -1, 10, 2**31 - 1, -(2**31)):
                arguments = [*good[:k], torch.tensor([[1, bad, 0]]), *good[k + 1 :]]
                if low <= bad < ROWS:
                    same(program(*arguments), module(*arguments))
                    continue
                expected = f"is out of range for {NAMES[delegate][k]}, which takes {low} to 9"
                assert f"input {k}: the index {bad} at [0, 1] {expected}" == refusal(program, *arguments)
            same(program(*good), module(*good))


MOVES: list[Callable[[Tensor], Tensor]] = [
    lambda i: i.reshape(3, 1).unsqueeze(0).permute(2, 0, 1),
    lambda i: i.reshape(3, 1).expand(3, 2),
    lambda i: i.to(torch.int32),
    lambda i: i.flip(1),
    lambda i: i[:, 1:],
    lambda i: i[0, 1],
    lambda i: i.split([1, 2], 1)[1],
    lambda i: i.repeat(2, 1).transpose(0, 1),
]


@pytest.mark.parametrize("delegate", [True, False])
def test_an_index_is_followed_through_moves_to_its_place_in_the_input(delegate: bool) -> None:
    module = Table(lambda t, *indices: tuple(F.embedding(move(i), t) for move, i in zip(MOVES, indices, strict=True)))
    good = [GOOD.clone() for _ in MOVES]
    with load(module, tuple(good), delegate=delegate) as program:
        same(program(*good), module(*good))
        for k in range(len(MOVES)):
            message = refusal(program, *good[:k], torch.tensor([[1, 10, 0]]), *good[k + 1 :])
            assert message.startswith(f"input {k}: the index 10 at [0, 1] is out of range for aten")
            assert message.endswith(", which takes 0 to 9")


@pytest.mark.parametrize("delegate", [True, False])
def test_values_that_do_not_reach_the_index_are_not_looked_at(delegate: bool) -> None:
    module = Table(lambda t, i: F.embedding(i[:, 1:], t) + i.float().sum())
    with load(module, (GOOD,), delegate=delegate) as program:
        indices = torch.tensor([[-100, 9, 0]])
        same(program(indices), module(indices))


@pytest.mark.parametrize("delegate", [True, False])
def test_what_is_computed_first_is_not_checked(delegate: bool) -> None:
    module = Table(lambda t, i: F.embedding(i.clamp(0, 9), t) + F.embedding(torch.where(i < 0, 0, i % 10), t))
    with load(module, (GOOD,), delegate=delegate) as program:
        indices = torch.tensor([[-100, 9, 33]])
        same(program(indices), module(indices))


@pytest.mark.parametrize("delegate", [True, False])
def test_the_smallest_of_several_tables_counts(delegate: bool) -> None:
    module = Table(lambda t, i: F.embedding(i, t) + F.embedding(i, t[:5] * 2) + F.embedding(i.clamp(0, 2), t[:3]))
    with load(module, (GOOD % 5,), delegate=delegate) as program:
        assert "the index 9 at [0, 1]" in refusal(program, GOOD)
        assert refusal(program, GOOD).endswith(", which takes 0 to 4")
        assert refusal(program, GOOD * 10).endswith(", which takes 0 to 9")  # the first operator that refuses


def test_a_lookup_that_nobody_needs_is_not_checked() -> None:
    def function(t: Tensor, i: Tensor) -> Tensor:
        F.embedding(i, t)
        return i + 1

    with load(Table(function), (GOOD,)) as program:
        assert torch.equal(program(GOOD * 9), GOOD * 9 + 1)


# What the kernels make of the indices (1, 25, -2).
NEAREST, WRAPPED = torch.tensor([[1, 9, 0]]), torch.tensor([[1, 9, 8]])
COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "embedding": lambda t: F.embedding(NEAREST, t),
    "embedding_4bit": lambda t: torch.ops.quantized_decomposed.embedding_4bit(*FOUR_BIT, NEAREST),
    "gather": lambda t: torch.gather(t, 0, WRAPPED),
    "index_select": lambda t: t[WRAPPED[0]],
    "index.Tensor": lambda t: t[WRAPPED],
    "index_put": lambda t: torch.index_put(t, (torch.tensor([1, 8]),), torch.tensor(5.0)),
    "scatter.src": lambda t: t.index_put((torch.tensor([1, 8]), torch.tensor([0, 2])), t[0, [0, 2]] * 3),
    "scatter.value": lambda t: t.index_put((torch.tensor([1, 8]), torch.tensor([0, 2])), torch.tensor(7.0)),
    "embedding_q4gsw": lambda t: torch.ops.et_vk.embedding_q4gsw(PACKED, SCALES, 8, NEAREST, False),
}


@pytest.mark.parametrize("delegate", [True, False])
def test_indices_that_the_gpu_computed_stay_within(delegate: bool) -> None:
    names = operators(delegate)
    module = Table(lambda t, i: of_all(names)(t, *[i * 3 - 2] * len(names)))
    with load(module, (GOOD.int(),), delegate=delegate) as program:
        assert len(program.method("forward").plans) == 1
        same(program(GOOD.int()), tuple(COMPUTED[name](module.table) for name in names))


def test_indices_that_the_host_computed_are_refused() -> None:
    module = Table(lambda t, i: F.embedding(i + 1, t))
    with load(module, (GOOD % 9,), delegate=False) as program:
        same(program(GOOD % 9), module(GOOD % 9))
        message = refusal(program, GOOD)
        assert message == "v3: the index 10 at [0, 1] is out of range for aten::embedding.out #1, which takes 0 to 9"


@pytest.mark.parametrize("delegate", [True, False])
def test_the_live_size_counts_not_the_maximum(delegate: bool) -> None:
    rows = Dim("rows", min=2, max=8)
    module = Table(lambda t, x, i: torch.index_select(x + 1, 0, i) * 2)
    inputs = (torch.randn(8, 3), torch.tensor([1, 7]))
    with load(module, inputs, delegate=delegate, dynamic_shapes=(({0: rows}, None),)) as program:
        for n in (8, 5, 8, 5, 2):
            x, last = torch.randn(n, 3), torch.tensor([0, n - 1])
            same(program(x, last), module(x, last))
            assert refusal(program, x, last + 1).startswith(f"input 1: the index {n} at [1] is out of range for aten")
            assert refusal(program, x, last + 1).endswith(f", which takes 0 to {n - 1}")


class Log(nn.Module):
    """Rows that are written into a buffer at given places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))

    def forward(self, where: Tensor, x: Tensor) -> Tensor:
        self.rows.index_put_((where,), x)
        return self.rows * 2


@pytest.mark.parametrize("delegate", [True, False])
def test_a_refused_call_changes_no_state(delegate: bool) -> None:
    inputs = (torch.tensor([1]), torch.ones(1, 3))
    eager = Log()
    with load(Log(), inputs, delegate=delegate) as program:
        for place in (2, 4, -4, -5, 0, 2):
            arguments = torch.tensor([place]), torch.randn(1, 3)
            if -4 <= place < 4:
                same(program(*arguments), eager(*arguments))
            else:
                refusal(program, *arguments)


class CountedLookup(nn.Module):
    """A state that changes on the host, whose int64 arithmetic it is, and then a lookup on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, i: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(n)
        return F.embedding(i.reshape(-1), self.table) + self.count.float(), self.count * 2


@pytest.mark.parametrize("shapes", [None, ({1: Dim("length", min=1, max=8)}, None)], ids=["static", "dynamic"])
def test_inputs_are_checked_before_the_host_changes_a_state(shapes: Any) -> None:
    eager = CountedLookup()
    n = torch.tensor([3])
    with load(copy.deepcopy(eager), (GOOD, n), delegate=False, dynamic_shapes=shapes) as program:
        for length in (3, 1, 2) if shapes else (3, 3):
            assert "the index 10 at [0, 0]" in refusal(program, GOOD[:, :length] * 10, n)
            same(program(GOOD[:, :length], n), eager(GOOD[:, :length], n))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, flag: Tensor, i: Tensor) -> Tensor:
        def looked_up(i: Tensor) -> Tensor:
            return F.embedding(i, self.table)

        def nothing(i: Tensor) -> Tensor:
            return torch.zeros(1, 3, WIDTH)

        return torch.cond(flag.sum() > 0, looked_up, nothing, (i,))


def test_a_branch_that_is_not_taken_is_not_checked() -> None:
    module, yes, no = Branch(), torch.ones(1), -torch.ones(1)
    with load(module, (yes, GOOD), delegate=False) as program:
        same(program(yes, GOOD), module(yes, GOOD))
        torch.testing.assert_close(program(no, GOOD * 10), torch.zeros(1, 3, WIDTH))
        assert "the index 10 at [0, 0]" in refusal(program, yes, GOOD * 10)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.tensor([0, 3, 4]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.index_select(x, 0, self.rows) * 2


@pytest.mark.parametrize("delegate", [True, False])
def test_a_constant_index_is_held_to_the_live_size(delegate: bool) -> None:
    module, rows = Constant(), Dim("rows", min=2, max=8)
    with load(module, (torch.randn(8, 3),), delegate=delegate, dynamic_shapes=({0: rows},)) as program:
        for n in (8, 4, 5):
            x = torch.randn(n, 3)
            if n > 4:
                same(program(x), module(x))
                continue
            message = refusal(program, x)
            assert message.startswith("constant ") and "the index 4 at [2] is out of range for aten" in message


def test_a_constant_index_that_can_never_be_right_is_refused_by_the_call() -> None:
    with load(Constant(), (torch.randn(4, 3),)) as program:
        assert "the index 4 at [2] is out of range for aten" in refusal(program, torch.randn(4, 3))


def test_a_tensor_on_the_device_is_not_read_back() -> None:
    module = Table(lambda t, i: (F.embedding(i, t), (i + 5).to(torch.int32)))
    with load(module, (GOOD.int(),)) as program:
        method = program.method("forward")
        assert method.in_one_plan
        first = method.start([GOOD.int().numpy()])
        before = program.device.counters.snapshot()
        second = method.start([first.resident()[1]])
        assert program.device.counters.snapshot().since(before).readbacks == 0
        rows = torch.tensor([[6, 9, 5]])  # of (6, 14, 5)
        np.testing.assert_array_equal(second.result()[0], F.embedding(rows, module.table).detach().numpy())


class Cached(nn.Module):
    """Attention over caches of 8 positions, in one operator or in three."""

    def __init__(self, written_together: bool) -> None:
        super().__init__()
        self.together = written_together
        self.register_buffer("keys", torch.zeros(1, 8, 2, 8))
        self.register_buffer("values", torch.zeros(1, 8, 2, 8))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        if self.together:
            return torch.ops.llama.sdpa_with_kv_cache(
                q, k, v, self.keys, self.values, start, q.shape[1], None, 0.0, True
            )
        torch.ops.llama.update_cache(k, self.keys, start)
        torch.ops.llama.update_cache(v, self.values, start)
        return torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True)


def queries(s: int) -> list[Tensor]:
    return [torch.randn(1, s, h, 8) for h in (4, 2, 2)]


@pytest.mark.parametrize("written_together, delegate", [(True, True), (False, True), (False, False)])
def test_a_position_from_which_the_rows_do_not_fit_is_refused(written_together: bool, delegate: bool) -> None:
    torch_operator("llama.custom_sdpa.default")  # defines the namespace
    length = {1: Dim("s", min=1, max=8)}
    shapes = (length, length, length, Dim.DYNAMIC)
    eager = Cached(written_together)
    with load(Cached(written_together), (*queries(5), 2), delegate=delegate, dynamic_shapes=shapes) as program:
        for s, start in [(5, 0), (1, 7), (1, 8), (3, 6), (2, -1), (8, 0), (3, 5), (1, 6)]:
            inputs = (*queries(s), start)
            if 0 <= start <= 8 - s:
                same(program(*inputs), eager(*inputs))
            else:
                message = refusal(program, *inputs)
                assert message.startswith(f"input 3: the position {start} is out of range for ")
                assert message.endswith(f", which takes 0 to {8 - s}")


class Rotary(nn.Module):
    """Query and key turned by rows of tables of 8 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.cos, self.sin = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, q: Tensor, k: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        first = start.item()
        torch._check(first >= 0)
        torch._check(first + q.shape[1] <= 8)
        return torch.ops.et_vk.apply_rotary_emb_hf(q, k, self.cos, self.sin, first)


def test_a_position_read_from_an_input_is_named_with_its_place() -> None:
    torch_operator("et_vk.apply_rotary_emb_hf.default")
    module, (q, k, _) = Rotary(), queries(3)
    with load(module, (q, k, torch.tensor([2]))) as program:
        for start in (0, 5):
            same(program(q, k, torch.tensor([start])), module(q, k, torch.tensor([start])))
        for start in (6, -1):
            message = refusal(program, q, k, torch.tensor([start]))
            assert message.startswith(f"input 2: the position {start} at [0] is out of range for ")
            assert message.endswith(", which takes 0 to 5")


class Row(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        torch._check(n < x.shape[0])
        return x.select(0, n) * 2


@pytest.mark.parametrize("delegate", [True, False])
def test_a_selected_row_that_is_not_there_does_not_fit_the_shape(delegate: bool) -> None:
    x = torch.randn(8, 3)
    with load(Row(), (x, 5), delegate=delegate, dynamic_shapes=(None, Dim.DYNAMIC)) as program:
        for n in (5, 0, 7):
            same(program(x, n), x[n] * 2)
        with pytest.raises(ptegpu.ShapeError) as error:
            program(x, 8)
        assert str(error.value).endswith(": index 8 is out of range for dimension 0 of [8, 3]")


def test_every_operator_that_moves_values_can_be_followed() -> None:
    moving = {d.steps for d in REGISTRY.values() if d.moves and d.view is None}
    assert moving == set(FOLLOWED)


def test_a_label_that_is_no_class_is_refused() -> None:
    torch_operator("et_vk.fused_ce.default")
    module = Table(lambda t, logits, labels: torch.ops.et_vk.fused_ce(logits, labels, 2.0))
    logits = torch.randn(2, 5)
    with load(module, (logits, torch.tensor([1, 4]))) as program:
        for labels in ([1, 4], [-100, 0]):
            same(program(logits, torch.tensor(labels)), module(logits, torch.tensor(labels)))
        message = refusal(program, logits, torch.tensor([0, 5]))
        assert message.startswith("input 1: the index 5 at [1] is out of range for et_vk.fused_ce.default #")


class Unserved(nn.Module):
    """Operators that run on the host."""

    def forward(self, x: Tensor, i: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        summed = torch.index_put(torch.zeros(4, dtype=torch.int64), (i,), i, True)
        filled = torch.index_put(y, (mask,), y[:1, :2].reshape(-1), False)
        seven = y.reshape(2, 2, 1, 1, 1, 1, 4)[i % 2, i % 2, i % 1, i % 1, i % 1, i % 1, i]
        return summed + 1, filled + 1, seven + 1


@pytest.mark.parametrize("delegate", [True, False])
def test_calls_that_the_gpu_does_not_take_run_on_the_host(delegate: bool) -> None:
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1, 2] = mask[3, 0] = True
    inputs = torch.randn(4, 4), torch.tensor([1, 3, 1]), mask
    with load(Unserved(), inputs, delegate=delegate) as program:
        same(program(*inputs), Unserved()(*inputs))
        message = refusal(program, inputs[0], torch.tensor([1, 4, 1]), mask)
        assert "aten.index_put.default: the index 4 at [1] is out of range: -4 to 3" in message


class Picked(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        picked = (x * 2)[mask]
        torch._check(picked.shape[0] <= 6)
        return picked + 1


@pytest.mark.parametrize("delegate", [True, False])
def test_a_mask_picks_as_many_as_it_says(delegate: bool) -> None:
    x, mask = torch.randn(6, 3), torch.tensor([True, False, True, True, False, False])
    with load(Picked(), (x, mask), delegate=delegate) as program:
        for chosen in (mask, ~mask, mask | True, mask & False, mask):
            same(program(x, chosen), Picked()(x, chosen))
