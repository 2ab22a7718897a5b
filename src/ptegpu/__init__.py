"""Run PyTorch programs exported to ExecuTorch's `.pte` on any GPU, through WebGPU.

    import ptegpu

    program = ptegpu.load("model.pte")
    y = program(x)                           # NumPy in, NumPy out; torch in, torch out
    program.method("forward").inputs         # names, dtypes and bounds of its inputs
    ptegpu.open("vit.pte")("cat.png")        # a model of the right kind: see `ptegpu export`
    ptegpu.compile("model.pte").save("model.bundle")  # needs no GPU; `load` also accepts bundles
    gpu = ptegpu.compile_module(module, (x,))         # an nn.Module without a file; or torch.compile

`ptegpu.export` writes such files (extra `export`), `ptegpu.models.text` runs language models (extra `llm`), and the
command `ptegpu --help` does both from a shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    QueueFull,
    ShapeError,
    SubmitError,
    UnsupportedProgram,
)
from .lazy import lazy
from .limits import Limits

if TYPE_CHECKING:
    from .models.compiling import compile
    from .models.door import open
    from .models.tasks.pipeline import Pipeline, pipeline
    from .module import compile_module
    from .plan.bundle import Bundle
    from .runtime.executorch import Runtime, Verification
    from .runtime.metadata import MethodMeta, TensorInfo
    from .runtime.program import LoadOptions, Method, Program, load
    from .runtime.signature import Spec

__version__ = "0.1.0"

_LAZY = {
    "Bundle": ".plan.bundle",
    "compile": ".models.compiling",
    "compile_module": ".module",
    "load": ".runtime.program",
    "LoadOptions": ".runtime.program",
    "Method": ".runtime.program",
    "MethodMeta": ".runtime.metadata",
    "open": ".models.door",
    "Pipeline": ".models.tasks.pipeline",
    "pipeline": ".models.tasks.pipeline",
    "Program": ".runtime.program",
    "Runtime": ".runtime.executorch",
    "Spec": ".runtime.signature",
    "TensorInfo": ".runtime.metadata",
    "Verification": ".runtime.executorch",
}

__all__ = [
    "Bundle",
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
    "Limits",
    "LoadOptions",
    "Method",
    "MethodMeta",
    "NoAdapter",
    "OutOfMemory",
    "Pipeline",
    "Program",
    "PtegpuError",
    "QueueFull",
    "Runtime",
    "ShapeError",
    "Spec",
    "SubmitError",
    "TensorInfo",
    "UnsupportedProgram",
    "Verification",
    "compile",
    "compile_module",
    "load",
    "open",
    "pipeline",
]


__getattr__ = lazy(__name__, _LAZY)  # so that `ptegpu.format` works without a GPU library


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "annotations", "lazy"})
