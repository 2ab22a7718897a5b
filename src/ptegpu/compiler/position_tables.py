"""What the host would compute for each set of sizes becomes a constant, if smaller sizes see the beginning of it.

So are tables of relative positions: computed once, exactly, by the host. What is left is a slice on the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ..errors import PtegpuError
from ..graph.flat import FlatMethod
from ..limits import may_fold
from ..ops import REGISTRY
from ..ops.lookup import facts_of, operands
from ..ops.moves import SLICE
from ..ops.prefix_stable import Dims
from ..ops.spans import fits
from ..plan.device_arrays import seen
from ..plan.method import Call, Operand, Var, variables
from ..portable.host import run
from .order import Known, reads, replace

LARGEST = 1 << 24  # bytes of a table: a larger one is computed for the sizes of a call


def tabulate(flat: FlatMethod, known: Sequence[Known], on_gpu: Sequence[bool]) -> bool:
    """Replace what depends on sizes only, and is for the host, where that is possible; whether it was anywhere."""
    tables = _Tables()
    for k, i in enumerate(flat.code):
        if isinstance(i, Call) and len(i.outs) == 1 and known[k] <= Known.PER_SIZE and (not on_gpu[k] or _scalar(i)):
            tables.add(i, known[k])
    others = [k for k, i in enumerate(flat.code) if not (isinstance(i, Call) and i in tables.calls)]
    early = {v for k in others if known[k] <= Known.PER_SIZE and not on_gpu[k] for v in reads(flat.code[k])}
    wanted = {v for k in others for v in reads(flat.code[k])} - early
    wanted |= {v for o in flat.outputs for v in variables(o)}
    made = {c: slices for c in tables.calls if c.outs[0] in wanted and (slices := tables.slices(c)) is not None}
    if made:
        parts = [made.get(i, [i]) if isinstance(i, Call) else [i] for i in flat.code]
        replace(flat, parts, set(tables.makers))
    return bool(made)


def _scalar(call: Call) -> bool:
    return call.op in REGISTRY and REGISTRY[call.op].by_shape


def _prefix(table: Var, dims: Dims, out: Var, where: str) -> list[Call]:
    """Return calls that leave the beginning of a table in `out`."""
    live = [(k, d) for k, d in enumerate(dims) if isinstance(d, Var)]
    calls = []
    for n, (k, size) in enumerate(live, 1):
        target = out if n == len(live) else Var(f"{out.name}.{n}", out.dtype, out.sizes, dynamic=True)
        calls.append(Call(SLICE, (table, k, 0, size, 1), (target,), where))
        table = target
    return calls


class _Tables:
    """Prefix-stable values, and what they are at the largest sizes."""

    def __init__(self) -> None:
        self.dims: dict[Var, Dims] = {}
        self.makers: dict[Var, Call] = {}
        self.places: dict[Var, int] = {}  # of the makers, in the code
        self.calls: dict[Call, None] = {}  # whose results have live sizes
        self.scalars: dict[Hashable, Var] = {}  # the first of those that are computed the same way, of each
        self.most: dict[Var, int] = {}  # of scalars that are sizes
        self.values: dict[Var, Any] = {}

    def add(self, call: Call, known: Known) -> None:
        out = call.outs[0]
        self.makers[out], self.places[out] = call, len(self.places)
        if out.dtype is None:
            if facts_of(call.op).copies(call.args) and isinstance(same := self.same(call.args[0]), Var):
                self.scalars[out] = same
            elif _scalar(call):
                self.scalars[out] = self.scalars.setdefault((call.op, *map(self._key, call.args)), out)
            return
        if known is Known.AT_LOAD:
            self.dims[out] = out.sizes
            return
        rule = facts_of(call.op).prefix
        dims = rule(operands(call), out, self.of, self.same) if rule else None
        if dims is None or len(dims) != len(out.sizes) or not any(isinstance(d, Var) for d in dims):
            return
        if all(n == (self.most.setdefault(d, n) if isinstance(d, Var) else d) for d, n in zip(dims, out.sizes)):
            self.dims[out] = dims
            self.calls[call] = None

    def _key(self, operand: Operand) -> Hashable:
        return tuple(map(self._key, operand)) if isinstance(operand, tuple) else (type(operand), self.same(operand))

    def same(self, operand: Operand) -> Operand:
        return self.scalars.get(operand, operand) if isinstance(operand, Var) else operand

    def of(self, operand: Operand) -> Dims | None:
        if not isinstance(operand, Var):
            return None if variables(operand) else ()
        if operand.kind == "constant" and operand.data is not None:
            return operand.sizes
        return self.dims.get(operand)

    def slices(self, call: Call) -> list[Call] | None:
        """Calls that give its result from a constant; None if it is too large, or not for the GPU."""
        out = call.outs[0]
        assert out.dtype is not None
        if math.prod(out.sizes) * out.dtype.size > LARGEST:
            return None
        try:
            value = self._value(out)
        except PtegpuError:
            return None  # the run says what is wrong, if it comes there
        if value is None or (value.dtype == np.int64 and value.size and not fits((int(value.min()), int(value.max())))):
            return None
        table = Var(f"{out.name}.table", out.dtype, out.sizes, kind="constant", data=value, narrowed=out.narrowed)
        return _prefix(table, self.dims[out], out, call.where)

    def _value(self, out: Var) -> np.ndarray | None:
        """At the largest sizes; None if that is too much to compute."""
        needed: set[Var] = set()
        waiting = [out]
        while waiting:
            v = waiting.pop()
            if v in self.dims and v not in self.values and v not in needed:
                needed.add(v)
                waiting += variables(self.makers[v].args)
        for v in sorted(needed, key=self.places.__getitem__):
            self.values[v] = self._computed(self.makers[v])
        return self.values[out]

    def _computed(self, call: Call) -> np.ndarray | None:
        (out,) = call.outs
        assert out.dtype is not None
        missing = any(self._known(v) is None for v in variables(call.args))
        if missing or not may_fold(math.prod(out.sizes) * out.dtype.size):
            return None
        (found,) = run(call, [self._known(a) for a in call.args])
        return found if found.shape == out.sizes else None

    def _known(self, operand: Operand) -> Any:
        """What an argument is at the largest sizes; None if that was not computed."""
        if isinstance(operand, tuple):
            return [self._known(o) for o in operand]
        if not isinstance(operand, Var):
            return operand
        if operand.kind == "constant" and operand.data is not None:
            return seen(operand.data, operand)
        size = self.most.get(self.scalars.get(operand, operand))
        return self.values.get(operand) if size is None else size
