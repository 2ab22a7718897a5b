"""Modules lowered by ExecuTorch itself, which leaves out or adds things that a reader does not expect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.exporting import cache_patterns, export, quiet
from torch import nn
from torch.export import Dim

import ptegpu
from ptegpu.export.backend import VkGraphBuilder, VulkanPartitioner, keep_unread_inputs, to_edge_transform_and_lower
from ptegpu.format import DelegateCall, read_program
from ptegpu.format.delegate import read_delegate


def lowered(module: nn.Module, args: tuple[Any, ...], partitioner: Any) -> bytes:
    """Lower a module like ExecuTorch, without the steps that `ptegpu export` adds."""
    cache_patterns()
    with quiet():
        program = torch.export.export(module.eval(), args)
        return bytes(to_edge_transform_and_lower(program, partitioner=[partitioner]).to_executorch().buffer)


class Views(nn.Module):
    """Two halves of one storage."""

    def __init__(self) -> None:
        super().__init__()
        first, second = torch.arange(24.0).reshape(2, 3, 4).unbind(0)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.first + self.second


def test_constants_that_are_views_of_one_storage_are_refused() -> None:
    data = lowered(Views(), (torch.ones(3, 4),), VulkanPartitioner())
    with pytest.raises(ptegpu.InvalidProgram) as error:
        ptegpu.load(data)
    assert error.value.reason == (
        "constant 0 holds 96 bytes, its tensor float32[3, 4] needs 48: it is a view of a larger tensor, which the "
        "exporter wrote in full; clone such tensors before exporting, or use `ptegpu export`"
    )


def test_tied_weights_share_one_key() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x)))

    module, x = Tied(), torch.ones(2, 4)
    data = lowered(module, (x,), VulkanPartitioner())
    assert len(read_program(data).named_data) == 1
    with ptegpu.load(data) as program:
        np.testing.assert_allclose(program(x.numpy()), module(x).detach().numpy(), atol=1e-6)


class Unused(nn.Module):
    """Sorting ends a partition. The size goes into the next one, where two views become one that does not need it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (1, n, 8)
        n = x.shape[1]
        y = torch.sort(x.relu().reshape(n * 2, 4), 1)[0]
        return y.exp().reshape(n, 8, 1).reshape(1, -1) + 1


def test_an_input_that_the_blob_leaves_out_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """ExecuTorch's own exporter writes such files; ours keeps the inputs that nothing reads."""
    keep_unread_inputs()
    original = VkGraphBuilder.process_placeholder_node
    monkeypatch.setattr(VkGraphBuilder, original.__name__, original.__wrapped__)
    module, x = Unused(), torch.randn(1, 5, 8)
    data = export(module, (x,), dynamic_shapes=({1: Dim("n", min=2, max=8)},))
    (method,) = read_program(data).methods
    last = [i for i in method.chains[0] if isinstance(i, DelegateCall)][-1]
    blob = read_delegate(method.delegates[last.delegate].blob)
    assert (1, 1, 3) == (len(blob.inputs), len(blob.outputs), len(last.args))  # a tensor, an int, and the result
    with ptegpu.load(data) as program:
        for n in (5, 2, 8):
            x = torch.randn(1, n, 8)
            np.testing.assert_allclose(program(x.numpy()), module(x).numpy(), rtol=1e-5)


class Later(nn.Module):
    """The partition's result gets memory that another value had before."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(torch.sort(x, -1)[0])


@pytest.mark.parametrize("module", [nn.Linear(8, 4), Later()], ids=["alone", "later"])
def test_a_program_for_another_backend_names_it(module: nn.Module) -> None:
    with quiet():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    data = lowered(module, (torch.ones(2, 8),), XnnpackPartitioner())
    with pytest.raises(ptegpu.UnsupportedProgram) as error:
        ptegpu.load(data)
    assert str(error.value) == (
        "method forward calls the backend XnnpackBackend; ptegpu runs VulkanBackend and programs without a delegate: "
        "export with VulkanPartitioner or WebGPUPartitioner"
    )
