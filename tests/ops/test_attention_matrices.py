"""Attention on emulated matrix units: f16 rounding error, edges of tiles, values beyond the range of f16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.emulated import adapter
from tests.families import hold, points
from tests.graphs import Sketch, engine_of, plan_of
from tests.q8 import coarse, stored
from tests.tint import check

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.gpu import open_device
from ptegpu.gpu.device import Device
from ptegpu.graph.graph import Tensor
from ptegpu.kernels import attention_matrices as kernels
from ptegpu.kernels.attention_matrices import HEADROOM
from ptegpu.kernels.tensor_core_blocks import NEEDS
from ptegpu.ops import attention_matrices
from ptegpu.plan.directives import source
from ptegpu.plan.plan import Plan
from ptegpu.plan.target import CLASSES, DeviceClass, Precision, Target

Array = np.ndarray[Any, Any]
CACHED, WRITING, PLAIN, FREE = (
    "custom_sdpa.default",
    "sdpa_with_kv_cache.default",
    "aten.scaled_dot_product_attention.default",
    "et_vk.sdpa.default",
)
BUSY = replace(CLASSES["discrete"], units=1)  # a few tiles keep it busy
TARGET = Target(f16=True, subgroups=True, subgroup_size=32, matrices=NEEDS, max_shared_bytes=49152, device_class=BUSY)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    with adapter(open_device(engine="wgpu")) as device:
        yield device


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_matrices, "WORTH", 1)


def normal(*shape: int, scale: Array | float = 1.0, dtype: Any = np.float32, seed: int = 0) -> Array:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(dtype)


def compare(
    y: Array, q: Array, k: Array, v: Array, start: int | None, causal: bool, scale: float | None = None
) -> None:
    """Compare y [B, S, H, D] with attention of q [B, S, H, D] over k and v [B, T, H', D] in float64.

    Queries start at position `start`; None disables the causal mask. The error of each element is bounded by rounding
    q, k, v and the exponentials to f16.
    """
    dtype, length = y.dtype, q.shape[1]
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))  # [B, H, S, D]
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    end = k.shape[2] if start is None else min(start + length, k.shape[2])
    k, v = k[:, :, :end], v[:, :, :end]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    hidden = np.arange(end) > (start or 0) + np.arange(length)[:, None] if causal else np.zeros((length, end), bool)
    scores = np.where(hidden, -np.inf, q @ np.swapaxes(k, 2, 3) * scale)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    right = p @ v
    off = 2**-10 * abs(scale) * (np.abs(q) @ np.swapaxes(np.abs(k), 2, 3))  # error of the scores
    terms = p * np.abs(v).max(-1)[:, :, None]
    most = (terms * off).sum(-1) + terms.sum(-1) * (p * off).sum(-1) + 2**-10 * terms.sum(-1) + 1e-37
    error = np.abs(y.astype(np.float64).transpose(0, 2, 1, 3) - right)
    if dtype == np.float16:
        error = np.maximum(error - 2**-11 * np.abs(right), 0)
    assert np.isfinite(y).all()
    assert np.all(error <= most[..., None]), np.argwhere(error > most[..., None])[:8]
    assert error.mean() <= most.mean() / 4


def ran(plan: Plan) -> list[str]:
    return [plan.kernels[d.kernel].name for f in plan.families for c in f.steps[0] for d in c.dispatches]


def run(
    gpu: Device,
    op: str,
    q: Array,
    k: Array,
    v: Array,
    start: int = 0,
    *,
    causal: bool = True,
    scale: float | None = None,
    precision: Precision = "fast",
    device_class: DeviceClass = BUSY,
) -> Array:
    """Run `op` on matrix units; operands and result are [B, S, H, D], whatever layout the operator takes."""
    s = Sketch()
    first = op in (PLAIN, FREE)
    inputs = [np.ascontiguousarray(x.swapaxes(1, 2)) if first else x for x in (q, k, v)]
    x, keys, values = (s.input(*a.shape, dtype=DType.of(a.dtype)) for a in inputs)
    if op == CACHED:
        y = s.tensor(op, x, keys, values, s.sym(0), None, 0.0, causal, scale)
        inputs.append(start)  # type: ignore[arg-type]
    elif op == PLAIN:
        y = s.tensor(op, x, keys, values, None, 0.0, causal, scale)
    else:
        y = s.tensor(op, x, keys, values, None, scale)
    gpu.target = replace(gpu.target, precision=precision, device_class=device_class)
    engine = engine_of(s.returns(y), gpu, cover=False)
    result = np.asarray(engine.run(inputs)[0])
    assert "attention_matrices" in ran(engine.plan), ran(engine.plan)
    return result.swapaxes(1, 2) if first else result


@pytest.fixture
def close_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the padding between rows, so that a software adapter has memory for the largest tiles.

    The padding only saves time.
    """
    monkeypatch.setattr(kernels, "PAD", 0)
    kernels.tiles.cache_clear()  # type: ignore[attr-defined]
    yield
    kernels.tiles.cache_clear()  # type: ignore[attr-defined]


def operands(length: int, cache: int, heads: int, sharing: int, dim: int, batch: int = 1) -> list[Array]:
    """Return q, k and v whose scores vary."""
    q = normal(batch, length, heads * sharing, dim, scale=3.0)
    return [q, normal(batch, cache, heads, dim, seed=1), normal(batch, cache, heads, dim, seed=2)]


@pytest.mark.parametrize(
    ("length", "start", "cache", "heads", "sharing", "dim"),
    [
        (64, 0, 64, 1, 1, 64),
        (70, 0, 100, 2, 1, 64),
        (50, 37, 130, 1, 4, 64),
        (33, 60, 300, 2, 2, 80),
        (49, 15, 64, 1, 1, 16),
    ],
)
def test_caches(gpu: Device, length: int, start: int, cache: int, heads: int, sharing: int, dim: int) -> None:
    q, k, v = operands(length, cache, heads, sharing, dim)
    k[:, start + length :] = v[:, start + length :] = np.nan  # never written
    compare(run(gpu, CACHED, q, k, v, start), q, k, v, start, True)


@pytest.mark.parametrize(("dim", "keys"), [(16, 64), (128, 32)])
def test_the_largest_tiles(gpu: Device, close_rows: None, dim: int, keys: int) -> None:
    assert kernels.tile_keys(dim, dim, gpu.target) == keys
    q, k, v = operands(67, 230, 1, 2, dim)
    compare(run(gpu, CACHED, q, k, v, 150), q, k, v, 150, True)


def test_a_cache_that_all_queries_see(gpu: Device) -> None:
    q, k, v = operands(50, 130, 1, 2, 32)
    compare(run(gpu, CACHED, q, k, v, 60, causal=False, scale=0.4), q, k, v, 60, False, 0.4)


@pytest.mark.parametrize("op", [PLAIN, FREE])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_without_a_cache(gpu: Device, op: str, dtype: Any) -> None:
    q, k, v = (x.astype(dtype) for x in operands(60, 90, 2, 2, 48, batch=2))
    y = run(gpu, op, q, k, v, causal=op == PLAIN, precision="fast" if dtype is np.float32 else "auto")
    assert y.dtype == dtype
    compare(y, q, k, v, 0 if op == PLAIN else None, op == PLAIN)


def test_values_of_another_size(gpu: Device) -> None:
    q, k, v = operands(60, 75, 1, 1, 32)
    v = normal(1, 75, 1, 80)
    compare(run(gpu, FREE, q, k, v, precision="fast"), q, k, v, None, False)


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_new_keys_and_values_go_into_caches(gpu: Device, dtype: Any) -> None:
    """Caches are f32 or f16, queries f32."""
    q, k, v = operands(50, 150, 2, 2, 32)
    caches = k.astype(dtype), v.astype(dtype)
    new = normal(1, 50, 2, 32, seed=3), normal(1, 50, 2, 32, seed=4)
    s = Sketch()
    x, nk, nv = (s.input(*a.shape) for a in (q, *new))
    states = [s.state(*c.shape, data=c, dtype=DType.of(c.dtype)) for c in caches]
    y = s.tensor(WRITING, x, nk, nv, *states, s.sym(0), 50, None, 0.0, True, None)
    gpu.target = replace(gpu.target, precision="fast", device_class=BUSY)
    engine = engine_of(s.returns(y), gpu, cover=False)
    for start in (0, 50, 93):
        actual = np.asarray(engine.run([q, *new, start])[0])
        for cache, rows in zip(caches, new, strict=True):
            cache[:, start : start + 50] = rows
        compare(actual, q, *caches, start, True)
    assert "attention_matrices" in ran(engine.plan)


def test_caches_in_blocks(gpu: Device) -> None:
    """Caches of 8 bits are rounded to f16 once more, with a scale for each key and value."""
    rng, size = np.random.default_rng(0), (1, 150, 2, 32)
    caches, new = [coarse(rng, *size) for _ in "kv"], [coarse(rng, 1, 50, *size[2:]) for _ in "kv"]
    q = normal(1, 50, 4, 32)
    s = Sketch()
    x, nk, nv = (s.input(*a.shape) for a in (q, *new))
    states = [s.state(*c.shape, data=c.copy()) for c in caches]
    y = s.tensor(WRITING, x, nk, nv, *states, s.sym(0), 50, None, 0.0, True, 0.02)
    gpu.target = replace(gpu.target, precision="auto", device_class=BUSY, cache="q8")
    try:
        engine = engine_of(s.returns(y), gpu, cover=False)
        for start in (0, 93):
            actual = np.asarray(engine.run([q, *new, start])[0])
            for cache, rows in zip(caches, new, strict=True):
                cache[:, start : start + 50] = rows
            compare(actual, q, *(stored(c) for c in caches), start, True, 0.02)
            with pytest.raises(AssertionError):
                compare(actual, q, *caches, start, True, 0.02)
    finally:
        gpu.target = replace(gpu.target, cache="f32")
    assert "attention_matrices" in ran(engine.plan)


@pytest.mark.parametrize("units", [4, 16])
def test_keys_in_parts(gpu: Device, units: int) -> None:
    q, k, v = operands(48, 800, 1, 1, 32)
    busy = replace(BUSY, units=units)
    for start in (0, 100, 752):
        actual = run(gpu, CACHED, q, k, v, start, device_class=busy)
        compare(actual, q, k, v, start, True)


@pytest.mark.parametrize("which", ["keys", "values", "queries"])
@pytest.mark.parametrize("large", [1e6, 1e-6], ids=str)
def test_beyond_the_range_of_f16(gpu: Device, which: str, large: float) -> None:
    q, k, v = operands(50, 90, 1, 1, 32)
    x = {"queries": q, "keys": k, "values": v}[which]
    x[:, ::3] *= large
    compare(run(gpu, CACHED, q, k, v, 40), q, k, v, 40, True)


def test_values_of_any_size(gpu: Device) -> None:
    """Each result is as exact as the largest of its terms."""
    q, k, v = operands(50, 150, 1, 1, 32)
    v *= 10.0 ** (np.arange(150) * 7 % 61 - 30)[:, None, None]
    v[:, 5] = 0
    compare(run(gpu, CACHED, q, k, v, 100), q, k, v, 100, True)
    k[:, :, :, 0] += np.linspace(-150, 150, 150)[:, None] * np.log(10) ** 0.5 / 3  # scores that more than undo it
    q[:, :, :, 0] = 3.0
    compare(run(gpu, CACHED, q, k, v, 100), q, k, v, 100, True)


@pytest.mark.parametrize("power", [3, -3, 10])
def test_values_that_grow(gpu: Device, power: int) -> None:
    """Values grow or shrink from one step to the next; scores do not."""
    q, k, v = operands(50, 150, 1, 1, 32)
    v *= 10.0 ** (power * (np.arange(150) // 32 - 2))[:, None, None]
    compare(run(gpu, CACHED, 0.1 * q, k, v, 100), 0.1 * q, k, v, 100, True)


@pytest.mark.parametrize("rise", [0.0, 0.3 * HEADROOM, 0.9 * HEADROOM, 1.1 * HEADROOM, 20 * HEADROOM])
@pytest.mark.parametrize("dim", [32, 64])
def test_scores_that_rise(gpu: Device, rise: float, dim: int) -> None:
    """Scores rise by powers of two from step to step, then drop; accumulated results are rescaled."""
    q, k, v = operands(50, 150, 1, 1, dim)
    q[..., 0], k[..., 0] = dim**0.5, ((np.arange(150) // 32 * rise * np.log(2)) * (np.arange(150) < 110))[:, None]
    compare(run(gpu, CACHED, q, k, v, 100), q, k, v, 100, True)


def test_nan_and_infinity_stay_in_their_rows(gpu: Device) -> None:
    q, k, v = operands(50, 90, 1, 1, 32)
    q[..., 3] = np.abs(q[..., 3])
    q[0, 7, 0, 3], q[0, 9, 0, 4], k[0, 85, 0, 3] = np.nan, np.inf, np.inf
    y = run(gpu, CACHED, q, k, v, 40)
    seeing = np.arange(50) + 40 >= 85
    odd = seeing | np.isin(np.arange(50), [7, 9])
    assert np.isnan(y[0, odd]).any(-1).all()
    plain = np.nan_to_num(q, nan=0, posinf=0)[:, ~seeing]
    actual = np.where(odd[None, :, None, None], run(gpu, CACHED, np.nan_to_num(q, nan=0, posinf=0), k, v, 40), y)
    compare(actual[:, ~seeing], plain, k, v, 40, True)


def test_fewer_rows_than_there_may_be(gpu: Device) -> None:
    q, k, v = operands(150, 200, 1, 1, 32)
    s = Sketch()
    x, keys, values = (s.input(*a.shape) for a in (q, k, v))
    gpu.target = replace(gpu.target, precision="fast", device_class=BUSY)
    engine = engine_of(s.returns(s.tensor(CACHED, x, keys, values, s.sym(0), None, 0.0, True, None)), gpu)
    for length, start in ((150, 50), (48, 3), (129, 0), (3, 7), (47, 60), (65, 1)):
        compare(np.asarray(engine.run([q[:, :length], k, v, start])[0]), q[:, :length], k, v, start, True)


@pytest.mark.parametrize("op", [CACHED, PLAIN])
def test_a_plan_for_all_sizes(op: str) -> None:
    """At each size the plan equals one made for that size alone, and it has few alternatives."""
    s = sketch(op, DType.F32, 300, 1000, 64)
    target = replace(TARGET, precision="fast")
    dynamic = [True] * len(s.graph.inputs)
    tensors = [v for v in s.graph.inputs if isinstance(v, Tensor)]
    dims = [(f"{v.name}[{d}]", n) for v in tensors for d, n in enumerate(v.max_shape)]
    sizes = {name: range(n + 1) if n in (300, 1000) else [n] for name, n in dims}  # lengths change
    traced = Planner(s.graph, target, dynamic, sizes=sizes).cover()
    assert hold(traced, Planner(s.graph, target, dynamic, plain=True), points(traced, 25)) >= 10
    plan = traced.plan()
    choices = [c for f in plan.families for steps in f.steps for c in steps]
    names = [[plan.kernels[d.kernel].name for d in c.dispatches] for c in choices]
    assert 1 <= sum("attention_matrices" in kernels for kernels in names) <= 3


def sketch(op: str, dtype: DType, length: int = 60, keys: int = 128, dim: int = 64, mask: bool = False) -> Sketch:
    s = Sketch()
    if op == CACHED:
        x, k, v = s.input(1, length, 8, dim, dtype=dtype), *(s.state(1, keys, 2, dim, dtype=dtype) for _ in "kv")
        attn_mask = s.input(length, keys) if mask else None
        s.returns(s.tensor(op, x, k, v, s.sym(0), attn_mask, 0.0, not mask, None))
    else:
        x, k, v = s.input(1, 8, length, dim, dtype=dtype), *(s.input(1, 2, keys, dim, dtype=dtype) for _ in "kv")
        attn_mask = s.input(length, keys) if mask else None
        s.returns(s.tensor(op, x, k, v, attn_mask, *([0.0, not mask] if op == PLAIN else []), None))
    return s


def chosen(s: Sketch, target: Target) -> bool:
    return any(k.name == "attention_matrices" for k in plan_of(s.graph, target)[0].kernels)


CHOICES: dict[tuple[str, DType], tuple[bool, bool, bool]] = {  # matrix units under exact, auto, fast
    (CACHED, DType.F32): (False, False, True),
    (CACHED, DType.F16): (False, True, True),
    (PLAIN, DType.F32): (False, False, True),
    (PLAIN, DType.F16): (False, True, True),
    (FREE, DType.F32): (False, False, True),
    (FREE, DType.F16): (False, True, True),
}


@pytest.mark.parametrize(("op", "dtype"), CHOICES, ids=lambda v: getattr(v, "name", v))
def test_precision_is_a_promise(op: str, dtype: DType) -> None:
    choices = [chosen(sketch(op, dtype), replace(TARGET, precision=p)) for p in ("exact", "auto", "fast")]
    assert tuple(choices) == CHOICES[op, dtype]


def test_caches_are_rounded_where_weights_are() -> None:
    s = sketch(CACHED, DType.F32)
    assert not chosen(s, TARGET)
    weight, scales = s.constant(np.zeros((128, 32), np.uint8)), s.constant(np.ones((2, 128), np.float32))
    s.returns(s.tensor("et_vk.linear_q4gsw.default", s.input(1, 64), weight, scales, 32, None))
    assert chosen(s, TARGET)


@pytest.mark.parametrize(
    "less",
    [
        {"f16": False},
        {"matrices": ()},
        {"subgroup_size": 64},
        {"max_shared_bytes": 16384},
        {"max_invocations": 128},
        {"max_storage_buffers": 6},
        {"max_binding_bytes": 2 * 2 * 256 * 64 - 1},
    ],
    ids=str,
)
def test_what_an_adapter_must_have(less: dict[str, Any]) -> None:
    assert chosen(sketch(CACHED, DType.F16), TARGET)
    assert not chosen(sketch(CACHED, DType.F16), replace(TARGET, **less))


@pytest.mark.parametrize(
    "other", [{"mask": True}, {"dim": 72}, {"dim": 144}, {"length": 11}], ids=lambda v: next(iter(v))
)
@pytest.mark.parametrize("op", [CACHED, PLAIN, FREE])
def test_what_others_compute(op: str, other: dict[str, Any]) -> None:
    assert not chosen(sketch(op, DType.F32, **other), replace(TARGET, precision="fast"))


def test_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of the work counts only keys that are certain to be visible."""
    monkeypatch.setattr(attention_matrices, "WORTH", 8 * 60 * 60 * 128)
    assert chosen(sketch(CACHED, DType.F32, 60), replace(TARGET, precision="fast"))
    assert not chosen(sketch(CACHED, DType.F32, 59), replace(TARGET, precision="fast"))
    assert chosen(sketch(PLAIN, DType.F16, 60, 60), replace(TARGET, precision="fast"))
    assert not chosen(sketch(PLAIN, DType.F16, 60, 59), replace(TARGET, precision="fast"))


@pytest.mark.parametrize("dim", [16, 48, 64, 80, 96, 128])
def test_tint_takes_every_kernel(dim: int) -> None:
    generated = []
    for op, dtype in CHOICES:
        for units in (1, 16):
            target = replace(TARGET, precision="fast", device_class=replace(BUSY, units=units))
            plan = plan_of(sketch(op, dtype, keys=1000, dim=dim).graph, target)[0]
            generated += [k for k in plan.kernels if k.name in ("attention_matrices", "matrix_blocks")]
    assert len({k.wgsl for k in generated if k.name == "attention_matrices"}) >= 8
    assert check([source(k, "tint") for k in dict.fromkeys(generated)]) == []
    assert all(k.shared_bytes <= TARGET.max_shared_bytes for k in generated)
