"""A plan that was read from a file, proved: every index is one of something, every number stays within bounds.

What is proved here, a runner need not ask again: it cannot be led outside a list or a buffer, nor into numbers that
grow without end. What a device cannot do is found when the plan is prepared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

from ..dtypes import ON_GPU
from ..errors import InvalidProgram
from ..sizes import Range, result_range
from .plan import (
    ALIGN,
    OFFSET_ALIGN,
    OPERATORS,
    Bound,
    Dispatch,
    Expr,
    Family,
    Plan,
    Port,
)

LARGEST = 1e60  # of what a row can be: above it, numbers are made to break us
EXACT = 2**53  # of a constant: what every runner holds
MAX_RANK = 64
WHOLE = ("ceil", "floor", "lt", "ge", "eq", "ne")
INT32 = (-(2.0**31), 2.0**31 - 1)


def prove(plan: Plan) -> None:
    """Raises InvalidProgram, saying what is wrong, unless a runner can rely on the plan."""
    _Proof(plan).run()


class _Proof:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.whole: list[bool] = []  # of each row: whether it is an int
        self.params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]

    def run(self) -> None:
        plan = self.plan
        self.buffers()
        for k, kernel in enumerate(plan.kernels):
            sound = 0 < kernel.workgroup <= 65536 and 0 <= kernel.shared_bytes < 2**31 and len(kernel.access) <= 64
            self.that(sound, f"kernel {k} asks for what no GPU has")
        for k, i in enumerate(plan.inputs):
            self.that((i.dtype is None) == (i.buffer is None), f"input {k} is neither a tensor nor an int")
            if i.dtype is not None:
                self.that(i.dtype in ON_GPU, f"input {k} is of {i.dtype}")
                self.shape(i.shape, f"input {k}")
                self.index(i.buffer, plan.buffers, f"input {k}'s buffer")
                buffer = plan.buffers[i.buffer]  # type: ignore[index]
                fits = math.prod(i.shape) * i.dtype.size <= buffer.nbytes
                self.that(buffer.role == "input" and fits, f"input {k} does not fit its buffer")
        self.rows()
        for k, c in enumerate(plan.copies):
            self.index(c.source, plan.buffers, f"the source of copy {k}")
            self.index(c.target, plan.buffers, f"the target of copy {k}")
            least = min(plan.buffers[c.source].nbytes, plan.buffers[c.target].nbytes)
            sound = c.source != c.target and 0 <= c.nbytes <= least and c.nbytes % 4 == 0
            self.that(sound, f"copy {k} is of {c.nbytes} bytes")
        self.that(bool(plan.families), "there is nothing that it runs")
        for k, family in enumerate(plan.families):
            self.family(k, family)
        self.kept()

    def kept(self) -> None:
        """What is made once is made of constants, and nobody else writes it."""
        all_ = [(d, plan.kernels[d.kernel].access) for plan in [self.plan] for f in plan.families for d in _all(f)]
        made: dict[int, Dispatch] = {}
        others: set[int] = set()
        for d, access in all_:
            written = {b.buffer for b, how in zip(d.bindings, access) if how == "write"}
            if not d.once:
                others |= written
                continue
            read = {b.buffer for b, how in zip(d.bindings, access) if how == "read"}
            whole = not d.patches and all(isinstance(n, int) for n in d.grid)
            constant = all(self.plan.buffers[b].role == "constant" for b in read)
            self.that(whole and constant and bool(written), f"{d.label[:40]} is not the same in every run")
            made.update(dict.fromkeys(written, d))
        roles = all(self.plan.buffers[b].role == "temp" for b in made)
        self.that(roles and not others & made.keys(), "what it makes once does not stay")

    def that(self, holds: bool, what: str) -> None:
        if not holds:
            damaged(f"plan {self.plan.name}: {what}")

    def index(self, index: Any, of: Any, what: str) -> None:
        self.that(isinstance(index, int) and 0 <= index < len(of), f"{what} is {index}, there are {len(of)}")

    def shape(self, shape: Iterable[int], what: str) -> None:
        sizes = list(shape)
        self.that(len(sizes) <= MAX_RANK and all(0 <= n < 2**40 for n in sizes), f"{what} has the shape {sizes[:9]}")

    def buffers(self) -> None:
        plan = self.plan
        names = [b.name for b in plan.buffers]
        self.that(len(set(names)) == len(names), "two buffers have one name")
        self.that(sum(b.role == "syms" for b in plan.buffers) <= 1, "it has several buffers of symbolic ints")
        self.that(
            len(plan.params) == len(self.params), f"{len(self.params)} parameter buffers, {len(plan.params)} images"
        )
        for k, b in enumerate(plan.buffers):
            self.that(0 < b.nbytes < 2**48 and b.nbytes % ALIGN == 0, f"buffer {k} is of {b.nbytes} bytes")
            if b.blob is not None:
                self.index(b.blob, plan.blobs, f"buffer {k}'s blob")
                held = memoryview(plan.blobs[b.blob]).nbytes
                self.that(b.role in ("constant", "state") and held <= b.nbytes, f"buffer {k} cannot hold its bytes")
            self.that(b.role != "constant" or b.blob is not None, f"the constant {b.name} has no bytes")
        for image, k in zip(plan.params, self.params, strict=True):
            self.that(len(image) == plan.buffers[k].nbytes, f"buffer {k} cannot hold its parameters")

    def rows(self) -> None:
        """Operands come first, and no number can grow without end: ranges follow from those of the inputs."""
        plan = self.plan
        ranges: list[Range] = []
        whole = self.whole
        for k, (op, a, b) in enumerate(plan.rows):
            where, exact = f"row {k}", True
            if op == "const":
                self.that(isinstance(a, int | float) and abs(a) <= EXACT, f"{where} is the number {a}")
                known: Range | None = (a, a)
                exact = isinstance(a, int)
            elif op in ("size", "int"):
                self.index(a, plan.inputs, f"{where}'s input")
                declared = plan.inputs[int(a)]
                if op == "size":
                    self.that(declared.dtype is not None, f"{where} is a size of an int")
                    self.index(b, declared.shape, f"{where}'s dimension")
                    known = (0, declared.shape[int(b)])
                else:
                    self.that(declared.dtype is None, f"{where} takes a tensor for an int")
                    known = INT32
            elif op == "item":
                self.index(a, range(k), f"{where}'s element")
                self.index(b, plan.inputs, f"{where}'s input")
                declared = plan.inputs[int(b)]
                ints = declared.dtype is not None and not declared.dtype.is_float
                self.that(ints and whole[int(a)], f"{where} is an element of what has no ints")
                low, high = ranges[int(a)]
                sound = low >= 0 and (declared.dynamic or high < math.prod(declared.shape))
                self.that(sound, f"{where} is an element that is not there")
                known = INT32
            else:
                self.that(op in OPERATORS, f"{where} is {op!r}")
                self.index(a, range(k), f"{where}'s first operand")
                self.index(b, range(k), f"{where}'s second operand")
                known = None
                exact = op in WHOLE or (op != "div" and whole[int(a)] and whole[int(b)])
            whole.append(exact)
            low, high = known if known is not None else result_range(op, ranges[int(a)], ranges[int(b)])
            if (low, high) == (-math.inf, math.inf):  # a quotient by what may be 0: no more than its dividend
                self.that(whole[int(b)], f"{where} divides by what may be too small")
                ends = [abs(x) for x in (*ranges[int(a)], *ranges[int(b)])]
                low, high = -max(ends), max(ends)
            bounded = low == low and high == high and max(abs(low), abs(high)) < LARGEST
            self.that(bounded, f"{where} can be too large")
            ranges.append((low, high))

    def number(self, n: Any, what: str) -> None:
        if isinstance(n, Expr):
            self.index(n.row, self.plan.rows, what)
            self.that(self.whole[n.row], f"{what} is row {n.row}, no whole number")
        else:
            self.that(abs(n) <= EXACT, f"{what} is {n}")

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
                self.that(o.dtype in ON_GPU, f"an output of {where} is of {o.dtype}")
                self.that(len(o.shape) <= MAX_RANK, f"an output of {where} has {len(o.shape)} dimensions")
                for n in o.shape:
                    self.number(n, f"a size of an output of {where}")
                if not any(isinstance(n, Expr) for n in o.shape):
                    self.shape(o.shape, f"an output of {where}")  # type: ignore[arg-type]
                    room = self.plan.buffers[o.buffer].nbytes
                    self.that(o.nbytes <= room, f"an output of {where} does not fit its buffer")
            else:
                self.number(o, f"an output of {where}")
        syms = next((b for b in self.plan.buffers if b.role == "syms"), None)
        room = 0 if syms is None else syms.nbytes // 4
        reads = any(self.plan.buffers[b.buffer].role == "syms" for d in _all(family) for b in d.bindings)
        self.that(not reads or len(family.words) <= room, f"{where} has {len(family.words)} symbolic ints")
        for n in family.words:
            self.number(n, f"a word of {where}")
        for b in family.bounds:
            self.bound(b, where)

    def dispatch(self, d: Dispatch, where: str) -> None:
        plan = self.plan
        self.index(d.kernel, plan.kernels, f"the kernel of {where}")
        access = plan.kernels[d.kernel].access
        self.that(len(access) == len(d.bindings), f"{where} binds {len(d.bindings)} buffers, its kernel {len(access)}")
        for n in (*d.grid, d.read_bytes, d.write_bytes, d.flops):
            self.number(n, f"a number of {where}")
        for n in d.grid:
            self.that(isinstance(n, Expr) or 0 <= n < 2**31, f"{where} has a grid of {n}")
        block = None
        for b, how in zip(d.bindings, access, strict=True):
            self.index(b.buffer, plan.buffers, f"a buffer of {where}")
            buffer = plan.buffers[b.buffer]
            inside = b.offset >= 0 and b.offset % OFFSET_ALIGN == 0 and 0 < b.nbytes <= buffer.nbytes - b.offset
            self.that(inside, f"{where} binds bytes that {buffer.name} does not have")
            uniform = buffer.role in ("params", "syms")
            self.that(uniform == (how == "uniform"), f"{where} binds {buffer.name} as {how}")
            self.that(how != "write" or buffer.role not in ("constant", "input"), f"{where} writes {buffer.name}")
            if buffer.role == "params":
                block = b
        for p in d.patches:
            self.index(p.value.row, plan.rows, f"a parameter of {where}")
            inside = block is not None and block.offset <= 4 * p.word < block.offset + block.nbytes
            self.that(inside, f"{where} changes parameters that are not its own")

    def bound(self, b: Bound, where: str) -> None:
        what = f"a bound of {where}"
        self.number(b.low, what)
        self.number(b.end, what)
        self.number(b.source, what)
        if b.kind == "input":
            self.index(b.source, self.plan.inputs, what)
            declared = self.plan.inputs[b.source]  # type: ignore[index]
            self.that(declared.dtype is not None and not declared.dtype.is_float, f"{what} is of what has no ints")
        elif b.kind == "constant":
            self.index(b.source, self.plan.buffers, what)
            blob = self.plan.buffers[b.source].blob  # type: ignore[index]
            self.shape(b.shape, what)
            self.that(b.dtype in ON_GPU and not b.dtype.is_float and blob is not None, f"{what} has no data")
            assert b.dtype is not None and blob is not None
            held = memoryview(self.plan.blobs[blob]).nbytes
            self.that(math.prod(b.shape) * b.dtype.size == held, f"{what} is not of its data")
        for m in b.moves:
            self.that(0 <= m.number < m.results <= 4096 and len(m.shape) <= MAX_RANK, f"{what} moves nowhere")
            for n in (*m.shape, *_numbers(m.args)):
                self.number(n, what)


def _all(family: Family) -> list[Dispatch]:
    return [d for choices in family.steps for choice in choices for d in choice.dispatches]


def _numbers(args: Any) -> list[Any]:
    if isinstance(args, tuple):
        return [n for a in args for n in _numbers(a)]
    return [args] if isinstance(args, Expr) else []


def damaged(how: str) -> NoReturn:
    told = " ".join(how.split())  # what the file says may be anything
    raise InvalidProgram(f"the bundle is damaged: {told if len(told) <= 200 else told[:199] + '…'}")
