"""What kernels are generated for: limits, features and class of an adapter as plain data, without wgpu.

The defaults are those every browser grants, so `Target()` is the configuration that runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidInput

Kind = Literal["discrete", "integrated", "software"]
Cache = Literal["f32", "f16"]  # what key-value caches are stored in, where the program says float32
Precision = Literal["exact", "auto", "fast"]  # whether products may round to f16; auto: if b is f16 or packed


def check_precision(precision: str) -> None:
    """Raises InvalidInput for what is none."""
    if precision not in ("exact", "auto", "fast"):
        raise InvalidInput(f'precision is "auto", "exact" or "fast", not {precision!r}')


def check_cache(cache: str) -> None:
    """The same."""
    if cache not in ("f32", "f16"):
        raise InvalidInput(f'cache is "f32" or "f16", not {cache!r}')


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What an adapter is and can do: all that tuning tables know of one GPU or another."""

    name: Kind
    bandwidth: float  # bytes per second, read and written, of a kernel that copies
    flops: float  # f32 operations per second, a fused multiply-add counting as two
    dispatch_seconds: float  # of a dispatch that does nothing, after another one
    units: int  # workgroups of 256 invocations that compute side by side, each as fast as one alone
    measured: bool = False  # on this adapter; otherwise assumed of all of its kind

    @property
    def busy(self) -> int:
        """Workgroups of 256 invocations that keep it occupied. Powers of two, so that plans depend on no noise."""
        return _BUSY.get(self.name) or 1 << max(0, round(math.log2(self.units)))


CLASSES: Mapping[Kind, DeviceClass] = {  # what is assumed until `ptegpu doctor --measure` has found it out
    "discrete": DeviceClass("discrete", 4e12, 6e13, 2.2e-6, 132),  # an H200
    "integrated": DeviceClass("integrated", 6e10, 2e12, 5e-6, 16),  # a guess
    "software": DeviceClass("software", 8e9, 1e11, 3e-5, 2),  # lavapipe on two cores
}
_BUSY: Mapping[Kind, int] = {"software": 128}  # whatever the number of its cores


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
    subgroup_size: int = 0  # the probed size; 0 when unknown or varying
    matrices: tuple[str, ...] = ()  # what subgroups multiply: inputs, sums, rows x columns x depth ("f16 f32 16x16x16")
    precision: Precision = "auto"
    cache: Cache = "f32"
    kept_bytes: int = 0  # that may be taken to keep what is made of weights, in the form that kernels want
    few_rows: int = 8  # up to which products with packed weights have kernels of their own: fast, and large
    device_class: DeviceClass = CLASSES["discrete"]

    @property
    def software(self) -> bool:
        """Whether it is a processor that computes, and no GPU."""
        return self.device_class.name == "software"

    @property
    def team(self) -> int:
        """Invocations that work together: few on a processor, where each of them waits long at a barrier."""
        return self.workgroup(16 if self.software else 256)

    def workgroup(self, preferred: int) -> int:
        """The largest power of two that is at most `preferred` and within the adapter's limit."""
        if preferred < 1:
            raise ValueError(f"a workgroup needs at least 1 invocation, not {preferred}")
        return 1 << (min(preferred, self.max_invocations).bit_length() - 1)

    def lacks(self, other: Target) -> str:
        """What `other` would need to run what was made for this; empty if it has all."""
        found = [
            f"{name} of {getattr(self, name)}, it has {getattr(other, name)}"
            for name in ("max_invocations", "max_shared_bytes", "max_storage_buffers", "max_binding_bytes")
            if getattr(other, name) < getattr(self, name)
        ]
        found += [name for name in ("f16", "subgroups") if getattr(self, name) and not getattr(other, name)]
        found += [f"matrices {m}" for m in self.matrices if m not in other.matrices]
        if other.precision == "exact" != self.precision and (self.f16 or self.matrices):
            found.append("products that may round to f16")
        if self.subgroups and self.subgroup_size and self.subgroup_size != other.subgroup_size:
            found.append(f"subgroups of {self.subgroup_size}")
        return ", ".join(found)
