"""Which calls of a method run on the GPU together, and which the host runs one by one.

Consecutive calls that have a GPU kernel form a stretch, which becomes one graph and one plan. A stretch ends where the
host has to act: at a branch, an item read from a tensor just computed, or an operator that only has a NumPy kernel.
First, `order.py` reorders the calls so that there are few stretches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import ON_GPU, DType
from ..errors import InvalidProgram, UnsupportedProgram
from ..graph.flat import FlatMethod
from ..graph.graph import Arg, Sym, Tensor
from ..limits import tick
from ..ops import REGISTRY, OpDef
from ..ops.lookup import facts_of, operands, schema_of
from ..ops.spans import Span, fits, of_dtype, spans
from ..plan.method import Call, Instruction, Jump, Move, Operand, Var, variables
from ..portable.host import on_host
from .order import arrange, levels, writes
from .position_tables import tabulate

_EXACT_ON_HOST = (DType.F64, DType.I16, DType.U16, DType.U32, DType.U64)


@dataclass(slots=True)
class Stretch:
    """Calls that become one graph; `start` is the first one's place in the code."""

    start: int
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Host:
    """One instruction; `by_size` if its results are the same in every call with inputs of the same sizes."""

    start: int
    instruction: Instruction
    by_size: bool = False


Item = Stretch | Host


def mutates(op: str) -> tuple[int, ...]:
    """Positions of the arguments that an operator writes in place."""
    return REGISTRY[op].mutates if op in REGISTRY else ()


def partition(flat: FlatMethod) -> list[Item]:
    """Cut a method into stretches and host instructions; UnsupportedProgram lists all operators that neither serves."""
    items, unsupported = cut(flat)
    if unsupported:
        listed = (f"  {count:4} × {what}" for what, count in sorted(unsupported.items()))
        raise UnsupportedProgram(f"method {flat.name} uses operators that ptegpu does not have:", *listed)
    return items


def cut(flat: FlatMethod) -> tuple[list[Item], Counter[str]]:
    """Stretches and host instructions, and the calls among the latter that no kernel serves, described and counted.

    What depends on constants alone is computed here, and the rest of the code put into a better order.
    """
    places = places_of(flat)
    if tabulate(flat, *levels(flat, places)):
        places = places_of(flat)
    places, front = arrange(flat, places)
    leaders = {i.target for i in flat.code if isinstance(i, Jump)}
    items: list[Item] = []
    stretch: Stretch | None = None
    unsupported: Counter[str] = Counter()
    for k, (instruction, on_gpu) in enumerate(zip(flat.code, places, strict=True)):
        if not on_gpu:
            if isinstance(instruction, Call) and not on_host(instruction):
                unsupported[describe(instruction)] += 1
            items.append(Host(k, instruction, k < front))
            stretch = None
            continue
        assert isinstance(instruction, Call)
        if stretch is None or k in leaders:
            stretch = Stretch(k)
            items.append(stretch)
        stretch.calls.append(instruction)
    return [part for item in items for part in _without_scalars(item)], unsupported


def places_of(flat: FlatMethod) -> list[bool]:
    """Of each instruction, whether the GPU serves it. int64 that the host computed may not fit 32 bits afterwards."""
    for i in flat.code:
        if isinstance(i, Call):
            _check(i)
    facts = ValueBounds(flat)
    while True:
        tick()
        known, places = len(facts.unproved), []
        for i in flat.code:
            places.append(isinstance(i, Call) and joins(i, facts))
            if not places[-1]:
                facts.unproved |= {v for v in writes(i) if v.dtype is DType.I64 and not fits(facts.span(v))}
        if len(facts.unproved) == known:
            return places


