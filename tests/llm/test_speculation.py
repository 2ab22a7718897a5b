"""Speculative decoding gives the same tokens as plain decoding, or says why it cannot be used."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llm.test_batch import assert_same, random_options

import ptegpu
from ptegpu import compile
from ptegpu.compiler.append import Tail
from ptegpu.compiler.decoding import verifying
from ptegpu.errors import InvalidInput, UnsupportedProgram
from ptegpu.gpu import open_device
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.batch import BatchEngine
from ptegpu.models.text.draft import sources
from ptegpu.models.text.paged import PagedRunner
from ptegpu.models.text.sampling import Sampling
from ptegpu.models.text.schedule import PlannedRun

DEMO = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
CONTROL = Path(__file__).parents[1] / "data" / "control.pte"
PROMPT = "The king said to the fox: come with me. The fox said to the king: come with me. The king said to"
TEXTS = (PROMPT, "Once upon a time there was a king", "A mill and a mill and a mill and", "The fox")
FREE: dict[str, Any] = {"stop_tokens": ()}


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with LanguageModel(DEMO) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def drafted() -> Iterator[LanguageModel]:
    with LanguageModel(DEMO, draft=DEMO) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchEngine]:
    """Yield an engine whose pages hold less than two full contexts, so that requests are preempted."""
    with BatchEngine(DEMO, sequences=4, rows=40, beside=16, memory=0, speculate=4) as loaded:
        yield loaded


class Knowing:
    """Proposals from the texts that plain decoding gave, some of them wrong."""

    drafted = False

    def __init__(self, texts: Sequence[Sequence[int]], errors: float, rng: random.Random) -> None:
        self.texts, self.errors, self.rng = texts, errors, rng

    def available(self, text: Sequence[int], most: int) -> int:
        return min(most, max((len(t) - len(text) for t in self.texts if list(t[: len(text)]) == list(text)), default=0))

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        known = next(t for t in self.texts if list(t[: len(text)]) == list(text) and len(t) >= len(text) + count)
        proposals = known[len(text) : len(text) + count]
        return [7 if self.rng.random() < self.errors else token for token in proposals]


# --- the same tokens


@pytest.mark.parametrize("errors", [0.0, 0.3])
def test_a_model_gives_what_plain_decoding_gives(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, errors: float
) -> None:
    rng, runs, accepted, short = random.Random(int(10 * errors)), 0, 0, 0
    for _ in range(8):
        prompt, options = rng.choice(TEXTS), random_options(rng)
        model.reset()
        plain = model.generate(prompt, **options)
        assert plain.speculation is None
        free = model.generate(prompt, **options | {"max_tokens": 60, "stop": (), "stop_tokens": ()})
        source = Knowing([[*free.prompt_tokens, *free.tokens]], errors, rng)
        monkeypatch.setattr(model.runner, "sources", lambda *_, source=source: [source])
        model.reset()
        result = model.generate(prompt, **options, speculate=rng.randrange(1, 16))
        assert_same(plain, result)
        cached = [*result.prompt_tokens, *result.tokens]
        assert list(model.cached) == [*free.prompt_tokens, *free.tokens][: len(model.cached)]
        assert len(model.cached) >= len(cached) - 1
        again = model.generate([*cached, 50], max_tokens=5, **FREE)  # on the cache that proposals were written to
        model.reset()
        assert_same(model.generate([*cached, 50], max_tokens=5, **FREE), again)
        assert result.speculation is not None
        runs, accepted = runs + result.speculation.runs, accepted + result.speculation.accepted
        short += result.speculation.accepted < result.speculation.proposed
    assert runs > 8 and accepted > runs and (short > 2) is (errors > 0)


def test_texts_that_repeat_are_accepted(model: LanguageModel) -> None:
    plain = model.generate(TEXTS[2], max_tokens=60, **FREE)
    result = model.generate(TEXTS[2], max_tokens=60, speculate=7, **FREE)
    assert_same(plain, result)
    assert result.speculation is not None
    assert result.speculation.runs < 20 and result.speculation.accepted > 30 and result.speculation.rate > 0.5
    auto = model.generate(TEXTS[2], max_tokens=60, speculate="auto", **FREE)
    assert_same(plain, auto)
    stream = model.stream(TEXTS[2], max_tokens=60, speculate=7, **FREE)
    assert plain.text == "".join(stream)
    off = model.generate(TEXTS[2], max_tokens=9, speculate="off", **FREE)
    assert off.speculation is None


def test_a_penalty_counts_the_proposals_before_a_token(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "repeat_penalty": 1.5, **FREE}
    plain = model.generate(TEXTS[2], **options)
    source = Knowing([[*plain.prompt_tokens, *plain.tokens]], 0.0, random.Random(0))
    monkeypatch.setattr(model.runner, "sources", lambda *_: [source])
    result = model.generate(TEXTS[2], speculate=15, **options)
    assert_same(plain, result)
    assert result.speculation is not None and 1.0 == result.speculation.rate


@pytest.mark.torch
def test_a_conversation_verifies(loaded: LanguageModel) -> None:
    plain = loaded.chat(max_tokens=12, seed=1, temperature=0.5)
    verified = loaded.chat(max_tokens=12, seed=1, temperature=0.5, speculate=3)
    for text in ("A fox and a fox", "A fox"):
        expected, result = plain.say(text), verified.say(text)
        assert_same(expected, result)
        assert result.speculation is not None


def test_the_end_of_the_context(model: LanguageModel) -> None:
    context = model.signature.context
    prompt = [7, 8, 9] * (context // 3)
    prompt = prompt[: context - 9]
    plain = model.generate(prompt, max_tokens=99, **FREE)
    assert ("context", 10) == (plain.finish_reason, len(plain.tokens))
    for count in (1, 4, 15):
        assert_same(plain, model.generate(prompt, max_tokens=99, speculate=count, **FREE))


def test_turns_with_other_requests(model: LanguageModel) -> None:
    texts = TEXTS[0], TEXTS[2]
    plain = [model.generate(text, max_tokens=10, **FREE) for text in texts]
    streams = [model.stream(text, max_tokens=10, speculate=3, **FREE) for text in texts]
    left = list(streams)
    while left:
        for stream in list(left):
            if next(stream, None) is None:
                left.remove(stream)
    for expected, stream in zip(plain, streams):
        assert_same(expected, stream.generation)


def test_a_cancelled_request_ends_before_its_accepted_tokens(model: LanguageModel) -> None:
    stream = model.stream(TEXTS[2], max_tokens=60, speculate=15, **FREE)
    while not stream._request.accepted:
        next(stream)
    count = len(stream.generation.tokens)
    stream.cancel()
    assert list(stream) is not None
    assert ("cancelled", count) == (stream.generation.finish_reason, len(stream.generation.tokens))
    plain = model.generate(TEXTS[2], max_tokens=20, **FREE)
    model.reset()
    assert_same(model.generate(TEXTS[2], max_tokens=20, **FREE), plain)


def test_a_draft_model_gives_what_plain_decoding_gives(model: LanguageModel, drafted: LanguageModel) -> None:
    rng = random.Random(5)
    for _ in range(8):
        prompt, options = rng.choice(TEXTS), random_options(rng) | FREE | {"stop": (), "repeat_penalty": 1.0}
        result = drafted.generate(prompt, **options, speculate=rng.randrange(1, 8))
        assert_same(model.generate(prompt, **options), result)
    result = drafted.generate("The fox", max_tokens=40, temperature=1.0, seed=2, speculate=4, **FREE)
    assert_same(model.generate("The fox", max_tokens=40, temperature=1.0, seed=2, **FREE), result)
    assert result.speculation is not None
    assert result.speculation.accepted > 20  # it is the same model, and chooses with the same random numbers
    auto = drafted.generate("The fox", max_tokens=20, temperature=1.0, seed=2, **FREE)
    assert auto.speculation is not None  # by default
    penalty: dict[str, Any] = {"max_tokens": 30, "repeat_penalty": 1.3, "temperature": 1.0, "seed": 3, "speculate": 3}
    assert_same(model.generate("The fox", **penalty | {"speculate": "off"}), drafted.generate("The fox", **penalty))


@pytest.mark.parametrize("seed", [0, 1])
def test_requests_of_a_batch_get_what_they_get_alone(
    engine: BatchEngine, model: LanguageModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    requests = [(rng.choice(TEXTS), random_options(rng)) for _ in range(6)]
    texts = []
    for prompt, options in requests:
        free = model.generate(prompt, **options | {"max_tokens": 60, "stop": (), "stop_tokens": ()})
        texts.append([*free.prompt_tokens, *free.tokens])
    monkeypatch.setattr(engine.runner, "sources", lambda *_: [Knowing(texts, 0.2, rng)])
    before = engine.stats()
    handles = [engine.submit(prompt, options | {"speculate": rng.randrange(1, 9)}) for prompt, options in requests]  # type: ignore[arg-type]
    for (prompt, options), handle in zip(requests, handles):
        assert_same(model.generate(prompt, **options), handle.wait())
    stats, records = engine.stats(), [handle.generation.speculation for handle in handles]
    assert stats.proposed - before.proposed == sum(r.proposed for r in records if r) > 9
    assert stats.accepted - before.accepted == sum(r.accepted for r in records if r) > 9


def test_inputs_of_runs_with_proposals(engine: BatchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, with_proposals = PagedRunner.arguments, []

    def checked(runner: PagedRunner, run: PlannedRun) -> list[Any]:
        values = arguments(runner, run)
        _, rows, tables, _, settings, _, single = values
        slots = rows[:, 0].tolist()
        assert single == (len(run.sample_rows) == len(slots) == len(set(slots)))
        for request in run.requests:
            assert tables[request.slot, : len(request.pages)].tolist() == request.pages
        latest = [slot for slot in settings[:, -1].tolist() if slot >= 0]
        assert sorted(latest) == sorted(r.slot for r in run.sample_requests if r not in run.verified)
        with_proposals.append(bool(run.verified))
        return values

    monkeypatch.setattr(PagedRunner, "arguments", checked)
    for handle in [engine.submit(text, {"max_tokens": 30, "speculate": 4, **FREE}) for text in TEXTS]:  # type: ignore[typeddict-item]
        assert handle.wait().finish_reason == "length"
    assert {True, False} == set(with_proposals)


def test_a_batch_speculates_as_its_engine_does(engine: BatchEngine, model: LanguageModel) -> None:
    result = engine.submit(TEXTS[2], {"max_tokens": 30, **FREE}).wait()  # type: ignore[typeddict-item]
    assert_same(model.generate(TEXTS[2], max_tokens=30, **FREE), result)
    assert result.speculation is not None and result.speculation.accepted > 10
    off = engine.submit(TEXTS[2], {"max_tokens": 5, "speculate": "off", **FREE}).wait()  # type: ignore[typeddict-item]
    assert off.speculation is None
    for text, result in zip(TEXTS, model.generate_batch(TEXTS, max_tokens=20, speculate=3, **FREE)):
        assert_same(model.generate(text, max_tokens=20, **FREE), result)
        assert result.speculation is not None and not result.speculation.reason


def test_an_engine_uses_a_draft_while_a_single_request_runs(model: LanguageModel) -> None:
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 2, "speculate": 3, **FREE}
    plain = [model.generate(text, **options | {"speculate": "off"}) for text in TEXTS]
    with BatchEngine(DEMO, sequences=4, draft=DEMO) as engine:
        assert "auto" == engine.speculate
        result = engine.submit(TEXTS[3], options).wait()  # type: ignore[arg-type]
        assert_same(plain[3], result)
        assert result.speculation is not None and result.speculation.accepted > 10
        with engine._wake:  # no run begins before all are submitted
            handles = [engine.submit(text, options) for text in TEXTS]  # type: ignore[arg-type]
        for expected, handle in zip(plain, handles):
            assert_same(expected, handle.wait())


def test_a_draft_has_one_text_at_a_time(drafted: LanguageModel) -> None:
    alone, sampling = True, Sampling(seed=1)
    _, source = sources(drafted.signature, [5, 6], sampling, drafted.runner.draft, lambda: alone)
    assert (3, 3) == (source.available([5, 6], 3), len(source.propose([5, 6], 3)))
    assert 2 == source.available([5] * (drafted.signature.context - 2), 3)
    alone = False
    assert 0 == source.available([5, 6], 3)
    beyond = [5, drafted.signature.vocabulary]  # a row of a picture
    assert 1 == len(sources(drafted.signature, beyond, sampling, drafted.runner.draft))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tiny.pte", "every.pte"])
def test_programs_with_logits_of_the_last_and_of_every_position(folder: Path, name: str) -> None:
    with LanguageModel(folder / name) as model:
        plain = model.generate([5, 6, 7, 5, 6], max_tokens=40, **FREE)
        result = model.generate([5, 6, 7, 5, 6], max_tokens=40, speculate=3, **FREE)
        assert_same(plain, result)
        assert result.speculation is not None and result.speculation.runs


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["gemma3", "qwen3 in 4 bits", "llama in 4 bits, 8-bit activations", "mistral in 8 bits, f16"]
)
def test_families_and_quantizations(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.programs import program

    (tmp_path / "model.pte").write_bytes(program(name).data)
    prompt, options = [5, 17, 3, 88, 41], {"max_tokens": 20, **FREE}
    with LanguageModel(tmp_path / "model.pte") as family:
        plain = family.generate(prompt, **options)
        source = Knowing([[*prompt, *plain.tokens]], 0.2, random.Random(1))
        monkeypatch.setattr(family.runner, "sources", lambda *_: [source])
        result = family.generate(prompt, **options, speculate=7)
    assert plain.tokens == result.tokens
    assert result.speculation is not None and result.speculation.accepted > 7
    if "activations" in name:  # scales have a row for each token, and no other dimension
        with BatchEngine(tmp_path / "model.pte", one_by_one=False, sequences=2) as engine:
            assert plain.tokens == engine.submit(prompt, options).wait().tokens  # type: ignore[arg-type]


# --- what cannot be combined


def test_what_is_refused(model: LanguageModel) -> None:
    for value in (0, 16, -1, "yes", True, 1.5, None):
        with pytest.raises(InvalidInput) as error:
            model.generate("A fox", speculate=value)  # type: ignore[arg-type]
        assert f'invalid speculate {value!r}: expected "off", "auto" or an int from 1 to 15' == str(error.value)
    with pytest.raises(InvalidInput, match='invalid speculate 99: expected "off", "auto" or an int from 1 to 15'):
        BatchEngine(DEMO, speculate=99)


@pytest.mark.torch
def test_a_draft_of_another_vocabulary_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^the draft model has a vocabulary of \d+ tokens, the model one of 2048"):
        LanguageModel(DEMO, draft=folder / "tiny.pte")


def test_a_draft_with_other_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.pte").write_bytes(DEMO.read_bytes())
    tokenizer = json.loads(DEMO.with_name("tales.tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["on"], ids["ow"] = ids["ow"], ids["on"]
    (tmp_path / "other.tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InvalidInput, match=r"the tokens of .*other\.tokenizer\.json differ from those of .*tales"):
        LanguageModel(DEMO, draft=tmp_path / "other.pte")


def test_a_bundle_decodes_plainly_and_says_why(model: LanguageModel, tmp_path: Path) -> None:
    compile(DEMO, targets=open_device().target).save(tmp_path / "tales.bundle")
    with LanguageModel(tmp_path / "tales.bundle", tokenizer=DEMO.with_name("tales.tokenizer.json")) as bundle:
        result = bundle.generate(PROMPT, max_tokens=9, speculate="auto", **FREE)
    assert_same(model.generate(PROMPT, max_tokens=9, **FREE), result)
    assert result.speculation is not None
    assert "a bundle has no plans that verify proposed tokens: open the .pte file instead" == result.speculation.reason


@pytest.mark.torch
def test_a_program_of_one_token_decodes_plainly_and_says_why(tmp_path: Path) -> None:
    from tests.zoo.language import TinyLM, export

    export(TinyLM(), tmp_path / "one.pte", chunk=1)
    with LanguageModel(tmp_path / "one.pte") as one:
        result = one.generate([5, 6, 5, 6], max_tokens=9, speculate=3)
    assert result.speculation is not None
    assert "a program that takes one token at a time cannot verify several at once" == result.speculation.reason


def test_a_state_that_is_not_a_cache_is_refused() -> None:
    with pytest.raises(UnsupportedProgram, match="forward cannot verify several tokens at once: the program branches"):
        ptegpu.load(CONTROL, append={"forward": verifying(2048, 64)}, methods=["forward"])

    def elsewhere(tail: Tail) -> None:  # the first write of a cache is always at position 0
        code: list[Any] = tail.flat.code
        k = next(k for k, call in enumerate(code) if call.op.endswith("sdpa_with_kv_cache.default"))
        code[k] = replace(code[k], args=(*code[k].args[:5], 0, *code[k].args[6:]))
        verifying(2048, 64)(tail)

    with pytest.raises(
        UnsupportedProgram, match=r"cannot verify several tokens at once: .* writes .*, and not at the pos"
    ):
        ptegpu.load(DEMO, append={"forward": elsewhere}, methods=["forward"])


def test_both_methods_use_one_cache(model: LanguageModel) -> None:
    model.generate(PROMPT, max_tokens=5, speculate=3)
    verifier = model.runner._verifier
    assert verifier is not None
    own, lent = model.runner.method._method.session._store.states, verifier.method("forward")._method.runners[0].session
    assert own and {id(b) for b in own} <= {id(b) for b in lent._store._buffers.values()}
    plans = verifier.method("forward").plans[0], model.runner.method.plans[0]
    few, all_rows = (sum(b.nbytes for b in plan.buffers if b.role == "temp") for plan in plans)
    assert 10 * few < all_rows  # 16 rows instead of 256
    assert np.isfinite(model.score(PROMPT)).all()
