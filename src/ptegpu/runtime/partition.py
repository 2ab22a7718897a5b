"""Which calls of a method run on the GPU together, and which the host runs one by one.

Consecutive calls that the registry serves form a stretch, which becomes one graph and one plan. A stretch ends where
the host must look: at a branch, an item read from a tensor just computed, or an operator that only has a NumPy kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import ON_GPU, DType
from ..errors import UnsupportedProgram
from ..graph.linear import Call, Instruction, Jump, Linear, Move, Operand, Var, variables
from ..ops import REGISTRY, OpDef
from ..portable import PORTABLE, PRIMS

_INT_RESULTS = ("sym_size.int", "aten.sym_size.int", "aten.sym_numel.default", "et_vk.select_as_symint.default")
_EXACT_ON_HOST = (DType.F64, DType.BF16, DType.I16, DType.U16, DType.U32, DType.U64)


@dataclass(slots=True)
class Stretch:
    """Calls that become one graph; `start` is the first one's place in the code."""

    start: int
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Host:
    start: int
    instruction: Instruction


Item = Stretch | Host


def branches(item: Item) -> bool:
    """Whether what comes after it may not run."""
    return isinstance(item, Host) and isinstance(item.instruction, Jump)


def mutates(op: str) -> tuple[int, ...]:
    """Positions of the arguments that an operator writes in place."""
    return REGISTRY[op].mutates if op in REGISTRY else ()


def partition(linear: Linear) -> list[Item]:
    """Cut a method into stretches and host instructions; UnsupportedProgram lists all operators that neither serves."""
    items, unsupported = cut(linear)
    if unsupported:
        listed = "\n".join(f"  {count:4} × {what}" for what, count in sorted(unsupported.items()))
        raise UnsupportedProgram(f"method {linear.name} uses operators that ptegpu does not have:\n{listed}")
    return items


def cut(linear: Linear) -> tuple[list[Item], Counter[str]]:
    """Stretches and host instructions, and the calls among the latter that no kernel serves, described and counted."""
    ints = _int_scalars(linear)
    leaders = {i.target for i in linear.code if isinstance(i, Jump)}
    items: list[Item] = []
    stretch: Stretch | None = None
    written: set[Var] = set()
    unsupported: Counter[str] = Counter()
    for k, instruction in enumerate(linear.code):
        on_gpu = isinstance(instruction, Call) and joins(instruction, ints)
        if isinstance(instruction, Call) and not on_gpu and not on_host(instruction):
            unsupported[describe(instruction)] += 1
        if not on_gpu:
            items.append(Host(k, instruction))
            stretch = None
            continue
        assert isinstance(instruction, Call)
        reads_item = "data" in REGISTRY[instruction.op].wants and instruction.args[0] in written
        if stretch is None or k in leaders or reads_item:
            stretch = Stretch(k)
            items.append(stretch)
            written = set()
        stretch.calls.append(instruction)
        written.update(instruction.outs)
    return [part for item in items for part in _without_scalars(item)], unsupported


def _without_scalars(item: Item) -> list[Item]:
    """A stretch that only computes scalars has nothing for the GPU to do."""
    if isinstance(item, Host) or not all(REGISTRY[c.op].sym and on_host(c) for c in item.calls):
        return [item]
    return [Host(item.start + k, c) for k, c in enumerate(item.calls)]


def joins(call: Call, ints: set[Var]) -> bool:
    """Whether the GPU's registry serves this call, with these dtypes, exactly."""
    definition = REGISTRY.get(call.op)
    if definition is None:
        return False
    if definition.sym is not None:
        if not all(_int_like(a, ints) for a in call.args):
            return False
        return "data" not in definition.wants or _dtype(call.args[0]) in (DType.I32, DType.I64)
    tensors = [v for v in (*variables(call.args), *call.outs) if v.dtype is not None]
    if any(v.dtype in _EXACT_ON_HOST or v.dtype.device not in ON_GPU for v in tensors):  # type: ignore[union-attr]
        return False
    if any(v.dtype is None and v not in ints for v in variables(call.args)):
        return False
    if any(v.dtype is DType.I64 for v in tensors) and not _exact_in_32_bits(call, definition):
        return False
    first = next((v.dtype.device for v in tensors if v.dtype), None)
    return (not definition.dtypes or first in definition.dtypes) and definition.takes(call.args)


def _exact_in_32_bits(call: Call, definition: OpDef) -> bool:
    """int64 values that came in range stay in range if they are only moved; what a float becomes may be out of it."""
    source = _dtype(call.args[0]) if call.args else None
    from_float = source is not None and source.is_float and call.outs[0].dtype is DType.I64
    scalars = [call.args[k] for k in definition.numbers if k < len(call.args)]
    too_wide = any(map(_beyond_int32, (*scalars, *variables(call.args))))
    return definition.wide and not too_wide and not (from_float and definition.view is not None)


def _beyond_int32(operand: Operand) -> bool:
    """Whether a literal or a constant has a value that int32 has not."""
    known = operand.data if isinstance(operand, Var) and operand.dtype is DType.I64 else operand
    if isinstance(known, np.ndarray):
        return bool(known.size) and not (known.min() >= -(2**31) and known.max() < 2**31)
    return isinstance(known, int) and not -(2**31) <= known < 2**31


def _dtype(operand: Operand) -> DType | None:
    return operand.dtype if isinstance(operand, Var) else None


def _int_like(operand: Operand, ints: set[Var]) -> bool:
    if isinstance(operand, Var):
        return operand.dtype is not None or operand in ints
    return isinstance(operand, bool | int) or (isinstance(operand, float) and operand.is_integer())


def _int_scalars(linear: Linear) -> set[Var]:
    """Scalar slots that hold ints: sizes, items of int tensors, int inputs, and int arithmetic on these."""
    ints = {v for v in linear.inputs if isinstance(v, Var) and v.dtype is None}
    for instruction in linear.code:
        if isinstance(instruction, Call) and instruction.outs and instruction.outs[0].dtype is None:
            known = instruction.op in _INT_RESULTS or (
                instruction.op in REGISTRY
                and REGISTRY[instruction.op].sym is not None
                and all(_int_like(a, ints) for a in instruction.args)
                and _dtype(instruction.args[0]) in (None, DType.I32, DType.I64)
            )
            if known:
                ints.update(instruction.outs)
        elif isinstance(instruction, Move) and _int_like(instruction.source, ints):
            ints.add(instruction.target)
    return ints


def on_host(call: Call) -> bool:
    """Whether there is a NumPy kernel or a primitive for it."""
    return call.op in PORTABLE or call.op in PRIMS


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
