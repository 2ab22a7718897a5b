"""Products that compute what follows them give what both give one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cases import device, plan_of, run_plan

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Node, Tensor
from ptegpu.ops import REGISTRY
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.passes.memory import plan_memory
from ptegpu.plan.lower import lower
from ptegpu.plan.symbols import Symbols

F32, F16, U8 = DType.F32, DType.F16, DType.U8
TOLERANCE = {F32: 1e-5, F16: 2e-3}  # of the largest magnitude
GROUP = 32


class Builder:
    """A graph with random inputs and constants."""

    def __init__(self, dtype: DType = F32) -> None:
        self.graph, self.dtype, self.arrays = Graph("finished"), dtype, list[np.ndarray]()
        self.rng = np.random.default_rng(0)

    def input(self, *shape: int) -> Tensor:
        self.graph.inputs.append(Tensor(f"x{len(self.arrays)}", self.dtype, shape, "input"))
        self.arrays.append(self.rng.uniform(-1, 1, shape).astype(self.dtype.numpy))
        return self.graph.inputs[-1]  # type: ignore[return-value]

    def constant(self, *shape: int, dtype: DType | None = None) -> Tensor:
        dtype = dtype or self.dtype
        values = self.rng.integers(0, 256, shape) if dtype is U8 else self.rng.uniform(-0.1, 0.1, shape)
        return Tensor(f"w{len(self.graph.nodes)}.{shape}", dtype, shape, "constant", values.astype(dtype.numpy))

    def apply(self, op: str, *args: object, shape: tuple[int, ...]) -> Tensor:
        out = Tensor(f"t{len(self.graph.nodes)}", self.dtype, shape)
        self.graph.nodes.append(Node(REGISTRY[op], args, (out,), op))  # type: ignore[arg-type]
        return out

    def linear(self, x: Tensor, n: int, kind: str, *, bias: bool = False) -> Tensor:
        shape, k = (*x.shape[:-1], n), x.shape[-1]
        added = self.constant(n) if bias else None
        if kind == "q4":
            packed, scales = self.constant(n, k // 2, dtype=U8), self.constant(-(-k // GROUP), n)
            return self.apply("et_vk.linear_q4gsw.default", x, packed, scales, GROUP, added, shape=shape)
        if kind == "mm":
            return self.apply("aten.mm.default", x, self.constant(k, n), shape=shape)
        return self.apply("aten.linear.default", x, self.constant(n, k), added, shape=shape)


def run(b: Builder, joined: int | None, **limits: int) -> list[np.ndarray]:
    """The graph's results; with `joined`, as that many nodes."""
    gpu = device(limits.pop("f16", 1) == 1)
    if joined is not None:
        fuse_elementwise(b.graph)
        assert len(b.graph.nodes) == joined, b.graph
    return run_plan(plan_of(b.graph, replace(gpu.target, software=False, **limits)), b.arrays, gpu)


def residual(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    b = Builder(dtype)
    x, skip = b.input(m, k), b.input(m, n)
    made = b.linear(x, n, kind, bias=kind != "mm")
    b.graph.outputs = [b.apply("aten.add.Tensor", skip, made, 2, shape=(m, n))]
    return b


def swiglu(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    b = Builder(dtype)
    x = b.input(m, k)
    gate, up = b.linear(x, n, kind), b.linear(x, n, kind)
    sigmoid = b.apply("aten.sigmoid.default", gate, shape=(m, n))
    silu = b.apply("aten.mul.Tensor", gate, sigmoid, shape=(m, n))
    b.graph.outputs = [b.apply("aten.mul.Tensor", silu, up, shape=(m, n))]
    return b


def activated(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    b = Builder(dtype)
    made = b.linear(b.input(m, k), n, kind)
    gelu = b.apply("aten.gelu.default", made, "none", shape=(m, n))
    b.graph.outputs = [b.apply("aten.hardtanh.default", gelu, -0.05, 0.1, shape=(m, n))]
    return b


NODES = {residual: 1, swiglu: 2, activated: 1}
SIZES = [(1, 64, 12), (1, 96, 33), (3, 64, 10), (8, 32, 20), (17, 64, 36), (40, 70, 33), (1, 4, 6), (12, 1024, 12)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["linear", "mm", "q4"])
@pytest.mark.parametrize("make", NODES, ids=lambda f: f.__name__)
def test_every_kernel(make, kind, size):
    for dtype in (F32, F16) if size[0] in (1, 17) else (F32,):
        apart, joined = run(make(kind, *size, dtype), None), run(make(kind, *size, dtype), NODES[make])
        for a, j in zip(apart, joined, strict=True):
            np.testing.assert_allclose(j, a, rtol=0, atol=TOLERANCE[dtype] * float(np.abs(a).max()))


@pytest.mark.parametrize("kind", ["linear", "q4"])
@pytest.mark.parametrize("f16", [True, False])
def test_a_weight_in_parts(kind, f16):
    for dtype in (F32, F16):
        limits = {"f16": int(f16), "max_binding_bytes": 2048 if kind == "linear" else 512}
        apart = run(residual(kind, 2, 64, 24, dtype), None, **limits)
        joined = run(residual(kind, 2, 64, 24, dtype), 1, **limits)
        np.testing.assert_allclose(joined[0], apart[0], rtol=0, atol=TOLERANCE[dtype] * float(np.abs(apart[0]).max()))


def test_sizes_that_broadcast_only_in_a_call():
    """Declared alike, but one dimension is 1 in this call: the product stands alone, and the rest follows."""
    b = residual("linear", 4, 8, 12, F32)
    fuse_elementwise(b.graph)
    (only,) = b.graph.nodes
    x = b.graph.inputs[0]
    b.arrays[0] = b.arrays[0][:1]
    w, bias = only.args[1], only.args[2]
    gpu = device()
    memory = plan_memory(b.graph, gpu.target)
    x.shape = (1, 8)
    plan = lower(b.graph, memory, gpu.target, Symbols(b.graph))
    (got,) = run_plan(plan, b.arrays, gpu)
    want = b.arrays[1] + 2 * (b.arrays[0] @ w.data.T + bias.data)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
