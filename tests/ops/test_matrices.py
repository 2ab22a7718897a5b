"""Products on matrix units, emulated: within what rounding to f16 costs, at edges of tiles, beyond the range of f16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.emulated import adapter
from tests.graphs import Sketch, engine_of, plan_of

from ptegpu.gpu import open_device
from ptegpu.ops import matrices
from ptegpu.plan.target import Target

WITH = Target(
    f16=True, subgroups=True, subgroup_size=32, matrices=matrices.NEEDS, max_shared_bytes=32768, precision="fast"
)
pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def gpu() -> Any:
    with adapter(open_device(engine="wgpu")) as device:
        yield device


def run(gpu: Any, sketch: Sketch, result: Any, *inputs: np.ndarray, precision: str = "auto") -> np.ndarray:
    gpu.target = replace(gpu.target, precision=precision)
    engine = engine_of(sketch.returns(result), gpu)
    (y,) = engine.run(list(inputs))
    return np.asarray(y)


def kernels(sketch: Sketch, result: Any, target: Target) -> list[str]:
    return [k.name for k in plan_of(sketch.returns(result), target)[0].kernels]


def packed(rng: np.random.Generator, n: int, k: int, group: int, spread: float = 1.0) -> tuple[Any, Any, Any]:
    """Weights of 4 bits, their scales, and what they stand for."""
    weight = rng.integers(0, 256, (n, k // 2), np.uint8)
    scales = (rng.uniform(0.5, 1.5, (k // group, n)) * spread).astype(np.float32)
    values = np.stack([weight & 15, weight >> 4], -1).reshape(n, k).astype(np.float64) - 8
    return weight, scales, values * np.repeat(scales.T.astype(np.float64), group, 1)


def held(y: np.ndarray, want: np.ndarray, inputs: np.ndarray) -> None:
    """Within what f16 inputs cost: their last bit, of sums of products."""
    scale = np.sqrt((inputs.astype(np.float64) ** 2).sum(-1, keepdims=True))
    assert np.abs(y - want).max() / np.abs(want).max() < 2e-3, np.abs(y - want).max() / np.abs(want).max()
    assert np.isfinite(scale).all()


@pytest.mark.parametrize(("m", "n", "k", "group"), [(17, 64, 64, 32), (40, 150, 96, 32), (130, 136, 128, 64)])
def test_packed_weights(gpu: Any, m: int, n: int, k: int, group: int) -> None:
    rng = np.random.default_rng(m)
    weight, scales, values = packed(rng, n, k, group)
    x = rng.standard_normal((m, k)).astype(np.float32)
    s = Sketch()
    args = s.input(m, k), s.constant(weight), s.constant(scales), group
    y = s.tensor("et_vk.linear_q4gsw.default", *args)
    held(run(gpu, s, y, x), x @ values.T, x)
