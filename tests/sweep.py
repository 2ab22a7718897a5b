"""Cases with one field changed: the dtype, a dimension or the rank of a tensor or a result, a scalar, the number of
arguments. Each is a program of one call, planned and run under poison (`python -m tools.sweep` runs them all).

It must give results that do not depend on memory outside its buffers, or raise one of the errors in `ALLOWED`.
"""

from __future__ import annotations

import math
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ptegpu.compiler.partition import partition
from ptegpu.compiler.program import Cut, plan_methods
from ptegpu.compiler.stretches import join
from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, InvalidInput, InvalidProgram, LimitExceeded, PtegpuError, UnsupportedProgram
from ptegpu.gpu import SharedConstants
from ptegpu.graph.flat import FlatMethod
from ptegpu.graph.graph import Tensor
from ptegpu.ops.ragged import ATTEND
from ptegpu.ops.registry import REGISTRY, OpDef, Out
from ptegpu.plan.method import Call, Operand, Var
from ptegpu.plan.target import Target
from ptegpu.portable import PORTABLE
from ptegpu.runtime.method import MethodRunner
from tests.cases import Case, S, T, declared
from tests.poison import accesses

ALLOWED = (InvalidProgram, UnsupportedProgram, LimitExceeded, InvalidInput, ExecutionError)
DTYPES = (DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64, DType.F16, DType.F32, DType.F64)
SCALARS = (0, 1, -1, 3, 2**40, -(2**63), 0.5, math.inf, math.nan, None, True, "x", (), (1, 1, 1))
SECONDS = 10  # of processor time for one change


@dataclass(frozen=True)
class Changed:
    """A call with one change; `agreeing` if its declared results follow the rule's."""

    what: str
    case: Case
    outs: tuple[T, ...]
    agreeing: bool = False


class Slow(Exception):
    """A change that takes too long."""


def changes(case: Case, eager: Sequence[np.ndarray]) -> Iterator[Changed]:
    """Yield all changes of a case; `eager` are PyTorch's results, then the final values of mutated arguments."""
    results = eager[: len(eager) - len(case.mutated)]
    outs = tuple(T(e.shape, declared(case, e)) for e in results)
    yield Changed("", case, outs)
    for what, args in _trees(case.args, "argument "):
        changed = replace(case, args=tuple(args))
        yield Changed(what, changed, outs)
        yield Changed(f"{what}, agreeing", changed, outs, agreeing=True)
    for n in range(len(case.args)):
        yield Changed(f"{n} arguments", replace(case, args=case.args[:n]), outs)
    yield Changed("an argument more", replace(case, args=(*case.args, 1)), outs)
    for what, tensors in _trees(outs, "result "):
        if all(isinstance(t, T) for t in tensors):
            yield Changed(what, case, tuple(tensors))
    yield Changed("a result less", case, outs[:-1])
    yield Changed("a result more", case, (*outs, outs[0]))


