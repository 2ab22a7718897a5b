"""The lowering of one node at one set of sizes: the steps of its rule become dispatches, with symbolic numbers.

This is the only place where tensors become bindings and workgroup counts become grids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import LimitExceeded, PtegpuError, quoted
from ..graph.graph import Node, Tensor
from ..kernels.wgsl import SYM_VECTORS
from ..ops.pointwise import cast
from ..ops.registry import Dispatch as Launch
from ..ops.registry import Scratch
from ..plan.plan import ALIGN, Binding, Buffer, Number, PlannedDispatch, fold
from ..sizes import Size, Trace
from .plan_writer import PlanWriter, number


@dataclass(slots=True)
class Lowering:
    """The dispatches of one node, which has the position `k` in its graph."""

    writer: PlanWriter
    k: int
    node: Node
    trace: Trace
    largest: Callable[[Size, Trace], int]  # returns the largest value of a size where the trace holds
    dispatches: list[PlannedDispatch] = field(default_factory=list)
    scratched: list[Number] = field(default_factory=list)  # bytes of requested scratch
    _scratch: dict[Tensor, Buffer] = field(default_factory=dict)

    def run(self) -> None:
        node, memory = self.node, self.writer.memory
        outs = [o for o in node.outs if isinstance(o, Tensor)]
        if node.op.view is not None:
            source = node.args[0]
            assert isinstance(source, Tensor)
            if memory.buffer_of[outs[0]] is not memory.buffer_of.get(source):
                self._launch(cast(source, outs[0], self.writer.target))
            return
        steps = node.op.steps_into(node.args, outs, self.writer.target)
        reply: Tensor | None = None
        try:
            while True:
                step = steps.send(reply)
                reply = None
                if isinstance(step, Scratch):
                    reply = self._allocate(step)
                elif isinstance(step, Launch):
                    self._launch(step)
        except StopIteration:
            pass
        except PtegpuError as e:
            e.args = tuple(quoted(f"{node.name}: ", e))
            raise

    def _allocate(self, step: Scratch) -> Tensor:
        target = self.writer.target
        shape = tuple(step.shape)
        tensor = Tensor(f"{self.node.name} scratch {len(self._scratch)}", step.dtype, shape)
        nbytes: Any = tensor.nbytes
        self.scratched.append(number(nbytes))
        limit = min(target.max_binding_bytes, target.max_buffer_bytes)
        if nbytes > limit:
            raise LimitExceeded(f"its scratch of {nbytes:,} bytes is more than {target.name} binds")
        largest = min(self.largest(nbytes, self.trace), limit) if isinstance(nbytes, Size) else int(nbytes)
        if nbytes > largest:  # never true, but the comparison records a guard
            raise LimitExceeded(f"its scratch of {nbytes:,} bytes does not fit")
        need = max(ALIGN, -(-largest // ALIGN) * ALIGN)
        buffer = self._persistent(step.kept, need) if step.kept and not isinstance(nbytes, Size) else None
        if buffer is None:
            buffer = self.writer.memory.scratch(self.k, need, {b.name for b in self._scratch.values()})
        if buffer is None:  # with a rounded size, so that other nodes and sizes can share it
            rounded = min(1 << (need - 1).bit_length(), max(need, limit // ALIGN * ALIGN))
            buffer = Buffer(f"scratch{len(self._scratch)}.{rounded}", rounded, "temp")
        self._scratch[tensor] = buffer
        return tensor

    def _persistent(self, key: tuple[object, ...], need: int) -> Buffer | None:
        """Return a buffer that outlasts a run; None if the memory for these is used up."""
        buffers = self.writer.persistent
        if key not in buffers and need + sum(b.nbytes for b in buffers.values()) <= self.writer.target.kept_bytes:
            buffers[key] = Buffer(f"kept{len(buffers)}", need, "temp")
        return buffers.get(key)

    def _launch(self, step: Launch) -> None:
        spec, node, writer = step.kernel, self.node, self.writer
        if not isinstance(step.groups, Size) and step.groups == 0:
            return
        writes = list(step.write)
        casts: list[tuple[Tensor, Tensor]] = []
        for j, (t, storage) in enumerate(zip(writes, spec.writes, strict=True)):
            if t.dtype is not storage.dtype:  # the kernel writes words, the tensor is packed
                writes[j] = self._allocate(Scratch(t.shape, storage.dtype))
                casts.append((writes[j], t))
        for t, storage in zip(step.read, spec.reads, strict=True):
            if t.dtype is not storage.dtype:
                raise TypeError(f"{node.name}: kernel {spec.kernel.name} reads {storage.dtype.value}, {t!r} is not")
        bindings = [self._binding(t) for t in (*step.read, *writes)]
        reads = {b.buffer for b in bindings[: len(spec.reads)]}
        written = [b.buffer for b in bindings[len(spec.reads) :]]
        if reads & set(written) or len(set(written)) < len(written):
            raise TypeError(f"{node.name}: kernel {spec.kernel.name} would write a buffer that it also binds elsewhere")
        block, patches = writer.block(spec, step.groups, dict(step.params))
        bindings.append(block)
        if spec.reads_syms:
            syms = writer.index(Buffer("syms", SYM_VECTORS * 16, "syms"))
            bindings.append(Binding(syms, 0, SYM_VECTORS * 16))
        kernel = writer.kernels.setdefault(spec.kernel, len(writer.kernels))
        x, y = fold(step.groups, writer.target.max_groups, spec.kernel.name)
        read = sum(t.nbytes for t in dict.fromkeys(step.read)) if step.read_bytes is None else step.read_bytes
        write = sum(t.nbytes for t in writes) if step.write_bytes is None else step.write_bytes
        figures = (number(read), number(write), number(step.flops))
        label = step.label or node.name
        grid = number(x), number(y)
        outlasting = {writer.index(b) for b in writer.persistent.values()} if step.once else set[int]()
        once = step.once and outlasting.issuperset(written)
        once = once and not patches and not spec.reads_syms and all(isinstance(n, int) for n in grid)
        self.dispatches.append(PlannedDispatch(kernel, tuple(bindings), grid, label, *figures, patches, once))
        for source, to in casts:
            self._launch(replace(cast(source, to, writer.target), label=step.label))

    def _binding(self, t: Tensor) -> Binding:
        buffer = self._scratch.get(t) or self.writer.memory.buffer_of[t]
        return Binding(self.writer.index(buffer), 0, buffer.nbytes)
