"""Products fused with the operators after them: the results stay the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cases import close, device, plan_of, run_plan
from tests.passes import products
from tests.passes.products import TOLERANCE

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Tensor
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.plan.target import CLASSES

F32, F16 = DType.F32, DType.F16


class Builder(products.Builder):
    """A graph with products of three kinds."""

    def product(self, x: Tensor, n: int, kind: str, *, bias: bool = False) -> Tensor:
        shape, k = (*x.shape[:-1], n), x.shape[-1]
        if kind == "q4":
            return self.linear(x, n, bias=bias)
        if kind == "mm":
            return self.apply("aten.mm.default", x, self.constant(k, n, dtype=self.dtype), shape=shape)
        added = self.constant(n, dtype=self.dtype) if bias else None
        return self.apply("aten.linear.default", x, self.constant(n, k, dtype=self.dtype), added, shape=shape)


def run(b: Builder, joined: int | None, **limits: int) -> list[np.ndarray]:
    """Return the graph's results; with `joined`, fuse first and expect that many nodes."""
    gpu = device(limits.pop("f16", 1) == 1)
    if joined is not None:
        fuse_elementwise(b.graph)
        assert len(b.graph.nodes) == joined, b.graph
    return run_plan(plan_of(b.graph, replace(gpu.target, device_class=CLASSES["discrete"], **limits)), b.arrays, gpu)


def residual(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    b = Builder(dtype)
    x, skip = b.input(m, k), b.input(m, n)
    product = b.product(x, n, kind, bias=kind != "mm")
    b.graph.outputs = [b.apply("aten.add.Tensor", skip, product, 2, shape=(m, n))]
    return b


def swiglu(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    b = Builder(dtype)
    x = b.input(m, k)
    b.graph.outputs = [b.gated(b.product(x, n, kind), b.product(x, n, kind))]
    return b


def activated(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    b = Builder(dtype)
    product = b.product(b.input(m, k), n, kind)
    gelu = b.apply("aten.gelu.default", product, "none", shape=(m, n))
    b.graph.outputs = [b.apply("aten.hardtanh.default", gelu, -0.05, 0.1, shape=(m, n))]
    return b


NODES = {residual: 1, swiglu: 2, activated: 1}
SIZES = [(1, 64, 12), (1, 96, 33), (3, 64, 10), (8, 32, 20), (17, 64, 36), (40, 70, 33), (1, 4, 6), (12, 1024, 12)]


@pytest.mark.slow
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
    """A dimension is 1 only in this call: the product gets its own dispatch, and the addition broadcasts after it."""
    b = residual("linear", 4, 8, 12, F32)
    fuse_elementwise(b.graph)
    (only,) = b.graph.nodes
    b.arrays[0] = b.arrays[0][:1]
    w, bias = only.args[1], only.args[2]
    gpu = device()
    (got,) = run_plan(plan_of(b.graph, gpu.target, b.arrays, dynamic=True), b.arrays, gpu)
    want = b.arrays[1] + 2 * (b.arrays[0] @ w.data.T + bias.data)
    close(got, want)


def viewed(kind: str, m: int, k: int, n: int, dtype: DType) -> Builder:
    """Build a product, a view, a vector added to all rows and a tensor shared by the batch, as after attention."""
    b = Builder(dtype)
    product = b.product(b.input(m, k), n, kind)
    view = b.apply("aten.view_copy.default", product, (2, m // 2, n), shape=(2, m // 2, n))
    added = b.apply("aten.add.Tensor", view, b.constant(n, dtype=dtype), shape=(2, m // 2, n))
    positions = b.apply("aten.mul.Tensor", added, b.input(1, m // 2, n), shape=(2, m // 2, n))
    b.graph.outputs = [b.apply("aten.relu.default", positions, shape=(2, m // 2, n))]
    return b


@pytest.mark.parametrize("size", [(2, 64, 12), (8, 32, 21), (40, 64, 36), (12, 1024, 12)], ids=str)
@pytest.mark.parametrize("kind", ["linear", "mm", "q4"])
def test_what_repeats_and_views(kind, size):
    apart, joined = run(viewed(kind, *size, F32), None), run(viewed(kind, *size, F32), 1)
    np.testing.assert_allclose(joined[0], apart[0], rtol=0, atol=TOLERANCE[F32] * float(np.abs(apart[0]).max()))


CONVOLUTIONS = {  # x, weight, output, stride, padding, groups, transposed
    "windows": ((2, 5, 7, 6), (9, 5, 3, 3), (2, 9, 7, 6), 1, 1, 1, False),
    "pointwise": ((2, 12, 8, 6), (20, 12, 1, 1), (2, 20, 8, 6), 1, 0, 1, False),
    "whole image": ((3, 4, 5, 5), (12, 4, 5, 5), (3, 12, 1, 1), 1, 0, 1, False),
    "direct in quads": ((2, 6, 7, 8), (6, 1, 3, 3), (2, 6, 7, 8), 1, 1, 6, False),
    "direct": ((2, 6, 7, 6), (6, 1, 3, 3), (2, 6, 4, 3), 2, 1, 6, False),
    "parts of K": ((1, 64, 4, 4), (12, 64, 3, 3), (1, 12, 4, 4), 1, 1, 1, False),
    "transposed": ((2, 4, 4, 4), (4, 3, 3, 3), (2, 3, 9, 9), 2, 0, 1, True),
    "transposed, by phases": ((2, 16, 4, 4), (16, 12, 2, 2), (2, 12, 8, 8), 2, 0, 1, True),
}


def convolution(case: str, dtype: DType) -> Builder:
    """Build the end of a residual block: the activation of a convolution plus the shortcut."""
    b = Builder(dtype)
    x, weight, shape, stride, padding, groups, transposed = CONVOLUTIONS[case]
    operands = (b.input(*x), b.constant(*weight, dtype=dtype), b.constant(shape[1], dtype=dtype))
    geometry = ((stride,) * 2, (padding,) * 2, (1, 1), transposed, (0, 0), groups)
    result = b.apply("et_vk.conv_with_clamp.default", *operands, *geometry, -0.3, 0.3, shape=shape)
    added = b.apply("aten.add.Tensor", result, b.input(*shape), shape=shape)
    b.graph.outputs = [b.apply("aten.hardswish.default", added, shape=shape)]
    return b


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("f16", [True, False])
def test_every_kernel_of_convolutions(case, f16):
    for dtype in (F32, F16):
        apart = run(convolution(case, dtype), None, f16=int(f16))
        joined = run(convolution(case, dtype), 1, f16=int(f16))
        np.testing.assert_allclose(joined[0], apart[0], rtol=0, atol=TOLERANCE[dtype] * float(np.abs(apart[0]).max()))
