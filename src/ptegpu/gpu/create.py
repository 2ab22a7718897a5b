"""What is made once and kept, through wgpu-native's raw functions: devices, buffers, layouts, pipelines.

Each is released with its last reference (`native.owned`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wgpu.backends.wgpu_native import ffi, lib

from ..errors import DeviceError
from ..plan.plan import Access
from .native import Handle, callback, checked, on_error, owned, text_of

_FEATURES = {
    "shader-f16": lib.WGPUFeatureName_ShaderF16,
    "subgroup": lib.WGPUNativeFeature_Subgroup,
    "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
}
_BINDING_TYPES: dict[Access, int] = {
    "read": lib.WGPUBufferBindingType_ReadOnlyStorage,
    "write": lib.WGPUBufferBindingType_Storage,
    "uniform": lib.WGPUBufferBindingType_Uniform,
}

Limits = Any  # a WGPULimits, whose fields have WebGPU's names: maxBufferSize, …


def device(adapter: Handle, features: Sequence[str], limits: Mapping[str, int]) -> tuple[Handle, Handle, Limits]:
    """A device, its queue and its limits. `limits` has those to ask for as wgpu-py names them, max-buffer-size; what it
    leaves out is the adapter's."""
    asked, chained = ffi.new("WGPULimits *"), ffi.new("WGPUNativeLimits *")
    chained.chain.sType = lib.WGPUSType_NativeLimits
    asked.nextInChain = ffi.addressof(chained, "chain")
    # WGPUStatus wgpuAdapterGetLimits(WGPUAdapter, WGPULimits *)
    lib.wgpuAdapterGetLimits(adapter, asked)
    for name, value in limits.items():
        setattr(asked, re.sub("-(.)", lambda found: found[1].upper(), name), value)
    descriptor = ffi.new("WGPUDeviceDescriptor *")
    _label = _say(descriptor.label, "ptegpu")
    c_features = ffi.new("WGPUFeatureName[]", [_FEATURES[name] for name in features])
    descriptor.requiredFeatureCount, descriptor.requiredFeatures = len(features), c_features
    descriptor.requiredLimits = asked
    descriptor.uncapturedErrorCallbackInfo.callback = on_error
    # Nobody waits to hear that the device is lost, so that any C function serves which leaves its arguments alone.
    descriptor.deviceLostCallbackInfo.mode = lib.WGPUCallbackMode_AllowSpontaneous
    descriptor.deviceLostCallbackInfo.callback = ffi.cast("WGPUDeviceLostCallback", lib.wgpuGetVersion)
    handle = _request(adapter, descriptor)
    # WGPUStatus wgpuDeviceGetLimits(WGPUDevice, WGPULimits *)
    lib.wgpuDeviceGetLimits(handle, asked)
    asked.nextInChain = ffi.NULL
    # WGPUQueue wgpuDeviceGetQueue(WGPUDevice)
    return handle, owned(lib.wgpuQueueRelease, lib.wgpuDeviceGetQueue, handle), asked


def _request(adapter: Handle, descriptor: Any) -> Handle:
    opened: list[Handle] = []
    refused: list[str] = []

    @callback("void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)")
    def answered(status: int, made: Handle, message: Any, _1: Any, _2: Any) -> None:
        if status == lib.WGPURequestDeviceStatus_Success:
            opened[:] = [made]
        else:
            refused[:] = [text_of(message)]

    info = ffi.new("WGPURequestDeviceCallbackInfo *")
    info.mode, info.callback = lib.WGPUCallbackMode_AllowProcessEvents, answered
    try:
        with checked():
            # WGPUFuture wgpuAdapterRequestDevice(WGPUAdapter, WGPUDeviceDescriptor const *,
            #     WGPURequestDeviceCallbackInfo): it answers before it returns
            lib.wgpuAdapterRequestDevice(adapter, descriptor, info[0])
    finally:
        handle = owned(lib.wgpuDeviceRelease, opened.pop, 0) if opened else ffi.NULL
    if handle == ffi.NULL:
        raise DeviceError(refused[0] if refused else "it does not answer")
    return handle


