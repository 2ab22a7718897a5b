"""A session runs plans: buffers by name, one compute pass and one submit per run, one readback at its end.

It knows no operators: inputs arrive in the device's dtype. `loaded.py` compiles and binds a plan, `recording.py`
records runs and drops them after a failure, `readback.py` returns outputs. Two threads that use one session take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import Closed, DeviceError
from ..plan.plan import Buffer, Plan
from ..plan.resolve import plan_at
from ..progress import Progress, silent
from .buffers import MAX_UPLOAD, GpuBuffer
from .checks import Argument, Points, check
from .device import Device
from .loaded import LoadedPlan, ResolvedRun, kernels_at
from .readback import DeviceTensor, Pending, Staging, StagingPool
from .recording import GuardedRecording, Recording
from .repeats import RunInFlight
from .store import BufferStore, SharedConstants
from .threads import Lock

if TYPE_CHECKING:
    from .timing import Timer


class Session:
    """Plans on a device that share buffers; a context manager. Sessions with the same `constants` share those.

    With a session as its `owner`, it uses the states of that one, and must be closed before it.
    """

    def __init__(self, device: Device, constants: SharedConstants | None = None, owner: Session | None = None) -> None:
        self.device = device
        self.generation = 0  # changes with each run, which ends the validity of earlier outputs on the device
        self.timer: Timer | None = None  # measures the runs
        self.lock = Lock()
        self.staging = StagingPool(device)
        self.closed = False
        states = () if owner is None else owner._store.states
        self._store: BufferStore = BufferStore(device, SharedConstants() if constants is None else constants, states)
        self.peers: list[Session] = [] if owner is None else owner.peers  # sessions that use the same states
        self.peers.append(self)
        self._loaded: list[LoadedPlan] = []
        self._guard = GuardedRecording(device)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_open(self) -> None:
        """Raise Closed if the session is closed."""
        if self.closed:
            raise Closed("the session is closed")

    def prepare(self, plan: Plan, points: Points = (), progress: Progress = silent) -> LoadedPlan:
        """Check all limits, then allocate and fill the missing buffers; meanwhile, compile the kernels for `points`.

        After an error, nothing of the plan is left.
        """
        with self.lock, self.device.lock:
            self.check_open()
            check(plan, self.device.target)
            missing = self._store.missing(plan)
            self._store.check_memory(plan, missing)
            loaded = LoadedPlan(self)
            kernels = kernels_at(plan, points) if plan.rows else list(range(len(plan.kernels)))
            loaded.reserve(len(kernels))
            compiling = self.device.compile_kernels([plan.kernels[k] for k in kernels], progress)
            try:
                self._store.add(plan, missing, progress)
                self._separate(plan, missing)
                pipelines = compiling.result()
                loaded.use(plan, [self._store[buffer.name] for buffer in plan.buffers])
                loaded.pipelines = dict(zip(kernels, pipelines, strict=True))
                if not plan.rows:
                    loaded.warm()
                loaded.combine_at(points)
            except BaseException:
                compiling.dropped = True
                self._store.drop([buffer.name for buffer in missing])
                raise
            self._loaded.append(loaded)
            return loaded

    def extend(self, loaded: LoadedPlan, plan: Plan) -> None:
        """Replace a plan by the same plan with more families and choices, which changes nothing it had.

        If its inputs became larger, it is a new plan of the same graph; constants and states keep their buffers.
        """
        with self.lock, self.device.lock:
            self.check_open()
            self.flush()
            self.device.in_flight.check()
            check(plan, self.device.target)
            if [i.shape for i in plan.inputs] != [i.shape for i in loaded.plan.inputs]:
                loaded.release()
                self._store.drop([b.name for b in loaded.plan.buffers if b.role not in ("constant", "state")])
                self.generation += 1
                self._guard.forget()
            missing = self._store.missing(plan)
            self._store.check_memory(plan, missing)
            self._store.add(plan, missing)
            self._separate(plan, missing)
            loaded.use(plan, [self._store[buffer.name] for buffer in plan.buffers])

    def warm(self, loaded: LoadedPlan) -> None:
        """Compile and bind the kernels for all sizes."""
        with self.lock, self.device.lock:
            self.check_open()
            loaded.warm()

    def resolve(self, loaded: LoadedPlan, inputs: Sequence[Argument]) -> ResolvedRun:
        """Return the run of these inputs; raise Unplanned if the plan does not hold at their sizes."""
        with self.lock:
            self._check_loaded(loaded)
            return loaded.resolve(inputs)

    def run(
        self, loaded: LoadedPlan, inputs: Sequence[Argument], *, read: Sequence[int] | None = None
    ) -> list[Argument]:
        """Run and wait; return outputs in `read` (None: all) as arrays, the others as tensors on the device."""
        return self.start(loaded, inputs, read=read).result()

    def start(
        self,
        loaded: LoadedPlan,
        inputs: Sequence[Argument],
        *,
        read: Sequence[int] | None = None,
        run: ResolvedRun | None = None,
        hold: bool = False,
    ) -> Pending:
        """Run without waiting. Outputs on the device may be inputs of the next run before this one ends.

        `run` is the result of `resolve` for these inputs. With `hold`, the run is submitted together with the next one,
        or when its result is requested.
        """
        with self.lock, self.device.lock:
            self._check_loaded(loaded)
            arguments = loaded.accept(inputs)
            if run is None:
                run = loaded.resolve(inputs)
            words = loaded.words(run)
            self._submit_peers()
            self.generation += 1  # even an interrupted run may have overwritten the last outputs
            outputs = None if read is None else tuple(read)
            flight = self.device.in_flight.enter(loaded, run.recorded.waits, arguments, outputs)
            with self._guard as recording:
                if flight is not None:
                    flight.save(recording)
                recording = self._upload(recording, loaded, run, arguments, words)
                pending = self._record(recording, loaded, run, outputs, flight is not None)
                if flight is not None:
                    self.device.in_flight.add(flight, pending)
                if not hold or self.timer is not None:
                    self._guard.flush()
            if self.timer is not None:
                pending.result()
                loaded.last = plan_at(loaded.plan, run.shapes, run.item)
                self.timer.collect(loaded)
            return pending

    def repeat(self, flight: RunInFlight, restore: bool) -> Pending:
        """Repeat a run, perhaps from the states before it; its outputs have the same buffers.

        Callers hold the lock of the device.
        """
        loaded, inputs = flight.loaded, flight.values()
        run = loaded.resolve(inputs)
        self._guard.forget()
        with self._guard as recording:
            if restore:
                flight.restore(recording)
            recording = self._upload(recording, loaded, run, inputs, loaded.words(run))
            pending = self._record(recording, loaded, run, flight.read, False)
            self._guard.flush()
        return pending

    def flush(self) -> None:
        """Submit the runs that are held."""
        with self.lock, self.device.lock:
            self.submit()

    def submit(self) -> None:
        """Submit the runs that are held; callers hold the lock of the device."""
        self._guard.flush()

    def reset(self) -> None:
        """Reset states to their first bytes."""
        with self.lock, self.device.lock:
            self.check_open()
            self.flush()
            self._submit_peers()
            self.device.check_alive()
            self.device.in_flight.check()
            self.generation += 1
            self._store.reset()

    def close(self) -> None:
        """Release all buffers; later uses of the session raise Closed."""
        with self.lock, self.device.lock:
            self.closed = True
            self._guard.drop()
            self.device.in_flight.drop(self._loaded)
            for loaded in self._loaded:
                loaded.close()
            self._loaded = []
            self.staging.close()
            self._store.close()
            if self in self.peers:
                self.peers.remove(self)

    def _separate(self, plan: Plan, missing: Sequence[Buffer]) -> None:
        """Give states of earlier plans buffers of their own if this one cannot use them in their slab."""
        slices = self._store.conflicting(plan, missing)
        if slices:
            self.submit()
            self._submit_peers()
            plans = [loaded for session in self.peers for loaded in session._loaded]
            for loaded in plans:
                loaded.release()
            for part in slices:
                self.device.detach(part)
            for loaded in plans:
                loaded.use(loaded.plan, loaded.buffers)

    def _submit_peers(self) -> None:
        """Submit the runs that other sessions with the same states hold; callers hold the lock of the device."""
        for session in self.peers:
            if session is not self:
                session.submit()

    def _check_loaded(self, loaded: LoadedPlan) -> None:
        self.check_open()
        if loaded.session is not self:
            raise DeviceError(f"plan {loaded.plan.name} was prepared by another session")

    def _upload(
        self,
        recording: Recording,
        loaded: LoadedPlan,
        run: ResolvedRun,
        arguments: Sequence[Argument],
        words: bytes | None,
    ) -> Recording:
        """Record the uploads into the plan's buffers: arrays, parameters, symbolic ints, and tensors on the device."""
        guard, uploads = self._guard, list[tuple[GpuBuffer, np.ndarray]]()
        if guard.params.get(loaded) is not run.recorded:
            uploads += run.recorded.images
            guard.params[loaded] = run.recorded
        if loaded.syms is not None and words is not None and words != guard.syms:
            uploads.append((loaded.syms, np.frombuffer(words, np.uint8)))
            guard.syms = words
        for value, (_, _, target) in zip(arguments, loaded.inputs, strict=True):
            if target is None or isinstance(value, int):
                continue
            if isinstance(value, DeviceTensor):
                if value.buffer is not target and value.nbytes and guard.copies.get(id(target), ())[1:] != (value,):
                    recording.touch([value.buffer])
                    recording.copy(value.buffer, target, (value.nbytes + 3) & ~3)
                    guard.copies[id(target)] = target, value
                continue
            guard.copies.pop(id(target), None)
            if value.nbytes <= MAX_UPLOAD:
                uploads.append((target, value))
            else:
                recording = guard.write(target, value)
        for written in loaded.written_ids & guard.copies.keys():
            del guard.copies[written]
        recording.upload(uploads)
        return recording

    def _record(
        self,
        recording: Recording,
        loaded: LoadedPlan,
        run: ResolvedRun,
        read: tuple[int, ...] | None,
        waits: bool,
    ) -> Pending:
        buffers, layout, staging, offset = loaded.buffers, run.recorded.layout(read), None, 0
        recording.touch(loaded.touched)
        recording.touch(run.recorded.touched)
        apart = not self.device.resident or (self.timer is not None and self.timer.each)
        steps = run.recorded.separate if apart else run.recorded.steps
        if steps.groups:
            recording.compute(steps, self.timer)
        for source, target, nbytes in loaded.copies:
            recording.copy(source, target, nbytes)
        arrivals = self.device.arrivals if waits else None
        if layout.nbytes:
            staging, nbytes = recording.staging, layout.nbytes + (arrivals.nbytes if arrivals else 0)
            if staging is None or staging.used + nbytes > staging.buffer.nbytes:
                staging = recording.staging = Staging(self.staging.take(nbytes))
                recording.touch([staging.buffer])
            offset = staging.take(nbytes)
            if arrivals:
                recording.touch([arrivals])
                recording.copy(arrivals, staging.buffer, arrivals.nbytes, offset + layout.nbytes)
            for output in layout.outputs:
                if output.nbytes:
                    recording.copy(buffers[output.buffer], staging.buffer, output.nbytes, offset + output.offset)
        return Pending(self, buffers, run, recording, layout, staging, offset, self.generation, arrivals is not None)
