"""Linear layers and embeddings with weights of 8 and 4 bits, each exported as one operator of the GPU.

| weights | linear layer | embedding |
|---|---|---|
| 4 bits in groups | `linear_q4gsw` | `embedding_q4gsw` |
| 4 bits in groups, activations in 8 bits | `choose_qparams_affine`, `linear_dq8ca_q4gsw` | |
| 8 bits per row | `_weight_int8pack_mm` | |

Called as they are, they compute in plain PyTorch with the dequantized weights, and serve as their own reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .backend import MappingType, choose_qparams_affine, dequantize_affine, quantize_affine

LOWEST, HIGHEST = -8, 7  # of 4 bits
BYTE = {"quant_min": -128, "quant_max": 127}
SHRINKS = tuple(1.0 - 0.05 * k for k in range(8))  # candidate scales, which clip the largest weight of a group
ELEMENTS_AT_ONCE = 1 << 18  # of a weight, to stay within a CPU's cache


@contextmanager
def one_thread() -> Iterator[None]:
    """Run small steps on one thread, where synchronising threads would cost more time than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def quantize_groups(weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return integers from -8 to 7, int8 (N, K), and a scale for each group of `size` along K, float32 (N, K / size).

    Of several scales, the one with the least squared error is chosen. The largest weight of a group maps to -8, the
    longer end of the range, so a scale can be negative.
    """
    values = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty((weight.shape[0], weight.shape[1] // size), dtype=torch.float32)
    step = max(1, ELEMENTS_AT_ONCE // weight.shape[1])
    for first in range(0, weight.shape[0], step):
        groups = weight[first : first + step].float().unflatten(1, (-1, size))  # (rows, K / size, size)
        rounded, scale = _best_scale(groups)
        values[first : first + step] = rounded.flatten(1).to(torch.int8)
        scales[first : first + step] = scale.squeeze(-1)
    return values, scales


def _best_scale(groups: Tensor) -> tuple[Tensor, Tensor]:
    peak = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    full = torch.where(peak == 0, 1.0, peak / LOWEST)
    scale, least = full, torch.full_like(full, torch.inf)
    for shrink in SHRINKS:
        candidate = full * shrink
        error = _rounded(groups, candidate).mul_(candidate).sub_(groups).square_().sum(-1, keepdim=True)
        scale, least = torch.where(error < least, candidate, scale), torch.minimum(error, least)
    return _rounded(groups, scale), scale


def _rounded(groups: Tensor, scale: Tensor) -> Tensor:
    return (groups / scale).round_().clamp_(LOWEST, HIGHEST)


class GroupedWeight(nn.Module):
    """A weight (N, K) in 4 bits. An embedding and a linear layer can share it; the file then stores it once."""

    @one_thread()
    def __init__(self, weight: Tensor, size: int) -> None:
        super().__init__()
        values, scales = quantize_groups(weight, size)
        nibbles = (values - LOWEST).to(torch.uint8)
        self.size = size
        self.register_buffer("packed", nibbles[:, ::2] | nibbles[:, 1::2] << 4)  # (N, K / 2)
        self.register_buffer("scales", scales.t().contiguous())  # (K / size, N)

    def sums(self) -> Tensor:
        """Return the sum of each group's integers, int32 (K / size, N), which products with 8-bit activations need."""
        groups = unpack(self.packed).unflatten(1, (-1, self.size))
        return groups.sum(-1, dtype=torch.int32).t().contiguous()

    def dequantized(self) -> Tensor:
        return dequantize_groups(self.packed, self.scales, self.size)


def unpack(packed: Tensor) -> Tensor:
    """Return values from -8 to 7, int32 (N, K)."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).int() + LOWEST


def dequantize_groups(packed: Tensor, scales: Tensor, size: int) -> Tensor:
    """Return float32 (N, K)."""
    return (unpack(packed).float().unflatten(1, (-1, size)) * scales.t().unsqueeze(-1)).flatten(1)


@dataclass(frozen=True, slots=True)
class Rounding:
    """The scale and the zero point of each row of an activation in 8 bits."""

    scale: Tensor
    zero: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Rounding:
        kind = {"target_dtype": torch.int8, "zero_point_dtype": torch.int8}
        return cls(*choose_qparams_affine(x, MappingType.ASYMMETRIC, _rows(x), **kind, **BYTE))

    def applied(self, x: Tensor) -> Tensor:
        """Quantize x to 8 bits, and return it dequantized."""
        values = quantize_affine(x, _rows(x), self.scale, self.zero, output_dtype=torch.int8, **BYTE)
        return dequantize_affine(values, _rows(x), self.scale, self.zero, torch.int8, output_dtype=x.dtype, **BYTE)


def _rows(x: Tensor) -> list[int]:
    return [1] * (x.dim() - 1) + [x.shape[-1]]


class GroupedLinear(nn.Module):
    """A linear layer with 4-bit weights. If `dynamic`, activations are rounded to 8 bits with a scale for each row."""

    def __init__(self, weight: GroupedWeight, bias: Tensor | None = None, *, dynamic: bool = False) -> None:
        super().__init__()
        self.weight, self.dynamic = weight, dynamic
        self.register_buffer("bias", bias)
        self.register_buffer("sums", weight.sums() if dynamic else None)

    def forward(self, input: Tensor, rounding: Rounding | None = None) -> Tensor:
        w, bias = self.weight, self.bias
        if not self.dynamic:
            if torch.compiler.is_exporting():
                return torch.ops.et_vk.linear_q4gsw(input, w.packed, w.scales, w.size, bias)
            return F.linear(input, w.dequantized(), bias)
        r = rounding or Rounding.of(input)
        if torch.compiler.is_exporting():
            return torch.ops.et_vk.linear_dq8ca_q4gsw(
                input, r.scale, r.zero, w.packed, self.sums, w.scales, w.size, bias
            )
        return F.linear(r.applied(input), w.dequantized(), bias)


def apply_all(layers: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Return the result of each layer for x, which is rounded once for all layers that need it."""
    dynamic = [isinstance(layer, GroupedLinear) and layer.dynamic for layer in layers]
    rounding = Rounding.of(x) if any(dynamic) else None
    return [layer(x, rounding) if rounds else layer(x) for layer, rounds in zip(layers, dynamic)]


class GroupedEmbedding(nn.Module):
    def __init__(self, weight: GroupedWeight) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, input: Tensor) -> Tensor:
        w = self.weight
        if torch.compiler.is_exporting():
            return torch.ops.et_vk.embedding_q4gsw(w.packed, w.scales.t(), w.size, input, True)
        return F.embedding(input, w.dequantized())


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 (N, K), and the scale of each row, float32 (N)."""
    scales = weight.float().abs().amax(1).clamp_min(1e-12) / 127
    return (weight.float() / scales.unsqueeze(1)).round().to(torch.int8), scales


class ByteLinear(nn.Module):
    """A linear layer with weights in 8 bits and a scale for each row."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        values, scales = quantize_rows(weight)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(scales.shape, dtype=torch.int64))
        self.register_buffer("bias", bias)

    @property
    def weight(self) -> Tensor:
        """Return the weight in floats, for modules that use it without calling the layer."""
        return torch.ops.quantized_decomposed.dequantize_per_channel(  # type: ignore[no-any-return]
            self.values, self.scales, self.zeros, 0, -128, 127, torch.int8
        )

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)
