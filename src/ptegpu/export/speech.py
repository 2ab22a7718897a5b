"""A Whisper checkpoint folder to one `.pte` for speech to text, with the tokenizer beside it.

Methods: `log_mel(samples (1, n)) → (F, mels)`; `encode(mel (1, mels, F))` → keys and values of each layer of the
decoder; `forward(tokens int64 (1, S), position int64 (1), keys and values) → logits (1, V)` of the last token, which
keeps the keys and values of tokens. The method `ptegpu_card` gives what a runner must know, as JSON.
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
from ..progress import Progress, silent
from .backend import torch
from .check import Call, Check, Script
from .checkpoint import Store, load_plain
from .llm import read_tokenizer
from .lowering import NO_LIMITS, Source
from .origin import origin_of
from .pipeline import Exported, Job, Pipeline
from .sound import Config, read_sound_config
from .whisper import Decode, Encode, LogMel, Whisper

CHECKED = 8  # tokens
OUTPUT = "proj_out.weight"  # the embedding of tokens


@dataclass(frozen=True, slots=True)
class SpeechSummary:
    config: Config
    card: Card
    parameters: int


def export_speech(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    progress: Progress = silent,
) -> Exported[SpeechSummary]:
    """Writes the program to `path` and the tokenizer beside it.

    With `check`, some noise and a few tokens are run by ptegpu and by PyTorch first: if results differ by more than
    rounding, that is an error, and nothing is written.
    """
    source, target = Path(folder), Path(path)
    check_writable(target)
    config, speech = read_sound_config(source)
    tokenizer = read_tokenizer(source)
    card = Card(
        SPEECH,
        architecture="WhisperForConditionalGeneration",
        inputs=("tokens", "position", "heard"),
        outputs=("logits",),
        speech=speech,
        tokenizer=next(iter(tokenizer), None),
        **origin_of(source),
    )
    pipeline = Pipeline(progress)
    with pipeline.phase("Reading weights"):
        model = load_whisper(source, config, progress)
    modules = methods(model)
    sources = {name: Source(module, *example(config, name)) for name, module in modules.items()}
    comparison = Check(modules, script(config)) if check else None
    summary = SpeechSummary(config, card, sum(p.numel() for p in dict.fromkeys(model.parameters())))
    constants = {METHOD: card.json()}
    made = pipeline.make(Job(sources, comparison, summary, constants, {"texture_limits": NO_LIMITS}))
    if not tokenizer:
        made.notes.append(f"{source} has no tokenizer.json: the model can be run, but gives no text")
    return pipeline.write(made, target, tokenizer)


def load_whisper(folder: Path, config: Config, progress: Progress = silent) -> Whisper:
    """The model as eager PyTorch, in float32."""
    model = load_plain(lambda: Whisper(config), Store(folder), progress, {OUTPUT})
    model.proj_out.weight = model.decoder.embed_tokens.weight
    return model


def methods(model: Whisper) -> dict[str, nn.Module]:
    return {"log_mel": LogMel(model.config), "encode": Encode(model), "forward": Decode(model)}


def example(config: Config, name: str) -> tuple[tuple[Any, ...], Any]:
    """Inputs to trace a method with, and which dimensions change."""
    if name == "log_mel":
        return (torch.zeros(1, (config.frames + 2) * config.hop),), None
    if name == "encode":
        return (torch.zeros(1, config.mels, config.frames),), None
    heads, position = config.decoder_heads, torch.zeros(1, dtype=torch.int64)
    shape = (1, config.frames // 2, heads, config.dim // heads)
    heard = [torch.zeros(shape) for _ in range(2 * config.decoder_layers)]
    length = torch.export.Dim("length", min=1, max=config.context)
    shapes = {"tokens": {1: length}, "position": None, "heard": [None] * len(heard)}
    return (torch.zeros((1, 4), dtype=torch.int64), position, heard), shapes


def script(config: Config) -> Script:
    """Return the calls of a check: sound, then a prompt about what was heard, then one token."""
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(example(config, "log_mel")[0][0].shape, generator=random) * 0.1
    mel = torch.randn(1, config.mels, config.frames, generator=random)
    tokens = torch.randint(0, config.vocab, (1, CHECKED), generator=random)

    def calls(call: Call) -> Iterator[tuple[str, list[Any]]]:
        yield "spectrogram is", call("log_mel", samples)
        heard = call("encode", mel)
        yield "keys and values of sound are", heard
        for first, some in ((0, tokens[:, :-1]), (CHECKED - 1, tokens[:, -1:])):
            yield "logits are", call("forward", some, torch.tensor([first]), heard)

    return calls
