"""Dawn, through PyPI's `wgpudawn`: the engine of Chrome, with a current Tint, and with matrices if the GPU has them.

Its bounds checks are off unless `PTEGPU_ROBUST=1`: our kernels clamp their indices, programs contain no WGSL, and
kernels with matrices take twice as long with the checks.
"""

from __future__ import annotations

import gc
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, ClassVar
from weakref import ref

from _cffi_backend import callback as c_callback  # type: ignore[import-untyped]
from _cffi_backend import gcp
from wgpudawn.backends.dawn import extras, ffi, gpu, lib
from wgpudawn.backends.dawn._helpers import get_wgpu_instance, new_toggles_struct

from ..errors import DeviceError
from . import native
from .native import Handle, NativeRequest, error_callback, text_of, until
from .webgpu import MATRICES, Fault, ShaderSource, WebGPU

THREADS = "implicit-device-synchronization"  # without it, only one thread may use a device

_UNSAFE = "allow_unsafe_apis"  # toggles: of the instance, for experimental features
_F16 = "vulkan_enable_f16_on_nvidia"  # of adapters, and f16 matrices with it
_UNCHECKED = ("disable_robustness", "disable_workgroup_init")  # of devices
_COARSE = "timestamp_quantization"  # to be turned off

_NAMES = {"DX12": "D3D12"}
_BEHIND = re.compile(r"\n\s*(?:- While|at )")  # location in Dawn's source
_FAULT = re.compile(r":(\d+):(\d+) error: (.+)")
_KIND = re.compile(r"struct WGPU(\w+)Impl \*")
_OWNED = type(gcp(ffi.new("int *"), id))


@contextmanager
def _stderr() -> Iterator[list[str]]:
    """Capture the stderr of a block: Dawn complains there about adapters that it refuses."""
    lines: list[str] = []
    try:
        before = os.dup(2)
    except OSError:  # no stderr
        yield lines
        return
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


class _Lost(list[str]):
    """Why a device is gone: a list that supports weak references."""


_lost: dict[int, ref[_Lost]] = {}
_numbers = count(1)  # of devices; Dawn may report the loss of one long after we dropped it


@native.callback(ffi, "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)")
def on_lost(_device: Any, reason: int, message: Any, key: Any, _2: Any) -> None:
    lost = _lost[int(ffi.cast("uintptr_t", key))]()
    if lost is not None and reason != lib.WGPUDeviceLostReason_FailedCreation:  # the request reports that
        lost[:] = [Dawn.summary(text_of(ffi, message))]


