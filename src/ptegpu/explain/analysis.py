"""A program examined without running it: where each operator would run, its plans and their memory.

Needs no GPU and no GPU library. Unsupported or missing parts are noted; a broken file is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..compiler import Cut, Stretch, ValueBounds, cut_method, named_data, plan_methods, runs_on_gpu
from ..dtypes import DType
from ..errors import InvalidInput, InvalidProgram, LimitExceeded, UnsupportedProgram
from ..format import DelegateCall, FileMethod, FileTensor, KernelCall, ProgramFile
from ..format.delegate import BlobGraph, BlobTensor, read_delegate
from ..graph.importer import BACKENDS, NamedData
from ..graph.names import functional
from ..ops import REGISTRY
from ..plan import Call, CompiledMethod, Operand, Target, Var, variables
from ..portable import PORTABLE, PRIMS
from ..portable.host import on_host

GPU, SHAPES, HOST, UNSUPPORTED = "GPU", "shapes", "host", "unsupported"
BROWSER = Target()
UNLIMITED = replace(BROWSER, name="a GPU without limits", max_binding_bytes=1 << 48, max_buffer_bytes=1 << 48)


@dataclass(slots=True)
class Analysis:
    """The analysis of a method. `cut` is None if a backend is unknown; operators are then judged by name."""

    method: FileMethod
    blobs: dict[int, BlobGraph] = field(default_factory=dict)  # delegates that can be read
    cut: Cut | None = None
    outer: CompiledMethod | None = None  # planned for the limits that every browser grants, if they suffice
    operators: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (name, where it runs, why on the host)
    reasons: dict[Call, str] = field(default_factory=dict)  # why the host runs a call
    unsupported: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def stored(self, kind: str) -> list[Var]:
        """Return the constants or states that the method's calls touch."""
        code = self.cut.flat.code if self.cut else []
        touched = (v for c in code if isinstance(c, Call) for v in (*variables(c.args), *c.outs))
        return list(dict.fromkeys(v for v in touched if v.kind == kind))


def analyse(program: ProgramFile, method: FileMethod, data: Sequence[Path]) -> Analysis:
    """Cut and plan a method."""
    analysis = Analysis(method)
    for k, delegate in enumerate(method.delegates):
        if delegate.id in BACKENDS:
            analysis.blobs[k] = read_delegate(delegate.blob, base=delegate.offset, path=program.path)
    constants = named_data(program, data)
    missing = _missing(analysis, constants)
    if missing:
        names = ", ".join(sorted(missing)[:3]) + (" …" if len(missing) > 3 else "")
        analysis.notes.append(
            f"{len(missing)} constants are in none of the files, and taken as zeros; pass --data ({names})"
        )
    try:
        analysis.cut = cut_method(method, {**constants, **missing}, program.path, unsupported=analysis.unsupported)
    except (UnsupportedProgram, InvalidInput) as e:
        analysis.notes += e.args
        _judge_by_name(analysis)
        return analysis
    _judge(analysis, analysis.cut)
    try:
        analysis.outer = plan_methods({method.name: analysis.cut}, BROWSER)[0][method.name]
    except LimitExceeded as e:
        analysis.notes.append(f"too large for a browser's limits: {e}")
        analysis.outer = plan_methods({method.name: analysis.cut}, UNLIMITED)[0][method.name]
    return analysis


def _missing(analysis: Analysis, constants: NamedData) -> dict[str, memoryview]:
    """Return zeros for the named data that no file has; memory that is never read costs nothing."""
    sizes: dict[str, int] = {}
    for value in analysis.method.values:
        if isinstance(value, FileTensor) and value.key is not None:
            sizes[value.key] = max(value.nbytes, sizes.get(value.key, 0))
    for blob in analysis.blobs.values():
        for v in blob.values:
            constant = blob.constants[v.constant] if isinstance(v, BlobTensor) and v.constant >= 0 else None
            if constant is not None and constant.key is not None:
                sizes[constant.key] = max(constant.nbytes, sizes.get(constant.key, 0))
    return {key: _zeros(key, nbytes) for key, nbytes in sizes.items() if key not in constants}


def _zeros(key: str, nbytes: int) -> memoryview:
    try:
        return np.zeros(nbytes, np.uint8).data
    except (MemoryError, ValueError):
        raise InvalidProgram(f"the named data {key!r} would have {nbytes:,} bytes") from None


