"""The verification of a plan that was read from a file: every index is in range, every number is bounded.

A runner relies on this without checking again: a verified plan cannot lead it outside a list or a buffer, nor to
numbers that grow without end. Limits of the device are checked when the plan is prepared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..dtypes import ON_GPU
from ..sizes import Range, result_range
from .bundle import damaged
from .plan import ALIGN, OFFSET_ALIGN, OPERATORS, Bound, Expr, Family, Plan, PlannedDispatch, Port

MAX_ROW = 1e60  # of a row's value: no honest plan has larger numbers
EXACT = 2**53  # of a constant: exact in every runner
MAX_RANK = 64
INT_RESULTS = ("ceil", "floor", "lt", "ge", "eq", "ne")
INT32 = (-(2.0**31), 2.0**31 - 1)


def verify(plan: Plan) -> None:
    """Raise InvalidProgram unless a runner can rely on the plan."""
    _Verifier(plan).run()


class _Verifier:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.is_int: list[bool] = []  # for each row
        self.params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]

    def run(self) -> None:
        plan = self.plan
        self.buffers()
        for k, kernel in enumerate(plan.kernels):
            sound = 0 < kernel.workgroup <= 65536 and 0 <= kernel.shared_bytes < 2**31 and len(kernel.access) <= 64
            self.require(sound, f"kernel {k} exceeds what any GPU has")
        for k, i in enumerate(plan.inputs):
            self.require((i.dtype is None) == (i.buffer is None), f"input {k} is neither a tensor nor an int")
            if i.dtype is not None:
                self.require(i.dtype in ON_GPU, f"input {k} has dtype {i.dtype}")
                self.shape(i.shape, f"input {k}")
                self.index(i.buffer, plan.buffers, f"input {k}'s buffer")
                buffer = plan.buffers[i.buffer]  # type: ignore[index]
                fits = math.prod(i.shape) * i.dtype.size <= buffer.nbytes
                self.require(buffer.role == "input" and fits, f"input {k} does not fit its buffer")
        self.rows()
        for k, c in enumerate(plan.copies):
            self.index(c.source, plan.buffers, f"the source of copy {k}")
            self.index(c.target, plan.buffers, f"the target of copy {k}")
            least = min(plan.buffers[c.source].nbytes, plan.buffers[c.target].nbytes)
            sound = c.source != c.target and 0 <= c.nbytes <= least and c.nbytes % 4 == 0
            self.require(sound, f"copy {k} has {c.nbytes} bytes")
        self.require(bool(plan.families), "it has no families")
        for k, family in enumerate(plan.families):
            self.family(k, family)
        self.check_once()

    def check_once(self) -> None:
        """Require that dispatches that run once read constants only, and that nothing else writes their results."""
        written_once: set[int] = set()
        written_often: set[int] = set()
        for d in (d for f in self.plan.families for d in _all(f)):
            access = self.plan.kernels[d.kernel].access
            written = {b.buffer for b, mode in zip(d.bindings, access) if mode == "write"}
            if not d.once:
                written_often |= written
                continue
            read = {b.buffer for b, mode in zip(d.bindings, access) if mode == "read"}
            fixed = not d.patches and all(isinstance(n, int) for n in d.grid)
            constant = all(self.plan.buffers[b].role == "constant" for b in read)
            self.require(fixed and constant and bool(written), f"{d.label[:40]} is not the same in every run")
            written_once |= written
        roles = all(self.plan.buffers[b].role == "temp" for b in written_once)
        self.require(roles and not written_often & written_once, "results of dispatches that run once are overwritten")

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            damaged(f"plan {self.plan.name}: {problem}")

    def index(self, index: Any, items: Any, what: str) -> None:
        self.require(isinstance(index, int) and 0 <= index < len(items), f"{what} is {index}, there are {len(items)}")

    def shape(self, shape: Iterable[int], what: str) -> None:
        sizes = list(shape)
        self.require(len(sizes) <= MAX_RANK and all(0 <= n < 2**40 for n in sizes), f"{what} has the shape {sizes[:9]}")

    def buffers(self) -> None:
        plan = self.plan
        names = [b.name for b in plan.buffers]
        self.require(len(set(names)) == len(names), "two buffers have the same name")
        self.require(sum(b.role == "syms" for b in plan.buffers) <= 1, "it has several buffers of symbolic ints")
        self.require(
            len(plan.params) == len(self.params), f"{len(self.params)} parameter buffers, {len(plan.params)} images"
        )
        for k, b in enumerate(plan.buffers):
            self.require(0 < b.nbytes < 2**48 and b.nbytes % ALIGN == 0, f"buffer {k} has {b.nbytes} bytes")
            if b.blob is not None:
                self.index(b.blob, plan.blobs, f"buffer {k}'s blob")
                nbytes = memoryview(plan.blobs[b.blob]).nbytes
                fits = b.role in ("constant", "state") and nbytes <= b.nbytes
                self.require(fits, f"buffer {k} cannot have its initial bytes")
            self.require(b.role != "constant" or b.blob is not None, f"the constant {b.name} has no bytes")
        for image, k in zip(plan.params, self.params, strict=True):
            self.require(len(image) == plan.buffers[k].nbytes, f"the parameters of buffer {k} do not have its size")

    def rows(self) -> None:
        """Require that operands are earlier rows and values are bounded, with ranges derived from the inputs."""
        plan = self.plan
        ranges: list[Range] = []
        is_int = self.is_int
        for k, (op, a, b) in enumerate(plan.rows):
            where, exact = f"row {k}", True
            if op == "const":
                self.require(isinstance(a, int | float) and abs(a) <= EXACT, f"{where} is the number {a}")
                bounds: Range | None = (a, a)
                exact = isinstance(a, int)
            elif op in ("size", "int"):
                self.index(a, plan.inputs, f"{where}'s input")
                declared = plan.inputs[int(a)]
                if op == "size":
                    self.require(declared.dtype is not None, f"{where} is a size of an int")
                    self.index(b, declared.shape, f"{where}'s dimension")
                    bounds = (0, declared.shape[int(b)])
                else:
                    self.require(declared.dtype is None, f"{where} takes a tensor for an int")
                    bounds = INT32
            elif op == "item":
                self.index(a, range(k), f"{where}'s element")
                self.index(b, plan.inputs, f"{where}'s input")
                declared = plan.inputs[int(b)]
                ints = declared.dtype is not None and not declared.dtype.is_float
                self.require(ints and is_int[int(a)], f"{where} is an element of an input without ints")
                low, high = ranges[int(a)]
                sound = low >= 0 and (declared.dynamic or high < math.prod(declared.shape))
                self.require(sound, f"{where} is an element out of range")
                bounds = INT32
            else:
                self.require(op in OPERATORS, f"{where} has the unknown operator {op!r}")
                self.index(a, range(k), f"{where}'s first operand")
                self.index(b, range(k), f"{where}'s second operand")
                bounds = None
                exact = op in INT_RESULTS or (op != "div" and is_int[int(a)] and is_int[int(b)])
            is_int.append(exact)
            low, high = bounds if bounds is not None else result_range(op, ranges[int(a)], ranges[int(b)])
            if (low, high) == (-math.inf, math.inf):  # a division by 0 gives 0: the result is at most the dividend
                self.require(is_int[int(b)], f"{where} divides by a number that may be too small")
                limits = [abs(x) for x in (*ranges[int(a)], *ranges[int(b)])]
                low, high = -max(limits), max(limits)
            bounded = low == low and high == high and max(abs(low), abs(high)) < MAX_ROW
            self.require(bounded, f"{where} can be too large")
            ranges.append((low, high))

    def number(self, n: Any, what: str) -> None:
        if isinstance(n, Expr):
            self.index(n.row, self.plan.rows, what)
            self.require(self.is_int[n.row], f"{what} is row {n.row}, which is not an int")
        else:
            self.require(abs(n) <= EXACT, f"{what} is {n}")

    def family(self, k: int, family: Family) -> None:
        where = f"family {k}"
        for g in family.guards:
            self.index(g, self.plan.rows, f"a guard of {where}")
        for s, choices in enumerate(family.steps):
            for choice in choices:
                for g in choice.guards:
                    self.index(g, self.plan.rows, f"a guard of step {s} of {where}")
                for d in choice.dispatches:
                    self.dispatch(d, f"step {s} of {where}")
        for o in family.outputs:
            if isinstance(o, Port):
                self.index(o.buffer, self.plan.buffers, f"an output of {where}")
                self.require(o.dtype in ON_GPU, f"an output of {where} has dtype {o.dtype}")
                self.require(len(o.shape) <= MAX_RANK, f"an output of {where} has {len(o.shape)} dimensions")
                for n in o.shape:
                    self.number(n, f"a size of an output of {where}")
                if not any(isinstance(n, Expr) for n in o.shape):
                    self.shape(o.shape, f"an output of {where}")  # type: ignore[arg-type]
                    fits = o.nbytes <= self.plan.buffers[o.buffer].nbytes
                    self.require(fits, f"an output of {where} does not fit its buffer")
            else:
                self.number(o, f"an output of {where}")
        syms = next((b for b in self.plan.buffers if b.role == "syms"), None)
        capacity = 0 if syms is None else syms.nbytes // 4
        reads = any(self.plan.buffers[b.buffer].role == "syms" for d in _all(family) for b in d.bindings)
        self.require(not reads or len(family.words) <= capacity, f"{where} has {len(family.words)} symbolic ints")
        for n in family.words:
            self.number(n, f"a word of {where}")
        for b in family.bounds:
            self.bound(b, where)

    def dispatch(self, d: PlannedDispatch, where: str) -> None:
        plan = self.plan
        self.index(d.kernel, plan.kernels, f"the kernel of {where}")
        access = plan.kernels[d.kernel].access
        self.require(
            len(access) == len(d.bindings), f"{where} binds {len(d.bindings)} buffers, its kernel {len(access)}"
        )
        for n in (*d.grid, d.read_bytes, d.write_bytes, d.flops):
            self.number(n, f"a number of {where}")
        for n in d.grid:
            self.require(isinstance(n, Expr) or 0 <= n < 2**31, f"{where} has a grid of {n}")
        block = None
        for b, mode in zip(d.bindings, access, strict=True):
            self.index(b.buffer, plan.buffers, f"a buffer of {where}")
            buffer = plan.buffers[b.buffer]
            inside = b.offset >= 0 and b.offset % OFFSET_ALIGN == 0 and 0 < b.nbytes <= buffer.nbytes - b.offset
            self.require(inside, f"{where} binds bytes outside of {buffer.name}")
            uniform = buffer.role in ("params", "syms")
            self.require(uniform == (mode == "uniform"), f"{where} binds {buffer.name} as {mode}")
            self.require(mode != "write" or buffer.role not in ("constant", "input"), f"{where} writes {buffer.name}")
            if buffer.role == "params":
                block = b
        for p in d.patches:
            self.index(p.value.row, plan.rows, f"a parameter of {where}")
            inside = block is not None and block.offset <= 4 * p.word < block.offset + block.nbytes
            self.require(inside, f"{where} changes parameters of another dispatch")

    def bound(self, b: Bound, where: str) -> None:
        what = f"a bound of {where}"
        self.number(b.low, what)
        self.number(b.end, what)
        self.number(b.source, what)
        if b.kind == "input":
            self.index(b.source, self.plan.inputs, what)
            declared = self.plan.inputs[b.source]  # type: ignore[index]
            self.require(
                declared.dtype is not None and not declared.dtype.is_float, f"{what} is for an input without ints"
            )
        elif b.kind == "constant":
            self.index(b.source, self.plan.buffers, what)
            blob = self.plan.buffers[b.source].blob  # type: ignore[index]
            self.shape(b.shape, what)
            self.require(b.dtype in ON_GPU and not b.dtype.is_float and blob is not None, f"{what} has no data")
            assert b.dtype is not None and blob is not None
            nbytes = memoryview(self.plan.blobs[blob]).nbytes
            self.require(math.prod(b.shape) * b.dtype.size == nbytes, f"{what} does not have the size of its data")
        for m in b.moves:
            self.require(0 <= m.number < m.results <= 4096 and len(m.shape) <= MAX_RANK, f"{what} has an invalid move")
            for n in (*m.shape, *_numbers(m.args)):
                self.number(n, what)


def _all(family: Family) -> list[PlannedDispatch]:
    return [d for choices in family.steps for choice in choices for d in choice.dispatches]


def _numbers(args: Any) -> list[Any]:
    if isinstance(args, tuple):
        return [n for a in args for n in _numbers(a)]
    return [args] if isinstance(args, Expr) else []
