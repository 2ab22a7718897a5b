"""Whole models of several families give what eager PyTorch gives, and the GPU runs each of them in one plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from executorch.backends.vulkan.quantizer import vulkan_quantizer
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from tests import zoo
from tests.exporting import export, quiet
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ptegpu
from ptegpu.graph.linear import Call
from ptegpu.runtime.partition import Host

TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2  # of the largest magnitude in an output
INT8_TOLERANCE = 1e-2  # a value halfway between two steps may be rounded to either; a step is 1/127 of that magnitude


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]


CASES = {
    "resnet": Case(zoo.ResNet, (2, 3, 32, 32)),
    "mobilenet": Case(zoo.MobileNet, (2, 3, 32, 32)),
    "unet": Case(zoo.UNet, (1, 3, 16, 16)),
    "vit": Case(zoo.ViT, (2, 3, 16, 16)),
    "audio": Case(zoo.AudioEncoder, (1, 8, 24)),
    "lstm": Case(lambda: zoo.Recurrent(nn.LSTM), (2, 3, 6)),
    "gru": Case(lambda: zoo.Recurrent(nn.GRU), (2, 3, 6)),
    "speech": Case(zoo.SpeechCNN, (1, 8, 20)),
    "detector": Case(zoo.Detector, (1, 3, 16, 16)),
}


def prepared(case: Case) -> tuple[nn.Module, list[torch.Tensor]]:
    """The model and two inputs, the same in every run."""
    torch.manual_seed(0)
    model = zoo.lively(case.model())
    return model, [torch.randn(case.shape), torch.randn(case.shape)]


def outputs(model: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        given = model(x)
    return given if isinstance(given, tuple) else (given,)


def on_host(method: Any) -> list[str]:
    """Instructions that the GPU does not run, for the message of a failure."""
    waiting = [item.instruction for item in method._method.items if isinstance(item, Host)]
    return [i.op if isinstance(i, Call) else type(i).__name__ for i in waiting]


def run_against_eager(
    data: bytes,
    eager: Callable[..., Any],
    inputs: list[torch.Tensor],
    tolerance: float,
    host: Sequence[str] = (),
) -> list[str]:
    """One call per input, so that what stays from a call shows in the next; returns what the GPU ran."""
    expected = [outputs(eager, x) for x in inputs]
    for one, other in zip(*expected, strict=True):
        changed = (one.double() - other.double()).abs().max()
        assert changed > 0.05 * one.double().abs().max(), "the input hardly matters: an error in it would not show"
    with ptegpu.load(data) as program:
        for x, wanted in zip(inputs, expected, strict=True):
            found = outputs(program, x)
            assert [(w.dtype, w.shape) for w in wanted] == [(f.dtype, f.shape) for f in found]
            for index, (w, f) in enumerate(zip(wanted, found, strict=True)):
                error = (f.double() - w.double()).abs().max() / w.double().abs().max()
                assert error <= tolerance, f"output {index} is off by {error:.1e} of its scale"
        method = program.method("forward")
        assert len(method.plans) == 1, f"on the host: {on_host(method)}"
        assert list(host) == on_host(method)
        return [node.op.name for graph in method.graphs for node in graph.nodes]


@pytest.mark.parametrize("name", CASES)
def test_delegated(name: str) -> None:
    model, inputs = prepared(CASES[name])
    run_against_eager(export(copy.deepcopy(model), (inputs[0],)), model, inputs, TOLERANCE)


@pytest.mark.parametrize("name", ["resnet", "unet", "vit", "detector"])
def test_undelegated(name: str) -> None:
    model, inputs = prepared(CASES[name])
    run_against_eager(export(copy.deepcopy(model), (inputs[0],), delegate=False), model, inputs, TOLERANCE)


@pytest.mark.parametrize("name", ["mobilenet", "speech"])
def test_half(name: str) -> None:
    model, inputs = prepared(CASES[name])
    data = export(copy.deepcopy(model), (inputs[0],), options={"force_fp16": True})
    run_against_eager(data, model, inputs, HALF_TOLERANCE)


def quantized(quantizer: Any) -> tuple[nn.Module, list[torch.Tensor]]:
    model, inputs = prepared(Case(zoo.ConvNet, (2, 3, 16, 16)))
    with quiet():
        observed = prepare_pt2e(torch.export.export(model, (inputs[0],)).module(), quantizer)
        for x in inputs:
            observed(x)
        return convert_pt2e(observed), inputs


def int8_everywhere() -> Any:
    config = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True)
    return xnnpack_quantizer.XNNPACKQuantizer().set_global(config)


def test_int8_convolutions_delegated() -> None:
    model, inputs = quantized(int8_everywhere())
    ran = run_against_eager(export(model, (inputs[0],)), model, inputs, INT8_TOLERANCE)
    assert ["conv2d", "conv2d", "conv2d_dw", "linear"] == [
        name.removeprefix("et_vk.q8ta_").removesuffix(".default") for name in ran if name.startswith("et_vk.q8ta_")
    ]


def test_int8_convolutions_undelegated() -> None:
    model, inputs = quantized(int8_everywhere())
    weights = ["quantized_decomposed.dequantize_per_channel.default"] * 4
    run_against_eager(export(model, (inputs[0],), delegate=False), model, inputs, INT8_TOLERANCE, weights)


def test_int8_weights_of_the_vulkan_quantizer() -> None:
    config = vulkan_quantizer.get_symmetric_quantization_config()
    model, inputs = quantized(vulkan_quantizer.VulkanQuantizer().set_global(config))
    ran = run_against_eager(export(model, (inputs[0],)), model, inputs, TOLERANCE)
    assert "aten._weight_int8pack_mm.default" in ran
