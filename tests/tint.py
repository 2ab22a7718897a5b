"""Compiles WGSL under Tint, the compiler of Chrome, through Dawn's null backend: no GPU and no driver is touched.

`check(sources)` is for tests; sources carry their `enable` lines (`ptegpu.plan.dialect.source(kernel, "tint")`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydawn import utils, webgpu


def check(wgsl_sources: Sequence[str]) -> list[str]:
    """What Tint says against each source that it refuses, headed by the source's number; empty when all compile."""
    return [f"source {number}: {said}" for number, wgsl in enumerate(wgsl_sources) if (said := _error(wgsl))]


def _error(wgsl: str) -> str | None:
    text = ctypes.create_string_buffer(wgsl.encode())
    source = webgpu.WGPUShaderModuleWGSLDescriptor()
    source.chain.sType = webgpu.WGPUSType_ShaderSourceWGSL
    source.code.data = ctypes.cast(text, ctypes.POINTER(ctypes.c_char))
    source.code.length = len(text) - 1  # bytes, without the closing zero
    descriptor = webgpu.WGPUShaderModuleDescriptor()
    descriptor.nextInChain = ctypes.cast(ctypes.pointer(source), ctypes.POINTER(webgpu.struct_WGPUChainedStruct))
    device = _device()
    webgpu.wgpuDevicePushErrorScope(device, webgpu.WGPUErrorFilter_Validation)
    webgpu.wgpuShaderModuleRelease(webgpu.wgpuDeviceCreateShaderModule(device, descriptor))
    said = utils.pop_error(device)
    return said.split("\n\n\n - While")[0].removeprefix("Error while parsing WGSL: ") if said else None


@cache
def _device() -> Any:
    """A device with f16 and subgroups that computes nothing."""
    found: list[Any] = []

    def accept(status: int, adapter: Any, message: Any, _: Any) -> None:
        if status != webgpu.WGPURequestAdapterStatus_Success:
            raise RuntimeError(f"Dawn has no null adapter: {utils.from_wgpu_str(message)}")
        found.append(adapter)

    options = webgpu.WGPURequestAdapterOptions()
    options.backendType = webgpu.WGPUBackendType_Null
    request = webgpu.WGPURequestAdapterCallbackInfo()
    request.mode = webgpu.WGPUCallbackMode_WaitAnyOnly
    request.callback = webgpu.WGPURequestAdapterCallback(accept)
    utils.wait(webgpu.wgpuInstanceRequestAdapterF(utils.instance, options, request))
    return utils.request_device_sync(found[0], [webgpu.WGPUFeatureName_ShaderF16, webgpu.WGPUFeatureName_Subgroups])
