"""Runs plans: buffers by name, one compute pass and one submit per run, one read back at its end.

Knows nothing of operators: inputs arrive in the device's dtype. A run at sizes that are not those of the run before
evaluates the plan's numbers and writes its parameters; pipelines and bind groups are made when a choice is first taken,
or all at once (`Session.warm`). Two threads on one session take turns.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..errors import Closed, DeviceError, InvalidInput, InvalidProgram, LimitExceeded
from ..limits import current
from ..plan.numbers import Item, Shapes
from ..plan.plan import Binding, Choice, Expr, Input, Number, Plan, Port, plain
from ..plan.resolve import At, Resolver, chosen, evaluated
from ..progress import Progress, silent
from .buffers import GpuBuffer
from .combined import Combined, Launch, combine
from .device import Device
from .held import Handle
from .limits import check, staging_bytes
from .pipelines import Pipeline
from .recorder import Steps
from .recording import Recording, Staging
from .store import BufferStore, SharedConstants
from .tensor import DeviceTensor
from .threads import Lock
from .timer import Timer
from .uploads import LARGEST

Tensor: TypeAlias = np.ndarray | DeviceTensor
Points: TypeAlias = Sequence[Mapping[str, int]]  # sizes and ints by name: "input 0[1]"
Given: TypeAlias = np.ndarray | DeviceTensor | int

_MIN_STAGING = 1024
_MAX_FREE = 4  # staging buffers that are kept


class Place(NamedTuple):
    """Where an output that is read is in the staging buffer."""

    number: int
    buffer: int  # of the plan
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int  # whole words


class Layout(NamedTuple):
    """The outputs that are read, one behind the other."""

    places: tuple[Place, ...]
    nbytes: int  # with padding
    carried: int  # without


class Reading(NamedTuple):
    """What is read of a run, and from where in which staging; none when there are no bytes to read."""

    recording: Recording
    layout: Layout
    staging: Staging | None
    offset: int


@dataclass(eq=False, slots=True)
class Ready:
    """A plan at the sizes of one run: what the recording loop replays."""

    key: tuple[Any, ...]
    at: At
    steps: Steps
    outputs: tuple[Port | Number, ...]  # shapes are plain
    images: list[np.ndarray]  # of parameters that have to be written first
    layouts: dict[tuple[int, ...] | None, Layout] = field(default_factory=dict)  # by what is read

    def layout(self, read: tuple[int, ...] | None) -> Layout:
        if read not in self.layouts:
            places, total, carried = [], 0, 0
            for number in range(len(self.outputs)) if read is None else read:
                port = self.outputs[number]
                if isinstance(port, Port):
                    shape = tuple(map(plain, port.shape))
                    places.append(
                        Place(number, port.buffer, port.dtype.numpy, shape, total, _word_aligned(port.nbytes))
                    )
                    total += staging_bytes(port.nbytes)
                    carried += port.nbytes
            self.layouts[read] = Layout(tuple(places), total, carried)
        return self.layouts[read]


class Look(NamedTuple):
    """What a run of some inputs would be: at their sizes, with these symbolic ints (by row)."""

    ready: Ready
    ints: dict[int, Any]
    shapes: Shapes
    item: Item


class _Taken(NamedTuple):
    """An input of a plan: arrays of this dtype and of the declared shape need no further look."""

    declared: Input
    dtype: np.dtype | None
    buffer: GpuBuffer | None


class Prepared:
    """A plan made ready on a session: its buffers in the plan's order, what is bound, and the sizes of the last run."""

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.drop()
        self.last: Plan | None = None  # the plan at the sizes of a run that is timed

    def drop(self) -> None:
        """Nothing is compiled and bound any more, until a run needs it."""
        self.launches: dict[tuple[int, int, int], list[Launch]] = {}  # by family, step and choice
        self.groups: dict[tuple[object, ...], Handle] = {}
        self.pipelines: dict[int, Pipeline] = {}
        self.combined: dict[tuple[int, tuple[int, ...]], Combined] = {}
        self.ready: Ready | None = None
        self.written: Ready | None = None  # whose parameters the buffers hold
        self.done: set[tuple[int, tuple[Binding, ...]]] = set()  # what need not be repeated

    def take(self, plan: Plan, buffers: list[GpuBuffer]) -> None:
        """What follows from the plan alone."""
        self.plan, self.buffers = plan, buffers
        self.resolver = Resolver(plan)
        self.takes = [
            _Taken(i, i.dtype and i.dtype.numpy, None if i.buffer is None else buffers[i.buffer]) for i in plan.inputs
        ]
        self.own = {id(t.buffer) for t in self.takes if t.buffer is not None}
        self.writes = {id(buffers[k]) for k in _written(plan)} & self.own
        self.copies = [(buffers[c.source].handle, buffers[c.target].handle, c.nbytes) for c in plan.copies]
        self.syms = next((buffers[k] for k, b in enumerate(plan.buffers) if b.role == "syms"), None)
        self.params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]
        self.ready, self.written, self.combined = None, None, {}

    def end(self) -> None:
        self.session = None
        self.drop()


