"""The scheduler: which tokens of which requests run next. It uses no GPU, no thread and no clock.

A run has one row for the newest token of each text in progress; the remaining rows are for parts of new prompts. So
prompts wait for texts, never the other way round. A running request has a slot, and pages for all its tokens. Where
pages run out, the youngest request gives its pages back and waits. The tokens it has generated are part of its prompt
when it is admitted again. So the oldest request always advances, and each gets the tokens that it would get alone.

A request may also have rows for proposed tokens. Those that turn out to be wrong leave keys and values behind the text,
which later rows overwrite; and the request waits for the result, because it does not know its length before.

A run may be planned before the results of the previous one are known; a row then takes its token from that run, on the
GPU. Results for a request that turns out to have ended are dropped.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ...errors import InvalidInput, QueueFull
from .generation import FinishReason
from .pages import Pages
from .sampling import Sampler
from .speculation import Costs, Proposals, Speculation

LATEST = -1  # in place of a token that the previous run chooses
Reason = FinishReason | Literal["failed"]  # failed: its logits are not finite numbers
State = Literal["new", "waiting", "running", "ended"]


class Event(NamedTuple):
    """A token of a request, its end, or both."""

    request: TextRequest
    token: int | None = None
    logprob: float = 0.0
    reason: Reason | None = None


@dataclass(eq=False, slots=True)
class TextRequest:
    """A text to generate. The fields from `state` on belong to the scheduler and the runner."""

    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler  # with a penalty, each token must reach the host before the next one runs
    context: int
    stop_tokens: frozenset[int] = frozenset()
    deadline: float = math.inf
    owner: str = ""  # owners take turns
    caller: Any = None  # whatever events go to
    lookahead: int = 1  # steps in one submit, if the caller waits for the end only
    speculation: Speculation | None = None  # None: no proposals
    cancelled: bool = False  # set by any thread, or by a signal handler

    state: State = field(default="new", init=False)
    tokens: list[int] = field(default_factory=list, init=False)  # the prompt and the generated ones
    pending: int = field(default=0, init=False)  # tokens beyond these that started runs will give
    computed: int = field(default=0, init=False)  # tokens whose keys and values are in pages, after the planned runs
    reused: int = field(default=0, init=False)  # tokens of the prompt that were in the cache at the start
    verifying: bool = field(default=False, init=False)  # a started run has rows for proposals
    pages: list[int] = field(default_factory=list, init=False)
    moved: bool = field(default=True, init=False)  # its pages are others than the runner knows
    registered: int = field(default=0, init=False)  # pages that are registered for reuse
    slot: int = field(default=-1, init=False)
    turn: tuple[int, int] = field(default=(0, 0), init=False)  # smaller is older
    preempted: int = field(default=0, init=False)  # times
    accepted: deque[tuple[int, float]] = field(default_factory=deque, init=False)  # tokens to take before the next run

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def room(self) -> int:
        """The number of tokens that may be proposed after the text, at most."""
        return min(self.max_tokens - self.generated - 1, self.context - len(self.tokens))

    def add(self, token: int, logprob: float) -> tuple[int | None, float, Reason | None]:
        """Append the token that was chosen, unless it ends the text; return that as an event has it."""
        if not math.isfinite(logprob):
            return None, 0.0, "failed"
        if token in self.stop_tokens:
            return None, 0.0, "stop"
        self.tokens.append(token)
        count = len(self.tokens)
        if count - len(self.prompt) >= self.max_tokens:
            return token, logprob, "length"
        return token, logprob, "context" if count > self.context else None


class PlannedProposals(NamedTuple):
    """Proposals for a request, and the number of their first row, among all rows and among the sampled ones."""

    choice: Proposals
    row: int
    sampled: int


@dataclass(slots=True)
class PlannedRun:
    """The rows of a run: tokens with their slots and positions, and the rows after which a token is sampled."""

    tokens: list[int] = field(default_factory=list)  # or LATEST
    rows: list[tuple[int, int]] = field(default_factory=list)  # slot, position
    sample_rows: list[int] = field(default_factory=list)
    sample_requests: list[TextRequest] = field(default_factory=list)  # for each sampled row
    steps: list[int] = field(default_factory=list)  # for each sampled row, the number of the token in its text
    proposals: list[Sequence[int]] = field(default_factory=list)  # for each sampled row, those between text and token
    verified: dict[TextRequest, PlannedProposals] = field(default_factory=dict)  # of the requests with proposals

    def propose(self) -> None:
        """Compute the proposals, in place of the zeros that the plan has for them."""
        for request, (choice, row, sampled) in self.verified.items():
            proposals = choice.source.propose(request.tokens, choice.number)
            self.tokens[row : row + len(proposals)] = proposals
            for k in range(len(proposals)):
                self.proposals[sampled + k] = proposals[: k + 1]

    requests: list[TextRequest] = field(default_factory=list)  # all that have rows


class Scheduler:
    """Requests that wait and run, planned into runs of at most `rows` rows.

    At most `prefill_rows` of them belong to prompts if the run also has texts in progress. A run chooses at most
    `sampled` tokens, by default one for each sequence. At most `limit` requests wait. Between `plan` and `done` of a
    run, `plan` is called at most once more.
    """

    def __init__(
        self,
        pages: Pages,
        context: int,
        sequences: int,
        rows: int,
        prefill_rows: int | None = None,
        limit: float = math.inf,
        sampled: int | None = None,
    ) -> None:
        if pages.count * pages.size < context:
            raise InvalidInput(f"{pages.count} pages of {pages.size} tokens cannot hold a context of {context}")
        if not 1 <= sequences <= rows:
            raise InvalidInput(f"{rows} rows of a run cannot serve {sequences} sequences")
        self.pages, self.sequences, self.rows, self.limit = pages, sequences, rows, limit
        self.prefill_rows = rows if prefill_rows is None else max(1, prefill_rows)
        self.sampled = sequences if sampled is None else sampled
        self.costs = Costs()  # of runs
        self.waiting: list[TextRequest] = []  # the next one first
        self.running: list[TextRequest] = []  # the oldest first
        self._slots = list(range(sequences))[::-1]  # free ones
        self._turn = self._count = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: TextRequest) -> None:
        """Queue a request; QueueFull if too many wait. Owners take turns; requests of one owner keep their order.

        A new request's turn comes after the one being served, so later requests never delay another one forever.
        """
        if len(self.waiting) >= self.limit:
            raise QueueFull(f"{len(self.waiting)} requests are waiting already; try again later")
        last = max((r.turn[0] for r in self.waiting if r.owner == request.owner), default=0)
        self._count += 1
        request.turn = (max(self._turn, last) + 1, self._count)
        self._wait(request)

    def end(self, request: TextRequest) -> None:
        """Remove a request. `done` ignores the rows that it has in started runs."""
        if request.state == "waiting":
            self.waiting.remove(request)
        elif request.state == "running":
            self._stop(request)
        request.state = "ended"

    def expire(self, now: float) -> list[Event]:
        """End the requests that were cancelled or are past their deadlines."""
        events = []
        for request in (*self.running, *self.waiting):
            if request.cancelled or request.deadline <= now:
                events.append(Event(request, reason="cancelled" if request.cancelled else "deadline"))
        for event in events:
            self.end(event.request)
        return events

    def plan(self) -> PlannedRun | None:
        """Return the next run; None if there is nothing to do before the results of a started run are known."""
        run = PlannedRun()
        for k, request in enumerate(running := list(self.running)):
            if request.state != "running" or not self.needs_one_row(request):
                continue
            choice = self._choose(run, request, len(running) - k)
            if choice and request.pending:  # its latest token must be known before the proposals after it
                continue
            if self._grow(request):
                self._add_rows(run, request, 1)
                if choice:
                    self._add_proposals(run, request, choice)
        room = self.rows - len(run.rows)
        if run.rows:
            room = min(room, self.prefill_rows)
        for request in self.running:
            if room and not request.pending:
                room -= self._add_rows(run, request, room)
        while room and len(run.sample_rows) < self.sampled and (admitted := self._admit()):
            room -= self._add_rows(run, admitted, room)
        return run if run.rows else None

    def needs_one_row(self, request: TextRequest) -> bool:
        """Return whether a row for its newest token is all that a request needs to get the next one."""
        length = len(request.tokens) + request.pending
        if request.verifying:
            return False
        if not request.pending:
            return length - request.computed == 1
        unfinished = length - len(request.prompt) < request.max_tokens and length <= request.context
        return unfinished and not request.sampler.penalises

    def done(self, run: PlannedRun, tokens: Sequence[int], logprobs: Sequence[float]) -> list[Event]:
        """Take the results of the oldest started run: a token and its log-probability for each sampled row.

        A request that has lost its pages since keeps its token, unless a later run has given the same one.
        """
        events: list[Event] = []
        rows = zip(run.sample_requests, run.steps, run.proposals, tokens, logprobs, strict=True)
        for request, step, proposals, token, logprob in rows:
            same = not proposals or request.tokens[-len(proposals) :] == proposals
            if request.state != "ended" and request.generated == step and same:
                events.append(Event(request, *request.add(token, logprob)))
                request.pending = 0 if proposals else max(0, request.pending - 1)
        for request, (choice, _, _) in run.verified.items():
            self._verified(request, choice, sum(event.request is request for event in events))
        for request in run.requests:
            if request.state == "running":
                self._register(request)
        for event in events:
            if event.reason:
                self.end(event.request)
        return events

    def _admit(self) -> TextRequest | None:
        """Start the next waiting request, with a slot and pages for its tokens; None without enough room.

        One page is left for each running request, or the new one would soon be preempted.
        """
        if not self.waiting or not self._slots:
            return None
        request = self.waiting[0]
        self._reuse(request)
        missing = -(-len(request.tokens) // self.pages.size) - len(request.pages)
        if missing + len(self.running) > self.pages.available:
            self._release(request)
            return None
        del self.waiting[0]
        request.pages += [self.pages.allocate() for _ in range(missing)]
        request.slot, request.state, request.moved = self._slots.pop(), "running", True
        if not request.preempted:
            request.reused = request.computed
        self._turn = max(self._turn, request.turn[0])
        insort(self.running, request, key=lambda r: r.turn)
        return request

    def _add_rows(self, run: PlannedRun, request: TextRequest, room: int) -> int:
        """Add rows for a request's remaining tokens, at most `room`; return their number."""
        first, count, size = request.computed, len(request.tokens), self.pages.size
        length = count + request.pending
        end = request.computed = min(first + room, length)
        run.requests.append(request)
        run.tokens += request.tokens[first:end] if first < count else [LATEST]
        run.rows += [(request.slot, position) for position in range(first, end)]
        if end == length:
            run.sample_rows.append(len(run.rows) - 1)
            run.sample_requests.append(request)
            run.steps.append(length - len(request.prompt))
            run.proposals.append([])
            request.pending += 1
        for k in range(first // size, min(end, count) // size):  # full with this run
            self.pages.register(request.pages[k], *self._key(request, k))
        return end - first

    def _choose(self, run: PlannedRun, request: TextRequest, left: int) -> Proposals | None:
        """Return proposals for a request that are worth their rows; `left` requests have none in this run yet."""
        if request.speculation is None:
            return None
        rows = len(run.rows) + left
        spare = min(self.rows - rows, self.sampled - len(run.sample_rows) - left) // left
        # Pages for proposals are taken only where each running request can still get one.
        ready = len(request.pages) + max(0, self.pages.available - len(self.running))
        most = min(request.room, spare, ready * self.pages.size - len(request.tokens))
        if most < 1:
            return None
        return request.speculation.choose(request.tokens, most, self.costs, rows, len(run.requests) + left)

    def _add_proposals(self, run: PlannedRun, request: TextRequest, choice: Proposals) -> None:
        """Add rows for proposals after the row of a request's latest token; `propose` computes them."""
        first, count = request.computed, choice.number
        while len(request.pages) * self.pages.size < first + count:
            request.pages.append(self.pages.allocate())
            request.moved = True
        row, sampled = len(run.rows), len(run.sample_rows)
        run.verified[request] = PlannedProposals(choice, row, sampled)
        run.tokens += [0] * count
        run.rows += [(request.slot, first + k) for k in range(count)]
        run.sample_rows += range(row, row + count)
        run.sample_requests += [request] * count
        run.steps += range(request.generated + 1, request.generated + 1 + count)
        run.proposals += [()] * count
        request.computed, request.verifying = first + count, True

    def _verified(self, request: TextRequest, choice: Proposals, tokens: int) -> None:
        """Take back the rows of wrong proposals, after a run that gave `tokens` tokens."""
        request.verifying = False
        request.computed = min(request.computed, len(request.tokens) - 1)
        if tokens and request.speculation:
            request.speculation.learn(choice, tokens - 1)

    def _reuse(self, request: TextRequest) -> None:
        """Take registered pages in place of tokens to run. The last token always runs."""
        while len(request.tokens) - request.computed > self.pages.size:
            page = self.pages.find(*self._key(request, len(request.pages)))
            if page is None:
                break
            request.pages.append(page)
            request.computed += self.pages.size
        request.registered = len(request.pages)

    def _register(self, request: TextRequest) -> None:
        """Register the pages that are full now; not earlier, because runs do not write registered pages."""
        for k in range(request.registered, min(request.computed, len(request.tokens)) // self.pages.size):
            page = self.pages.deduplicate(request.pages[k], *self._key(request, k))
            request.moved |= page != request.pages[k]
            request.pages[k], request.registered = page, k + 1

    def _key(self, request: TextRequest, k: int) -> tuple[int, Sequence[int]]:
        """Return what the k-th page of a request is registered under."""
        size = self.pages.size
        return request.pages[k - 1] if k else -1, request.tokens[k * size : (k + 1) * size]

    def _grow(self, request: TextRequest) -> bool:
        """Allocate a page for the next token, preempting the youngest request if need be; False if that is this one."""
        while len(request.pages) * self.pages.size <= request.computed:
            if self.pages.available:
                request.pages.append(self.pages.allocate())
                request.moved = True
            else:
                youngest = self.running[-1]
                self._stop(youngest)
                youngest.preempted += 1
                self._wait(youngest)
                if youngest is request:
                    return False
        return True

    def _wait(self, request: TextRequest) -> None:
        request.state = "waiting"
        insort(self.waiting, request, key=lambda r: r.turn)

    def _stop(self, request: TextRequest) -> None:
        self.running.remove(request)
        self._slots.append(request.slot)
        self._release(request)

    def _release(self, request: TextRequest) -> None:
        self.pages.release(request.pages)
        request.pages, request.computed, request.registered, request.pending = [], 0, 0, 0
        request.verifying = False
