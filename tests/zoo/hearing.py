"""A tiny Whisper with random weights, as a folder of the Hub, and sounds to transcribe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from .specimen import Specimen

FRAMES = 100  # of a window of one second
TEXT, END, START = 60, 60, 61  # ids below END are text
LANGUAGES = {"<|en|>": 62, "<|de|>": 63}
TASKS = {"translate": 64, "transcribe": 65}
NO_TIMESTAMPS = 69  # 68: no speech
VOCAB = 70 + FRAMES // 2 + 1
LARGER = {"embed_tokens": 10, "embed_positions": 40}


def model(seed: int = 0, larger: float = 1.0, **changes: Any) -> WhisperForConditionalGeneration:
    """Return a model with weights so large that its tokens depend on sound, text and position."""
    shape = {
        "vocab_size": VOCAB,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
        "max_source_positions": FRAMES // 2,
        "max_target_positions": 40,
    }
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "decoder_start_token_id": START}
    config = WhisperConfig(**shape | ends | changes)
    torch.manual_seed(seed)
    network = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            last = name.split(".")[-2]
            decodes = name.startswith("model.decoder")
            if parameter.dim() > 1:
                parameter.mul_(larger * LARGER.get(last, 10) * (5 if decodes and last in ("out_proj", "fc2") else 1))
    network.generation_config = GenerationConfig(
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
        max_length=config.max_target_positions,
        no_timestamps_token_id=NO_TIMESTAMPS,
        max_initial_timestamp_index=20,
        is_multilingual=True,
        lang_to_id=LANGUAGES,
        task_to_id=TASKS,
        suppress_tokens=[3, 5, 61, 62, 63, 64, 65, 66, 67, 68],
        begin_suppress_tokens=[7, END],
        return_timestamps=False,
    )
    return network


def extractor(seconds: int = 1) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(chunk_length=seconds)


def save(network: WhisperForConditionalGeneration, folder: Path) -> Path:
    network.save_pretrained(folder)
    extractor(network.config.max_source_positions // 50).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token per word. Timestamps are not special tokens, as in real ones."""
    import tokenizers

    words = {f"w{k}": k for k in range(TEXT)}
    names = ["<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, "<|translate|>", "<|transcribe|>", "<|startoflm|>"]
    names += ["<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(names)
    tokenizer.add_tokens([tokenizers.AddedToken(f"<|{k * 0.02:.2f}|>", special=False) for k in range(FRAMES // 2 + 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Return tones that come and go, and some noise."""
    random, t = np.random.default_rng(seed), np.arange(int(seconds * 16000)) / 16000
    tones = sum(
        np.sin(2 * np.pi * (f * t + 30 * np.sin(3 * t))) * (np.sin(2 * np.pi * t * s) > 0)
        for f, s in zip(random.uniform(100, 4000, 4), random.uniform(0.3, 3, 4))
    )
    return (0.1 * tones + 0.01 * random.standard_normal(len(t))).astype(np.float32)


SPECIMENS = {
    "whisper": Specimen(
        model,
        lambda: (torch.randn(1, 80, FRAMES), None, torch.tensor([[START]])),  # a spectrogram, no mask, tokens
        lambda folder: save(model(), folder),
    ),
}
