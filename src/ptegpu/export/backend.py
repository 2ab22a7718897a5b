"""ExecuTorch and torchao, imported without their noise, and everything that this package takes from them.

Importing this registers the operators `et_vk::*`, `llama::*`, `quantized_decomposed::*` and `torchao::*`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ExportError


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without log lines, warnings and prints; the root logger keeps its level."""
    root = logging.getLogger()
    disabled, level = root.manager.disable, root.level
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)


try:
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        import executorch.kernels.quantized  # noqa: F401  (registers what quantized modules have outside partitions)
        import torch
        from executorch.backends.vulkan import utils
        from executorch.backends.vulkan.op_registry import OpFeatures, vulkan_supported_ops
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import (
            VulkanPartitioner,
            VulkanSupportedOperators,
        )
        from executorch.backends.vulkan.patterns import pattern_registry
        from executorch.backends.vulkan.serialization.vulkan_graph_builder import VkGraphBuilder
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
        from executorch.exir.dialects._ops import ops
        from executorch.exir.dialects.edge._ops import EdgeOpOverload
        from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, ProxyValue, map_args
        from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
        from executorch.extension.llm.custom_ops import custom_ops
        from safetensors import SafetensorError, safe_open
        from torchao.quantization.quant_primitives import (
            MappingType,
            choose_qparams_affine,
            dequantize_affine,
            quantize_affine,
        )
except ImportError as e:
    raise ExportError(f"{e}. To export, run: pip install 'ptegpu[export]'") from e

__all__ = [
    "EdgeCompileConfig",
    "EdgeOpOverload",
    "ExportedProgramPassBase",
    "ExportedProgramPassResult",
    "MappingType",
    "OpFeatures",
    "SafetensorError",
    "VulkanPartitioner",
    "VulkanSupportedOperators",
    "admit_packed_weights",
    "cache_patterns",
    "choose_qparams_affine",
    "custom_ops",
    "dequantize_affine",
    "keep_unread_inputs",
    "ops",
    "quantize_affine",
    "quiet",
    "safe_open",
    "to_edge_transform_and_lower",
    "torch",
    "utils",
    "vulkan_supported_ops",
    "widen_symbols",
]


@functools.lru_cache(maxsize=1)
def cache_patterns() -> None:
    """The exporter traces its rotary patterns anew for every lowering; once is enough, and gives the same bytes."""
    for entry in pattern_registry.fusable_patterns.values():
        if entry.get_graphs_fn is not None:
            entry.get_graphs_fn = functools.lru_cache(maxsize=1)(_without_reset(entry.get_graphs_fn))


def _without_reset(function: Callable[[], Any]) -> Callable[[], Any]:
    """Tracing strictly, PyTorch forgets all that `torch.compile` has compiled so far; there is no need to."""

    def call() -> Any:
        reset = torch._dynamo.reset
        torch._dynamo.reset = lambda: None
        try:
            return function()
        finally:
            torch._dynamo.reset = reset

    return call


@functools.lru_cache(maxsize=1)
def admit_packed_weights() -> None:
    """The partitioner makes these operators out of patterns only: found in a program, their packed weights are no
    floats to it and it leaves them out."""
    for op in (ops.edge.et_vk.linear_q4gsw.default, ops.edge.et_vk.linear_dq8ca_q4gsw.default):
        vulkan_supported_ops[op].inputs_dtypes = utils.DtypeSetList(utils.ALL_T)


@functools.lru_cache(maxsize=1)
def keep_unread_inputs() -> None:
    """Keep the inputs of a partition that nothing reads once its operators are joined, as sizes for the views around
    a quantized layer. The exporter leaves them out, and its file does not say which: calls give them all the same."""
    original = VkGraphBuilder.process_placeholder_node

    @functools.wraps(original)
    def process_placeholder_node(self: Any, node: torch.fx.Node) -> None:
        if node.users or utils.is_param_node(self.program, node):
            original(self, node)
        else:
            self.input_ids.append(self.create_node_value(node))

    VkGraphBuilder.process_placeholder_node = process_placeholder_node


@functools.lru_cache(maxsize=1)
def widen_symbols() -> None:
    """Keep all bits of symbolic ints that operators take as tensors: the exporter makes int32 of each. It still does
    of those that fit, and beside tensors of other types than int64 and float64, whose result is the same."""
    original = SymToTensorPass.call_operator

    def call_operator(self: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        given = [a.data.dtype for a in args if isinstance(a, ProxyValue) and a.is_tensor()]
        wide = next((d for d in (torch.float64, torch.int64) if d in given), None)

        def widened(value: Any, parameter: Any) -> Any:
            if not isinstance(parameter.type, torch.TensorType) or not _may_exceed_int32(value):
                return value
            return original(self, torch.ops.aten.scalar_tensor.default, (value,), {"dtype": wide}, meta)

        if wide is not None:
            args, kwargs = map_args(op, widened, args, kwargs)
        return original(self, op, args, kwargs, meta)

    SymToTensorPass.call_operator = call_operator


def _may_exceed_int32(value: Any) -> bool:
    """Return whether it is a symbolic int with no bounds within 32 bits."""
    if not isinstance(value, ProxyValue) or not isinstance(value.data, torch.SymInt):
        return False
    node = value.data.node
    found = node.shape_env.bound_sympy(node.expr)
    return bool(found.lower < -(2**31) or found.upper >= 2**31)
