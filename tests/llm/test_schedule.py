"""The scheduler over random histories, with a model that is a function of the tokens before: nobody notices others."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptegpu.errors import InvalidInput, QueueFull
from ptegpu.models.text.pages import Pages
from ptegpu.models.text.sampling import Sampler, Sampling
from ptegpu.models.text.schedule import LATEST, Event, PlannedRun, Scheduler, TextRequest

SIZE = 4
VOCABULARY = 7
END = 0
FREE, PENALISED = Sampler(Sampling(seed=0), VOCABULARY), Sampler(Sampling(repeat_penalty=2.0, seed=0), VOCABULARY)


def following(seed: int, tokens: Sequence[int]) -> tuple[int, float]:
    """The next token and what stands for its log-probability."""
    drawn = random.Random(hash((seed, *tokens)))
    return drawn.randrange(VOCABULARY), drawn.random()


def alone(request: TextRequest, context: int) -> tuple[list[int], str]:
    tokens: list[int] = []
    while len(tokens) < request.max_tokens and len(request.prompt) + len(tokens) <= context:
        token, _ = following(request.caller, [*request.prompt, *tokens])
        if token in request.stop_tokens:
            return tokens, "stop"
        tokens.append(token)
    return tokens, "length" if len(tokens) >= request.max_tokens else "context"


class World:
    """A scheduler, a cache in pages, and all that ever happened. `ahead` runs begin before one is done."""

    def __init__(
        self, pages: int, context: int, sequences: int, rows: int, beside: int, limit: int, ahead: int = 0
    ) -> None:
        self.pages = Pages(pages, SIZE)
        self.schedule = Scheduler(self.pages, context, sequences, rows, beside, limit)
        self.context, self.sequences, self.ahead = context, sequences, ahead
        self.memory: list[list[int | None]] = [[None] * SIZE for _ in range(pages)]
        self.made: dict[TextRequest, list[int]] = {}
        self.ends: dict[TextRequest, str] = {}
        self.works: deque[tuple[PlannedRun, list[tuple[int, float]]]] = deque()  # on their way, with what they give
        self.latest = [LATEST] * sequences
        self.now, self.runs, self.useless = 0.0, 0, 0

    def add(self, request: TextRequest) -> None:
        full = len(self.schedule.waiting) >= self.schedule.limit
        try:
            self.schedule.add(request)
        except QueueFull:
            assert full and request.state == "new"
        else:
            assert not full
            self.made[request] = []

    def cancel(self, number: int) -> None:
        there = [r for r in self.made if r.state != "ended"]
        if there:
            chosen = there[number % len(there)]
            self.schedule.end(chosen)
            self.ends[chosen] = "cancelled"

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.told(self.schedule.expire(self.now))
        assert all(r.deadline > self.now for r in (*self.schedule.running, *self.schedule.waiting))

    def told(self, events: list[Event]) -> None:
        for request, token, logprob, reason in events:
            assert request not in self.ends
            if token is not None:
                before = [*request.prompt, *self.made[request]]
                assert (token, logprob) == following(request.caller, before)
                self.made[request].append(token)
            if reason is not None:
                self.ends[request] = reason
                assert request.state == "ended"

    @property
    def work(self) -> PlannedRun:
        return self.works[-1][0]

    def plan(self) -> bool:
        """The next run, which takes place at once; what it gives is told later."""
        keys = dict(self.pages._keys)
        writing = [r for r in self.schedule.running if self.schedule.needs_one_row(r)]
        oldest = self.schedule.running[:1]
        work = self.schedule.plan()
        if work is None:
            assert self.works or not self.schedule.busy
            return False
        assert all(r in work.requests or not self.schedule.needs_one_row(r) for r in oldest)  # the oldest goes on
        assert all(r in work.requests or r.state == "waiting" for r in writing)
        decoded = sum(r in writing for r in work.requests)
        assert len(work.rows) == len(work.tokens) <= self.schedule.rows
        assert len(work.requests) == len(set(work.requests)) <= self.sequences
        assert not decoded or len(work.rows) - decoded <= self.schedule.prefill_rows
        tables = {r.slot: r for r in work.requests}
        assert len(tables) == len(work.requests)
        texts: dict[int, list[int]] = {}
        for (slot, position), token in zip(work.rows, work.tokens):
            request = tables[slot]
            known = position < len(request.tokens)
            assert token == (request.tokens[position] if known else LATEST)
            assert len(texts.get(slot, request.tokens[:position])) == position
            text = texts[slot] = [*request.tokens[:position], token if known else self.latest[slot]]
            page = request.pages[position // SIZE]
            assert keys.get(page) is None or keys[page] is not self.pages._keys.get(page)  # a known page is not written
            self.memory[page][position % SIZE] = hash(tuple(text))  # as of a deep model
        assert all(len(texts[r.slot]) == r.computed for r in work.requests)
        results = []
        for k, request, step in zip(work.sample_rows, work.sample_requests, work.steps, strict=True):
            slot, position = work.rows[k]
            text = texts[slot]
            assert tables[slot] is request and position + 1 == len(text) == len(request.prompt) + step
            places = [(request.pages[p // SIZE], p % SIZE) for p in range(position + 1)]
            read = [self.memory[page][offset] for page, offset in places]
            assert read == [hash(tuple(text[: p + 1])) for p in range(position + 1)]
            results.append(following(request.caller, text))
            self.latest[slot] = results[-1][0]
            assert step < request.max_tokens and not (request.sampler.penalises and LATEST in work.tokens[k : k + 1])
        self.works.append((work, results))
        self.runs += 1
        return True

    def done(self) -> None:
        work, results = self.works.popleft()
        before = sum(len(made) for made in self.made.values())
        self.told(self.schedule.done(work, [t for t, _ in results], [p for _, p in results]))
        self.useless += len(results) - sum(len(made) for made in self.made.values()) + before

    def step(self) -> None:
        """As an engine does."""
        if len(self.works) > self.ahead or not self.plan():
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
        """All that is left, which ends."""
        most = self.runs + 10 + 4 * sum(len(r.tokens) + r.max_tokens for r in self.made if r.state != "ended") ** 2
        while self.schedule.busy or self.works:
            self.step()
            self.check()
            assert self.runs < most
        for request, made in self.made.items():
            tokens, reason = alone(request, self.context)
            if self.ends[request] in ("cancelled", "deadline"):
                assert tokens[: len(made)] == made
            else:
                assert (tokens, reason) == (made, self.ends[request])
        assert (0, self.pages.count) == (self.pages.used, self.pages.available)
        assert self.sequences == len(set(self.schedule._slots))


@st.composite
def requests(draw: st.DrawFn, context: int) -> TextRequest:
    """Prompts begin alike, often."""
    length = draw(st.integers(1, context))
    same = draw(st.integers(0, length))
    prompt = [2] * same + [draw(st.integers(1, 2)) for _ in range(min(3, length - same))]
    prompt += [3] * (length - len(prompt))
    deadline = draw(st.sampled_from([math.inf, math.inf, 20.0, 3.0]))
    stops = draw(st.sampled_from([frozenset[int](), frozenset({END})]))
    owner, seed = draw(st.sampled_from("ab")), draw(st.integers(0, 2))
    max_tokens, sampler = draw(st.integers(1, 12)), draw(st.sampled_from([FREE, PENALISED]))
    return TextRequest(prompt, max_tokens, sampler, context, stops, deadline, owner, seed)


@given(st.data())
@settings(max_examples=1500, deadline=None)
def test_each_request_gets_what_it_gets_alone(data: st.DataObject) -> None:
    context = data.draw(st.integers(1, 24))
    sequences = data.draw(st.integers(1, 5))
    rows, more = data.draw(st.integers(sequences, 30)), data.draw(st.integers(0, 8))
    beside, limit = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
    world = World(-(-context // SIZE) + more, context, sequences, rows, beside, limit, data.draw(st.integers(0, 1)))
    for what in data.draw(
        st.lists(st.sampled_from(["add", "add", "run", "run", "run", "cancel", "wait"]), max_size=40)
    ):
        if what == "add":
            world.add(data.draw(requests(context)))
        elif what == "cancel":
            world.cancel(data.draw(st.integers(0, 9)))
        elif what == "wait":
            world.wait(data.draw(st.integers(0, 4)))
        elif world.works or world.schedule.busy:
            world.step()
        world.check()
    world.finish()


def test_thousands_of_longer_histories() -> None:
    """Those above are short, so that what fails is told briefly."""
    preempted = shared = useless = 0
    for seed in range(2000):
        drawn = random.Random(seed)
        context = drawn.randrange(4, 60)
        sequences = drawn.randrange(1, 9)
        pages = -(-context // SIZE) + drawn.randrange(0, 3 * sequences)
        rows, beside = sequences + drawn.randrange(40), drawn.randrange(1, 20)
        world = World(pages, context, sequences, rows, beside, 20, ahead=seed % 2)
        begin = [drawn.randrange(1, VOCABULARY) for _ in range(context)]
        for _ in range(drawn.randrange(60)):
            what = drawn.random()
            if what < 0.3:
                same, length = drawn.randrange(context), drawn.randrange(1, context + 1)
                prompt = (begin[:same] + [drawn.randrange(1, VOCABULARY) for _ in range(length)])[:length]
                deadline = world.now + drawn.randrange(1, 9) if drawn.random() < 0.2 else math.inf
                stops = frozenset({END}) if drawn.random() < 0.5 else frozenset[int]()
                owner = drawn.choice("abc")
                seed_of_text, sampler = drawn.randrange(3), PENALISED if drawn.random() < 0.2 else FREE
                max_tokens = drawn.randrange(1, 40)
                world.add(TextRequest(prompt, max_tokens, sampler, context, stops, deadline, owner, seed_of_text))
            elif what < 0.35:
                world.cancel(drawn.randrange(99))
            elif what < 0.4:
                world.wait(drawn.random())
            elif world.works or world.schedule.busy:
                world.step()
            world.check()
        world.finish()
        preempted += sum(r.preempted for r in world.made)
        shared += sum(r.reused for r in world.made)
        useless += world.useless
    assert preempted > 500 and shared > 5000 and useless > 500


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
    """Also by two that come at once: what the first one writes in a run, the other reads in the same."""
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
    for asked in patient:
        world.add(asked)
    for k in range(20):
        world.add(request([2], 1, owner=str(k)))
        world.plan()
        world.done()
    assert {"ended"} == {asked.state for asked in patient}
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
    for asked in (stops, goes_on, waits):
        schedule.add(asked)
    first, second = schedule.plan(), schedule.plan()
    assert first is not None and second is not None
    assert [1, 2, 3, 4] == first.tokens
    assert ([LATEST, LATEST], [stops, goes_on], [1, 1]) == (second.tokens, second.sample_requests, second.steps)
    chances = [0.5] * 3
    told = [Event(stops, reason="stop"), Event(goes_on, 5, 0.5), Event(waits, 6, 0.5)]
    assert told == schedule.done(first, [END, 5, 6], chances)
    third = schedule.plan()
    assert third is not None and ([6], [waits]) == (third.tokens, third.sample_requests)  # the other one is complete
    assert [Event(goes_on, 8, 0.5, "length")] == schedule.done(second, [7, 8], chances[:2])
    assert [Event(waits, 9, 0.5, "length")] == schedule.done(third, [9], chances[:1])
    assert not schedule.busy and 0 == schedule.pages.used


def test_a_request_that_failed_tells_so() -> None:
    schedule = Scheduler(Pages(5, SIZE), 20, 2, 8)
    asked = request([1, 2])
    schedule.add(asked)
    work = schedule.plan()
    assert work is not None
    assert [Event(asked, reason="failed")] == schedule.done(work, [3], [math.nan])
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
