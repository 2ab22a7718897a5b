"""Exports the programs that the format tests read, next to itself; needs the `export` extra.

Each is small, so that every byte of its tables can be flipped in a test, and together they hold every kind of value,
instruction and storage that the exporter writes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.exir import ExecutorchBackendConfig, ExecutorchProgramManager, to_edge_transform_and_lower
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn import functional as F

HERE = Path(__file__).parent


class Mlp(nn.Module):
    """One delegate, constants in named data."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Cnn(nn.Module):
    """Two delegates with kernel calls between them, a channels_last input, lists of ints."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.head(F.max_pool2d(torch.relu(self.second(x)), 2).mean((2, 3)))


class Dynamic(nn.Module):
    """A dynamic length, symbolic ints across delegates, constants of delegates and of kernel calls in `.ptd` files."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.period = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # (1, T)
        x = self.embed(tokens)
        length = x.shape[1]
        total = torch.fmod(torch.cumsum(self.project(x), 1), self.period)
        return total.reshape(length, 2, 4).transpose(0, 1), torch.relu(x[:, : length - 1])


class Control(nn.Module):
    """No delegate: a branch, a buffer with an initial state, optional lists, strings, scalar outputs."""

    steps: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.full((1,), 3.0))
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        self.steps.add_(1)
        y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))
        left, right = torch.split(self.table[:, rows] + y[:, :2], [1, 1], dim=1)
        big = F.interpolate(y[None, None], scale_factor=(2.0, 2.0), mode="bilinear")
        return left, F.gelu(right, approximate="tanh"), big.flip([2, 3]), self.steps.clone(), 7


class Counting(nn.Module):
    """No delegate: what the host runs for want of a GPU kernel, for int64 arithmetic and for float64."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # x (3, 4), n (3) of int64
        mixed = torch.relu(self.linear(x)).masked_scatter(x > 0, x)
        return torch.softmax(mixed, -1) * 2, n * n + 1, x.double().sum()


def lower(programs: Any, *, delegate: bool = True, external: bool = False, **extra: Any) -> ExecutorchProgramManager:
    options = {"external_constants_max_data_bytes": 1 << 20} if external else {}
    partitioner = [VulkanPartitioner(options)] if delegate else None
    passes = [InitializedMutableBufferPass(["steps"])]
    edge = to_edge_transform_and_lower(programs, partitioner=partitioner, **extra)
    return edge.to_executorch(ExecutorchBackendConfig(passes=passes, external_constants=external))


def save(name: str, program: ExecutorchProgramManager) -> None:
    program.save(str(HERE / f"{name}.pte"))
    for number, data in enumerate(program._tensor_data.values()):
        (HERE / f"{name}-{number}.ptd").write_bytes(bytes(data))


def main() -> None:
    logging.getLogger().setLevel(logging.ERROR)
    torch.manual_seed(0)
    mlp, x = Mlp().eval(), torch.randn(2, 8)
    image = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    tokens, length = torch.arange(6)[None], {1: Dim("length", min=3, max=16)}
    save("mlp", lower(export(mlp, (x,))))
    save("cnn", lower(export(Cnn().eval(), (image,))))
    save("dynamic", lower(export(Dynamic().eval(), (tokens,), dynamic_shapes=(length,)), external=True))
    save("control", lower(export(Control().eval(), (torch.randn(3, 4), torch.tensor([0, 2]))), delegate=False))
    save("counting", lower(export(Counting().eval(), (torch.randn(3, 4), torch.arange(3))), delegate=False))
    scalars = {"get_vocab_size": 11, "get_name": "mlp", "get_scale": 0.5, "use_cache": True}
    save("methods", lower({"forward": export(mlp, (x,)), "encode": export(mlp.up, (x,))}, constant_methods=scalars))


if __name__ == "__main__":
    main()
