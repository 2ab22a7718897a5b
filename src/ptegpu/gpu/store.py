"""The buffers of one session by name: made and filled once, released together.

Sessions with the same `SharedConstants` upload a constant only once. A session may use the states of another one, whose
plan writes the same states in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import DeviceError, OutOfMemory
from ..format.source import read_pieces
from ..plan.plan import Buffer, Plan
from ..progress import Progress, silent
from .buffers import GpuBuffer, Kind
from .checks import first_bytes
from .device import Device
from .slabs import Part, conflicts, derived_constants, layout


class SharedConstants:
    """Constant buffers that sessions of one device share, by name; each is released by its last user."""

    def __init__(self) -> None:
        self._buffers: dict[str, GpuBuffer] = {}
        self._users: dict[str, set[BufferStore]] = {}

    def __len__(self) -> int:
        return len(self._buffers)

    def get(self, name: str) -> GpuBuffer | None:
        return self._buffers.get(name)

    def add_user(self, name: str, buffer: GpuBuffer, user: BufferStore) -> None:
        self._users.setdefault(name, set()).add(user)
        self._buffers[name] = buffer

    def drop(self, name: str, user: BufferStore) -> bool:
        """Drop one user; return True if it was the last."""
        users = self._users.setdefault(name, set())
        users.discard(user)
        if users:
            return False
        del self._users[name]
        self._buffers.pop(name, None)
        return True


class BufferStore:
    """A session's buffers. Callers hold the device's lock."""

    def __init__(self, device: Device, shared: SharedConstants, states: Sequence[GpuBuffer] = ()) -> None:
        self._device, self._shared = device, shared
        self._lent = states  # of another session, which fills, resets and releases them
        self._buffers: dict[str, GpuBuffer] = {}
        self._first: dict[str, bytes | memoryview] = {}  # the first bytes of states and parameters; the rest is zeros
        self._states: list[str] = []
        self._constants: set[str] = set()

    def __getitem__(self, name: str) -> GpuBuffer:
        return self._buffers[name]

    @property
    def states(self) -> list[GpuBuffer]:
        """The buffers of states, in the order of the plan."""
        return [self._buffers[name] for name in self._states]

    def missing(self, plan: Plan) -> list[Buffer]:
        """List the buffers that no earlier plan has; raise DeviceError if one differs from an earlier plan's."""
        missing = []
        if self._lent:
            self._borrow(plan)
        for buffer in plan.buffers:
            where = f"plan {plan.name}: buffer {buffer.name}"
            earlier = self._shared.get(buffer.name) if buffer.role == "constant" else self._buffers.get(buffer.name)
            if earlier is not None and earlier.nbytes != buffer.nbytes:
                raise DeviceError(f"{where} has {buffer.nbytes} bytes, but {earlier.nbytes} in an earlier plan")
            if buffer.name not in self._buffers:
                missing.append(buffer)
            elif buffer.role == "params" and self._first[buffer.name] != first_bytes(plan, buffer):
                raise DeviceError(f"{where} holds the parameters of another plan")
        return missing

    def check_memory(self, plan: Plan, missing: Iterable[Buffer]) -> None:
        """Raise OutOfMemory if the missing buffers exceed the adapter's free memory."""
        needed = sum(parts[-1].end for parts in self._layout(plan, missing))
        available = self._device.available_bytes()
        if available is not None and needed > available + self._device.pool.nbytes:
            where = f"plan {plan.name} on {self._device.target.name}"
            raise OutOfMemory(f"{where} needs {needed} more bytes; {available} are available")

    def add(self, plan: Plan, missing: Sequence[Buffer], progress: Progress = silent) -> None:
        """Make buffers and fill each with its first bytes. After an error, none of them is left."""
        try:
            fresh = [buffer for buffer in missing if self._shared_constant(buffer) is None]
            self._make(plan, missing)
            total, done = sum(b.nbytes for b in fresh if b.role == "constant"), 0
            for buffer in fresh:
                self._fill(plan, buffer)
                if buffer.role == "constant":
                    done += buffer.nbytes
                    progress("Uploading weights", done, total)
        except BaseException:
            self.drop([buffer.name for buffer in missing])
            raise

    def conflicting(self, plan: Plan, missing: Iterable[Buffer]) -> list[GpuBuffer]:
        """List the states of earlier plans that must leave their slabs before this plan runs."""
        slices: list[GpuBuffer] = []
        earlier = self._buffers.keys() - {buffer.name for buffer in missing}
        for name, others in conflicts(plan, earlier).items():
            buffer = self._buffers[name]
            slabs = [b.slab for b in map(self._buffers.__getitem__, others) if b not in slices]
            if buffer.slab is not None and buffer.slab in slabs:
                slices.append(buffer)
        return slices

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            buffer = self._buffers.pop(name, None)
            if buffer is None:
                continue
            self._first.pop(name, None)
            if buffer in self._lent:
                continue
            if name not in self._constants or self._shared.drop(name, self):
                self._device.release(buffer)
            self._constants.discard(name)
        self._states = [name for name in self._states if name in self._buffers]

    def reset(self) -> None:
        """Reset states to their first bytes."""
        self._device.clear([self._buffers[name] for name in self._states])
        for name in self._states:
            self._device.write(self._buffers[name], self._first[name])

    def close(self) -> None:
        self.drop(list(self._buffers))

    def _borrow(self, plan: Plan) -> None:
        """Take the states of another session as those of a plan; raise DeviceError if they differ."""
        names = [(buffer.name, buffer.nbytes) for buffer in plan.buffers if buffer.role == "state"]
        if [nbytes for _, nbytes in names] != [buffer.nbytes for buffer in self._lent]:
            raise DeviceError(f"plan {plan.name} has other states than the plan whose states it shares")
        self._buffers |= {name: buffer for (name, _), buffer in zip(names, self._lent, strict=True)}

    def _shared_constant(self, buffer: Buffer) -> GpuBuffer | None:
        return self._shared.get(buffer.name) if buffer.role == "constant" else None

    def _layout(self, plan: Plan, missing: Iterable[Buffer]) -> list[list[Part]]:
        """Return the WebGPU buffers to make."""
        fresh = [buffer for buffer in missing if self._shared_constant(buffer) is None]
        return layout(fresh, derived_constants(plan), conflicts(plan, {b.name for b in fresh}), self._device.target)

    def _make(self, plan: Plan, missing: Sequence[Buffer]) -> None:
        """Make the buffers that no other session shares, filled with zeros; take the others."""
        allocations = self._layout(plan, missing)
        for buffer in missing:
            shared = self._shared_constant(buffer)
            if shared is not None:
                self._set(buffer, shared)
        dirty: list[GpuBuffer] = []
        for parts in allocations:
            first = parts[0].buffer
            kind: Kind = "uniform" if first.role in ("params", "syms") else "storage"
            name = first.name if len(parts) == 1 else f"{first.role}s of {plan.name}"
            gpu_buffer = self._device.buffer(name, parts[-1].end, kind)
            if gpu_buffer.dirty:
                dirty.append(gpu_buffer)
            for buffer, offset in parts:
                self._set(
                    buffer, gpu_buffer if len(parts) == 1 else gpu_buffer.slice(buffer.name, offset, buffer.nbytes)
                )
        self._device.clear(dirty)

    def _set(self, buffer: Buffer, gpu_buffer: GpuBuffer) -> None:
        if buffer.role == "constant":
            self._constants.add(buffer.name)  # before the next step: `drop` must know that others may use the buffer
        self._buffers[buffer.name] = gpu_buffer
        if buffer.role == "constant":
            self._shared.add_user(buffer.name, gpu_buffer, self)

    def _fill(self, plan: Plan, buffer: Buffer) -> None:
        first, written = first_bytes(plan, buffer), 0
        for piece in read_pieces(first):
            self._device.write(self._buffers[buffer.name], piece, written)
            written += memoryview(piece).nbytes
        if buffer.role in ("state", "params"):
            self._first[buffer.name] = bytes(first)  # a copy, since the file may change
        if buffer.role == "state":
            self._states.append(buffer.name)
