"""Dawn, through PyPI's `wgpudawn`: the engine of Chrome, with a current Tint, and with matrices where a GPU has them.

Its bounds checks are off unless `PTEGPU_ROBUST=1`: our kernels clamp by themselves, files contain no WGSL, and kernels
with matrices take twice as long with them.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from _cffi_backend import gcp  # type: ignore[import-untyped]
from wgpudawn.backends.dawn import extras, ffi, gpu, lib
from wgpudawn.backends.dawn._helpers import get_wgpu_instance, new_toggles_struct

from . import held
from .webgpu import MATRICES, Place, WebGPU, error_callback, text_of

THREADS = "implicit-device-synchronization"  # without it, a device is for one thread

_ADAPTER_TOGGLES = ("allow_unsafe_apis", "vulkan_enable_f16_on_nvidia")  # experimental features; f16 and its matrices
_FAST = ("disable_robustness", "disable_workgroup_init")
_EXACT_TIMES = "timestamp_quantization"  # which is to be off

_BEHIND = re.compile(r"\n\s*(?:- While|at )")  # where in Dawn it was found out
_FAULT = re.compile(r":(\d+):(\d+) error: (.+)")
_KIND = re.compile(r"struct WGPU(\w+)Impl \*")
_OWNED = type(gcp(ffi.new("int *"), id))


class _Lost(list[str]):
    """Why a device is gone; a list that can be referred to weakly."""


_lost: WeakValueDictionary[int, _Lost] = WeakValueDictionary()


@held.callback(ffi, "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)")
def on_lost(_device: Any, reason: int, message: Any, key: Any, _2: Any) -> None:
    found = _lost.get(int(ffi.cast("uintptr_t", key)))
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
            extras.set_instance_extras(backends=backends, enable_toggles=_ADAPTER_TOGGLES)
        named = {"D3D12" if backend == "DX12" else backend for backend in backends}
        # wgpudawn's own enumeration drops all but one of equal GPUs
        return [a for a in gpu._enumerate_all_adapters() if a.info["backend_type"] in named]

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
        lost = self.lost = _Lost()
        _lost[id(lost)] = lost
        info = descriptor.deviceLostCallbackInfo
        info.callback, info.userdata1 = on_lost, ffi.cast("void *", id(lost))
        kept: list[Any] = []
        fast = () if os.environ.get("PTEGPU_ROBUST", "0") not in ("", "0") else _FAST
        descriptor.nextInChain = new_toggles_struct(fast, (_EXACT_TIMES,), kept)
        return kept

    def poll(self) -> None:
        # void wgpuInstanceProcessEvents(WGPUInstance)
        lib.wgpuInstanceProcessEvents(get_wgpu_instance())

    def drain(self) -> None:
        # WGPUFuture wgpuQueueOnSubmittedWorkDone(WGPUQueue, WGPUQueueWorkDoneCallbackInfo)
        self._answer("WGPUQueueWorkDoneCallback", lambda info: lib.wgpuQueueOnSubmittedWorkDone(self.queue, info))

    def timestamp_period(self) -> float:
        return 1.0

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        """Dawn does not count. So these are the pointers that we own."""
        names = (ffi.typeof(x).cname for x in gc.get_objects() if type(x) is _OWNED)
        kinds = (match[1] for name in names if (match := _KIND.fullmatch(name)))
        return dict(Counter(f"{kind[0].lower()}{kind[1:]}s" for kind in kinds))
