"""Graphs of matrix products for the tests of fusing passes: fused nodes must compute the same as separate ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from tests.cases import device, plan_of, run_plan

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Node, Tensor
from ptegpu.ops import REGISTRY
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.plan.target import CLASSES, Target

Passes: TypeAlias = Sequence[Callable[[Graph], None]]
F32, F16, U8, I8 = DType.F32, DType.F16, DType.U8, DType.I8
TOLERANCE = {F32: 1e-5, F16: 2e-3}  # of the largest magnitude
MANY_BUFFERS = Target(max_storage_buffers=64)


class Builder:
    """A graph with random inputs and constants."""

    def __init__(self, dtype: DType = F32, scales: DType | None = None) -> None:
        self.graph, self.dtype, self.scales = Graph("siblings"), dtype, scales or dtype
        self.arrays: list[np.ndarray] = []
        self.rng = np.random.default_rng(0)

    def input(self, *shape: int) -> Tensor:
        x = Tensor(f"x{len(self.arrays)}", self.dtype, shape, "input")
        self.graph.inputs.append(x)
        self.arrays.append(self.rng.uniform(-1, 1, shape).astype(self.dtype.numpy))
        return x

    def constant(self, *shape: int, dtype: DType) -> Tensor:
        values = self.rng.uniform(-0.1, 0.1, shape) if dtype.is_float else self.rng.integers(0, 128, shape)
        return Tensor(f"w{len(self.graph.nodes)}.{shape}", dtype, shape, "constant", values.astype(dtype.numpy))

    def apply(self, op: str, *args: object, shape: tuple[int, ...]) -> Tensor:
        number = len(self.graph.nodes)
        out = Tensor(f"t{number}", self.dtype, shape)
        self.graph.nodes.append(Node(REGISTRY[op], args, (out,), f"{op} #{number}"))  # type: ignore[arg-type]
        return out

    def linear(self, x: Tensor, n: int, group: int = 32, *, bias: bool = False, packed: int | None = None) -> Tensor:
        """Apply a 4-bit linear, padded as the packer pads: K to 8, scales and bias to 4 columns."""
        k, columns = x.shape[-1], -(-n // 4) * 4
        weight = self.constant(n, packed or -(-k // 8) * 4, dtype=U8)
        scales = self.constant(-(-k // group), columns, dtype=self.scales)
        added = self.constant(columns, dtype=self.dtype) if bias else None
        args = (x, weight, scales, group, added)
        return self.apply("et_vk.linear_q4gsw.default", *args, shape=(*x.shape[:-1], n))

    def bytes_linear(self, x: Tensor, n: int) -> Tensor:
        args = (x, self.constant(n, x.shape[-1], dtype=I8), self.constant(n, dtype=self.dtype))
        return self.apply("aten._weight_int8pack_mm.default", *args, shape=(*x.shape[:-1], n))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) · up."""
        sigmoid = self.apply("aten.sigmoid.default", gate, shape=gate.shape)
        silu = self.apply("aten.mul.Tensor", gate, sigmoid, shape=gate.shape)
        return self.apply("aten.mul.Tensor", silu, up, shape=gate.shape)


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def join(b: Builder, passes: Passes) -> list[str]:
    """Fuse elementwise chains, run `passes`, and return the names of the remaining nodes."""
    for change in (fuse_elementwise, *passes):
        change(b.graph)
    return names(b.graph)


def run(
    b: Builder, passes: Passes, *, f16: bool = True, subgroups: bool = True, limits: str = "adapter", **target: int
) -> tuple[list[np.ndarray], int]:
    """Run the graph after these passes; return its results and the number of dispatches."""
    gpu = device(f16, subgroups, limits)
    join(b, passes)
    plan = plan_of(b.graph, replace(gpu.target, device_class=CLASSES["discrete"], **target))
    return run_plan(plan, b.arrays, gpu), len(plan.dispatches)


def same(make: Callable[[], Builder], dispatches: int | None, passes: Passes, **options: Any) -> None:
    """Check that the passes change no result, and that the graph then takes `dispatches` dispatches (None: any)."""
    expected, _ = run(make(), (), **options)
    actual, count = run(make(), passes, **options)
    if dispatches is not None:
        assert count == dispatches
    for e, a in zip(expected, actual, strict=True):
        scale = float(np.abs(e).max())
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE[DType.of(e.dtype)] * scale)
