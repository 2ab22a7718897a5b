"""Tables that replace host computations of sizes: constants for the largest sizes, which the GPU slices.

A result qualifies if smaller sizes give a prefix of it, like tables of relative positions. The host computes it once,
exactly, when the program is compiled.
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
from ..plan.device_arrays import as_kernels_read
from ..plan.method import Call, Operand, Var, variables
from ..portable.host import run
from .order import Availability, reads, replace

MAX_TABLE_BYTES = 1 << 24  # larger results are computed for the sizes of each call


def tabulate(flat: FlatMethod, available: Sequence[Availability], on_gpu: Sequence[bool]) -> bool:
    """Replace host calls that depend on sizes only by slices of tables; return True if any was replaced."""
    tables = _Tables()
    for k, i in enumerate(flat.code):
        early = available[k] <= Availability.PER_SIZE
        if isinstance(i, Call) and len(i.outs) == 1 and early and (not on_gpu[k] or _scalar(i)):
            tables.add(i, available[k])
    others = [k for k, i in enumerate(flat.code) if not (isinstance(i, Call) and i in tables.calls)]
    host = [k for k in others if available[k] <= Availability.PER_SIZE and not on_gpu[k]]
    used = {v for k in others for v in reads(flat.code[k])} - {v for k in host for v in reads(flat.code[k])}
    used |= {v for o in flat.outputs for v in variables(o)}
    slices = {c: calls for c in tables.calls if c.outs[0] in used and (calls := tables.slices(c)) is not None}
    if slices:
        parts = [slices.get(i, [i]) if isinstance(i, Call) else [i] for i in flat.code]
        replace(flat, parts, set(tables.writers))
    return bool(slices)


def _scalar(call: Call) -> bool:
    return call.op in REGISTRY and REGISTRY[call.op].by_shape


def _prefix(table: Var, dims: Dims, out: Var, where: str) -> list[Call]:
    """Return calls that write a prefix of a table to `out`."""
    live = [(k, d) for k, d in enumerate(dims) if isinstance(d, Var)]
    calls = []
    for n, (k, size) in enumerate(live, 1):
        target = out if n == len(live) else Var(f"{out.name}.{n}", out.dtype, out.sizes, dynamic=True)
        calls.append(Call(SLICE, (table, k, 0, size, 1), (target,), where))
        table = target
    return calls


class _Tables:
    """Prefix-stable results, and their values at the largest sizes."""

    def __init__(self) -> None:
        self.dims: dict[Var, Dims] = {}
        self.writers: dict[Var, Call] = {}  # in the order of the code
        self.calls: dict[Call, None] = {}  # calls whose results have live sizes
        self.scalars: dict[Hashable, Var] = {}  # for each scalar or computation, the first equal scalar
        self.largest: dict[Var, int] = {}  # for scalars that are sizes
        self.values: dict[Var, Any] = {}

    def add(self, call: Call, available: Availability) -> None:
        out = call.outs[0]
        self.writers[out] = call
        if out.dtype is None:
            if facts_of(call.op).copies(call.args) and isinstance(same := self.same(call.args[0]), Var):
                self.scalars[out] = same
            elif _scalar(call):
                self.scalars[out] = self.scalars.setdefault((call.op, *map(self._key, call.args)), out)
            return
        if available is Availability.AT_LOAD:
            self.dims[out] = out.sizes
            return
        rule = facts_of(call.op).prefix
        dims = rule(operands(call), out, self.of, self.same) if rule else None
        if dims is None or len(dims) != len(out.sizes) or not any(isinstance(d, Var) for d in dims):
            return
        if all(n == (self.largest.setdefault(d, n) if isinstance(d, Var) else d) for d, n in zip(dims, out.sizes)):
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
        """Return calls that compute a call's result from a constant; None if it is too large, or not for the GPU."""
        out = call.outs[0]
        assert out.dtype is not None
        if math.prod(out.sizes) * out.dtype.size > MAX_TABLE_BYTES:
            return None
        try:
            value = self._value(out)
        except PtegpuError:
            return None  # a run that gets there raises it
        if value is None or (value.dtype == np.int64 and value.size and not fits((int(value.min()), int(value.max())))):
            return None
        table = Var(f"{out.name}.table", out.dtype, out.sizes, kind="constant", data=value, narrowed=out.narrowed)
        return _prefix(table, self.dims[out], out, call.where)

    def _value(self, out: Var) -> np.ndarray | None:
        """Return a result at the largest sizes; None if that is too much to compute."""
        needed: set[Var] = set()
        queue = [out]
        while queue:
            v = queue.pop()
            if v in self.dims and v not in self.values and v not in needed:
                needed.add(v)
                queue += variables(self.writers[v].args)
        for v in (v for v in self.writers if v in needed):
            self.values[v] = self._computed(self.writers[v])
        return self.values[out]

    def _computed(self, call: Call) -> np.ndarray | None:
        (out,) = call.outs
        assert out.dtype is not None
        missing = any(self._argument(v) is None for v in variables(call.args))
        if missing or not may_fold(math.prod(out.sizes) * out.dtype.size):
            return None
        (result,) = run(call, [self._argument(a) for a in call.args])
        return result if result.shape == out.sizes else None

    def _argument(self, operand: Operand) -> Any:
        """Return an argument at the largest sizes; None if that was not computed."""
        if isinstance(operand, tuple):
            return [self._argument(o) for o in operand]
        if not isinstance(operand, Var):
            return operand
        if operand.kind == "constant" and operand.data is not None:
            return as_kernels_read(operand.data, operand)
        size = self.largest.get(self.scalars.get(operand, operand))
        return self.values.get(operand) if size is None else size
