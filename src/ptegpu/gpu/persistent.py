"""The persistent form of a plan: each section of its dispatches is one dispatch whose workgroups wait for each other.

Pipelines and bind groups are the same for all sizes; the table of a section's stages and the parameters are written per
size. A section stays dispatches where temporaries exceed `MAX_SCRATCH`, or a stage `MOST_GROUPS` or `LONGEST`,
for which workgroups could wait too long. So does every section until its kernel is compiled, which begins in another
thread when a size first needs it, or if the driver cannot compile it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..errors import KernelError
from ..plan.numbers import Item, Shapes, compile_rows
from ..plan.plan import OFFSET_ALIGN, Expr, Kernel, Number, Plan, PlannedDispatch
from .buffers import GpuBuffer
from .device import Device
from .kernel_text import Unmergeable
from .merged_kernel import (
    ARRIVES,
    COUNTER_BYTES,
    SPINS,
    WAITS,
    WAITS_LATE,
    Body,
    element_bytes,
    merged_kernel,
    stage_vectors,
)
from .native import Handle
from .pipelines import ComputePipeline
from .sections import Region, Section, Stage, placed, sections
from .threads import ThreadJob

MAX_SCRATCH = 64 << 20  # bytes for the temporaries of a section
MOST_GROUPS = 4  # of a stage, for each resident workgroup; a larger one fills the GPU as a dispatch of its own
LONGEST = 5e-3  # seconds of a stage, by the figures of the device's class


class MergedDispatch(NamedTuple):
    """A dispatch in the place of the dispatches `first` to `end`."""

    first: int
    end: int
    pipeline: Handle
    group: Handle
    workgroups: int


def counter_of(device: Device) -> GpuBuffer:
    """Return the counter of arrivals. All merged dispatches of a device have it, so they never run side by side."""
    if device.arrivals is None:
        counter = device.buffer("arrivals", COUNTER_BYTES, "storage")
        device.clear([counter])
        device.arrivals = counter
    return device.arrivals


@dataclass(eq=False, slots=True)
class _Table:
    """The merged kernel of a section and its table of stages, without the offsets in the scratch buffer."""

    section: Section
    kernel: Callable[[], Kernel]
    image: np.ndarray  # uint32 (stages, words)
    scratch: list[tuple[int, int, int, int]]  # stage, word, number of the region, bytes of an element
    regions: list[list[Number]]  # for each region in the scratch buffer: its size is the largest of these
    buffer: GpuBuffer
    words: list[GpuBuffer]
    syms: GpuBuffer | None
    compiling: ThreadJob[list[ComputePipeline]] | None = None
    group: Handle | None = None
    bound: tuple[GpuBuffer, GpuBuffer] | None = None  # the scratch buffer and the counter of `group`

    @property
    def pipeline(self) -> ComputePipeline | None:
        if self.compiling is not None and self.compiling.done:
            with suppress(KernelError):
                return self.compiling.result()[0]
        return None


class ScratchBuffer:
    """The buffer for the temporaries of all merged dispatches of a plan, which never run side by side. It grows."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.buffer: GpuBuffer | None = None

    def room(self, nbytes: int) -> GpuBuffer:
        """Return the buffer, with at least this size."""
        if self.buffer is None or self.buffer.nbytes < nbytes:
            size = max(1 << 16, 1 << (nbytes - 1).bit_length())
            self.buffer = self._device.buffer("scratch", min(size, self._device.target.max_binding_bytes), "storage")
        return self.buffer


