"""Which tokens of which texts run next. Knows of no GPU, no thread and no clock.

A run has a row for the newest token of every text that is being written, and behind these as much of new prompts as the
run has room for: prompts wait for texts, never the other way round. A request that runs has a slot, and pages for all
its tokens; where these run out, the youngest gives its pages back and waits, and what it has written so far is part of
its prompt when its turn comes again. So the oldest always goes on, and each gets the tokens that it gets alone.

A run may be planned before what the one before it gave is known: where a token is not known yet, the run takes it from
that one. What such a run gives for a text that turns out to have ended is of no use, and is left out.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ...errors import InvalidInput, QueueFull
from .generation import FinishReason
from .pages import Pages

LATEST = -1  # in place of the token that the run before chooses
Reason = FinishReason | Literal["failed"]  # failed: its logits are not finite numbers
State = Literal["new", "waiting", "running", "ended"]


@dataclass(eq=False, slots=True)
class Request:
    """A text to be written. What is below `waits` is the scheduler's."""

    prompt: Sequence[int]
    max_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    deadline: float = math.inf
    owner: str = ""  # requests of one owner wait for each other, not those of others for all of them
    caller: Any = None  # whatever the caller wants to know it by
    waits: bool = False  # whether each of its tokens has to be known before the next one is run

    state: State = field(default="new", init=False)
    tokens: list[int] = field(default_factory=list, init=False)  # the prompt, and what was written
    pending: int = field(default=0, init=False)  # tokens that runs on their way will give, beyond these
    computed: int = field(default=0, init=False)  # tokens whose keys and values are in pages, after the runs planned
    reused: int = field(default=0, init=False)  # of these, tokens of the prompt that were there when it began
    pages: list[int] = field(default_factory=list, init=False)
    settled: int = field(default=0, init=False)  # of the pages, those that others can find
    slot: int = field(default=-1, init=False)
    turn: tuple[int, int] = field(default=(0, 0), init=False)  # less is older
    preempted: int = field(default=0, init=False)  # times

    @property
    def written(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def left(self) -> int:
        """Tokens to run before the next one is chosen."""
        return len(self.tokens) + self.pending - self.computed


@dataclass(slots=True)
class Work:
    """The rows of a run: tokens, and whose they are and where."""

    tokens: list[int] = field(default_factory=list)  # or LATEST
    rows: list[tuple[int, int]] = field(default_factory=list)  # slot, position
    wanted: list[int] = field(default_factory=list)  # rows after which a token is chosen
    whose: list[Request] = field(default_factory=list)  # for each of these
    steps: list[int] = field(default_factory=list)  # and which of its tokens it is
    requests: list[Request] = field(default_factory=list)  # all that have rows


class Event(NamedTuple):
    """A token of a request, its end, or both."""

    request: Request
    token: int | None = None
    logprob: float = 0.0
    reason: Reason | None = None


class Scheduler:
    """`rows` are the most of a run, `beside` the most of prompts in a run that also writes, `limit` the most requests
    that wait. Between `plan` and `done` of what it gave there is one other `plan` at most."""

    def __init__(
        self, pages: Pages, context: int, sequences: int, rows: int, beside: int | None = None, limit: float = math.inf
    ) -> None:
        if pages.count * pages.size < context:
            raise InvalidInput(f"{pages.count} pages of {pages.size} tokens cannot hold a context of {context}")
        if not 1 <= sequences <= rows:
            raise InvalidInput(f"{rows} rows of a run cannot serve {sequences} sequences")
        self.pages, self.context, self.rows, self.limit = pages, context, rows, limit
        self.sequences = sequences
        self.beside = rows if beside is None else max(1, beside)
        self.waiting: list[Request] = []  # the next one first
        self.running: list[Request] = []  # the oldest first
        self._slots = list(range(sequences))[::-1]  # that are free
        self._turn = self._count = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Let a request wait for its turn; QueueFull if too many do. Owners take turns, and each one's are in order.

        A turn comes after the one that is served now, so those who come later never keep one waiting for ever.
        """
        if len(self.waiting) >= self.limit:
            raise QueueFull(f"{len(self.waiting)} requests are waiting already; try again later")
        last = max((r.turn[0] for r in self.waiting if r.owner == request.owner), default=0)
        self._count += 1
        request.turn = (max(self._turn, last) + 1, self._count)
        request.tokens = list(request.prompt)
        request.state = "waiting"
        self._queue(request)

    def end(self, request: Request) -> None:
        """It needs nothing more. Rows of it that run just now are of no use; `done` leaves them out."""
        if request.state == "waiting":
            self.waiting.remove(request)
        elif request.state == "running":
            self._stop(request)
        request.state = "ended"

    def expire(self, now: float) -> list[Event]:
        """End what is past its deadline."""
        late = [r for r in (*self.running, *self.waiting) if r.deadline <= now]
        for request in late:
            self.end(request)
        return [Event(request, reason="deadline") for request in late]

    def plan(self) -> Work | None:
        """The next run; None if there is nothing to do, before a run on its way is done."""
        work = Work()
        for request in list(self.running):
            if request.state == "running" and self.writes(request) and self._grow(request):
                self._rows(work, request, 1)
        room = self.rows - len(work.rows)
        if work.rows:
            room = min(room, self.beside)
        for request in self.running:
            if room and not request.pending:
                room -= self._rows(work, request, room)
        while room and (admitted := self._admit()):
            room -= self._rows(work, admitted, room)
        return work if work.rows else None

    def writes(self, request: Request) -> bool:
        """Whether a row of its newest token is all that it needs before the next one is chosen."""
        length = len(request.tokens) + request.pending
        if not request.pending:
            return length - request.computed == 1
        more = length - len(request.prompt) < request.max_tokens and length <= self.context
        return more and not request.waits

    def done(self, work: Work, tokens: Sequence[int], logprobs: Sequence[float]) -> list[Event]:
        """What a run gave, in the order of runs: a token and its log-probability for each row that was wanted.

        Who lost its pages since keeps its token, unless a later run has given it, too.
        """
        events = []
        for request, step, token, logprob in zip(work.whose, work.steps, tokens, logprobs, strict=True):
            if request.state != "ended" and request.written == step:
                events.append(self._add(request, token, logprob))
        for request in work.requests:
            if request.state == "running":
                self._settle(request)
        for event in events:
            if event.reason:
                self.end(event.request)
        return events

    def _add(self, request: Request, token: int, logprob: float) -> Event:
        if not math.isfinite(logprob):
            return Event(request, reason="failed")
        if token in request.stop_tokens:
            return Event(request, reason="stop")
        request.tokens.append(token)
        request.pending = max(0, request.pending - 1)
        if request.written >= request.max_tokens:
            return Event(request, token, logprob, "length")
        return Event(request, token, logprob, "context" if len(request.tokens) > self.context else None)

    def _admit(self) -> Request | None:
        """The next request that waits, with a slot and pages for its tokens; None if there is none or no room for it.

        A page for each that runs is left, or the new one would soon give way again.
        """
        if not self.waiting or not self._slots:
            return None
        request = self.waiting[0]
        self._reuse(request)
        missing = -(-len(request.tokens) // self.pages.size) - len(request.pages)
        if missing + len(self.running) > self.pages.available:
            self._let_go(request)
            return None
        del self.waiting[0]
        request.pages += [self.pages.take() for _ in range(missing)]
        request.slot, request.state = self._slots.pop(), "running"
        if not request.preempted:
            request.reused = request.computed
        self._turn = max(self._turn, request.turn[0])
        insort(self.running, request, key=lambda r: r.turn)
        return request

    def _rows(self, work: Work, request: Request, room: int) -> int:
        """Rows for what is left of a request's tokens, as many as there is room for; how many."""
        first, known, size = request.computed, len(request.tokens), self.pages.size
        length = known + request.pending
        end = request.computed = min(first + room, length)
        work.requests.append(request)
        work.tokens += request.tokens[first:end] if first < known else [LATEST]
        work.rows += [(request.slot, position) for position in range(first, end)]
        if end == length:
            work.wanted.append(len(work.rows) - 1)
            work.whose.append(request)
            work.steps.append(length - len(request.prompt))
            request.pending += 1
        for k in range(first // size, min(end, known) // size):  # full with this run
            self.pages.know(request.pages[k], *self._key(request, k))
        return end - first

    def _reuse(self, request: Request) -> None:
        """Pages that are known take the place of tokens to run; the last token is always run."""
        while request.left > self.pages.size:
            page = self.pages.find(*self._key(request, len(request.pages)))
            if page is None:
                break
            request.pages.append(page)
            request.computed += self.pages.size
        request.settled = len(request.pages)

    def _settle(self, request: Request) -> None:
        """Its pages that are full now are known; not earlier, as a run does not write pages that are."""
        for k in range(request.settled, min(request.computed, len(request.tokens)) // self.pages.size):
            request.pages[k] = self.pages.settle(request.pages[k], *self._key(request, k))
            request.settled = k + 1

    def _key(self, request: Request, k: int) -> tuple[int, Sequence[int]]:
        """What the k-th page of a request is known by."""
        size = self.pages.size
        return request.pages[k - 1] if k else -1, request.tokens[k * size : (k + 1) * size]

    def _grow(self, request: Request) -> bool:
        """A page for its next token, if need be that of the youngest, which may be itself."""
        while len(request.pages) * self.pages.size <= request.computed:
            if self.pages.available:
                request.pages.append(self.pages.take())
            else:
                youngest = self.running[-1]
                self._stop(youngest)
                youngest.state, youngest.preempted = "waiting", youngest.preempted + 1
                self._queue(youngest)
                if youngest is request:
                    return False
        return True

    def _queue(self, request: Request) -> None:
        insort(self.waiting, request, key=lambda r: r.turn)

    def _stop(self, request: Request) -> None:
        self.running.remove(request)
        self._slots.append(request.slot)
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        self.pages.release(request.pages)
        request.pages, request.computed, request.settled, request.pending = [], 0, 0, 0
