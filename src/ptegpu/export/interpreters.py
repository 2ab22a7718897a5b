"""Graphs that Dynamo found, run node by node: to trace them, and to see which line calls which operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Interpreter, Node
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from .backend import torch

PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


class Plain(Interpreter):
    """Numbers are numbers already, gradients are off, and layers of attention are made of several operators."""

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
    """What `torch._transformer_encoder_layer_fwd` computes without a mask."""
    norm1, norm2 = rest[:2], rest[2:4]
    up, up_bias, down, down_bias = rest[4:]

    def attended(y: torch.Tensor) -> torch.Tensor:  # (B, T, D)
        parts = F.linear(y, qkv, qkv_bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])  # (B, heads, T, D / heads)
        return F.linear(found.transpose(1, 2).flatten(2), out, out_bias)

    def fed(y: torch.Tensor) -> torch.Tensor:
        inner = F.linear(y, up, up_bias)
        return F.linear(F.gelu(inner) if gelu else F.relu(inner), down, down_bias)

    def normed(y: torch.Tensor, norm: Sequence[torch.Tensor]) -> torch.Tensor:
        return F.layer_norm(y, y.shape[-1:], norm[0], norm[1], epsilon)

    if norm_first:
        x = x + attended(normed(x, norm1))
        return x + fed(normed(x, norm2))
    x = normed(x + attended(x), norm1)
    return normed(x + fed(x), norm2)


class Watched(Interpreter):
    """Runs a graph and sees which of its nodes calls which operators."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[str, Node] = {}
        self.node: Node | None = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with _Dispatch(self):
            return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        self.node = n
        return super().run_node(n)

    def place(self, operator: str | None) -> str:
        """Where an operator is called, or the first one: file.py:12 in forward of Model."""
        node = self.seen.get(operator) if operator else next(iter(self.seen.values()), None)
        found = PLACE.findall(node.meta.get("stack_trace") or "") if node is not None else []
        if not found:
            return ""
        file, line, function = found[-1]
        owners = [getattr(kind, "__name__", str(kind).rpartition(".")[2]) for _, kind in _owners(node)]
        return f"{file.rpartition('/')[2]}:{line} in {function}" + (f" of {owners[-1]}" if owners else "")


def _owners(node: Node | None) -> list[tuple[str, Any]]:
    return list((node.meta.get("nn_module_stack") or {}).values()) if node is not None else []


class _Dispatch(TorchDispatchMode):
    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self.watched = watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.watched.node is not None:
            self.watched.seen.setdefault(func.overloadpacket.__name__, self.watched.node)
        return func(*args, **(kwargs or {}))