def destroy_device(handle: Handle) -> None:
    # void wgpuDeviceDestroy(WGPUDevice)
    lib.wgpuDeviceDestroy(handle)


def buffer(device: Handle, name: str, nbytes: int, usage: int) -> Handle:
    """A buffer of zeros; `usage` is WebGPU's."""
    descriptor = ffi.new("WGPUBufferDescriptor *")
    _label = _say(descriptor.label, name)
    descriptor.size, descriptor.usage = nbytes, usage
    with checked():
        # WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice, WGPUBufferDescriptor const *)
        return owned(lib.wgpuBufferRelease, lib.wgpuDeviceCreateBuffer, device, descriptor)


def destroy_buffer(handle: Handle) -> None:
    """Gives its memory back once submitted work is done with it; withdraws a map request."""
    # void wgpuBufferDestroy(WGPUBuffer)
    lib.wgpuBufferDestroy(handle)


def layouts(device: Handle, access: Sequence[Access]) -> tuple[Handle, Handle]:
    """The layout of a bind group of buffers at 0, 1, …, and that of a pipeline which has only this group."""
    entries = ffi.new("WGPUBindGroupLayoutEntry[]", len(access))
    for number, kind in enumerate(access):
        entries[number].binding, entries[number].visibility = number, lib.WGPUShaderStage_Compute
        entries[number].buffer.type = _BINDING_TYPES[kind]
    group_descriptor = ffi.new("WGPUBindGroupLayoutDescriptor *")
    group_descriptor.entryCount, group_descriptor.entries = len(access), entries
    with checked():
        # WGPUBindGroupLayout wgpuDeviceCreateBindGroupLayout(WGPUDevice, WGPUBindGroupLayoutDescriptor const *)
        make, release = lib.wgpuDeviceCreateBindGroupLayout, lib.wgpuBindGroupLayoutRelease
        group = owned(release, make, device, group_descriptor)
    groups = ffi.new("WGPUBindGroupLayout[1]", [group])
    descriptor = ffi.new("WGPUPipelineLayoutDescriptor *")
    descriptor.bindGroupLayoutCount, descriptor.bindGroupLayouts = 1, groups
    with checked():
        # WGPUPipelineLayout wgpuDeviceCreatePipelineLayout(WGPUDevice, WGPUPipelineLayoutDescriptor const *)
        make, release = lib.wgpuDeviceCreatePipelineLayout, lib.wgpuPipelineLayoutRelease
        return group, owned(release, make, device, descriptor)


def pipeline(
    device: Handle, name: str, wgsl: str, entry: str, layout: Handle, translate: Callable[[str], Exception]
) -> Handle:
    """A compute pipeline; `translate` makes an error of the compiler's words."""
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    module_descriptor, descriptor = ffi.new("WGPUShaderModuleDescriptor *"), ffi.new("WGPUComputePipelineDescriptor *")
    _texts = [
        _say(source.code, wgsl),
        _say(module_descriptor.label, name),
        _say(descriptor.label, name),
        _say(descriptor.compute.entryPoint, entry),
    ]
    module_descriptor.nextInChain = ffi.addressof(source, "chain")
    with checked(translate):
        # WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice, WGPUShaderModuleDescriptor const *)
        make, release = lib.wgpuDeviceCreateShaderModule, lib.wgpuShaderModuleRelease
        module = owned(release, make, device, module_descriptor)
    descriptor.layout, descriptor.compute.module = layout, module
    with checked(translate):
        # WGPUComputePipeline wgpuDeviceCreateComputePipeline(WGPUDevice, WGPUComputePipelineDescriptor const *)
        make, release = lib.wgpuDeviceCreateComputePipeline, lib.wgpuComputePipelineRelease
        return owned(release, make, device, descriptor)


def _say(view: Any, text: str) -> Any:
    """Points a WGPUStringView at a text, which must live as long: it is returned for that."""
    data = ffi.from_buffer(text.encode())
    view.data, view.length = data, len(data)
    return data
