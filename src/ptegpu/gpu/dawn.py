"""Dawn, through PyPI's `wgpudawn`: the engine of Chrome, with a current Tint, and with matrices where a GPU has them.

Its bounds checks are off unless `PTEGPU_ROBUST=1`: our kernels clamp by themselves, programs contain no WGSL, and
kernels with matrices take twice as long with them.
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
from . import faults, ownership
from .faults import error_callback, text_of
from .ownership import Handle
from .waiting import Request, until
from .webgpu import MATRICES, Place, Source, WebGPU

THREADS = "implicit-device-synchronization"  # without it, a device is for one thread

_UNSAFE = "allow_unsafe_apis"  # toggles: of the instance, for experimental features
_F16 = "vulkan_enable_f16_on_nvidia"  # of adapters, and f16 matrices with it
_FAST = ("disable_robustness", "disable_workgroup_init")  # of devices
_COARSE = "timestamp_quantization"  # to be off

_NAMES = {"DX12": "D3D12"}
_BEHIND = re.compile(r"\n\s*(?:- While|at )")  # where in Dawn it was found out
_FAULT = re.compile(r":(\d+):(\d+) error: (.+)")
_KIND = re.compile(r"struct WGPU(\w+)Impl \*")
_OWNED = type(gcp(ffi.new("int *"), id))


@contextmanager
def _stderr() -> Iterator[list[str]]:
    """Keep what a block writes to stderr: Dawn complains there about adapters that it refuses."""
    lines: list[str] = []
    try:
        before = os.dup(2)
    except OSError:  # there is none
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
    """Why a device is gone; a list that can be referred to weakly."""


_lost: dict[int, ref[_Lost]] = {}
_numbers = count(1)  # of devices: Dawn may tell of one's end long after we forgot it


@faults.callback(ffi, "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)")
def on_lost(_device: Any, reason: int, message: Any, key: Any, _2: Any) -> None:
    found = _lost[int(ffi.cast("uintptr_t", key))]()
    if found is not None and reason != lib.WGPUDeviceLostReason_FailedCreation:  # which the request is told, too
        found[:] = [Dawn.summary(text_of(ffi, message))]


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
        with suppress(RuntimeError):  # another user of wgpudawn in this process has made its instance already
            extras.set_instance_extras(enable_toggles=(_UNSAFE,))
        with _stderr() as cls.said:
            return cls._enumerate(backends)

    @classmethod
    def _enumerate(cls, backends: Sequence[str]) -> list[Any]:
        kept: list[Any] = []
        options = ffi.new("WGPURequestAdapterOptions *")
        options.nextInChain = new_toggles_struct((_F16,), (), kept)
        found = []
        for backend in backends:
            options.backendType = getattr(lib, f"WGPUBackendType_{_NAMES.get(backend, backend)}")
            # size_t wgpu_dawn_enumerate_adapters(WGPUInstance, WGPURequestAdapterOptions const *, WGPUAdapter *,
            #     size_t count): how many there are
            there = lib.wgpu_dawn_enumerate_adapters(get_wgpu_instance(), options, ffi.NULL, 0)
            handles = ffi.new("WGPUAdapter[]", there)
            lib.wgpu_dawn_enumerate_adapters(get_wgpu_instance(), options, handles, there)
            found += [gpu._create_adapter(handle) for handle in handles]
        return found

    @classmethod
    def matrices(cls, adapter: Any) -> tuple[str, ...]:
        found = extras.get_adapter_properties(adapter).get("subgroup_matrix_configs", ())
        sizes = (f"{c['component_type']} {c['result_component_type']} {c['m']}x{c['n']}x{c['k']}" for c in found)
        return tuple(dict.fromkeys(sizes))

    @staticmethod
    def summary(text: str) -> str:
        return _BEHIND.split(text, maxsplit=1)[0].strip().rstrip(".").replace("\n", ": ")

    @staticmethod
    def fault(text: str) -> Place | None:
        match = _FAULT.search(text)
        return match and (int(match[1]), int(match[2]), match[3])

    def _describe(self, descriptor: Any) -> Any:
        self.lost, number = _Lost(), next(_numbers)
        _lost[number] = ref(self.lost)
        info = descriptor.deviceLostCallbackInfo
        info.callback, info.userdata1 = on_lost, ffi.cast("void *", number)
        kept: list[Any] = []
        fast = () if os.environ.get("PTEGPU_ROBUST", "0") not in ("", "0") else _FAST
        descriptor.nextInChain = new_toggles_struct(fast, (_COARSE,), kept)
        return kept

    def pipelines(self, sources: Sequence[Source], told: Callable[[int], object]) -> list[Handle]:
        """Compile on Dawn's threads: ours would take turns."""
        described = [self._described(source) for source in sources]
        answers: list[dict[int, Handle]] = [{} for _ in sources]  # each has a status, and what was made
        called = [
            # Whoever polls calls it. A dict's method runs no Python code; for what it leaves alone, see `Request`.
            c_callback(ffi.typeof("void (*)(uint32_t, WGPUComputePipeline)"), answer.__setitem__, None, None)
            for answer in answers
        ]
        info = ffi.new("WGPUCreateComputePipelineAsyncCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        for answer, call, (descriptor, _) in zip(answers, called, described, strict=True):
            ownership.expect(call, answer)
            info.callback = ffi.cast("WGPUCreateComputePipelineAsyncCallback", call)
            with self.checked():
                # WGPUFuture wgpuDeviceCreateComputePipelineAsync(WGPUDevice, WGPUComputePipelineDescriptor const *,
                #     WGPUCreateComputePipelineAsyncCallbackInfo)
                lib.wgpuDeviceCreateComputePipelineAsync(self.handle, descriptor, info[0])

        def done(_: object) -> bool:
            told(sum(map(bool, answers)))
            return all(answers)

        until(self, done)
        ownership.settle()
        handles = [handle for answer in answers for handle in answer.values() if handle]
        made = [gcp(handle, lib.wgpuComputePipelineRelease) for handle in handles]
        if any(lib.WGPUCreatePipelineAsyncStatus_Success not in answer for answer in answers):
            raise DeviceError("a kernel does not compile")
        return made

    def poll(self) -> None:
        # void wgpuInstanceProcessEvents(WGPUInstance)
        lib.wgpuInstanceProcessEvents(get_wgpu_instance())

    def drain(self) -> None:
        request = Request(self, "WGPUQueueWorkDoneCallback")
        request.expect()
        with self.checked():
            # WGPUFuture wgpuQueueOnSubmittedWorkDone(WGPUQueue, WGPUQueueWorkDoneCallbackInfo)
            lib.wgpuQueueOnSubmittedWorkDone(self.queue, request.info[0])
        request.wait(self)

    def timestamp_period(self) -> float:
        return 1.0

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        """Count the pointers that we own: Dawn does not count."""
        names = (ffi.typeof(x).cname for x in gc.get_objects() if type(x) is _OWNED)
        kinds = (match[1] for name in names if (match := _KIND.fullmatch(name)))
        return dict(Counter(f"{kind[0].lower()}{kind[1:]}s" for kind in kinds))
