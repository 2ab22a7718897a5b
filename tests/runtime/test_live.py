"""One graph at every live size: models against PyTorch, growing and shrinking, also after an error in between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import to_edge_transform_and_lower
from tests.cases import close
from tests.exporting import export
from tests.zoo.modules import Encoder
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import ptegpu
from ptegpu.plan.resolve import Resolver, choices_at
from ptegpu.plan.save import to_bytes


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 6) → (B, 3)
        return torch.log_softmax(self.b(torch.relu(self.a(x))), dim=-1)


class Convolutional(nn.Module):
    """Padding, strides and pooling over a height and a width that both change."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1, stride=2, groups=8)
        self.c = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (1, 3, H, W)
        x = torch.relu(self.a(x))
        x = nn.functional.max_pool2d(x, 2)
        x = torch.relu(self.c(self.b(nn.functional.pad(x, (1, 0, 1, 0)))))
        return x.mean((2, 3))


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape)


MODELS: dict[str, tuple[nn.Module, Callable[..., torch.Tensor], dict[int, tuple[int, int]]]] = {
    "batch": (Perceptron(), lambda b: torch.randn(b, 6), {0: (1, 9)}),
    "sequence": (Encoder(), lambda t: ids(1, t), {1: (2, 24)}),
    "batch and sequence": (Encoder(layers=1), ids, {0: (1, 4), 1: (2, 12)}),
    "height and width": (Convolutional(), lambda h, w: torch.randn(1, 3, h, w), {2: (6, 20), 3: (6, 18)}),
}


@pytest.mark.parametrize("delegate", [True, False], ids=["delegated", "undelegated"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_at_every_size(name: str, delegate: bool) -> None:
    module, make, bounds = MODELS[name]
    module.eval()
    ranges = list(bounds.values())
    dims = {d: Dim(f"d{d}", min=low, max=high) for d, (low, high) in bounds.items()}
    example = make(*(high - 1 for _, high in ranges))
    with ptegpu.load(export(module, (example,), dynamic_shapes=(dims,), delegate=delegate)) as program:
        rng = random.Random(name)
        sizes = [tuple(low for low, _ in ranges), tuple(high for _, high in ranges)]
        sizes += [tuple(rng.randint(low, high) for low, high in ranges) for _ in range(10)]
        rng.shuffle(sizes)
        for k, size in enumerate(sizes):
            x = make(*size)
            close(program(x), module(x).detach(), 1e-4)
            if k % 4 == 3:
                with pytest.raises(ptegpu.InvalidInput):
                    program(make(*(high + 1 for _, high in ranges)))
                close(program(x), module(x).detach(), 1e-4)


def counters(program: Any) -> Any:
    return program.device.counters.snapshot()


@pytest.mark.parametrize("name", MODELS)
def test_sizes_never_seen_make_nothing_once_a_program_is_prepared(name: str) -> None:
    module, make, bounds = MODELS[name]
    ranges = list(bounds.values())
    dims = {d: Dim(f"d{d}", min=low, max=high) for d, (low, high) in bounds.items()}
    example = make(*(high - 1 for _, high in ranges))
    with ptegpu.load(export(module.eval(), (example,), dynamic_shapes=(dims,))) as program:
        program.prepare()
        program(make(*(high for _, high in ranges)))  # the largest results are read through a staging buffer
        before, rng = counters(program), random.Random(name)
        for _ in range(40):
            program(make(*(rng.randint(low, high) for low, high in ranges)))
        counted = program.device.counters.since(before)
        assert (0, 0, 0) == (counted.buffers_created, counted.bind_groups_created, counted.pipelines_created)
        assert [0] == [engine.extended for engine in program._methods["forward"].runners.values()]


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "most"), [(2, 1 << 18), (64, 64)])  # of 64, few rows have kernels of their own
def test_a_bundle_with_two_dimensions_of_512_runs_at_every_size(columns: int, most: int) -> None:
    module, rng = nn.Linear(columns, 2).eval(), random.Random(0)
    dims = {0: Dim("b", max=512), 1: Dim("t", max=512)}
    data = to_bytes(ptegpu.compile(export(module, (torch.ones(2, 3, columns),), dynamic_shapes=(dims,))))
    sizes = [(rng.randint(1, 512), rng.randint(1, 512)) for _ in range(2000)]
    sizes += [(b, t) for b in range(1, 9) for t in (*range(1, 9), 512)]
    with ptegpu.load(data) as program:
        (plan,) = program.method("forward").plans
        resolver = Resolver(plan)
        for b, t in sizes:
            at = resolver.at([(b, t, columns)], lambda _input, _element: 0)
            assert at is not None and not plan.families[at.family].refusal, (b, t)
            assert not [c.refusal for c in choices_at(plan, at) if c.refusal], (b, t)
            if b * t <= most:
                x = torch.randn(b, t, columns)
                close(program(x), module(x).detach(), 1e-4)


