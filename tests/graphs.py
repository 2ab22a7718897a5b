"""Graphs written by hand, one call per node, for the tests of `graph`, `passes` and `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError
from ptegpu.graph.graph import Arg, Graph, Sym, Tensor, Value, flatten
from ptegpu.graph.graph import Node as GraphNode
from ptegpu.graph.shape_rules import evaluate
from ptegpu.ops.pointwise import pointwise
from ptegpu.ops.registry import REGISTRY, OpDef, Out, Parameter, Steps
from ptegpu.passes.memory import Memory
from ptegpu.plan.plan import Plan
from ptegpu.plan.target import Target


def _overwrite(cache: Tensor, x: Tensor, *, target: Target) -> Steps:
    yield Out((1,))
    yield pointwise("copy", "a", [x], cache, target)


# Overwrites its first argument with its second, in place. Like `update_cache`, it has a meaningless result.
OVERWRITE = OpDef(
    "test.overwrite",
    (Parameter("cache"), Parameter("x")),
    frozenset({"target"}),
    steps=_overwrite,
    mutates=(0,),
)


class Sketch:
    """A graph that grows node by node; the operators' rules give the shapes of results."""

    def __init__(self, name: str = "g") -> None:
        self.graph = Graph(name)
        self.count = 0

    def _name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def input(self, *shape: int, dtype: DType = DType.F32) -> Tensor:
        tensor = Tensor(self._name("x"), dtype, shape, "input")
        self.graph.inputs.append(tensor)
        return tensor

    def sym(self, value: int = 0) -> Sym:
        """Add a symbolic int to the inputs."""
        sym = Sym(self._name("s"), value)
        self.graph.inputs.append(sym)
        return sym

    def constant(self, array: np.ndarray) -> Tensor:
        return Tensor(self._name("c"), DType.of(array.dtype), array.shape, "constant", array)

    def state(self, *shape: int, data: np.ndarray | None = None, dtype: DType = DType.F32) -> Tensor:
        return Tensor(self._name("state"), dtype, shape, "state", data)

    def node(self, op: str | OpDef, *args: Arg, dtype: DType | Sequence[DType] | None = None) -> Value:
        """Apply an operator and return its first result, of the first tensor's dtype unless `dtype` is passed."""
        definition = REGISTRY[op] if isinstance(op, str) else op
        outs: tuple[Value, ...]
        if definition.sym is not None:
            outs = (Sym(self._name("s")),)
        else:
            first = next((v.dtype for v in flatten(args) if isinstance(v, Tensor)), DType.F32)
            dtypes = (dtype or first,) if isinstance(dtype, DType | None) else tuple(dtype)
            tensors = [Tensor(self._name("t"), d, ()) for d in dtypes]
            for t, shape in zip(tensors, definition.infer(args, tensors), strict=True):
                t.max_shape = t.shape = shape
            outs = tuple(tensors)
        mutated = tuple(t for k in definition.mutates if isinstance(t := args[k], Tensor))
        self.graph.nodes.append(
            GraphNode(definition, args, outs, f"{definition.name} #{len(self.graph.nodes)}", mutated)
        )
        return outs[0]

    def tensor(self, op: str | OpDef, *args: Arg, dtype: DType | Sequence[DType] | None = None) -> Tensor:
        """Apply an operator whose result is a tensor."""
        out = self.node(op, *args, dtype=dtype)
        assert isinstance(out, Tensor)
        return out

    def returns(self, *values: Arg) -> Graph:
        self.graph.outputs.extend(values)
        return self.graph


def settle(graph: Graph) -> None:
    """Run every shape rule once from the maximum shapes, to check a graph of fixed shapes."""

    def no_item(tensor: Tensor, element: int) -> int:
        raise ExecutionError(f"{tensor.name} has no data before the run")

    for node in graph.nodes:
        if node.op.sym is None:
            outs = [o for o in node.outs if isinstance(o, Tensor)]
            for out, shape in zip(outs, evaluate(node, no_item), strict=True):
                assert isinstance(shape, tuple)
                out.shape = shape


def plan_of(graph: Graph, target: Target | None = None) -> tuple[Plan, Memory]:
    """Return the graph's plan and its memory layout."""
    planner = Planner(graph, target or Target()).cover()
    return planner.plan(), planner.memory


def engine_of(graph: Graph, gpu: Any, *, cover: bool = True) -> Any:
    """Return a plan runner for inputs of any size; with `cover`, trace all sizes now, otherwise on demand."""
    from ptegpu.gpu import SharedConstants
    from ptegpu.runtime.runner import PlanRunner

    planner = Planner(graph, gpu.target, [True] * len(graph.inputs))
    if cover:
        planner.cover()

    def extend(shapes: Sequence[Any], item: Any) -> Plan:
        planner.extend(shapes, item)
        return planner.plan()

    return PlanRunner(planner.plan(), gpu, SharedConstants(), extend)
