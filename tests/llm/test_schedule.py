"""The scheduler over random histories, with a model that is a function of the previous tokens.

A request gets the same tokens whatever other requests do.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptegpu.errors import InvalidInput, QueueFull
from ptegpu.models.text.generation import Acceptance
from ptegpu.models.text.pages import Pages
from ptegpu.models.text.sampling import Sampler, Sampling
from ptegpu.models.text.schedule import LATEST, Event, PlannedRun, Scheduler, TextRequest
from ptegpu.models.text.speculation import Speculation

SIZE = 4
VOCABULARY = 7
END = 0
FREE, PENALISED = Sampler(Sampling(seed=0), VOCABULARY), Sampler(Sampling(repeat_penalty=2.0, seed=0), VOCABULARY)


def following(seed: int, tokens: Sequence[int]) -> tuple[int, float]:
    """Return the next token and a number in place of its log-probability."""
    rng = random.Random(hash((seed, *tokens)))
    return rng.randrange(VOCABULARY), rng.random()


def generate_alone(request: TextRequest, context: int) -> tuple[list[int], str]:
    tokens: list[int] = []
    while len(tokens) < request.max_tokens and len(request.prompt) + len(tokens) <= context:
        token, _ = following(request.caller, [*request.prompt, *tokens])
        if token in request.stop_tokens:
            return tokens, "stop"
        tokens.append(token)
    return tokens, "length" if len(tokens) >= request.max_tokens else "context"


class Guesses:
    """Proposals of which some are wrong. A text is known by its seed, and may have none at some places."""

    drafted = False

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def available(self, text: Sequence[int], most: int) -> int:
        return min(most, random.Random(len(text)).randrange(6))

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        rng, proposals = random.Random(len(text)), list[int]()
        for _ in range(count):
            right = following(self.seed, [*text, *proposals])[0]
            proposals.append(right if rng.random() < 0.7 else rng.randrange(VOCABULARY))
        return proposals


def guessing(request: TextRequest, count: int) -> Acceptance:
    """Let a request verify proposals; return what becomes of them."""
    acceptance = Acceptance()
    request.speculation = Speculation([Guesses(request.caller)], count, [acceptance])
    return acceptance


class World:
    """A scheduler, a paged cache, and the history of all requests. `ahead` runs begin before the first is done."""

    def __init__(
        self, pages: int, context: int, sequences: int, rows: int, prefill_rows: int, limit: int, ahead: int = 0,
        sampled: int | None = None,
    ) -> None:  # fmt: skip
        self.pages = Pages(pages, SIZE)
        self.schedule = Scheduler(self.pages, context, sequences, rows, prefill_rows, limit, sampled)
        self.context, self.sequences, self.ahead = context, sequences, ahead
        self.memory: list[list[int | None]] = [[None] * SIZE for _ in range(pages)]
        self.outputs: dict[TextRequest, list[int]] = {}
        self.ends: dict[TextRequest, str] = {}
        self.started: deque[tuple[PlannedRun, list[tuple[int, float]]]] = deque()  # runs in flight, with their results
        self.latest = [LATEST] * sequences
        self.now, self.runs, self.discarded = 0.0, 0, 0

    def add(self, request: TextRequest) -> None:
        full = len(self.schedule.waiting) >= self.schedule.limit
        try:
            self.schedule.add(request)
        except QueueFull:
            assert full and request.state == "new"
        else:
            assert not full
            self.outputs[request] = []

    def cancel(self, number: int) -> None:
        active = [r for r in self.outputs if r.state != "ended"]
        if active:
            chosen = active[number % len(active)]
            self.schedule.end(chosen)
            self.ends[chosen] = "cancelled"

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.record(self.schedule.expire(self.now))
        assert all(r.deadline > self.now for r in (*self.schedule.running, *self.schedule.waiting))

    def record(self, events: list[Event]) -> None:
        for request, token, logprob, reason in events:
            assert request not in self.ends
            if token is not None:
                before = [*request.prompt, *self.outputs[request]]
                assert (token, logprob) == following(request.caller, before)
                self.outputs[request].append(token)
            if reason is not None:
                self.ends[request] = reason
                assert request.state == "ended"

    @property
    def work(self) -> PlannedRun:
        return self.started[-1][0]

    def plan(self) -> bool:
        """Start the next run, if there is any, and compute its results; `done` reports them later."""
        keys = dict(self.pages._keys)
        writing = [r for r in self.schedule.running if self.schedule.needs_one_row(r)]
        certain = [r for r in writing if not (r.speculation and r.pending)]  # others may wait for their latest token
        oldest = [r for r in self.schedule.running[:1] if r in certain]
        work = self.schedule.plan()
        if work is None:
            assert self.started or not self.schedule.busy
            return False
        work.propose()
        assert all(r in work.requests or not self.schedule.needs_one_row(r) for r in oldest)  # the oldest goes on
        assert all(r in work.requests or r.state == "waiting" for r in certain)
        decoded = sum(r in writing for r in work.requests) + sum(
            choice.number for choice, _, _ in work.verified.values()
        )
        assert len(work.sample_rows) <= self.schedule.sampled
        assert len(work.rows) == len(work.tokens) <= self.schedule.rows
        assert len(work.requests) == len(set(work.requests)) <= self.sequences
        assert not decoded or len(work.rows) - decoded <= self.schedule.prefill_rows
        tables = {r.slot: r for r in work.requests}
        assert len(tables) == len(work.requests)
        texts: dict[int, list[int]] = {}
        for (slot, position), token in zip(work.rows, work.tokens):
            request = tables[slot]
            before = texts.get(slot, request.tokens[:position])
            assert len(before) == position
            if position < len(request.tokens):
                assert token == request.tokens[position]
            elif request not in work.verified:
                assert token == LATEST
            text = texts[slot] = [*before, self.latest[slot] if token == LATEST else token]
            page = request.pages[position // SIZE]
            # a registered page is not written
            assert keys.get(page) is None or keys[page] is not self.pages._keys.get(page)
            self.memory[page][position % SIZE] = hash(tuple(text))  # depends on all tokens so far, as in a deep model
        assert all(len(texts[r.slot]) == r.computed for r in work.requests)
        results = []
        for k, request, step in zip(work.sample_rows, work.sample_requests, work.steps, strict=True):
            slot, position = work.rows[k]
            text = texts[slot][: position + 1]
            assert tables[slot] is request and position + 1 == len(text) == len(request.prompt) + step
            places = [(request.pages[p // SIZE], p % SIZE) for p in range(position + 1)]
            read = [self.memory[page][offset] for page, offset in places]
            assert read == [hash(tuple(text[: p + 1])) for p in range(position + 1)]
            results.append(following(request.caller, text))
            self.latest[slot] = results[-1][0]
            assert step < request.max_tokens and not (request.sampler.penalises and LATEST in work.tokens[k : k + 1])
        self.started.append((work, results))
        self.runs += 1
        return True

    def done(self) -> None:
        work, results = self.started.popleft()
        before = sum(len(output) for output in self.outputs.values())
        self.record(self.schedule.done(work, [t for t, _ in results], [p for _, p in results]))
        self.discarded += len(results) - sum(len(output) for output in self.outputs.values()) + before

    def step(self) -> None:
        """Plan a run or finish one, in an engine's order."""
        if len(self.started) > self.ahead or not self.plan():
            self.done()

    def check(self) -> None:
        running, waiting = self.schedule.running, self.schedule.waiting
        assert [r.turn for r in running] == sorted(r.turn for r in running)
        assert [r.turn for r in waiting] == sorted(r.turn for r in waiting)
        assert all(r.state == "running" and r.slot >= 0 for r in running)
        assert all(r.state == "waiting" and not r.pages and not r.computed for r in waiting)
        assert len({r.slot for r in running}) == len(running)
        assert self.pages.used == len({page for r in running for page in r.pages})
        counts = [0] * self.pages.count
        for page in (page for r in running for page in r.pages):
            counts[page] += 1
        assert counts == self.pages._references

    def finish(self) -> None:
        """Run until all requests have ended, and compare each with a run on its own."""
        most = self.runs + 10 + 4 * sum(len(r.tokens) + r.max_tokens for r in self.outputs if r.state != "ended") ** 2
        while self.schedule.busy or self.started:
            self.step()
            self.check()
            assert self.runs < most
        for request, output in self.outputs.items():
            tokens, reason = generate_alone(request, self.context)
            if self.ends[request] in ("cancelled", "deadline"):
                assert tokens[: len(output)] == output
            else:
                assert (tokens, reason) == (output, self.ends[request])
        assert (0, self.pages.count) == (self.pages.used, self.pages.available)
        assert self.sequences == len(set(self.schedule._slots))


