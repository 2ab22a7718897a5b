"""Sampling of tokens against NumPy: every filter, vocabularies in parts and workgroups, ties, masks, distributions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cases import compare
from tests.oracle import device, plan_of, run_plan

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Node, Tensor
from ptegpu.models.text.sampling import Sampling
from ptegpu.ops.registry import REGISTRY
from ptegpu.plan.target import CLASSES

LIMITS = {"f16": False, "subgroups": False, "limits": "browser"}


def run(logits: np.ndarray, sampling: Sampling, step: int = 0, past: np.ndarray | None = None, flags: int | None = None,
        features: dict | None = None, **target: Any) -> tuple[int, float]:  # fmt: skip
    """Return the operator's token and log-probability."""
    gpu = device(**(features or {}))
    inputs = [logits, sampling.words(step), np.zeros(1, np.int32) if past is None else bits(past)]
    graph = Graph("sample")
    graph.inputs = [Tensor(f"in{k}", DType.of(a.dtype), a.shape, "input") for k, a in enumerate(inputs)]
    outs = (Tensor("token", DType.I32, (1,)), Tensor("logprob", DType.F32, (1,)))
    definition = REGISTRY["ptegpu.sample.default"]
    graph.nodes = [Node(definition, (*graph.inputs, sampling.flags if flags is None else flags), outs, "sample")]
    graph.outputs = list(outs)
    adapter = replace(gpu.target, **{"device_class": CLASSES["discrete"], **target})
    token, logprob = run_plan(plan_of(graph, adapter), inputs, gpu)
    return int(token[0]), float(logprob[0])


