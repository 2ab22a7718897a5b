"""Run PyTorch programs exported to ExecuTorch's `.pte` on any GPU, through WebGPU.

import ptegpu
model = ptegpu.load("model.pte")
y = model(x)                        # NumPy in, NumPy out; torch in, torch out
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    Closed,
    DeviceError,
    DeviceLost,
    ExecutionError,
    ExportError,
    IndexOutOfRange,
    InvalidInput,
    InvalidProgram,
    KernelError,
    LimitExceeded,
    NoAdapter,
    OutOfMemory,
    PtegpuError,
    ShapeError,
    SubmitError,
    UnsupportedProgram,
)

if TYPE_CHECKING:
    from .runtime.executorch import Runtime, Verification
    from .runtime.program import Program, load

__version__ = "0.1.0"

_LAZY = {
    "load": ".runtime.program",
    "Program": ".runtime.program",
    "Runtime": ".runtime.executorch",
    "Verification": ".runtime.executorch",
}

__all__ = [
    "Closed",
    "DeviceError",
    "DeviceLost",
    "ExecutionError",
    "ExportError",
    "IndexOutOfRange",
    "InvalidInput",
    "InvalidProgram",
    "KernelError",
    "LimitExceeded",
    "NoAdapter",
    "OutOfMemory",
    "Program",
    "PtegpuError",
    "Runtime",
    "ShapeError",
    "SubmitError",
    "UnsupportedProgram",
    "Verification",
    "load",
]


def __getattr__(name: str) -> Any:
    """What needs a GPU library is imported when it is first used, so that `ptegpu.format` works without one."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module 'ptegpu' has no attribute {name!r}")
