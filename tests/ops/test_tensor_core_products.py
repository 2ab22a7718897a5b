"""Products on emulated matrix units: f16 rounding error, edges of tiles, values beyond the range of f16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.emulated import adapter
from tests.families import hold, points
from tests.graphs import Sketch, engine_of, plan_of

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.gpu import open_device
from ptegpu.gpu.device import Device
from ptegpu.graph.graph import Tensor
from ptegpu.graph.schema import Parameter
from ptegpu.kernels.tensor_core_blocks import NEEDS
from ptegpu.kernels.tensor_core_products import LARGE, TILES
from ptegpu.ops import tensor_core_products
from ptegpu.ops.product import Product
from ptegpu.ops.registry import OpDef, Out, Steps
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.passes.norms import fuse_norms
from ptegpu.passes.siblings import fuse_siblings
from ptegpu.plan.target import Precision, Target

Array = np.ndarray[Any, Any]
TARGET = Target(f16=True, subgroups=True, subgroup_size=32, matrices=NEEDS, max_shared_bytes=49152)
Q4, C4, C8, LINEAR, MM = (
    "et_vk.linear_q4gsw.default",
    "et_vk.linear_qcs4w.default",
    "aten._weight_int8pack_mm.default",
    "aten.linear.default",
    "aten.mm.default",
)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with adapter(open_device(engine="wgpu")) as device:
        yield device


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_core_products, "WORTH", 1)
    monkeypatch.setattr(tensor_core_products, "WORTH_FEW", 1)
    monkeypatch.setattr(tensor_core_products, "PART_FEW", 128)
    monkeypatch.setattr(tensor_core_products, "WORTH_TWICE", 1)
    monkeypatch.setattr(tensor_core_products, "PART", 512)
    monkeypatch.setattr(tensor_core_products, "EXACT", 512)


@pytest.fixture(params=[LARGE, TILES[2]], ids=["large", "small"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the tile size of products on matrix units."""
    monkeypatch.setattr(tensor_core_products, "tile_of", lambda p: request.param)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight of packed ints, its quantisation arguments, and the floats (N, K) it represents."""

    op: str
    args: tuple[Any, ...]
    values: Array

    @staticmethod
    def random(
        op: str, n: int, k: int, group: int, scales: Array | float = 1.0, dtype: Any = np.float32, seed: int = 0
    ) -> Packed:
        """Return a random weight whose scales are between 1/2 and 3/2 times `scale`, a number or (groups, n)."""
        rng = np.random.default_rng([n, k, group, seed])
        factors = (rng.uniform(0.5, 1.5, (-(-k // group), n)) * scales).astype(dtype)
        if op == C8:
            stored = rng.integers(-128, 128, (n, k), np.int8)
            ints = stored.astype(np.float64)
        else:
            stored = rng.integers(0, 256, (n, k // 2), np.uint8)
            halves = [stored & 15, stored >> 4]
            ints = np.stack(halves[:: -1 if op == C4 else 1], -1).reshape(n, k) - 8.0
        args = (stored, factors, group) if op == Q4 else (stored, factors[0])
        return Packed(op, args, ints * np.repeat(factors.astype(np.float64), group, 0)[:k].T)

    def of(self, s: Sketch, x: Tensor, *bias: Tensor) -> Tensor:
        """Multiply x by the weight's transpose."""
        args = [s.constant(a) if isinstance(a, np.ndarray) else a for a in self.args]
        return s.tensor(self.op, x, *args, *bias)


def normal(*shape: int, scale: Array | float = 1.0, dtype: Any = np.float32) -> Array:
    """Return normal random values that depend only on the shape."""
    return (np.random.default_rng(shape).standard_normal(shape) * scale).astype(dtype)


def run(gpu: Device, s: Sketch, y: Tensor, *inputs: Array, precision: Precision = "auto") -> Array:
    """Run a graph on matrix units."""
    gpu.target = replace(gpu.target, precision=precision)
    engine = engine_of(s.returns(y), gpu)
    assert any(k.name.startswith("matrix_gemm") for k in engine.plan.kernels), [k.name for k in engine.plan.kernels]
    return np.asarray(engine.run(list(inputs))[0])


