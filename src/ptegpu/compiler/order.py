"""The order of a method's calls, and the calls that the host computes before the GPU starts.

A call that only the host can run ends a stretch. Often everything that it depends on is known before the run:
constants, the sizes of the inputs, or ints from the caller (token ids, masks, positions). Such calls and their operands
run first; calls that depend only on constants run once, at load. The rest of a block (calls between two branches) is
ordered so that host and GPU alternate as rarely as the data allows.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..errors import PtegpuError
from ..graph.flat import FlatMethod
from ..limits import may_fold
from ..ops import REGISTRY
from ..plan.device_arrays import as_kernels_read
from ..plan.method import Call, Instruction, Jump, Move, Operand, Var, variables
from ..portable import PORTABLE
from ..portable.host import on_host, run

MAX_EARLY_BYTES = 1 << 28  # of the results of a call that runs early


class Availability(IntEnum):
    """The time at which the host can compute a value, earliest first."""

    AT_LOAD = 0  # from constants
    PER_SIZE = 1  # from the sizes of the inputs and from ints among them
    PER_CALL = 2  # from elements of int and bool inputs
    LATER = 3


def reads(instruction: Instruction) -> list[Var]:
    """Return the slots that an instruction reads."""
    if isinstance(instruction, Call):
        return variables(instruction.args)
    return variables(instruction.condition if isinstance(instruction, Jump) else instruction.source)


def writes(instruction: Instruction) -> list[Var]:
    """Return the slots that an instruction writes."""
    if isinstance(instruction, Call):
        places = REGISTRY[instruction.op].mutates if instruction.op in REGISTRY else ()
        mutated = [v for k in places if k < len(instruction.args) for v in variables(instruction.args[k])]
        return [*instruction.outs, *mutated]
    return [instruction.target] if isinstance(instruction, Move) else []


def arrange(flat: FlatMethod, on_gpu: Sequence[bool]) -> tuple[list[bool], int]:
    """Fold and reorder the code in place.

    `on_gpu` has for each instruction whether the GPU serves it. Return the same for the new code, and how many of its
    first instructions depend on sizes only.
    """
    available, places = levels(flat, on_gpu)
    constant = [k for k, level in enumerate(available) if level is Availability.AT_LOAD and not places[k]]
    folded = _fold_all(flat.code, constant)
    flat.folded += [c for k in sorted(folded) if isinstance(c := flat.code[k], Call)]
    order: list[int] = []
    starts: dict[int, int] = {}  # first instruction of a block → its new position
    for block in _blocks(flat.code):
        starts[block.start] = len(order)
        order += _alternate(flat.code, [k for k in block if k not in folded], places, available)
    starts[len(flat.code)] = len(order)
    ordered = [flat.code[k] for k in order]
    flat.code = [Jump(i.condition, starts[i.target]) if isinstance(i, Jump) else i for i in ordered]
    used = {*(v for i in flat.code for v in reads(i)), *(v for o in flat.outputs for v in variables(o))}
    for v in (v for c in flat.folded for v in c.outs if v not in used):
        v.data = None  # an intermediate result of other constants
    front = next((n for n, k in enumerate(order) if places[k] or available[k] > Availability.PER_SIZE), len(order))
    return [places[k] for k in order], front


def levels(flat: FlatMethod, on_gpu: Sequence[bool]) -> tuple[list[Availability], list[bool]]:
    """Return for each instruction when the host can compute its results, and whether the GPU runs it."""
    available = _available(flat)
    return available, _hoist(flat.code, on_gpu, available)


def replace(flat: FlatMethod, parts: Sequence[Sequence[Instruction]], pure: set[Var]) -> None:
    """Replace each instruction by those in `parts`, without those that only write unused values in `pure`."""
    used = {v for o in flat.outputs for v in variables(o)}
    live: list[list[Instruction]] = []
    for part in reversed(parts):
        live.append([])
        for i in reversed(part):
            if not pure.issuperset(writes(i)) or not writes(i) or not used.isdisjoint(writes(i)):
                live[-1].insert(0, i)
                used.update(reads(i))
    live.reverse()
    starts = [0, *accumulate(map(len, live))]
    code = [i for part in live for i in part]
    flat.code = [Jump(i.condition, starts[i.target]) if isinstance(i, Jump) else i for i in code]


def _blocks(code: Sequence[Instruction]) -> list[range]:
    """Return the basic blocks: runs of instructions that are entered at the first and left at the last."""
    jumps = {k + 1: i.target for k, i in enumerate(code) if isinstance(i, Jump)}
    ends = sorted({0, *jumps, *jumps.values(), len(code)})
    return [range(a, b) for a, b in pairwise(ends)]


def _available(flat: FlatMethod) -> list[Availability]:
    """Return when the host can compute the results of each instruction."""
    written = Counter(v for i in flat.code for v in writes(i))
    levels: dict[Var, Availability] = {}
    for v in flat.inputs:
        if isinstance(v, Var) and not written[v]:
            if v.dtype is None:
                levels[v] = Availability.PER_SIZE
            else:
                levels[v] = Availability.LATER if v.dtype.is_float else Availability.PER_CALL
    entry = next(iter(_blocks(flat.code)), range(0))
    available = []
    for k, instruction in enumerate(flat.code):
        level = Availability.LATER
        if isinstance(instruction, Call) and _repeatable(instruction, written):
            level = _level(instruction, levels, written)
            if level > Availability.AT_LOAD and k not in entry:  # a branch may skip it
                level = Availability.LATER
            levels.update(dict.fromkeys(instruction.outs, level))
        available.append(level)
    return available


def _repeatable(c: Call, written: Counter[Var]) -> bool:
    """Return whether the host can run a call early: its results are small, and nothing else writes them."""
    if not on_host(c) or len(writes(c)) != len(c.outs) or (c.op in PORTABLE and PORTABLE[c.op].random):
        return False
    return all(written[o] == 1 and o.kind == "temp" for o in c.outs) and _nbytes(c.outs) <= MAX_EARLY_BYTES


def _nbytes(values: Sequence[Var]) -> int:
    return sum(math.prod(v.sizes) * v.dtype.size for v in values if v.dtype)


def _level(c: Call, levels: dict[Var, Availability], written: Counter[Var]) -> Availability:
    definition = REGISTRY.get(c.op)
    by_shape = definition is not None and definition.by_shape

    def of(v: Var) -> Availability:
        if v.kind == "constant" and v.data is not None and not written[v]:
            return Availability.AT_LOAD
        if by_shape and v.kind == "input" and v.dtype is not None and not written[v]:
            return Availability.PER_SIZE if v.dynamic else Availability.AT_LOAD
        return levels.get(v, Availability.LATER)

    level = max(map(of, variables(c.args)), default=Availability.AT_LOAD)
    ints_only = all(v.dtype is None or not v.dtype.is_float for v in (*variables(c.args), *c.outs))
    return level if level is not Availability.PER_CALL or ints_only else Availability.LATER


def _hoist(code: Sequence[Instruction], on_gpu: Sequence[bool], available: Sequence[Availability]) -> list[bool]:
    """Return for each instruction whether the GPU runs it: not if it is for the host, or early input of such a call."""
    places = list(on_gpu)
    needed: set[Var] = set()
    for k in range(len(code) - 1, -1, -1):
        if available[k] is not Availability.LATER and (not on_gpu[k] or not needed.isdisjoint(writes(code[k]))):
            places[k] = False
            needed.update(reads(code[k]))
    return places


def _fold_all(code: Sequence[Instruction], places: Sequence[int]) -> set[int]:
    """Compute calls on constants and on each other's results now; return those that succeeded."""
    folded: set[int] = set()
    failed: set[Var] = set()
    for k in places:
        if failed.isdisjoint(reads(code[k])) and _fold(code[k]):
            folded.add(k)
        else:
            failed.update(writes(code[k]))
    return folded