class Unplanned(LookupError):
    """No family or no choice of a plan holds at the sizes given."""


class Pending:
    """A run on its way. `outputs` are on the device (ints are known); `result` waits and reads, once. If that is
    interrupted, it can be called again."""

    def __init__(self, session: Session, prepared: Prepared, look: Look, reading: Reading) -> None:
        self._session, self._buffers, self._look, self._reading = session, prepared.buffers, look, reading
        self._generation = session.generation
        self._result: list[Given] | None = None

    @cached_property
    def outputs(self) -> list[DeviceTensor | int]:
        return [self._output(o) for o in self._look.ready.outputs]

    def _output(self, o: Port | Number) -> DeviceTensor | int:
        if isinstance(o, Port):
            return DeviceTensor(self._session, self._buffers[o.buffer], o.dtype, o.shape, self._generation)  # type: ignore[arg-type]
        return int(self._look.ints[o.row] if isinstance(o, Expr) else o)

    def result(self) -> list[Given]:
        """Arrays for the outputs that are read, device tensors for the others."""
        if self._result is None:
            arrays = self._session.read(self._reading)
            outputs = self._look.ready.outputs
            self._result = [arrays[n] if n in arrays else self.outputs[n] for n in range(len(outputs))]
            self._session.free(self._reading)
        return self._result

    def discard(self) -> None:
        """Nobody will ask for the result."""
        if self._result is None:
            self._result = list(self.outputs)
            self._session.free(self._reading)


