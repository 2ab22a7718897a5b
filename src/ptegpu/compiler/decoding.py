"""Rewrites of decoders: a sampler in the same plan as the model, and a method that serves many sequences.

`sampling` chooses the token after the last one of a run, `verifying` one after each of several tokens.

`serving` turns a decoder for one sequence into one for many: each row of a run is a token of some sequence at some
position. Most operators treat rows alike; only rotary embeddings, cache writes and attention depend on the position.
So `forward(tokens, position)` becomes a method whose rows each have a sequence and a position. Its tables of angles are
looked up row by row, its caches are pages that sequences share, and logits are computed for selected rows only. Any
other use of the position cannot be rewritten, and is refused by name.

The chosen token of each sequence also stays on the GPU: a run may pass -1 for it before the host has read it.
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
from ..kernels.sample_selection import ROW_WORDS
from ..ops import REGISTRY
from ..ops.attention import OVER_CACHE, WITH_CACHE
from ..ops.cache import WRITE
from ..ops.index import TAKE
from ..ops.latest import FILL
from ..ops.lookup import facts_of
from ..ops.moves import SELECT, SLICE
from ..ops.ragged import ATTEND, ROTARY_ROWS
from ..ops.rope import ROTARY
from ..ops.sample import SAMPLE, SAMPLE_ROWS, SCORE
from ..ops.symbols import SIZE, SUM
from ..ops.views import VIEW
from ..plan.method import Call, Operand, Var, variables
from ..sampling import SETTINGS, words_of
from .append import Append, Tail
from .partition import mutates

Count = int | Callable[[Sequence[int]], int]
ROW_TAKING = (SELECT, SLICE)


def sampling(vocabulary: int, rows: int) -> Append:
    """Return an append that samples a token from the last logits, and scores `rows` target tokens."""

    def append(tail: Tail) -> None:
        logits = tail.outputs[-1]
        assert isinstance(logits, Var)
        settings = tail.input("settings", DType.I32, (len(SETTINGS),))
        seen_tokens = tail.input("seen", DType.I32, (words_of(vocabulary),), dynamic=True)
        flags = tail.input("how")
        results = [(DType.I32, (1,)), (DType.F32, (1,))]
        token, logprob = tail.call(SAMPLE, logits, settings, seen_tokens, flags, gives=results)
        targets = tail.input("targets", DType.I32, (1, rows), dynamic=True)
        (scores,) = tail.call(SCORE, logits, targets, gives=[(DType.F32, (1, rows))])
        (following,) = tail.call(VIEW, token, (1, 1), gives=[(DType.I32, (1, 1))])
        tail.outputs = [following, logprob, scores]

    return append


def verifying(vocabulary: int, chunk: int) -> Append:
    """Return an append that chooses a token after each of some rows, to verify proposed tokens.

    It adds the inputs wanted int32 [W] (rows), settings int32 [W, 10] and seen int32 [W, words or 0]. The results are
    tokens (W,) and their log-probabilities (W,). States must be caches that are written at the position: then rows
    that turn out to be wrong are overwritten by later ones.
    """

    def append(tail: Tail) -> None:
        sampled_rows = tail.input("wanted", DType.I32, (chunk,), dynamic=True)
        operands = _row_settings(tail, vocabulary, chunk)
        logits = _VerifyingRewrite(tail.flat).run(sampled_rows, tail.outputs[-1])
        _sample_rows(tail, logits, *operands)

    return append


def _row_settings(tail: Tail, vocabulary: int, chunk: int) -> tuple[Var, Var]:
    """Add the inputs settings and seen."""
    settings = tail.input("settings", DType.I32, (chunk, ROW_WORDS), dynamic=True)
    return settings, tail.input("seen", DType.I32, (chunk, words_of(vocabulary)), dynamic=True)


def _sample_rows(tail: Tail, logits: Var, settings: Var, seen_tokens: Var, latest: Var | None = None) -> None:
    """Replace the outputs by a token for each row of logits, and its log-probability."""
    if len(logits.sizes) == 2:
        shape = (1, -1, logits.sizes[1])
        (logits,) = tail.call(VIEW, logits, shape, gives=[(logits.dtype, (1, *logits.sizes))])  # type: ignore[list-item]
    count = settings.sizes[:1]
    results = (DType.I32, count), (DType.F32, count)
    tail.outputs = list(tail.call(SAMPLE_ROWS, logits, settings, seen_tokens, latest, gives=results))


def serving(vocabulary: int, context: int, chunk: int, pages: Count, sequences: int) -> Append:
    """Return an append that lets `forward` serve many sequences, with up to `chunk` tokens a run and `pages` of caches.

    `pages` may be a function of the bytes that a page takes in each cache, in its own type.

    The inputs are tokens [1, S] (-1: the latest chosen for the sequence), rows int32 [S, 2] (sequence, position),
    tables int32 [sequences, pages of each], wanted int32 [W] (rows), settings int32 [W, 10], seen int32
    [W, words or 0], and single: 1 if no sequence has more than one row. The results are tokens (W,) and their
    log-probabilities (W,).
    """
    width = -(-context // PAGE)

    def append(tail: Tail) -> None:
        rewrite = _ServingRewrite(tail.flat, pages)
        rows = tail.input("rows", DType.I32, (chunk, 2), dynamic=True)
        tables = tail.input("tables", DType.I32, (sequences, width))
        sampled_rows = tail.input("wanted", DType.I32, (chunk,), dynamic=True)
        operands = _row_settings(tail, vocabulary, chunk)
        single = tail.input("single")
        latest = Var("latest tokens", DType.I32, (sequences,), kind="state")
        logits = rewrite.run(rows, tables, single, sampled_rows, latest, tail.outputs[-1])
        _sample_rows(tail, logits, *operands, latest)

    return append


class _RowRewrite:
    """A decoder whose logits are computed for selected rows."""

    purpose = ""

    def __init__(self, flat: FlatMethod) -> None:
        self.flat = flat
        tokens, position = flat.inputs[:2]
        assert isinstance(tokens, Var) and isinstance(position, Var)
        self.length = tokens.sizes[1]
        self.starts: set[Var] = {position}  # slots that have the position
        self.lengths: set[Var] = set()
        self.tokens, self.position = tokens, position
        self.code: list[Call] = []

    def _select_rows(self, sampled_rows: Var, logits: Var) -> list[Call]:
        """Return the code with only the sampled rows from the last product on, or from where the last row is taken."""
        writers = {o: c for c in self.code for o in c.outs}
        at, first = writers.get(logits), None
        while at is not None and first is None:
            by_row = facts_of(at.op).by_row
            if at.op in ROW_TAKING and at.args[1] == 1 and len(_vars(at.args[:1])[0].sizes) == 3:
                first = at
            elif by_row == "product":
                first = _last_row(at, writers) or at
            elif by_row == "elements" or _is_view(at):
                at = writers.get(_vars(at.args[:1])[0])
            else:
                at = None
        if first is None:
            self._refuse("its logits are not the result of a product")
        hidden = _vars(first.args[:1])[0]
        if hidden.dtype is None or len(hidden.sizes) not in (2, 3):
            self._refuse(f"{first.where} takes {hidden!r}")
        dim, place = len(hidden.sizes) - 2, self.code.index(first)
        rows = Var(f"{hidden.name} of the rows wanted", hidden.dtype, hidden.sizes, True)
        take = Call(TAKE, (hidden, dim, sampled_rows), (rows,), f"{TAKE} of the rows wanted")
        if first.op in ROW_TAKING:
            last = first.outs[0]
            shape = (-1, last.sizes[-1]) if len(last.sizes) == 2 else (1, -1, last.sizes[-1])
            new = Call(VIEW, (rows, shape), first.outs, f"{first.where}, of the rows wanted")
        else:
            new = replace(first, args=(rows, *first.args[1:]))
        rest = [new]
        for c in self.code[place + 1 :]:
            if c.op == VIEW and self.lengths & set(variables(c.args[1])):  # a shape with the number of tokens
                c = replace(c, args=(c.args[0], tuple(-1 if n in self.lengths else n for n in c.args[1])))  # type: ignore[union-attr]
            rest.append(c)
        for v in (v for c in rest for v in c.outs if first.op in ROW_TAKING):  # there was one row
            v.dynamic = True
            v.sizes = (self.length, *v.sizes[1:]) if len(v.sizes) < 3 else (1, self.length, *v.sizes[2:])
        return [*self.code[:place], take, *rest]

    def _refuse(self, reason: str) -> NoReturn:
        raise UnsupportedProgram(f"{self.flat.name} cannot {self.purpose}: {reason}")


class _VerifyingRewrite(_RowRewrite):
    """A decoder that chooses a token after each of several rows of one sequence."""

    purpose = "verify several tokens at once"

    def run(self, sampled_rows: Var, logits: Operand) -> Var:
        """Rewrite the code, and return the logits of the sampled rows."""
        for c in self.flat.code:
            if not isinstance(c, Call):
                self._refuse("the program branches")
            if c.op == SIZE and c.args == (self.tokens, 1):
                self.lengths.add(c.outs[0])
            elif (c.op == SELECT or facts_of(c.op).reads) and c.args[0] in self.starts:
                self.starts.add(c.outs[0])
            place = 2 if c.op in WRITE else 5
            if c.op not in (*WRITE, *WITH_CACHE) or c.args[place] not in self.starts:
                self._check_states(c)
            self.code.append(c)
        if not isinstance(logits, Var):
            self._refuse("its logits are not computed")
        self.flat.code = [*self._select_rows(sampled_rows, logits)]
        return logits

    def _check_states(self, c: Call) -> None:
        """Refuse a call that writes a state, which could not be written again from a position on."""
        for v in (*c.outs, *(v for k in mutates(c.op) for v in variables(c.args[k]))):
            if v.kind == "state":
                self._refuse(f"{c.where} writes {v!r}, and not at the position")


class _ServingRewrite(_RowRewrite):
    """A decoder for many sequences: each row belongs to one of them, at a position."""

    purpose = "serve several sequences at once"

    def __init__(self, flat: FlatMethod, pages: Count) -> None:
        super().__init__(flat)
        self.pages = pages
        self.ends: set[Var] = set()  # slots that have the position after the last token
        self.caches: dict[Var, Var] = {}  # cache → its pages
        self.written: dict[Var, Var] = {}  # cache → its new rows
        self.cache_writes: set[Var] = set()  # results of cache writes, which are undefined

    def run(self, rows: Var, tables: Var, single: Var, sampled_rows: Var, latest: Var, logits: Operand) -> Var:
        """Rewrite the code, and return the logits of the sampled rows."""
        self.rows, self.tables, self.single = rows, tables, single
        self._fill(latest)
        (self.places,) = self._new(SELECT, (rows, 1, 1), [(DType.I32, (self.length,))])
        for instruction in self.flat.code:
            if not isinstance(instruction, Call):
                self._refuse("the program branches")
            self._call(instruction)
        if not self.caches:
            self._refuse("it does not write a key-value cache")
        count = self.pages
        if not isinstance(count, int):
            count = count([prod(c.sizes) * c.dtype.size for c in self.caches.values() if c.dtype is not None])
        for cache in self.caches.values():
            cache.sizes = (count, *cache.sizes[1:])
        if not isinstance(logits, Var):
            self._refuse("its logits are not computed")
        self.flat.inputs = [x for x in self.flat.inputs if x is not self.position]
        self.flat.code = [*self._select_rows(sampled_rows, logits)]
        return logits

    def _fill(self, latest: Var) -> None:
        """Replace -1 in the input tokens by the latest token of the sequence."""
        tokens = replace(self.tokens)
        self.flat.inputs = [tokens if x is self.tokens else x for x in self.flat.inputs]
        self.tokens.name, self.tokens.kind = f"{tokens.name} with the latest", "temp"
        self.code.append(Call(FILL, (tokens, self.rows, latest), (self.tokens,), f"{FILL} of {tokens.name}"))

    def _new(self, op: str, args: tuple[Operand, ...], gives: Sequence[tuple[DType, Shape]]) -> tuple[Var, ...]:
        number = len(self.code)
        outs = tuple(Var(f"{op} of rows #{number}.{k}", dtype, sizes, True) for k, (dtype, sizes) in enumerate(gives))
        self.code.append(Call(op, args, outs, f"{op} of rows #{number}"))
        return outs

    def _call(self, c: Call) -> None:
        used = set(variables(c.args))
        if used & self.cache_writes:
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
            self.code.append(replace(c, op=ROTARY_ROWS, args=(*c.args[:4], self.rows)))
        elif c.op == SLICE and c.args[1] == 0 and c.args[2] in self.starts and self._constant(c.args[0]):
            self.code.append(replace(c, op=TAKE, args=(c.args[0], 0, self.places)))
        elif c.op in WRITE and c.args[2] in self.starts:
            value, cache = _vars(c.args[:2])
            self.written[cache] = value
            self.cache_writes.update(c.outs)
        elif c.op in WITH_CACHE and c.args[5] in self.starts:
            self._attend(c, c.args[:3], c.args[3:5], *c.args[7:])
        elif c.op in OVER_CACHE and c.args[3] in self.starts and all(v in self.written for v in _vars(c.args[1:3])):
            new = [self.written[v] for v in _vars(c.args[1:3])]
            self._attend(c, (c.args[0], *new), c.args[1:3], *c.args[4:])
        else:
            self._refuse(f"{c.where} uses the position in an unsupported way")

    def _after_last(self, args: Sequence[Operand]) -> bool:
        return len(args) == 2 and any(a in self.starts and b in self.lengths for a, b in (args, args[::-1]))

    def _constant(self, table: Operand) -> bool:
        return isinstance(table, Var) and table not in self.starts and table.kind == "constant"

    def _attend(
        self,
        c: Call,
        qkv: Sequence[Operand],
        caches: Sequence[Operand],
        mask: Operand = None,
        dropout: Operand = 0.0,
        causal: Operand = False,
        scale: Operand = None,
    ) -> None:
        if mask is not None or not causal or dropout:
            self._refuse(f"{c.where} has a mask, or is not causal")
        pages = [self._paged(cache) for cache in _vars(caches)]
        self.code.append(replace(c, op=ATTEND, args=(*qkv, *pages, self.rows, self.tables, self.single, scale)))

    def _paged(self, cache: Var) -> Var:
        if cache not in self.caches:
            if cache.kind != "state" or len(cache.sizes) != 4 or cache.sizes[0] != 1:
                self._refuse(f"{cache!r} is not a cache of one sequence")
            sizes = (1, PAGE, *cache.sizes[2:])
            self.caches[cache] = Var(f"{cache.name} in pages", cache.dtype, sizes, kind="state")
        return self.caches[cache]


def _last_row(head: Call, writers: dict[Var, Call]) -> Call | None:
    """Return the call that takes the last row, between the layers and the product that computes the logits."""
    at = writers.get(_vars(head.args[:1])[0])
    while (
        at is not None and at.op not in ROW_TAKING and (_is_view(at) or facts_of(at.op).by_row in ("norm", "elements"))
    ):
        at = writers.get(_vars(at.args[:1])[0])
    return at if at is not None and at.op in ROW_TAKING and at.args[1] == 1 else None


def _is_view(call: Call) -> bool:
    return call.op in REGISTRY and REGISTRY[call.op].view is not None


def _vars(operands: Sequence[Operand]) -> list[Var]:
    return [v for v in operands if isinstance(v, Var)]
