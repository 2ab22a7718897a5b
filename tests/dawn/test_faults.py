"""Faults that Dawn reports in its own way: they become the errors that wgpu-native's do, and nothing is left broken."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu import plans

from ptegpu.errors import DeviceLost, NoAdapter, OutOfMemory
from ptegpu.gpu import Device, Session, open_device

X = np.arange(plans.N, dtype=np.float32)


def works(device: Device) -> bool:
    with Session(device) as session:
        return np.array_equal(X + X, session.run(session.prepare(plans.add()), [X, X])[0])


def test_memory_that_is_not_there() -> None:
    """SwiftShader has 1 GiB, less than a buffer may have."""
    device = open_device()
    with pytest.raises(OutOfMemory, match=r"^buffer large needs 1073741824 bytes on SwiftShader"):
        device.buffer("large", device.target.max_buffer_bytes, "storage")
    assert works(device)


def test_a_device_that_is_lost_behind_our_back() -> None:
    device = open_device(subgroups=False)
    session = Session(device)
    add = session.prepare(plans.add())
    pending = session.start(add, [X, X])
    survivor = device.buffer("kept", 64, "storage")
    device.api.destroy()
    for use in (
        lambda: session.run(add, [X, X]),
        lambda: session.prepare(plans.chain()),
        pending.result,
        device.wait,
        lambda: device.write(survivor, b"lost"),
        lambda: device.read(survivor, 64),
        lambda: device.buffer("more", 1024, "storage"),
        lambda: device.pipeline(plans.SCALE),
    ):
        with pytest.raises(DeviceLost) as caught:
            use()
        assert "the GPU device is lost (Device was destroyed); load the program again" == str(caught.value)
    session.close()
    device.release(survivor)
    assert device.lost
    assert works(open_device(subgroups=False))


def test_a_device_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    monkeypatch.setattr("ptegpu.gpu.device._within", lambda *_: {"max-buffer-size": 1 << 50})
    with pytest.raises(NoAdapter, match=r"cannot be opened: Required limit .* is greater than the supported limit"):
        open_device(limits="browser")
    assert works(open_device())
