"""Generation compared with PyTorch; the cache, chunks, limits, streams, and the text of every error."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tests.cases import close, compare
from tests.zoo.language import CONTEXT, TinyLM
from tests.zoo.words import TEXT, VOCABULARY

import ptegpu
from ptegpu import compile
from ptegpu.compiler.planner import Planner
from ptegpu.errors import ExecutionError, InvalidInput, UnsupportedProgram
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.prompts import PromptTooLong
from ptegpu.plan import Cache
from ptegpu.plan.plan import Port
from ptegpu.plan.resolve import choices_at

PROMPT = "Once upon a time there was a small fox who lived in a wood."
DATA = Path(__file__).resolve().parent.parent / "data"
FREE = {"stop_tokens": ()}


def refused(kind: type[Exception], call: object, *args: object, **options: object) -> str:
    with pytest.raises(kind) as error:
        call(*args, **options)  # type: ignore[operator]
    return str(error.value)


@pytest.mark.parametrize("chunk", [1, 7, 32, CONTEXT])
def test_prefill_in_chunks_gives_what_pytorch_gives(
    model: LanguageModel, eager: TinyLM, text: tokenizers.Tokenizer, chunk: int
) -> None:
    ids = text.encode(PROMPT).ids
    assert len(ids) > 20
    model.runner.chunk = min(chunk, model.signature.chunk)
    result = model.generate(PROMPT, max_tokens=25, **FREE)
    assert eager.greedy(ids, 25) == result.tokens
    assert "length" == result.finish_reason
    assert (0, len(ids), 24) == (
        result.timings.reused_tokens,
        result.timings.prefill_tokens,
        result.timings.decode_tokens,
    )
    all_logits = torch.log_softmax(eager.logits([*ids, *result.tokens]).double(), -1)
    want = [float(all_logits[len(ids) - 1 + k, t]) for k, t in enumerate(result.tokens)]
    close(result.logprobs, want, 1e-4)


def test_only_new_tokens_run_and_the_result_is_the_same(model: LanguageModel, text: tokenizers.Tokenizer) -> None:
    ids = text.encode(PROMPT).ids
    first = model.generate(ids, max_tokens=6, **FREE)
    longer = [*ids, *first.tokens, 50, 60, 70]
    again = model.generate(longer, max_tokens=8, **FREE)
    assert (len(ids) + 5, 4) == (again.timings.reused_tokens, again.timings.prefill_tokens)
    other = [*ids[:10], 99, 98]
    branched = model.generate(other, max_tokens=8, **FREE)
    assert (10, 2) == (branched.timings.reused_tokens, branched.timings.prefill_tokens)
    same = model.generate(ids, max_tokens=6, **FREE)
    for prompt, result in ((longer, again), (other, branched), (ids, first), (ids, same)):
        model.reset()
        fresh = model.generate(prompt, max_tokens=len(result.tokens), **FREE)
        assert fresh.timings.reused_tokens == 0
        assert fresh.tokens == result.tokens
        close(fresh.logprobs, result.logprobs)


def test_prompts_of_any_length_make_nothing_once_a_model_is_prepared(model: LanguageModel) -> None:
    model.program.prepare()
    first = model.generate([5, 6], max_tokens=4, temperature=1.0, seed=1, **FREE)
    model.reset()
    before = model.program.device.counters.snapshot()
    for length in range(3, 20):
        model.generate([length] * length, max_tokens=2, **FREE)
    again = model.generate([5, 6], max_tokens=4, temperature=1.0, seed=1, **FREE)
    created = model.program.device.counters.since(before)
    assert (0, 0, 0) == (created.buffers_created, created.bind_groups_created, created.pipelines_created)
    assert (first.tokens, first.logprobs) == (again.tokens, again.logprobs)


@pytest.mark.slow
def test_the_bundled_model_plans_and_compiles_nothing_for_a_new_length(monkeypatch: pytest.MonkeyPatch) -> None:
    with LanguageModel(str(Path(ptegpu.__file__).parent / "demo" / "tales.pte")) as model:
        model.program.prepare()
        model.generate([7] * 10, max_tokens=1)
        monkeypatch.setattr(Planner, "extend", None)  # traces sizes that a plan lacks
        before = model.program.device.counters.snapshot()
        for length in (1, 3, 6, 37, 130, 201):
            model.reset()
            model.generate([7] * length, max_tokens=1)
        created = model.program.device.counters.since(before)
        assert (0, 0, 0) == (created.buffers_created, created.bind_groups_created, created.pipelines_created)


@pytest.mark.parametrize(("cache", "share", "tolerance"), [("f16", 1 / 2, 1e-2), ("q8", 9 / 32, 2e-2)])
def test_narrow_caches(folder: Path, model: LanguageModel, cache: Cache, share: float, tolerance: float) -> None:
    """They take a share of the bytes and give the same text, with slightly different log-probabilities."""
    result = model.generate(PROMPT, max_tokens=20, **FREE)

    def nbytes(m: LanguageModel) -> int:
        return sum(b.nbytes for p in m.program.method("forward").plans for b in p.buffers if b.role == "state")

    with LanguageModel(folder / "tiny.pte", cache=cache) as narrow:
        rounded = narrow.generate(PROMPT, max_tokens=20, **FREE)
        assert share * nbytes(model) == nbytes(narrow) > 0
        again = narrow.generate(PROMPT, max_tokens=20, **FREE)
        assert 0 < again.timings.reused_tokens
        narrow.reset()
        narrow.runner.chunk = 3
        in_chunks = narrow.generate(PROMPT, max_tokens=20, **FREE)
        assert rounded.tokens == again.tokens == in_chunks.tokens
        close(again.logprobs, rounded.logprobs, 1e-4)
        close(in_chunks.logprobs, rounded.logprobs, tolerance)
    assert result.tokens == rounded.tokens
    close(rounded.logprobs, result.logprobs, tolerance)
    assert result.logprobs != rounded.logprobs


def test_caches_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    message = refused(InvalidInput, LanguageModel, folder / "tiny.pte", cache="f8")
    assert 'invalid cache \'f8\': expected "f32", "f16" or "q8"' == message
    message = refused(InvalidInput, ptegpu.load, DATA / "mlp.pte", cache="f16")
    assert 'cache="f16" needs key-value caches in float32 that only attention reads: there are none' == message
    message = refused(InvalidInput, ptegpu.load, DATA / "mlp.pte", cache="q8")
    expected = "key-value caches in float32 that only attention reads, with a multiple of 32 elements in each position"
    assert f'cache="q8" needs {expected}: there are none' == message
    compile(folder / "tiny.pte", cache="f16").save(tmp_path / "half.bundle")
    message = refused(InvalidInput, LanguageModel, tmp_path / "half.bundle", cache="f16")
    assert "a bundle has the caches that it was made with: give `cache` to ptegpu.compile" == message
    with LanguageModel(tmp_path / "half.bundle") as half:
        assert 5 == len(half.generate([1, 2, 3], max_tokens=5, **FREE).tokens)


def test_the_same_prompt_runs_one_token(model: LanguageModel) -> None:
    first = model.generate([5, 6, 7], max_tokens=1)
    second = model.generate([5, 6, 7], max_tokens=1)
    assert (2, 1) == (second.timings.reused_tokens, second.timings.prefill_tokens)
    assert first.tokens == second.tokens


def test_interleaved_streams_do_not_disturb_each_other(model: LanguageModel) -> None:
    prompts = ([5, 6, 7], [5, 9, 10, 11])
    expected = [model.generate(p, max_tokens=6, **FREE).tokens for p in prompts]
    streams = [model.stream(p, max_tokens=6, **FREE) for p in prompts]
    for _ in range(7):
        for stream in streams:
            next(stream, None)
    for stream in streams:
        list(stream)
    assert expected == [stream.generation.tokens for stream in streams]


def test_sampling_is_reproducible_by_seed(model: LanguageModel) -> None:
    def sample(seed: int | None, **options: object) -> list[int]:
        return model.generate(PROMPT, max_tokens=12, temperature=1.0, seed=seed, **FREE, **options).tokens  # type: ignore[arg-type]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(3, top_k=20, top_p=0.9) == sample(3, top_k=20, top_p=0.9)
    assert sample(4, top_k=1) == model.generate(PROMPT, max_tokens=12, **FREE).tokens
    unseeded = model.generate(PROMPT, max_tokens=12, temperature=1.0, **FREE)
    assert unseeded.tokens == sample(unseeded.seed)


def test_the_penalty_counts_all_tokens_of_the_context(model: LanguageModel, eager: TinyLM) -> None:
    prompt = [20, 30, 40]
    result = model.generate(prompt, max_tokens=15, repeat_penalty=1.3, **FREE)
    tokens = list(prompt)
    for token in result.tokens:
        row = eager.logits(tokens)[-1].double()
        used = sorted(set(tokens))
        row[used] = torch.where(row[used] < 0, row[used] * 1.3, row[used] / 1.3)
        assert int(row.argmax()) == token
        tokens.append(token)


@pytest.mark.parametrize("which", ["model", "every"])
def test_scores_are_those_of_pytorch(
    which: str, eager: TinyLM, text: tokenizers.Tokenizer, request: pytest.FixtureRequest
) -> None:
    scorer = request.getfixturevalue(which)
    ids = text.encode(TEXT[0] + TEXT[3]).ids
    logits = torch.log_softmax(eager.logits(ids), -1)
    want = logits[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    compare(scorer.score(ids), want, 1e-4, "scores")
    compare(scorer.score(ids, 30), want[29:], 1e-4, "scores")
    assert 0 == len(scorer.score([5, 6], 2))


def test_logits_of_every_position_serve_generation(every: LanguageModel, eager: TinyLM) -> None:
    ids = list(range(10, 70))
    assert every.signature.every and every.runner.chunk == 40
    assert eager.greedy(ids, 10) == every.generate(ids, max_tokens=10, **FREE).tokens


def test_a_step_reads_a_token_and_its_probability_only(model: LanguageModel) -> None:
    model.generate([5, 6, 7], max_tokens=3, **FREE)
    method = model.program.method("forward")
    (engine,) = method._method.runners.values()
    ready = engine.loaded.recorded
    assert ready is not None
    assert 8 == sum(port.nbytes for port in ready.outputs if isinstance(port, Port))
    before = model.program.device.counters.readbacks
    model.generate([5, 6, 7], max_tokens=3, **FREE)
    assert 3 == model.program.device.counters.readbacks - before
    steps = choices_at(engine.plan, ready.at)
    kernels = {engine.plan.kernels[d.kernel].name for choice in steps for d in choice.dispatches}
    assert {"sample_statistics", "sample_greedy"} == {k for k in kernels if k.startswith("sample")}


def test_a_full_context_ends_the_text(model: LanguageModel, eager: TinyLM) -> None:
    ids = list(range(20, 20 + CONTEXT - 4))
    result = model.generate(ids, max_tokens=50, **FREE)
    assert ("context", 5) == (result.finish_reason, len(result.tokens))
    assert CONTEXT == len(model.cached)
    assert eager.greedy(ids, 4) == result.tokens[:4]
    full = model.generate([*ids, 1, 2, 3, 4], max_tokens=50, **FREE)
    assert ("context", 1) == (full.finish_reason, len(full.tokens))


def test_stop_tokens_end_the_text_and_are_not_part_of_it(model: LanguageModel) -> None:
    free = model.generate(PROMPT, max_tokens=20, **FREE)
    end = free.tokens[7]
    first = free.tokens.index(end)
    result = model.generate(PROMPT, max_tokens=20, stop_tokens=[end])
    assert ("stop", free.tokens[:first]) == (result.finish_reason, result.tokens)
    assert {1, 3} == model.stop_tokens


def test_a_stop_string_over_several_tokens(model: LanguageModel) -> None:
    free = model.generate(PROMPT, max_tokens=40, **FREE)
    for begin in range(2, len(free.text) - 4, 3):
        stop = free.text[begin : begin + 4]
        pieces: list[str] = []
        result = model.generate(PROMPT, max_tokens=40, stop=stop, stream=pieces.append, **FREE)
        assert free.text[: free.text.index(stop)] == result.text == "".join(pieces)
        assert "stop" == result.finish_reason
    assert "length" == model.generate(PROMPT, max_tokens=5, stop=["never", "ever"], **FREE).finish_reason


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_that_go_together_change_nothing(model: LanguageModel, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 3, **FREE}
    one_by_one = model.stream(PROMPT, max_tokens=30, **options)  # type: ignore[arg-type]
    text = "".join(one_by_one)
    expected = one_by_one.generation
    for count in range(1, 30):
        result = model.generate(PROMPT, max_tokens=count, **options)  # type: ignore[arg-type]
        assert expected.tokens[:count] == result.tokens
        close(result.logprobs, expected.logprobs[:count], 1e-5)
    ends = {t: expected.tokens.index(t) for t in expected.tokens}
    for token, first in ends.items():  # later steps, already started, are discarded
        result = model.generate(PROMPT, max_tokens=30, **options | {"stop_tokens": [token]})  # type: ignore[arg-type]
        assert ("stop", expected.tokens[:first]) == (result.finish_reason, result.tokens)
        assert len(model.cached) == len(result.prompt_tokens) + first
    for stop in (text[10:13], text[-5:]):
        result = model.generate(PROMPT, max_tokens=30, stop=stop, **options)  # type: ignore[arg-type]
        assert text[: text.index(stop)] == result.text
    longer = [*expected.prompt_tokens, *expected.tokens, 7, 8]
    after = model.generate(longer, max_tokens=12, **options)  # type: ignore[arg-type]
    model.reset()
    assert model.generate(longer, max_tokens=12, **options).tokens == after.tokens  # type: ignore[arg-type]


def test_steps_go_together_where_nobody_waits_for_each(model: LanguageModel) -> None:
    counters = model.program.device.counters

    def submits(**options: object) -> int:
        model.generate([5, 6, 7], max_tokens=41, **FREE, **options)  # type: ignore[arg-type]
        before = counters.snapshot()
        model.generate([5, 6, 7], max_tokens=41, **FREE, **options)  # type: ignore[arg-type]
        done = counters.since(before)
        assert done.submits == done.readbacks
        return done.submits

    assert 41 == submits(stream=lambda piece: None)
    assert 13 == submits()


def test_pieces_are_whole_characters_and_the_text(model: LanguageModel, text: tokenizers.Tokenizer) -> None:
    for seed in range(4):
        stream = model.stream(PROMPT, max_tokens=50, temperature=1.0, seed=seed, **FREE)
        pieces = list(stream)
        result = stream.generation
        decoded = text.decode([*text.encode(PROMPT).ids, *result.tokens])
        assert decoded == PROMPT + "".join(pieces)
        assert result.text == "".join(pieces)
        assert all(pieces)


def test_a_batch_is_one_prompt_after_another(model: LanguageModel) -> None:
    prompts = [PROMPT, "The fox", [9, 8, 7]]
    batch = model.generate_batch(prompts, max_tokens=4, **FREE)
    assert [model.generate(p, max_tokens=4, **FREE).tokens for p in prompts] == [result.tokens for result in batch]


def test_cancelling_between_tokens_and_within_a_prompt(model: LanguageModel) -> None:
    expected = model.generate(PROMPT, max_tokens=20, **FREE)
    stream = model.stream(PROMPT, max_tokens=20, **FREE)
    first = next(stream)
    threading.Thread(target=stream.cancel).start()
    while not stream.cancelled:
        pass
    rest = list(stream)
    assert "cancelled" == stream.generation.finish_reason
    assert expected.text.startswith(first + "".join(rest))
    assert len(stream.generation.tokens) < 20
    model.reset()
    model.runner.chunk = 4
    runs = 0

    def counted(*args: object) -> object:
        nonlocal runs
        runs += 1
        if runs == 3:
            early.cancel()
        return forward(*args)

    forward, early = model.runner.method, model.stream(PROMPT, max_tokens=5)
    model.runner.method = counted  # type: ignore[assignment]
    try:
        assert [] == list(early)
    finally:
        model.runner.method = forward
    assert ("cancelled", 12) == (early.generation.finish_reason, len(model.cached))
    assert expected.tokens == model.generate(PROMPT, max_tokens=20, **FREE).tokens


def test_a_stream_that_is_cancelled_at_once_runs_nothing(model: LanguageModel) -> None:
    stream = model.stream(PROMPT, max_tokens=5)
    stream.cancel()
    assert [] == list(stream)
    assert ("cancelled", [], ()) == (stream.generation.finish_reason, stream.generation.tokens, model.cached)


def test_nothing_is_generated_where_nothing_is_asked(model: LanguageModel) -> None:
    result = model.generate(PROMPT, max_tokens=0)
    assert ("", [], "length") == (result.text, result.tokens, result.finish_reason)


def test_tokens_need_no_tokenizer(folder: Path, tmp_path: Path, model: LanguageModel) -> None:
    path = tmp_path / "alone.pte"
    path.write_bytes((folder / "tiny.pte").read_bytes())
    with LanguageModel(path) as bare, LanguageModel(path.read_bytes()) as unnamed:
        result = bare.generate([5, 6, 7], max_tokens=5, **FREE)
        assert model.generate([5, 6, 7], max_tokens=5, **FREE).tokens == result.tokens
        assert "" == result.text
        looked = f"{tmp_path / 'alone.tokenizer.json'} and {tmp_path / 'tokenizer.json'}"
        expected = f"no tokenizer: looked for {looked}; pass one (--tokenizer, tokenizer=)"
        assert expected == refused(InvalidInput, bare.generate, "text")
        expected = "no tokenizer: the model is not a file, so pass one (--tokenizer, tokenizer=)"
        assert expected == refused(InvalidInput, unnamed.generate, "text")


def test_a_tokenizer_can_be_given(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tiny.tokenizer.json").read_bytes())
    for tokenizer in (tmp_path, tmp_path / "tokenizer.json", folder / "tiny.tokenizer.json"):
        with LanguageModel((folder / "tiny.pte").read_bytes(), tokenizer=tokenizer) as model:
            assert TEXT[1] == model.tokenizer.decode(model.encode(TEXT[1]))


def test_prompts_that_cannot_be(model: LanguageModel) -> None:
    assert "the prompt is empty: give at least one token" == refused(InvalidInput, model.generate, "")
    assert "the prompt is empty: give at least one token" == refused(InvalidInput, model.generate, [])
    expected = f"token {VOCABULARY} is not in the model's vocabulary of {VOCABULARY}"
    assert expected == refused(InvalidInput, model.generate, [5, VOCABULARY])
    assert f"token -1 is not in the model's vocabulary of {VOCABULARY}" == refused(InvalidInput, model.stream, [-1])
    expected = f"the prompt has {CONTEXT + 1} tokens, the model's context holds {CONTEXT}"
    assert expected == refused(PromptTooLong, model.generate, [5] * (CONTEXT + 1))
    assert "first must be from 1 to 2, not 3" == refused(InvalidInput, model.score, [5, 6], 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": -1}, "temperature must be at least 0, not -1"),
        ({"temperature": math.nan}, "temperature must be at least 0, not nan"),
        ({"top_k": 1.5}, "top_k must be an int of at least 0, not 1.5"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, not 0"),
        ({"min_p": 2}, "min_p must be at least 0 and at most 1, not 2"),
        ({"repeat_penalty": 0}, "repeat_penalty must be above 0, not 0"),
        ({"seed": -5}, "seed must be an int from 0 to 4294967295, not -5"),
        ({"max_tokens": -1}, "max_tokens must be at least 0, not -1"),
    ],
)
def test_settings_that_cannot_be(model: LanguageModel, options: dict[str, float], expected: str) -> None:
    assert expected == refused(InvalidInput, model.generate, PROMPT, **options)


def test_logits_that_are_no_numbers(model: LanguageModel) -> None:
    class Run:
        def result(self) -> list[np.ndarray]:
            return [np.zeros((1, 1), np.int32), np.full(1, np.nan, np.float32), np.empty((1, 0))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.runner, "_start", lambda *args: Run())
        patch.setattr(model.runner, "_run_ahead", lambda *args: None)
        message = refused(ExecutionError, model.generate, [5, 6])
    assert "the model's logits at position 1 are not finite numbers" == message


def test_a_program_that_is_no_language_model() -> None:
    path = DATA / "mlp.pte"
    needed = "it needs a method forward(tokens int [1, S], input_pos int [1]) → logits [1, V] or [1, S, V]"
    expected = f"{path} is not a language model: its forward takes 1 inputs; {needed}"
    assert expected == refused(UnsupportedProgram, LanguageModel, path)


def test_a_tokenizer_that_is_none(folder: Path, tmp_path: Path) -> None:
    path = folder / "tiny.pte"
    missing = tmp_path / "nothing.json"
    assert f"no tokenizer: {missing} does not exist" == refused(InvalidInput, LanguageModel, path, tokenizer=missing)
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{")
    message = refused(InvalidInput, LanguageModel, path, tokenizer=broken)
    assert message.startswith(f"{broken} is not a tokenizer: ")


def test_signatures_that_are_refused(folder: Path) -> None:
    from ptegpu.dtypes import DType
    from ptegpu.format import FileTensor, read_program
    from ptegpu.models.card import Card
    from ptegpu.models.text.signature import SHAPE, read_signature

    file = read_program(folder / "tiny.pte")
    forward = next(m for m in file.methods if m.name == "forward")

    def reason(**changes: object) -> str:
        methods = tuple(replace(m, **changes) if m is forward else m for m in file.methods)  # type: ignore[arg-type]
        message = refused(
            UnsupportedProgram, read_signature, replace(file, methods=methods, path="x.pte"), Card("text")
        )
        assert message.startswith("x.pte is not a language model: ") and message.endswith(
            f"; it needs a method {SHAPE}"
        )
        return message.removeprefix("x.pte is not a language model: ").removesuffix(f"; it needs a method {SHAPE}")

    def with_value(k: int, *, output: bool = False, **changes: object) -> dict[str, object]:
        number = (forward.outputs if output else forward.inputs)[k]
        old = forward.values[number]
        assert isinstance(old, FileTensor)
        values = list(forward.values)
        values[number] = replace(old, **changes)  # type: ignore[arg-type]
        return {"values": tuple(values)}

    assert "it has no method 'forward'" == reason(name="other")
    assert "input 0 of its forward is float32[1, 95]" == reason(**with_value(0, dtype=DType.F32))
    fixed = "input 0 of its forward is always int64[1, 95]; export it with a dynamic length"
    assert fixed == reason(**with_value(0, dynamic=False))
    assert "input 1 of its forward is int64[2]" == reason(**with_value(1, sizes=(2,)))
    assert "the output of its forward is int64[1, 320]" == reason(**with_value(0, output=True, dtype=DType.I64))
    assert "the output of its forward is float32[2, 320]" == reason(**with_value(0, output=True, sizes=(2, 320)))


INTERRUPTED = """
import random, signal, sys
from ptegpu.models.text import LanguageModel
from ptegpu import compile

def generate(number):
    result = model.generate(prompts[number], max_tokens=16, temperature=float(number % 2), seed=1, stop_tokens=())
    return result.tokens

model = LanguageModel(sys.argv[1])
prompts = [[5, 6, 7], [5, 6, 7, 8, 9, 10], [11] * 20]
expected = [generate(number) for number in range(3)]
signal.signal(signal.SIGALRM, signal.default_int_handler)
chosen, right = random.Random(0), 0
for n in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, chosen.uniform(1e-4, 0.05))
        while True:
            generate(chosen.randrange(3))
    except KeyboardInterrupt:
        number = chosen.randrange(3)
        right += expected[number] == generate(number)
print(right)
"""


def test_interrupted_generations_leave_the_model_right(folder: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(folder / "tiny.pte")]
    environ = os.environ | {"PYTHONPATH": str(Path(ptegpu.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=100, check=False)
    assert (0, "", "50\n") == (done.returncode, done.stderr, done.stdout)
