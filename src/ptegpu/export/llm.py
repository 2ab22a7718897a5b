"""A language model from a Hugging Face checkpoint folder to one `.pte` for prefill and decode.

The program's method `forward(tokens int64 (1, S), position int64 (1))` keeps keys and values on the GPU and returns the
logits of the last token. Methods without inputs tell a runner the rest: the card, and the constants that ExecuTorch's
own runners read (see `metadata`). The tokenizer is written beside the program: MODEL.tokenizer.json, and
MODEL.tokenizer_config.json with the chat template.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ExportError
from ..files import check_writable, read_object
from ..models.card import METHOD, Card
from ..models.kinds import SEEING, architecture
from ..models.kinds import TEXT as WRITING
from ..models.text.signature import VISION
from ..progress import Progress, silent
from .backend import torch
from .check import LOGITS, Call, EagerCheck, Script
from .checkpoint import TensorStore, Weights, check_weights, load, load_plain
from .checkpoint_files import has_chat_template, read_origin, read_tokenizer
from .config import DecoderConfig, read_config
from .decoder import Decoder
from .lowering import FORWARD, NO_LIMITS, MethodSource
from .pipeline import Exported, ExportJob, ExportPipeline
from .quantize import DTYPES, GROUPED, NONE, QUANTIZATIONS, check_choice
from .vision import CONNECTOR, TEXT, TOWER, VisionConfig, VisionModel, read_vision

EMBEDDINGS = ("float", "4bit")
GROUPS = (32, 64, 128)
CONTEXT, CHUNK = 2048, 512  # defaults, if the model allows them
CHECKED = 8  # tokens
TEXTURE_DEPTH = 2048  # beyond it, the partitioner would reduce max_seq to it


@dataclass(frozen=True, slots=True)
class LlmOptions:
    """The options of an export of a language model. None: as the checkpoint suggests."""

    dtype: str = "float32"  # of everything that is not quantized
    quantize: str = NONE  # 4bit; 8da4w: 4bit with activations in 8 bits; 8bit
    group: int = 32  # weights that share a scale
    embedding: str | None = None  # 4bit if the linear layers have 4 bits, else float
    max_seq: int | None = None  # tokens in one call
    max_context: int | None = None  # tokens in the cache
    all_logits: bool = False  # of every token, not only of the last

    def checked(self, config: DecoderConfig) -> LlmOptions:
        """Return the options with defaults filled in; raise ExportError for invalid ones."""
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("quantize", self.quantize, QUANTIZATIONS)
        check_choice("group", self.group, GROUPS)
        embedding = self.embedding or ("4bit" if self.quantize in GROUPED else "float")
        check_choice("embedding", embedding, EMBEDDINGS)
        context = min(config.trained, CONTEXT) if self.max_context is None else self.max_context
        chunk = min(context, CHUNK) if self.max_seq is None else self.max_seq
        if context > config.context:
            raise ExportError(f"invalid max_context {context}: the model was made for {config.context} positions")
        if not 2 <= chunk <= context:
            raise ExportError(f"invalid max_seq {chunk}: expected a number from 2 to max_context, {context}")
        return replace(self, embedding=embedding, max_seq=chunk, max_context=context)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    config: DecoderConfig
    options: LlmOptions
    card: Card
    parameters: int
    stored: dict[str, int]  # the number of matrices in each format
    checked: int  # tokens that a check compares


def export_llm(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    options: LlmOptions | None = None,
    *,
    check: bool = True,
    progress: Progress = silent,
) -> Exported[ModelSummary]:
    """Write the program to `path` and the tokenizer beside it.

    With `check`, ptegpu and PyTorch run a few tokens first. If their logits differ by more than rounding, raise
    ExportError and write nothing.
    """
    source, target = Path(folder), Path(path)
    check_writable(target)
    config = read_config(source)
    tokenizer = read_tokenizer(source)
    settings = (options or LlmOptions()).checked(config)
    vision_config, vision_card = read_vision(source) or (None, None)
    card = Card(
        SEEING if vision_card else WRITING,
        architecture=architecture(read_object(source / "config.json", ExportError)),
        inputs=("tokens", "position", "kept", "rows") if vision_card else ("tokens", "position"),
        outputs=("logits",),
        vision=vision_card,
        tokenizer=next(iter(tokenizer), None),
        chat_template=has_chat_template(tokenizer),
        context=settings.max_context,
        chunk=settings.max_seq,
        stop=tuple(config.eos),
        **read_origin(source),
    )
    pipeline = ExportPipeline(progress)
    with pipeline.phase("Reading weights"):
        decoder, weights, parameters = load_decoder(source, settings, progress)
        vision = load_vision(source, vision_config, progress) if vision_config else None
    sources = {FORWARD: MethodSource(decoder, *example(settings, decoder, vision))}
    if vision:
        sources[VISION] = MethodSource(vision, (torch.zeros(1, 3, vision.config.size, vision.config.size),))
        parameters += sum(p.numel() for p in vision.parameters())
    calls, checked = _script(settings, decoder, vision)
    job = ExportJob(
        sources,
        EagerCheck({name: s.module for name, s in sources.items()}, calls, LOGITS) if check else None,
        ModelSummary(config, settings, card, parameters, weights.stored, checked),
        metadata(config, settings) | {METHOD: card.json()},
        _partitioner_options(settings),
        notes=weights.notes,
    )
    exported = pipeline.run(job)
    if not tokenizer:
        exported.notes.append(f"{source} has no tokenizer.json: the model takes and returns tokens, not text")
    return pipeline.write(exported, target, tokenizer)


def load_decoder(
    folder: str | os.PathLike[str],
    options: LlmOptions | None = None,
    progress: Progress = silent,
) -> tuple[Decoder, Weights, int]:
    """Return the model in eager PyTorch, the formats of its weights, and the number of parameters."""
    source = Path(folder)
    config = read_config(source)
    settings = (options or LlmOptions()).checked(config)
    assert settings.max_context is not None and settings.embedding is not None
    store = TensorStore(source)
    if any(name.startswith(TEXT) for name in store.files):
        store = store.part(TEXT, "lm_head.weight")
    check_weights(config, store)
    decoder = Decoder(config, settings.max_context, all_logits=settings.all_logits)
    weights = Weights(settings.quantize, settings.embedding, settings.group)
    parameters = load(decoder, store, weights, progress)
    return decoder, weights, parameters


def load_vision(folder: Path, config: VisionConfig, progress: Progress = silent) -> VisionModel:
    """Return the vision part in eager PyTorch, in float32."""
    store = TensorStore(folder)
    store.files = {n: f for n, f in store.files.items() if n.startswith((TOWER, CONNECTOR))}
    return load_plain(lambda: VisionModel(config), store, progress)


def example(
    options: LlmOptions, decoder: Decoder, vision: VisionModel | None
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Return inputs to trace the decoder with, and its dynamic shapes."""
    assert options.max_seq is not None
    tokens = torch.zeros((1, min(4, options.max_seq)), dtype=torch.int64)
    length = torch.export.Dim("length", min=1, max=options.max_seq)
    inputs: tuple[torch.Tensor, ...] = tokens, torch.zeros(1, dtype=torch.int64)
    shapes: dict[str, Any] = {"tokens": {1: length}, "position": None}
    if vision is not None:
        inputs += with_rows(tokens.shape[1], torch.zeros(1, decoder.config.dim))
        shapes |= {"kept": {1: length}, "rows": {1: length}}
    return inputs, shapes


