"""Linear layers of many experts, each exported as one operator of ptegpu's own, and the choice of experts.

A weight concatenates the rows of all experts. Called as they are, layers compute in plain PyTorch, one expert at a
time, and serve as their own reference. Importing this module registers the operators with PyTorch and with the
partitioner, which then accepts them in partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from .backend import OpFeatures, ops, torch, utils, vulkan_supported_ops
from .layers import GroupedWeight, dequantize_groups, quantize_rows

_LIBRARY = torch.library.Library("ptegpu", "FRAGMENT")


def _fake_linear(x: Tensor, weight: Tensor, *operands: Tensor | int) -> Tensor:
    experts, count = operands[-2:]
    assert isinstance(experts, Tensor) and isinstance(count, int)
    return x.new_empty((*experts.shape, weight.shape[0] // count))


def _fake_top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], k)), x.new_empty((x.shape[0], k), dtype=torch.int32)


def _register(name: str, schema: str, fake: Callable[..., Any]) -> None:
    _LIBRARY.define(f"{name}{schema}")
    torch.library.register_fake(f"ptegpu::{name}", fake, lib=_LIBRARY)
    vulkan_supported_ops[getattr(ops.edge.ptegpu, name).default] = OpFeatures(
        inputs_dtypes=utils.ALL_T,
        outputs_dtypes=utils.ALL_T,
        inputs_storage=utils.CONTIGUOUS_ANY,
        supports_resize=True,
        supports_prepacking=True,
    )


_register("linear_experts", "(Tensor x, Tensor weight, Tensor experts, int count) -> Tensor", _fake_linear)
_register(
    "linear_experts_q8",
    "(Tensor x, Tensor weight, Tensor scales, Tensor experts, int count) -> Tensor",
    _fake_linear,
)
_register(
    "linear_experts_q4",
    "(Tensor x, Tensor weight, Tensor scales, int group, Tensor experts, int count) -> Tensor",
    _fake_linear,
)
_register("top_experts", "(Tensor x, int k) -> (Tensor, Tensor)", _fake_top)


def top_experts(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and their indices, int32."""
    if torch.compiler.is_exporting():
        return torch.ops.ptegpu.top_experts(x, k)
    values, indices = torch.topk(x, k)
    return values, indices.int()


def _linear(x: Tensor, chosen: Tensor, weights: Callable[[int], Tensor]) -> Tensor:
    """Multiply x (S, K) or (S, A, K) by the weights (N, K) of the chosen experts (S, A): (S, A, N)."""
    x = x.unsqueeze(1).expand(*chosen.shape, -1) if x.dim() == 2 else x
    masks = {expert: chosen == expert for expert in chosen.unique().tolist()}
    products = {expert: F.linear(x[mask], weights(expert)) for expert, mask in masks.items()}
    y = x.new_empty((*chosen.shape, next(iter(products.values())).shape[1]))
    for expert, mask in masks.items():
        y[mask] = products[expert]
    return y


class FloatExperts(nn.Module):
    def __init__(self, count: int, out_features: int, in_features: int) -> None:
        super().__init__()
        self.count = count
        self.weight = nn.Parameter(torch.empty((count * out_features, in_features), device="meta"))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return torch.ops.ptegpu.linear_experts(x, self.weight, chosen, self.count)
        return _linear(x, chosen, lambda expert: self.weight.chunk(self.count)[expert])


class ByteExperts(nn.Module):
    """Weights in 8 bits, with a scale for each row."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        values, scales = zip(*(quantize_rows(weight) for weight in weights))
        self.count = len(values)
        self.register_buffer("values", torch.cat(values))
        self.register_buffer("scales", torch.cat(scales))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return torch.ops.ptegpu.linear_experts_q8(x, self.values, self.scales, chosen, self.count)
        values, scales = self.values.chunk(self.count), self.scales.chunk(self.count)
        return _linear(x, chosen, lambda expert: values[expert].float() * scales[expert].unsqueeze(1))


class GroupedExperts(nn.Module):
    """Weights in 4 bits, in groups."""

    def __init__(self, weights: Iterable[Tensor], size: int) -> None:
        super().__init__()
        quantized = [GroupedWeight(weight, size) for weight in weights]
        self.count, self.size = len(quantized), size
        self.register_buffer("packed", torch.cat([w.packed for w in quantized]))
        self.register_buffer("scales", torch.cat([w.scales for w in quantized], dim=1))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return torch.ops.ptegpu.linear_experts_q4(x, self.packed, self.scales, self.size, chosen, self.count)
        packed, scales = self.packed.chunk(self.count), self.scales.chunk(self.count, dim=1)
        return _linear(x, chosen, lambda expert: dequantize_groups(packed[expert], scales[expert], self.size))