def compare(y: Array, x: Array, w: Array, added: Array | float = 0.0, most: float = 2**-10) -> None:
    """Compare y with x (…, M, K) · w (…, N, K)ᵀ + added.

    The error of each element is bounded by rounding x and w to f16; the mean error is far smaller, and every error is
    within 2e-3 of the largest element.
    """
    x, w = x.astype(np.float64), w.astype(np.float64)
    right = x @ np.swapaxes(w, -1, -2) + added
    size = np.abs(x) @ np.swapaxes(np.abs(w), -1, -2) + 1e-3 * np.abs(added)
    assert y.shape == right.shape and np.isfinite(y).all()
    error = np.abs(y - right)
    if y.dtype == np.float16:
        error = np.maximum(error - 2**-11 * np.abs(right), 0)
    assert np.all(error <= most * size), np.argwhere(error > most * size)[:8]
    assert error.sum() <= most / 8 * size.sum()
    assert error.max() <= 2e-3 * np.abs(right).max()


@pytest.mark.parametrize(
    ("op", "m", "n", "k", "group"),
    [
        (Q4, 48, 64, 64, 32),
        (Q4, 130, 150, 128, 64),
        (Q4, 50, 49, 84, 12),
        (Q4, 64, 65, 192, 192),
        (C4, 49, 131, 90, 90),
        (C8, 51, 131, 75, 75),
    ],
)
def test_packed_weights(gpu: Device, tile: None, op: str, m: int, n: int, k: int, group: int) -> None:
    s, x, weight = Sketch(), normal(m, k), Packed.random(op, n, k, group)
    compare(run(gpu, s, weight.of(s, s.input(m, k)), x), x, weight.values)


def test_packed_weights_and_a_bias_in_f16(gpu: Device) -> None:
    m, n, k = 53, 70, 64
    s, x, weight = Sketch(), normal(m, k, dtype=np.float16), Packed.random(Q4, n, k, 32, 0.1, np.float16)
    bias = normal(n, dtype=np.float16)
    y = run(gpu, s, weight.of(s, s.input(m, k, dtype=DType.F16), s.constant(bias)), x)
    assert y.dtype == np.float16
    compare(y, x, weight.values, bias.astype(np.float64))


@pytest.mark.parametrize(("dtype", "precision"), [(np.float16, "auto"), (np.float32, "fast")], ids=["f16", "f32"])
@pytest.mark.parametrize(("m", "n", "k"), [(48, 64, 64), (130, 133, 75)])
def test_floats(gpu: Device, tile: None, dtype: Any, precision: Precision, m: int, n: int, k: int) -> None:
    s, x, w, bias = Sketch(), normal(m, k, dtype=dtype), normal(n, k, dtype=dtype), normal(n, dtype=dtype)
    y = s.tensor(LINEAR, s.input(m, k, dtype=DType.of(x.dtype)), s.constant(w), s.constant(bias))
    compare(run(gpu, s, y, x, precision=precision), x, w, bias.astype(np.float64))


@pytest.mark.parametrize("op", [Q4, LINEAR])
def test_k_in_parts(gpu: Device, op: str) -> None:
    m, n, k = 49, 67, 2 * tensor_core_products.PART + 64
    s, x, bias = Sketch(), normal(m, k), normal(n)
    if op == Q4:
        weight = Packed.random(Q4, n, k, 64)
        y, w = weight.of(s, s.input(m, k), s.constant(bias)), weight.values
    else:
        w = normal(n, k)
        y = s.tensor(LINEAR, s.input(m, k), s.constant(w), s.constant(bias))
    actual = run(gpu, s, y, x, precision="fast")
    assert [k.name for k in plan_of(s.graph, gpu.target)[0].kernels][-1] == "matrix_finish"
    compare(actual, x, w, bias.astype(np.float64))


EXACT = 2**-21  # error of an element split into two f16, and of sums in f32