def _fold(instruction: Instruction) -> bool:
    """Compute a call on constants now, and make its results constants; return False if that fails."""
    assert isinstance(instruction, Call)
    if not may_fold(_nbytes(instruction.outs)):
        return False
    try:
        results = run(instruction, [_constant(a) for a in instruction.args])
    except PtegpuError:
        return False  # a run that gets there raises it
    if any(v.dtype is not None and r.shape != v.sizes for v, r in zip(instruction.outs, results, strict=True)):
        return False
    for v, result in zip(instruction.outs, results, strict=True):
        if v.dtype is None:
            v.initial = result
        else:
            v.kind, v.data, v.dynamic = "constant", result, False
    return True


def _constant(operand: Operand) -> Any:
    if isinstance(operand, tuple):
        return [_constant(o) for o in operand]
    if not isinstance(operand, Var):
        return operand
    if operand.dtype is None:
        return operand.initial
    return np.broadcast_to(0, operand.sizes) if operand.data is None else as_kernels_read(operand.data, operand)


def _alternate(
    code: Sequence[Instruction], block: Sequence[int], places: Sequence[bool], available: Sequence[Availability]
) -> list[int]:
    """Return the block in an order that respects the data and rarely alternates between host and GPU, a branch last."""
    waiting, followers = _dependencies(code, block)
    ready: dict[bool, list[tuple[bool, int]]] = {False: [], True: []}

    def add(k: int) -> None:
        heapq.heappush(ready[places[k]], (not places[k] and available[k] > Availability.PER_SIZE, k))

    for k in block:
        if not waiting[k]:
            add(k)
    order: list[int] = []
    turn = False
    while len(order) < len(block):
        turn = turn if ready[turn] else not turn
        while ready[turn]:
            k = heapq.heappop(ready[turn])[1]
            order.append(k)
            for f in followers[k]:
                waiting[f] -= 1
                if not waiting[f]:
                    add(f)
    return order


def _dependencies(code: Sequence[Instruction], block: Sequence[int]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return for each instruction how many must run before it, and which must run after it."""
    before: dict[int, set[int]] = {k: set() for k in block}
    writer: dict[Var, int] = {}
    readers: dict[Var, list[int]] = {}
    for k in block:
        for v in reads(code[k]):
            if v in writer:
                before[k].add(writer[v])
            readers.setdefault(v, []).append(k)
        for v in writes(code[k]):
            before[k].update(j for j in (*readers.get(v, ()), *([writer[v]] if v in writer else ())) if j != k)
            writer[v], readers[v] = k, []
        if isinstance(code[k], Jump):
            before[k].update(j for j in block if j != k)
    followers: dict[int, list[int]] = {k: [] for k in block}
    for k, needed in before.items():
        for j in needed:
            followers[j].append(k)
    return {k: len(needed) for k, needed in before.items()}, followers
