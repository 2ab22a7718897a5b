"""What kernels are generated for: the limits and features of an adapter as plain data, without wgpu.

The defaults are those every browser grants, so `Target()` is the configuration that runs anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    software: bool = False  # a CPU pretending to be a GPU

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
        if self.subgroups and self.subgroup_size and self.subgroup_size != other.subgroup_size:
            found.append(f"subgroups of {self.subgroup_size}")
        return ", ".join(found)
