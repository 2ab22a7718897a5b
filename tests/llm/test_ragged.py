"""Decoders for many sequences at once: each gets the same tokens as when it runs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.emulated import adapter

import ptegpu
from ptegpu.errors import UnsupportedProgram
from ptegpu.format import read_program
from ptegpu.gpu import open_device
from ptegpu.kernels.attention import PAGE
from ptegpu.models.card import read_card
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.compiling import serving_of
from ptegpu.models.text.sampling import Sampling
from ptegpu.models.text.signature import TextSignature, read_signature
from ptegpu.ops import tensor_core_products

DEMO = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
SEQUENCES, PAGES = 4, 40


def signature_of(path: Path) -> TextSignature:
    file = read_program(path)
    return read_signature(file, read_card(file))


class Rows:
    """A program for many sequences, with shuffled tables of pages."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.signature = signature_of(path)
        points = [
            {
                "input 0[1]": n,
                "rows[0]": n,
                "wanted[0]": w,
                "settings[0]": w,
                "seen[0]": w,
                "seen[1]": 0,
                "single": n == w,
            }
            for n, w in ((1, 1), (2, 2), (9, 3))
        ]
        append = {"forward": serving_of(self.signature, PAGES, SEQUENCES)}
        self.program = ptegpu.load(path, append=append, methods=["forward"], points={"forward": points}, **options)
        width = -(-self.signature.context // PAGE)
        self.tables = np.full((SEQUENCES, width), -1, np.int32)
        order = np.random.default_rng(0).permutation(PAGES)
        for k in range(SEQUENCES):
            pages = order[k::SEQUENCES][:width]
            self.tables[k, : len(pages)] = pages

    def run(
        self, rows: list[tuple[int, int, int]], sample_rows: list[int], sampling: list[Sampling], steps: list[int]
    ) -> list[int]:
        """Run rows of (sequence, position, token); return the sampled tokens. `steps` counts each sequence's tokens."""
        tokens = np.array([[t for _, _, t in rows]], self.signature.tokens.numpy)
        places = np.array([[s, p] for s, p, _ in rows], np.int32).reshape(-1, 2)
        words = [s.row(n, rows[k][0]) for s, n, k in zip(sampling, steps, sample_rows)]
        settings = np.frombuffer(b"".join(words), np.int32).reshape(len(sample_rows), 10)
        seen_tokens = np.zeros((len(sample_rows), 0), np.int32)
        single = int(len(places) == len(sample_rows))
        sampled, logprobs = self.program(
            tokens, places, self.tables, np.array(sample_rows, np.int32), settings, seen_tokens, single
        )
        assert np.isfinite(logprobs).all()
        self.logprobs = logprobs
        return [int(t) for t in sampled]


def check_sequences(path: Path, prompts: list[list[int]], count: int = 6, chunk: int = 4) -> None:
    """Feed prompts in chunks, each later than the last, while others decode; compare with separate runs."""
    settings = [Sampling(), Sampling(1.0, seed=3), Sampling(0.8, top_k=5, seed=4), Sampling(1.1, top_p=0.9, seed=5)]
    with LanguageModel(path) as model:
        expected = [
            model.generate(p, max_tokens=count, stop_tokens=(), temperature=s.temperature, top_k=s.top_k, top_p=s.top_p,
                           seed=s.seed).tokens
            for p, s in zip(prompts, settings)
        ]  # fmt: skip
    program = Rows(path)
    texts: list[list[int]] = [list(p) for p in prompts]
    done = [0] * len(prompts)
    for turn in range(200):
        rows, sample_rows, sequences = [], [], []
        for k, tokens in enumerate(texts):
            ready = len(tokens) - len(prompts[k]) < count
            if turn < 2 * k or not ready:
                continue
            new = tokens[done[k] :][:chunk]
            rows += [(k, done[k] + j, t) for j, t in enumerate(new)]
            done[k] += len(new)
            if done[k] == len(tokens):
                sample_rows.append(len(rows) - 1)
                sequences.append(k)
        if not rows:
            break
        steps = [len(texts[k]) - len(prompts[k]) for k in sequences]
        sampled = program.run(rows, sample_rows, [settings[k] for k in sequences], steps)
        for k, token in zip(sequences, sampled):
            texts[k].append(token)
    assert [m[len(p) :] for m, p in zip(texts, prompts)] == expected


def test_the_bundled_model() -> None:
    with LanguageModel(DEMO) as model:
        texts = ("Once upon a time there was a king", "The", "In a dark forest lived a wolf who", "A")
        prompts = [model.encode(t) for t in texts]
    check_sequences(DEMO, prompts, count=8, chunk=5)


@pytest.mark.slow
def test_on_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products leave rows as blocks for the next ones, in the node that also attends and writes pages."""
    for name in ("WORTH", "WORTH_FEW", "FEW"):
        monkeypatch.setattr(tensor_core_products, name, 1)
    tokens = np.random.default_rng(0).integers(5, 200, (4, 9)).tolist()

    def logprobs(**options: Any) -> tuple[np.ndarray, set[str]]:
        program, results = Rows(DEMO, **options), []
        for first, end in ((0, 6), (6, 7), (7, 8), (8, 9)):
            rows = [(k, p, tokens[k][p]) for k in range(4) for p in range(first, end)]
            last = [(k + 1) * (end - first) - 1 for k in range(4)]
            program.run(rows, last, [Sampling()] * 4, [end] * 4)
            results.append(program.logprobs)
        return np.concatenate(results), {k.name for p in program.program.method("forward").plans for k in p.kernels}

    gpu = open_device(engine="wgpu")
    want, _ = logprobs(device=gpu)
    with adapter(gpu), patch("ptegpu.gpu.session.check"):  # kernels with matrices need subgroups, which are too small
        gpu.target = replace(gpu.target, precision="auto", kept_bytes=1 << 26, few_rows=0, subgroups=False)
        got, kernels = logprobs(device=gpu)
    assert "matrix_finish_rows" in kernels
    np.testing.assert_allclose(got, want, rtol=0, atol=0.02)


@pytest.mark.torch
@pytest.mark.parametrize("every", [False, True])
def test_a_program_that_writes_its_cache_apart(tmp_path: Path, every: bool) -> None:
    from tests.zoo.language import TinyLM, export

    export(TinyLM(every=every), tmp_path / "tiny.pte")
    check_sequences(tmp_path / "tiny.pte", [[1, 2, 3, 4, 5, 6, 7], [4], [9, 8, 7, 6, 5], [2, 2]])


def test_what_cannot_be_turned_says_why() -> None:
    signature = signature_of(DEMO)
    control = Path(__file__).parents[1] / "data" / "control.pte"
    with pytest.raises(UnsupportedProgram, match="cannot serve several sequences at once: "):
        ptegpu.load(control, append={"forward": serving_of(signature, 4, 2)}, methods=["forward"])
