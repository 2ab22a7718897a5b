"""ExecuTorch and torchao, imported without their output, and corrections of their exporter.

Importing this module registers the operators `et_vk::*`, `llama::*`, `quantized_decomposed::*` and `torchao::*`.
"""
# ruff: noqa: F401 (the other modules import from here)

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
    """Suppress log lines, warnings and prints; the root logger keeps its level."""
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
        import executorch.kernels.quantized  # registers the operators of quantized modules outside partitions
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


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute for a while."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@functools.lru_cache(maxsize=1)
def cache_patterns() -> None:
    """Trace the exporter's rotary patterns once, not for every lowering; the bytes are the same."""
    for entry in pattern_registry.fusable_patterns.values():
        if entry.get_graphs_fn is not None:
            entry.get_graphs_fn = functools.lru_cache(maxsize=1)(_without_reset(entry.get_graphs_fn))


def _without_reset(function: Callable[[], Any]) -> Callable[[], Any]:
    """Keep what `torch.compile` has compiled, which tracing strictly would needlessly discard."""

    def call() -> Any:
        with replaced(torch._dynamo, "reset", lambda: None):
            return function()

    return call


@functools.lru_cache(maxsize=1)
def admit_packed_weights() -> None:
    """Let the partitioner take operators with packed weights, which it otherwise accepts only as a result of its own
    patterns, because their weights are not floats.
    """
    for op in (ops.edge.et_vk.linear_q4gsw.default, ops.edge.et_vk.linear_dq8ca_q4gsw.default):
        vulkan_supported_ops[op].inputs_dtypes = utils.DtypeSetList(utils.ALL_T)


@functools.lru_cache(maxsize=1)
def keep_unread_inputs() -> None:
    """Keep the inputs of a partition that nothing reads once its operators are fused, such as sizes for the views
    around a quantized layer. The exporter would drop them without recording which, and calls still pass them.
    """
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
    """Keep all bits of symbolic ints that become tensors; the exporter would convert each to int32.

    It still does for those that fit, and beside tensors of types other than int64 and float64: the result is the same.
    """
    original = SymToTensorPass.call_operator

    def call_operator(self: Any, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        dtypes = [a.data.dtype for a in args if isinstance(a, ProxyValue) and a.is_tensor()]
        wide = next((d for d in (torch.float64, torch.int64) if d in dtypes), None)

        def widened(value: Any, parameter: Any) -> Any:
            if not isinstance(parameter.type, torch.TensorType) or not _may_exceed_int32(value):
                return value
            return original(self, torch.ops.aten.scalar_tensor.default, (value,), {"dtype": wide}, meta)

        if wide is not None:
            args, kwargs = map_args(op, widened, args, kwargs)
        return original(self, op, args, kwargs, meta)

    SymToTensorPass.call_operator = call_operator


def _may_exceed_int32(value: Any) -> bool:
    """Return whether a value is a symbolic int whose bounds exceed 32 bits."""
    if not isinstance(value, ProxyValue) or not isinstance(value.data, torch.SymInt):
        return False
    node = value.data.node
    bounds = node.shape_env.bound_sympy(node.expr)
    return bool(bounds.lower < -(2**31) or bounds.upper >= 2**31)
