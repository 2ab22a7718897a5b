"""Quantized layers: how near they come, and that the GPU's operators mean the same by their bytes."""

from __future__ import annotations

import pytest
import torch

from ptegpu.export.experts import ByteExperts, FloatExperts, GroupedExperts, top_experts
from ptegpu.export.layers import (
    ByteLinear,
    GroupedEmbedding,
    GroupedLinear,
    GroupedWeight,
    Rounding,
    apply_all,
    quantize_groups,
    unpack,
)

WEIGHT = torch.randn((24, 64), generator=torch.Generator().manual_seed(0))
X = torch.randn((1, 3, 64), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [32, 64])
def test_groups(size: int) -> None:
    values, scales = quantize_groups(WEIGHT, size)
    assert (torch.int8, (24, 64)) == (values.dtype, values.shape)
    assert (torch.float32, (24, 64 // size)) == (scales.dtype, scales.shape)
    assert -8 <= int(values.min()) <= int(values.max()) <= 7
    error = GroupedWeight(WEIGHT, size).dequantized() - WEIGHT
    peak = WEIGHT.unflatten(1, (-1, size)).abs().amax(-1) / 7.5
    plain = WEIGHT.unflatten(1, (-1, size)) / peak.unsqueeze(-1)
    rounded = (plain.round().clamp(-8, 7) * peak.unsqueeze(-1)).flatten(1)
    assert error.square().mean() < 0.9 * (rounded - WEIGHT).square().mean()


def test_groups_of_zeros_and_of_whole_numbers() -> None:
    weight = torch.cat((torch.zeros(1, 32), torch.arange(-8.0, 8).repeat(2)[None]))
    torch.testing.assert_close(GroupedWeight(weight, 32).dequantized(), weight)


def test_large_matrices_are_quantized_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = quantize_groups(WEIGHT, 32)
    monkeypatch.setattr("ptegpu.export.layers.ELEMENTS_AT_ONCE", 5 * 64)
    parts = quantize_groups(WEIGHT, 32)
    assert torch.equal(complete[0], parts[0])
    assert torch.equal(complete[1], parts[1])


def test_bytes_are_those_of_the_operators() -> None:
    weight, bias = GroupedWeight(WEIGHT, 32), torch.randn(24)
    expected = torch.ops.et_vk.linear_q4gsw(X, weight.packed, weight.scales, 32, bias)
    torch.testing.assert_close(GroupedLinear(weight, bias)(X), expected)
    tokens = torch.tensor([[0, 5, 23]])
    rows = torch.ops.et_vk.embedding_q4gsw(weight.packed, weight.scales.t(), 32, tokens, True)
    torch.testing.assert_close(GroupedEmbedding(weight)(tokens), rows)


def test_sums_are_of_the_integers_in_each_group() -> None:
    weight = GroupedWeight(WEIGHT, 32)
    values, _ = quantize_groups(WEIGHT, 32)
    assert torch.equal(values.int(), unpack(weight.packed))
    assert torch.equal(values.unflatten(1, (2, 32)).sum(-1).t(), weight.sums())


def test_activations_in_8_bits() -> None:
    error = (Rounding.of(X).applied(X) - X).abs()
    steps = (X.amax(-1).clamp_min(0) - X.amin(-1).clamp_max(0)) / 255
    assert 0 < error.max() and (error <= steps.unsqueeze(-1) * 0.51).all()


def test_layers_share_what_rounding_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [GroupedLinear(GroupedWeight(WEIGHT, 32), dynamic=True) for _ in range(3)]
    expected = [layer(X) for layer in layers]
    calls = []
    original = Rounding.of
    monkeypatch.setattr(Rounding, "of", lambda x: calls.append(x) or original(x))
    for layer_alone, shared in zip(expected, apply_all(layers, X)):
        assert torch.equal(layer_alone, shared)
    assert 1 == len(calls)


def test_bytes_per_row() -> None:
    layer = ByteLinear(WEIGHT, torch.ones(24))
    error = (layer(X) - torch.nn.functional.linear(X, WEIGHT, torch.ones(24))).abs().max()
    assert 0 < error < 0.2


CHOSEN = torch.tensor([[2, 0], [1, 2], [0, 1]], dtype=torch.int32)


@pytest.mark.parametrize("each", [False, True])
def test_experts(each: bool) -> None:
    """Every row by the weights of its own experts, in floats, 8 and 4 bits."""
    weights = torch.randn((3, 8, 64), generator=torch.Generator().manual_seed(2))
    x = torch.randn((3, 2, 64), generator=torch.Generator().manual_seed(3)) if each else X[0]
    plain = FloatExperts(3, 8, 64)
    plain.weight = torch.nn.Parameter(weights.flatten(0, 1))
    expected = torch.stack([torch.stack([weights[e] @ (x[s, a] if each else x[s]) for a, e in enumerate(row)])
                            for s, row in enumerate(CHOSEN.tolist())])  # fmt: skip
    torch.testing.assert_close(plain(x, CHOSEN), expected)
    for rounded, error in ((ByteExperts(weights), 0.2), (GroupedExperts(weights, 32), 2.5)):
        assert 0 < (rounded(x, CHOSEN) - expected).abs().max() < error


def test_the_best_experts() -> None:
    shares, chosen = top_experts(torch.tensor([[0.1, 0.5, 0.4], [0.7, 0.1, 0.2]]), 2)
    assert ([[1, 2], [0, 2]], torch.int32) == (chosen.tolist(), chosen.dtype)
    torch.testing.assert_close(shares, torch.tensor([[0.5, 0.4], [0.7, 0.2]]))