class Session:
    """One graph on a device; close it, or use it as a context manager. Sessions given one `constants` share those."""

    def __init__(self, device: Device, constants: SharedConstants | None = None) -> None:
        self.device = device
        self.generation = 0  # of the outputs that stay on the device
        self.timer: Timer | None = None  # that measures the runs
        self._lock = Lock()
        self._store = BufferStore(device, SharedConstants() if constants is None else constants)
        self._prepared: list[Prepared] = []
        self._staging: list[GpuBuffer] = []  # that are free
        self._recording: Recording | None = None  # what is held
        self._syms: bytes | None = None  # what the syms buffer holds
        self._holds: dict[int, tuple[GpuBuffer, DeviceTensor]] = {}  # inputs that are copies of tensors, by their id
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def prepare(self, plan: Plan, points: Points = (), progress: Progress = silent) -> Prepared:
        """Checks every limit, then allocates what is not there yet and uploads; compiles meanwhile what every size
        needs, and these points. All or nothing."""
        with self._lock, self.device.lock:
            self._check_open()
            check(plan, self.device.target)
            missing = self._store.missing(plan)
            self._store.check_memory(plan, missing)
            wanted = _kernels_at(plan, points) if plan.rows else list(range(len(plan.kernels)))
            prepared = Prepared(self)
            _keep(prepared, len(wanted))
            kernels = [plan.kernels[k] for k in wanted]
            compiling = self.device.compile(kernels, progress)
            try:
                self._store.add(plan, missing, progress)
                pipelines = compiling.result()
                prepared.take(plan, [self._store[buffer.name] for buffer in plan.buffers])
                prepared.pipelines = dict(zip(wanted, pipelines, strict=True))
                if not plan.rows:
                    self.warm(prepared)
            except BaseException:
                compiling.dropped = True
                self._store.drop([buffer.name for buffer in missing])
                raise
            self._prepared.append(prepared)
            return prepared

    def extend(self, prepared: Prepared, plan: Plan) -> None:
        """Take the same plan with more families and choices: nothing of what it had has changed.

        Or, where its inputs became larger, a new plan of the same graph: constants and states keep their buffers.
        """
        with self._lock, self.device.lock:
            self._check_open()
            self.flush()
            check(plan, self.device.target)
            if [i.shape for i in plan.inputs] != [i.shape for i in prepared.plan.inputs]:
                prepared.drop()
                self._store.drop([b.name for b in prepared.plan.buffers if b.role not in ("constant", "state")])
                self.generation += 1
                self._syms, self._holds = None, {}
            missing = self._store.missing(plan)
            self._store.check_memory(plan, missing)
            self._store.add(plan, missing)
            prepared.take(plan, [self._store[buffer.name] for buffer in plan.buffers])

    def warm(self, prepared: Prepared) -> None:
        """Compile and bind everything that any size may need."""
        with self._lock, self.device.lock:
            self._check_open()
            families = prepared.plan.families
            self._compile(prepared, [c for family in families for choices in family.steps for c in choices])
            for f, family in enumerate(families):
                for s, choices in enumerate(family.steps):
                    for c in range(len(choices)):
                        self._launches(prepared, f, s, c)

    def look(self, prepared: Prepared, inputs: Sequence[Given]) -> Look:
        """The plan at the sizes of these inputs, and its symbolic ints; Unplanned if it does not hold for them."""
        with self._lock:
            self._check_prepared(prepared)
            shapes, item = given_sizes(inputs)
            resolver, ready = prepared.resolver, prepared.ready
            key = resolver.key(shapes, item)
            if ready is None or ready.key != key:
                with self.device.lock:
                    ready = prepared.ready = self._at(prepared, key, shapes, item)
            return Look(ready, resolver.words_at(shapes, item) if resolver.words else {}, shapes, item)

    def run(self, prepared: Prepared, inputs: Sequence[Given], *, read: Sequence[int] | None = None) -> list[Given]:
        """One run. Outputs listed in `read` (all when None) come back as arrays, the others stay on the device."""
        return self.start(prepared, inputs, read=read).result()

    def start(
        self,
        prepared: Prepared,
        inputs: Sequence[Given],
        *,
        read: Sequence[int] | None = None,
        look: Look | None = None,
        hold: bool = False,
    ) -> Pending:
        """A run that is not waited for: its outputs on the device may go into the next one before it ends.

        `look` is what `look` says of these inputs, if that was asked already. With `hold`, the run is submitted
        together with the next one, or when its result is asked for.
        """
        with self._lock, self.device.lock:
            self._check_prepared(prepared)
            given = self._accept(prepared, inputs)
            if look is None:
                look = self.look(prepared, inputs)
            words = self._words(prepared, look)
            self.generation += 1  # even a run that is interrupted on the way may have overwritten the last outputs
            try:
                if self._recording is None:
                    self._recording = Recording(self.device)
                self._upload(prepared, look.ready, given, words)
                reading = self._record(prepared, look.ready, None if read is None else tuple(read))
                if not hold or self.timer is not None:
                    self.flush()
            except BaseException:
                self._drop()
                raise
            pending = Pending(self, prepared, look, reading)
            if self.timer is not None:
                pending.result()
                prepared.last = evaluated(prepared.plan, look.shapes, look.item)
                self.timer.collect(prepared)
            return pending

    def flush(self) -> None:
        """Submits what is held."""
        with self._lock, self.device.lock:
            if self._recording is not None:
                try:
                    self._recording.submit()
                except BaseException:
                    self._drop()
                    raise
                self._recording = None

    def _drop(self) -> None:
        """What was recorded never runs."""
        if self._recording is not None and self._recording.state == "held":
            self._recording.state = "dropped"
            self._syms, self._holds = None, {}
            for prepared in self._prepared:
                prepared.written = None
        self._recording = None

    def reset(self) -> None:
        """States back to their first bytes."""
        with self._lock, self.device.lock:
            self._check_open()
            self.flush()
            self.device.check_alive()
            self.generation += 1
            self._store.reset()

    def close(self) -> None:
        """Gives every buffer back; whatever uses the session afterwards raises Closed."""
        with self._lock, self.device.lock:
            self._closed = True
            self._drop()
            for prepared in self._prepared:
                prepared.end()
            self._prepared = []
            for staging in self._staging:
                self.device.release(staging)
            self._staging = []
            self._store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the session is closed")

    def _check_prepared(self, prepared: Prepared) -> None:
        self._check_open()
        if prepared.session is not self:
            raise DeviceError(f"plan {prepared.plan.name} was prepared by another session")

    def _compile(self, prepared: Prepared, choices: Sequence[Choice]) -> None:
        """The kernels of these choices, all at once."""
        wanted = dict.fromkeys(d.kernel for c in choices for d in c.dispatches)
        new = [k for k in wanted if k not in prepared.pipelines]
        if len(prepared.pipelines) + len(new) > _most_pipelines():  # those of other sizes go
            prepared.drop()
            new = list(wanted)
        _keep(prepared, len(prepared.pipelines) + len(new))
        made = self.device.pipelines([prepared.plan.kernels[k] for k in new])
        prepared.pipelines |= dict(zip(new, made, strict=True))

    def _launches(self, prepared: Prepared, family: int, step: int, choice: int) -> list[Launch]:
        """The dispatches of a choice, compiled and bound."""
        key = (family, step, choice)
        if key not in prepared.launches:
            plan, found = prepared.plan, []
            for dispatch in plan.families[family].steps[step][choice].dispatches:
                pipeline = prepared.pipelines[dispatch.kernel]
                bound = (dispatch.kernel, dispatch.bindings)
                if bound not in prepared.groups:
                    entries = [(prepared.buffers[b.buffer], b.offset, b.nbytes) for b in dispatch.bindings]
                    prepared.groups[bound] = self.device.bind_group(pipeline, entries)
                found.append(Launch(pipeline, prepared.groups[bound], dispatch))
            prepared.launches[key] = found
        return prepared.launches[key]

    def _at(self, prepared: Prepared, key: tuple[Any, ...], shapes: Shapes, item: Item) -> Ready:
        plan = prepared.plan
        if any(_outgrows(shape, declared) for shape, declared in zip(shapes, plan.inputs)):
            raise Unplanned(f"plan {plan.name} has no room for {list(shapes)}")
        at = prepared.resolver.at(shapes, item)
        if at is None:
            raise Unplanned(f"plan {plan.name} does not hold for {list(shapes)}")
        family = plan.families[at.family]
        if family.refusal:
            raise _refused(plan, shapes, family.refusal)
        which = (at.family, at.switches)
        made = prepared.combined.get(which)
        if made is None:
            chosen = [choices[k] for choices, k in zip(family.steps, at.choices, strict=True)]
            refusal = next((c.refusal for c in chosen if c.refusal), "")
            if refusal:
                raise _refused(plan, shapes, refusal)
            self._compile(prepared, chosen)
            launches = [x for s, c in enumerate(at.choices) for x in self._launches(prepared, at.family, s, c)]
            self._run_once(prepared, [x for x in launches if x.dispatch.once])
            launches = [x for x in launches if not x.dispatch.once]
            made = prepared.combined[which] = combine(launches, prepared.resolver.order, prepared.params)
        steps, largest = made.steps(at)
        if largest > self.device.target.max_groups:
            most = self.device.target.max_groups
            raise LimitExceeded(f"plan {plan.name} needs {largest} workgroups in one dimension, {most} are allowed")
        outputs: list[Port | Number] = []
        for o in family.outputs:
            if isinstance(o, Port) and any(isinstance(n, Expr) for n in o.shape):
                o = Port(o.name, o.buffer, o.dtype, tuple(int(at.number(n)) for n in o.shape))
                if min(map(plain, o.shape), default=0) < 0 or o.nbytes > plan.buffers[o.buffer].nbytes:
                    raise InvalidProgram(f"plan {plan.name}: {o.name} of {list(o.shape)} does not fit its buffer")
            outputs.append(o)
        return Ready(key, at, steps, tuple(outputs), made.images(plan, at))

    def _run_once(self, prepared: Prepared, launches: Sequence[Launch]) -> None:
        """What need not be repeated, if it did not run yet: behind what is recorded so far, before what comes."""
        new = {(x.dispatch.kernel, x.dispatch.bindings): x for x in launches}
        new = {key: x for key, x in new.items() if key not in prepared.done}
        if not new:
            return
        self.flush()
        grids = [[plain(x.dispatch.grid[axis]) for x in new.values()] for axis in (0, 1)]
        steps = Steps([x.pipeline.handle for x in new.values()], [x.group for x in new.values()], *grids)
        recording = Recording(self.device)
        recording.touch(prepared.buffers)
        recording.compute(steps, None)
        recording.submit()
        prepared.done.update(new)

    def _accept(self, prepared: Prepared, inputs: Sequence[Given]) -> list[Given]:
        """Inputs that fit the plan; tensors that cannot be copied on this device become arrays."""
        takes = prepared.takes
        if len(inputs) != len(takes):
            raise InvalidInput(f"plan {prepared.plan.name} takes {len(takes)} inputs, {len(inputs)} given")
        accepted = list(inputs)
        for number, given in enumerate(inputs):
            declared, dtype, buffer = takes[number]
            if type(given) is np.ndarray and given.dtype is dtype and given.shape == declared.shape:
                continue
            _check_fits(number, declared, given)
            if isinstance(given, DeviceTensor):
                given.check_fresh()
                overwritten = id(given.buffer) in prepared.own and given.buffer is not buffer
                if given.session.device is not self.device or overwritten:
                    accepted[number] = given.numpy()
                elif given.session is not self:
                    given.session.flush()
        return accepted

    def _words(self, prepared: Prepared, look: Look) -> bytes | None:
        """What the syms buffer must hold; None where the plan has none."""
        if prepared.syms is None:
            return None
        words, ints = prepared.plan.families[look.ready.at.family].words, look.ints
        try:
            return array("i", [ints[w.row] if isinstance(w, Expr) else w for w in words]).tobytes()
        except OverflowError:
            raise InvalidInput(f"plan {prepared.plan.name}: a symbolic int does not fit 32 bits") from None

    def _upload(self, prepared: Prepared, ready: Ready, given: Sequence[Given], words: bytes | None) -> None:
        """Arrays, parameters and symbolic ints, and tensors that are on the device already."""
        assert self._recording is not None
        uploads: list[tuple[GpuBuffer, np.ndarray]] = []
        if prepared.written is not ready:
            uploads += [(prepared.buffers[k], image) for k, image in zip(prepared.params, ready.images, strict=False)]
            prepared.written = ready
        if prepared.syms is not None and words is not None and words != self._syms:
            uploads.append((prepared.syms, np.frombuffer(words, np.uint8)))
            self._syms = words
        for value, (_, _, target) in zip(given, prepared.takes, strict=True):
            if target is None or isinstance(value, int):
                continue
            if isinstance(value, DeviceTensor):
                if value.buffer is not target and value.nbytes and self._holds.get(id(target), ())[1:] != (value,):
                    self._recording.touch([value.buffer])
                    self._recording.copy(value.buffer.handle, target.handle, _word_aligned(value.nbytes))
                    self._holds[id(target)] = target, value
                continue
            self._holds.pop(id(target), None)
            if value.nbytes <= LARGEST:
                uploads.append((target, value))
            else:
                self._recording = self._write(self._recording, target, value)
        for written in prepared.writes & self._holds.keys():
            del self._holds[written]
        self._recording.upload(uploads)

    def _write(self, recording: Recording, target: GpuBuffer, value: np.ndarray) -> Recording:
        """A large array, in pieces, behind what is recorded so far."""
        recording.submit()
        self.device.write(target, _bytes_of(value))
        return Recording(self.device)

    def _record(self, prepared: Prepared, ready: Ready, read: tuple[int, ...] | None) -> Reading:
        recording, buffers, layout = self._recording, prepared.buffers, ready.layout(read)
        assert recording is not None
        recording.touch(buffers)
        if ready.steps.groups:
            recording.compute(ready.steps, self.timer)
        for source, target, nbytes in prepared.copies:
            recording.copy(source, target, nbytes)
        if not layout.nbytes:
            return Reading(recording, layout, None, 0)
        staging = recording.staging
        if staging is None or staging.used + layout.nbytes > staging.buffer.nbytes:
            staging = recording.staging = Staging(self._free_staging(layout.nbytes))
            recording.touch([staging.buffer])
        offset = staging.take(layout.nbytes)
        for place in layout.places:
            if place.nbytes:
                source = buffers[place.buffer].handle
                recording.copy(source, staging.buffer.handle, place.nbytes, offset + place.offset)
        return Reading(recording, layout, staging, offset)

    def _free_staging(self, nbytes: int) -> GpuBuffer:
        while self._staging:
            buffer = self._staging.pop()
            if buffer.nbytes >= nbytes and buffer.state == "ready":
                return buffer
            self.device.release(buffer)
        return self.device.buffer("outputs", max(nbytes, _MIN_STAGING), "staging")

    def read(self, reading: Reading) -> dict[int, np.ndarray]:
        """The outputs of a run, when it is done."""
        recording, layout, staging, offset = reading
        with self._lock:
            self._check_open()
            if recording.state == "held":
                self.flush()
            if recording.state != "submitted":
                raise DeviceError("this run was recorded together with one that failed, and never began")
            if staging is None:
                return {p.number: np.empty(p.shape, p.dtype) for p in layout.places}
            started = perf_counter()
            view = staging.view(self.device)
            found = {p.number: _array(view, offset, p) for p in layout.places}
            self.device.traffic.read(layout.carried, started)
            return found

    def free(self, reading: Reading) -> None:
        """The staging buffer may serve another run: that one's copy comes after, in the queue's order."""
        with self._lock:
            if reading.staging is None or not reading.staging.leave():
                return
            reading.recording.staging = None
            if len(self._staging) < _MAX_FREE and not self._closed:
                self._staging.append(reading.staging.buffer)
            else:
                self.device.release(reading.staging.buffer)


