"""`ptegpu.compile_module`, without PyTorch until it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .export.compiled import CompiledModule
    from .gpu import Device, Engine
    from .limits import Limits
    from .plan import Precision
    from .progress import Progress


def compile_module(
    module: torch.nn.Module,
    example: Any,
    dynamic_shapes: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    delegate: bool = True,
    check: bool = True,
    device: str | int | Device = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> CompiledModule:
    """Return a callable that computes `module` on the GPU, without a file in between. Needs the extra `export`.

    `example` holds the inputs to trace it with: a tuple, a dict of inputs by name, or a single input; `kwargs` are
    further inputs by name. `dynamic_shapes` are those of `torch.export`; a dynamic dimension needs an upper bound. The
    callable takes and returns torch tensors, grouped as the module's own. Parameters and buffers are copied: later
    changes of the module have no effect. Buffers that the module writes live on the GPU; `reset()` restores them.
    Gradients are not computed, and a module in training mode is refused.

    `delegate` and `check` are those of `ptegpu.export.export`; the others are those of `ptegpu.load`. A module that
    cannot be traced or lowered raises ExportError, one that ptegpu cannot run UnsupportedProgram.
    """
    from .export.compiled import compile_module

    loading: dict[str, Any] = {"device": device, "engine": engine, "precision": precision, "limits": limits}
    if progress is not None:
        loading["progress"] = progress
    return compile_module(module, example, dynamic_shapes, kwargs=kwargs, delegate=delegate, check=check, **loading)