@pytest.mark.parametrize("precision", ["exact", "auto"])
@pytest.mark.parametrize(("m", "n", "k"), [(48, 64, 64), (130, 133, 75), (50, 70, 2 * 512 + 40)])
def test_floats_that_are_two_of_f16(gpu: Device, tile: None, precision: Precision, m: int, n: int, k: int) -> None:
    s, x, w, bias = Sketch(), normal(m, k), normal(n, k), normal(n)
    y = s.tensor(LINEAR, s.input(m, k), s.constant(w), s.constant(bias))
    actual = run(gpu, s, y, x, precision=precision)
    compare(actual, x, w, bias.astype(np.float64), most=EXACT)
    assert np.abs(actual - (x.astype(np.float64) @ w.T + bias)).max() < 1e-6 * np.abs(actual).max()


def test_packed_weights_that_are_two_of_f16(gpu: Device) -> None:
    s, x, weight = Sketch(), normal(50, 128), Packed.random(Q4, 70, 128, 32)
    compare(run(gpu, s, weight.of(s, s.input(50, 128)), x, precision="exact"), x, weight.values, most=EXACT)


@pytest.mark.parametrize("scale", [1e-34, 1e-30, 1e30], ids=str)
def test_two_of_f16_of_any_size(gpu: Device, scale: float) -> None:
    s, x, w = Sketch(), normal(51, 70, scale=scale), normal(64, 70, scale=10.0 ** (np.arange(64) % 5)[:, None])
    x[3, 1], x[7, 5], x[9] = np.inf, np.nan, 0
    y = run(gpu, s, s.tensor(LINEAR, s.input(51, 70), s.constant(w)), x, precision="exact")
    assert np.isinf(y[3]).all() and np.isnan(y[7]).all() and np.all(y[9] == 0)
    rest = [r for r in range(51) if r not in (3, 7, 9)]
    for column in range(64):
        compare(y[rest, column : column + 1], x[rest], w[column : column + 1], most=EXACT)


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(
    ("batch", "channels", "size", "out", "kernel", "stride", "padding"),
    [
        (2, 9, (11, 13), 70, (3, 3), (1, 1), (1, 1)),
        (3, 16, (14, 14), 80, (3, 3), (2, 2), (1, 1)),  # 49 positions per image
        (1, 3, (30, 31), 72, (7, 7), (2, 2), (3, 3)),
        (2, 40, (150,), 96, (5,), (2,), (0,)),
    ],
)
def test_convolutions(
    gpu: Device,
    precision: Precision,
    batch: int,
    channels: int,
    size: tuple[int, ...],
    out: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> None:
    import torch

    s = Sketch()
    x, w, bias = normal(batch, channels, *size), normal(out, channels, *kernel), normal(out)
    x[0] *= 1e5  # of another magnitude than the next image
    none = [0] * len(size)
    args = (list(stride), list(padding), [1] * len(size), False, none, 1)
    y = s.tensor("aten.convolution.default", s.input(*x.shape), s.constant(w), s.constant(bias), *args)
    actual = run(gpu, s, s.tensor("aten.relu.default", y), x, precision=precision)
    convolve = torch.nn.functional.conv1d if len(size) == 1 else torch.nn.functional.conv2d
    x64, w64, bias64 = (torch.from_numpy(v.astype(np.float64)) for v in (x, w, bias))
    right = convolve(x64, w64, bias64, stride, padding).relu().numpy()
    scale = convolve(x64.abs(), w64.abs(), bias64.abs(), stride, padding).numpy()
    assert np.all(np.abs(actual - right) <= (EXACT if precision == "exact" else 2**-10) * scale)


@pytest.mark.parametrize("kept_bytes", [1 << 20, 15_000, 0])
def test_weights_that_stay_as_blocks(gpu: Device, monkeypatch: pytest.MonkeyPatch, kept_bytes: int) -> None:
    """The first run lays out as many weights as fit in memory, for every size that follows."""
    sizes, s = (150, 64, 150, 50), Sketch()
    weights = [Packed.random(Q4, n, k, 32, seed=n) for n, k in ((64, 64), (96, 64), (70, 96))]
    ys = [s.input(150, 64)]
    for weight in weights:  # rows of the first weight's result may have another length in the next run
        ys.append(weight.of(s, ys[-1]))
    monkeypatch.setattr(gpu, "target", replace(gpu.target, precision="auto", kept_bytes=kept_bytes))
    engine = engine_of(s.returns(*ys[1:]), gpu)
    for number, m in enumerate(sizes):
        before, x = gpu.counters.dispatches, normal(m, 64)
        for y, weight in zip(map(np.asarray, engine.run([x])), weights, strict=True):
            compare(y, x, weight.values)
            x = y
        count = gpu.counters.dispatches - before
        chained = 2 if m <= TILES[-2].rows else 0  # rows that become blocks as they are computed
        assert count == (12 if number == 0 else {1 << 20: 10, 15_000: 11, 0: 12}[kept_bytes]) - chained


@pytest.mark.parametrize(("m", "rows"), [(5, 16), (16, 16), (17, 32), (32, 32), (33, 64)])
def test_few_rows_where_weights_stay(gpu: Device, monkeypatch: pytest.MonkeyPatch, m: int, rows: int) -> None:
    """Many sequences that each decode one token give few rows."""
    k, s = 300, Sketch()
    x, weight = normal(m, k), Packed.random(Q4, 70, k, 20)
    y = weight.of(s, s.input(m, k))
    monkeypatch.setattr(gpu, "target", replace(gpu.target, kept_bytes=1 << 20))
    compare(run(gpu, s, y, x), x, weight.values)
    names = [kernel.name for kernel in plan_of(s.graph, gpu.target)[0].kernels]
    assert f"matrix_gemm{rows}" in names
    monkeypatch.setattr(gpu, "target", replace(gpu.target, kept_bytes=0))
    assert not any("matrix" in kernel.name for kernel in plan_of(s.graph, gpu.target)[0].kernels)


@pytest.mark.parametrize("k", [96, 74])
@pytest.mark.parametrize("keeps_blocks", [True, False], ids=["stays", "made"])
def test_a_norm_before_products(gpu: Device, monkeypatch: pytest.MonkeyPatch, k: int, keeps_blocks: bool) -> None:
    """The norm is fused into the kernel that lays out its rows as blocks, unless another operator reads its result."""
    m, s = 50, Sketch()
    x, scale = normal(m, k, scale=10.0 ** (np.arange(m) % 5)[:, None]), normal(k)
    operand = s.tensor("et_vk.rms_norm.default", s.input(m, k), s.constant(scale), 1e-3)
    weights = [Packed.random(Q4, n, k, k, seed=n) for n in (64, 70)]
    ys = [w.of(s, operand) for w in weights]
    s.returns(*ys)
    fuse_siblings(s.graph)
    fuse_norms(s.graph)
    assert len(s.graph.nodes) == 1
    monkeypatch.setattr(gpu, "target", replace(gpu.target, precision="auto", kept_bytes=(1 << 20) * keeps_blocks))
    names = [kernel.name for kernel in plan_of(s.graph, gpu.target)[0].kernels]
    assert "rms_norm" not in names and "norm_element" not in names
    x64 = x.astype(np.float64)
    normed = x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-3) * scale
    for y, weight in zip(engine_of(s.graph, gpu).run([x]), weights, strict=True):
        compare(np.asarray(y), normed, weight.values)