def _written(plan: Plan) -> set[int]:
    """The buffers that a run of it may write."""
    dispatches = [d for f in plan.families for choices in f.steps for c in choices for d in c.dispatches]
    bound = {(b.buffer, a) for d in dispatches for b, a in zip(d.bindings, plan.kernels[d.kernel].access)}
    return {k for k, access in bound if access != "read"} | {c.target for c in plan.copies}


def _most_pipelines() -> float:
    budget = current()
    return math.inf if budget is None else budget.limits.pipelines


def _keep(prepared: Prepared, count: int) -> None:
    """It will have so many pipelines; others of the program may have to give up theirs."""
    budget = current()
    if budget is not None:
        budget.keep(prepared, count, prepared.drop)


def _kernels_at(plan: Plan, points: Points) -> list[int]:
    """The kernels that a plan needs at some points; what a point does not name is as large as it can be, or 0."""
    found: dict[int, None] = {}
    if not points:
        return []
    resolver = Resolver(plan)
    for point in points:
        shapes = [
            tuple(point.get(f"{i.name}[{d}]", n) for d, n in enumerate(i.shape)) if i.dtype else point.get(i.name, 0)
            for i in plan.inputs
        ]
        at = resolver.at(shapes, lambda _input, _element: 0)
        if at is not None and not plan.families[at.family].refusal:
            found.update(dict.fromkeys(d.kernel for c in chosen(plan, at) for d in c.dispatches))
    return list(found)


