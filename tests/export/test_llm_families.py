"""Every family from a checkpoint of transformers to the GPU: a prompt, 32 tokens, and several texts at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.export.test_decoder import PROMPT, STEPS, TOKENS, apart, expected, logits
from tests.zoo.families import FAMILIES, write

import ptegpu
from ptegpu.errors import UnsupportedProgram
from ptegpu.export import Exported, LlmOptions, ModelSummary, export_llm, load_decoder
from ptegpu.export.backend import torch
from ptegpu.models.text import BatchEngine, LanguageModel

TOLERANCE = 1e-4  # of the largest logit
CHUNKS = [PROMPT] + [1] * STEPS
QUICK = ("qwen2_moe",)  # the rest takes minutes


def on_gpu(path: Path, chunks: list[int]) -> torch.Tensor:
    """The logits of the last token of every chunk, (chunks, V)."""
    actual, first = [], 0
    with ptegpu.load(path, methods=["forward"]) as program:
        for tokens in TOKENS[:, : sum(chunks)].split(chunks, dim=1):
            actual.append(torch.as_tensor(program(tokens.numpy(), np.array([first])))[0])
            first += tokens.shape[1]
    return torch.stack(actual)


def exported(folder: Path, options: LlmOptions | None = None) -> Exported[ModelSummary]:
    account = export_llm(folder, folder / "model.pte", options, check=False)
    assert (1, ()) == (account.lowered.partitions, account.lowered.outside)
    return account


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.heavy) for n in FAMILIES])
def test_as_transformers(name: str, tmp_path: Path) -> None:
    reference = expected(write(tmp_path, name), CHUNKS)[0, PROMPT - 1 :]
    account = exported(tmp_path)
    assert apart(on_gpu(tmp_path / "model.pte", CHUNKS), reference) < TOLERANCE
    with ptegpu.load(tmp_path / "model.pte") as program:
        assert program.method("forward").in_one_plan
    if name not in QUICK:
        several_at_once(tmp_path / "model.pte", account)


def several_at_once(path: Path, account: Exported[ModelSummary]) -> None:
    """Compare texts in one batch with texts one by one; programs with windows or capped scores refuse batches."""
    prompts = [TOKENS[0, k : k + n].tolist() for k, n in ((0, 5), (7, 9), (20, 3))]
    with LanguageModel(path) as model:
        single = [model.generate(prompt, max_tokens=8, temperature=0).tokens for prompt in prompts]
    config = account.summary.config
    masked = config.attention_cap is not None or any(layer.window for layer in config.layers)
    try:
        with BatchEngine(path, one_by_one=False) as engine:
            batched = [engine.submit(prompt, {"max_tokens": 8, "temperature": 0}) for prompt in prompts]
            assert single == [handle.wait().tokens for handle in batched]
    except UnsupportedProgram as e:
        assert masked and "cannot serve several sequences at once" in str(e)
    else:
        assert not masked


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("phi3", LlmOptions(quantize="4bit")),
        ("gpt2", LlmOptions(quantize="4bit")),
        ("falcon-new", LlmOptions(quantize="8bit")),
        ("cohere", LlmOptions(quantize="8da4w")),
        ("qwen3_moe", LlmOptions(quantize="4bit")),
        ("mixtral", LlmOptions(quantize="8bit")),
        ("mixtral", LlmOptions(quantize="8da4w")),
        ("stablelm", LlmOptions(dtype="float16")),
        ("qwen2_moe", LlmOptions(dtype="float16")),
    ],
)
def test_in_few_bits(name: str, options: LlmOptions, tmp_path: Path) -> None:
    write(tmp_path, name)
    exported(tmp_path, options)
    chunks = [PROMPT, 1, 1, 1]
    reference = logits(load_decoder(tmp_path, options)[0], chunks)
    rounded = options.dtype == "float16" or options.quantize == "8da4w"
    assert apart(on_gpu(tmp_path / "model.pte", chunks), reference) < (3e-2 if rounded else TOLERANCE)
