"""Many requests at once on a GPU: each gets the tokens that it gets alone, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import ptegpu
from ptegpu import compile
from ptegpu.errors import Closed, DeviceLost, ExecutionError, InvalidInput, QueueFull, UnsupportedProgram
from ptegpu.gpu import open_device
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.compiling import GENERATE, ServeSizes
from ptegpu.models.text.generation import Generation
from ptegpu.models.text.handle import Finished, Handle, Piece
from ptegpu.plan.bundle import Bundle

DEMO = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
TEXTS = ("Once upon a time there was a king", "The", "In a dark forest lived a wolf who was", "A fox", "Then she said")
SYSTEM = "There was once a miller who had three sons, a mill, a donkey and a cat. When he died, the sons shared. "
FREE: dict[str, Any] = {"stop_tokens": ()}


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with LanguageModel(DEMO) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchEngine]:
    """With pages for less than two whole contexts, so that some have to give way."""
    with BatchEngine(DEMO, sequences=6, rows=40, beside=16, memory=0, queue=20) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        many = request.getfixturevalue("engine")
        wait_for(lambda: not many.runner.scheduler.busy)
        stats = many.stats()
        assert (0, 0, 0, "") == (stats.queue, stats.running, stats.pages_used, stats.error)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def drawn(chosen: random.Random) -> dict[str, Any]:
    """Settings of a request."""
    options: dict[str, Any] = {"max_tokens": chosen.randrange(1, 40), "seed": chosen.randrange(99)}
    if chosen.random() < 0.7:
        options["temperature"] = chosen.choice([0.5, 1.0, 1.3])
        options |= chosen.choice([{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.8}])
    options |= chosen.choice([{}, {}, {"repeat_penalty": 1.2}, {"stop": ["the", " and"]}, {"stop": "."}])
    return options | (FREE if chosen.random() < 0.5 else {})


def same(alone: Generation, many: Generation) -> None:
    assert (alone.tokens, alone.text, alone.finish_reason) == (many.tokens, many.text, many.finish_reason)
    np.testing.assert_allclose(alone.logprobs, many.logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_requests_get_what_they_get_alone(engine: BatchEngine, model: LanguageModel, seed: int) -> None:
    hold(engine, model, 12, seed)


@pytest.mark.slow
def test_many_random_requests_in_exact_mode() -> None:
    how: dict[str, Any] = {"precision": "exact"}
    with LanguageModel(DEMO, **how) as model, BatchEngine(DEMO, sequences=12, queue=64, **how) as engine:
        hold(engine, model, 24, 2)
        assert 0 == engine.stats().pages_used


def hold(engine: BatchEngine, model: LanguageModel, count: int, seed: int) -> None:
    """Requests that come and go at random; every one that finishes is as if it were alone."""
    chosen = random.Random(seed)
    handles: list[tuple[Handle, dict[str, Any], bool]] = []
    for _ in range(count):
        prompt = (SYSTEM if chosen.random() < 0.5 else "") + chosen.choice(TEXTS)
        options, leaves = drawn(chosen), chosen.random() < 0.2
        handles.append((engine.submit(prompt, options), options, leaves))  # type: ignore[arg-type]
        time.sleep(chosen.choice([0, 0, 0.05]))
        for handle, _, goes in handles:
            if goes:
                handle.cancel()
    finished = 0
    for handle, options, leaves in handles:
        made, prompt_tokens = handle.wait(), handle.generation.prompt_tokens
        alone = model.generate(prompt_tokens, **options)
        if made.finish_reason == "cancelled":
            assert leaves and alone.tokens[: len(made.tokens)] == made.tokens
            assert alone.text.startswith(made.text)
        else:
            finished += 1
            same(alone, made)
    assert finished >= count // 2


def test_who_gives_way_gets_the_same(engine: BatchEngine, model: LanguageModel) -> None:
    options = {"max_tokens": 120, "temperature": 1.0, "seed": 3, **FREE}
    handles = [engine.submit(text, options) for text in TEXTS]  # type: ignore[arg-type]
    for handle, text in zip(handles, TEXTS):
        same(model.generate(text, **options), handle.wait())  # type: ignore[arg-type]
    assert sum(handle.request.preempted for handle in handles) > 0


def test_a_common_beginning_is_stored_once(engine: BatchEngine, model: LanguageModel) -> None:
    system = model.encode(SYSTEM)
    whole = len(system) // 16 * 16
    assert whole >= 16
    first = engine.submit([*system, 30], {"max_tokens": 2, **FREE})  # type: ignore[typeddict-item]
    first.wait()
    handles = [engine.submit([*system, k, k + 1], {"max_tokens": 30, **FREE}) for k in (40, 50)]  # type: ignore[typeddict-item]
    for handle in handles:
        next(handle)
    tables = [list(handle.request.pages) for handle in handles]
    for handle in handles:
        made = handle.wait()
        assert (whole, len(system) + 2 - whole) == (made.timings.reused_tokens, made.timings.prefill_tokens)
        same(model.generate(made.prompt_tokens, max_tokens=30, **FREE), made)
    left, right = tables
    assert left[: whole // 16] == right[: whole // 16] and not set(left[whole // 16 :]) & set(right[whole // 16 :])


def test_two_threads_submit(engine: BatchEngine, model: LanguageModel) -> None:
    made: dict[tuple[int, int], Generation] = {}

    def submit(number: int) -> None:
        for k in range(3):
            text = TEXTS[(number + k) % len(TEXTS)]
            made[number, k] = engine.submit(text, {"max_tokens": 8, "temperature": 1.0, "seed": k}).wait()

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (number, k), got in made.items():
        text = TEXTS[(number + k) % len(TEXTS)]
        same(model.generate(text, max_tokens=8, temperature=1.0, seed=k), got)
    assert 6 == len(made)


def test_pieces_are_the_text_and_come_before_the_end(engine: BatchEngine) -> None:
    handle = engine.submit(TEXTS[0], {"max_tokens": 12, **FREE})  # type: ignore[typeddict-item]
    pieces = list(handle)
    made = handle.generation
    assert made.text == "".join(piece.text for piece in pieces)
    assert made.tokens == [piece.token for piece in pieces if piece.token is not None]
    assert (12, 11, "length") == (len(made.tokens), made.timings.decode_tokens, made.finish_reason)
    assert made.timings.prefill_s > 0 and made.timings.decode_s > 0
    assert [] == list(handle)


def test_an_event_loop(engine: BatchEngine, model: LanguageModel) -> None:
    async def whole(text: str) -> tuple[str, Finished]:
        pieces = []
        async for event in engine.stream(text, {"max_tokens": 10, **FREE}):  # type: ignore[typeddict-item]
            if isinstance(event, Finished):
                return "".join(pieces), event
            pieces.append(event.text)
        raise AssertionError("no end")

    async def leave() -> None:
        stream = engine.stream(TEXTS[0], {"max_tokens": 200, **FREE})  # type: ignore[typeddict-item]
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()

    async def all_of_it() -> list[Any]:
        late = asyncio.create_task(whole(TEXTS[1]))
        await asyncio.sleep(0)
        late.cancel()
        return await asyncio.gather(*(whole(text) for text in TEXTS), leave())

    for text, found in zip(TEXTS, asyncio.run(all_of_it())):
        alone = model.generate(text, max_tokens=10, **FREE)
        assert (alone.text, "length", 10) == (found[0], found[1].reason, found[1].tokens)
        assert len(alone.prompt_tokens) == found[1].prompt_tokens


def test_what_ends_a_request(engine: BatchEngine) -> None:
    assert "deadline" == engine.submit(TEXTS[0], {"timeout": 0.0}).wait().finish_reason
    assert "length" == engine.submit(TEXTS[0], {"max_tokens": 0}).wait().finish_reason
    context = engine.signature.context
    made = engine.submit([7] * context, {"max_tokens": 9, **FREE}).wait()  # type: ignore[typeddict-item]
    assert ("context", 1) == (made.finish_reason, len(made.tokens))
    handle = engine.submit(TEXTS[0], {"max_tokens": 200, **FREE})  # type: ignore[typeddict-item]
    next(handle)
    handle.cancel()
    assert "cancelled" == handle.wait().finish_reason
    handle.cancel()


def test_what_is_refused(engine: BatchEngine) -> None:
    with pytest.raises(InvalidInput, match="the prompt is empty"):
        engine.submit([])
    with pytest.raises(InvalidInput, match="temperature must be at least 0, not -1"):
        engine.submit(TEXTS[0], {"temperature": -1})
    with pytest.raises(InvalidInput, match="max_tokens must be at least 0, not -1"):
        engine.submit(TEXTS[0], {"max_tokens": -1})
    with pytest.raises(InvalidInput, match="sequences must be at least 1, not 0"):
        BatchEngine(DEMO, sequences=0)
    handles = []
    with pytest.raises(QueueFull, match="20 requests are waiting already; try again later"):
        for _ in range(60):
            handles.append(engine.submit(TEXTS[0], {"max_tokens": 100, **FREE}))  # type: ignore[typeddict-item]
    for handle in handles:
        handle.cancel()
    assert len(handles) >= 20


def test_a_run_that_fails_ends_those_it_had(
    engine: BatchEngine, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, calls = engine.runner.start, 0

    def broken(work: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ExecutionError("no luck")
        return start(work)

    def not_finite(work: Any) -> Any:
        results = start(work)
        return lambda: (results()[0], [float("nan")] * len(work.sample_rows))

    monkeypatch.setattr(engine.runner, "start", broken)
    with pytest.raises(ExecutionError, match="no luck"):
        engine.submit(TEXTS[0], {"max_tokens": 20, **FREE}).wait()  # type: ignore[typeddict-item]
    same(model.generate(TEXTS[0], max_tokens=5), engine.submit(TEXTS[0], {"max_tokens": 5}).wait())
    monkeypatch.setattr(engine.runner, "start", not_finite)
    with pytest.raises(ExecutionError, match="the model's logits at position 1 are not finite numbers"):
        engine.submit([5, 6]).wait()


def test_closing_ends_what_runs() -> None:
    engine = BatchEngine(DEMO, sequences=2)
    handles = [engine.submit(text, {"max_tokens": 250, **FREE}) for text in TEXTS]  # type: ignore[typeddict-item]
    next(handles[0])
    engine.close()
    assert ["cancelled"] * len(TEXTS) == [handle.wait().finish_reason for handle in handles]
    with pytest.raises(Closed, match="this engine was closed"):
        engine.submit(TEXTS[0])
    engine.close()


def test_a_lost_device_is_told_to_all_and_to_those_who_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(work: Any) -> Any:
        raise DeviceLost("it is gone")

    with BatchEngine(DEMO, sequences=2) as engine:
        monkeypatch.setattr(engine.runner, "start", lost)
        with engine._wake:  # so that all are there before the first run
            handles = [engine.submit(text) for text in TEXTS]
        for handle in handles:
            with pytest.raises(DeviceLost, match="it is gone"):
                handle.wait()
            assert handle.generation.finish_reason is None
        with pytest.raises(DeviceLost, match="it is gone"):
            engine.submit(TEXTS[0])
        assert "it is gone" == engine.stats().error


def test_an_event_loop_that_is_gone_frees_its_requests(engine: BatchEngine) -> None:
    async def begin() -> None:
        stream = engine.stream(TEXTS[0], {"max_tokens": 200, **FREE})  # type: ignore[typeddict-item]
        assert isinstance(await anext(stream), Piece)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()  # without a word to the stream


def test_facts(engine: BatchEngine, model: LanguageModel) -> None:
    facts = engine.model
    assert ("tales", 256, 2048, 6) == (facts.name, facts.context, facts.vocabulary, facts.sequences)
    assert facts.has_chat == model.tokenizer.has_chat
    assert engine.encode(TEXTS[0]) == model.encode(TEXTS[0])
    assert 16 == engine.stats().pages_total  # a context's


def test_what_cannot_be_turned_is_served_one_by_one(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise UnsupportedProgram("it cannot")

    monkeypatch.setattr("ptegpu.compiler.decoding.serving", refused)
    with pytest.raises(UnsupportedProgram, match="it cannot"):
        BatchEngine(DEMO, one_by_one=False)
    with pytest.warns(UserWarning, match="it cannot; requests are served one at a time"):
        engine = BatchEngine(DEMO)
    with engine:
        assert "it cannot" == engine.alone
        chosen = random.Random(2)
        asked = [(text, drawn(chosen)) for text in TEXTS]
        handles = [engine.submit(SYSTEM + text, options) for text, options in asked]  # type: ignore[arg-type]
        for (text, options), handle in zip(asked, handles):
            same(model.generate(SYSTEM + text, **options), handle.wait())
        assert handles[1].generation.timings.reused_tokens > 16


@pytest.fixture(scope="module")
def saved() -> Bundle:
    """With little memory, so that some have to give way."""
    return compile(DEMO, targets=open_device().target, methods=(), many=ServeSizes(sequences=4, memory=0, rows=20))


@pytest.mark.slow
def test_a_bundle_for_many_is_served_as_its_program_is(model: LanguageModel, saved: Bundle, tmp_path: Path) -> None:
    saved.save(tmp_path / "tales.bundle")
    given: dict[str, Any] = {"tokenizer": DEMO.with_name("tales.tokenizer.json"), "one_by_one": False}
    with patch("ptegpu.compiler.planner.Planner", side_effect=AssertionError("nothing is planned")):
        engine = BatchEngine(tmp_path / "tales.bundle", sequences=64, **given)
    with engine:
        assert (4, 16) == (engine.model.sequences, engine.stats().pages_total)
        hold(engine, model, 4, 3)
        assert 0 == engine.stats().pages_used
    with pytest.raises(InvalidInput, match="a bundle has the caches that it was made with"):
        BatchEngine(tmp_path / "tales.bundle", memory=1 << 20, **given)


@pytest.mark.slow
def test_another_bundle_is_served_one_by_one(model: LanguageModel, saved: Bundle, tmp_path: Path) -> None:
    only = tuple({GENERATE: methods[GENERATE]} for methods in saved.methods)
    Bundle(saved.file, saved.targets, only).save(tmp_path / "tales.bundle")
    tokenizer = DEMO.with_name("tales.tokenizer.json")
    with pytest.warns(UserWarning, match="the bundle has no plans for several sequences at once"):
        engine = BatchEngine(tmp_path / "tales.bundle", tokenizer=tokenizer)
    with engine:
        same(model.generate(TEXTS[0], max_tokens=5, **FREE), engine.submit(TEXTS[0], {"max_tokens": 5, **FREE}).wait())  # type: ignore[typeddict-item]
    with LanguageModel(tmp_path / "tales.bundle", tokenizer=tokenizer) as loaded:
        for text, made in zip(TEXTS, loaded.generate_batch(TEXTS, max_tokens=3, **FREE)):
            same(model.generate(text, max_tokens=3, **FREE), made)


def test_a_batch_of_a_model_runs_at_once(model: LanguageModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = model.generate_batch(TEXTS, max_tokens=12, temperature=0.9, seed=5)
    for text, made in zip(TEXTS, batch):
        same(model.generate(text, max_tokens=12, temperature=0.9, seed=5), made)
    assert model._batch is not None
    plans = (model.runner.method.plans[0], model._batch.runner.method.plans[0])  # type: ignore[attr-defined]
    mine, others = ({b.name: b.nbytes for b in plan.buffers if b.role == "constant"} for plan in plans)
    both = sum(size for name, size in others.items() if name in mine)
    assert both > 0.9 * sum(others.values())  # one copy of the weights serves both
