"""Poison behind every buffer that kernels read and write: what lies outside of a buffer is neither written nor matters.

    with Poison(0xFF) as poison:        # every storage buffer made in here is longer than anyone knows, and bound so
        ...                             # load and run
        assert [] == poison.written()   # names of buffers behind which something was written

What a temporary or an input holds at first is poison, too. Results that differ between two poisons depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from ptegpu.gpu.buffers import GpuBuffer
from ptegpu.gpu.device import Device
from ptegpu.gpu.store import BufferStore

GUARD = 16 << 10  # bytes behind a buffer
BYTES = (0xFF, 0x47)  # as floats, NaN and 51015.28; as ints, -1 and a large one


class Poison:
    """A block in which buffers are poisoned with a byte. What was pooled before is given back at both ends."""

    def __init__(self, byte: int, device: Device) -> None:
        self.pattern, self.device = bytes([byte]), device
        self.buffers: set[GpuBuffer] = set()

    def __enter__(self) -> Poison:
        poison, make, add, bind = self, GpuBuffer.__init__, BufferStore.add, Device.bind_group

        def longer(buffer: GpuBuffer, api: Any, name: str, nbytes: int, kind: Any) -> None:
            storage = kind == "storage"
            make(buffer, api, name, nbytes + GUARD * storage, kind)
            buffer.nbytes = nbytes
            if storage:
                api.write(buffer.handle, nbytes, poison.pattern * GUARD)
                poison.buffers.add(buffer)

        def filled(store: BufferStore, plan: Any, missing: Sequence[Any], *progress: Any) -> None:
            add(store, plan, missing, *progress)
            for buffer in missing:
                if buffer.role in ("temp", "input"):
                    poison.device.write(store[buffer.name], poison.pattern * buffer.nbytes)

        def wider(device: Device, pipeline: Any, entries: Sequence[tuple[GpuBuffer, int, int]]) -> Any:
            found = [(b, o, n + GUARD * (b in poison.buffers and o + n == b.nbytes)) for b, o, n in entries]
            return bind(device, pipeline, found)

        self.device.trim()
        self.patches = [
            patch.object(GpuBuffer, "__init__", longer),
            patch.object(BufferStore, "add", filled),
            patch.object(Device, "bind_group", wider),
        ]
        for p in self.patches:
            p.start()
        return self

    def __exit__(self, *_: object) -> None:
        for p in reversed(self.patches):
            p.stop()
        self.device.trim()

    def written(self) -> list[str]:
        """The buffers behind which something was written; ask while they are in use."""
        live = [b for b in self.buffers if b.state == "ready"]
        ends = {b.name: self.device.read(b, b.nbytes + GUARD)[b.nbytes :] for b in live}
        return sorted(name for name, end in ends.items() if end != self.pattern * GUARD)


def accesses(device: Device, run: Callable[[Callable[[], None]], Sequence[Any]]) -> tuple[list[Any], list[str]]:
    """The results of something, and what is wrong with its accesses. `run` calls what it is given after the work, while
    the buffers are in use; it runs once for each poison."""
    found: list[str] = []
    results: list[Sequence[Any]] = []
    for byte in BYTES:
        with Poison(byte, device) as poison:

            def after(poison: Poison = poison) -> None:
                found.extend(f"{name} is written behind its end" for name in poison.written())

            results.append(run(after))
    for k, (a, b) in enumerate(zip(*results, strict=True)):
        if not same(a, b):
            found.append(f"result {k} depends on what is outside of buffers")
    return list(results[0]), sorted(set(found))


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same, bit for bit but for NaNs."""
    if not isinstance(a, np.ndarray):
        return bool(a == b or (a != a and b != b))
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