def _trees(items: Sequence[Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    for k, item in enumerate(items):
        for what, new in _values(item, f"{name}{k}"):
            yield what, [*items[:k], new, *items[k + 1 :]]


def _values(item: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield replacements for an argument."""
    if isinstance(item, T):
        for what, t in _tensors(item):
            yield f"{name} {what}", t
        yield f"{name} is 1", 1
        yield f"{name} is None", None
        return
    if isinstance(item, list | tuple):
        for what, new in _trees(item, f"{name}."):
            yield what, type(item)(new)
        yield f"{name} shorter", item[:-1]
        yield f"{name} longer", (*item, *item[-1:], *([1] if not item else []))
    for value in SCALARS:
        if not (value == item and type(value) is type(item)):
            yield f"{name} is {value!r}", value


def _tensors(t: T) -> Iterator[tuple[str, T]]:
    for dtype in DTYPES:
        if dtype is not t.dtype:
            yield dtype.value, replace(t, dtype=dtype)
    shape = t.shape
    shapes = [
        (*shape[:k], m, *shape[k + 1 :]) for k, n in enumerate(shape) for m in (n - 1, n + 1, 0, 2 * n) if 0 <= m != n
    ]
    shapes += [(1, *shape), (*shape, 1), shape[1:], shape[:-1], (2, *shape)]
    for other in dict.fromkeys(s for s in shapes if s != shape):
        yield str(list(other)), replace(t, shape=other, limit=None)


def method_of(changed: Changed) -> tuple[FlatMethod, list[Any]]:
    """Return a method of one call, and its inputs."""
    case, rng = changed.case, np.random.default_rng(0)
    definition = REGISTRY[case.op]
    variables: list[Var] = []
    inputs: list[Any] = []

    def operand(a: Any, position: int) -> Operand:
        if isinstance(a, list | tuple):
            return tuple(operand(x, position) for x in a)
        if isinstance(a, S):
            variables.append(Var(f"input {len(variables)}", None, kind="input"))
            inputs.append(a.value)
            return variables[-1]
        if not isinstance(a, T):
            return a  # type: ignore[no-any-return]
        values = _made(a, rng)
        if a.constant or position in definition.mutates:
            kind = "state" if position in definition.mutates else "constant"
            return Var(f"v{position}", a.dtype, a.shape, kind=kind, data=values)  # type: ignore[arg-type]
        variables.append(Var(f"input {len(variables)}", a.dtype, a.limit or a.shape, a.limit is not None, "input"))
        inputs.append(values)
        return variables[-1]

    args = tuple(operand(a, k) for k, a in enumerate(case.args))
    outs = [Var(f"out{k}", t.dtype, t.shape) for k, t in enumerate(changed.outs)]
    if changed.agreeing:
        _agree(definition, args, outs)
    dynamic = any(v.dynamic for v in variables)
    for v in outs:
        v.dynamic = dynamic
    if definition.sym is not None:
        outs = [Var(v.name, None) for v in outs]
    call = Call(case.op, args, tuple(outs), f"{case.op} #0")
    return FlatMethod("forward", variables, list(outs), [call]), inputs


def _made(t: T, rng: np.random.Generator) -> np.ndarray:
    if t.values is not None:
        with np.errstate(all="ignore"):
            return np.resize(np.array(t.values), t.shape).astype(t.dtype.numpy)
    if not t.dtype.is_float and math.ceil(t.low) >= math.ceil(t.high):  # a range of floats without an int
        t = replace(t, low=math.floor(t.low), high=math.floor(t.low) + 2)
    return t.make(rng)


def _agree(definition: OpDef, args: Sequence[Operand], outs: Sequence[Var]) -> None:
    """Declare the results that the rule infers from these arguments, until it fails."""
    from ptegpu.compiler.partition import stand_ins

    tensors = [Tensor(v.name, v.dtype.device, v.sizes) for v in outs if v.dtype is not None]
    for t in (stood := stand_ins(args))[1].values():
        t.dtype = t.dtype.device
    try:
        if definition.view is not None:
            outs[0].sizes = tuple(definition.view(*definition.bind(stood[0])))
            return
        if definition.steps is None:
            return
        steps = definition.steps(*definition.bind(stood[0]), **definition.extras(Target(), tensors))
        step = next(steps)
        for v, t in zip(outs, tensors, strict=True):
            if not isinstance(step, Out):
                return
            if step.dtype is not None and v.dtype is not None and v.dtype.device is not step.dtype:
                v.dtype = t.dtype = step.dtype
            shape = tuple(map(int, step.shape))
            if min(shape, default=0) >= 0 and math.prod(shape) <= 1 << 22:
                v.sizes = t.max_shape = t.shape = shape
            step = steps.send(t)
    except Exception:
        return


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise Slow if a block exceeds `seconds` of processor time or 20 times that of real time; main thread only."""

    def late(*_: object) -> None:
        raise Slow(f"more than {seconds} s")

    clocks = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 20 * seconds))
    before = [signal.signal(number, late) for _, number, _ in clocks]
    for clock, _, most in clocks:
        signal.setitimer(clock, most)
    try:
        yield
    finally:
        for (clock, number, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


def _is_race(case: Case) -> bool:
    """Return True for rows of one sequence that are said to be of different ones: some may see the keys of others."""
    rows = case.args[5] if case.op == ATTEND and len(case.args) > 7 and case.args[7] == 1 else None
    sequences = rows.values[::2] if isinstance(rows, T) and rows.values else ()
    return len(set(sequences)) < len(sequences)


def judged(e: Exception) -> tuple[str, str]:
    """Return an error's name and message; the name starts with "wrong: " unless a file may cause the error."""
    if isinstance(e, ALLOWED):
        return type(e).__name__, str(e)
    if isinstance(e, PtegpuError):
        return f"wrong: {type(e).__name__}", str(e)
    if isinstance(e, Slow):
        return "wrong: slow", str(e)
    at = traceback.extract_tb(e.__traceback__)[-1]
    return f"wrong: {type(e).__name__}", f"{at.filename.rsplit('/', 1)[-1]}:{at.lineno}: {e}"


def outcome(changed: Changed, device: Any, seconds: int = SECONDS) -> tuple[str, str]:
    """Run a change; return "ran", the name of an allowed error, or "wrong: …", and the message."""
    try:
        with within(seconds):
            flat, inputs = method_of(changed)
            items = partition(flat)
            outers, _ = plan_methods({"forward": Cut(flat, items, join(flat, items))}, device.target)
            random = ((k := PORTABLE.get(changed.case.op)) is not None and k.random) or _is_race(changed.case)

            def run(after: Any) -> list[Any]:
                method = MethodRunner(outers["forward"])
                try:
                    method.open(device, SharedConstants())
                    results = method.execute(inputs)
                    after()
                    return [] if random else results
                finally:
                    method.close()

            _, wrong = accesses(device, run)
    except Exception as e:
        return judged(e)
    return ("wrong: outside", "; ".join(wrong)) if wrong else ("ran", "")
