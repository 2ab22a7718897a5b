"""A plan that is ready to run: its compiled and bound kernels, and what it records at the sizes of a run.

Pipelines and bind groups are made when a choice is first taken, or all at once (`LoadedPlan.warm`). A run at the sizes
of the previous run resolves nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InvalidInput, InvalidProgram, LimitExceeded
from ..limits import current
from ..plan.numbers import Item, Shapes
from ..plan.plan import Binding, Choice, Expr, Input, Number, Plan, PlannedDispatch, Port, plain
from ..plan.resolve import PlanPoint, Resolver, choices_at
from .buffers import GpuBuffer
from .checks import Argument, Points, check_fits, outgrows, sizes_at, sizes_of
from .native import Handle
from .persistent import MergedDispatch, PersistentForm, ScratchBuffer
from .pipelines import ComputePipeline
from .readback import DeviceTensor, StagingLayout
from .recorder import Steps
from .recording import Recording

if TYPE_CHECKING:
    from .session import Session


class Launch(NamedTuple):
    """A dispatch with its pipeline and bind group."""

    pipeline: ComputePipeline
    group: Handle
    dispatch: PlannedDispatch


class Patches(NamedTuple):
    """Words of a parameter buffer that depend on sizes: their indices in its image, and those of their numbers."""

    buffer: int  # number of the image
    ints: np.ndarray
    int_numbers: list[int]
    floats: np.ndarray
    float_numbers: list[int]


class CombinedLaunches(NamedTuple):
    """The launches of one combination of a plan's choices, ready for all sizes that take it.

    A size is an index into the numbers of the plan at some sizes, followed by `constants`.
    """

    constants: tuple[int, ...]
    indices: Steps  # with indices of the grids' sizes
    patches: list[Patches]
    persistent: PersistentForm | None  # None if all launches stay dispatches

    def steps(self, at: PlanPoint, merged: Sequence[MergedDispatch] = ()) -> tuple[Steps, int]:
        """Return the steps to record at these sizes, and the most workgroups in one dimension."""
        numbers = (*at.numbers, *self.constants)
        pipelines, groups, *axes = self.indices
        x, y = ([numbers[k] for k in axis] for axis in axes)
        if merged:
            pipelines, groups = list(pipelines), list(groups)
            for d in reversed(merged):
                part = slice(d.first, d.end)
                pipelines[part], groups[part], x[part], y[part] = [d.pipeline], [d.group], [d.workgroups], [1]
        steps = Steps(pipelines, groups, x, y)
        if min(x, default=1) <= 0 or min(y, default=1) <= 0:  # leave out dispatches without workgroups
            launched = [k for k in range(len(groups)) if x[k] > 0 and y[k] > 0]
            steps = Steps(*([column[k] for k in launched] for column in steps))
        return steps, max([*x, *y], default=0)

    def images(self, plan: Plan, at: PlanPoint) -> list[np.ndarray]:
        """Return the contents of the parameter buffers at these sizes; an empty list if they never change."""
        if not plan.rows:
            return []
        numbers, images = at.numbers, []
        for p in self.patches:
            image = np.frombuffer(plan.params[p.buffer], np.uint32).copy()
            image[p.ints] = np.array([int(numbers[k]) & 0xFFFFFFFF for k in p.int_numbers], np.uint32)
            if p.float_numbers:
                with np.errstate(over="ignore"):  # in numbers that no kernel can take
                    image[p.floats] = np.array([numbers[k] for k in p.float_numbers], np.float32).view(np.uint32)
            images.append(image)
        return images


def combine(
    launches: list[Launch], order: Mapping[int, int], params: Sequence[int], persistent: PersistentForm | None
) -> CombinedLaunches:
    """Combine launches; `order` has the index of each row among the numbers, `params` the parameter buffers."""
    constants: dict[int, int] = {}

    def index(n: Number) -> int:
        return order[n.row] if isinstance(n, Expr) else len(order) + constants.setdefault(n, len(constants))

    x, y = ([index(launch.dispatch.grid[axis]) for launch in launches] for axis in (0, 1))
    indices = Steps([launch.pipeline.handle for launch in launches], [launch.group for launch in launches], x, y)
    words: dict[int, dict[int, tuple[int, bool]]] = {k: {} for k in range(len(params))}
    for _, _, d in launches:
        if d.patches:
            image = next(params.index(b.buffer) for b in d.bindings if b.buffer in params)
            words[image] |= {p.word: (order[p.value.row], p.kind == "f32") for p in d.patches}
    patches = []
    for image, sources in words.items():
        arrays: list[Any] = []
        for real in (False, True):
            pairs = [(word, number) for word, (number, is_real) in sources.items() if is_real == real]
            arrays += [np.array([word for word, _ in pairs], np.int64), [number for _, number in pairs]]
        patches.append(Patches(image, *arrays))
    return CombinedLaunches(tuple(constants), indices, patches, persistent)


class Unplanned(LookupError):
    """No family or no choice of a plan holds at the sizes of its inputs."""


@dataclass(eq=False, slots=True)
class RecordedSteps:
    """A plan at the sizes of one run, ready to be recorded."""

    key: tuple[Any, ...]
    at: PlanPoint
    steps: Steps
    separate: Steps  # the same, without merged dispatches
    outputs: tuple[Port | Number, ...]  # shapes are plain
    images: list[tuple[GpuBuffer, np.ndarray]]  # of buffers to be written first: of parameters, and of stages
    touched: list[GpuBuffer]  # other than the plan's
    compiling: PersistentForm | None  # not compiled yet
    waits: bool = False  # its workgroups wait for each other, so it may give up
    layouts: dict[tuple[int, ...] | None, StagingLayout] = field(default_factory=dict)  # by the outputs to read

    def layout(self, read: tuple[int, ...] | None) -> StagingLayout:
        if read not in self.layouts:
            self.layouts[read] = StagingLayout.of(self.outputs, read)
        return self.layouts[read]


class ResolvedRun(NamedTuple):
    """A run of some inputs: the steps at their sizes, and their symbolic ints by row."""

    recorded: RecordedSteps
    ints: dict[int, Any]
    shapes: Shapes
    item: Item


class LoadedPlan:
    """A plan on a session, with its buffers in the plan's order. Callers hold the locks."""

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.device = session.device
        self.last: Plan | None = None  # evaluated at the sizes of the last timed run
        self.release()

    def release(self) -> None:
        """Drop pipelines and bind groups until a run needs them again."""
        self.pipelines: dict[int, ComputePipeline] = {}
        self.groups: dict[tuple[object, ...], Handle] = {}
        self.combined: dict[tuple[int, tuple[int, ...]], CombinedLaunches] = {}
        self.recorded: RecordedSteps | None = None  # of the last run
        self.scratch = ScratchBuffer(self.device)
        self.done_once: set[tuple[int, tuple[Binding, ...]]] = set()  # dispatches that run only once, and ran

    def use(self, plan: Plan, buffers: list[GpuBuffer]) -> None:
        """Set the plan, or the same plan with more families and choices."""
        self.plan, self.buffers, self.resolver = plan, buffers, Resolver(plan)
        self.inputs: list[tuple[Input, np.dtype | None, GpuBuffer | None]] = [  # dtypes of arrays that need no check
            (i, i.dtype and i.dtype.numpy, None if i.buffer is None else buffers[i.buffer]) for i in plan.inputs
        ]
        self.input_ids = {id(buffer) for _, _, buffer in self.inputs if buffer is not None}
        self.written_ids = {id(buffers[k]) for k in _written(plan)} & self.input_ids
        self.copies = [(buffers[c.source], buffers[c.target], c.nbytes) for c in plan.copies]
        self.touched = list({id(whole): whole for whole in (b.slab or b for b in buffers)}.values())
        self.syms = next((buffers[k] for k, b in enumerate(plan.buffers) if b.role == "syms"), None)
        self.params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]
        self.recorded, self.combined = None, {}

    def close(self) -> None:
        self.session = None
        self.release()

    def reserve(self, count: int) -> None:
        """Reserve `count` pipelines; other plans of the program may lose theirs."""
        budget = current()
        if budget is not None:
            budget.keep(self, count, self.release)

    def warm(self) -> None:
        """Compile and bind the kernels for all sizes."""
        self._launches([c for family in self.plan.families for choices in family.steps for c in choices])
        for combined in self.combined.values():
            if combined.persistent is not None:
                combined.persistent.wait()

    def combine_at(self, points: Points) -> None:
        """Combine the choices at these points, so that their merged kernels compile in the background."""
        if self.device.resident:
            for point in points or ([] if self.plan.rows else [{}]):
                with suppress(Unplanned, LimitExceeded, InvalidProgram):  # a run at this point raises them
                    self._resolve((), sizes_at(self.plan.inputs, point), lambda _input, _element: 0)

    def resolve(self, inputs: Sequence[Argument]) -> ResolvedRun:
        """Return the run of these inputs; raise Unplanned if the plan does not hold at their sizes."""
        shapes, item = sizes_of(inputs)
        resolver, recorded = self.resolver, self.recorded
        key = resolver.key(shapes, item)
        if recorded is None or recorded.key != key or self._outdated(recorded):
            with self.device.lock:
                recorded = self.recorded = self._resolve(key, shapes, item)
        return ResolvedRun(recorded, resolver.words_at(shapes, item) if resolver.words else {}, shapes, item)

    def _outdated(self, recorded: RecordedSteps) -> bool:
        """Return whether merged kernels are compiled since, or workgroups may not wait for each other any more."""
        compiling = recorded.compiling
        return (compiling is not None and compiling.compiled) or (recorded.waits and not self.device.resident)

    def accept(self, inputs: Sequence[Argument]) -> list[Argument]:
        """Return the inputs after checking them; tensors that cannot be copied on this device become arrays."""
        if len(inputs) != len(self.inputs):
            raise InvalidInput(f"plan {self.plan.name} takes {len(self.inputs)} inputs, {len(inputs)} given")
        accepted = list(inputs)
        for number, value in enumerate(inputs):
            declared, dtype, buffer = self.inputs[number]
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == declared.shape:
                continue
            check_fits(number, declared, value)
            if isinstance(value, DeviceTensor):
                value.check_fresh()
                overwritten = id(value.buffer) in self.input_ids and value.buffer is not buffer
                if value.session.device is not self.device or overwritten:
                    accepted[number] = value.numpy()
                elif value.session is not self.session:
                    value.session.flush()
        return accepted

    def words(self, run: ResolvedRun) -> bytes | None:
        """Return the contents of the buffer of symbolic ints; None if the plan has no such buffer."""
        if self.syms is None:
            return None
        words, ints = self.plan.families[run.recorded.at.family].words, run.ints
        try:
            return array("i", [ints[w.row] if isinstance(w, Expr) else w for w in words]).tobytes()
        except OverflowError:
            raise InvalidInput(f"plan {self.plan.name}: a symbolic int does not fit 32 bits") from None

    def _compile(self, choices: Sequence[Choice]) -> None:
        needed = dict.fromkeys(d.kernel for c in choices for d in c.dispatches)
        new = [k for k in needed if k not in self.pipelines]
        budget = current()
        if len(self.pipelines) + len(new) > (math.inf if budget is None else budget.limits.pipelines):
            self.release()  # pipelines of other sizes
            new = list(needed)
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

    def _combined_at(self, shapes: Shapes, item: Item) -> tuple[PlanPoint, CombinedLaunches]:
        """Return what runs at these sizes."""
        plan = self.plan
        if any(outgrows(shape, declared) for shape, declared in zip(shapes, plan.inputs)):
            raise Unplanned(f"plan {plan.name} has no room for {list(shapes)}")
        at = self.resolver.at(shapes, item)
        if at is None:
            raise Unplanned(f"plan {plan.name} does not hold for {list(shapes)}")
        if refusal := plan.families[at.family].refusal:
            raise _refused(plan, shapes, refusal)
        return at, self.combined.get((at.family, at.switches)) or self._combine(at, shapes)

    def _resolve(self, key: tuple[Any, ...], shapes: Shapes, item: Item) -> RecordedSteps:
        plan = self.plan
        at, combined = self._combined_at(shapes, item)
        family = plan.families[at.family]
        separate, largest = combined.steps(at)
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
        images = list(zip([self.buffers[k] for k in self.params], combined.images(plan, at), strict=False))
        if combined.persistent is None or not self.device.resident:
            return RecordedSteps(key, at, separate, separate, tuple(outputs), images, [], None)
        merged, tables = combined.persistent.at(shapes, item)
        compiling = None if combined.persistent.compiled else combined.persistent
        steps, _ = combined.steps(at, merged)
        touched = combined.persistent.buffers
        return RecordedSteps(
            key, at, steps, separate, tuple(outputs), images + tables, touched, compiling, bool(merged)
        )

    def _combine(self, at: PlanPoint, shapes: Shapes) -> CombinedLaunches:
        """Compile and bind a combination of choices when it is first taken."""
        choices = choices_at(self.plan, at)
        refusal = next((c.refusal for c in choices if c.refusal), "")
        if refusal:
            raise _refused(self.plan, shapes, refusal)
        launches = self._launches(choices)
        self._run_once([x for x in launches if x.dispatch.once])
        launches = [x for x in launches if not x.dispatch.once]
        combined = combine(launches, self.resolver.order, self.params, self._persistent(at, choices))
        self.combined[at.family, at.switches] = combined
        return combined

    def _persistent(self, at: PlanPoint, choices: Sequence[Choice]) -> PersistentForm | None:
        """Merge dispatches of these choices if workgroups may wait for each other."""
        if not self.device.resident or self.plan.copies:  # a run that gave up is repeated, which copies do not allow
            return None
        dispatches = [(k, d) for k, choice in enumerate(choices) for d in choice.dispatches if not d.once]
        outputs = {o.buffer for o in self.plan.families[at.family].outputs if isinstance(o, Port)}
        form = PersistentForm(self.device, self.plan, self.buffers, dispatches, outputs, self.scratch)
        return form if form.buffers else None

    def _run_once(self, launches: Sequence[Launch]) -> None:
        """Run the launches that run only once, unless they did already. They run after everything recorded so far."""
        new = {(x.dispatch.kernel, x.dispatch.bindings): x for x in launches}
        new = {key: x for key, x in new.items() if key not in self.done_once}
        if not new:
            return
        assert self.session is not None
        self.session.flush()
        grids = [[plain(x.dispatch.grid[axis]) for x in new.values()] for axis in (0, 1)]
        steps = Steps([x.pipeline.handle for x in new.values()], [x.group for x in new.values()], *grids)
        recording = Recording(self.device)
        recording.touch(self.touched)
        recording.compute(steps, None)
        recording.submit()
        self.done_once.update(new)


def kernels_at(plan: Plan, points: Points) -> list[int]:
    """Return the kernels that a plan needs at these points."""
    kernels: dict[int, None] = {}
    if not points:
        return []
    resolver = Resolver(plan)
    for point in points:
        at = resolver.at(sizes_at(plan.inputs, point), lambda _input, _element: 0)
        if at is not None and not plan.families[at.family].refusal:
            kernels.update(dict.fromkeys(d.kernel for c in choices_at(plan, at) for d in c.dispatches))
    return list(kernels)


def _written(plan: Plan) -> set[int]:
    dispatches = [d for f in plan.families for choices in f.steps for c in choices for d in c.dispatches]
    bound = {(b.buffer, a) for d in dispatches for b, a in zip(d.bindings, plan.kernels[d.kernel].access)}
    return {k for k, access in bound if access != "read"} | {c.target for c in plan.copies}


def _refused(plan: Plan, shapes: Shapes, refusal: str) -> Unplanned:
    return Unplanned(f"plan {plan.name} cannot run at {list(shapes)}; of sizes like these it was found: {refusal}")
