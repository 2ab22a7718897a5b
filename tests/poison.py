"""Poison behind every buffer of a kernel, to detect writes out of bounds and results that depend on reads there.

    with Poison(0xFF) as poison:        # every new storage buffer has and binds extra bytes at its end
        ...                             # load and run
        assert [] == poison.written()   # names of buffers with writes past their end

Temporaries and inputs initially hold poison as well. Results that differ between two poisons depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from ptegpu.gpu.buffers import GpuBuffer
from ptegpu.gpu.device import Device
from ptegpu.gpu.store import BufferStore

GUARD = 16 << 10  # extra bytes at the end of a buffer
BYTES = (0xFF, 0x47)  # as floats, NaN and 51015.28; as ints, -1 and a large one


class Poison:
    """A context in which buffers are poisoned with a byte; it empties the device's pool on entry and exit."""

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
            bound = [(b, o, n + GUARD * (b in poison.buffers and o + n == b.nbytes)) for b, o, n in entries]
            return bind(device, pipeline, bound)

        self.device.trim()
        self.patches = [
            patch.object(GpuBuffer, "__init__", longer),
            patch.object(BufferStore, "add", filled),
            patch.object(Device, "bind_group", wider),
            patch("ptegpu.gpu.slabs.slab_bytes", lambda target: 0),  # each buffer has an end of its own
        ]
        for p in self.patches:
            p.start()
        return self

    def __exit__(self, *_: object) -> None:
        for p in reversed(self.patches):
            p.stop()
        self.device.trim()

    def written(self) -> list[str]:
        """Return the buffers with writes past their end; call it while they are in use."""
        live = [b for b in self.buffers if b.state == "ready"]
        ends = {b.name: self.device.read(b, b.nbytes + GUARD)[b.nbytes :] for b in live}
        return sorted(name for name, end in ends.items() if end != self.pattern * GUARD)


def accesses(device: Device, run: Callable[[Callable[[], None]], Sequence[Any]]) -> tuple[list[Any], list[str]]:
    """Return the results of `run` and its faulty accesses.

    `run` is called once for each poison; it must call its argument after the work, while the buffers are in use.
    """
    problems: list[str] = []
    results: list[Sequence[Any]] = []
    for byte in BYTES:
        with Poison(byte, device) as poison:

            def after(poison: Poison = poison) -> None:
                problems.extend(f"{name} has writes past its end" for name in poison.written())

            results.append(run(after))
    for k, (a, b) in enumerate(zip(*results, strict=True)):
        if not same(a, b):
            problems.append(f"result {k} depends on memory outside its buffers")
    return list(results[0]), sorted(set(problems))


def same(a: Any, b: Any) -> bool:
    """Return True if two results are equal; NaNs equal each other."""
    if not isinstance(a, np.ndarray):
        return bool(a == b or (a != a and b != b))
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