def test_products_that_are_worth_it_together(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    m, k, s = 50, 96, Sketch()
    operand = s.input(m, k)
    s.returns(*[Packed.random(Q4, n, k, 32).of(s, operand) for n in (64, 48, 64)])
    fuse_siblings(s.graph)
    for least, count in ((m * 176 * k, 1), (m * 176 * k + 1, 0)):
        monkeypatch.setattr(tensor_core_products, "WORTH", least)
        names = [kernel.name for kernel in plan_of(s.graph, replace(gpu.target, precision="auto"))[0].kernels]
        assert names.count("matrix_gemm64") == count


def test_a_joined_formula(gpu: Device) -> None:
    """relu never increases a difference, and the operand is added in f32."""
    m, n, k = 50, 96, 64
    s, x, rest, weight = Sketch(), normal(m, k), normal(m, n), Packed.random(Q4, n, k, 32)
    y = s.tensor("aten.relu.default", weight.of(s, s.input(m, k)))
    y = s.tensor("aten.add.Tensor", y, s.input(m, n))
    s.returns(y)
    fuse_elementwise(s.graph)
    assert [node.op.name for node in s.graph.nodes] == ["fused(linear_q4gsw+relu+add)"]
    gpu.target = replace(gpu.target, precision="auto")
    actual = np.asarray(engine_of(s.graph, gpu).run([x, rest])[0])
    right = x.astype(np.float64) @ weight.values.T
    clipped = right > 0
    compare(np.where(clipped, actual - rest, right), x, weight.values)
    assert np.abs(actual - rest)[~clipped].max() <= 2e-3 * np.abs(right).max()


def product_of(sets: bool) -> OpDef:
    """Return an operator for a (Z or sets, M, K) · b (Z, N, K)ᵀ · 3 + bias (Z or sets, N) / 2."""

    def steps(a: Tensor, b: Tensor, bias: Tensor) -> Steps:
        (batch, n, k), m = b.shape, a.shape[1]
        y = yield Out((batch, m, n))
        strides = (m * n, n, 1), 0, bias, (n, 0, 1), 0
        yield Product(a, b, True, batch, m, n, k, y, *strides, 3.0, 0.5, matrix_count=a.shape[0] if sets else None)

    return OpDef("test.product", tuple(map(Parameter, ("a", "b", "bias"))), frozenset(), steps=steps)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize(("sets", "k"), [(3, 66), (2, 66), (3, 2 * tensor_core_products.PART)])
def test_batches(gpu: Device, dtype: Any, sets: int, k: int) -> None:
    batch, m, n = 4 if sets == 2 else 3, 50, 70
    a, b, bias = normal(sets, m, k, dtype=dtype), normal(batch, n, k, dtype=dtype), normal(sets, 1, n, dtype=dtype)
    s = Sketch()
    inputs = [s.input(*array.shape, dtype=DType.of(array.dtype)) for array in (a, b, bias)]
    y = run(gpu, s, s.tensor(product_of(sets == 2), *inputs), a, b, bias, precision="fast")
    each = np.arange(batch) % sets
    compare(y, 3.0 * a[each].astype(np.float64), b, 0.5 * bias[each].astype(np.float64))


@pytest.mark.parametrize(("dtype", "precision"), [(np.float16, "auto"), (np.float32, "fast")], ids=["f16", "f32"])
@pytest.mark.parametrize("op", ["mm", "bmm"])
def test_matrices_along_n(gpu: Device, dtype: Any, precision: Precision, op: str) -> None:
    lead = (2,) if op == "bmm" else ()
    s, a, b = Sketch(), normal(*lead, 49, 81, dtype=dtype), normal(*lead, 81, 67, dtype=dtype)
    inputs = (s.input(*x.shape, dtype=DType.of(x.dtype)) for x in (a, b))
    y = s.tensor(f"aten.{op}.default", *inputs)
    compare(run(gpu, s, y, a, b, precision=precision), a, np.swapaxes(b, -1, -2))


@pytest.mark.parametrize("large", [1e6, 1e-6, 1e32, 1e-30], ids=str)
@pytest.mark.parametrize("scale", [1e4, 1e-6], ids=str)
def test_beyond_the_range_of_f16(gpu: Device, large: float, scale: float) -> None:
    """Rows have very different magnitudes; one is zero."""
    m, n, k = 51, 64, 64
    rows = np.where(np.arange(m) % 3, large, 1.0)[:, None] * (np.arange(m) != 5)[:, None]
    s, x, weight = Sketch(), normal(m, k, scale=rows), Packed.random(Q4, n, k, 32, scale)
    y = run(gpu, s, weight.of(s, s.input(m, k)), x)
    assert np.all(y[5] == 0)
    for row in range(m):
        if row != 5:
            compare(y[row : row + 1], x[row : row + 1], weight.values)


def test_rows_of_any_size_in_both_matrices(gpu: Device) -> None:
    m, n, k = 51, 64, 64
    x = normal(m, k, scale=10.0 ** (np.arange(m) % 17 - 8)[:, None])
    w = normal(n, k, scale=10.0 ** (np.arange(n) % 17 - 8)[:, None])
    w[7] = 0
    s = Sketch()
    y = run(gpu, s, s.tensor(LINEAR, s.input(m, k), s.constant(w)), x, precision="fast")
    assert np.all(y[:, 7] == 0)
    for row in range(m):
        for column in (c for c in range(n) if c != 7):
            right = x[row].astype(np.float64) @ w[column]
            most = np.abs(x[row].astype(np.float64)) @ np.abs(w[column])
            assert abs(y[row, column] - right) <= 2**-10 * most


def test_one_element_far_above_the_others_of_its_row(gpu: Device) -> None:
    """The position of the element does not matter."""
    m, n, k = 70, 64, 70
    s, x, w = Sketch(), normal(m, k), normal(n, k)
    x[np.arange(m), np.arange(m)], w[np.arange(n), np.arange(n)[::-1]] = 2.0**17, -(2.0**17)
    y = run(gpu, s, s.tensor(LINEAR, s.input(m, k), s.constant(w)), x, precision="fast")
    compare(y, x, w)


def test_columns_of_any_size_in_a_packed_matrix(gpu: Device) -> None:
    m, n, k = 48, 64, 64
    s, x, weight = Sketch(), normal(m, k), Packed.random(Q4, n, k, 32, 10.0 ** (np.arange(n) % 11 - 6))
    y = run(gpu, s, weight.of(s, s.input(m, k)), x)
    for column in range(n):
        compare(y[:, column : column + 1], x, weight.values[column : column + 1])


def test_groups_of_any_size_in_a_packed_matrix(gpu: Device) -> None:
    m, n, k = 48, 64, 128
    s, x, weight = Sketch(), normal(m, k), Packed.random(Q4, n, k, 32, np.array([[1e-2], [1.0], [1e3], [1e-1]]))
    compare(run(gpu, s, weight.of(s, s.input(m, k)), x), x, weight.values)


def test_sizes_that_undo_each_other(gpu: Device) -> None:
    """A result is finite if it fits in f32, however large the operands."""
    m, n, k = 48, 64, 64
    for up in (1e36, 1e-36):
        s, x, weight = Sketch(), normal(m, k, scale=up), Packed.random(Q4, n, k, 32, 1 / up)
        compare(run(gpu, s, weight.of(s, s.input(m, k)), x), x, weight.values)


@pytest.mark.parametrize("op", [Q4, C8, LINEAR])
def test_nan_and_infinity_stay_in_their_rows(gpu: Device, op: str) -> None:
    m, n, k = 51, 64, 64
    s, x = Sketch(), normal(m, k)
    x[3, 7], x[9, 60], x[11, 0], x[11, 33] = np.nan, np.inf, -np.inf, 1e30
    if op == LINEAR:
        w = np.where(np.arange(k) == 60, np.arange(n)[:, None] % 3 - 1, normal(n, k)).astype(np.float32)
        y = s.tensor(LINEAR, s.input(m, k), s.constant(w))
    else:
        weight = Packed.random(op, n, k, k if op == C8 else 32)
        y, w = weight.of(s, s.input(m, k)), weight.values
    actual = run(gpu, s, y, x, precision="fast")
    odd = [3, 9, 11]
    with np.errstate(invalid="ignore"):
        right = x[odd].astype(np.float64) @ w.T
    np.testing.assert_array_equal(np.isnan(actual[odd]), np.isnan(right))
    np.testing.assert_array_equal(actual[odd][np.isinf(right)], right[np.isinf(right)])
    compare(np.delete(actual, odd, 0), np.delete(x, odd, 0), w)


def test_fewer_rows_than_there_may_be(gpu: Device) -> None:
    n, k = 70, 64
    s, weight = Sketch(), Packed.random(Q4, n, k, 32)
    gpu.target = replace(gpu.target, precision="auto")
    engine = engine_of(s.returns(weight.of(s, s.input(150, k))), gpu)
    for m in (150, 48, 129, 3, 47, 150, 65):
        x = normal(m, k)
        compare(np.asarray(engine.run([x])[0]), x, weight.values)


@pytest.mark.parametrize(
    ("columns", "limit", "gemms", "finishes"),
    [
        ((64, 48, 72), 1 << 27, 1, 1),
        ((64, 48, 70), 1 << 27, 1, 3),  # 70 columns cannot be stored four at a time
        ((70, 48, 64), 1 << 27, 2, 2),  # and do not fill blocks
        ((128, 64, 64), 4 * 128 * 256 - 1, 2, 2),  # sums of 256 columns exceed the binding limit
    ],
)
def test_products_of_the_same_rows_at_once(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, columns: tuple[int, ...], limit: int, gemms: int, finishes: int
) -> None:
    m, k = 50, 96
    s, x = Sketch(), normal(m, k)
    operand = s.input(m, k)
    weights = [Packed.random(Q4, n, k, 32) for n in columns]
    s.returns(*[w.of(s, operand) for w in weights])
    fuse_siblings(s.graph)
    assert len(s.graph.nodes) == 1
    monkeypatch.setattr(gpu, "target", replace(gpu.target, precision="auto", max_binding_bytes=limit))
    plan = plan_of(s.graph, gpu.target)[0]
    names = [plan.kernels[d.kernel].name for d in plan.dispatches]
    assert (sum("matrix_gemm" in n for n in names), names.count("matrix_blocks")) == (gemms, 3 + gemms)
    assert names.count("matrix_finish") == finishes
    engine = engine_of(s.graph, gpu)
    for y, weight in zip(engine.run([x]), weights, strict=True):
        compare(np.asarray(y), x, weight.values)


def test_a_gate_and_what_it_is_multiplied_with(gpu: Device) -> None:
    """The second product's epilogue reads the result of the first."""
    m, n, k = 50, 96, 64
    s, x = Sketch(), normal(m, k)
    operand, weights = s.input(m, k), [Packed.random(Q4, n, k, 32, seed=seed) for seed in (1, 2)]
    up, gate = (w.of(s, operand) for w in weights)
    s.returns(s.tensor("aten.mul.Tensor", s.tensor("aten.relu.default", gate), up))
    fuse_elementwise(s.graph)
    fuse_siblings(s.graph)
    assert len(s.graph.nodes) == 1
    gpu.target = replace(gpu.target, precision="auto")
    engine = engine_of(s.graph, gpu)
    y = np.asarray(engine.run([x])[0])
    plan = plan_of(s.graph, gpu.target)[0]
    assert [plan.kernels[d.kernel].name for d in plan.dispatches].count("matrix_finish") == 1
    up64, gate64 = (x.astype(np.float64) @ w.values.T for w in weights)
    off = [2**-10 * (np.abs(x.astype(np.float64)) @ np.abs(w.values).T) for w in weights]
    most = off[0] * np.maximum(gate64, 0) + off[1] * np.abs(up64) + off[0] * off[1]
    assert np.all(np.abs(y - np.maximum(gate64, 0) * up64) <= most)
    assert np.abs(y).max() > 1


def test_a_weight_in_parts(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    m, n, k = 50, 200, 260
    s, x, w, bias = Sketch(), normal(m, k), normal(n, k), normal(n)
    y = s.tensor(LINEAR, s.input(m, k), s.constant(w), s.constant(bias))
    monkeypatch.setattr(gpu, "target", replace(gpu.target, max_binding_bytes=60 * n * k * 4 // 100))
    actual = run(gpu, s, y, x, precision="fast")
    plan = plan_of(s.graph, gpu.target)[0]
    assert ["matrix_gemm" in plan.kernels[d.kernel].name for d in plan.dispatches].count(True) == 2
    compare(actual, x, w, bias.astype(np.float64))


@pytest.mark.parametrize("op", [Q4, LINEAR, MM])
def test_a_plan_for_all_sizes(op: str) -> None:
    """At each size the plan equals one made for that size alone, and it has few alternatives."""
    s, n, k = Sketch(), 130, 2 * tensor_core_products.PART
    x = s.input(400, k, dtype=DType.F32 if op == Q4 else DType.F16)
    if op == Q4:
        y = Packed.random(Q4, n, k, 32).of(s, x)
    else:
        y = s.tensor(op, x, s.constant(np.zeros((n, k) if op == LINEAR else (k, n), np.float16)))
    s.returns(y)
    sizes = {f"{x.name}[0]": range(401), f"{x.name}[1]": [k]}
    traced = Planner(s.graph, TARGET, [True], sizes=sizes).cover()
    assert hold(traced, Planner(s.graph, TARGET, [True], plain=True), points(traced, 25)) == 25
    plan = traced.plan()
    names = [[plan.kernels[d.kernel].name for d in choice.dispatches] for f in plan.families for choice in f.steps[0]]
    assert 1 <= sum(any("matrix_gemm" in n for n in kernels) for kernels in names) <= 6  # two tile sizes, and split K


def kernels(s: Sketch, y: Tensor, target: Target) -> list[str]:
    return [k.name for k in plan_of(s.returns(y), target)[0].kernels]


CHOICES: dict[tuple[str, Any], tuple[bool, bool, bool]] = {  # whether inputs are rounded under exact, auto, fast
    (Q4, np.float32): (False, True, True),
    (C4, np.float32): (False, True, True),
    (C8, np.float32): (False, True, True),
    (LINEAR, np.float16): (True, True, True),
    (LINEAR, np.float32): (False, False, True),
    (MM, np.float16): (True, True, True),
    (MM, np.float32): (False, False, True),
}


def names(op: str, dtype: Any, target: Target, m: int = 60, n: int = 128, k: int = 128, group: int = 32) -> list[str]:
    s = Sketch()
    x = s.input(m, k, dtype=DType.of(np.dtype(dtype)))
    if op in (LINEAR, MM):
        y = s.tensor(op, x, s.constant(np.zeros((n, k) if op == LINEAR else (k, n), dtype)))
    else:
        y = Packed.random(op, n, k, group if op == Q4 else k).of(s, x)
    return kernels(s, y, target)


def chosen(op: str, dtype: Any, target: Target, **sizes: int) -> bool:
    return any(name.startswith("matrix_") for name in names(op, dtype, target, **sizes))


@pytest.mark.parametrize(("op", "dtype"), CHOICES, ids=lambda v: getattr(v, "__name__", v))
def test_precision_is_a_promise(op: str, dtype: Any) -> None:
    for precision, rounded in zip(("exact", "auto", "fast"), CHOICES[op, dtype], strict=True):
        kernels = names(op, dtype, replace(TARGET, precision=precision))
        assert [f"matrix_gemm64{'' if rounded else '_exact'}"] == [name for name in kernels if "gemm" in name]


@pytest.mark.parametrize(
    "less",
    [
        {"f16": False},
        {"matrices": ()},
        {"matrices": NEEDS[:1]},
        {"subgroup_size": 0},
        {"subgroup_size": 64},
        {"max_shared_bytes": 16384},
        {"max_invocations": 128},
        {"max_storage_buffers": 3},
        {"max_binding_bytes": 4 * 128 * 128 - 1},
        {"max_buffer_bytes": 4 * 128 * 128 - 1},
    ],
    ids=str,
)
def test_what_an_adapter_must_have(less: dict[str, Any]) -> None:
    assert chosen(Q4, np.float32, TARGET)
    assert not chosen(Q4, np.float32, replace(TARGET, **less))


def test_sums_and_blocks_that_can_be_bound() -> None:
    """Sums and blocks may be larger than the tensors they are computed from."""
    assert chosen(Q4, np.float32, replace(TARGET, max_binding_bytes=4 * 128 * 128))
    for less in ({"m": 129}, {"n": 129}, {"m": 48, "k": 320}):
        assert not chosen(Q4, np.float32, replace(TARGET, max_binding_bytes=4 * 128 * 128 + 8192), **less)


@pytest.mark.parametrize("less", [{"m": 47}, {"n": 47}, {"k": 62}], ids=str)
def test_what_others_do_as_well(less: dict[str, int]) -> None:
    assert not chosen(Q4, np.float32, TARGET, **less)
