"""Blocks of 8 bits: kernels read and write them as NumPy does, by elements and by quads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cases import device
from tests.kernels.running import run
from tests.kernels.test_wgsl import DEVICES, each, steps
from tests.q8 import coarse, stored

from ptegpu.dtypes import DType
from ptegpu.gpu import Device
from ptegpu.kernels.blocks import blocks_of
from ptegpu.kernels.wgsl import Storage

F32, Q8 = DType.F32, DType.Q8


@pytest.fixture(params=DEVICES)
def gpu(request: pytest.FixtureRequest) -> Device:
    return device(**DEVICES[request.param])


def values() -> np.ndarray[Any, Any]:
    """Return seven blocks: of coarse values, zeros, values too small for a scale, and tiny and huge ones."""
    x = coarse(np.random.default_rng(0), 7, 32)
    x[1], x[2] = 0, 1e-35
    x[3] *= 1e-20
    x[4] *= 1e30
    return x


@pytest.mark.parametrize("lanes", [1, 4])
def test_reads(gpu: Device, lanes: int) -> None:
    x, four = values(), "4" if lanes == 4 else ""
    x[6, 3] = np.nan
    reads, writes = {"x": Storage(Q8, lanes)}, {"y": Storage(F32, lanes)}
    spec = each(f"y_put{four}(i, x_at{four}(i));", target=gpu.target, reads=reads, writes=writes)
    (got,) = run(spec, [blocks_of(x).view(np.int32).reshape(-1)], [x.size], gpu, **steps(x.size, lanes))
    want = stored(x)
    want[2], got = 0, got.reshape(x.shape)
    np.testing.assert_allclose(got[:6], want[:6], rtol=1e-6)
    assert np.isnan(got[6]).all()


def test_writes(gpu: Device) -> None:
    """A block with NaN or infinity has an infinite scale, so that it is read as NaN."""
    x = values()
    x[5, 7], x[6, 31] = np.nan, -np.inf
    quads = ", ".join(f"x_at4(8u * i + {j}u)" for j in range(8))
    reads, writes = {"x": Storage(F32, 4)}, {"y": Storage(Q8, 4)}
    spec = each(f"y_put_block(i, {quads});", target=gpu.target, reads=reads, writes=writes)
    words = replace(spec, writes=(Storage(DType.I32),))  # as which they are read back
    (got,) = run(words, [x.reshape(-1)], [len(x) * 9], gpu, **steps(len(x), 1))
    got, want = got.view(np.uint32).reshape(-1, 9), blocks_of(x)
    assert [0x7F800000] * 2 == got[5:, 0].tolist() == want[5:, 0].tolist()
    got, want = got[:5], want[:5]
    np.testing.assert_array_equal(got[:, 1:], want[:, 1:])
    np.testing.assert_allclose(got[:, 0].view(np.float32), want[:, 0].view(np.float32), rtol=1e-6)
