"""A language model from a Hugging Face checkpoint folder to one `.pte` for prefill and decode.

The program's method `forward(tokens int64 (1, S), position int64 (1))` keeps keys and values on the GPU and gives the
logits of the last token. Methods that take nothing tell what a runner must know: the card, and what ExecuTorch's own
runners ask for; see `metadata`. The tokenizer is
written beside the program: MODEL.tokenizer.json and MODEL.tokenizer_config.json, with the chat template in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ExportError
from ..files import check_inside, check_writable, read, read_object, read_text
from ..models.card import METHOD, Card
from ..models.kinds import SEEING, architecture
from ..models.kinds import TEXT as WRITING
from ..models.text.signature import VISION
from ..progress import Progress, silent
from .backend import torch
from .check import LOGITS, Call, Check, Script
from .checkpoint import Store, Weights, load, load_plain
from .checkpoint import check as check_names
from .config import Config, read_config
from .decoder import Decoder
from .lowering import NO_LIMITS, Source
from .origin import origin_of
from .pipeline import Exported, Job, Pipeline
from .vision import CONNECTOR, TEXT, TOWER, Vision, VisionConfig, read_vision

DTYPES = ("float32", "float16")
QUANTIZATIONS = ("none", "4bit", "8da4w", "8bit")
EMBEDDINGS = ("float", "4bit")
GROUPS = (32, 64, 128)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
CONTEXT, CHUNK = 2048, 512  # at most, unless asked for more
CHECKED = 8  # tokens
TEXTURE_DEPTH = 2048  # beyond it, the partitioner would cut max_seq down to it


@dataclass(frozen=True, slots=True)
class Options:
    """How to export a language model. None: what the checkpoint suggests."""

    dtype: str = "float32"  # of everything that is not quantized
    quantize: str = "none"  # 4bit; 8da4w: that and activations in 8 bits; 8bit
    group: int = 32  # weights that share a scale
    embedding: str | None = None  # 4bit if the linear layers have 4 bits, else float
    max_seq: int | None = None  # tokens in one call
    max_context: int | None = None  # tokens that are remembered
    all_logits: bool = False  # of every token, not of the last

    def checked(self, config: Config) -> Options:
        """With every choice made."""
        for name, value, choices in (
            ("dtype", self.dtype, DTYPES),
            ("quantize", self.quantize, QUANTIZATIONS),
            ("group", self.group, GROUPS),
            ("embedding", self.embedding, (None, *EMBEDDINGS)),
        ):
            if value not in choices:
                raise ExportError(f"{name} is {value!r}; choose from {', '.join(str(c) for c in choices if c)}")
        context = min(config.trained, CONTEXT) if self.max_context is None else self.max_context
        chunk = min(context, CHUNK) if self.max_seq is None else self.max_seq
        if context > config.context:
            raise ExportError(f"max_context is {context}, but the model was made for {config.context} positions")
        if not 2 <= chunk <= context:
            raise ExportError(f"max_seq is {chunk}; it must be from 2 to max_context, {context}")
        embedding = self.embedding or ("4bit" if self.quantize in ("4bit", "8da4w") else "float")
        return Options(self.dtype, self.quantize, self.group, embedding, chunk, context, self.all_logits)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    config: Config
    options: Options
    card: Card
    parameters: int
    stored: dict[str, int]  # matrices, by the way they are stored
    checked: int  # tokens that a check compares


def export_llm(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    options: Options | None = None,
    *,
    check: bool = True,
    progress: Progress = silent,
) -> Exported[ModelSummary]:
    """Writes the program to `path` and the tokenizer beside it.

    With `check`, a few tokens are run by ptegpu and by PyTorch first: if their logits differ by more than rounding,
    that is an error, and nothing is written.
    """
    source, target = Path(folder), Path(path)
    check_writable(target)
    config = read_config(source)
    tokenizer = read_tokenizer(source)
    chosen = (options or Options()).checked(config)
    seeing = read_vision(source)
    seen = seeing[1] if seeing else None
    card = Card(
        SEEING if seen else WRITING,
        architecture=architecture(read_object(source / "config.json", ExportError)),
        inputs=("tokens", "position", "kept", "rows") if seen else ("tokens", "position"),
        outputs=("logits",),
        vision=seen,
        tokenizer=next(iter(tokenizer), None),
        chat_template=_chats(tokenizer),
        context=chosen.max_context,
        chunk=chosen.max_seq,
        stop=tuple(config.eos),
        **origin_of(source),
    )
    constants = metadata(config, chosen) | {METHOD: card.json()}
    pipeline = Pipeline(progress)
    with pipeline.phase("Reading weights"):
        decoder, weights, parameters = load_decoder(source, chosen, progress)
        vision = load_vision(source, seeing[0], progress) if seeing else None
    sources = {"forward": Source(decoder, *example(chosen, decoder, vision))}
    if vision:
        sources[VISION] = Source(vision, (torch.zeros(1, 3, vision.config.size, vision.config.size),))
        parameters += sum(p.numel() for p in vision.parameters())
    calls, checked = script(chosen, decoder, vision)
    comparison = Check({name: s.module for name, s in sources.items()}, calls, LOGITS) if check else None
    summary = ModelSummary(config, chosen, card, parameters, weights.stored, checked)
    made = pipeline.make(
        Job(sources, comparison, summary, constants, _partitioner_options(chosen), notes=weights.notes)
    )
    if not tokenizer:
        made.notes.append(f"{source} has no tokenizer.json: the model can be run, but not be given text")
    return pipeline.write(made, target, tokenizer)


def load_decoder(
    folder: str | os.PathLike[str],
    options: Options | None = None,
    progress: Progress = silent,
) -> tuple[Decoder, Weights, int]:
    """The model as eager PyTorch with the weights as they will be stored, and how many parameters it has."""
    source = Path(folder)
    config = read_config(source)
    chosen = (options or Options()).checked(config)
    assert chosen.max_context is not None and chosen.embedding is not None
    store = Store(source)
    if any(name.startswith(TEXT) for name in store.files):
        store = store.part(TEXT, "lm_head.weight")
    check_names(config, store)
    decoder = Decoder(config, chosen.max_context, all_logits=chosen.all_logits)
    weights = Weights(chosen.quantize, chosen.embedding, chosen.group)
    parameters = load(decoder, store, weights, progress)
    return decoder, weights, parameters


def load_vision(folder: Path, config: VisionConfig, progress: Progress = silent) -> Vision:
    """What the model sees with, as eager PyTorch in float32."""
    store = Store(folder)
    store.files = {n: f for n, f in store.files.items() if n.startswith((TOWER, CONNECTOR))}
    return load_plain(lambda: Vision(config), store, progress)


def example(
    options: Options, decoder: Decoder, vision: Vision | None
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Inputs to trace with, and which dimensions change."""
    assert options.max_seq is not None
    tokens = torch.zeros((1, min(4, options.max_seq)), dtype=torch.int64)
    length = torch.export.Dim("length", min=1, max=options.max_seq)
    given, shapes = (tokens, torch.zeros(1, dtype=torch.int64)), {"tokens": {1: length}, "position": None}
    if vision is None:
        return given, shapes
    count = tokens.shape[1]
    return (*given, *with_rows(count, torch.zeros(1, decoder.config.dim))), {
        **shapes,
        "kept": {1: length},
        "rows": {1: length},
    }