def _judge(analysis: Analysis, cut: Cut) -> None:
    bounds = ValueBounds(cut.flat)
    for once in cut.flat.folded:
        if not is_joint(once.where):
            analysis.operators[once.op, HOST, "once, at load"] += 1
    for item in cut.items:
        calls = item.calls if isinstance(item, Stretch) else [item.instruction]
        for call in calls:
            if not isinstance(call, Call) or is_joint(call.where):
                continue
            where = _where(call.op) if isinstance(item, Stretch) else HOST if on_host(call) else UNSUPPORTED
            if where is HOST:
                analysis.reasons[call] = why_on_host(call, lambda c: runs_on_gpu(c, bounds))
            analysis.operators[call.op, where, analysis.reasons.get(call, "")] += 1


def why_on_host(call: Call, serves: Callable[[Call], bool]) -> str:
    """Return why the host runs a call: what keeps the GPU from running it."""
    definition = REGISTRY.get(call.op)
    if all(out.dtype is None for out in call.outs):
        source = call.args[0] if call.args else None
        reads = definition is not None and definition.reads
        if reads and isinstance(source, Var) and source.dtype is not None:
            return f"reads an item of a {source.dtype.value} tensor"
        return "numbers only, nothing for a GPU to do"
    if definition is None:
        return "no GPU kernel"
    if serves(call):
        return "another host step needs its result"
    types = list(dict.fromkeys(v.dtype for v in (*variables(call.args), *call.outs) if v.dtype))
    if DType.I64 in types and serves(_with_types(call, {DType.I64: DType.I32})):
        return "int64, exact only on the host"
    for dtype in types:
        usual = DType.F32 if dtype.is_float else DType.I32
        if dtype is not usual and serves(_with_types(call, {DType.I64: DType.I32, dtype: usual})):
            return f"{dtype.value}, which its GPU kernel does not take"
    first = types[0] if types else None
    if first is not None and definition.dtypes and first.device not in definition.dtypes:
        return f"{first.value}, which its GPU kernel does not take"
    if any(v.dtype is None for v in variables(call.args)) and serves(_with_types(call, {None: DType.I32})):
        return "a number that is known only at run time and is not an int"
    return "arguments that its GPU kernel does not take"


def _with_types(call: Call, types: Mapping[DType | None, DType]) -> Call:
    """Return the call with other dtypes and without constant data. A scalar (None) becomes a literal."""

    def other(operand: Operand) -> Operand:
        if isinstance(operand, tuple):
            return tuple(map(other, operand))
        if not isinstance(operand, Var) or operand.dtype not in types:
            return operand
        return 1 if operand.dtype is None else replace(operand, dtype=types[operand.dtype], data=None)

    outs = [other(out) for out in call.outs]
    return Call(call.op, tuple(map(other, call.args)), tuple(o for o in outs if isinstance(o, Var)), call.where)


def is_joint(where: str) -> bool:
    """Return whether a call only joins a delegate to its surroundings."""
    return where.startswith(("input of ", "output of "))


def _where(operator: str) -> str:
    """Return where an operator runs, judging by its name alone."""
    if operator in REGISTRY:
        return SHAPES if REGISTRY[operator].sym is not None else GPU
    return HOST if operator in PORTABLE or operator in PRIMS else UNSUPPORTED


def _judge_by_name(analysis: Analysis) -> None:
    names: list[str] = []
    for chain in analysis.method.chains:
        for instruction in chain:
            if isinstance(instruction, KernelCall):
                names.append(functional(instruction.operator))
            elif isinstance(instruction, DelegateCall):
                blob = analysis.blobs.get(instruction.delegate)
                backend = analysis.method.delegates[instruction.delegate].id
                names += [c.operator for c in blob.calls] if blob else [f"backend {backend}"]
    for name in names:
        where = _where(name)
        analysis.operators[name, where, "no GPU kernel" if where is HOST else ""] += 1
        if where is UNSUPPORTED:
            analysis.unsupported[name] += 1


def memory_bytes(outer: CompiledMethod) -> Mapping[str, int] | None:
    """Return the GPU bytes of constants, states, inputs and activations; None if the GPU runs nothing."""
    if not outer.plans:
        return None
    constants: dict[str, int] = {}
    totals = dict.fromkeys(("constants", "states", "inputs", "activations"), 0)
    for buffer in (b for plan in outer.plans for b in plan.buffers):
        if buffer.role == "constant":
            constants[buffer.name] = buffer.nbytes
        else:
            totals[{"state": "states", "input": "inputs"}.get(buffer.role, "activations")] += buffer.nbytes
    totals["constants"] = sum(constants.values())
    return totals | {"total": sum(totals.values())}
