"""The writer of a plan: it collects buffers, kernels, parameters and words of traces, and returns them as data."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InvalidProgram, PtegpuError, UnsupportedProgram
from ..graph.graph import Graph, Sym, Tensor, Value
from ..kernels.wgsl import SYM_VECTORS, KernelSpec
from ..passes.memory import Memory
from ..plan.plan import (
    ALIGN,
    OFFSET_ALIGN,
    Binding,
    Bound,
    Buffer,
    Choice,
    Copy,
    Expr,
    Family,
    Input,
    Kernel,
    Number,
    Patch,
    Plan,
    PlannedDispatch,
    Port,
    Row,
    WordKind,
)
from ..plan.target import Target
from ..sizes import Size

CAPACITY = SYM_VECTORS * 4  # words of symbolic ints
_PACK = {"u32": "<I", "i32": "<i", "f32": "<f"}
_LOWEST = {"u32": 0, "i32": -(2**31)}
_END = {"u32": 2**32, "i32": 2**31}


def number(x: Any) -> Number:
    """Return a size as a plan stores it."""
    return Expr(x.row) if isinstance(x, Size) else int(x)


@dataclass(slots=True)
class TracedChoice:
    """The dispatches of one step, valid wherever the guards hold."""

    guards: tuple[int, ...]
    dispatches: Sequence[PlannedDispatch]
    scratched: Sequence[Number]  # bytes of requested scratch
    refusal: PtegpuError | None = None


@dataclass(slots=True)
class TracedFamily:
    """Shapes with the same expressions, valid wherever the guards hold."""

    guards: tuple[int, ...]
    values: dict[Value, tuple[Number, ...]]  # shapes; the number of a symbolic int
    choices: list[list[TracedChoice]]  # for each step
    bounds: tuple[Bound, ...] = ()
    refusal: PtegpuError | None = None


@dataclass(slots=True)
class PlanWriter:
    """The parts that all choices of a plan share: buffers, kernels, parameter blocks, words for symbolic ints."""

    graph: Graph
    memory: Memory
    target: Target
    buffers: list[Buffer] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)  # name → position in `buffers`
    kernels: dict[Kernel, int] = field(default_factory=dict)
    words: dict[Sym | Number, int] = field(default_factory=dict)
    images: list[bytearray] = field(default_factory=list)  # contents of the parameter buffers
    blocks: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)  # equal blocks are stored once
    persistent: dict[tuple[object, ...], Buffer] = field(default_factory=dict)  # buffers whose contents outlast a run

    def __post_init__(self) -> None:
        for b in self.memory.buffers:
            self.index(b)

    def index(self, buffer: Buffer) -> int:
        """Return the position of a buffer, which is added if it is new."""
        if buffer.name not in self.places:
            self.places[buffer.name] = len(self.buffers)
            self.buffers.append(buffer)
        return self.places[buffer.name]

    def renew(self) -> None:
        """Start another parameter buffer, since a device has already allocated the previous ones."""
        if self.images and self.images[-1]:
            self.images.append(bytearray())

    def word(self, value: Sym | Size | int | float) -> int:
        """Return the index of the word from which kernels read a symbolic int or a number in its place."""
        key: Sym | Number = value if isinstance(value, Sym) else number(value)
        if key not in self.words:
            if isinstance(key, int) and not -(2**31) <= key < 2**31:
                raise InvalidProgram(f"the int {key} does not fit int32, which is what the GPU computes with")
            if len(self.words) == CAPACITY:
                raise UnsupportedProgram(f"graph {self.graph.name} has more than {CAPACITY} symbolic ints")
            self.words[key] = len(self.words)
        return self.words[key]

    def block(self, spec: KernelSpec, groups: Any, values: dict[str, Any]) -> tuple[Binding, tuple[Patch, ...]]:
        """Write the parameters of a launch: little-endian words in declared order, padded to 16 bytes."""
        missing = [n for n, _ in spec.params if n not in values]
        extra = [n for n in values if n not in dict(spec.params)]
        if missing or extra:
            raise TypeError(f"kernel {spec.kernel.name}: parameters missing {missing}, unknown {extra}")
        kinds: list[tuple[str, WordKind]] = [("groups", "u32")]
        kinds += [(n, "u32" if t == "sym" else t) for n, t in spec.params]  # type: ignore[misc]
        symbolic = {n for n, t in spec.params if t == "sym"}
        values = {n: self.word(v) if n in symbolic else v for n, v in values.items()} | {"groups": groups}
        words = [_word(spec, n, kind, values[n]) for n, kind in kinds]
        key = tuple(words)
        if key not in self.blocks:
            if not self.images:
                self.images.append(bytearray())
            image = self.images[-1]
            image += bytes(-len(image) % OFFSET_ALIGN)
            self.blocks[key] = len(self.images) - 1, len(image)
            image += b"".join(w if isinstance(w, bytes) else bytes(4) for w in words)
            image += bytes(-len(image) % ALIGN)
        number, offset = self.blocks[key]
        buffer = self.index(Buffer(f"params{number or ''}", ALIGN, "params"))
        patches = [Patch(offset // 4 + k, Expr(w[0]), w[1]) for k, w in enumerate(words) if not isinstance(w, bytes)]
        return Binding(buffer, offset, -(-4 * len(words) // ALIGN) * ALIGN), tuple(patches)

    def plan(
        self,
        families: Sequence[TracedFamily],
        rows: Sequence[Row],
        dynamic: Sequence[bool],
        index_only: Collection[Value],
    ) -> Plan:
        """Return everything traced so far as data. Sizes of `dynamic` inputs change; some inputs are only indices."""
        graph, memory = self.graph, self.memory
        inputs = [
            Input(v.name, self._place(v), v.dtype, v.max_shape, varies, v in index_only)
            if isinstance(v, Tensor)
            else Input(v.name)
            for v, varies in zip(graph.inputs, dynamic, strict=True)
        ]
        copies = [
            Copy(self._place(value), self._place(state), -(-state.max_nbytes // 4) * 4)
            for state, value in graph.writebacks
            if memory.buffer_of[value] is not memory.buffer_of[state]
        ]
        written = tuple(map(self._family, families))
        images = tuple(bytes(i) + bytes(-len(i) % 16) for i in self.images if i)
        buffers = tuple(self._sized(b) for b in self.buffers)
        kernels = tuple(self.kernels)
        return Plan(
            graph.name, buffers, kernels, tuple(inputs), written, tuple(copies), tuple(rows), images, memory.blobs
        )

    def _place(self, tensor: Tensor) -> int:
        return self.index(self.memory.buffer_of[tensor])

    def _sized(self, buffer: Buffer) -> Buffer:
        """Return a buffer with its final size."""
        if buffer.role != "params":
            return buffer
        length = len(self.images[int(buffer.name[6:] or 0)])
        return replace(buffer, nbytes=max(ALIGN, -(-length // ALIGN) * ALIGN))

    def _family(self, family: TracedFamily) -> Family:
        if family.refusal is not None:
            return Family(family.guards, (), (), refusal=str(family.refusal))
        steps = tuple(
            tuple(Choice(c.guards, tuple(c.dispatches), str(c.refusal or "")) for c in choices)
            for choices in family.choices
        )
        outputs: list[Port | Number] = []
        for v in self.graph.outputs:
            if isinstance(v, Tensor):
                outputs.append(Port(v.name, self._place(v), v.dtype, family.values[v]))
            else:
                outputs.append(family.values[v][0] if isinstance(v, Sym) else int(v))  # type: ignore[arg-type]
        words = tuple(family.values[key][0] if isinstance(key, Sym) else key for key in self.words)
        return Family(family.guards, steps, tuple(outputs), words, family.bounds)


def _word(spec: KernelSpec, name: str, kind: WordKind, value: Any) -> bytes | tuple[int, WordKind]:
    """Return a parameter as bytes, or as the row with its value."""
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