def bits(past: np.ndarray) -> np.ndarray:
    """Pack bools into the bits of int32 words."""
    padded = np.zeros(-(-len(past) // 32) * 32, bool)
    padded[: len(past)] = past
    return np.packbits(padded, bitorder="little").view(np.int32)


def mixed(n: np.ndarray) -> np.ndarray:
    h = np.asarray(n, np.uint32)
    with np.errstate(over="ignore"):
        h = (h ^ (h >> 16)) * np.uint32(0x7FEB352D)
        h = (h ^ (h >> 15)) * np.uint32(0x846CA68B)
    return h ^ (h >> 16)


def noise(seed: int, step: int, count: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        first = mixed(np.uint32(seed) ^ mixed(np.uint32(step) + np.uint32(0x9E3779B9)))
        h = mixed(mixed(np.arange(count, dtype=np.uint32) ^ first) + mixed(first + np.uint32(1)))
    return -np.log(-np.log1p(-np.minimum((h + 0.5) * 2.0**-32, 1 - 2.0**-24)))


def filtered(row: np.ndarray, sampling: Sampling, past: np.ndarray | None = None) -> np.ndarray:
    """Return the penalised, scaled logits in float64, with -inf for filtered tokens."""
    x = row.astype(np.float64)
    if past is not None:
        x = np.where(past, np.where(x < 0, x * sampling.repeat_penalty, x / sampling.repeat_penalty), x)
    x = (x / (sampling.temperature or 1)).astype(np.float32).astype(np.float64)
    if sampling.top_k and sampling.top_k < len(x):
        x = np.where(x >= np.sort(x)[-sampling.top_k], x, -np.inf)
    if sampling.top_p < 1:
        order = np.argsort(-x, kind="stable")
        p = np.exp(x - x.max())
        mass = np.cumsum(p[order]) / p.sum()
        last = int(np.argmax(mass >= sampling.top_p))
        x = np.where(x >= x[order[last]], x, -np.inf)
    if sampling.min_p:
        x = np.where(x >= x.max() + math.log(sampling.min_p), x, -np.inf)
    return x


def expected(logits: np.ndarray, sampling: Sampling, step: int = 0, past: np.ndarray | None = None) -> set[int]:
    """Return the expected token, or several if float32 cannot tell them apart."""
    row = logits.reshape(-1, logits.shape[-1])[-1]
    x = filtered(row, sampling, past)
    if sampling.temperature:
        x = x + noise(sampling.seed or 0, step, len(row))
    elif np.sum(x == x.max()) > 1:
        return {int(np.argmax(x))}
    return {int(k) for k in np.flatnonzero(x >= x.max() - 2e-5)}


def logprob_of(logits: np.ndarray, token: int) -> float:
    row = logits.reshape(-1, logits.shape[-1])[-1].astype(np.float64)
    return float(row[token] - row.max() - np.log(np.exp(row - row.max()).sum()))


def check(logits: np.ndarray, sampling: Sampling, step: int = 0, past: np.ndarray | None = None,
          features: dict | None = None, **target: Any) -> None:  # fmt: skip
    token, logprob = run(logits, sampling, step, past, features=features, **target)
    assert token in expected(logits, sampling, step, past)
    assert math.isclose(logprob_of(logits, token), logprob, abs_tol=2e-3 if logits.dtype == np.float16 else 2e-5)


def logits_of(shape: tuple[int, ...], seed: int = 0, spread: float = 3.0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, shape).astype(dtype)


SETTINGS = [
    Sampling(seed=0),
    Sampling(1.0, seed=1),
    Sampling(0.7, seed=2, top_k=5),
    Sampling(1.3, seed=3, top_k=1),
    Sampling(2.0, seed=4, top_k=100000),
    Sampling(1.0, seed=5, top_p=0.9),
    Sampling(1.5, seed=6, top_p=0.3),
    Sampling(3.0, seed=7, top_p=0.999),
    Sampling(0.9, seed=8, top_p=1e-6),
    Sampling(2.0, seed=9, min_p=0.1),
    Sampling(2.0, seed=10, min_p=1.0),
    Sampling(1.5, seed=11, top_k=40, top_p=0.8),
    Sampling(1.5, seed=12, top_k=40, top_p=0.95, min_p=0.02),
    Sampling(1e-4, seed=13),
]  # fmt: skip


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [7, 300, 5003])
def test_settings(sampling: Sampling, vocabulary: int) -> None:
    check(logits_of((1, vocabulary), vocabulary), sampling, step=vocabulary)


@pytest.mark.parametrize("sampling", SETTINGS[::3], ids=str)
def test_browser_limits(sampling: Sampling) -> None:
    check(logits_of((1, 5003), 3), sampling, features=LIMITS)


@pytest.mark.parametrize("sampling", SETTINGS[1::4], ids=str)
def test_as_on_a_cpu(sampling: Sampling) -> None:
    check(logits_of((1, 4097), 4), sampling, device_class=CLASSES["software"])


@pytest.mark.parametrize("sampling", SETTINGS[1::4], ids=str)
def test_small_workgroups(sampling: Sampling) -> None:
    check(logits_of((1, 4097), 4), sampling, max_invocations=128)


@pytest.mark.parametrize("vocabulary", [1, 2, 255, 256, 257, 2048, 2049, 4096])
def test_vocabularies(vocabulary: int) -> None:
    check(logits_of((1, vocabulary), vocabulary), Sampling(1.2, 50, 0.9, seed=5))
    check(logits_of((1, vocabulary), vocabulary), Sampling())


def test_a_large_vocabulary() -> None:
    logits = logits_of((1, 262144), 9, 2.0)
    for sampling in (
        Sampling(),
        Sampling(1.0, seed=3),
        Sampling(0.8, 50, 0.95, seed=4),
        Sampling(1.0, top_p=0.9, seed=6),
    ):
        check(logits, sampling)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("sampling", [Sampling(seed=0), Sampling(0.9, 20, 0.9, seed=1)], ids=str)
def test_the_last_row_counts(dtype: str, sampling: Sampling) -> None:
    check(logits_of((1, 3, 333), 1, dtype=dtype), sampling)
    check(logits_of((1, 1, 64), 2, dtype=dtype), sampling)


@pytest.mark.parametrize("sampling", [
    Sampling(repeat_penalty=1.5, seed=1), Sampling(1.0, repeat_penalty=1.3, seed=2),
    Sampling(1.0, 9, repeat_penalty=0.5, seed=3),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("vocabulary", [31, 33, 700])
def test_the_penalty(sampling: Sampling, vocabulary: int) -> None:
    logits = logits_of((1, vocabulary), vocabulary)
    past = np.random.default_rng(1).random(vocabulary) < 0.5
    past[np.argmax(logits)] = True
    check(logits, sampling, past=past)


def test_of_equal_logits_the_first_is_the_greedy_token() -> None:
    logits = np.zeros((1, 5000), np.float32)
    logits[0, [700, 2500, 4999]] = 3.0
    assert 700 == run(logits, Sampling())[0]


def test_ties_at_a_threshold_are_kept() -> None:
    logits = np.full((1, 600), -5.0, np.float32)
    logits[0, 10:20] = 2.0
    drawn = {run(logits, Sampling(1.0, 3, seed=seed))[0] for seed in range(60)}
    assert set(range(10, 20)) == drawn


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.full((1, 3000), -np.inf, np.float32)
    logits[0, [5, 2999]] = 0.0
    for sampling in (Sampling(5.0), Sampling(1.0, 50), Sampling(1.0, top_p=0.999), Sampling(1.0, 50, 0.9)):
        drawn = Counter(run(logits, replace(sampling, seed=seed))[0] for seed in range(20))
        assert {5, 2999} == set(drawn)
    assert math.isclose(math.log(0.5), run(logits, Sampling())[1], abs_tol=1e-6)


def test_logits_without_a_number_have_no_probability() -> None:
    logits = np.full((1, 40), np.nan, np.float32)
    logits[0, 7] = 1.0
    token, logprob = run(logits, Sampling())
    assert (7, True) == (token, math.isnan(logprob))


@pytest.mark.parametrize("sampling", [
    Sampling(1.0, seed=11), Sampling(0.7, seed=11), Sampling(1.0, 4, seed=11), Sampling(1.0, top_p=0.8, seed=11),
    Sampling(1.5, 5, 0.9, 0.05, seed=11),
], ids=str)  # fmt: skip
def test_tokens_come_as_often_as_their_probability_says(sampling: Sampling) -> None:
    row = np.array([2.0, 1.0, 0.5, 0.0, -0.5, 1.5, -3.0, 0.7], np.float32)
    x = filtered(row, sampling)
    p = np.exp(x - x.max())
    p /= p.sum()
    count = 20000
    scores = x + np.stack([noise(11, step, len(row)) for step in range(count)])
    frequencies = np.bincount(scores.argmax(1), minlength=len(row)) / count
    np.testing.assert_allclose(frequencies, p, atol=4 * 0.5 / math.sqrt(count))
    for step in range(12):  # the GPU draws the same
        assert run(row[None], sampling, step)[0] in expected(row[None], sampling, step)


def test_neighbouring_seeds_and_steps_are_independent() -> None:
    u = np.stack([noise(seed, step, 64) for seed in range(20) for step in range(20)])
    correlation = np.corrcoef(u)
    assert np.abs(correlation - np.eye(len(u))).max() < 0.65


def test_nothing_is_chosen_where_nothing_is_asked() -> None:
    run(logits_of((1, 50)), Sampling(), flags=0)


def score(logits: np.ndarray, tokens: np.ndarray, **target: Any) -> np.ndarray:
    gpu = device()
    graph = Graph("score")
    graph.inputs = [Tensor(f"in{k}", DType.of(a.dtype), a.shape, "input") for k, a in enumerate((logits, tokens))]
    out = Tensor("out", DType.F32, tokens.shape)
    graph.nodes = [Node(REGISTRY["ptegpu.score.default"], tuple(graph.inputs), (out,), "score")]
    graph.outputs = [out]
    adapter = replace(gpu.target, **{"device_class": CLASSES["discrete"], **target})
    return run_plan(plan_of(graph, adapter), [logits, tokens], gpu)[0]


@pytest.mark.parametrize("shape", [(1, 50), (1, 1, 50), (1, 5, 300), (1, 3, 5003), (1, 300, 33)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scores(shape: tuple[int, ...], dtype: str) -> None:
    logits = logits_of(shape, 5, dtype=dtype)
    rows = logits.reshape(-1, shape[-1]).astype(np.float64)
    tokens = np.random.default_rng(2).integers(0, shape[-1], (1, len(rows))).astype(np.int32)
    top = rows.max(1, keepdims=True)
    want = (rows - top - np.log(np.exp(rows - top).sum(1, keepdims=True)))[np.arange(len(rows)), tokens[0]]
    compare(score(logits, tokens)[0], want, 2e-6, "scores")


def test_no_tokens_no_scores() -> None:
    assert (1, 0) == score(logits_of((1, 5, 30)), np.zeros((1, 0), np.int32)).shape


def run_rows(logits: np.ndarray, settings: list[Sampling], past: np.ndarray, features: dict | None = None,
             **target: int) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    gpu = device(**(features or {}))
    words = np.stack([np.frombuffer(s.row(k, -1), np.int32) for k, s in enumerate(settings)])
    marks = np.stack([bits(row) for row in past]) if past.size else np.zeros((len(settings), 0), np.int32)
    inputs = [logits, words, marks]
    graph, newest = Graph("sample"), Tensor("newest", DType.I32, (1,), "state", data=np.zeros(1, np.int32))
    graph.inputs = [Tensor(f"in{k}", DType.of(a.dtype), a.shape, "input") for k, a in enumerate(inputs)]
    outs = (Tensor("token", DType.I32, (len(settings),)), Tensor("logprob", DType.F32, (len(settings),)))
    operands = (*graph.inputs, newest)
    graph.nodes = [Node(REGISTRY["ptegpu.sample_rows.default"], operands, outs, "sample", (newest,))]
    graph.outputs = list(outs)
    return run_plan(plan_of(graph, replace(gpu.target, **target)), inputs, gpu)


@pytest.mark.parametrize("features", [{}, LIMITS], ids=["", "browser"])
@pytest.mark.parametrize(("vocabulary", "dtype"), [(7, "float32"), (300, "float16"), (5003, "float32")])
def test_each_row_by_its_own_settings(vocabulary: int, dtype: str, features: dict) -> None:
    penalised = [Sampling(s.temperature, s.top_k, s.top_p, s.min_p, 1.7, s.seed) for s in SETTINGS[::2]]
    settings = [*SETTINGS, *penalised]
    logits = logits_of((1, len(settings), vocabulary), dtype=dtype)
    past = np.random.default_rng(1).random((len(settings), vocabulary)) < 0.3
    tokens, logprobs = run_rows(logits, settings, past, features)
    for k, sampling in enumerate(settings):
        assert tokens[k] in expected(logits[:, k], sampling, k, past[k] if sampling.penalises else None)
        near = 2e-3 if dtype == "float16" else 2e-5
        assert math.isclose(logprob_of(logits[:, k], tokens[k]), logprobs[k], abs_tol=near)


def test_a_row_is_what_it_is_alone() -> None:
    settings, logits = SETTINGS, logits_of((1, len(SETTINGS), 999))
    tokens, _ = run_rows(logits, settings, np.zeros(0))
    assert [run(logits[:, k], s, k)[0] for k, s in enumerate(settings)] == tokens.tolist()