def given_sizes(inputs: Sequence[Given]) -> tuple[Shapes, Item]:
    """The shapes of inputs (ints: themselves), and how to read their elements."""

    def item(position: int, element: int) -> int:
        value = inputs[position]
        held = value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)
        return int(held.reshape(-1)[element]) if 0 <= element < held.size else 0  # guards say what holds without it

    return [x if isinstance(x, int) else x.shape for x in inputs], item


def _outgrows(shape: tuple[int, ...] | int, declared: Input) -> bool:
    """Return whether an input of this shape is too large for its buffer."""
    return not isinstance(shape, int) and declared.dynamic and any(map(int.__gt__, shape, declared.shape))


def _refused(plan: Plan, shapes: Shapes, refusal: str) -> Unplanned:
    return Unplanned(f"plan {plan.name} cannot run at {list(shapes)}; of sizes like these it was found: {refusal}")


def _check_fits(number: int, declared: Input, given: Given) -> None:
    if declared.dtype is None:
        if not isinstance(given, int):
            raise InvalidInput(f"input {number} ({declared.name}) must be an int, not {type(given).__name__}")
        return
    if isinstance(given, int):
        raise InvalidInput(f"input {number} ({declared.name}) must be a tensor, not the int {given}")
    dtype = given.dtype.numpy if isinstance(given, DeviceTensor) else given.dtype
    shape = tuple(given.shape)
    fits = shape == declared.shape or (
        declared.dynamic and len(shape) == len(declared.shape) and all(map(int.__le__, shape, declared.shape))
    )
    if dtype != declared.dtype.numpy or not fits:
        wanted = f"{declared.dtype.value}{' of at most ' if declared.dynamic else ''}{list(declared.shape)}"
        raise InvalidInput(f"input {number} ({declared.name}) must be {wanted}, not {dtype}{list(shape)}")


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _word_aligned(nbytes: int) -> int:
    return (nbytes + 3) & ~3


def _array(view: memoryview, offset: int, place: Place) -> np.ndarray:
    """A fresh array of what is there."""
    if not place.nbytes:
        return np.empty(place.shape, place.dtype)
    there: np.ndarray = np.ndarray(place.shape, place.dtype, view, offset + place.offset)
    return there.copy()
