"""Concurrent requests on a GPU: each gets the same tokens as when it runs alone, and frees everything it used."""

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
from ptegpu.kernels.attention import PAGE
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.compiling import GENERATE, ServeSizes
from ptegpu.models.text.generation import Generation
from ptegpu.models.text.handle import Finished, Handle, Piece
from ptegpu.plan import CACHE_TYPES, Cache
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
    """Yield an engine whose pages hold less than two full contexts, so that requests are preempted."""
    with BatchEngine(DEMO, sequences=6, rows=40, beside=16, memory=0, queue=20) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        wait_for(lambda: not engine.runner.scheduler.busy)
        stats = engine.stats()
        assert (0, 0, 0, "") == (stats.queue, stats.running, stats.pages_used, stats.error)


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def random_options(rng: random.Random) -> dict[str, Any]:
    """Return random settings of a request."""
    options: dict[str, Any] = {"max_tokens": rng.randrange(1, 40), "seed": rng.randrange(99)}
    if rng.random() < 0.7:
        options["temperature"] = rng.choice([0.5, 1.0, 1.3])
        options |= rng.choice([{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.8}])
    options |= rng.choice([{}, {}, {"repeat_penalty": 1.2}, {"stop": ["the", " and"]}, {"stop": "."}])
    return options | (FREE if rng.random() < 0.5 else {})


