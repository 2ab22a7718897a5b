"""The buffers of one session by name: made once, filled once, given back together.

Constants may be shared: sessions with the same `SharedConstants` upload a constant of one name once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import DeviceError, OutOfMemory
from ..format.source import steady
from ..plan.plan import Buffer, Plan
from ..progress import Progress, silent
from .buffers import GpuBuffer, Kind
from .device import Device
from .limits import first_bytes


class SharedConstants:
    """Constant buffers of several sessions on one device, by name; each goes with its last user."""

    def __init__(self) -> None:
        self._held: dict[str, GpuBuffer] = {}
        self._users: dict[str, set[BufferStore]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, name: str) -> GpuBuffer | None:
        return self._held.get(name)

    def add_user(self, name: str, buffer: GpuBuffer, user: BufferStore) -> None:
        self._users.setdefault(name, set()).add(user)
        self._held[name] = buffer

    def drop(self, name: str, user: BufferStore) -> bool:
        """Drop one user; return True if it was the last."""
        users = self._users.setdefault(name, set())
        users.discard(user)
        if users:
            return False
        del self._users[name]
        self._held.pop(name, None)
        return True


class BufferStore:
    """A session's buffers. Its caller holds the device's lock."""

    def __init__(self, device: Device, shared: SharedConstants) -> None:
        self._device, self._shared = device, shared
        self._buffers: dict[str, GpuBuffer] = {}
        self._first: dict[str, bytes | memoryview] = {}  # the first bytes of states and parameters; the rest is zeros
        self._states: list[str] = []
        self._constants: set[str] = set()

    def __getitem__(self, name: str) -> GpuBuffer:
        return self._buffers[name]

    def missing(self, plan: Plan) -> list[Buffer]:
        """List the buffers that no earlier plan brought; raise DeviceError where one disagrees with an earlier plan."""
        missing = []
        for buffer in plan.buffers:
            where = f"plan {plan.name}: buffer {buffer.name}"
            found = self._shared.get(buffer.name) if buffer.role == "constant" else self._buffers.get(buffer.name)
            if found is not None and found.nbytes != buffer.nbytes:
                raise DeviceError(f"{where} has {buffer.nbytes} bytes, but {found.nbytes} in an earlier plan")
            if buffer.name not in self._buffers:
                missing.append(buffer)
            elif buffer.role == "params" and self._first[buffer.name] != first_bytes(plan, buffer):
                raise DeviceError(f"{where} holds the parameters of another plan")
        return missing

    def check_memory(self, plan: Plan, missing: Iterable[Buffer]) -> None:
        """Raise OutOfMemory if the buffers to make exceed what the adapter still has."""
        needed = sum(b.nbytes for b in missing if b.role != "constant" or self._shared.get(b.name) is None)
        available = self._device.available_bytes()
        if available is not None and needed > available + self._device.pool.nbytes:
            where = f"plan {plan.name} on {self._device.target.name}"
            raise OutOfMemory(f"{where} needs {needed} more bytes; {available} are available")

    def add(self, plan: Plan, missing: Sequence[Buffer], progress: Progress = silent) -> None:
        """Make buffers and fill each with its first bytes; all or none of them."""
        try:
            fresh = [buffer for buffer in missing if self._make(buffer)]
            self._device.clear([made for buffer in fresh if (made := self._buffers[buffer.name]).dirty])
            total, done = sum(b.nbytes for b in fresh if b.role == "constant"), 0
            for buffer in fresh:
                self._fill(plan, buffer)
                if buffer.role == "constant":
                    done += buffer.nbytes
                    progress("Uploading weights", done, total)
        except BaseException:
            self.drop([buffer.name for buffer in missing])
            raise

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            buffer = self._buffers.pop(name, None)
            if buffer is None:
                continue
            self._first.pop(name, None)
            if name not in self._constants or self._shared.drop(name, self):
                self._device.release(buffer)
            self._constants.discard(name)
        self._states = [name for name in self._states if name in self._buffers]

    def reset(self) -> None:
        """Set states back to their first bytes."""
        self._device.clear([self._buffers[name] for name in self._states])
        for name in self._states:
            self._device.write(self._buffers[name], self._first[name])

    def close(self) -> None:
        self.drop(list(self._buffers))

    def _make(self, buffer: Buffer) -> bool:
        """Make a buffer; return whether it is new, and so has to be filled."""
        kind: Kind = "uniform" if buffer.role in ("params", "syms") else "storage"
        shared = self._shared.get(buffer.name) if buffer.role == "constant" else None
        made = shared or self._device.buffer(buffer.name, buffer.nbytes, kind)
        if buffer.role != "constant":
            self._buffers[buffer.name] = made
            return True
        self._constants.add(buffer.name)  # first: whoever drops the buffer must know that others may use it
        self._buffers[buffer.name] = made
        self._shared.add_user(buffer.name, made, self)
        return shared is None

    def _fill(self, plan: Plan, buffer: Buffer) -> None:
        first, written = first_bytes(plan, buffer), 0
        for piece in steady(first):
            self._device.write(self._buffers[buffer.name], piece, written)
            written += memoryview(piece).nbytes
        if buffer.role in ("state", "params"):
            self._first[buffer.name] = bytes(first)  # of files that may change
        if buffer.role == "state":
            self._states.append(buffer.name)
