"""64-bit and 16-bit host types on their way to the GPU and back: ranges checked, values and shapes kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ptegpu.dtypes import RUNS, DType
from ptegpu.errors import InvalidInput
from ptegpu.plan.device_arrays import from_device, to_device

NARROWED = {
    DType.I64: DType.I32,
    DType.F64: DType.F32,
    DType.BF16: DType.F32,
    DType.I16: DType.I32,
    DType.U16: DType.I32,
}


@pytest.mark.parametrize("dtype", RUNS)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 4)])
def test_values_and_shape_survive_the_round_trip(dtype: DType, shape: tuple[int, ...]) -> None:
    host = np.ones(shape, dtype.numpy) if dtype is not DType.BF16 else np.full(shape, 0x3F80, np.uint16)
    device = to_device(host, dtype, "x")
    assert NARROWED.get(dtype, dtype).numpy == device.dtype
    assert shape == device.shape
    back = from_device(device, dtype)
    assert (host.dtype, shape) == (back.dtype, back.shape)
    np.testing.assert_array_equal(host, back)


def test_what_needs_no_change_is_not_copied() -> None:
    x = np.arange(6, dtype=np.float32)
    assert np.shares_memory(x, to_device(x, DType.F32, "x"))


def test_the_elements_are_contiguous_in_logical_order() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3).T
    device = to_device(x, DType.F32, "x")
    assert device.flags.c_contiguous
    np.testing.assert_array_equal(x, device)


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 0])
def test_int64_within_int32_is_exact(value: int) -> None:
    assert value == int(to_device(np.array([value]), DType.I64, "x")[0])


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63 - 1])
def test_int64_beyond_int32_is_refused(value: int) -> None:
    with pytest.raises(InvalidInput) as error:
        to_device(np.array([0, value]), DType.I64, "input 0 of forward")
    expected = f"input 0 of forward: the int64 value {value} does not fit int32, which is what the GPU computes with"
    assert expected == str(error.value)


def test_float64_beyond_float32_is_refused() -> None:
    with pytest.raises(InvalidInput) as error:
        to_device(np.array([1.0, -1e39, np.inf]), DType.F64, "w")
    expected = "w: the float64 value 1e+39 does not fit float32, which is what the GPU computes with"
    assert expected == str(error.value)


def test_infinities_and_nan_of_float64_pass() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.5])
    np.testing.assert_array_equal(x.astype(np.float32), to_device(x, DType.F64, "x"))


def test_bfloat16_is_exact_on_the_way_in() -> None:
    values = torch.tensor([0.0, -0.0, 1.5, -2.75, 3e38, 1e-40, torch.inf, -torch.inf]).bfloat16()
    bits = values.view(torch.uint16).numpy()
    np.testing.assert_array_equal(values.float().numpy(), to_device(bits, DType.BF16, "x"))


def test_bfloat16_rounds_to_nearest_even_on_the_way_out() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x[~np.isnan(x)], np.float32([1.00390625, 1.01171875, 3.4e38, np.inf])])
    expected = torch.from_numpy(x.copy()).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(expected, from_device(x, DType.BF16))


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800001, 0xFFC00000, 0xFFFFFFFF])
def test_every_nan_stays_one_in_bfloat16(bits: int) -> None:
    out = from_device(np.array([bits], np.uint32).view(np.float32), DType.BF16)
    assert torch.from_numpy(out).view(torch.bfloat16).isnan().all()
