"""A stretch of calls as a graph in single-assignment form."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..dtypes import DType
from ..errors import InvalidInput, InvalidProgram
from ..graph.graph import Arg, Graph, Node, Sym, Tensor, Value
from ..limits import copying, tick
from ..ops import REGISTRY
from ..ops.elementwise import ROUND
from ..ops.views import CLONE
from ..passes import REWRITES
from ..plan.device_arrays import to_device
from ..plan.method import Call, Operand, Var, variables


class Joined:
    """A graph with the slots its inputs and outputs stand for."""

    def __init__(self, graph: Graph, inputs: list[Var], outputs: list[Var], dynamic: bool) -> None:
        self.graph, self.inputs, self.outputs, self.dynamic = graph, inputs, outputs, dynamic


def build(name: str, calls: Iterable[Call], needed: list[Var], states: set[Var]) -> Joined:
    """The graph of `calls`. `needed` are the slots read afterwards; `states` live inside the graph."""
    builder = _Builder(name, states)
    for call in calls:
        tick()
        builder.add(call)
    return builder.finish(needed)


class _Builder:
    def __init__(self, name: str, states: set[Var]) -> None:
        self.graph = Graph(name)
        self.states = states
        self.env: dict[Var, Value] = {}
        self.first: dict[Var, Tensor] = {}  # states as they were
        self.inputs: list[Var] = []
        self.count = 0
        self.made: dict[tuple[object, ...], np.ndarray] = {}  # by where they lie in the file, and as what

    def converted(self, var: Var, data: np.ndarray, dtype: DType) -> np.ndarray:
        """A constant as the device has it. Those that lie over each other in the file are converted once."""
        if dtype.device is dtype and data.flags.c_contiguous:
            return data
        key = data.__array_interface__["data"][0], data.shape, data.strides, dtype
        if key not in self.made:
            copying(math.prod(var.sizes) * dtype.device.size)
            try:
                self.made[key] = to_device(data, dtype, var.name)
            except InvalidInput as e:
                raise InvalidProgram(str(e)) from None
        return self.made[key]

    def value(self, var: Var) -> Value:
        """What a slot holds now; its first use makes it an input, a constant or a state."""
        if var in self.env:
            return self.env[var]
        found: Value
        if var.dtype is None:
            found = Sym(var.name)
        elif var in self.states or (var.kind == "constant" and var.data is not None):
            kind = "state" if var in self.states else "constant"
            data = None if var.data is None else self.converted(var, var.data, var.dtype)
            found = Tensor(var.name, var.dtype.device, var.sizes, "state" if kind == "state" else "constant", data)
            if kind == "state":
                self.first[var] = found
        else:
            found = Tensor(var.name, var.dtype.device, var.sizes, "input")
        if isinstance(found, Sym) or found.kind == "input":
            self.graph.inputs.append(found)
            self.inputs.append(var)
        self.env[var] = found
        return found

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
            if not isinstance(tensor, Tensor) or not isinstance(var, Var):
                raise InvalidProgram(f"{call.where}: argument {k} is written, but is not a tensor")
            if tensor.kind in ("input", "constant"):  # never clobbered: the change goes to a copy
                tensor = self.copy(tensor, call.where)
                args[k] = self.env[var] = tensor
            mutated.append(tensor)
        outs: list[Value] = []
        for var in call.outs:
            if var in self.states:
                self.value(var)
            self.count += 1
            fresh: Value = (
                Sym(var.name) if var.dtype is None else Tensor(f"{var.name}.{self.count}", var.dtype.device, var.sizes)
            )
            outs.append(fresh)
            self.env[var] = self.nothing(var) if definition.hollow else fresh
        self.graph.nodes.append(Node(definition, tuple(args), tuple(outs), call.where, tuple(mutated)))
        if any(v.dtype is DType.BF16 for v in call.outs):
            self.round(call)

    def nothing(self, var: Var) -> Value:
        """What a result that no kernel writes holds for whoever looks: zeros."""
        if var.dtype is None:
            return Sym(var.name)
        dtype = var.dtype.device
        return Tensor(f"{var.name}.zeros", dtype, var.sizes, "constant", np.zeros(var.sizes, dtype.numpy))

    def round(self, call: Call) -> None:
        """bfloat16 is float32 on the GPU: results that are not among the operands are rounded, as PyTorch does."""
        given = {v.dtype for v in variables(call.args)} - {None}
        if REGISTRY[call.op].moves and given == {DType.BF16}:
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

    def finish(self, needed: list[Var]) -> Joined:
        graph = self.graph
        for var in needed:
            value = self.env[var]
            if isinstance(value, Tensor) and value.kind in ("state", "input", "constant"):
                value = self.copy(value, "output")
            graph.outputs.append(value)
        graph.writebacks = [
            (old, new) for var, old in self.first.items() if isinstance(new := self.env[var], Tensor) and new is not old
        ]
        for rewrite in REWRITES:
            rewrite(graph)
        dynamic = any(v.dynamic or v.dtype is None for v in self.inputs) or any(n.op.sym for n in graph.nodes)
        return Joined(graph, self.inputs, needed, dynamic)
