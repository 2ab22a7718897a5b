"""A method as boxes and arrows: inputs, operators with their constants, states and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Literal

from ..compiler import Cut, Stretch, StretchGraph
from ..dtypes import DType
from ..errors import InvalidInput
from ..graph.graph import Graph, Sym, flatten
from ..graph.graph import Tensor as GraphTensor
from ..graph.schema import Schema
from ..ops import REGISTRY
from ..ops.lookup import schema_of
from ..ops.registry import OpDef
from ..plan import Call, Jump, Move, Var, variables
from ..portable.host import on_host
from ..units import dims, number
from .analysis import Analysis, is_joint
from .palette import group

Kind = Literal["input", "output", "state", "operator", "host", "unsupported", "branch"]
Key = Var | GraphTensor | Sym


@dataclass(slots=True)
class Box:
    kind: Kind
    label: str
    group: str = ""  # of an operator, see `palette`
    details: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    value_text: str = ""  # of its outgoing arrows
    ints: bool = False  # its arrows carry only symbolic ints


@dataclass(slots=True)
class Diagram:
    title: str
    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)  # always to a later box


def diagram(analysis: Analysis, title: str) -> Diagram:
    """Return the graphs that would run and the host steps between them, in the order of the method's instructions."""
    if analysis.cut is None:
        raise InvalidInput(f"cannot draw method {analysis.method.name}: {analysis.notes[-1]}")
    return _DiagramBuilder(analysis, analysis.cut, title).build()


class _DiagramBuilder:
    def __init__(self, analysis: Analysis, cut: Cut, title: str) -> None:
        self.analysis, self.cut = analysis, cut
        self.diagram = Diagram(title)
        self.makers: dict[Key, list[int]] = {}  # the boxes that a value may come from

    def build(self) -> Diagram:
        for k, value in enumerate(self.cut.flat.inputs):
            if isinstance(value, Var):
                self.makers[value] = [self.add(Box("input", f"input {k}", value_text=_text(value)))]
        until = 0  # instructions before this one may be skipped by a jump
        branch: int | None = None  # the box that decides whether they run
        for k, item in enumerate(self.cut.items):
            maybe, first = item.start < until, len(self.diagram.boxes)
            if isinstance(item, Stretch):
                self.graph(self.cut.graphs[k], maybe)
            elif isinstance(item.instruction, Call):
                self.call(item.instruction, "host" if on_host(item.instruction) else "unsupported", maybe)
            elif isinstance(item.instruction, Move):
                sources = [m for v in variables(item.instruction.source) for m in self.sources(v)]
                self.bring(item.instruction.target, sources, maybe)
            elif isinstance(item.instruction, Jump):
                until = max(until, item.instruction.target)
                condition = variables(item.instruction.condition)
                if condition:
                    branch = self.add(Box("branch", "if", details=["the host evaluates the condition"], ints=True))
                    self.arrows(condition, branch)
                    continue
            guarded = [k for k in range(first, len(self.diagram.boxes)) if self.diagram.boxes[k].kind != "state"]
            if maybe and branch is not None and guarded:
                self.diagram.edges.append((branch, guarded[0]))
        for k, value in enumerate(self.cut.flat.outputs):
            text = _text(value) if isinstance(value, Var) else repr(value)
            self.arrows(variables(value), self.add(Box("output", f"output {k}", value_text=text)))
        return self.diagram

    def add(self, box: Box) -> int:
        self.diagram.boxes.append(box)
        return len(self.diagram.boxes) - 1

    def arrows(self, values: Iterable[Key], box: int) -> None:
        self.diagram.edges += [(maker, box) for v in values for maker in self.sources(v) if maker != box]

    def sources(self, value: Key) -> list[int]:
        """Return the boxes that make a value; a state gets its box when it is first read."""
        if value not in self.makers and not isinstance(value, Sym) and value.kind == "state":
            self.makers[value] = [self.add(Box("state", "state", details=[value.name], value_text=_text(value)))]
        return self.makers.get(value, [])

    def bring(self, value: Key, makers: list[int], maybe: bool) -> None:
        """Record that `makers` make the value from here on, or may make it if the instruction may be skipped."""
        self.makers[value] = [*self.makers.get(value, []), *makers] if maybe else makers

    def call(self, call: Call, kind: Kind, maybe: bool) -> None:
        makers = [maker for v in variables(call.args) if v.kind != "constant" for maker in self.sources(v)]
        reason = self.analysis.reasons.get(call, "")
        args = with_names(schema_of(call.op), call.args)
        box = self.operator(kind, call.op, (), call.where, args, call.outs, reason)
        self.diagram.edges += [(maker, box) for maker in makers]
        for out in call.outs:
            self.bring(out, [box], maybe)

    def operator(
        self,
        kind: Kind,
        name: str,
        families: Iterable[str],
        where: str,
        args: Sequence[tuple[str, Any]],
        outs: Sequence[Key],
        reason: str = "",
    ) -> int:
        """Add the box of an operator, with its constants by parameter name and its results."""
        counts = Counter(_text(o) for o in outs if not _is_empty(o)) or Counter(map(_text, outs))
        texts = [text if n == 1 else f"{n} of {text}" for text, n in counts.items()]
        constants = [_constant_text(name, v) for name, a in args for v in _values(a) if _is_constant(v)]
        details = [where, *([f"on the host: {reason}"] if reason else [])]
        details += [f"{name}: {_argument_text(a)}" for name, a in args]
        details.append(f"gives {', '.join(texts)}")
        ints = all(isinstance(o, Sym) or (isinstance(o, Var) and o.dtype is None) for o in outs)
        shown = group(families) if kind == "operator" else ""
        return self.add(Box(kind, short_name(name), shown, details, constants, ", ".join(texts), ints))

    def graph(self, joined: StretchGraph, maybe: bool) -> None:
        graph: Graph = joined.graph
        for var, value in zip(joined.inputs, graph.inputs, strict=True):
            self.makers[value] = self.sources(var)
        for node in graph.nodes:
            values = list(node.values())
            if is_joint(node.name) and node.op.view is not None:
                self.makers[node.outs[0]] = self.sources(values[0])
                continue
            makers = [maker for v in values if not _is_constant(v) for maker in self.sources(v)]
            families = _families(node.op)
            args = with_names(node.op, node.args)
            box = self.operator("operator", node.op.name, families, node.name, args, node.outs)
            self.diagram.edges += [(maker, box) for maker in makers]
            for value in (*node.outs, *node.mutates):
                self.makers[value] = [box]
        for state, value in graph.writebacks:
            self.arrows([value], self.add(Box("state", "new state", details=[state.name], value_text=_text(state))))
        for var, result in zip(joined.outputs, graph.outputs, strict=True):
            self.bring(var, [m for v in flatten((result,)) for m in self.sources(v)], maybe)


