"""From a graph at its live shapes to a plan: every node's steps become dispatches on buffers.

Here, and only here, tensors turn into bindings, parameters into bytes, and workgroup counts into grids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..errors import LimitExceeded, PtegpuError
from ..graph.graph import Graph, Node, Sym, Tensor
from ..kernels.wgsl import SYM_VECTORS, KernelSpec
from ..ops.pointwise import cast
from ..ops.registry import Dispatch as Launch
from ..ops.registry import Scratch
from ..passes.memory import Memory
from .plan import ALIGN, OFFSET_ALIGN, Binding, Buffer, Copy, Dispatch, Kernel, Plan, Port
from .symbols import Symbols
from .target import Target


@dataclass(slots=True)
class _Lowering:
    graph: Graph
    memory: Memory
    target: Target
    symbols: Symbols
    key: str
    buffers: dict[str, int] = field(default_factory=dict)
    table: list[Buffer] = field(default_factory=list)
    kernels: dict[Kernel, int] = field(default_factory=dict)
    dispatches: list[Dispatch] = field(default_factory=list)
    params: bytearray = field(default_factory=bytearray)
    blocks: dict[bytes, int] = field(default_factory=dict)  # equal parameter blocks are stored once
    pending: list[tuple[int, int, int]] = field(default_factory=list)  # (dispatch, binding, offset) of parameters

    def index(self, buffer: Buffer) -> int:
        if buffer.name not in self.buffers:
            self.buffers[buffer.name] = len(self.table)
            self.table.append(buffer)
        return self.buffers[buffer.name]

    def node(self, k: int, node: Node) -> None:
        scratch: dict[Tensor, Buffer] = {}
        outs = [o for o in node.outs if isinstance(o, Tensor)]
        if node.op.view is not None:
            source = node.args[0]
            assert isinstance(source, Tensor)
            if self.memory.buffer_of[outs[0]] is not self.memory.buffer_of.get(source):
                self.launch(k, node, cast(source, outs[0], self.target), scratch)
            return
        steps = node.op.steps_into(node.args, outs, self.target)
        reply: Tensor | None = None
        try:
            while True:
                step = steps.send(reply)
                reply = None
                if isinstance(step, Scratch):
                    reply = self.scratch(k, node, step, scratch)
                elif isinstance(step, Launch):
                    self.launch(k, node, step, scratch)
        except StopIteration:
            pass
        except PtegpuError as e:
            e.args = (f"{node.name}: {e}",)
            raise

    def scratch(self, k: int, node: Node, step: Scratch, scratch: dict[Tensor, Buffer]) -> Tensor:
        shape = tuple(step.shape)
        tensor = Tensor(f"{node.name} scratch {len(scratch)}", step.dtype, shape)
        nbytes = max(ALIGN, -(-tensor.nbytes // ALIGN) * ALIGN)
        limit = min(self.target.max_binding_bytes, self.target.max_buffer_bytes)
        if nbytes > limit:
            raise LimitExceeded(f"its scratch of {nbytes:,} bytes is more than {self.target.name} binds")
        taken = {b.name for b in scratch.values()}
        buffer = self.memory.scratch(k, nbytes, taken)
        if buffer is None:  # of a rounded size, so that plans of other shapes can use it too
            room = min(1 << (nbytes - 1).bit_length(), limit // ALIGN * ALIGN)
            buffer = Buffer(f"scratch{len(scratch)}.{room}", room, "temp")
        scratch[tensor] = buffer
        return tensor

    def launch(self, k: int, node: Node, step: Launch, scratch: dict[Tensor, Buffer]) -> None:
        spec = step.kernel
        if step.groups == 0:
            return
        writes = list(step.write)
        casts: list[tuple[Tensor, Tensor]] = []
        for j, (t, storage) in enumerate(zip(writes, spec.writes, strict=True)):
            if t.dtype is not storage.dtype:  # the kernel writes words, the tensor is packed
                writes[j] = self.scratch(k, node, Scratch(t.shape, storage.dtype), scratch)
                casts.append((writes[j], t))
        for t, storage in zip(step.read, spec.reads, strict=True):
            if t.dtype is not storage.dtype:
                raise TypeError(f"{node.name}: kernel {spec.kernel.name} reads {storage.dtype.value}, {t!r} is not")
        bindings = [self.binding(t, scratch) for t in (*step.read, *writes)]
        _check_aliasing(node, spec, bindings)
        kinds = dict(spec.params)
        params = {n: self.symbols.word(v) if kinds.get(n) == "sym" else plain(v) for n, v in step.params.items()}
        block = spec.pack(step.groups, params)
        offset = self.blocks.get(block)
        if offset is None:
            self.params += bytes(-len(self.params) % OFFSET_ALIGN)
            offset = self.blocks[block] = len(self.params)
            self.params += block
        self.pending.append((len(self.dispatches), len(bindings), offset))
        bindings.append(Binding(-1, offset, len(block)))
        if spec.reads_syms:
            syms = self.index(Buffer("syms", SYM_VECTORS * 16, "syms"))
            bindings.append(Binding(syms, 0, SYM_VECTORS * 16))
        kernel = self.kernels.setdefault(spec.kernel, len(self.kernels))
        grid = fold(step.groups, self.target.max_groups, spec.kernel.name)
        read = sum(t.nbytes for t in dict.fromkeys(step.read)) if step.read_bytes is None else step.read_bytes
        write = sum(t.nbytes for t in writes) if step.write_bytes is None else step.write_bytes
        label = step.label or node.name
        self.dispatches.append(Dispatch(kernel, tuple(bindings), grid, label, read, write, step.flops))
        for source, to in casts:
            self.launch(k, node, replace(cast(source, to, self.target), label=step.label), scratch)

    def binding(self, t: Tensor, scratch: dict[Tensor, Buffer]) -> Binding:
        buffer = scratch.get(t) or self.memory.buffer_of[t]
        return Binding(self.index(buffer), 0, buffer.nbytes)

    def port(self, t: Tensor) -> Port:
        return Port(t.name, self.index(self.memory.buffer_of[t]), t.dtype, t.shape)

    def finish(self) -> Plan:
        graph = self.graph
        if self.params:
            self.params += bytes(-len(self.params) % ALIGN)
            params = self.index(Buffer(f"params{self.key}", len(self.params), "params"))
            for d, j, _ in self.pending:
                bindings = list(self.dispatches[d].bindings)
                bindings[j] = Binding(params, bindings[j].offset, bindings[j].nbytes)
                self.dispatches[d] = replace(self.dispatches[d], bindings=tuple(bindings))
        copies = [
            Copy(
                self.index(self.memory.buffer_of[value]),
                self.index(self.memory.buffer_of[state]),
                -(-state.nbytes // 4) * 4,
            )
            for state, value in graph.writebacks
            if self.memory.buffer_of[value] is not self.memory.buffer_of[state]
        ]
        return Plan(
            graph.name,
            tuple(self.table),
            tuple(self.kernels),
            tuple(self.dispatches),
            tuple(copies),
            tuple(self.port(t) for t in graph.inputs if isinstance(t, Tensor)),
            tuple(self.port(t) for t in graph.outputs if isinstance(t, Tensor)),
            bytes(self.params),
            self.symbols.steps(),
            self.symbols.outputs(),
            tuple(self.memory.blobs),
        )


def lower(graph: Graph, memory: Memory, target: Target, symbols: Symbols, key: str = "") -> Plan:
    """The plan of `graph` at its current live shapes. `key` tells plans of one graph apart."""
    low = _Lowering(graph, memory, target, symbols, key)
    for b in memory.buffers:
        low.index(b)
    for k, node in enumerate(graph.nodes):
        if node.op.sym is None:
            low.node(k, node)
    return low.finish()


def plain(value: int | float | Sym) -> int | float:
    """A parameter that the kernel reads as a constant of the plan."""
    if isinstance(value, Sym):
        raise TypeError(f"{value!r} is symbolic; the kernel's parameter is not")
    return value


def _check_aliasing(node: Node, spec: KernelSpec, bindings: list[Binding]) -> None:
    reads = {b.buffer for b in bindings[: len(spec.reads)]}
    writes = [b.buffer for b in bindings[len(spec.reads) :]]
    if reads & set(writes) or len(set(writes)) < len(writes):
        raise TypeError(f"{node.name}: kernel {spec.kernel.name} would write a buffer it also binds otherwise")


def fold(groups: int, limit: int, kernel: str) -> tuple[int, int]:
    """Workgroups as a grid of two dimensions, as square as needed to stay within the limit of each."""
    if groups <= limit:
        return groups, 1
    y = -(-groups // limit)
    x = -(-groups // y)
    if y > limit:
        raise LimitExceeded(f"kernel {kernel} needs {groups:,} workgroups, the device allows {limit:,} × {limit:,}")
    return x, y
