"""PyTorch modules to `.pte` bytes, quickly and quietly: what tests and tools export with."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from typing import Any

import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.backends.vulkan.patterns import pattern_registry
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower


@functools.lru_cache(maxsize=1)
def cache_patterns() -> None:
    """The exporter traces its rotary patterns anew for every lowering; once is enough, and gives the same bytes."""
    for entry in pattern_registry.fusable_patterns.values():
        if entry.get_graphs_fn is not None:
            entry.get_graphs_fn = functools.lru_cache(maxsize=1)(entry.get_graphs_fn)


@contextlib.contextmanager
def quiet() -> Any:
    """Without the exporter's log lines and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    *,
    delegate: bool = True,
    options: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> bytes:
    """A `.pte` for `module`, lowered through the Vulkan/WebGPU partitioner unless `delegate` is false."""
    cache_patterns()
    with quiet():
        program = torch.export.export(module.eval(), args, dynamic_shapes=dynamic_shapes)
        partitioner = [VulkanPartitioner(options or {})] if delegate else []
        config = EdgeCompileConfig(_check_ir_validity=False)
        lowered = to_edge_transform_and_lower(program, partitioner=partitioner, compile_config=config)
        return bytes(lowered.to_executorch().buffer)
