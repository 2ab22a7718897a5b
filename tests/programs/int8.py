"""A MobileNet through PT2E: with activations and weights in int8, and with int8 weights only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.backends.vulkan.quantizer import vulkan_quantizer
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from tests.exporting import export, quiet
from tests.saved import Program
from tests.zoo import modules

from .making import INT8, answered


def everywhere() -> Any:
    config = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True)
    return xnnpack_quantizer.XNNPACKQuantizer().set_global(config)


def weights() -> Any:
    config = vulkan_quantizer.get_symmetric_quantization_config()
    return vulkan_quantizer.VulkanQuantizer().set_global(config)


@dataclass(frozen=True)
class Quantized:
    """A quantized MobileNet, answered by PyTorch as it is: it has no float64 version."""

    quantizer: Callable[[], Any]
    delegate: bool = True
    expectations: Mapping[str, Any] = field(default_factory=dict)

    def program(self, name: str) -> Program:
        torch.manual_seed(0)
        module = modules.lively(modules.PlainMobileNet())
        calls = [(torch.randn(2, 3, 16, 16),), (torch.randn(2, 3, 16, 16),)]
        with quiet():
            observed = prepare_pt2e(torch.export.export(module, calls[0]).module(), self.quantizer())
            for inputs in calls:
                observed(*inputs)
            converted = convert_pt2e(observed)
        data = export(converted, calls[0], delegate=self.delegate)
        return answered(
            Program(name, data, (), **self.expectations), {"forward": converted}, {"forward": calls}, wide=None
        )


CONVOLUTIONS = {"et_vk.q8ta_conv2d.default": 1, "et_vk.q8ta_conv2d_dw.default": 2, "et_vk.q8ta_conv2d_pw.default": 4}
OTHERS = {"et_vk.q8ta_add.default": 2, "et_vk.q8ta_relu.default": 2, "et_vk.q8ta_linear.default": 1}

QUANTIZED = {
    "mobilenet in int8": Quantized(everywhere, expectations={"tolerance": INT8, "operators": CONVOLUTIONS | OTHERS}),
    "mobilenet in int8, undelegated": Quantized(everywhere, delegate=False, expectations={"tolerance": INT8}),
    "mobilenet with weights in int8": Quantized(
        weights, expectations={"operators": {"aten._weight_int8pack_mm.default": 1}}
    ),
}
