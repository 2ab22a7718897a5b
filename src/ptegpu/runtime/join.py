"""The stretches of a method as graphs: what each hands on, which states it keeps to itself. Needs no GPU library."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InvalidProgram
from ..graph.graph import Arg, Sym, Tensor
from ..graph.linear import Call, Jump, Linear, Move, Operand, Var, variables
from ..ops import REGISTRY
from .build import Joined, build
from .partition import Host, Item, Stretch


class Join(NamedTuple):
    """Per stretch, by its position among the items."""

    graphs: dict[int, Joined]
    states: dict[int, set[Var]]  # live inside the graph
    read: dict[int, list[int]]  # positions of the outputs that the host looks at


def join(linear: Linear, items: list[Item]) -> Join:
    """A graph per stretch: what it must hand on, what the host will look at, which states it keeps to itself."""
    touched = [_touched(item) for item in items]
    reads = [_reads(item) for item in items]
    finals = {v for o in linear.outputs for v in variables(o)}
    found = Join({}, {}, {})
    for k, item in enumerate(items):
        if not isinstance(item, Stretch):
            continue
        for c in item.calls:
            _check(c)
        others = [j for j in range(len(items)) if j != k]
        states = {v for v in touched[k] if v.kind == "state" and not any(v in touched[j] for j in others)}
        written = dict.fromkeys(written_by(item))
        wanted = finals.union(*(reads[j] for j in others), _read_first(item))
        needed = [v for v in written if (v not in states and (v in wanted or v.kind == "state")) or v in finals]
        on_host = finals.union(*(reads[j] for j in others if isinstance(items[j], Host)))
        found.states[k] = states
        found.read[k] = [p for p, v in enumerate(needed) if v in on_host]
        found.graphs[k] = build(f"{linear.name}.{k}", item.calls, needed, states)
    return found


def _check(c: Call) -> None:
    """That the operator takes arguments of these kinds, and has results of these: passes and rules rely on it."""
    definition = REGISTRY[c.op]
    try:
        definition.bind([_stand_in(a) for a in c.args])
    except InvalidProgram as e:
        raise InvalidProgram(f"{c.where}: {e}") from None
    scalar = definition.sym is not None
    if any(scalar != (v.dtype is None) for v in c.outs):
        gives, says = ("an int", "a tensor") if scalar else ("a tensor", "an int")
        raise InvalidProgram(f"{c.where} gives {gives}, the program says {says}")
    one = scalar or definition.view is not None or "finish" in definition.wants
    if not c.outs or (one and len(c.outs) > 1):
        raise InvalidProgram(f"{c.where} cannot have {len(c.outs)} results")


def _stand_in(operand: Operand) -> Arg:
    """A value of the kind that the operand will have in a graph."""
    if isinstance(operand, tuple):
        return tuple(_stand_in(o) for o in operand)
    if not isinstance(operand, Var):
        return operand
    return Sym(operand.name) if operand.dtype is None else Tensor(operand.name, operand.dtype.device, operand.sizes)


def written_by(item: Item) -> list[Var]:
    """The slots that get a value there."""
    if isinstance(item, Stretch):
        return [v for c in item.calls for v in (*c.outs, *_mutated(c))]
    i = item.instruction
    return list(i.outs) if isinstance(i, Call) else [i.target] if isinstance(i, Move) else []


def _mutated(c: Call) -> list[Var]:
    return [v for k in REGISTRY[c.op].mutates if k < len(c.args) for v in variables(c.args[k])]


def _reads(item: Item) -> set[Var]:
    if isinstance(item, Stretch):
        return {v for c in item.calls for v in variables(c.args)}
    i = item.instruction
    operand = i.args if isinstance(i, Call) else i.condition if isinstance(i, Jump) else i.source
    return set(variables(operand))


def _touched(item: Item) -> set[Var]:
    return _reads(item) | set(written_by(item))


def _read_first(item: Stretch) -> set[Var]:
    """Slots that the stretch itself reads before it writes them: the next round of a loop needs them."""
    seen: set[Var] = set()
    first: set[Var] = set()
    for c in item.calls:
        first.update(v for v in variables(c.args) if v not in seen)
        seen.update(c.outs)
    return first & seen
