"""The sections of a plan: runs of dispatches that can become the stages of one dispatch.

A workgroup sees what others wrote only at places that its unit has not read before in this dispatch, because caches of
units are not coherent. So a temporary that is written anew gets a new region of a scratch buffer. Where a buffer would
be read again after it was read and then written, a section ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..plan.plan import Number, Plan, PlannedDispatch
from ..plan.target import Target
from .buffers import GpuBuffer
from .kernel_text import KernelParts, Unmergeable, parts_of
from .merged_kernel import MAX_UNIFORM_BYTES, Slab, shared_bytes, stage_vectors

FEWEST = 6  # stages of a section: fewer are not worth a pipeline of their own
MAX_PARAMS = 8  # parameter buffers of a section; every adapter binds 12 uniforms
IN_PLACE = {"write_cache", "write_pages", "latest_keep"}  # kernels that write a part of a tensor and leave the rest
ONCE_ONLY = {"adamw"}  # kernels that may not run twice on the same state


@dataclass(frozen=True, slots=True)
class PlacedDispatch:
    """A dispatch of a combination of choices, and the step of the family that has it."""

    dispatch: PlannedDispatch
    step: int
    parts: KernelParts | None  # None if it stays a dispatch


@dataclass(eq=False, slots=True)
class Region:
    """A temporary from the time it is written anew. It lives in the scratch buffer unless it is `outside`."""

    buffer: int
    outside: bool = False
    sizes: list[Number] = field(default_factory=list)  # bytes, at least the largest of these


@dataclass(slots=True)
class Stage:
    """A dispatch of a section, and whether it waits for the earlier ones."""

    dispatch: PlannedDispatch
    parts: KernelParts
    regions: list[Region]  # of its storage bindings
    waits: bool = False


@dataclass(slots=True)
class Section:
    """Stages, and the WebGPU buffers that they use; None stands for the scratch buffer."""

    first: int
    stages: list[Stage]
    slabs: dict[int, tuple[GpuBuffer | None, Slab]]  # by the identity of the buffer

    @property
    def end(self) -> int:
        return self.first + len(self.stages)


def placed(plan: Plan, dispatches: Sequence[tuple[int, PlannedDispatch]]) -> list[PlacedDispatch]:
    """Take the kernels of dispatches apart; each comes with its step."""
    result = []
    for step, dispatch in dispatches:
        kernel, parts = plan.kernels[dispatch.kernel], None
        if kernel.name not in ONCE_ONLY:
            try:
                parts = parts_of(kernel)
            except Unmergeable:
                parts = None
        result.append(PlacedDispatch(dispatch, step, parts))
    return result


def sections(
    plan: Plan, dispatches: Sequence[PlacedDispatch], outputs: set[int], buffers: Sequence[GpuBuffer], target: Target
) -> list[Section]:
    """Return the sections among these dispatches, in order; `outputs` are the buffers that are read after the run."""
    finder = _Finder(plan, dispatches, outputs, buffers, target)
    result: list[Section] = []
    first = 0
    while first < len(dispatches):
        section = finder.longest(first)
        if section is not None:
            result.append(section)
        first = section.end if section else first + 1
    return result


@dataclass(slots=True)
class _Place:
    """The history of a region within a section."""

    read: bool = False
    stale: bool = False  # written after it was read


class _Finder:
    def __init__(
        self,
        plan: Plan,
        dispatches: Sequence[PlacedDispatch],
        outputs: set[int],
        buffers: Sequence[GpuBuffer],
        target: Target,
    ) -> None:
        self._plan, self._all, self._outputs, self._buffers, self._target = plan, dispatches, outputs, buffers, target
        self._earlier: list[set[int]] = []  # for each dispatch: the buffers that its step used before it
        used: set[int] = set()
        for k, d in enumerate(dispatches):
            if k == 0 or dispatches[k - 1].step != d.step:
                used = set()
            self._earlier.append(set(used))
            used |= {b.buffer for b in d.dispatch.bindings}

    def longest(self, first: int) -> Section | None:
        """Return the longest section that begins at a dispatch, or None if that has too few stages."""
        workgroup = self._plan.kernels[self._all[first].dispatch.kernel].workgroup
        end = first
        while (
            end < len(self._all)
            and self._all[end].parts is not None
            and self._plan.kernels[self._all[end].dispatch.kernel].workgroup == workgroup
        ):
            end += 1
        while end - first >= FEWEST:
            stages = self._stages(first, end)
            slabs: dict[int, tuple[GpuBuffer | None, Slab]] = {}
            fits = min(self._visible(stages), self._bound(stages, slabs))
            if fits == len(stages):
                return Section(first, stages, slabs)
            end = first + fits
        return None

    def _fresh(self, k: int, binding: int) -> bool:
        """Return whether a dispatch writes a tensor that nothing wrote before."""
        placed = self._all[k]
        buffer = placed.dispatch.bindings[binding].buffer
        variable = placed.parts.storage[binding] if placed.parts else None
        kernel = self._plan.kernels[placed.dispatch.kernel]
        return (
            variable is not None
            and self._plan.buffers[buffer].role == "temp"
            and variable.stores
            and not variable.loads
            and kernel.name not in IN_PLACE
            and buffer not in self._earlier[k]
        )

    def _needed(self, buffer: int, end: int) -> bool:
        """Return whether something reads a temporary after the dispatch before `end`."""
        for k in range(end, len(self._all)):
            for binding, bound in enumerate(self._all[k].dispatch.bindings):
                if bound.buffer == buffer:
                    return not self._fresh(k, binding)
        return buffer in self._outputs

    def _stages(self, first: int, end: int) -> list[Stage]:
        current: dict[int, Region] = {}
        stages = []
        for k in range(first, end):
            placed = self._all[k]
            assert placed.parts is not None
            regions = []
            for binding, variable in enumerate(placed.parts.storage):
                buffer = placed.dispatch.bindings[binding].buffer
                if self._fresh(k, binding):
                    current[buffer] = Region(buffer)
                elif buffer not in current:
                    current[buffer] = Region(buffer, outside=True)
                region = current[buffer]
                if variable.stores:
                    region.sizes.append(placed.dispatch.write_bytes)
                regions.append(region)
            stages.append(Stage(placed.dispatch, placed.parts, regions))
        for buffer, region in current.items():
            region.outside = region.outside or self._needed(buffer, end)
        return stages

    def _visible(self, stages: Sequence[Stage]) -> int:
        """Decide which stages wait; return how many see all that earlier ones wrote."""
        places: dict[object, _Place] = {}
        read: set[object] = set()  # since the last wait
        written: set[object] = set()
        for number, stage in enumerate(stages):
            loads, stores = set[object](), set[object]()
            for region, variable in zip(stage.regions, stage.parts.storage, strict=True):
                key = region.buffer if region.outside else region
                places.setdefault(key, _Place())
                if variable.loads:
                    loads.add(key)
                if variable.stores:
                    stores.add(key)
            if any(places[key].stale for key in loads):
                return number
            stage.waits = not written.isdisjoint(loads | stores) or not read.isdisjoint(stores)
            if stage.waits:
                read, written = set(), set()
            for load in loads:
                places[load].read = True
            for store in stores:
                places[store].stale = places[store].read
            read |= loads
            written |= stores
        return len(stages)

    def _bound(self, stages: Sequence[Stage], slabs: dict[int, tuple[GpuBuffer | None, Slab]]) -> int:
        """Collect the buffers of stages; return how many stages are within the limits of the adapter."""
        target, parts, vectors, params = self._target, dict[int, KernelParts](), 1, set[int]()
        for number, stage in enumerate(stages):
            parts[stage.dispatch.kernel] = stage.parts
            vectors = max(vectors, stage_vectors(len(stage.parts.storage)))
            params.add(stage.dispatch.bindings[len(stage.parts.storage)].buffer)
            large = sum(self._buffers[k].nbytes > MAX_UNIFORM_BYTES for k in params)  # these are bound as storage
            added: dict[int, tuple[GpuBuffer | None, Slab]] = {}
            for region, variable in zip(stage.regions, stage.parts.storage, strict=True):
                buffer = self._buffers[region.buffer]
                owner = (buffer.slab or buffer) if region.outside else None
                previous = added.get(id(owner)) or slabs.get(id(owner)) or (owner, Slab(False, set()))
                slab = previous[1]
                slab = Slab(slab.written or variable.stores or owner is None, slab.elements | {variable.element})
                added[id(owner)] = owner, slab
            changed = {**slabs, **added}
            if (
                len(changed) + 1 + large > target.max_storage_buffers
                or len(params) - large > MAX_PARAMS
                or any(owner and owner.nbytes > target.max_binding_bytes for owner, _ in added.values())
                or shared_bytes(list(parts.values())) > target.max_shared_bytes
                or (number + 1) * vectors * 16 > MAX_UNIFORM_BYTES
                or not all(_stored_whole(s, changed, self._buffers) for s in stages[: number + 1])
            ):
                return number
            slabs.update(added)
        return len(stages)


def _stored_whole(
    stage: Stage, slabs: Mapping[int, tuple[GpuBuffer | None, Slab]], buffers: Sequence[GpuBuffer]
) -> bool:
    """Return whether the stage stores no half of a word that holds another invocation's half."""
    for region, variable in zip(stage.regions, stage.parts.storage, strict=True):
        if variable.stores and variable.element == "f16":
            buffer = buffers[region.buffer]
            owner = (buffer.slab or buffer) if region.outside else None
            if slabs[id(owner)][1].element != "f16":
                return False
    return True
