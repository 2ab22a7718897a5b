"""One device for all tests of `gpu/`, of the engine in `PTEGPU_ENGINE`, and a session that is closed after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ptegpu.gpu import Device, Session, open_device


@pytest.fixture(scope="session")
def device() -> Device:
    return open_device()


@pytest.fixture
def session(device: Device) -> Iterator[Session]:
    with Session(device) as opened:
        yield opened
