"""A decoder for one sequence becomes one for many: each row of a run is a token of some sequence at some position.

All that a decoder does for a token treats rows alike; only rotary embeddings, cache writes and attention know a
position. So `forward(tokens, position)` becomes a method of tokens that each say whose they are and where: its tables
of angles are looked up row by row, its caches are pages that sequences share, and logits are computed for the rows that
want some. What else a program does with the position cannot be done for many, and is named.

The token chosen for a sequence stays on the GPU, too: a run may be given -1 in its place, before anyone knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

from ..dtypes import DType
from ..errors import UnsupportedProgram
from ..graph.flat import FlatMethod
from ..graph.graph import Shape
from ..kernels.attention import PAGE
from ..ops import REGISTRY
from ..ops.attention import OVER_CACHE, WITH_CACHE
from ..ops.cache import WRITE
from ..ops.index import TAKE
from ..ops.latest import FILL, KEEP
from ..ops.lookup import facts_of
from ..ops.moves import SELECT, SLICE
from ..ops.ragged import ATTEND
from ..ops.rope import ROTARY
from ..ops.sample import SAMPLE_ROWS
from ..ops.symbols import SIZE, SUM
from ..ops.views import VIEW
from ..plan.method import Call, Operand, Var, variables
from ..sampling import SETTINGS, words_of
from .append import Append, Tail

Count = int | Callable[[Sequence[int]], int]
LAST = (SELECT, SLICE)


def serving(vocabulary: int, context: int, chunk: int, pages: Count, sequences: int) -> Append:
    """Return what makes `forward`, of `chunk` tokens at most, a method of many sequences with `pages` of caches in all.

    A function for `pages` gets the bytes that a page of each cache takes, in its own type.

    Its inputs are tokens [1, S] (-1: the latest that was chosen for the sequence), rows int32 [S, 2] (sequence,
    position), tables int32 [sequences, pages of each], wanted int32 [W] (rows), settings int32 [W, 9] and seen int32
    [W, words or 0]; its results tokens (W,) and their log-probabilities (W,).
    """
    width = -(-context // PAGE)

    def append(tail: Tail) -> None:
        rewrite = _Rewrite(tail.flat, pages)
        rows = tail.input("rows", DType.I32, (chunk, 2), dynamic=True)
        tables = tail.input("tables", DType.I32, (sequences, width))
        wanted = tail.input("wanted", DType.I32, (chunk,), dynamic=True)
        settings = tail.input("settings", DType.I32, (chunk, len(SETTINGS) + 1), dynamic=True)
        seen = tail.input("seen", DType.I32, (chunk, words_of(vocabulary)), dynamic=True)
        held = Var("latest tokens", DType.I32, (sequences,), kind="state")
        logits = rewrite.run(rows, tables, wanted, held, tail.outputs[-1])
        many = (DType.I32, (chunk,)), (DType.F32, (chunk,))
        if len(logits.sizes) == 2:
            every = (1, -1, logits.sizes[1])
            (logits,) = tail.call(VIEW, logits, every, gives=[(logits.dtype, (1, *logits.sizes))])  # type: ignore[list-item]
        tail.outputs = list(tail.call(SAMPLE_ROWS, logits, settings, seen, gives=many))
        tail.call(KEEP, tail.outputs[0], rows, wanted, held, gives=[(DType.I32, (1,))])

    return append


class _Rewrite:
    """The calls of a method, one after the other."""

    def __init__(self, flat: FlatMethod, pages: Count) -> None:
        self.flat, self.pages = flat, pages
        tokens, position = flat.inputs
        assert isinstance(tokens, Var) and isinstance(position, Var)
        self.length = tokens.sizes[1]
        self.starts: set[Var] = {position}  # what is the position
        self.ends: set[Var] = set()  # what is the position after the last token
        self.lengths: set[Var] = set()
        self.tokens, self.position = tokens, position
        self.code: list[Call] = []
        self.taken: dict[Var, Var] = {}  # tables by row
        self.caches: dict[Var, Var] = {}  # in pages
        self.written: dict[Var, Var] = {}  # what goes into a cache
        self.gone: set[Var] = set()  # results that mean nothing

    def run(self, rows: Var, tables: Var, wanted: Var, held: Var, logits: Operand) -> Var:
        """Rewrites the code; the logits of the rows that are wanted."""
        self.rows, self.tables = rows, tables
        self._fill(held)
        (self.places,) = self._new(SELECT, (rows, 1, 1), [(DType.I32, (self.length,))])
        for instruction in self.flat.code:
            if not isinstance(instruction, Call):
                self._refuse("the program branches")
            self._call(instruction)
        if not self.caches:
            self._refuse("nothing in it writes a key-value cache")
        count = self.pages
        if not isinstance(count, int):
            count = count([prod(c.sizes) * c.dtype.size for c in self.caches.values() if c.dtype is not None])
        for cache in self.caches.values():
            cache.sizes = (count, *cache.sizes[1:])
        if not isinstance(logits, Var):
            self._refuse("its logits are not computed")
        self.flat.inputs = [x for x in self.flat.inputs if x is not self.position]
        self.flat.code = [*self._only_wanted(wanted, logits)]
        return logits

    def _fill(self, held: Var) -> None:
        """The tokens are those given, with the latest where they are -1."""
        given = replace(self.tokens)
        self.flat.inputs = [given if x is self.tokens else x for x in self.flat.inputs]
        self.tokens.name, self.tokens.kind = f"{given.name} with the latest", "temp"
        self.code.append(Call(FILL, (given, self.rows, held), (self.tokens,), f"{FILL} of {given.name}"))

    def _new(self, op: str, args: tuple[Operand, ...], gives: Sequence[tuple[DType, Shape]]) -> tuple[Var, ...]:
        number = len(self.code)
        outs = tuple(Var(f"{op} of rows #{number}.{k}", dtype, sizes, True) for k, (dtype, sizes) in enumerate(gives))
        self.code.append(Call(op, args, outs, f"{op} of rows #{number}"))
        return outs

    def _call(self, c: Call) -> None:
        used = set(variables(c.args))
        if used & self.gone:
            self._refuse(f"{c.where} reads the result of a cache write")
        if c.op == SIZE and c.args == (self.tokens, 1):
            self.lengths.add(c.outs[0])
        if not used & (self.starts | self.ends):
            self.code.append(c)
        elif (c.op == SELECT or facts_of(c.op).reads) and c.args[0] in self.starts:
            self.starts.add(c.outs[0])
        elif c.op in SUM and self._after_last(c.args):
            self.ends.add(c.outs[0])
        elif c.op == ROTARY and c.args[4] in self.starts and all(len(t.sizes) == 2 for t in _vars(c.args[2:4])):
            cos, sin = (self._by_row(t) for t in _vars(c.args[2:4]))
            self.code.append(replace(c, args=(*c.args[:2], cos, sin, 0)))
        elif c.op == SLICE and c.args[1] == 0 and c.args[2] in self.starts and self._constant(c.args[0]):
            self.code.append(replace(c, op=TAKE, args=(c.args[0], 0, self.places)))
        elif c.op in WRITE and c.args[2] in self.starts:
            value, cache = _vars(c.args[:2])
            self.written[cache] = value
            self.gone.update(c.outs)
        elif c.op in WITH_CACHE and c.args[5] in self.starts:
            self._attend(c, *c.args[:5], *c.args[7:])
        elif c.op in OVER_CACHE and c.args[3] in self.starts and all(v in self.written for v in _vars(c.args[1:3])):
            new = [self.written[v] for v in _vars(c.args[1:3])]
            self._attend(c, c.args[0], *new, *c.args[1:3], *c.args[4:])
        else:
            self._refuse(f"{c.where} uses the position in a way that is not known")

    def _after_last(self, args: Sequence[Operand]) -> bool:
        return len(args) == 2 and any(a in self.starts and b in self.lengths for a, b in (args, args[::-1]))

    def _constant(self, table: Operand) -> bool:
        return isinstance(table, Var) and table not in self.starts and table.kind == "constant"

    def _by_row(self, table: Var) -> Var:
        if table not in self.taken:
            assert table.dtype is not None
            (self.taken[table],) = self._new(
                TAKE, (table, 0, self.places), [(table.dtype, (self.length, table.sizes[1]))]
            )
        return self.taken[table]

    def _attend(
        self,
        c: Call,
        q: Operand,
        k: Operand,
        v: Operand,
        keys: Operand,
        values: Operand,
        mask: Operand = None,
        dropout: Operand = 0.0,
        causal: Operand = False,
        scale: Operand = None,
    ) -> None:
        if mask is not None or not causal or dropout:
            self._refuse(f"{c.where} has a mask, or is not causal")
        pages = [self._paged(cache) for cache in _vars((keys, values))]
        self.code.append(replace(c, op=ATTEND, args=(q, k, v, *pages, self.rows, self.tables, scale)))

    def _paged(self, cache: Var) -> Var:
        if cache not in self.caches:
            if cache.kind != "state" or len(cache.sizes) != 4 or cache.sizes[0] != 1:
                self._refuse(f"{cache!r} is no cache of one sequence")
            sizes = (1, PAGE, *cache.sizes[2:])
            self.caches[cache] = Var(f"{cache.name} in pages", cache.dtype, sizes, kind="state")
        return self.caches[cache]

    def _only_wanted(self, wanted: Var, logits: Var) -> list[Call]:
        """The code, with the rows that are wanted alone from the last product on, or from where the last row is."""
        made = {o: c for c in self.code for o in c.outs}
        at, found = made.get(logits), None
        while at is not None and found is None:
            by_row = facts_of(at.op).by_row
            if at.op in LAST and at.args[1] == 1 and len(_vars(at.args[:1])[0].sizes) == 3:
                found = at
            elif by_row == "product":
                found = _last_row(at, made) or at
            elif by_row == "elements" or _is_view(at):
                at = made.get(_vars(at.args[:1])[0])
            else:
                at = None
        if found is None:
            self._refuse("its logits are not the result of a product")
        hidden = _vars(found.args[:1])[0]
        if hidden.dtype is None or len(hidden.sizes) not in (2, 3):
            self._refuse(f"{found.where} takes {hidden!r}")
        dim, place = len(hidden.sizes) - 2, self.code.index(found)
        rows = Var(f"{hidden.name} of the rows wanted", hidden.dtype, hidden.sizes, True)
        take = Call(TAKE, (hidden, dim, wanted), (rows,), f"{TAKE} of the rows wanted")
        if found.op in LAST:
            new = Call(VIEW, (rows, _viewed(found.outs[0])), found.outs, f"{found.where}, of the rows wanted")
        else:
            new = replace(found, args=(rows, *found.args[1:]))
        rest = [new, *(self._of_any_number(c) for c in self.code[place + 1 :])]
        for v in (v for c in rest for v in c.outs if found.op in LAST):  # there was one row
            v.dynamic = True
            v.sizes = (self.length, *v.sizes[1:]) if len(v.sizes) == 2 else (1, self.length, *v.sizes[2:])
        return [*self.code[:place], take, *rest]

    def _of_any_number(self, c: Call) -> Call:
        """A view that names the number of tokens names none."""
        if c.op != VIEW or not self.lengths & set(variables(c.args[1])):
            return c
        return replace(c, args=(c.args[0], tuple(-1 if n in self.lengths else n for n in c.args[1])))  # type: ignore[union-attr]

    def _refuse(self, why: str) -> NoReturn:
        raise UnsupportedProgram(f"{self.flat.name} cannot serve several sequences at once: {why}")


def _last_row(head: Call, made: dict[Var, Call]) -> Call | None:
    """The call that takes the last row, between the product of the logits and the layers before it."""
    at = made.get(_vars(head.args[:1])[0])
    while at is not None and at.op not in LAST and (_is_view(at) or facts_of(at.op).by_row in ("norm", "elements")):
        at = made.get(_vars(at.args[:1])[0])
    return at if at is not None and at.op in LAST and at.args[1] == 1 else None


def _is_view(call: Call) -> bool:
    return call.op in REGISTRY and REGISTRY[call.op].view is not None


def _viewed(last: Var) -> tuple[int, ...]:
    """The shape of what was one row, for any number of them."""
    return (-1, last.sizes[-1]) if len(last.sizes) == 2 else (1, -1, last.sizes[-1])


def _vars(operands: Sequence[Operand]) -> list[Var]:
    return [v for v in operands if isinstance(v, Var)]