def short_name(operator: str) -> str:
    """Shorten a name: aten.view_copy.default → view_copy; sym_size.int → sym_size; fused(mm+mul+mul) → mm + mul ×2."""
    if (parts := _joined(operator)) is not None:
        runs = [(name, len(list(same))) for name, same in groupby(parts)]
        return " + ".join(name if n == 1 else f"{name} ×{n}" for name, n in runs)
    parts = operator.split(".")
    if len(parts) == 2:
        return parts[parts[0] == "aten"]  # aten.sym_numel has no overload
    return parts[-2] if len(parts) > 2 else operator


def _joined(operator: str) -> list[str] | None:
    """Return the short names of the operators that a pass fused into one."""
    joined = operator.startswith("fused(") and operator.endswith(")")
    return operator[len("fused(") : -1].split("+") if joined else None


def with_names(schema: Schema | None, args: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return arguments with the names of their parameters, or with numbers if the operator is unknown."""
    if schema is None:
        return [(f"argument {k}", a) for k, a in enumerate(args)]
    return [(p.name, a) for p, a in zip(schema.parameters, schema.place(args))]


def _family(definition: OpDef) -> str:
    return definition.rule.__module__.rsplit(".", 1)[-1]


@cache
def _by_short_name() -> Mapping[str, str]:
    return {short_name(name): _family(definition) for name, definition in REGISTRY.items()}


def _families(definition: OpDef) -> list[str]:
    """Return the family of an operator, or of each operator that a pass fused into it."""
    parts = _joined(definition.name)
    return [_family(definition)] if parts is None else [_by_short_name().get(part, "") for part in parts]


def _values(a: Any) -> list[Key]:
    if isinstance(a, tuple):
        return [v for item in a for v in _values(item)]
    return [a] if isinstance(a, Var | GraphTensor | Sym) else []


def _is_constant(value: Key) -> bool:
    return not isinstance(value, Sym) and value.kind == "constant"


def _is_empty(value: Key) -> bool:
    """Return whether a result has no elements: operators declare results that they do not compute."""
    return not isinstance(value, Sym) and 0 in (value.sizes if isinstance(value, Var) else value.max_shape)


def _text(value: Key) -> str:
    """Format shape and dtype: 1×256×64 f32; ≤ 1×256 i64 for upper bounds; int."""
    if isinstance(value, Sym) or value.dtype is None:
        return "int"
    sizes = value.sizes if isinstance(value, Var) else value.max_shape
    limit = "≤ " if isinstance(value, Var) and value.dynamic else ""
    return f"{limit}{dims(sizes)} {_short_type(value.dtype)}"


def _constant_text(name: str, value: Key) -> str:
    """Format a constant: weight 256×64 f32; a single number is written out."""
    data = None if isinstance(value, Sym) else value.data
    if data is None or data.size != 1 or isinstance(value, Sym) or value.dtype is DType.BF16:
        return f"{name} {_text(value)}"
    return f"{name} = {number(data.item())}"


def _short_type(dtype: DType) -> str:
    return dtype.value.replace("bfloat", "bf").replace("float", "f").replace("uint", "u").replace("int", "i")


def _argument_text(a: Any) -> str:
    if isinstance(a, Var | GraphTensor | Sym):
        return f"{a.name}, {_text(a)}"
    return f"[{'; '.join(map(_argument_text, a))}]" if isinstance(a, tuple) else repr(a)
