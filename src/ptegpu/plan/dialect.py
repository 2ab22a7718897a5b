"""The one place where the two WGSL compilers differ: the `enable` lines in front of a kernel.

naga (wgpu, Firefox) has subgroup functions without asking and rejects `enable subgroups;`; Tint (Dawn, Chrome)
requires it. Both require `enable f16;`.
"""

from __future__ import annotations

from typing import Literal

from .plan import Feature, Kernel

Dialect = Literal["naga", "tint"]

_ENABLES: dict[Dialect, tuple[Feature, ...]] = {"naga": ("f16",), "tint": ("f16", "subgroups")}


def prelude(kernel: Kernel, dialect: Dialect) -> str:
    """The `enable` lines `kernel` needs; one line per directive, empty when it needs none."""
    return "".join(f"enable {feature};\n" for feature in _ENABLES[dialect] if feature in kernel.needs)


def source(kernel: Kernel, dialect: Dialect) -> str:
    """The complete WGSL text of `kernel`."""
    return prelude(kernel, dialect) + kernel.wgsl
