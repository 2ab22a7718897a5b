"""The partition of a method into stretches for the GPU and instructions for the host.

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
from ..errors import InvalidProgram, PtegpuError, UnsupportedProgram
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
    """Calls that become one graph; `start` is the position of the first in the code."""

    start: int
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HostStep:
    """One instruction; `by_size` if its results are the same in every call with inputs of the same sizes."""

    start: int
    instruction: Instruction
    by_size: bool = False


Part = Stretch | HostStep


def mutates(op: str) -> tuple[int, ...]:
    """Return the positions of the arguments that an operator writes in place."""
    return REGISTRY[op].mutates if op in REGISTRY else ()


def partition(flat: FlatMethod) -> list[Part]:
    """Return a method's stretches and host steps; raise UnsupportedProgram with all unsupported operators."""
    parts, unsupported = cut(flat)
    if unsupported:
        listed = (f"  {count:4} × {what}" for what, count in sorted(unsupported.items()))
        raise UnsupportedProgram(f"method {flat.name} uses operators that ptegpu does not have:", *listed)
    return parts


def cut(flat: FlatMethod) -> tuple[list[Part], Counter[str]]:
    """Return a method's stretches and host steps, and its unsupported calls, described and counted.

    Calls that only depend on constants are computed here, and the rest of the code is reordered.
    """
    places = places_of(flat)
    if tabulate(flat, *levels(flat, places)):
        places = places_of(flat)
    places, front = arrange(flat, places)
    leaders = {i.target for i in flat.code if isinstance(i, Jump)}
    parts: list[Part] = []
    stretch: Stretch | None = None
    unsupported: Counter[str] = Counter()
    for k, (instruction, on_gpu) in enumerate(zip(flat.code, places, strict=True)):
        if not on_gpu:
            if isinstance(instruction, Call) and not on_host(instruction):
                unsupported[describe(instruction)] += 1
            parts.append(HostStep(k, instruction, k < front))
            stretch = None
            continue
        assert isinstance(instruction, Call)
        if stretch is None or k in leaders:
            stretch = Stretch(k)
            parts.append(stretch)
        stretch.calls.append(instruction)
    return [step for part in parts for step in _without_scalars(part)], unsupported


def places_of(flat: FlatMethod) -> list[bool]:
    """Return for each instruction whether the GPU serves it. int64 that the host computes may not fit 32 bits."""
    for i in flat.code:
        if isinstance(i, Call):
            _check_kinds(i)
    facts = ValueBounds(flat)
    while True:
        tick()
        before, places = len(facts.unproved), []
        for i in flat.code:
            places.append(isinstance(i, Call) and runs_on_gpu(i, facts))
            if not places[-1]:
                facts.unproved |= {v for v in writes(i) if v.dtype is DType.I64 and not fits(facts.span(v))}
        if len(facts.unproved) == before:
            return places


def check_dims(flat: FlatMethod, path: str | None) -> None:
    """Raise InvalidProgram for a symbolic int of a constant dimension or element that a tensor lacks at its largest.

    Such a call fails at every size, so it is refused when the program is loaded.
    """
    for call in (i for i in flat.code if isinstance(i, Call) and len(i.args) > 1 and not variables(i.args[1:])):
        definition, first = REGISTRY.get(call.op), call.args[0]
        if definition is None or definition.sym is None or Tensor not in definition.parameters[0].kinds:
            continue
        if isinstance(first, Var) and first.dtype is not None:
            try:
                definition.sym(*definition.bind(stand_ins(call.args)[0]))
            except PtegpuError as e:
                raise InvalidProgram(f"{call.where}: {e}", path=path) from None


def _check_kinds(call: Call) -> None:
    """Raise InvalidProgram unless the operator takes such arguments and has such results, as all later code assumes."""
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
        result, declared = ("an int", "a tensor") if scalar else ("a tensor", "an int")
        raise InvalidProgram(f"{call.where} gives {result}, the program says {declared}")
    single = scalar or definition.view is not None or definition.role == "product"
    if not call.outs or (single and len(call.outs) > 1):
        raise InvalidProgram(f"{call.where} cannot have {len(call.outs)} results")


class ValueBounds:
    """The bounds of a method's values that are known without running it."""

    def __init__(self, flat: FlatMethod) -> None:
        self.ints = _int_scalars(flat)
        self.written = Counter(v for i in flat.code for v in writes(i))
        self.unproved: set[Var] = set()  # int64 that the host computes and that may not fit 32 bits
        self._spans: dict[Var, Span | None] = {}
        for i in flat.code:
            if isinstance(i, Call):
                facts = facts_of(i.op)
                ranges = zip(i.outs, spans(facts.span, facts.places, operands(i), i.outs, self.span), strict=True)
                self._spans |= {v: s for v, s in ranges if self.written[v] == 1 and v.kind == "temp"}

    def span(self, operand: Operand) -> Span | None:
        """Return the smallest and the largest value of an operand; None if nothing bounds it."""
        if isinstance(operand, Var):
            if operand in self._spans:
                return self._spans[operand]
            data = operand.data if operand.kind == "constant" and not self.written[operand] else None
            if data is not None and data.size and operand.dtype is not None and not operand.dtype.is_float:
                return int(data.min()), int(data.max())
            return of_dtype(operand.dtype)
        if isinstance(operand, int) or (isinstance(operand, float) and operand.is_integer()):
            return int(operand), int(operand)
        return None


