"""One node at one set of sizes: its rule's steps become dispatches on buffers, with numbers that remember.

Here, and only here, tensors turn into bindings, parameters into words, and workgroup counts into grids.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InvalidProgram, LimitExceeded, PtegpuError, UnsupportedProgram, quoted
from ..graph.graph import Graph, Node, Sym, Tensor
from ..kernels.wgsl import SYM_VECTORS, KernelSpec
from ..ops.pointwise import cast
from ..ops.registry import Dispatch as Launch
from ..ops.registry import Scratch
from ..passes.memory import Memory
from ..plan.plan import (
    ALIGN,
    OFFSET_ALIGN,
    Binding,
    Buffer,
    Dispatch,
    Expr,
    Kernel,
    Number,
    Patch,
    WordKind,
    fold,
)
from ..plan.target import Target
from ..sizes import Size, Trace

CAPACITY = SYM_VECTORS * 4  # words of symbolic ints
_PACK = {"u32": "<I", "i32": "<i", "f32": "<f"}
_LOWEST = {"u32": 0, "i32": -(2**31)}
_END = {"u32": 2**32, "i32": 2**31}


def number(x: Any) -> Number:
    """A size as the record has it."""
    return Expr(x.row) if isinstance(x, Size) else int(x)


@dataclass(slots=True)
class Tables:
    """What all choices of a plan share: buffers, kernels, parameter blocks, words for symbolic ints."""

    graph: Graph
    memory: Memory
    target: Target
    room: Callable[[Size, Trace], int]  # the most bytes that a size can be where its trace holds
    buffers: dict[str, int] = field(default_factory=dict)
    table: list[Buffer] = field(default_factory=list)
    kernels: dict[Kernel, int] = field(default_factory=dict)
    words: dict[Sym | Number, int] = field(default_factory=dict)
    images: list[bytearray] = field(default_factory=list)  # of the parameter buffers
    blocks: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)  # equal ones are stored once
    kept: dict[tuple[object, ...], Buffer] = field(default_factory=dict)  # what need not be made again

    def __post_init__(self) -> None:
        for b in self.memory.buffers:
            self.index(b)

    def index(self, buffer: Buffer) -> int:
        if buffer.name not in self.buffers:
            self.buffers[buffer.name] = len(self.table)
            self.table.append(buffer)
        return self.buffers[buffer.name]

    def renew(self) -> None:
        """What comes now goes into another parameter buffer: those before have their size."""
        if self.images and self.images[-1]:
            self.images.append(bytearray())

    def word(self, value: Sym | Size | int | float) -> int:
        """Where a kernel finds `value`: a symbolic int's word, or that of a number given in its place."""
        key: Sym | Number = value if isinstance(value, Sym) else number(value)
        if key not in self.words:
            if isinstance(key, int) and not -(2**31) <= key < 2**31:
                raise InvalidProgram(f"the int {key} does not fit int32, which is what the GPU computes with")
            if len(self.words) == CAPACITY:
                raise UnsupportedProgram(f"graph {self.graph.name} has more than {CAPACITY} symbolic ints")
            self.words[key] = len(self.words)
        return self.words[key]

    def block(self, spec: KernelSpec, groups: Any, values: dict[str, Any]) -> tuple[Binding, tuple[Patch, ...]]:
        """The parameters of a launch: little-endian words in declared order, padded to 16 bytes."""
        missing = [n for n, _ in spec.params if n not in values]
        extra = [n for n in values if n not in dict(spec.params)]
        if missing or extra:
            raise TypeError(f"kernel {spec.kernel.name}: parameters missing {missing}, unknown {extra}")
        kinds: list[tuple[str, WordKind]] = [("groups", "u32")]
        kinds += [(n, "u32" if t == "sym" else t) for n, t in spec.params]  # type: ignore[misc]
        symbolic = {n for n, t in spec.params if t == "sym"}
        given = {n: self.word(v) if n in symbolic else v for n, v in values.items()}
        given["groups"] = groups
        words = [_word(spec, n, kind, given[n]) for n, kind in kinds]
        key = tuple(words)
        if key not in self.blocks:
            if not self.images:
                self.images.append(bytearray())
            image = self.images[-1]
            image += bytes(-len(image) % OFFSET_ALIGN)
            self.blocks[key] = len(self.images) - 1, len(image)
            image += b"".join(w if isinstance(w, bytes) else bytes(4) for w in words)
            image += bytes(-len(image) % ALIGN)
        which, offset = self.blocks[key]
        buffer = self.index(Buffer(f"params{which or ''}", ALIGN, "params"))
        patches = [Patch(offset // 4 + k, Expr(w[0]), w[1]) for k, w in enumerate(words) if not isinstance(w, bytes)]
        return Binding(buffer, offset, -(-4 * len(words) // ALIGN) * ALIGN), tuple(patches)

    def finished(self) -> list[Buffer]:
        """The buffers, with those of parameters as long as they are now."""
        return [
            replace(b, nbytes=max(ALIGN, -(-len(self.images[int(b.name[6:] or 0)]) // ALIGN) * ALIGN))
            if b.role == "params"
            else b
            for b in self.table
        ]


def _word(spec: KernelSpec, name: str, kind: WordKind, value: Any) -> bytes | tuple[int, WordKind]:
    """A parameter as bytes, or as the row that gives it."""
    if isinstance(value, Sym):
        raise TypeError(f"{value!r} is symbolic; the kernel's parameter is not")
    if isinstance(value, Size):
        if kind == "f32" or (value >= _LOWEST[kind] and value < _END[kind]):
            return value.row, kind
        raise InvalidProgram(f"kernel {spec.kernel.name} cannot take {value} as its {name}")
    try:
        if kind != "f32":
            return struct.pack(_PACK[kind], int(value))
        try:
            return struct.pack("<f", float(value))
        except OverflowError:  # a double beyond f32, such as relu's upper bound of DBL_MAX
            return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    except (struct.error, ArithmeticError, ValueError):
        raise InvalidProgram(f"kernel {spec.kernel.name} cannot take {value} as its {name}") from None


@dataclass(slots=True)
class Lowering:
    """The dispatches of one node, number `k` of its graph."""

    tables: Tables
    k: int
    node: Node
    trace: Trace
    dispatches: list[Dispatch] = field(default_factory=list)
    scratched: list[Number] = field(default_factory=list)  # the bytes of scratch that were asked for
    _scratch: dict[Tensor, Buffer] = field(default_factory=dict)

    def run(self) -> None:
        node, memory = self.node, self.tables.memory
        outs = [o for o in node.outs if isinstance(o, Tensor)]
        if node.op.view is not None:
            source = node.args[0]
            assert isinstance(source, Tensor)
            if memory.buffer_of[outs[0]] is not memory.buffer_of.get(source):
                self._launch(cast(source, outs[0], self.tables.target))
            return
        steps = node.op.steps_into(node.args, outs, self.tables.target)
        reply: Tensor | None = None
        try:
            while True:
                step = steps.send(reply)
                reply = None
                if isinstance(step, Scratch):
                    reply = self._take(step)
                elif isinstance(step, Launch):
                    self._launch(step)
        except StopIteration:
            pass
        except PtegpuError as e:
            e.args = tuple(quoted(f"{node.name}: ", e))
            raise

    def _take(self, step: Scratch) -> Tensor:
        target = self.tables.target
        shape = tuple(step.shape)
        tensor = Tensor(f"{self.node.name} scratch {len(self._scratch)}", step.dtype, shape)
        nbytes: Any = tensor.nbytes
        self.scratched.append(number(nbytes))
        limit = min(target.max_binding_bytes, target.max_buffer_bytes)
        if nbytes > limit:
            raise LimitExceeded(f"its scratch of {nbytes:,} bytes is more than {target.name} binds")
        most = min(self.tables.room(nbytes, self.trace), limit) if isinstance(nbytes, Size) else int(nbytes)
        if nbytes > most:  # which it is not: the comparison says so of all sizes that this is for
            raise LimitExceeded(f"its scratch of {nbytes:,} bytes does not fit")
        need = max(ALIGN, -(-most // ALIGN) * ALIGN)
        buffer = self._kept(step.kept, need) if step.kept and not isinstance(nbytes, Size) else None
        if buffer is None:
            buffer = self.tables.memory.scratch(self.k, need, {b.name for b in self._scratch.values()})
        if buffer is None:  # of a rounded size, so that other nodes and sizes can use it too
            room = min(1 << (need - 1).bit_length(), max(need, limit // ALIGN * ALIGN))
            buffer = Buffer(f"scratch{len(self._scratch)}.{room}", room, "temp")
        self._scratch[tensor] = buffer
        return tensor

    def _kept(self, key: tuple[object, ...], need: int) -> Buffer | None:
        """A buffer of its own, as long as there is memory for such."""
        kept = self.tables.kept
        if key not in kept and need + sum(b.nbytes for b in kept.values()) <= self.tables.target.kept_bytes:
            kept[key] = Buffer(f"kept{len(kept)}", need, "temp")
        return kept.get(key)

    def _launch(self, step: Launch) -> None:
        spec, node, tables = step.kernel, self.node, self.tables
        if not isinstance(step.groups, Size) and step.groups == 0:
            return
        writes = list(step.write)
        casts: list[tuple[Tensor, Tensor]] = []
        for j, (t, storage) in enumerate(zip(writes, spec.writes, strict=True)):
            if t.dtype is not storage.dtype:  # the kernel writes words, the tensor is packed
                writes[j] = self._take(Scratch(t.shape, storage.dtype))
                casts.append((writes[j], t))
        for t, storage in zip(step.read, spec.reads, strict=True):
            if t.dtype is not storage.dtype:
                raise TypeError(f"{node.name}: kernel {spec.kernel.name} reads {storage.dtype.value}, {t!r} is not")
        bindings = [self._binding(t) for t in (*step.read, *writes)]
        _check_aliasing(node, spec, bindings)
        block, patches = tables.block(spec, step.groups, dict(step.params))
        bindings.append(block)
        if spec.reads_syms:
            syms = tables.index(Buffer("syms", SYM_VECTORS * 16, "syms"))
            bindings.append(Binding(syms, 0, SYM_VECTORS * 16))
        kernel = tables.kernels.setdefault(spec.kernel, len(tables.kernels))
        x, y = fold(step.groups, tables.target.max_groups, spec.kernel.name)
        read = sum(t.nbytes for t in dict.fromkeys(step.read)) if step.read_bytes is None else step.read_bytes
        write = sum(t.nbytes for t in writes) if step.write_bytes is None else step.write_bytes
        figures = (number(read), number(write), number(step.flops))
        label = step.label or node.name
        grid = number(x), number(y)
        kept = {tables.index(b) for b in tables.kept.values()} if step.once else set[int]()
        once = step.once and kept.issuperset(b.buffer for b in bindings[len(step.read) : len(step.read) + len(writes)])
        once = once and not patches and not spec.reads_syms and all(isinstance(n, int) for n in grid)
        self.dispatches.append(Dispatch(kernel, tuple(bindings), grid, label, *figures, patches, once))
        for source, to in casts:
            self._launch(replace(cast(source, to, tables.target), label=step.label))

    def _binding(self, t: Tensor) -> Binding:
        buffer = self._scratch.get(t) or self.tables.memory.buffer_of[t]
        return Binding(self.tables.index(buffer), 0, buffer.nbytes)


def _check_aliasing(node: Node, spec: KernelSpec, bindings: list[Binding]) -> None:
    reads = {b.buffer for b in bindings[: len(spec.reads)]}
    writes = [b.buffer for b in bindings[len(spec.reads) :]]
    if reads & set(writes) or len(set(writes)) < len(writes):
        raise TypeError(f"{node.name}: kernel {spec.kernel.name} would write a buffer it also binds otherwise")
