"""Interpreters of Dynamo's graphs: one to trace them, one to record which line calls which operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Interpreter, Node
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from .backend import torch

PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


class TraceableInterpreter(Interpreter):
    """An interpreter for tracing: numbers are not tensors, gradients are off, and attention layers are decomposed."""

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if target == "item" and isinstance(args[0], float) else super().call_method(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch._C._set_grad_enabled:
            return None
        if target is torch._transformer_encoder_layer_fwd and args[18] is None and not kwargs:
            return _encoder_layer(*args[:18])
        return super().call_function(target, args, kwargs)


def _encoder_layer(
    x: torch.Tensor, _width: int, heads: int, qkv: torch.Tensor, qkv_bias: torch.Tensor, out: torch.Tensor,
    out_bias: torch.Tensor, gelu: bool, norm_first: bool, epsilon: float, *rest: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Compute `torch._transformer_encoder_layer_fwd` without a mask."""
    norm1, norm2 = rest[:2], rest[2:4]
    up, up_bias, down, down_bias = rest[4:]

    def attention(y: torch.Tensor) -> torch.Tensor:  # (B, T, D)
        parts = F.linear(y, qkv, qkv_bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])  # (B, heads, T, D / heads)
        return F.linear(y.transpose(1, 2).flatten(2), out, out_bias)

    def feed_forward(y: torch.Tensor) -> torch.Tensor:
        inner = F.linear(y, up, up_bias)
        return F.linear(F.gelu(inner) if gelu else F.relu(inner), down, down_bias)

    def normed(y: torch.Tensor, norm: Sequence[torch.Tensor]) -> torch.Tensor:
        return F.layer_norm(y, y.shape[-1:], norm[0], norm[1], epsilon)

    if norm_first:
        x = x + attention(normed(x, norm1))
        return x + feed_forward(normed(x, norm2))
    x = normed(x + attention(x), norm1)
    return normed(x + feed_forward(x), norm2)


class OperatorRecorder(Interpreter):
    """An interpreter that records which node of a graph calls which operators."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.callers: dict[str, Node] = {}  # the first, by operator
        self.node: Node | None = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with _RecordingMode(self):
            return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)

    def place(self, operator: str | None) -> str:
        """Return the place of an operator's call, or of the first one: file.py:12 in forward of Model."""
        node = self.callers.get(operator) if operator else next(iter(self.callers.values()), None)
        frames = PLACE.findall(node.meta.get("stack_trace") or "") if node is not None else []
        if node is None or not frames:
            return ""
        file, line, function = frames[-1]
        owners = [kind for _, kind in (node.meta.get("nn_module_stack") or {}).values()]
        owner = f" of {getattr(owners[-1], '__name__', str(owners[-1]).rpartition('.')[2])}" if owners else ""
        return f"{file.rpartition('/')[2]}:{line} in {function}{owner}"


class _RecordingMode(TorchDispatchMode):
    def __init__(self, recorder: OperatorRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.recorder.node is not None:
            self.recorder.callers.setdefault(func.overloadpacket.__name__, self.recorder.node)
        return func(*args, **(kwargs or {}))
