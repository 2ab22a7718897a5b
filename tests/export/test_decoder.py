"""Every family, in eager PyTorch, against transformers: a prompt and 32 tokens, one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.zoo import checkpoints
from tests.zoo.families import FAMILIES, VOCAB, config, write

from ptegpu.export import LlmOptions, load_decoder
from ptegpu.export.checkpoint import TensorStore, Weights, load
from ptegpu.export.config import DecoderConfig, read_config
from ptegpu.export.decoder import Decoder
from ptegpu.export.families import FAMILIES as SUPPORTED

PROMPT, STEPS = 12, 32
TOLERANCE = 1e-5  # of the largest logit
TOKENS = torch.randint(0, VOCAB, (1, PROMPT + STEPS), generator=torch.Generator().manual_seed(1))
CHUNKS = [PROMPT] + [1] * STEPS


def expected(model: Any, chunks: list[int]) -> torch.Tensor:
    """Return the logits of transformers, with its cache: (1, S, V)."""
    actual, cache = [], None
    with torch.no_grad():
        for tokens in TOKENS[:, : sum(chunks)].split(chunks, dim=1):
            state = model(tokens, past_key_values=cache, use_cache=True)
            cache = state.past_key_values
            actual.append(state.logits)
    return torch.cat(actual, dim=1)


def logits(decoder: Decoder, chunks: list[int]) -> torch.Tensor:
    decoder.reset()
    actual, first = [], 0
    with torch.no_grad():
        for tokens in TOKENS[:, : sum(chunks)].split(chunks, dim=1):
            actual.append(decoder(tokens, torch.tensor([first])))
            first += tokens.shape[1]
    return torch.cat(actual, dim=-2)


def apart(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest element."""
    return ((actual - reference).abs().max() / reference.abs().max()).item()


def test_all_families_are_here() -> None:
    assert set(SUPPORTED) == {config(name)["model_type"] for name in FAMILIES}


def test_the_page_has_all_families() -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    assert [] == [name for name, family in SUPPORTED.items() if f"\n| `{name}` | {family.title} |" not in page]


@pytest.mark.parametrize("name", FAMILIES)
def test_as_transformers(name: str, tmp_path: Path) -> None:
    reference = expected(write(tmp_path, name), CHUNKS)
    decoder, _, parameters = load_decoder(tmp_path, LlmOptions(all_logits=True))
    assert apart(logits(decoder, CHUNKS), reference) < TOLERANCE
    assert apart(logits(decoder, [5, 1, 30, 8]), reference) < TOLERANCE
    assert parameters == sum(p.numel() for p in set(decoder.parameters()))


@pytest.mark.parametrize(
    ("name", "changes", "max_context", "chunks"),
    [
        ("llama-dynamic", {"max_position_embeddings": 20}, 40, [40]),
        ("phi4-longrope", {"original_max_position_embeddings": 16}, 16, [12, 1, 1, 2]),
        ("phi4-longrope", {"original_max_position_embeddings": 16}, 64, [20, 1, 1, 8]),
    ],
)
def test_angles_that_depend_on_the_length(
    name: str, changes: dict[str, Any], max_context: int, chunks: list[int], tmp_path: Path
) -> None:
    reference = expected(write(tmp_path, name, changes), chunks)
    decoder, _, _ = load_decoder(tmp_path, LlmOptions(all_logits=True, max_context=max_context))
    assert apart(logits(decoder, chunks), reference) < TOLERANCE


def turned(**changes: Any) -> Callable[[DecoderConfig], DecoderConfig]:
    """With other angles."""

    def other(config: DecoderConfig) -> DecoderConfig:
        layers = (replace(layer, rope=layer.rope and replace(layer.rope, **changes)) for layer in config.layers)
        return replace(config, layers=tuple(layers))

    return other


def everywhere(config: DecoderConfig) -> DecoderConfig:
    return replace(config, layers=(config.layers[0],) * len(config.layers))


WRONG: list[tuple[str, Callable[[DecoderConfig], DecoderConfig] | dict[str, Any]]] = [
    ("granite", {"embedding_scale": 1.0}),
    ("granite", {"attention_scale": None}),
    ("granite", {"residual_scale": 1.0}),
    ("granite", {"logit_scale": 1.0}),
    ("gemma3", {"norm_offset": 0.0}),
    ("gemma2", {"attention_cap": None}),
    ("cohere", {"logit_scale": 1.0}),
    ("cohere", {"interleaved": False}),
    ("pythia", {"parallel": False}),
    ("pythia", turned(dim=8)),
    ("stablelm", turned(dim=2)),
    ("llama", turned(kind="default")),
    ("llama-linear", turned(kind="default")),
    ("qwen2-yarn", turned(scale=1.0)),
    ("qwen2-yarn", turned(kind="linear")),
    ("phi4-longrope", turned(scale=1.0)),
    ("phi4-longrope", turned(short=(1.0, 1.0, 1.0))),
    ("qwen3", turned(theta=1.1e6)),
    ("smollm3", everywhere),
    ("cohere2", everywhere),
    ("gemma3", everywhere),
    ("olmo3", everywhere),
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_what_is_wrong_shows(name: str, change: Any, tmp_path: Path) -> None:
    """The tolerance detects a missing part of a family."""
    write(tmp_path, name)
    right = read_config(tmp_path)
    decoders = [Decoder(c, right.trained, all_logits=True) for c in (right, _changed(right, change))]
    for decoder in decoders:
        load(decoder, TensorStore(tmp_path), Weights(), lambda *_: None)
    assert apart(*(logits(decoder, [PROMPT]) for decoder in decoders)) > 10 * TOLERANCE


def _changed(config: DecoderConfig, change: Any) -> DecoderConfig:
    return replace(config, **change) if isinstance(change, dict) else change(config)


def test_the_last_token_alone(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, "qwen3")
    every, last = (load_decoder(tmp_path, LlmOptions(all_logits=each))[0] for each in (True, False))
    assert apart(logits(last, [PROMPT]), logits(every, [PROMPT])[:, -1]) < TOLERANCE


def test_a_context_within_the_window_needs_no_mask(tmp_path: Path) -> None:
    config = read_config(checkpoints.write(tmp_path, "gemma3"))
    assert [5, None] == [mask.window for mask in Decoder(config, 64).windows]
    assert [None] == [mask.window for mask in Decoder(config, 5).windows]