class Attending(nn.Module):
    """Attention of two heads, whose views tell only that products of sizes are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # (B, T, 8), (B, S, 8)
        b, t, s = *x.shape[:2], y.shape[1]
        q, k = self.q(x).view(b, t, 2, 4).transpose(1, 2), self.k(y).view(b, s, 2, 4).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).reshape(b, t, 8)


class Products(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # (B, T, 8), (B, S, 8)
        return torch.softmax(x @ y.transpose(1, 2), -1) @ y


class Joined(nn.Module):
    """A module with kernels for some eighty kinds of sizes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # (B, T, 8), (B, S, 8)
        return torch.cat([x, y], 1).softmax(1).mean(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "most"),
    [(Attending(), (64, 64, 64)), (Products(), (200, 200, 300)), (Joined(), (100, 333, 500))],
    ids=["attention", "products", "joined"],
)
def test_a_bundle_with_three_dimensions_runs_at_every_size(module: nn.Module, most: tuple[int, int, int]) -> None:
    rng = random.Random(0)
    b, t, s = (Dim(name, max=n) for name, n in zip("bts", most, strict=True))
    inputs = (torch.ones(3, 4, 8), torch.ones(3, 5, 8))
    data = to_bytes(ptegpu.compile(export(module.eval(), inputs, dynamic_shapes=({0: b, 1: t}, {0: b, 1: s}))))
    with ptegpu.load(data) as program:
        (plan,) = program.method("forward").plans
        resolver = Resolver(plan)
        small = list(itertools.product(range(1, 9), repeat=3))
        for sizes in (*small, *(tuple(rng.choice((1, 2, n - 1, n, rng.randint(1, n))) for n in most) for _ in small)):
            x, y = ((sizes[0], n, 8) for n in sizes[1:])
            at = resolver.at([x, y], lambda _input, _element: 0)
            assert at is not None and not plan.families[at.family].refusal, sizes
            assert not [c.refusal for c in choices_at(plan, at) if c.refusal], sizes
        for sizes in ((1, 1, 1), (8, 8, 1), (1, 8, 3), (2, 5, 2), (1, 1, 6), most[:1] + (3, 2)):
            arguments = (torch.randn(sizes[0], sizes[1], 8), torch.randn(sizes[0], sizes[2], 8))
            close(program(*arguments), module(*arguments).detach(), 1e-4)


class Counting(nn.Module):
    """Scores of all rows with all rows, and a state that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T) → (B, B)
        self.calls.add_(1)
        return torch.softmax(x @ x.t(), -1) + self.calls[0]


def test_dimensions_without_an_upper_bound_start_small_and_grow() -> None:
    """Vulkan's lowering writes 16,384 for each: a gibibyte for x, and as much for the scores."""
    dynamic = {0: Dim.AUTO, 1: Dim.AUTO}
    exported = torch.export.export(Counting(), (torch.randn(10, 10),), dynamic_shapes=(dynamic,))
    data = to_edge_transform_and_lower(exported, partitioner=[VulkanPartitioner()]).to_executorch().buffer
    module = Counting()
    with ptegpu.load(data) as program:
        buffers = [b for plan in program.method("forward").plans for b in plan.buffers]
        assert sum(b.nbytes for b in buffers) < 1 << 26
        for size in [(10, 10), (3, 7), (0, 5), (1, 1), (500, 30), (30, 900), (600, 2), (2, 16384), (4, 4)]:
            x = torch.randn(size) / size[1] if size[1] else torch.randn(size)
            close(program(x), module(x), 1e-4)
        with pytest.raises(ptegpu.LimitExceeded, match="16384"):
            program(torch.zeros(16384, 16384))
        x = torch.randn(5, 5)
        close(program(x), module(x), 1e-4)


def test_calls_leave_a_plan_as_it_was() -> None:
    module, x = Perceptron().eval(), torch.randn(4, 6)
    with ptegpu.load(export(module, (x,))) as program:
        (plan,) = program.method("forward").plans
        for _ in range(3):
            program(x)
        (after,) = program.method("forward").plans
        assert after is plan
        assert () == plan.rows  # nothing in it depends on sizes


def test_replays_are_bit_identical() -> None:
    module, x = Encoder().eval(), ids(1, 9)
    with ptegpu.load(export(module, (x,))) as program:
        first = program(x)
        for _ in range(100):
            assert torch.equal(program(x), first)


