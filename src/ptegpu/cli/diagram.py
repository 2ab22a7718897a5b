"""A method as boxes and arrows: inputs, operators with their constants, states, outputs; knows nothing of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..dtypes import DType
from ..errors import InvalidInput
from ..graph.graph import Arg, Graph, Sym, flatten
from ..graph.graph import Tensor as GraphTensor
from ..graph.linear import Call, Jump, Linear, Move, Operand, Var, variables
from ..ops import REGISTRY
from ..ops.registry import OpDef
from ..runtime.build import Joined
from ..runtime.host import on_host
from ..runtime.partition import Stretch
from .analysis import Analysis, is_joint
from .console import dims

Kind = Literal["input", "output", "state", "operator", "host", "unsupported", "branch"]
Key = Var | GraphTensor | Sym

_SHORT = {DType.F32: "f32", DType.F16: "f16", DType.I32: "i32", DType.I64: "i64", DType.F64: "f64", DType.BF16: "bf16"}


@dataclass(slots=True)
class Box:
    kind: Kind
    label: str
    family: str = ""  # of an operator: the module of the registry that defines it
    details: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    gives: str = ""  # what its arrows carry


@dataclass(slots=True)
class Diagram:
    title: str
    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)  # always to a later box


def diagram(found: Analysis, title: str) -> Diagram:
    """The graphs that would run, in the order of the method's instructions, with what the host does between them."""
    if found.linear is None:
        raise InvalidInput(f"there is no picture of method {found.method.name}: {found.notes[-1]}")
    return _Builder(found, found.linear, title).build()


class _Builder:
    def __init__(self, found: Analysis, linear: Linear, title: str) -> None:
        self.found, self.linear = found, linear
        self.diagram = Diagram(title)
        self.makers: dict[Key, list[int]] = {}  # the boxes a value may come from

    def build(self) -> Diagram:
        for k, value in enumerate(self.linear.inputs):
            if isinstance(value, Var):
                self.makers[value] = [self.add(Box("input", f"input {k}", gives=_var_text(value)))]
        until = 0  # instructions before it may be jumped over
        for k, item in enumerate(self.found.items):
            maybe = item.start < until
            if isinstance(item, Stretch):
                if k in self.found.graphs:
                    self.graph(self.found.graphs[k], maybe)
                else:
                    for call in item.calls:
                        self.call(call, "operator", maybe)
            elif isinstance(item.instruction, Call):
                self.call(item.instruction, "host" if on_host(item.instruction) else "unsupported", maybe)
            elif isinstance(item.instruction, Move):
                sources = [m for v in variables(item.instruction.source) for m in self.sources(v)]
                self.bring(item.instruction.target, sources, maybe)
            elif isinstance(item.instruction, Jump):
                until = max(until, item.instruction.target)
                condition = variables(item.instruction.condition)
                if condition:
                    self.arrows(condition, self.add(Box("branch", "if", details=["the host looks at the condition"])))
        for k, value in enumerate(self.linear.outputs):
            text = _var_text(value) if isinstance(value, Var) else repr(value)
            self.arrows(variables(value), self.add(Box("output", f"output {k}", details=[text])))
        return self.diagram

    def add(self, box: Box) -> int:
        self.diagram.boxes.append(box)
        return len(self.diagram.boxes) - 1

    def arrows(self, values: Iterable[Key], box: int) -> None:
        self.diagram.edges += [(maker, box) for v in values for maker in self.sources(v) if maker != box]

    def sources(self, value: Key) -> list[int]:
        """The boxes of a value's makers; a state that is read gets its box now."""
        if value not in self.makers and not isinstance(value, Sym) and value.kind == "state":
            text = _var_text(value) if isinstance(value, Var) else _tensor_text(value)
            self.makers[value] = [self.add(Box("state", "state", details=[value.name], gives=text))]
        return self.makers.get(value, [])

    def bring(self, value: Key, makers: list[int], maybe: bool) -> None:
        """`makers` give the value from here on; only perhaps, where the instruction may be jumped over."""
        self.makers[value] = [*self.makers.get(value, []), *makers] if maybe else makers

    def call(self, call: Call, kind: Kind, maybe: bool) -> None:
        values = variables(call.args)
        gives = ", ".join(dict.fromkeys(_var_text(o) for o in call.outs))
        constants = [_var_text(v) for v in values if v.kind == "constant"]
        details = [call.where, *(f"argument {k}: {_operand_text(a)}" for k, a in enumerate(call.args))]
        family = _family(REGISTRY[call.op]) if kind == "operator" else ""
        flowing = [v for v in values if v.kind != "constant"]
        known = {v: list(self.sources(v)) for v in flowing}
        box = self.add(Box(kind, short_name(call.op), family, [*details, f"gives {gives}"], constants, gives))
        self.diagram.edges += [(maker, box) for v in flowing for maker in known[v]]
        for out in call.outs:
            self.bring(out, [box], maybe)

    def graph(self, joined: Joined, maybe: bool) -> None:
        graph: Graph = joined.graph
        for var, value in zip(joined.inputs, graph.inputs, strict=True):
            self.makers[value] = self.sources(var)
        for node in graph.nodes:
            values = list(node.values())
            if is_joint(node.name) and node.op.view is not None:
                self.makers[node.outs[0]] = self.sources(values[0])
                continue
            flowing = [v for v in values if isinstance(v, Sym) or v.kind != "constant"]
            constants = [_tensor_text(v) for v in values if isinstance(v, GraphTensor) and v.kind == "constant"]
            gives = ", ".join(dict.fromkeys(_value_text(o) for o in node.outs))
            details = [node.name, *(f"argument {k}: {_argument_text(a)}" for k, a in enumerate(node.args))]
            known = [maker for v in flowing for maker in self.sources(v)]
            label = short_name(node.op.name)
            box = self.add(Box("operator", label, _family(node.op), [*details, f"gives {gives}"], constants, gives))
            self.diagram.edges += [(maker, box) for maker in known]
            for value in (*node.outs, *node.mutates):
                self.makers[value] = [box]
        for state, value in graph.writebacks:
            self.arrows([value], self.add(Box("state", "new state", details=[state.name, _tensor_text(state)])))
        for var, result in zip(joined.outputs, graph.outputs, strict=True):
            self.bring(var, [m for v in flatten((result,)) for m in self.sources(v)], maybe)


def short_name(operator: str) -> str:
    """aten.view_copy.default → view_copy."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "int" else parts[0]


def _family(definition: OpDef) -> str:
    rule = definition.steps or definition.view or definition.sym
    return rule.__module__.rsplit(".", 1)[-1] if rule else ""


def _var_text(v: Var) -> str:
    return f"{dims(v.sizes)} {_SHORT.get(v.dtype, v.dtype.value)}" if v.dtype else "int"


def _tensor_text(t: GraphTensor) -> str:
    return f"{dims(t.max_shape)} {_SHORT.get(t.dtype, t.dtype.value)}"


def _value_text(value: GraphTensor | Sym) -> str:
    return "int" if isinstance(value, Sym) else _tensor_text(value)


def _operand_text(a: Operand) -> str:
    if isinstance(a, Var):
        return f"{a.name}, {_var_text(a)}"
    return _list_text(a, _operand_text) if isinstance(a, tuple) else repr(a)


def _argument_text(a: Arg) -> str:
    if isinstance(a, GraphTensor | Sym):
        return f"{a.name}, {_value_text(a)}"
    return _list_text(a, _argument_text) if isinstance(a, tuple) else repr(a)


def _list_text(items: Sequence[Any], text: Callable[[Any], str]) -> str:
    return f"[{'; '.join(text(item) for item in items)}]"