def _check(call: Call) -> None:
    """That the operator takes arguments of these kinds, and has results of these: all that follows relies on it."""
    schema, definition = schema_of(call.op), REGISTRY.get(call.op)
    try:
        if schema is not None:
            schema.bind(stand_ins(call.args)[0])
    except InvalidProgram as e:
        raise InvalidProgram(f"{call.where}: {e}") from None
    if definition is None:
        return
    scalar = definition.sym is not None
    if any(scalar != (v.dtype is None) for v in call.outs):
        gives, says = ("an int", "a tensor") if scalar else ("a tensor", "an int")
        raise InvalidProgram(f"{call.where} gives {gives}, the program says {says}")
    one = scalar or definition.view is not None or definition.role == "product"
    if not call.outs or (one and len(call.outs) > 1):
        raise InvalidProgram(f"{call.where} cannot have {len(call.outs)} results")


class ValueBounds:
    """The bounds of a method's values, as far as they are known without running it."""

    def __init__(self, flat: FlatMethod) -> None:
        self.ints = _int_scalars(flat)
        self.written = Counter(v for i in flat.code for v in writes(i))
        self.unproved: set[Var] = set()  # int64 that the host computes and that may not fit 32 bits
        self._spans: dict[Var, Span | None] = {}
        for i in flat.code:
            if isinstance(i, Call):
                facts = facts_of(i.op)
                found = spans(facts.span, facts.places, operands(i), i.outs, self.span)
                self._spans |= {
                    v: s for v, s in zip(i.outs, found, strict=True) if self.written[v] == 1 and v.kind == "temp"
                }

    def span(self, operand: Operand) -> Span | None:
        """The least and the greatest value that it can have; None if nothing bounds it."""
        if isinstance(operand, Var):
            if operand in self._spans:
                return self._spans[operand]
            known = operand.data if operand.kind == "constant" and not self.written[operand] else None
            if known is not None and known.size and operand.dtype is not None and not operand.dtype.is_float:
                return int(known.min()), int(known.max())
            return of_dtype(operand.dtype)
        whole = isinstance(operand, int) or (isinstance(operand, float) and operand.is_integer())
        return (int(operand), int(operand)) if whole else None  # type: ignore[arg-type]


def _without_scalars(item: Item) -> list[Item]:
    """A stretch that only computes scalars has nothing for the GPU to do."""
    if isinstance(item, Host) or not all(REGISTRY[c.op].sym and on_host(c) for c in item.calls):
        return [item]
    return [Host(item.start + k, c) for k, c in enumerate(item.calls)]


def joins(call: Call, facts: ValueBounds) -> bool:
    """Whether the GPU's registry serves this call, with these dtypes, exactly."""
    definition = REGISTRY.get(call.op)
    if definition is None:
        return False
    if definition.sym is not None:
        if not all(_int_like(a, facts.ints) for a in call.args):
            return False
        return definition.by_shape or _readable(call.args[0], facts.written)
    tensors = [v for v in (*variables(call.args), *call.outs) if v.dtype is not None]
    if any(v.dtype in _EXACT_ON_HOST or v.dtype.device not in ON_GPU for v in tensors):  # type: ignore[union-attr]
        return False
    if any(v.dtype is None and v not in facts.ints for v in variables(call.args)):
        return False
    if any(v.dtype is DType.I64 for v in tensors) and not _exact_in_32_bits(call, definition, facts):
        return False
    doubtful = facts.unproved.intersection(variables(call.args))
    if doubtful and on_host(call) and not doubtful <= _indices(call, definition):
        return False
    first = next((v.dtype.device for v in tensors if v.dtype), None)
    return (not definition.dtypes or first in definition.dtypes) and definition.takes(stand_ins(call.args)[0])


def _readable(operand: Operand, written: Counter[Var]) -> bool:
    """Whether the host has the elements of an int tensor before a stretch runs."""
    known = isinstance(operand, Var) and operand.kind != "state" and not written[operand]
    return known and _dtype(operand) in (DType.I32, DType.I64)