def _without_scalars(part: Part) -> list[Part]:
    """Return the host steps for a stretch that only computes scalars; other parts stay as they are."""
    if isinstance(part, HostStep) or not all(REGISTRY[c.op].sym and on_host(c) for c in part.calls):
        return [part]
    return [HostStep(part.start + k, c) for k, c in enumerate(part.calls)]


def runs_on_gpu(call: Call, facts: ValueBounds) -> bool:
    """Return whether the GPU serves this call, with these dtypes, exactly."""
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
    unproved = facts.unproved.intersection(variables(call.args))
    if unproved and on_host(call) and not unproved <= _indices(call, definition):
        return False
    first = next((v.dtype.device for v in tensors if v.dtype), None)
    return (not definition.dtypes or first in definition.dtypes) and definition.takes(stand_ins(call.args)[0])


def _readable(operand: Operand, written: Counter[Var]) -> bool:
    """Return whether the host has the elements of an int tensor before a stretch runs."""
    early = isinstance(operand, Var) and operand.kind != "state" and not written[operand]
    return early and _dtype(operand) in (DType.I32, DType.I64)


def _indices(call: Call, definition: OpDef) -> set[Var]:
    """Return the slots that are only indices of this call, where values beyond 32 bits are out of range anyway."""
    args, tensors = stand_ins(call.args)
    bounded = [b.values for b in definition.bounds(args)]
    uses = Counter(variables(call.args))
    return {v for v, t in tensors.items() if uses[v] == sum(b is t for b in bounded)}


def stand_ins(operands: Sequence[Operand]) -> tuple[list[Arg], dict[Var, Tensor]]:
    """Return graph values like the declared operands, and the tensors among them by slot."""
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
    """Return whether int64 values that fit 32 bits still do in the result: moved only, or with a proved range.

    A float may become any int64.
    """
    if not definition.wide:
        operands = [a for a in call.args if isinstance(a, Var | int | float)]
        return definition.span is not None and all(fits(facts.span(v)) for v in (*operands, *call.outs))
    source = _dtype(call.args[0]) if call.args else None
    from_float = source is not None and source.is_float and call.outs[0].dtype is DType.I64
    ints_only = not any(t.is_float for v in (*variables(call.args), *call.outs) if (t := v.dtype) is not None)
    numbers = [n for n in definition.numbers(call.args) if ints_only or not isinstance(n, float)]
    too_wide = any(map(_beyond_int32, (*numbers, *variables(call.args))))
    return not too_wide and not (from_float and definition.view is not None)


def _beyond_int32(operand: Operand) -> bool:
    """Return whether a literal or a constant has a value that does not fit int32."""
    value = operand.data if isinstance(operand, Var) and operand.dtype is DType.I64 else operand
    if isinstance(value, np.ndarray):
        return bool(value.size) and not (value.min() >= -(2**31) and value.max() < 2**31)
    return isinstance(value, int | float) and not -(2**31) <= value < 2**31


def _dtype(operand: Operand) -> DType | None:
    return operand.dtype if isinstance(operand, Var) else None


def _int_like(operand: Operand, ints: set[Var]) -> bool:
    if isinstance(operand, Var):
        return operand.dtype is not None or operand in ints
    return isinstance(operand, bool | int) or (isinstance(operand, float) and operand.is_integer())


def _int_scalars(flat: FlatMethod) -> set[Var]:
    """Return the slots of ints: sizes, elements of int tensors, int inputs, and int arithmetic on these."""
    ints = {v for v in flat.inputs if isinstance(v, Var) and v.dtype is None}
    for instruction in flat.code:
        if isinstance(instruction, Call) and instruction.outs and instruction.outs[0].dtype is None:
            definition = REGISTRY.get(instruction.op)
            if definition is None or definition.sym is None:
                continue
            int_args = all(_int_like(a, ints) for a in instruction.args)
            if definition.whole or (int_args and _dtype(instruction.args[0]) in (None, DType.I32, DType.I64)):
                ints.update(instruction.outs)
        elif isinstance(instruction, Move) and _int_like(instruction.source, ints):
            ints.add(instruction.target)
    return ints


def describe(call: Call) -> str:
    """Return a call's operator with the dtypes and shapes of its arguments, for messages."""
    return f"{call.op}({', '.join(map(_show, call.args))})"


def _show(a: Operand) -> str:
    if isinstance(a, Var):
        return f"{a.dtype.value}{list(a.sizes)}" if a.dtype else "int"
    if isinstance(a, tuple):
        return f"[{', '.join(map(_show, a))}]"
    return repr(a)
