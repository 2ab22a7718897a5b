"""Products whose rows are results of products, on emulated matrix units: the results are those of separate nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.emulated import adapter
from tests.graphs import Sketch, engine_of
from tests.ops.test_tensor_core_products import Q4, Packed, normal

from ptegpu.dtypes import DType
from ptegpu.gpu import open_device
from ptegpu.gpu.device import Device
from ptegpu.graph.graph import Graph, Tensor
from ptegpu.ops import tensor_core_products
from ptegpu.passes import chains
from ptegpu.passes.chains import chain_products
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.passes.norms import fuse_norms
from ptegpu.passes.siblings import fuse_siblings
from ptegpu.plan.resolve import plan_at

DIM, INNER = 96, 256


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with adapter(open_device(engine="wgpu")) as device:
        device.target = replace(device.target, precision="auto", kept_bytes=1 << 22)
        yield device


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_core_products, "WORTH", 1)
    monkeypatch.setattr(tensor_core_products, "WORTH_FEW", 1)
    monkeypatch.setattr(tensor_core_products, "PART_FEW", 32)


def linear(s: Sketch, x: Tensor, n: int, seed: int) -> Tensor:
    return Packed.random(Q4, n, x.max_shape[-1], 32, 0.05, seed=seed).of(s, x)


def layer(m: int, *, inner: int = INNER, dim: int = DIM, outputs: tuple[int, ...] = (64, 48, 56)) -> Graph:
    """Return a decoder layer without attention: its output, gate and up, down, and the next projections."""
    s = Sketch()
    x = s.tensor("aten.add.Tensor", s.input(m, dim), linear(s, s.input(m, 64), dim, 1))
    h = s.tensor("et_vk.rms_norm.default", x, s.constant(normal(dim)), 1e-3)
    gate, up = (linear(s, h, inner, seed) for seed in (2, 3))
    gated = s.tensor("aten.mul.Tensor", s.tensor("aten.mul.Tensor", gate, s.tensor("aten.sigmoid.default", gate)), up)
    x = s.tensor("aten.add.Tensor", x, linear(s, gated, dim, 4))
    h = s.tensor("et_vk.rms_norm.default", x, s.constant(normal(dim)), 1e-5)
    s.returns(x, *(linear(s, h, n, 5 + k) for k, n in enumerate(outputs)))
    for rewrite in (fuse_elementwise, fuse_siblings, fuse_norms):
        rewrite(s.graph)
    return s.graph


def inputs(m: int, dim: int = DIM) -> list[np.ndarray]:
    scale = 10.0 ** (np.arange(m) % 9 - 4)[:, None]  # rows of very different size
    return [normal(m, dim, scale=scale), normal(m, 64, scale=scale)]


def run(gpu: Device, graph: Graph, arrays: list[np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    engine = engine_of(graph, gpu)
    plan = plan_at(engine.plan, [array.shape for array in arrays], lambda *_: 0)
    launched = [plan.kernels[d.kernel].name for d in plan.dispatches]
    return [np.asarray(y) for y in engine.run(arrays)], launched


@pytest.mark.parametrize(("m", "inner"), [(5, INNER), (16, INNER), (19, INNER), (50, 8224)])
def test_a_layer(gpu: Device, monkeypatch: pytest.MonkeyPatch, m: int, inner: int) -> None:
    joined, launched = run(gpu, layer(m, inner=inner), inputs(m))
    assert 3 == launched.count("matrix_finish_rows")
    assert 4 == sum(name.startswith("matrix_gemm") for name in launched) and 1 == launched.count("matrix_finish")
    monkeypatch.setattr(chains, "_product", lambda node: None)
    apart, launched = run(gpu, layer(m, inner=inner), inputs(m))
    assert 4 == launched.count("matrix_finish") and "matrix_finish_rows" not in launched
    for got, want in zip(joined, apart, strict=True):
        assert np.isfinite(want).all()
        most = np.abs(want).max(1, keepdims=True)
        assert (np.abs(got - want) <= 2e-3 * most).all()


def test_rows_that_do_not_become_blocks(gpu: Device) -> None:
    """There are many rows, or they are not of whole steps along K."""
    for graph, arrays in ((layer(70), inputs(70)), (layer(16, dim=80), inputs(16, 80))):
        _, launched = run(gpu, graph, arrays)
        assert launched.count("matrix_finish_rows") == (1 if len(arrays[0]) == 16 else 0)


def test_what_becomes_one_node() -> None:
    graph = layer(16)
    chain_products(graph)
    assert 1 == len(graph.nodes) and 4 == len(graph.nodes[0].members)


def test_a_result_in_halves_stays() -> None:
    s = Sketch()
    x = Packed.random(Q4, 64, 64, 32, dtype=np.float16).of(s, s.input(16, 64, dtype=DType.F16))
    s.returns(Packed.random(Q4, 64, 64, 32, dtype=np.float16).of(s, x))
    with adapter(open_device(engine="wgpu")) as gpu:
        gpu.target = replace(gpu.target, precision="auto", kept_bytes=1 << 22)
        _, launched = run(gpu, s.graph, [normal(16, 64, dtype=np.float16)])
    assert "matrix_finish_rows" not in launched and 2 == launched.count("matrix_finish")
