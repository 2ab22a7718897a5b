"""The stretches of a method as graphs in single-assignment form: their inputs, their outputs, and their own states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput, InvalidProgram
from ..graph.flat import FlatMethod
from ..graph.graph import Arg, Graph, Kind, Node, Sym, Tensor, Value
from ..limits import copying, tick
from ..ops import REGISTRY
from ..ops.elementwise import ROUND
from ..ops.views import CLONE
from ..passes import REWRITES
from ..plan.device_arrays import to_device
from ..plan.method import Call, Instruction, Operand, Var, variables
from .order import reads, writes
from .partition import Part, Stretch


@dataclass(frozen=True, eq=False, slots=True)
class StretchGraph:
    """The graph of a stretch, with the slots that its inputs and outputs stand for."""

    graph: Graph
    inputs: list[Var]
    outputs: list[Var]
    states: set[Var]  # states inside the graph
    on_host: tuple[int, ...] = ()  # positions of the outputs that the host reads


def join(flat: FlatMethod, parts: list[Part]) -> dict[int, StretchGraph]:
    """Return the graphs of stretches by position, with the outputs that other items, the host or the caller need."""
    touched = [read_by(part).union(written_by(part)) for part in parts]
    read = [read_by(part) for part in parts]
    finals = {v for o in flat.outputs for v in variables(o)}
    users = Counter(v for slots in touched for v in slots)
    readers = Counter(v for slots in read for v in slots)
    on_host = finals.union(*(slots for slots, part in zip(read, parts, strict=True) if not isinstance(part, Stretch)))
    joined: dict[int, StretchGraph] = {}
    for k, part in enumerate(parts):
        if not isinstance(part, Stretch):
            continue
        tick()
        states = {v for v in touched[k] if v.kind == "state" and users[v] == 1}
        written = dict.fromkeys(written_by(part))
        carried = _read_before_written(part)
        used = {v for v in written if v in finals or v in carried or readers[v] > (v in read[k])}
        outputs = [v for v in written if (v not in states and (v in used or v.kind == "state")) or v in finals]
        positions = tuple(p for p, v in enumerate(outputs) if v in on_host)
        joined[k] = replace(build(f"{flat.name}.{k}", part.calls, outputs, states), on_host=positions)
    return joined


def written_by(part: Part) -> list[Var]:
    """Return the slots that an item writes."""
    return [v for i in _instructions(part) for v in writes(i)]


def read_by(part: Part) -> set[Var]:
    """Return the slots that an item reads."""
    return {v for i in _instructions(part) for v in reads(i)}


def _instructions(part: Part) -> Sequence[Instruction]:
    return part.calls if isinstance(part, Stretch) else [part.instruction]


def _read_before_written(stretch: Stretch) -> set[Var]:
    """Return slots that the stretch reads before it writes them: the next iteration of a loop needs them."""
    written: set[Var] = set()
    early: set[Var] = set()
    for c in stretch.calls:
        early.update(v for v in variables(c.args) if v not in written)
        written.update(c.outs)
    return early & written


def build(name: str, calls: Iterable[Call], outputs: list[Var], states: set[Var]) -> StretchGraph:
    """Return the graph of `calls`, after all rewrites. `outputs` are read afterwards; `states` stay inside."""
    builder = _GraphBuilder(name, states)
    for call in calls:
        tick()
        builder.add(call)
    return builder.finish(outputs)


class _GraphBuilder:
    def __init__(self, name: str, states: set[Var]) -> None:
        self.graph = Graph(name)
        self.states = states
        self.env: dict[Var, Value] = {}
        self.initial: dict[Var, Tensor] = {}  # states before the run
        self.inputs: list[Var] = []
        self.count = 0
        self.conversions: dict[tuple[object, ...], np.ndarray] = {}  # by memory in the file, shape and dtype

    def converted(self, var: Var, data: np.ndarray, dtype: DType) -> np.ndarray:
        """Return a constant as the device has it. Constants that share memory in the file are converted once."""
        if dtype.device is dtype and data.flags.c_contiguous:
            return data
        key = data.__array_interface__["data"][0], data.shape, data.strides, dtype
        if key not in self.conversions:
            copying(math.prod(var.sizes) * dtype.device.size)
            try:
                self.conversions[key] = to_device(data, dtype, var.name)
            except InvalidInput as e:
                raise InvalidProgram(str(e)) from None
        return self.conversions[key]

    def value(self, var: Var) -> Value:
        """Return the current value of a slot; its first use makes it an input, a constant or a state."""
        if var in self.env:
            return self.env[var]
        value: Value
        if var.dtype is None:
            value = Sym(var.name)
        else:
            constant = var.kind == "constant" and var.data is not None
            kind: Kind = "state" if var in self.states else "constant" if constant else "input"
            data = None if kind == "input" or var.data is None else self.converted(var, var.data, var.dtype)
            value = Tensor(var.name, var.dtype.device, var.sizes, kind, data)
            if kind == "state":
                self.initial[var] = value
        if isinstance(value, Sym) or value.kind == "input":
            self.graph.inputs.append(value)
            self.inputs.append(var)
        self.env[var] = value
        return value

    def argument(self, operand: Operand) -> Arg:
        if isinstance(operand, tuple):
            return tuple(self.argument(o) for o in operand)
        return self.value(operand) if isinstance(operand, Var) else operand

    def add(self, call: Call) -> None:
        definition = REGISTRY[call.op]
        args = [self.argument(a) for a in call.args]
        if definition.fits is not None:
            try:
                definition.fits.check_dtypes(definition.named(args))
            except InvalidProgram as e:
                raise InvalidProgram(f"{call.where}: {e}") from None
        mutated: list[Tensor] = []
        for k in definition.mutates:
            tensor, var = args[k], call.args[k]
            if tensor is None and definition.parameters[k].default is None:
                continue
            if not isinstance(tensor, Tensor) or not isinstance(var, Var):
                raise InvalidProgram(f"{call.where}: argument {k} is written, but is not a tensor")
            if tensor.kind in ("input", "constant"):  # never overwritten: the change goes to a copy
                tensor = self.copy(tensor, call.where)
                args[k] = self.env[var] = tensor
            mutated.append(tensor)
        outs: list[Value] = []
        for var in call.outs:
            if var in self.states:
                self.value(var)
            self.count += 1
            out: Value = Sym(var.name)
            if var.dtype is not None:
                out = Tensor(f"{var.name}.{self.count}", var.dtype.device, var.sizes)
            outs.append(out)
            self.env[var] = self.zeros(var) if definition.hollow else out
        self.graph.nodes.append(Node(definition, tuple(args), tuple(outs), call.where, tuple(mutated)))
        if any(v.dtype is DType.BF16 for v in call.outs):
            self.round(call)

    def zeros(self, var: Var) -> Value:
        """Return the value that readers see for a result that no kernel writes."""
        if var.dtype is None:
            return Sym(var.name)
        dtype = var.dtype.device
        return Tensor(f"{var.name}.zeros", dtype, var.sizes, "constant", np.zeros(var.sizes, dtype.numpy))

    def round(self, call: Call) -> None:
        """Round results to bfloat16, which is float32 on the GPU, unless they are elements of the operands."""
        dtypes = {v.dtype for v in variables(call.args)} - {None}
        if REGISTRY[call.op].moves and dtypes == {DType.BF16}:
            return
        for var in call.outs:
            value = self.env[var]
            if var.dtype is DType.BF16 and isinstance(value, Tensor):
                rounded = Tensor(f"{value.name}.rounded", value.dtype, value.max_shape)
                self.graph.nodes.append(Node(REGISTRY[ROUND], (value,), (rounded,), call.where))
                self.env[var] = rounded

    def copy(self, source: Tensor, where: str) -> Tensor:
        self.count += 1
        out = Tensor(f"{source.name}.{self.count}", source.dtype, source.max_shape)
        self.graph.nodes.append(Node(REGISTRY[CLONE], (source,), (out,), f"copy for {where}"))
        return out

    def finish(self, outputs: list[Var]) -> StretchGraph:
        graph = self.graph
        for var in outputs:
            value = self.env[var]
            if isinstance(value, Tensor) and value.kind != "temp":
                value = self.copy(value, "output")
            graph.outputs.append(value)
        pairs = [(old, self.env[var]) for var, old in self.initial.items()]
        graph.writebacks = [(old, new) for old, new in pairs if isinstance(new, Tensor) and new is not old]
        for rewrite in REWRITES:
            rewrite(graph)
        return StretchGraph(graph, self.inputs, outputs, self.states)
