"""Decoders for many sequences at once: every sequence gets the tokens that it gets alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ptegpu
from ptegpu.errors import UnsupportedProgram
from ptegpu.format import read_program
from ptegpu.kernels.attention import PAGE
from ptegpu.models.card import read_card
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.compiling import serving_of
from ptegpu.models.text.sampling import Sampling
from ptegpu.models.text.signature import TextSignature, read_signature

DEMO = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
SEQUENCES, PAGES = 4, 40


def signature_of(path: Path) -> TextSignature:
    file = read_program(path)
    return read_signature(file, read_card(file))


class Rows:
    """A program for many sequences, with tables of pages that nobody would choose."""

    def __init__(self, path: Path) -> None:
        self.signature = signature_of(path)
        points = [
            {"input 0[1]": n, "rows[0]": n, "wanted[0]": w, "settings[0]": w, "seen[0]": w, "seen[1]": 0}
            for n, w in ((1, 1), (2, 2), (9, 3))
        ]
        append = {"forward": serving_of(self.signature, PAGES, SEQUENCES)}
        self.program = ptegpu.load(path, append=append, methods=["forward"], points={"forward": points})
        width = -(-self.signature.context // PAGE)
        self.tables = np.full((SEQUENCES, width), -1, np.int32)
        order = np.random.default_rng(0).permutation(PAGES)
        for k in range(SEQUENCES):
            mine = order[k::SEQUENCES][:width]
            self.tables[k, : len(mine)] = mine

    def run(
        self, rows: list[tuple[int, int, int]], wanted: list[int], sampling: list[Sampling], steps: list[int]
    ) -> list[int]:
        """Rows are (sequence, position, token); steps count each sequence's tokens."""
        tokens = np.array([[t for _, _, t in rows]], self.signature.tokens.numpy)
        where = np.array([[s, p] for s, p, _ in rows], np.int32).reshape(-1, 2)
        words = [np.append(s.words(n), np.int32(s.flags)) for s, n in zip(sampling, steps)]
        settings = np.array(words, np.int32).reshape(len(wanted), 9)
        seen = np.zeros((len(wanted), 0), np.int32)
        found, chances = self.program(tokens, where, self.tables, np.array(wanted, np.int32), settings, seen)
        assert np.isfinite(chances).all()
        return [int(t) for t in found]


def hold(path: Path, prompts: list[list[int]], count: int = 6, chunk: int = 4) -> None:
    """Prompts come in chunks, one later than the other, beside the tokens of those that are ahead."""
    settings = [Sampling(), Sampling(1.0, seed=3), Sampling(0.8, top_k=5, seed=4), Sampling(1.1, top_p=0.9, seed=5)]
    with LanguageModel(path) as model:
        alone = [
            model.generate(p, max_tokens=count, stop_tokens=(), temperature=s.temperature, top_k=s.top_k, top_p=s.top_p,
                           seed=s.seed).tokens
            for p, s in zip(prompts, settings)
        ]  # fmt: skip
    many = Rows(path)
    made: list[list[int]] = [list(p) for p in prompts]
    done = [0] * len(prompts)
    for turn in range(200):
        rows, wanted, whose = [], [], []
        for k, tokens in enumerate(made):
            ready = len(tokens) - len(prompts[k]) < count
            if turn < 2 * k or not ready:
                continue
            new = tokens[done[k] :][:chunk]
            rows += [(k, done[k] + j, t) for j, t in enumerate(new)]
            done[k] += len(new)
            if done[k] == len(tokens):
                wanted.append(len(rows) - 1)
                whose.append(k)
        if not rows:
            break
        steps = [len(made[k]) - len(prompts[k]) for k in whose]
        found = many.run(rows, wanted, [settings[k] for k in whose], steps)
        for k, token in zip(whose, found):
            made[k].append(token)
    assert [m[len(p) :] for m, p in zip(made, prompts)] == alone


def test_the_bundled_model() -> None:
    with LanguageModel(DEMO) as model:
        texts = ("Once upon a time there was a king", "The", "In a dark forest lived a wolf who", "A")
        prompts = [model.encode(t) for t in texts]
    hold(DEMO, prompts, count=8, chunk=5)


@pytest.mark.torch
@pytest.mark.parametrize("every", [False, True])
def test_a_program_that_writes_its_cache_apart(tmp_path: Path, every: bool) -> None:
    from tests.zoo.language import TinyLM, export

    export(TinyLM(every=every), tmp_path / "tiny.pte")
    hold(tmp_path / "tiny.pte", [[1, 2, 3, 4, 5, 6, 7], [4], [9, 8, 7, 6, 5], [2, 2]])


def test_what_cannot_be_turned_says_why() -> None:
    signature = signature_of(DEMO)
    control = Path(__file__).parents[1] / "data" / "control.pte"
    with pytest.raises(UnsupportedProgram, match="cannot serve several sequences at once: "):
        ptegpu.load(control, append={"forward": serving_of(signature, 4, 2)}, methods=["forward"])
