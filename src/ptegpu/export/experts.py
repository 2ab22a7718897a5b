"""Linear layers of many experts, each exported as one operator of ptegpu's own, and the choice among them.

A weight has the rows of all experts, one after the other. Called as they are, layers compute in plain PyTorch, one
expert at a time, so that each is its own reference. Importing this registers the operators with PyTorch and with the
partitioner, which then takes them into its partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.nn import functional as F

from .backend import OpFeatures, ops, torch, utils, vulkan_supported_ops
from .layers import GroupedWeight, quantize_rows

_LIBRARY = torch.library.Library("ptegpu", "FRAGMENT")
_LINEARS = {
    "linear_experts": "Tensor x, Tensor weight, Tensor experts, int count",
    "linear_experts_q8": "Tensor x, Tensor weight, Tensor scales, Tensor experts, int count",
    "linear_experts_q4": "Tensor x, Tensor weight, Tensor scales, int group, Tensor experts, int count",
}


def _shaped(x: Tensor, weight: Tensor, *others: Tensor | int) -> Tensor:
    experts, count = others[-2:]
    assert isinstance(experts, Tensor) and isinstance(count, int)
    return x.new_empty((*experts.shape, weight.shape[0] // count))


def _top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], k)), x.new_empty((x.shape[0], k), dtype=torch.int32)


def _register() -> None:
    for name, takes in _LINEARS.items():
        _LIBRARY.define(f"{name}({takes}) -> Tensor")
        torch.library.register_fake(f"ptegpu::{name}", _shaped, lib=_LIBRARY)
    _LIBRARY.define("top_experts(Tensor x, int k) -> (Tensor, Tensor)")
    torch.library.register_fake("ptegpu::top_experts", _top, lib=_LIBRARY)
    for name in (*_LINEARS, "top_experts"):
        vulkan_supported_ops[getattr(ops.edge.ptegpu, name).default] = OpFeatures(
            inputs_dtypes=utils.ALL_T,
            outputs_dtypes=utils.ALL_T,
            inputs_storage=utils.CONTIGUOUS_ANY,
            supports_resize=True,
            supports_prepacking=True,
        )


_register()


def top_experts(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, and where they are, int32."""
    if torch.compiler.is_exporting():
        return torch.ops.ptegpu.top_experts(x, k)
    values, places = torch.topk(x, k)
    return values, places.int()


def _each(x: Tensor, chosen: Tensor, rows: Callable[[int], Tensor]) -> Tensor:
    """x (S, K) or (S, A, K) by the weights (N, K) of the experts that were chosen (S, A): (S, A, N)."""
    x = x.unsqueeze(1).expand(*chosen.shape, -1) if x.dim() == 2 else x
    places = {expert: chosen == expert for expert in chosen.unique().tolist()}
    found = {expert: F.linear(x[place], rows(expert)) for expert, place in places.items()}
    y = x.new_empty((*chosen.shape, next(iter(found.values())).shape[1]))
    for expert, place in places.items():
        y[place] = found[expert]
    return y


class Experts(nn.Module):
    """Weights in floats."""

    def __init__(self, count: int, out_features: int, in_features: int) -> None:
        super().__init__()
        self.count = count
        self.weight = nn.Parameter(torch.empty((count * out_features, in_features), device="meta"))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return torch.ops.ptegpu.linear_experts(x, self.weight, chosen, self.count)
        return _each(x, chosen, lambda expert: self.weight.chunk(self.count)[expert])


class ByteExperts(nn.Module):
    """Weights in 8 bits with a scale for each row."""

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
        return _each(x, chosen, lambda expert: values[expert].float() * scales[expert].unsqueeze(1))


class GroupedExperts(nn.Module):
    """Weights in 4 bits."""

    def __init__(self, weights: Iterable[Tensor], size: int) -> None:
        super().__init__()
        each = [GroupedWeight(weight, size) for weight in weights]
        self.count = len(each)
        packed, scales = torch.cat([w.packed for w in each]), torch.cat([w.scales for w in each], dim=1)
        self.weight = GroupedWeight.of(packed, scales, size)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        w = self.weight
        if torch.compiler.is_exporting():
            return torch.ops.ptegpu.linear_experts_q4(x, w.packed, w.scales, w.size, chosen, self.count)
        packed, scales = w.packed.chunk(self.count), w.scales.chunk(self.count, dim=1)
        return _each(x, chosen, lambda expert: GroupedWeight.of(packed[expert], scales[expert], w.size).dequantized())