def with_rows(count: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `forward` takes for so many tokens, of which all but the first and the last are pictures where it can be."""
    kept, given = torch.ones(1, count, 1), torch.zeros(1, count, rows.shape[1])
    seen = min(max(count - 2, 0), len(rows))
    kept[:, 1 : 1 + seen] = 0
    given[0, 1 : 1 + seen] = rows[:seen]
    return kept, given


def _partitioner_options(options: Options) -> dict[str, Any]:
    found: dict[str, Any] = {"force_fp16": True} if options.dtype == "float16" else {}
    if options.max_seq and options.max_seq > TEXTURE_DEPTH:
        found["texture_limits"] = NO_LIMITS
    return found


def metadata(config: Config, options: Options) -> dict[str, Any]:
    """Return what methods of the program give to ExecuTorch's own runners."""
    found: dict[str, Any] = {
        "get_max_seq_len": options.max_seq,
        "get_max_context_len": options.max_context,
        "get_vocab_size": config.vocab,
        "get_n_layers": len(config.layers),
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": True,
        "enable_dynamic_shape": True,
        "get_bos_id": config.bos,  # -1: there is none
    }
    return found | ({"get_eos_ids": list(config.eos)} if config.eos else {})


def read_tokenizer(folder: Path) -> dict[str, bytes]:
    """The files to write beside the model, by their ending; none if the folder has no tokenizer."""
    tokenizer, given, template = (folder / name for name in TOKENIZER)
    if not tokenizer.exists():
        return {}
    for file in (tokenizer, given, template):
        check_inside(file, folder, ExportError)
    values = read_object(given, ExportError) if given.exists() else {}
    if template.exists():
        values["chat_template"] = read_text(template, ExportError)
    settings = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    return {
        ".tokenizer.json": read(tokenizer, ExportError),
        ".tokenizer_config.json": settings.encode(
            "utf-8", "backslashreplace"
        ),  # half a pair of surrogates has no bytes
    }


def _chats(tokenizer: dict[str, bytes]) -> bool:
    settings = tokenizer.get(".tokenizer_config.json")
    return settings is not None and bool(json.loads(settings).get("chat_template"))


def script(options: Options, decoder: Decoder, vision: Vision | None) -> tuple[Script, int]:
    """Return the calls of a check and how many tokens they take: a prompt that fits in one call, then one more token,
    if there is room; with a picture, where the model sees."""
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
        for first, some in zip((0, prompt), tokens.split(prompt, dim=1)):
            pictures = [x for seen in rows for x in with_rows(some.shape[1], seen)]
            yield "logits are", call("forward", some, torch.tensor([first]), *pictures)
        decoder.reset()

    return calls, count