class PersistentForm:
    """The merged dispatches of one combination of choices. Callers hold the device's lock."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        buffers: Sequence[GpuBuffer],
        dispatches: Sequence[tuple[int, PlannedDispatch]],
        outputs: set[int],
        scratch: ScratchBuffer,
    ) -> None:
        self._device = device
        self._buffers = buffers
        self._scratch = scratch
        self._tables: list[_Table] = []
        for section in sections(plan, placed(plan, dispatches), outputs, buffers, device.target):
            self._tables.append(self._table(plan, section))
        numbers = [n for t in self._tables for sizes in t.regions for n in sizes]
        dispatches_of = [s.dispatch for t in self._tables for s in t.section.stages]
        numbers += [n for d in dispatches_of for n in (*d.grid, d.flops, d.read_bytes)]
        rows = sorted({n.row for n in numbers if isinstance(n, Expr)})
        self._place = {row: k for k, row in enumerate(rows)}
        self._evaluate = compile_rows(plan.rows, rows)

    @property
    def buffers(self) -> list[GpuBuffer]:
        """Return the buffers of its own."""
        own = [t.buffer for t in self._tables]
        scratch = self._scratch.buffer
        return [*own, *([scratch] if scratch else []), *([counter_of(self._device)] if own else [])]

    @property
    def compiled(self) -> bool:
        return all(t.compiling is None or t.compiling.done for t in self._tables)

    def wait(self) -> None:
        """Wait until all kernels that sizes needed so far are compiled."""
        for table in self._tables:
            if table.compiling is not None:
                table.compiling.wait()

    def at(self, shapes: Shapes, item: Item) -> tuple[list[MergedDispatch], list[tuple[GpuBuffer, np.ndarray]]]:
        """Return the merged dispatches at these sizes, in order, and the contents of their tables."""
        numbers = self._evaluate(shapes, item) if self._tables else ()

        def value(n: Number) -> int:
            return int(numbers[self._place[n.row]]) if isinstance(n, Expr) else n

        def fits(d: PlannedDispatch) -> bool:
            x, y = map(value, d.grid)
            seconds = max(value(d.flops) / speed.flops, value(d.read_bytes) / speed.bandwidth)
            return x * y <= MOST_GROUPS * self._device.resident and seconds <= LONGEST

        speed = self._device.target.device_class
        most = min(MAX_SCRATCH, self._device.target.max_binding_bytes)
        merged: list[MergedDispatch] = []
        images: list[tuple[GpuBuffer, np.ndarray]] = []
        for table in list(self._tables):
            sizes = [_rounded(max(map(value, region))) for region in table.regions]
            total = sum(sizes)
            if total > most or not all(fits(stage.dispatch) for stage in table.section.stages):
                continue
            if table.compiling is None:
                try:
                    table.compiling = self._device.compile_kernels([table.kernel()])
                except Unmergeable:
                    self._tables.remove(table)
                    continue
            pipeline = table.pipeline
            if pipeline is None:
                continue
            scratch = self._scratch.room(total)
            group = self._group(table, pipeline, scratch)
            image = table.image.copy()
            # Later regions have lower addresses: what a kernel reads behind the end of one was written before.
            offsets = scratch.nbytes - np.cumsum(sizes, dtype=np.int64)
            for stage, word, region, nbytes in table.scratch:
                image[stage, word] = offsets[region] // nbytes
            section = table.section
            merged.append(MergedDispatch(section.first, section.end, pipeline.handle, group, self._device.resident))
            images.append((table.buffer, image))
        return merged, images

    def _group(self, table: _Table, pipeline: ComputePipeline, scratch: GpuBuffer) -> Handle:
        counter = counter_of(self._device)
        if table.group is None or table.bound != (scratch, counter):
            wholes = [owner or scratch for owner, _ in table.section.slabs.values()]
            bound = [*wholes, counter, table.buffer, *table.words]
            bound += [table.syms] if table.syms else []
            table.group = self._device.bind_group(pipeline, [(b, 0, b.nbytes) for b in bound])
            table.bound = scratch, counter
        return table.group

    def _table(self, plan: Plan, section: Section) -> _Table:
        slots = {key: k for k, key in enumerate(section.slabs)}
        words: dict[int, int] = {}  # parameter buffer → its number
        keys: list[tuple[int, tuple[int, ...], int]] = []  # of stages: those with the same one share a body
        regions: dict[Region, int] = {}
        scratch: list[tuple[int, int, int, int]] = []
        stride = max(stage_vectors(len(s.parts.storage)) for s in section.stages)
        image = np.zeros((len(section.stages), 4 * stride), np.uint32)
        syms = None
        for number, stage in enumerate(section.stages):
            d, count = stage.dispatch, len(stage.parts.storage)
            slabs = []
            for binding, (region, variable) in enumerate(zip(stage.regions, stage.parts.storage, strict=True)):
                nbytes, buffer = element_bytes(variable.element), self._buffers[region.buffer]
                owner = (buffer.slab or buffer) if region.outside else None
                slabs.append(slots[id(owner)])
                if region.outside:
                    image[number, 4 + binding] = (buffer.offset + d.bindings[binding].offset) // nbytes
                else:
                    scratch.append((number, 4 + binding, regions.setdefault(region, len(regions)), nbytes))
            params = d.bindings[count]
            keys.append((d.kernel, tuple(slabs), words.setdefault(params.buffer, len(words))))
            flags = (WAITS_LATE if stage.parts.independent else WAITS) if stage.waits else 0
            if number + 1 < len(section.stages) and section.stages[number + 1].waits:
                flags |= ARRIVES
            image[number, 1:3] = params.offset // 16, flags
            if stage.parts.syms:
                syms = self._buffers[d.bindings[count + 1].buffer]
        bodies: dict[tuple[int, tuple[int, ...], int], Body] = {}
        for key in dict.fromkeys(keys):
            stages = [stage for stage, own in zip(section.stages, keys, strict=True) if own == key]
            kernel, slabs_of, words_of = key
            bodies[key] = Body(plan.kernels[kernel], slabs_of, words_of, _constants(plan, stages))
        image[:, 0] = [list(bodies).index(key) for key in keys]
        device = self._device
        params_of = [self._buffers[k] for k in words]
        slab_types = [slab for _, slab in section.slabs.values()]
        nbytes_of = [b.nbytes for b in params_of]
        kernel_of = partial(merged_kernel, [*bodies.values()], slab_types, nbytes_of, len(section.stages), SPINS)
        buffer = device.buffer("stages", image.nbytes, "uniform")
        return _Table(section, kernel_of, image, scratch, [r.sizes for r in regions], buffer, params_of, syms)


def _constants(plan: Plan, stages: Sequence[Stage]) -> tuple[tuple[int, int], ...]:
    """Return the words of parameters that are the same in all of these stages at all sizes, and their values."""
    images = iter(plan.params)
    params = {k: np.frombuffer(next(images), np.uint32) for k, b in enumerate(plan.buffers) if b.role == "params"}
    common: dict[int, int] = {}
    for number, stage in enumerate(stages):
        bound = stage.dispatch.bindings[len(stage.parts.storage)]
        first = bound.offset // 4
        own = dict(enumerate(params[bound.buffer][first : first + bound.nbytes // 4].tolist()))
        for patch in stage.dispatch.patches:
            own.pop(patch.word - first, None)
        common = own if number == 0 else {word: v for word, v in common.items() if own.get(word) == v}
    return tuple(common.items())


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // OFFSET_ALIGN) * OFFSET_ALIGN