class Shapes(nn.Module):
    """Symbolic ints in views, slices, expansions, ranges and fills; one is also a result."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        b, t, d = x.shape
        y = x.view(b * t, d)[: b * t - 1]
        z = torch.arange(t, dtype=x.dtype).view(1, t, 1).expand(b, t, d) + torch.full((b, 1, 1), 2.0)
        return torch.cat([y, z.reshape(-1, d)]), b * t + 1


@pytest.mark.parametrize("delegate", [True, False], ids=["delegated", "undelegated"])
def test_symbolic_ints_everywhere(delegate: bool) -> None:
    module = Shapes()
    dims = {0: Dim("b", min=1, max=4), 1: Dim("t", min=2, max=7)}
    with ptegpu.load(export(module, (torch.randn(3, 5, 4),), dynamic_shapes=(dims,), delegate=delegate)) as program:
        for b, t in ((4, 7), (1, 2), (2, 7), (3, 3), (1, 7), (4, 2)):
            x = torch.randn(b, t, 4)
            got, count = program(x)
            want, expected = module(x)
            torch.testing.assert_close(got, want)
            assert expected == count


def read_int(at: torch.Tensor, low: int, high: int) -> int:
    n = at[0].item()
    torch._check(n >= low)
    torch._check(n <= high)
    return n


class Sliced(nn.Module):
    """Sizes and offsets that are read from a tensor; every input is static."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:  # x (6, 4), at (1)
        n = read_int(at, 0, 6)
        short = read_int(at.clamp(max=3), 0, 3)
        return x.narrow(0, short, 3) * 2, x[:n].sum(0), x[n:].sum(0), x[:n] * 2, torch.cat([x[n:], x[:n]])


class Indexed(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = read_int(at, 1, 5)
        tail = x[-n:]
        flat = x.view(-1)[: n * 4].view(n, 4)
        return x.select(0, n) + 1, x.index_select(0, torch.arange(n)) * 2, tail * 2, flat.softmax(0), flat @ flat.T


class Cached(nn.Module):
    """Keys at a position that is read from a tensor, and attention over those so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(6, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:  # x (2, 4)
        n = read_int(at, 0, 4)
        self.keys.index_copy_(0, torch.arange(2) + at[0], x)
        prefix = self.keys[: n + 2]
        return torch.softmax(x @ prefix.T, -1) @ prefix


@pytest.mark.parametrize("delegate", [True, False], ids=["delegated", "undelegated"])
@pytest.mark.parametrize(
    ("module", "rows", "values"),
    [(Sliced(), 6, range(7)), (Indexed(), 6, range(1, 6)), (Cached(), 2, range(5))],
    ids=["slices", "indices", "cache"],
)
def test_sizes_that_are_read_from_data_in_a_static_graph(
    module: nn.Module, rows: int, values: range, delegate: bool
) -> None:
    x = torch.randn(rows, 4)
    data = export(module, (x, torch.tensor([2])), delegate=delegate)
    for source in (data, to_bytes(ptegpu.compile(data))):
        with ptegpu.load(source) as program:
            state = {k: v.clone() for k, v in module.state_dict().items()}
            for n in (*values, *reversed(values)):
                torch.testing.assert_close(program(x, torch.tensor([n])), module(x, torch.tensor([n])))
            module.load_state_dict(state)


class LiveBranch(nn.Module):
    """A branch on the amount of data, and an operator that only the host has (masked_scatter)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = (x * 2).masked_scatter(x > 0, -x)[:, :2] + x.shape[0]
        return torch.cond(x.sum() > x.shape[0], lambda a: a * 2, lambda a: a - 1, (mixed,))


@pytest.mark.parametrize("delegate", [True, False], ids=["delegated", "undelegated"])
def test_branches_and_host_operators_follow_live_sizes(delegate: bool) -> None:
    module = LiveBranch()
    dims = {0: Dim("b", min=2, max=6)}
    with ptegpu.load(export(module, (torch.randn(3, 5),), dynamic_shapes=(dims,), delegate=delegate)) as program:
        for n in (6, 2, 5, 3, 6):
            for x in (torch.ones(n, 5), -torch.ones(n, 5) + torch.randn(n, 5) * 0.1):
                torch.testing.assert_close(program(x), module(x))


class Tail(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.cat([x[n:] * 2, x[:1]]).sum(0)


def test_a_live_dimension_of_zero() -> None:
    module, x = Tail(), torch.randn(4, 3)
    dims = (None, torch.export.Dim.DYNAMIC)
    with ptegpu.load(export(module, (x, 2), dynamic_shapes=dims, delegate=False)) as program:
        for n in (2, 4, 0, 3, 4):
            close(program(x, n), module(x, n))
