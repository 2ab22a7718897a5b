"""Constants that share storage are stored right, and what depends on constants alone is computed at export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ptegpu
from ptegpu.export import Exported, Lowered, MethodSource, export_with_account
from ptegpu.format import read_program


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def exported(module: nn.Module, *args: Any, dynamic: Any = None, delegate: bool = True) -> Exported[None]:
    """Checked against eager PyTorch, and without notes."""
    account = export_with_account(MethodSource(module, args, dynamic), delegate=delegate)
    assert [] == account.notes
    assert account.difference is not None
    return account


def operators(lowered: Lowered) -> set[str]:
    """Inside and outside of partitions, without the upload of constants."""
    return (set(lowered.delegated) | {o.operator for o in lowered.outside}) - {"et_vk.prepack.default"}


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda w: w[0],
    "select": lambda w: w[1],
    "rows": lambda w: w[1:3],
    "columns": lambda w: w[:, 2:4],
    "every_other": lambda w: w[:, ::2],
    "transposed": lambda w: w.t(),
    "part_transposed": lambda w: w[:, 1:3].t(),
    "expanded": lambda w: w[1:2].expand(3, 6),
    "filling_its_storage_twice": lambda w: w[:2].unsqueeze(0).expand(2, 2, 6),
}


class Views(nn.Module):
    """One tensor, seen in every way, as buffers, parameters and plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        w = noise(4, 6)
        self.names = []
        for name, view in VIEWS.items():
            self.register_buffer(f"buffer_{name}", view(w))
            self.register_parameter(f"parameter_{name}", nn.Parameter(view(w), False))
            setattr(self, f"plain_{name}", view(w))
            self.names += [f"{kind}_{name}" for kind in ("buffer", "parameter", "plain")]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: getattr(self, name) * x for name in self.names}


@pytest.mark.parametrize("delegate", [True, False])
def test_views_of_one_storage(delegate: bool) -> None:
    exported(Views(), torch.tensor(2.0), delegate=delegate)


class Rotary(nn.Module):
    """Tables from one storage, and q, k and v from one matrix."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(8.0).unsqueeze(1) * torch.tensor([1.0, 0.1])  # (positions, D / 2)
        cos, sin = torch.stack((angles.cos(), angles.sin())).repeat(1, 1, 2).unbind(0)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.q, self.k, self.v = noise(12, 4).chunk(3)

    def rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-b, a), dim=-1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (F.linear(x, w) for w in (self.q, self.k, self.v))
        return (self.rotated(q) @ self.rotated(k).transpose(-1, -2)).softmax(-1) @ v


def test_rotary_tables_and_slices_of_one_matrix() -> None:
    account = exported(Rotary(), noise(8, 4))
    sizes = sorted(len(data) for data in read_program(account.lowered.data).named_data.values())
    assert [4 * 4 * 4] * 3 + [8 * 4 * 4] * 2 == sizes  # bytes, each constant its own


class Positions(nn.Module):
    """A table of positions that is resized to the image, as in ViT and DINOv2."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(noise(1, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.interpolate(self.table, (5, 5), mode="bicubic")


class Shifted(nn.Module):
    """Indices into a table of relative positions, as in Swin."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.roll(x, (-1, 1), (0, 1)) * 2


class Nearest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, (5, 5), mode="nearest-exact") + 1


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(noise(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cross(x, self.w, dim=1)


@pytest.mark.parametrize(
    ("module", "shape", "left"),
    [
        (Positions, (2, 4, 5, 5), {"aten.add.Tensor"}),
        (Shifted, (4, 6), {"aten.index_select.default", "aten.mul.Tensor"}),
        (Nearest, (1, 2, 3, 3), {"aten.index.Tensor", "aten.add.Tensor", "aten.unsqueeze_copy.default"}),
        (Crossed, (4, 3), {"aten.index_select.default", "aten.mul.Tensor", "aten.sub.Tensor"}),
    ],
)
def test_the_constant_part_is_computed_at_export(
    module: Callable[[], nn.Module], shape: tuple[int, ...], left: set[str]
) -> None:
    account = exported(module(), noise(*shape))
    assert account.lowered.partitions
    assert left == operators(account.lowered)


def test_sizes_that_change_are_in_partitions_too() -> None:
    dims = {0: torch.export.Dim("height", max=9), 1: torch.export.Dim("width", max=9)}
    account = exported(Shifted(), noise(4, 6), dynamic=(dims,))
    assert account.lowered.partitions
    with ptegpu.load(account.lowered.data) as program:
        for x in (noise(7, 3), noise(1, 9)):
            torch.testing.assert_close(program(x), Shifted()(x))


class Bits(nn.Module):
    """Weights in 8 bits, dequantized in plain PyTorch at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("values", (noise(96, 64) * 40).to(torch.int8))
        self.register_buffer("scales", noise(96, 1).abs())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.values.float() * self.scales)


class Spread(nn.Module):
    """A large table out of a few numbers."""

    def forward(self, x: Tensor) -> Tensor:
        table = torch.arange(256.0).unsqueeze(1) * torch.arange(256.0)
        return x + table.sin()


@pytest.mark.parametrize(("module", "shape", "most"), [(Bits, (2, 64), 12_000), (Spread, (1, 256), 20_000)])
def test_files_do_not_grow(module: Callable[[], nn.Module], shape: tuple[int, ...], most: int) -> None:
    assert len(exported(module(), noise(*shape)).lowered.data) < most


class Summed(nn.Module):
    """The table is large, what is left of it is small."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (torch.arange(256.0).unsqueeze(1) * torch.arange(256.0)).sin().sum(0)


def test_what_is_left_counts() -> None:
    assert {"aten.add.Tensor"} == operators(exported(Summed(), noise(2, 256)).lowered)


class Masked(nn.Module):
    """Intermediate constants have other users."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((6, 6), -3.0).triu(1)
        return (x + mask) * mask.exp().sum(0)


def test_results_on_the_way() -> None:
    assert {"aten.add.Tensor", "aten.mul.Tensor"} == operators(exported(Masked(), noise(6, 6)).lowered)


class Counter(nn.Module):
    """Its buffer is a view, and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([[7.0, 7.0], [1.0, 2.0]])[1])

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 2


@pytest.mark.parametrize("delegate", [True, False])
def test_what_changes_is_no_constant(delegate: bool) -> None:
    account = exported(Counter(), torch.ones(2), delegate=delegate)
    with ptegpu.load(account.lowered.data) as program:
        assert [[4.0, 6.0], [6.0, 8.0]] == [program(torch.ones(2)).tolist() for _ in range(2)]


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(16)


def test_chance_is_no_constant() -> None:
    account = export_with_account(MethodSource(Random(), (torch.zeros(16),)))
    assert ["not checked: the module returns different results each time"] == account.notes
    with ptegpu.load(account.lowered.data) as program:
        assert not torch.equal(program(torch.zeros(16)), program(torch.zeros(16)))


class Tied(nn.Module):
    """The transpose of a weight belongs to a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(noise(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.t()


def test_transposed_weights_stay_part_of_linear_layers() -> None:
    assert {"aten.linear.default"} == operators(exported(Tied(), noise(3, 6)).lowered)


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean.copy_(noise(4))
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).relu().mean((2, 3)))


def test_norms_of_weights_become_part_of_them() -> None:
    left = {"et_vk.conv_with_clamp.default", "aten.mean.dim", "aten.linear.default"}
    assert left == operators(exported(Normalized(), noise(1, 2, 5, 5)).lowered)