class Dawn(WebGPU):
    """A device of Dawn."""

    lib, ffi, dialect, once = lib, ffi, "tint", True
    features: ClassVar[Mapping[str, int]] = {
        "shader-f16": lib.WGPUFeatureName_ShaderF16,
        "subgroups": lib.WGPUFeatureName_Subgroups,
        "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
        MATRICES: lib.WGPUFeatureName_ChromiumExperimentalSubgroupMatrix,
        THREADS: lib.WGPUFeatureName_ImplicitDeviceSynchronization,
    }
    on_error = error_callback(lib, ffi)

    @classmethod
    def adapters(cls, backends: Sequence[str]) -> list[Any]:
        with suppress(RuntimeError):  # another user of wgpudawn in this process made its instance already
            extras.set_instance_extras(enable_toggles=(_UNSAFE,))
        with _stderr() as cls.messages:
            return cls._enumerate(backends)

    @classmethod
    def _enumerate(cls, backends: Sequence[str]) -> list[Any]:
        references: list[Any] = []
        options = ffi.new("WGPURequestAdapterOptions *")
        options.nextInChain = new_toggles_struct((_F16,), (), references)
        adapters = []
        for backend in backends:
            options.backendType = getattr(lib, f"WGPUBackendType_{_NAMES.get(backend, backend)}")
            # size_t wgpu_dawn_enumerate_adapters(WGPUInstance, WGPURequestAdapterOptions const *, WGPUAdapter *,
            #     size_t capacity): returns the number of adapters
            count = lib.wgpu_dawn_enumerate_adapters(get_wgpu_instance(), options, ffi.NULL, 0)
            handles = ffi.new("WGPUAdapter[]", count)
            lib.wgpu_dawn_enumerate_adapters(get_wgpu_instance(), options, handles, count)
            adapters += [gpu._create_adapter(handle) for handle in handles]
        return adapters

    @classmethod
    def matrices(cls, adapter: Any) -> tuple[str, ...]:
        configs = extras.get_adapter_properties(adapter).get("subgroup_matrix_configs", ())
        sizes = (f"{c['component_type']} {c['result_component_type']} {c['m']}x{c['n']}x{c['k']}" for c in configs)
        return tuple(dict.fromkeys(sizes))

    @staticmethod
    def summary(text: str) -> str:
        return _BEHIND.split(text, maxsplit=1)[0].strip().rstrip(".").replace("\n", ": ")

    @staticmethod
    def fault(text: str) -> Fault | None:
        match = _FAULT.search(text)
        return match and (int(match[1]), int(match[2]), match[3])

    def _describe(self, descriptor: Any) -> Any:
        self.lost, number = _Lost(), next(_numbers)
        _lost[number] = ref(self.lost)
        info = descriptor.deviceLostCallbackInfo
        info.callback, info.userdata1 = on_lost, ffi.cast("void *", number)
        references: list[Any] = []
        unchecked = () if os.environ.get("PTEGPU_ROBUST", "0") not in ("", "0") else _UNCHECKED
        descriptor.nextInChain = new_toggles_struct(unchecked, (_COARSE,), references)
        return references

    def pipelines(self, sources: Sequence[ShaderSource], report: Callable[[int], object]) -> list[Handle]:
        """Compile on Dawn's threads, since ours would wait for each other."""
        described = [self._described(source) for source in sources]
        answers: list[dict[int, Handle]] = [{} for _ in sources]  # from status to pipeline
        callbacks = [
            # Called by a poll. A dict's method runs no Python code; it ignores further arguments like `NativeRequest`.
            c_callback(ffi.typeof("void (*)(uint32_t, WGPUComputePipeline)"), answer.__setitem__, None, None)
            for answer in answers
        ]
        info = ffi.new("WGPUCreateComputePipelineAsyncCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        for answer, callback, (descriptor, _) in zip(answers, callbacks, described, strict=True):
            native.expect(callback, answer)
            info.callback = ffi.cast("WGPUCreateComputePipelineAsyncCallback", callback)
            with self.checked():
                # WGPUFuture wgpuDeviceCreateComputePipelineAsync(WGPUDevice, WGPUComputePipelineDescriptor const *,
                #     WGPUCreateComputePipelineAsyncCallbackInfo)
                lib.wgpuDeviceCreateComputePipelineAsync(self.handle, descriptor, info[0])

        def done(_: object) -> bool:
            report(sum(map(bool, answers)))
            return all(answers)

        until(self, done)
        native.settle()
        handles = [handle for answer in answers for handle in answer.values() if handle]
        pipelines = [gcp(handle, lib.wgpuComputePipelineRelease) for handle in handles]
        if any(lib.WGPUCreatePipelineAsyncStatus_Success not in answer for answer in answers):
            raise DeviceError("a kernel does not compile")
        return pipelines

    def poll(self) -> None:
        # void wgpuInstanceProcessEvents(WGPUInstance)
        lib.wgpuInstanceProcessEvents(get_wgpu_instance())

    def drain(self) -> None:
        request = NativeRequest(self, "WGPUQueueWorkDoneCallback")
        request.expect()
        with self.checked():
            # WGPUFuture wgpuQueueOnSubmittedWorkDone(WGPUQueue, WGPUQueueWorkDoneCallbackInfo)
            lib.wgpuQueueOnSubmittedWorkDone(self.queue, request.info[0])
        request.wait(self)

    def timestamp_period(self) -> float:
        return 1.0

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        """Count the pointers that we own, since Dawn does not count its objects."""
        names = (ffi.typeof(x).cname for x in gc.get_objects() if type(x) is _OWNED)
        kinds = (match[1] for name in names if (match := _KIND.fullmatch(name)))
        return dict(Counter(f"{kind[0].lower()}{kind[1:]}s" for kind in kinds))
