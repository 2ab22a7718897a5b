"""wgpu-native, through the C library of wgpu-py: runs on all drivers that WebGPU supports."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import wgpu
from cffi import model  # type: ignore[import-untyped]
from wgpu.backends.wgpu_native import ffi, lib, lib_path
from wgpu.backends.wgpu_native._helpers import generate_report
from wgpu.backends.wgpu_native.extras import set_instance_extras

from ..errors import DeviceError
from . import native, threads
from .native import Handle, Report, error_callback, until
from .webgpu import COPY_DST, STORAGE, Fault, NativeLimits, ShaderSource, WebGPU

_LOST = ("device is lost", "device lost")
_FULL = ("not enough memory", "out of memory")
_LOCATION = re.compile(r"┌─ .*:(\d+):(\d+)")
_REASON = re.compile(r"(?:parsing|validation) error: (.+)")
_NOTE = re.compile(r"│ +[\^-]+ (.+)")
_THREADS = min(16, os.cpu_count() or 1)
_TYPE = re.compile(r"(\w+)(?: (\*)|\[(\d*)\])?")  # "WGPULimits *", "WGPUAdapter[]"


def _quick_types(parser: Any) -> None:
    """Look up declared types: cffi would parse hundreds of declarations again with each name, which takes 20 ms."""
    slow = parser.parse_type

    def parse_type(text: str) -> Any:
        match = _TYPE.fullmatch(text)
        declaration = match and parser._declarations.get(f"typedef {match[1]}")
        if match is None or not declaration:
            return slow(text)
        kind, qualifiers = declaration
        if match[2]:
            return model.PointerType(kind, qualifiers)
        return kind if match[3] is None else model.ArrayType(kind, int(match[3]) if match[3] else None)

    parser.parse_type = parse_type


_quick_types(ffi._parser)
ctypes.CDLL(lib_path)  # never unloaded, since objects are released until the interpreter ends


class WgpuNative(WebGPU):
    """A device of wgpu-native."""

    lib, ffi, dialect = lib, ffi, "naga"
    features: ClassVar[Mapping[str, int]] = {
        "shader-f16": lib.WGPUFeatureName_ShaderF16,
        "subgroups": lib.WGPUNativeFeature_Subgroup,
        "timestamp-query": lib.WGPUFeatureName_TimestampQuery,
    }
    on_error = error_callback(lib, ffi)

    def __init__(self, adapter: Any, features: Iterable[str], limits: Mapping[str, int]) -> None:
        super().__init__(adapter, features, limits)
        self._probe = self.buffer("probe", 16, STORAGE | COPY_DST)

    @classmethod
    def adapters(cls, backends: Sequence[str]) -> list[Any]:
        with suppress(RuntimeError):  # another user of wgpu in this process made its instance already
            set_instance_extras(backends=backends)
        return list(wgpu.gpu.enumerate_adapters_sync())

    @classmethod
    def as_error(cls, report: Report) -> DeviceError:
        lowered = report.text.lower()
        if any(lost in lowered for lost in _LOST):
            return native.lost(cls.summary(report.text))
        return super().as_error(Report(any(full in lowered for full in _FULL), report.text))

    @staticmethod
    def summary(text: str) -> str:
        lines = [line.strip() for line in text.split("Caused by:", 1)[-1].splitlines()]
        return ": ".join(line for line in lines if line)

    @staticmethod
    def fault(text: str) -> Fault | None:
        location, reason, note = _LOCATION.search(text), _REASON.search(text), _NOTE.search(text)
        if location is None:
            return None
        return int(location[1]), int(location[2]), ": ".join(match[1].rstrip() for match in (reason, note) if match)

    def _limits(self) -> tuple[NativeLimits, Any]:
        limits, chained = ffi.new("WGPULimits *"), ffi.new("WGPUNativeLimits *")
        chained.chain.sType = lib.WGPUSType_NativeLimits
        limits.nextInChain = ffi.addressof(chained, "chain")
        return limits, chained

    def _describe(self, descriptor: Any) -> Any:
        # The loss of the device needs no callback, so any C function that ignores its arguments will do.
        descriptor.deviceLostCallbackInfo.callback = ffi.cast("WGPUDeviceLostCallback", lib.wgpuGetVersion)

    def pipelines(self, sources: Sequence[ShaderSource], report: Callable[[int], object]) -> list[Handle]:
        handles: list[Handle] = []
        for handle in threads.pool("compile", _THREADS).in_turn(self.pipeline, sources):
            handles.append(handle)
            report(len(handles))
        return handles

    def poll(self) -> int:
        """Return whether the queue is empty."""
        # WGPUBool wgpuDevicePoll(WGPUDevice, WGPUBool wait, WGPUSubmissionIndex const *): only its lowest byte is set
        return lib.wgpuDevicePoll(self.handle, 0, ffi.NULL) & 1  # type: ignore[no-any-return]

    def drain(self) -> None:
        until(self, bool)

    def check_alive(self) -> None:
        # A write of no bytes is the cheapest call that checks.
        with self.checked():
            # void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer, uint64_t bufferOffset, void const * data, size_t size)
            lib.wgpuQueueWriteBuffer(self.queue, self._probe, 0, ffi.NULL, 0)

    def timestamp_period(self) -> float:
        # float wgpuQueueGetTimestampPeriod(WGPUQueue)
        return float(lib.wgpuQueueGetTimestampPeriod(self.queue))

    @classmethod
    def object_counts(cls) -> dict[str, int]:
        return {kind: report["kept"] for kind, report in generate_report()["hub"].items()}