def _indices(call: Call, definition: OpDef) -> set[Var]:
    """The slots that are nothing but indices of this call: what does not fit 32 bits is out of range there too."""
    args, tensors = stand_ins(call.args)
    bounded = [b.values for b in definition.bounds(args)]
    uses = Counter(variables(call.args))
    return {v for v, t in tensors.items() if uses[v] == sum(b is t for b in bounded)}


def stand_ins(operands: Sequence[Operand]) -> tuple[list[Arg], dict[Var, Tensor]]:
    """Values of the kinds that the operands will have, as declared, and the tensors among them by slot."""
    tensors: dict[Var, Tensor] = {}

    def stand_in(operand: Operand) -> Arg:
        if isinstance(operand, tuple):
            return tuple(map(stand_in, operand))
        if not isinstance(operand, Var):
            return operand
        if operand.dtype is None:
            return Sym(operand.name)
        return tensors.setdefault(operand, Tensor(operand.name, operand.dtype, operand.sizes))

    return [stand_in(o) for o in operands], tensors


def _exact_in_32_bits(call: Call, definition: OpDef, facts: ValueBounds) -> bool:
    """int64 values that came in range stay in range if they are only moved, or if the result is proved to be.

    What a float becomes may be out of it.
    """
    if not definition.wide:
        involved = [a for a in call.args if isinstance(a, Var | int | float)]
        return definition.span is not None and all(fits(facts.span(v)) for v in (*involved, *call.outs))
    source = _dtype(call.args[0]) if call.args else None
    from_float = source is not None and source.is_float and call.outs[0].dtype is DType.I64
    whole = not any(t.is_float for v in (*variables(call.args), *call.outs) if (t := v.dtype) is not None)
    numbers = [n for n in definition.numbers(call.args) if whole or not isinstance(n, float)]
    too_wide = any(map(_beyond_int32, (*numbers, *variables(call.args))))
    return not too_wide and not (from_float and definition.view is not None)


def _beyond_int32(operand: Operand) -> bool:
    """Whether a literal or a constant has a value that does not fit int32."""
    known = operand.data if isinstance(operand, Var) and operand.dtype is DType.I64 else operand
    if isinstance(known, np.ndarray):
        return bool(known.size) and not (known.min() >= -(2**31) and known.max() < 2**31)
    return isinstance(known, int | float) and not -(2**31) <= known < 2**31


def _dtype(operand: Operand) -> DType | None:
    return operand.dtype if isinstance(operand, Var) else None


def _int_like(operand: Operand, ints: set[Var]) -> bool:
    if isinstance(operand, Var):
        return operand.dtype is not None or operand in ints
    return isinstance(operand, bool | int) or (isinstance(operand, float) and operand.is_integer())


def _int_scalars(flat: FlatMethod) -> set[Var]:
    """Scalar slots that hold ints: sizes, items of int tensors, int inputs, and int arithmetic on these."""
    ints = {v for v in flat.inputs if isinstance(v, Var) and v.dtype is None}
    for instruction in flat.code:
        if isinstance(instruction, Call) and instruction.outs and instruction.outs[0].dtype is None:
            definition = REGISTRY.get(instruction.op)
            if definition is None or definition.sym is None:
                continue
            given = all(_int_like(a, ints) for a in instruction.args)
            if definition.whole or (given and _dtype(instruction.args[0]) in (None, DType.I32, DType.I64)):
                ints.update(instruction.outs)
        elif isinstance(instruction, Move) and _int_like(instruction.source, ints):
            ints.add(instruction.target)
    return ints


def describe(call: Call) -> str:
    """An operator with the dtypes and shapes of a call of it, for messages."""
    shown = ", ".join(_show(a) for a in call.args)
    return f"{call.op}({shown})"


def _show(a: Operand) -> str:
    if isinstance(a, Var):
        return f"{a.dtype.value}{list(a.sizes)}" if a.dtype else "int"
    if isinstance(a, tuple):
        return f"[{', '.join(map(_show, a))}]"
    return repr(a)
