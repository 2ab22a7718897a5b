"""Language models of `tests/programs`, compared with PyTorch by logits and by tokens; training from tales to text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from tests.cases import device
from tests.changes import change_outputs
from tests.programs import DECODERS, program
from tools import train_tales

from ptegpu.export import LlmOptions, export_llm
from ptegpu.models.text import LanguageModel

PROMPT = [5, 17, 3, 88, 41]
COUNT = 200
NEAR = 1e-4  # logits that differ by less may swap places


# Every family in floats, and every quantization with one family: its kernels are the same in all families.
SOME = ["llama", "llama in 4 bits", "qwen3", "qwen3 in 4 bits, 8-bit activations"]
SOME += ["gemma3", "mistral in 8 bits, f16"]
REPEATED = ["gemma3 in 4 bits"]  # both the family and the quantization are covered above


@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=pytest.mark.heavy) for name in REPEATED)])
def test_logits_are_those_of_pytorch(name: str) -> None:
    program(name).check(device())
    changed = change_outputs(program(name))
    assert ([], {}) == (changed.accepted, changed.unchanged)


def test_logits_with_the_least_that_a_browser_has() -> None:
    program("qwen3 in 4 bits").check(device(f16=False, subgroups=False, limits="browser"))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "llama in 4 bits"])
def test_200_tokens_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.pte").write_bytes(program(name).data)
    with LanguageModel(tmp_path / "model.pte") as model:
        tokens = model.generate(PROMPT, max_tokens=COUNT, stop_tokens=()).tokens
    assert len(tokens) == COUNT
    decoder = DECODERS[name].eager()
    with torch.no_grad():
        logits = decoder(torch.tensor([PROMPT]), torch.tensor([0]))[0]
        for step, token in enumerate(tokens):
            assert float(logits.max() - logits[token]) < NEAR, f"token {step} is {token}, not {int(logits.argmax())}"
            logits = decoder(torch.tensor([[token]]), torch.tensor([len(PROMPT) + step]))[0]


def test_from_tales_to_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, export in 4 bits and generate, all with the tools that made the bundled model."""
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 300, "head_dim": 32}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    monkeypatch.setattr(train_tales, "CONFIG", train_tales.CONFIG | small)
    text = "\n\n\n\n".join(f"{n} The Fox\n\nOnce there was a fox.\nIt ran {n} times." for n in range(40))
    tales = train_tales.read_tales(text)
    assert tales[7] == "The Fox\nOnce there was a fox. It ran 7 times."
    tokenizer = train_tales.train_tokenizer(tales)
    ids = torch.tensor(tokenizer.encode("".join(f"<|tale|>{t}<|end|>" for t in tales)).ids)
    torch.manual_seed(0)
    model = train_tales.Tales()
    options = argparse.Namespace(steps=100, batch=8, window=32, rate=1e-2, decay=0.1, dropout=0.0, every=20)
    losses = [entry["heldout"] for entry in train_tales.train(model, ids, ids, options)]
    assert losses[-1] < 1.0 < losses[0]
    train_tales.save(model, tokenizer, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 300
    export_llm(tmp_path, tmp_path / "tales.pte", LlmOptions(quantize="4bit"), check=False)
    with LanguageModel(tmp_path / "tales.pte") as written:
        result = written.generate("<|tale|>The Fox\nOnce there", max_tokens=20)
    assert result.text.startswith(" was a fox. It ran")