def with_rows(count: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `kept` and `rows` of a call with `count` tokens, of which the inner ones are pictures."""
    kept, inserted = torch.ones(1, count, 1), torch.zeros(1, count, rows.shape[1])
    pictures = min(max(count - 2, 0), len(rows))
    kept[:, 1 : 1 + pictures] = 0
    inserted[0, 1 : 1 + pictures] = rows[:pictures]
    return kept, inserted


def _partitioner_options(options: LlmOptions) -> dict[str, Any]:
    half: dict[str, Any] = {"force_fp16": True} if options.dtype == "float16" else {}
    return half | ({"texture_limits": NO_LIMITS} if options.max_seq and options.max_seq > TEXTURE_DEPTH else {})


def metadata(config: DecoderConfig, options: LlmOptions) -> dict[str, Any]:
    """Return the constants that ExecuTorch's own runners read from methods of the program."""
    constants: dict[str, Any] = {
        "get_max_seq_len": options.max_seq,
        "get_max_context_len": options.max_context,
        "get_vocab_size": config.vocab,
        "get_n_layers": len(config.layers),
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": True,
        "enable_dynamic_shape": True,
        "get_bos_id": config.bos,  # -1: none
    }
    return constants | ({"get_eos_ids": list(config.eos)} if config.eos else {})


def _script(options: LlmOptions, decoder: Decoder, vision: VisionModel | None) -> tuple[Script, int]:
    """Return the calls of a check and their number of tokens: a prompt that fits in one call and, if there is room,
    one more token. The prompt of a vision-language model contains a picture.
    """
    assert options.max_seq is not None
    prompt = min(CHECKED - 1, options.max_seq)
    count = min(prompt + 1, decoder.context)
    tokens = torch.randint(0, decoder.config.vocab, (1, count), generator=torch.Generator().manual_seed(0))

    def calls(call: Call) -> Iterator[tuple[str, list[Any]]]:
        decoder.reset()
        rows: list[Any] = []
        if vision:
            size = vision.config.size
            rows = call(VISION, torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)))
        for first, chunk in zip((0, prompt), tokens.split(prompt, dim=1)):
            pictures = [x for picture in rows for x in with_rows(chunk.shape[1], picture)]
            yield "logits are", call(FORWARD, chunk, torch.tensor([first]), *pictures)
        decoder.reset()

    return calls, count
