"""The directives in front of a kernel, the only difference between the two dialects of WGSL.

naga (wgpu, Firefox) has subgroup functions without a directive and rejects `enable subgroups;`; Tint (Dawn, Chrome)
requires it. Both require `enable f16;`. Only Tint has matrices.
"""

from __future__ import annotations

from typing import Literal

from .plan import Feature, Kernel

Dialect = Literal["naga", "tint"]

_DIRECTIVES: dict[Dialect, dict[Feature, str]] = {
    "naga": {"f16": "enable f16;\n"},
    "tint": {
        "f16": "enable f16;\n",
        "subgroups": "enable subgroups;\n",
        "matrices": "enable chromium_experimental_subgroup_matrix;\n"
        "diagnostic(off, chromium.subgroup_matrix_uniformity);\n",
    },
}


def prelude(kernel: Kernel, dialect: Dialect) -> str:
    """Return the directives that `kernel` needs, one per line."""
    return "".join(line for feature, line in _DIRECTIVES[dialect].items() if feature in kernel.needs)


def source(kernel: Kernel, dialect: Dialect) -> str:
    """Return the complete WGSL text of `kernel`."""
    return prelude(kernel, dialect) + kernel.wgsl
