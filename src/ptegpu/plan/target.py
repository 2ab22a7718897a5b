"""The target of kernel generators: limits, features and class of an adapter as plain data, without wgpu.

Every browser grants the defaults, so what is compiled for `Target()` runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..dtypes import DType
from ..errors import InvalidInput

Kind = Literal["discrete", "integrated", "software"]
Cache = Literal["f32", "f16", "q8"]  # the storage type of key-value caches that the program declares as float32
Precision = Literal[
    "exact", "auto", "fast"
]  # whether products may round to f16; auto: if the second operand is f16 or packed
Persistent = Literal["auto", "on", "off"]  # whether dispatches of a run may become stages of one; auto: on GPUs

CACHE_TYPES: Mapping[Cache, DType] = {"f32": DType.F32, "f16": DType.F16, "q8": DType.Q8}


def check_precision(precision: str) -> None:
    """Raise InvalidInput for an unknown precision."""
    if precision not in ("exact", "auto", "fast"):
        raise InvalidInput(f'invalid precision {precision!r}: expected "auto", "exact" or "fast"')


def check_cache(cache: str) -> None:
    """Raise InvalidInput for an unknown type of caches."""
    if cache not in CACHE_TYPES:
        raise InvalidInput(f'invalid cache {cache!r}: expected "f32", "f16" or "q8"')


def check_persistent(persistent: str) -> None:
    """Raise InvalidInput unless `persistent` is "auto", "on" or "off"."""
    if persistent not in ("auto", "on", "off"):
        raise InvalidInput(f'invalid persistent {persistent!r}: expected "auto", "on" or "off"')


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """The kind and the speed of an adapter: everything that tuning tables depend on."""

    name: Kind
    bandwidth: float  # bytes per second, read and written, in a copy
    flops: float  # f32 operations per second, a fused multiply-add counting as two
    dispatch_seconds: float  # per empty dispatch
    units: int  # workgroups of 256 invocations that run in parallel at full speed
    measured: bool = False  # on this adapter; otherwise assumed for its kind

    @property
    def busy(self) -> int:
        """Return the workgroups of 256 invocations that occupy it, as a power of two to ignore noise."""
        return _BUSY.get(self.name) or 1 << max(0, round(math.log2(self.units)))


CLASSES: Mapping[Kind, DeviceClass] = {  # assumed until `ptegpu doctor --measure` has measured them
    "discrete": DeviceClass("discrete", 4e12, 6e13, 2.2e-6, 132),  # an H200
    "integrated": DeviceClass("integrated", 6e10, 2e12, 5e-6, 16),  # a guess
    "software": DeviceClass("software", 8e9, 1e11, 3e-5, 2),  # lavapipe on two cores
}
_BUSY: Mapping[Kind, int] = {"software": 128}  # for any number of cores


@dataclass(frozen=True, slots=True)
class Target:
    """An adapter as kernel generators see it."""

    name: str = "generic"
    max_invocations: int = 256  # of one workgroup, and of its x dimension
    max_shared_bytes: int = 16384  # of `var<workgroup>` in one workgroup
    max_storage_buffers: int = 8  # bound to one dispatch
    max_binding_bytes: int = 134217728
    max_buffer_bytes: int = 268435456
    max_groups: int = 65535  # per dimension of a dispatch
    f16: bool = False
    subgroups: bool = False
    subgroup_size: int = 0  # the probed size; 0 if unknown or varying
    matrices: tuple[str, ...] = ()  # supported products: inputs, sums, rows x columns x depth ("f16 f32 16x16x16")
    precision: Precision = "auto"
    cache: Cache = "f32"
    kept_bytes: int = 0  # memory that kernels may use to keep rearranged weights
    few_rows: int = 8  # products of up to this many rows with packed weights have special kernels: fast, but large
    device_class: DeviceClass = CLASSES["discrete"]
    resident: int = 0  # workgroups of 256 invocations that may wait for each other inside a dispatch; 0: none

    @property
    def software(self) -> bool:
        """Return True for a CPU that emulates a GPU."""
        return self.device_class.name == "software"

    @property
    def team(self) -> int:
        """Return the invocations that share work: few on a CPU, where barriers are slow."""
        return self.workgroup(16 if self.software else 256)

    def workgroup(self, preferred: int) -> int:
        """Return the largest power of two that is at most `preferred` and within the adapter's limit."""
        if preferred < 1:
            raise ValueError(f"a workgroup needs at least 1 invocation, not {preferred}")
        return 1 << (min(preferred, self.max_invocations).bit_length() - 1)

    def lacks(self, other: Target) -> str:
        """Return what `other` lacks to run plans for this target; empty if it can run them."""
        missing = [
            f"{name} of {getattr(self, name)}, it has {getattr(other, name)}"
            for name in ("max_invocations", "max_shared_bytes", "max_storage_buffers", "max_binding_bytes")
            if getattr(other, name) < getattr(self, name)
        ]
        missing += [name for name in ("f16", "subgroups") if getattr(self, name) and not getattr(other, name)]
        missing += [f"matrices {m}" for m in self.matrices if m not in other.matrices]
        if other.precision == "exact" != self.precision and (self.f16 or self.matrices):
            missing.append("products that may round to f16")
        if self.subgroups and self.subgroup_size and self.subgroup_size != other.subgroup_size:
            missing.append(f"subgroups of {self.subgroup_size}")
        return ", ".join(missing)