@st.composite
def requests(draw: st.DrawFn, context: int) -> TextRequest:
    """Draw requests whose prompts often begin alike."""
    length = draw(st.integers(1, context))
    same = draw(st.integers(0, length))
    prompt = [2] * same + [draw(st.integers(1, 2)) for _ in range(min(3, length - same))]
    prompt += [3] * (length - len(prompt))
    deadline = draw(st.sampled_from([math.inf, math.inf, 20.0, 3.0]))
    stops = draw(st.sampled_from([frozenset[int](), frozenset({END})]))
    owner, seed = draw(st.sampled_from("ab")), draw(st.integers(0, 2))
    max_tokens, sampler = draw(st.integers(1, 12)), draw(st.sampled_from([FREE, PENALISED]))
    request = TextRequest(prompt, max_tokens, sampler, context, stops, deadline, owner, seed)
    if draw(st.booleans()):
        guessing(request, draw(st.integers(1, 5)))
    return request


@given(st.data())
@settings(max_examples=1500, deadline=None)
def test_each_request_gets_what_it_gets_alone(data: st.DataObject) -> None:
    context = data.draw(st.integers(1, 24))
    sequences = data.draw(st.integers(1, 5))
    rows, more = data.draw(st.integers(sequences, 30)), data.draw(st.integers(0, 8))
    prefill_rows, limit = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
    world = World(
        -(-context // SIZE) + more, context, sequences, rows, prefill_rows, limit, data.draw(st.integers(0, 1)),
        sequences + data.draw(st.integers(0, 12)),
    )  # fmt: skip
    for action in data.draw(
        st.lists(st.sampled_from(["add", "add", "run", "run", "run", "cancel", "wait"]), max_size=40)
    ):
        if action == "add":
            world.add(data.draw(requests(context)))
        elif action == "cancel":
            world.cancel(data.draw(st.integers(0, 9)))
        elif action == "wait":
            world.wait(data.draw(st.integers(0, 4)))
        elif world.started or world.schedule.busy:
            world.step()
        world.check()
    world.finish()


def test_thousands_of_longer_histories() -> None:
    """Histories drawn by Hypothesis are short, which keeps its failures readable; these are longer."""
    preempted = shared = discarded = 0
    acceptances: list[Acceptance] = []
    for seed in range(2000):
        rng = random.Random(seed)
        context = rng.randrange(4, 60)
        sequences = rng.randrange(1, 9)
        pages = -(-context // SIZE) + rng.randrange(0, 3 * sequences)
        rows, prefill_rows = sequences + rng.randrange(40), rng.randrange(1, 20)
        world = World(pages, context, sequences, rows, prefill_rows, 20, seed % 2, sequences + rng.randrange(16))
        begin = [rng.randrange(1, VOCABULARY) for _ in range(context)]
        for _ in range(rng.randrange(60)):
            action = rng.random()
            if action < 0.3:
                same, length = rng.randrange(context), rng.randrange(1, context + 1)
                prompt = (begin[:same] + [rng.randrange(1, VOCABULARY) for _ in range(length)])[:length]
                deadline = world.now + rng.randrange(1, 9) if rng.random() < 0.2 else math.inf
                stops = frozenset({END}) if rng.random() < 0.5 else frozenset[int]()
                owner = rng.choice("abc")
                seed_of_text, sampler = rng.randrange(3), PENALISED if rng.random() < 0.2 else FREE
                max_tokens = rng.randrange(1, 40)
                queued = TextRequest(prompt, max_tokens, sampler, context, stops, deadline, owner, seed_of_text)
                if rng.random() < 0.5:
                    acceptances.append(guessing(queued, rng.randrange(1, 6)))
                world.add(queued)
            elif action < 0.35:
                world.cancel(rng.randrange(99))
            elif action < 0.4:
                world.wait(rng.random())
            elif world.started or world.schedule.busy:
                world.step()
            world.check()
        world.finish()
        preempted += sum(r.preempted for r in world.outputs)
        shared += sum(r.reused for r in world.outputs)
        discarded += world.discarded
    assert preempted > 500 and shared > 5000 and discarded > 500
    proposed, accepted = sum(a.proposed for a in acceptances), sum(a.accepted for a in acceptances)
    assert 0.5 * proposed < accepted < 0.9 * proposed and proposed > 20000


def request(
    prompt: Sequence[int], max_tokens: int = 3, context: int = 64, sampler: Sampler = FREE, **more: object
) -> TextRequest:
    return TextRequest(prompt, max_tokens, sampler, context, caller=0, **more)  # type: ignore[arg-type]


def test_texts_go_on_while_a_long_prompt_comes_in() -> None:
    world = World(40, 64, 4, 16, 6, 9)
    world.add(request([1, 2, 3], 20))
    world.plan()
    world.done()
    world.add(request([4] * 20))
    counts = []
    for _ in range(4):
        world.plan()
        counts.append(len(world.work.rows))
        world.done()
    assert [7, 7, 7, 3] == counts  # a token of the first and 6 of the second, and so on
    world.finish()


def test_a_prompt_in_use_is_run_once() -> None:
    """Two requests that arrive at the same time share it: the second reads what the first writes in the same run."""
    world = World(40, 64, 4, 64, 64, 9)
    system = [1, 2, 3, 4, 5, 6, 5, 4]
    world.add(request([*system, 1]))
    world.add(request([*system, 2, 3]))
    world.plan()
    assert [9, 2] == [sum(slot == r.slot for slot, _ in world.work.rows) for r in world.work.requests]
    first, second = world.schedule.running
    assert first.pages[:2] == second.pages[:2]
    assert (4, 8) == (world.pages.used, second.reused)
    world.done()
    world.finish()


def test_owners_take_turns() -> None:
    world = World(40, 64, 1, 64, 64, 99)
    for k in range(4):
        world.add(request([1, k], owner="busy"))
    world.add(request([2], owner="late"))
    world.add(request([3], owner="later"))
    assert ["busy", "late", "later", "busy", "busy", "busy"] == [r.owner for r in world.schedule.waiting]
    world.finish()


def test_nobody_waits_for_ever_for_those_who_come_later() -> None:
    world = World(40, 64, 1, 64, 64, 99)
    patient = [request([1, k], owner="patient") for k in range(3)]
    for queued in patient:
        world.add(queued)
    for k in range(20):
        world.add(request([2], 1, owner=str(k)))
        world.plan()
        world.done()
    assert {"ended"} == {queued.state for queued in patient}
    world.finish()


def test_the_youngest_gives_way_and_comes_back() -> None:
    world = World(5, 20, 2, 8, 8, 9)
    old, young = request([1, 2, 3], 15, 20), request([4, 5, 6], 15, 20)
    world.add(old)
    world.add(young)
    while not young.preempted:
        world.plan()
        world.done()
    assert ("running", "waiting", []) == (old.state, young.state, young.pages)
    assert young.generated > 0
    world.finish()
    assert 0 == old.preempted


def test_the_next_run_begins_before_a_token_is_known() -> None:
    schedule = Scheduler(Pages(9, SIZE), 20, 3, 8)
    stops, goes_on, waits = (
        request([1, 2], 9, stop_tokens=frozenset({END})),
        request([3], 2),
        request([4], 2, sampler=PENALISED),
    )
    for queued in (stops, goes_on, waits):
        schedule.add(queued)
    first, second = schedule.plan(), schedule.plan()
    assert first is not None and second is not None
    assert [1, 2, 3, 4] == first.tokens
    assert ([LATEST, LATEST], [stops, goes_on], [1, 1]) == (second.tokens, second.sample_requests, second.steps)
    chances = [0.5] * 3
    expected = [Event(stops, reason="stop"), Event(goes_on, 5, 0.5), Event(waits, 6, 0.5)]
    assert expected == schedule.done(first, [END, 5, 6], chances)
    third = schedule.plan()
    assert third is not None and ([6], [waits]) == (third.tokens, third.sample_requests)  # the other is complete
    assert [Event(goes_on, 8, 0.5, "length")] == schedule.done(second, [7, 8], chances[:2])
    assert [Event(waits, 9, 0.5, "length")] == schedule.done(third, [9], chances[:1])
    assert not schedule.busy and 0 == schedule.pages.used


def test_a_request_that_failed_tells_so() -> None:
    schedule = Scheduler(Pages(5, SIZE), 20, 2, 8)
    failing = request([1, 2])
    schedule.add(failing)
    work = schedule.plan()
    assert work is not None
    assert [Event(failing, reason="failed")] == schedule.done(work, [3], [math.nan])
    assert not schedule.busy


def test_what_cannot_be() -> None:
    with pytest.raises(InvalidInput, match=r"^4 pages of 4 tokens cannot hold a context of 17$"):
        Scheduler(Pages(4, SIZE), 17, 1, 1)
    with pytest.raises(InvalidInput, match=r"^3 rows of a run cannot serve 4 sequences$"):
        Scheduler(Pages(4, SIZE), 16, 4, 3)
    schedule = Scheduler(Pages(4, SIZE), 16, 1, 3, limit=1)
    schedule.add(request([1]))
    with pytest.raises(QueueFull, match=r"^1 requests are waiting already; try again later$"):
        schedule.add(request([1]))
