"""Runs that gave up, repeated as ordinary dispatches. Callers notice only the time that this takes.

Workgroups that wait for each other share a counter of arrivals on their device. One that waits in vain raises it to
`GAVE_UP`: then nobody waits any more, and later dispatches of this kind leave out their work. Every readback has a copy
of the counter. The first run whose copy says so and all that started later, in any session, are repeated in order.

So a repetition must compute the same as the run. Inputs are kept until a run is known to be right. Small states are
saved before every run and restored. Larger ones are caches, in which a run writes rows by their position, again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DeviceError

if TYPE_CHECKING:
    from .buffers import GpuBuffer
    from .checks import Argument
    from .device import Device
    from .loaded import LoadedPlan
    from .readback import Pending
    from .recording import Recording

GAVE_UP = 1 << 30  # in the counter of arrivals
SMALL = 1 << 16  # bytes of a state that is saved
MOST = 64  # runs in flight; their inputs take memory


class StepGaveUp(Exception):
    """A run in which a workgroup waited too long for another: its outputs are wrong, and the run must be repeated."""


class RunInFlight:
    """A run that may give up, with all that its repetition needs."""

    def __init__(self, loaded: LoadedPlan, inputs: Sequence[Argument], read: tuple[int, ...] | None) -> None:
        self.loaded, self.read = loaded, read
        self.inputs = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]  # callers reuse their arrays
        self.origins = [origin_of(x) for x in inputs]
        self.pending: Pending | None = None
        self._saved: list[tuple[GpuBuffer, GpuBuffer]] = []  # states and copies of them

    def save(self, recording: Recording) -> None:
        """Record copies of small states."""
        device, plan = self.loaded.device, self.loaded.plan
        for buffer, state in zip(plan.buffers, self.loaded.buffers, strict=True):
            if buffer.role == "state" and buffer.nbytes <= SMALL:
                self._saved.append((state, device.buffer("saved state", buffer.nbytes, "storage")))
        recording.touch([saved for _, saved in self._saved])
        for state, saved in self._saved:
            recording.copy(state, saved, state.nbytes)

    def restore(self, recording: Recording) -> None:
        recording.touch([buffer for pair in self._saved for buffer in pair])
        for state, saved in self._saved:
            recording.copy(saved, state, state.nbytes)

    def values(self) -> list[Argument]:
        """Return the inputs for a repetition, for a caller that holds the lock of the session."""
        return [self._value(x, o) for x, o in zip(self.inputs, self.origins, strict=True)]

    def _value(self, x: Argument, origin: Pending | None) -> Argument:
        """Return an input, or its values if its run is not repeated: then a later run may have overwritten it."""
        if isinstance(x, int | np.ndarray) or x.session is not self.loaded.session:
            return x
        if origin is not None and origin.repetition is not None:
            return x
        values = None
        if origin is not None:
            values = origin.result()[next(k for k, output in enumerate(origin.outputs) if output is x)]
        if not isinstance(values, np.ndarray):
            raise DeviceError(
                "a run gave up, and one of its inputs is not on the host to repeat it: call the method again"
            )
        return values

    def end(self) -> None:
        """Drop the inputs and the saved states."""
        self.inputs, self.origins, self.pending = [], [], None
        while self._saved:
            self.loaded.device.release(self._saved.pop()[1])


class RunsInFlight:
    """The runs of a device that are not known to be right, in order. Callers hold the device's lock."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._runs: deque[RunInFlight] = deque()
        self.repeating = False  # also after an interrupt: then all are repeated again

    def __len__(self) -> int:
        return len(self._runs)

    def enter(
        self, loaded: LoadedPlan, waits: bool, inputs: Sequence[Argument], read: tuple[int, ...] | None
    ) -> RunInFlight | None:
        """Return what the repetition of a run will need; None if it cannot give up and follows none that may."""
        if not waits and not self._runs:
            return None
        if (
            self.repeating
            or len(self._runs) >= MOST
            or (self._follows(loaded, inputs) and not waits and not _repeatable(loaded))
        ):
            self.check()
        if self._device.arrivals is None or not (waits or self._follows(loaded, inputs)):
            return None
        return RunInFlight(loaded, inputs, read)

    def add(self, run: RunInFlight, pending: Pending) -> None:
        run.pending, pending.in_flight = pending, run
        self._runs.append(run)

    def right(self, run: RunInFlight) -> None:
        """Note that a run and all before it are right."""
        while run in self._runs:
            self._runs.popleft().end()

    def drop(self, closed: Sequence[LoadedPlan]) -> None:
        """Forget the runs of closed plans."""
        for run in [run for run in self._runs if run.loaded in closed]:
            self._runs.remove(run)
            run.end()
        self.repeating = self.repeating and bool(self._runs)

    def check(self) -> None:
        """Wait for all runs; repeat them if one gave up."""
        device = self._device
        self._submit()
        if self.repeating:
            self.repeat()
        elif self._runs and device.arrivals is not None:
            if memoryview(device.read(device.arrivals, 4)).cast("I")[0] >= GAVE_UP:
                self.repeat()
            else:
                self.right(self._runs[-1])

    def repeat(self) -> None:
        """Repeat all runs; from now on, workgroups of this device do not wait for each other."""
        from .residency import mark_failed

        self._submit()
        if not self._runs:
            return
        self.repeating = True
        if self._device.arrivals is not None:
            mark_failed(self._device, f"workgroups of plan {self._runs[0].loaded.plan.name} waited in vain")
            self._device.arrivals = None
        restored: set[int] = set()
        try:
            for run in self._runs:
                session = run.loaded.session
                assert session is not None and run.pending is not None
                run.pending.repetition = session.repeat(run, _sharing(run.loaded) not in restored)
                restored.add(_sharing(run.loaded))
        except DeviceError:
            self.drop([run.loaded for run in self._runs])
            raise
        self.drop([run.loaded for run in self._runs])

    def _follows(self, loaded: LoadedPlan, inputs: Sequence[Argument]) -> bool:
        """Return whether a run may use what a run in flight writes."""
        sharing = {_sharing(run.loaded) for run in self._runs}
        origins = [o for o in map(origin_of, inputs) if o is not None]
        return _sharing(loaded) in sharing or any(o.in_flight in self._runs for o in origins)

    def _submit(self) -> None:
        """Submit the runs that are held; forget those that were dropped."""
        for run in list(self._runs):
            assert run.loaded.session is not None and run.pending is not None
            run.loaded.session.submit()
            if run.pending.dropped:
                self._runs.remove(run)
                run.end()


def _sharing(loaded: LoadedPlan) -> int:
    """Return a number that only plans with the same states share."""
    assert loaded.session is not None
    return id(loaded.session.peers)


def _repeatable(loaded: LoadedPlan) -> bool:
    """Return whether the copies at the end of a run write small states only."""
    return all(loaded.plan.buffers[c.target].nbytes <= SMALL for c in loaded.plan.copies)


def origin_of(value: Argument) -> Pending | None:
    """Return the run whose output this is, if it is on the device and the run's caller still has it."""
    return None if isinstance(value, int | np.ndarray) else value.origin()
