"""A plan that is ready to run: what of it is compiled and bound, and what it records at the sizes of a run.

Pipelines and bind groups are made when a choice is first taken, or all at once (`LoadedPlan.warm`). A run at the sizes
of the run before resolves nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidInput, InvalidProgram, LimitExceeded
from ..limits import current
from ..plan.numbers import Item, Shapes
from ..plan.plan import Binding, Choice, Expr, Input, Number, Plan, Port, plain
from ..plan.resolve import At, Resolver, chosen
from .buffers import GpuBuffer
from .combined import Combined, Launch, combine
from .inputs import Argument, Points, check_fits, outgrows, sizes_at, sizes_of
from .ownership import Handle
from .pipelines import Pipeline
from .readback import Layout
from .recorder import Steps
from .recording import Recording
from .tensor import DeviceTensor

if TYPE_CHECKING:
    from .session import Session


class Unplanned(LookupError):
    """No family or no choice of a plan holds at the sizes of its inputs."""


@dataclass(eq=False, slots=True)
class RecordedSteps:
    """A plan at the sizes of one run: what the recording loop replays."""

    key: tuple[Any, ...]
    at: At
    steps: Steps
    outputs: tuple[Port | Number, ...]  # shapes are plain
    images: list[np.ndarray]  # of parameters that have to be written first
    layouts: dict[tuple[int, ...] | None, Layout] = field(default_factory=dict)  # by what is read

    def layout(self, read: tuple[int, ...] | None) -> Layout:
        if read not in self.layouts:
            self.layouts[read] = Layout.of(self.outputs, read)
        return self.layouts[read]


class ResolvedRun(NamedTuple):
    """A run of some inputs: the steps at their sizes, and their symbolic ints (by row)."""

    recorded: RecordedSteps
    ints: dict[int, Any]
    shapes: Shapes
    item: Item


class LoadedPlan:
    """A plan on a session, with its buffers in the plan's order. Its caller holds the locks."""

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.device = session.device
        self.last: Plan | None = None  # at the sizes of the last run that was timed
        self.release()

    def release(self) -> None:
        """Forget what is compiled and bound, until a run needs it."""
        self.pipelines: dict[int, Pipeline] = {}
        self.groups: dict[tuple[object, ...], Handle] = {}
        self.combined: dict[tuple[int, tuple[int, ...]], Combined] = {}
        self.recorded: RecordedSteps | None = None  # of the last run
        self.done: set[tuple[int, tuple[Binding, ...]]] = set()  # dispatches that need not be repeated

    def use(self, plan: Plan, buffers: list[GpuBuffer]) -> None:
        """Take over a plan, or the same one with more families and choices."""
        self.plan, self.buffers, self.resolver = plan, buffers, Resolver(plan)
        self.takes: list[tuple[Input, np.dtype | None, GpuBuffer | None]] = [  # dtypes of arrays that are not checked
            (i, i.dtype and i.dtype.numpy, None if i.buffer is None else buffers[i.buffer]) for i in plan.inputs
        ]
        self.own = {id(buffer) for _, _, buffer in self.takes if buffer is not None}
        self.writes = {id(buffers[k]) for k in _written(plan)} & self.own
        self.copies = [(buffers[c.source].handle, buffers[c.target].handle, c.nbytes) for c in plan.copies]
        self.syms = next((buffers[k] for k, b in enumerate(plan.buffers) if b.role == "syms"), None)
        self.params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]
        self.recorded, self.combined = None, {}

    def close(self) -> None:
        self.session = None
        self.release()

    def reserve(self, count: int) -> None:
        """Reserve `count` pipelines; other plans of the program may have to give up theirs."""
        budget = current()
        if budget is not None:
            budget.keep(self, count, self.release)

    def warm(self) -> None:
        """Compile and bind everything that any size may need."""
        self._launches([c for family in self.plan.families for choices in family.steps for c in choices])

    def resolve(self, inputs: Sequence[Argument]) -> ResolvedRun:
        """Return the run of these inputs; raise Unplanned if the plan does not hold at their sizes."""
        shapes, item = sizes_of(inputs)
        resolver, recorded = self.resolver, self.recorded
        key = resolver.key(shapes, item)
        if recorded is None or recorded.key != key:
            with self.device.lock:
                recorded = self.recorded = self._resolve(key, shapes, item)
        return ResolvedRun(recorded, resolver.words_at(shapes, item) if resolver.words else {}, shapes, item)

    def accept(self, inputs: Sequence[Argument]) -> list[Argument]:
        """Return inputs that fit the plan; tensors that cannot be copied on this device become arrays."""
        if len(inputs) != len(self.takes):
            raise InvalidInput(f"plan {self.plan.name} takes {len(self.takes)} inputs, {len(inputs)} given")
        accepted = list(inputs)
        for number, value in enumerate(inputs):
            declared, dtype, buffer = self.takes[number]
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == declared.shape:
                continue
            check_fits(number, declared, value)
            if isinstance(value, DeviceTensor):
                value.check_fresh()
                overwritten = id(value.buffer) in self.own and value.buffer is not buffer
                if value.session.device is not self.device or overwritten:
                    accepted[number] = value.numpy()
                elif value.session is not self.session:
                    value.session.flush()
        return accepted

    def words(self, run: ResolvedRun) -> bytes | None:
        """Return what the buffer of symbolic ints must hold; None where the plan has none."""
        if self.syms is None:
            return None
        words, ints = self.plan.families[run.recorded.at.family].words, run.ints
        try:
            return array("i", [ints[w.row] if isinstance(w, Expr) else w for w in words]).tobytes()
        except OverflowError:
            raise InvalidInput(f"plan {self.plan.name}: a symbolic int does not fit 32 bits") from None

    def _compile(self, choices: Sequence[Choice]) -> None:
        """Compile the kernels of these choices, all at once."""
        wanted = dict.fromkeys(d.kernel for c in choices for d in c.dispatches)
        new = [k for k in wanted if k not in self.pipelines]
        budget = current()
        if len(self.pipelines) + len(new) > (math.inf if budget is None else budget.limits.pipelines):
            self.release()  # those of other sizes
            new = list(wanted)
        self.reserve(len(self.pipelines) + len(new))
        pipelines = self.device.pipelines([self.plan.kernels[k] for k in new])
        self.pipelines |= dict(zip(new, pipelines, strict=True))

    def _launches(self, choices: Sequence[Choice]) -> list[Launch]:
        """Return the dispatches of these choices, compiled and bound."""
        self._compile(choices)
        launches = []
        for dispatch in (d for choice in choices for d in choice.dispatches):
            pipeline, bound = self.pipelines[dispatch.kernel], (dispatch.kernel, dispatch.bindings)
            if bound not in self.groups:
                entries = [(self.buffers[b.buffer], b.offset, b.nbytes) for b in dispatch.bindings]
                self.groups[bound] = self.device.bind_group(pipeline, entries)
            launches.append(Launch(pipeline, self.groups[bound], dispatch))
        return launches

    def _resolve(self, key: tuple[Any, ...], shapes: Shapes, item: Item) -> RecordedSteps:
        plan = self.plan
        if any(outgrows(shape, declared) for shape, declared in zip(shapes, plan.inputs)):
            raise Unplanned(f"plan {plan.name} has no room for {list(shapes)}")
        at = self.resolver.at(shapes, item)
        if at is None:
            raise Unplanned(f"plan {plan.name} does not hold for {list(shapes)}")
        family = plan.families[at.family]
        if family.refusal:
            raise _refused(plan, shapes, family.refusal)
        combined = self.combined.get((at.family, at.switches)) or self._combine(at, shapes)
        steps, largest = combined.steps(at)
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
        return RecordedSteps(key, at, steps, tuple(outputs), combined.images(plan, at))

    def _combine(self, at: At, shapes: Shapes) -> Combined:
        """Compile and bind a combination of choices that is taken for the first time."""
        choices = chosen(self.plan, at)
        refusal = next((c.refusal for c in choices if c.refusal), "")
        if refusal:
            raise _refused(self.plan, shapes, refusal)
        launches = self._launches(choices)
        self._run_once([x for x in launches if x.dispatch.once])
        launches = [x for x in launches if not x.dispatch.once]
        combined = combine(launches, self.resolver.order, self.params)
        self.combined[at.family, at.switches] = combined
        return combined

    def _run_once(self, launches: Sequence[Launch]) -> None:
        """Run what need not be repeated, if it did not run yet: behind what is recorded so far, before what comes."""
        new = {(x.dispatch.kernel, x.dispatch.bindings): x for x in launches}
        new = {key: x for key, x in new.items() if key not in self.done}
        if not new:
            return
        assert self.session is not None
        self.session.flush()
        grids = [[plain(x.dispatch.grid[axis]) for x in new.values()] for axis in (0, 1)]
        steps = Steps([x.pipeline.handle for x in new.values()], [x.group for x in new.values()], *grids)
        recording = Recording(self.device)
        recording.touch(self.buffers)
        recording.compute(steps, None)
        recording.submit()
        self.done.update(new)


def kernels_at(plan: Plan, points: Points) -> list[int]:
    """Return the kernels that a plan needs at some points."""
    kernels: dict[int, None] = {}
    if not points:
        return []
    resolver = Resolver(plan)
    for point in points:
        at = resolver.at(sizes_at(plan.inputs, point), lambda _input, _element: 0)
        if at is not None and not plan.families[at.family].refusal:
            kernels.update(dict.fromkeys(d.kernel for c in chosen(plan, at) for d in c.dispatches))
    return list(kernels)


def _written(plan: Plan) -> set[int]:
    """Return the buffers that a run may write."""
    dispatches = [d for f in plan.families for choices in f.steps for c in choices for d in c.dispatches]
    bound = {(b.buffer, a) for d in dispatches for b, a in zip(d.bindings, plan.kernels[d.kernel].access)}
    return {k for k, access in bound if access != "read"} | {c.target for c in plan.copies}


def _refused(plan: Plan, shapes: Shapes, refusal: str) -> Unplanned:
    return Unplanned(f"plan {plan.name} cannot run at {list(shapes)}; of sizes like these it was found: {refusal}")
