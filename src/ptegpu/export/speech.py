"""A Whisper checkpoint folder to one `.pte` for speech to text, with the tokenizer beside it.

Methods: `log_mel(samples (1, n)) → (F, mels)`; `encode(mel (1, mels, F))` → keys and values of each layer of the
decoder; `forward(tokens int64 (1, S), position int64 (1), keys and values) → logits (1, V)` of the last token, which
keeps the keys and values of tokens. The method `ptegpu_card` gives what a runner must know, as JSON.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import ptegpu

from ..errors import ExportError
from ..files import check_writable, write
from ..models.card import METHOD, Card
from ..models.kinds import SPEECH
from ..progress import Progress, silent
from .backend import torch
from .check import THIS_MACHINE, TOLERANCE, distance
from .checkpoint import Store, check_sources, plain_sources, read_into
from .llm import read_tokenizer
from .lowering import NO_LIMITS, Lowered, lower, trace
from .origin import origin_of
from .sound import Config, read_sound_config
from .whisper import Decode, Encode, LogMel, Whisper

CHECKED = 8  # tokens
OUTPUT = "proj_out.weight"  # the embedding of tokens


@dataclass(frozen=True, slots=True)
class ExportedSpeech:
    config: Config
    card: Card
    lowered: Lowered
    parameters: int
    notes: list[str]
    files: list[Path]  # written
    difference: float | None  # from eager PyTorch, of what is largest; None: not checked
    seconds: dict[str, float] = field(default_factory=dict)  # of each phase


def export_speech(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    progress: Progress = silent,
) -> ExportedSpeech:
    """Writes the program to `path` and the tokenizer beside it.

    With `check`, some noise and a few tokens are run by ptegpu and by PyTorch first: if results differ by more than
    rounding, that is an error, and nothing is written.
    """
    seconds: dict[str, float] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        progress(name, 0, 1)
        started = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - started
        progress(name, 1, 1)

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
    with phase("Reading weights"):
        model = load_whisper(source, config, progress)
    with phase("Tracing"):
        modules = methods(model)
        traced = {name: trace(module, *example(config, name)) for name, module in modules.items()}
    with phase("Lowering"):
        lowered = lower(traced, options={"texture_limits": NO_LIMITS}, constants={METHOD: card.json()})
        del traced
    difference, notes = None, []
    if check:
        with phase("Checking"):
            try:
                difference = compare(modules, config, lowered.data)
            except THIS_MACHINE as e:
                notes.append(f"not checked: {e}")
    with phase("Writing"):
        write(target, lowered.data)
        beside = {target.with_suffix(ending): data for ending, data in tokenizer.items()}
        for file, data in beside.items():
            write(file, data)
        if not tokenizer:
            notes.append(f"{source} has no tokenizer.json: the model can be run, but gives no text")
    parameters = sum(p.numel() for p in dict.fromkeys(model.parameters()))
    return ExportedSpeech(config, card, lowered, parameters, notes, [target, *beside], difference, seconds)


def load_whisper(folder: Path, config: Config, progress: Progress = silent) -> Whisper:
    """The model as eager PyTorch, in float32."""
    store = Store(folder)
    with torch.device("meta"):
        sources = plain_sources(Whisper(config))
    del sources[OUTPUT]
    check_sources(store, sources, {OUTPUT})
    model = Whisper(config)
    read_into(model, store, sources, progress)
    model.proj_out.weight = model.decoder.embed_tokens.weight
    return model.eval()


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


def compare(modules: dict[str, nn.Module], config: Config, data: bytes) -> float:
    """The largest difference of any result, each by its largest element: sound, then a prompt, then one token."""
    random = torch.Generator().manual_seed(0)
    samples = torch.randn(example(config, "log_mel")[0][0].shape, generator=random) * 0.1
    mel = torch.randn(1, config.mels, config.frames, generator=random)
    tokens = torch.randint(0, config.vocab, (1, CHECKED), generator=random)
    worst = 0.0
    with ptegpu.load(data, methods=list(modules)) as program, torch.no_grad():

        def run(name: str, *inputs: Any) -> Any:
            nonlocal worst
            expected, found = modules[name](*inputs), program.method(name)(*inputs)
            every = isinstance(expected, list)
            for e, f in zip(expected if every else [expected], found if every else [found], strict=True):
                apart, scale = distance(torch.as_tensor(np.asarray(f)), e)
                worst = max(worst, apart / scale)
            return expected

        run("log_mel", samples)
        heard = run("encode", mel)
        for first, given in ((0, tokens[:, :-1]), (CHECKED - 1, tokens[:, -1:])):
            run("forward", given, torch.tensor([first]), heard)
    if not worst <= TOLERANCE:
        raise ExportError(
            f"the exported program is wrong: it is up to {worst:.4g} of the largest value from eager PyTorch. Nothing "
            "was written; please report it"
        )
    return worst