def assert_same(expected: Generation, actual: Generation) -> None:
    assert (expected.tokens, expected.text, expected.finish_reason) == (
        actual.tokens,
        actual.text,
        actual.finish_reason,
    )
    np.testing.assert_allclose(expected.logprobs, actual.logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_requests_get_what_they_get_alone(engine: BatchEngine, model: LanguageModel, seed: int) -> None:
    check_random_requests(engine, model, 12, seed)


@pytest.mark.slow
def test_many_random_requests_in_exact_mode() -> None:
    options: dict[str, Any] = {"precision": "exact"}
    with LanguageModel(DEMO, **options) as model, BatchEngine(DEMO, sequences=12, queue=64, **options) as engine:
        check_random_requests(engine, model, 24, 2)
        assert 0 == engine.stats().pages_used


@pytest.mark.parametrize("cache", ["f16", "q8"])
def test_narrow_caches(model: LanguageModel, cache: Cache) -> None:
    """Pages take the share of the memory that the cache does, and requests get what they get alone.

    Sums in another order may round to another value, so log-probabilities differ.
    """
    options: dict[str, Any] = {"max_tokens": 24, **FREE}
    with LanguageModel(DEMO, cache=cache) as narrow, BatchEngine(DEMO, sequences=6, rows=40, cache=cache) as engine:
        for handle, text in [(engine.submit(text, options), text) for text in TEXTS]:  # type: ignore[arg-type]
            result, alone = handle.wait(), narrow.generate(text, **options)
            assert alone.tokens == result.tokens
            np.testing.assert_allclose(alone.logprobs, result.logprobs, rtol=0, atol=2e-2)
        stored = [b for plan in engine.runner.method.plans for b in plan.buffers if b.role == "state"]
        share = CACHE_TYPES[cache].nbytes(32) / 128
        assert engine.stats().pages_total * PAGE * 4 * 32 * 4 * share in {b.nbytes for b in stored}


def check_random_requests(engine: BatchEngine, model: LanguageModel, count: int, seed: int) -> None:
    """Submit and cancel requests at random; check that each finished one equals a run on its own."""
    rng = random.Random(seed)
    handles: list[tuple[Handle, dict[str, Any], bool]] = []
    for _ in range(count):
        prompt = (SYSTEM if rng.random() < 0.5 else "") + rng.choice(TEXTS)
        options, is_cancelled = random_options(rng), rng.random() < 0.2
        handles.append((engine.submit(prompt, options), options, is_cancelled))  # type: ignore[arg-type]
        time.sleep(rng.choice([0, 0, 0.05]))
        for handle, _, is_cancelled in handles:
            if is_cancelled:
                handle.cancel()
    finished = 0
    for handle, options, is_cancelled in handles:
        result, prompt_tokens = handle.wait(), handle.generation.prompt_tokens
        expected = model.generate(prompt_tokens, **options)
        if result.finish_reason == "cancelled":
            assert is_cancelled and expected.tokens[: len(result.tokens)] == result.tokens
            assert expected.text.startswith(result.text)
        else:
            finished += 1
            assert_same(expected, result)
    assert finished >= count // 2


def test_who_gives_way_gets_the_same(engine: BatchEngine, model: LanguageModel) -> None:
    options = {"max_tokens": 120, "temperature": 1.0, "seed": 3, **FREE}
    handles = [engine.submit(text, options) for text in TEXTS]  # type: ignore[arg-type]
    for handle, text in zip(handles, TEXTS):
        assert_same(model.generate(text, **options), handle.wait())  # type: ignore[arg-type]
    assert sum(handle.request.preempted for handle in handles) > 0


def test_a_common_beginning_is_stored_once(engine: BatchEngine, model: LanguageModel) -> None:
    system = model.encode(SYSTEM)
    shared = len(system) // 16 * 16
    assert shared >= 16
    first = engine.submit([*system, 30], {"max_tokens": 2, **FREE})  # type: ignore[typeddict-item]
    first.wait()
    handles = [engine.submit([*system, k, k + 1], {"max_tokens": 30, **FREE}) for k in (40, 50)]  # type: ignore[typeddict-item]
    for handle in handles:
        next(handle)
    tables = [list(handle.request.pages) for handle in handles]
    for handle in handles:
        result = handle.wait()
        assert (shared, len(system) + 2 - shared) == (result.timings.reused_tokens, result.timings.prefill_tokens)
        assert_same(model.generate(result.prompt_tokens, max_tokens=30, **FREE), result)
    left, right = tables
    assert left[: shared // 16] == right[: shared // 16] and not set(left[shared // 16 :]) & set(right[shared // 16 :])


def test_two_threads_submit(engine: BatchEngine, model: LanguageModel) -> None:
    results: dict[tuple[int, int], Generation] = {}

    def submit(number: int) -> None:
        for k in range(3):
            text = TEXTS[(number + k) % len(TEXTS)]
            results[number, k] = engine.submit(text, {"max_tokens": 8, "temperature": 1.0, "seed": k}).wait()

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (number, k), result in results.items():
        text = TEXTS[(number + k) % len(TEXTS)]
        assert_same(model.generate(text, max_tokens=8, temperature=1.0, seed=k), result)
    assert 6 == len(results)


def test_pieces_are_the_text_and_come_before_the_end(engine: BatchEngine) -> None:
    handle = engine.submit(TEXTS[0], {"max_tokens": 12, **FREE})  # type: ignore[typeddict-item]
    pieces = list(handle)
    result = handle.generation
    assert result.text == "".join(piece.text for piece in pieces)
    assert result.tokens == [piece.token for piece in pieces if piece.token is not None]
    assert (12, 11, "length") == (len(result.tokens), result.timings.decode_tokens, result.finish_reason)
    assert result.timings.prefill_s > 0 and result.timings.decode_s > 0
    assert [] == list(handle)


def test_an_event_loop(engine: BatchEngine, model: LanguageModel) -> None:
    async def collect(text: str) -> tuple[str, Finished]:
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

    async def run_all() -> list[Any]:
        late = asyncio.create_task(collect(TEXTS[1]))
        await asyncio.sleep(0)
        late.cancel()
        return await asyncio.gather(*(collect(text) for text in TEXTS), leave())

    for text, result in zip(TEXTS, asyncio.run(run_all())):
        expected = model.generate(text, max_tokens=10, **FREE)
        assert (expected.text, "length", 10) == (result[0], result[1].reason, result[1].tokens)
        assert len(expected.prompt_tokens) == result[1].prompt_tokens


def test_what_ends_a_request(engine: BatchEngine) -> None:
    assert "deadline" == engine.submit(TEXTS[0], {"timeout": 0.0}).wait().finish_reason
    assert "length" == engine.submit(TEXTS[0], {"max_tokens": 0}).wait().finish_reason
    context = engine.signature.context
    result = engine.submit([7] * context, {"max_tokens": 9, **FREE}).wait()  # type: ignore[typeddict-item]
    assert ("context", 1) == (result.finish_reason, len(result.tokens))
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
    assert_same(model.generate(TEXTS[0], max_tokens=5), engine.submit(TEXTS[0], {"max_tokens": 5}).wait())
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
        with engine._wake:  # no run begins before all are submitted
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
    loop.close()  # without closing the stream


def test_facts(engine: BatchEngine, model: LanguageModel) -> None:
    facts = engine.model
    assert ("tales", 256, 2048, 6) == (facts.name, facts.context, facts.vocabulary, facts.sequences)
    assert facts.has_chat == model.tokenizer.has_chat
    assert engine.encode(TEXTS[0]) == model.encode(TEXTS[0])
    assert 16 == engine.stats().pages_total  # enough for one context


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
        rng = random.Random(2)
        requests = [(text, random_options(rng)) for text in TEXTS]
        handles = [engine.submit(SYSTEM + text, options) for text, options in requests]  # type: ignore[arg-type]
        for (text, options), handle in zip(requests, handles):
            assert_same(model.generate(SYSTEM + text, **options), handle.wait())
        assert handles[1].generation.timings.reused_tokens > 16


def test_caches_of_halves() -> None:
    with BatchEngine(DEMO, sequences=2, cache="f16") as engine, LanguageModel(DEMO, cache="f16") as model:
        handles = [engine.submit(text, {"max_tokens": 6}) for text in ("Once upon a time", "The")]
        for text, handle in zip(("Once upon a time", "The"), handles):
            assert_same(model.generate(text, max_tokens=6), handle.wait())


@pytest.fixture(scope="module")
def saved() -> Bundle:
    """Return a bundle with little memory, so that requests are preempted."""
    return compile(DEMO, targets=open_device().target, methods=(), many=ServeSizes(sequences=4, memory=0, rows=20))


@pytest.mark.slow
def test_a_bundle_for_many_is_served_as_its_program_is(model: LanguageModel, saved: Bundle, tmp_path: Path) -> None:
    saved.save(tmp_path / "tales.bundle")
    options: dict[str, Any] = {"tokenizer": DEMO.with_name("tales.tokenizer.json"), "one_by_one": False}
    with patch("ptegpu.compiler.planner.Planner", side_effect=AssertionError("nothing is planned")):
        engine = BatchEngine(tmp_path / "tales.bundle", sequences=64, **options)
    with engine:
        assert (4, 16) == (engine.model.sequences, engine.stats().pages_total)
        check_random_requests(engine, model, 4, 3)
        assert 0 == engine.stats().pages_used
    with pytest.raises(InvalidInput, match="a bundle has the caches that it was made with"):
        BatchEngine(tmp_path / "tales.bundle", memory=1 << 20, **options)


@pytest.mark.slow
def test_another_bundle_is_served_one_by_one(model: LanguageModel, saved: Bundle, tmp_path: Path) -> None:
    only = tuple({GENERATE: methods[GENERATE]} for methods in saved.methods)
    Bundle(saved.file, saved.targets, only).save(tmp_path / "tales.bundle")
    tokenizer = DEMO.with_name("tales.tokenizer.json")
    with pytest.warns(UserWarning, match="the bundle has no plans for several sequences at once"):
        engine = BatchEngine(tmp_path / "tales.bundle", tokenizer=tokenizer)
    with engine:
        options = {"max_tokens": 5, **FREE}
        assert_same(model.generate(TEXTS[0], **options), engine.submit(TEXTS[0], options).wait())  # type: ignore[arg-type]
    with LanguageModel(tmp_path / "tales.bundle", tokenizer=tokenizer) as loaded:
        for text, result in zip(TEXTS, loaded.generate_batch(TEXTS, max_tokens=3, **FREE)):
            assert_same(model.generate(text, max_tokens=3, **FREE), result)


def test_a_batch_of_a_model_runs_at_once(model: LanguageModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = model.generate_batch(TEXTS, max_tokens=12, temperature=0.9, seed=5)
    for text, result in zip(TEXTS, batch):
        assert_same(model.generate(text, max_tokens=12, temperature=0.9, seed=5), result)
    assert model._batch is not None
    plans = (model.runner.method.plans[0], model._batch.runner.method.plans[0])  # type: ignore[attr-defined]
    mine, others = ({b.name: b.nbytes for b in plan.buffers if b.role == "constant"} for plan in plans)
    both = sum(size for name, size in others.items() if name in mine)
    assert both > 0.9 * sum(others.values())  # one copy of the weights serves both
