"""A Whisper checkpoint folder to one `.pte` for speech to text, with the tokenizer beside it.

Methods: `log_mel(samples (1, n)) → (F, mels)`; `encode(mel (1, mels, F))` → keys and values for each layer of the
decoder; `forward(tokens int64 (1, S), position int64 (1), keys and values) → logits (1, V)` of the last token, which
keeps the keys and values of tokens. The method `ptegpu_card` returns the card as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..files import check_writable
from ..models.card import METHOD, Card
from ..models.kinds import SPEECH
from ..models.parts import Speech
from ..progress import Progress, silent
from .backend import torch
from .check import Call, EagerCheck, Script
from .checkpoint import TensorStore, load_plain
from .checkpoint_files import read_origin, read_tokenizer
from .lowering import FORWARD, NO_LIMITS, MethodSource
from .pipeline import Exported, ExportJob, ExportPipeline
from .whisper import Decode, Encode, LogMel, Whisper, WhisperConfig, read_whisper

CHECKED = 8  # tokens
OUTPUT = "proj_out.weight"  # the embedding of tokens


@dataclass(frozen=True, slots=True)
class SpeechSummary:
    config: WhisperConfig
    card: Card
    parameters: int


def export_speech(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    progress: Progress = silent,
) -> Exported[SpeechSummary]:
    """Write the program to `path` and the tokenizer beside it.

    With `check`, ptegpu and PyTorch run noise and a few tokens first. If results differ by more than rounding, raise
    ExportError and write nothing.
    """
    source, target = Path(folder), Path(path)
    check_writable(target)
    config = read_whisper(source)
    tokenizer = read_tokenizer(source)
    card = Card(
        SPEECH,
        architecture="WhisperForConditionalGeneration",
        inputs=("tokens", "position", "heard"),
        outputs=("logits",),
        speech=config.speech,
        tokenizer=next(iter(tokenizer), None),
        **read_origin(source),
    )
    pipeline = ExportPipeline(progress)
    with pipeline.phase("Reading weights"):
        model = load_whisper(source, config, progress)
    modules: dict[str, nn.Module] = {"log_mel": LogMel(config.speech), "encode": Encode(model), FORWARD: Decode(model)}
    job = ExportJob(
        {name: MethodSource(module, *_example(config, name)) for name, module in modules.items()},
        EagerCheck(modules, _script(config.speech)) if check else None,
        SpeechSummary(config, card, sum(p.numel() for p in dict.fromkeys(model.parameters()))),
        {METHOD: card.json()},
        {"texture_limits": NO_LIMITS},
    )
    exported = pipeline.run(job)
    if not tokenizer:
        exported.notes.append(f"{source} has no tokenizer.json: the model returns tokens, not text")
    return pipeline.write(exported, target, tokenizer)


def load_whisper(folder: Path, config: WhisperConfig, progress: Progress = silent) -> Whisper:
    """Return the model in eager PyTorch, in float32."""
    model = load_plain(lambda: Whisper(config), TensorStore(folder), progress, {OUTPUT})
    model.proj_out.weight = model.decoder.embed_tokens.weight
    return model


def _example(config: WhisperConfig, name: str) -> tuple[tuple[Any, ...], Any]:
    """Return inputs to trace a method with, and its dynamic shapes."""
    speech = config.speech
    if name == "log_mel":
        return (torch.zeros(1, (speech.frames + 2) * speech.hop),), None
    if name == "encode":
        return (torch.zeros(1, speech.mels, speech.frames),), None
    heads, position = config.decoder_heads, torch.zeros(1, dtype=torch.int64)
    shape = (1, speech.frames // 2, heads, config.dim // heads)
    heard = [torch.zeros(shape) for _ in range(2 * config.decoder_layers)]
    length = torch.export.Dim("length", min=1, max=speech.context)
    shapes = {"tokens": {1: length}, "position": None, "heard": [None] * len(heard)}
    return (torch.zeros((1, 4), dtype=torch.int64), position, heard), shapes


def _script(speech: Speech) -> Script:
    """Return the calls of a check: sound, then a prompt about it, then one token."""
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(1, (speech.frames + 2) * speech.hop, generator=random) * 0.1
    mel = torch.randn(1, speech.mels, speech.frames, generator=random)
    tokens = torch.randint(0, speech.vocab, (1, CHECKED), generator=random)

    def calls(call: Call) -> Iterator[tuple[str, list[Any]]]:
        yield "spectrogram is", call("log_mel", samples)
        heard = call("encode", mel)
        yield "keys and values of sound are", heard
        for first, chunk in ((0, tokens[:, :-1]), (CHECKED - 1, tokens[:, -1:])):
            yield "logits are", call(FORWARD, chunk, torch.tensor([first]), heard)

    return calls
