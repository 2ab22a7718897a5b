"""`ptegpu export`: language models and any PyTorch module to `.pte`. PyTorch is imported when a command runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..errors import ExportError
from ..files import MODEL_OR_SENTENCE, check_checkpoint, check_writable
from ..models.tasks.specs import TASKS
from ..units import counted, duration, number, size
from .answers import takes_text, try_it
from .console import bars, print_json, progress, say, show_table

if TYPE_CHECKING:
    from ..export import Exported, Lowered, ModelSummary, SpeechSummary, TaskSummary

export = typer.Typer(name="export", help="Make a .pte from a checkpoint or a PyTorch module.", no_args_is_help=True)


SHOWN = 6  # labels


class DType(StrEnum):
    float32 = "float32"
    float16 = "float16"


class Quantize(StrEnum):
    none = "none"
    bits4 = "4bit"
    bits4_dynamic = "8da4w"
    bits8 = "8bit"


class Embedding(StrEnum):
    float = "float"
    bits4 = "4bit"


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face checkpoint folder.", show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where to write the .pte.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QuantizeLinear = Annotated[
    Quantize, typer.Option(help="Linear layers: weights in 4 or 8 bits; 8da4w: in 4 bits, activations in 8.")
]
Delegate = Annotated[bool, typer.Option(help="Use the Vulkan/WebGPU partitioner.")]


@export.command()
def llm(
    folder: Folder,
    output: Output,
    dtype: Annotated[DType, typer.Option(help="Of everything that is not quantized.")] = DType.float32,
    quantize: Annotated[
        Quantize, typer.Option(help="Weights in 4 or 8 bits; 8da4w: in 4 bits, activations in 8.")
    ] = Quantize.none,
    group: Annotated[int, typer.Option(help="Weights that share a scale: 32, 64 or 128.")] = 32,
    embedding: Annotated[
        Embedding | None, typer.Option(help="The table of tokens.", show_default="4bit if the weights are in 4 bits")
    ] = None,
    max_seq: Annotated[int | None, typer.Option(help="Tokens in one call.", show_default="up to 512")] = None,
    max_context: Annotated[int | None, typer.Option(help="Tokens it remembers.", show_default="up to 2048")] = None,
    all_logits: Annotated[bool, typer.Option("--all-logits", help="Of every token, not of the last.")] = False,
    check: Annotated[bool, typer.Option(help="Compare a few tokens with eager PyTorch.")] = True,
    json: Json = False,
) -> None:
    """Export a language model (Llama, Mistral, Qwen, Gemma, Phi, Falcon, GPT-2, …), with its tokenizer beside it."""
    check_writable(output)
    check_checkpoint(folder, ExportError)
    with progress("Starting PyTorch"):
        from ..export import Options, export_llm
    chosen = embedding.value if embedding else None
    options = Options(dtype.value, quantize.value, group, chosen, max_seq, max_context, all_logits)
    with bars() as report:
        made = export_llm(folder, output, options, check=check, progress=report)
    if json:
        check_account = made.check and {
            "tokens": made.summary.checked,
            "difference": made.check.difference,
            "largest": made.check.largest,
            "same_choice": made.check.same_choice,
        }
        print_json(_account(made, _model_json(made.summary)) | {"check": check_account})
    else:
        _show(made, output, _model_lines(made.summary), _logits(made))


@export.command()
def hf(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face model folder.", show_default=False)],
    output: Output,
    task: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(TASKS)}.", show_default="what config.json says")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Of weights and activations.")] = DType.float32,
    quantize: QuantizeLinear = Quantize.none,
    max_batch: Annotated[int, typer.Option(help="Texts or pictures in one call.", min=1)] = 8,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of a text.", show_default="what the model allows, up to 512", min=2)
    ] = None,
    max_seconds: Annotated[float, typer.Option(help="Of a sound.", min=0.1)] = 15.0,
    delegate: Delegate = True,
    check: Annotated[bool, typer.Option(help="Compare with eager PyTorch.")] = True,
    json: Json = False,
) -> None:
    """Export a model for texts, pictures or sounds, with what `ptegpu run` needs to use it."""
    check_writable(output)
    check_checkpoint(folder, ExportError, MODEL_OR_SENTENCE)
    with progress("Starting PyTorch"):
        from ..export import Bounds, export_hf, is_decoder
    if task is None and is_decoder(folder):
        return llm(folder, output, dtype, quantize, check=check, json=json)
    bounds = Bounds(max_batch, max_length or 512, max_seconds)
    with bars() as report:
        made = export_hf(
            folder,
            output,
            task=task,  # type: ignore[arg-type]  # it looks
            bounds=bounds,
            dtype=dtype.value,
            quantize=quantize.value,
            delegate=delegate,
            check=check,
            progress=report,
        )
    if json:
        account = {"parameters": made.summary.parameters, "card": loads(made.summary.card.json())}
        print_json(_account(made, account) | {"difference": made.difference})
    else:
        example = [("try", try_it(made.summary.card, output))]
        _show(made, output, _task_lines(made.summary), _elements(made), example)


@export.command()
def speech(
    folder: Folder,
    output: Output,
    check: Annotated[bool, typer.Option(help="Compare noise and a few tokens with eager PyTorch.")] = True,
    json: Json = False,
) -> None:
    """Export a Whisper model for `ptegpu transcribe`, with its tokenizer beside it."""
    check_writable(output)
    check_checkpoint(folder, ExportError)
    with progress("Starting PyTorch"):
        from ..export import export_speech
    with bars() as report:
        made = export_speech(folder, output, check=check, progress=report)
    if json:
        difference = made.check.relative if made.check else None
        print_json(_account(made, _speech_json(made.summary)) | {"difference": difference})
    else:
        far = "at most {} of the largest value from eager PyTorch"
        check_line = far.format(number(made.check.relative)) if made.check else None
        _show(made, output, _speech_lines(made.summary), check_line)


@export.command()
def torch(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Returns (nn.Module, inputs) or (nn.Module, inputs, dynamic_shapes).",
            show_default=False,
        ),
    ],
    output: Output,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(help="INPUT:DIMENSION=LOW..HIGH, as 0:1=1..64; repeat for more.", show_default=False),
    ] = None,
    quantize: QuantizeLinear = Quantize.none,
    delegate: Delegate = True,
    check: Annotated[bool, typer.Option(help="Compare with eager PyTorch on the example inputs.")] = True,
    json: Json = False,
) -> None:
    """Export any module, with example inputs and dimensions that may change."""
    check_writable(output)
    with progress("Starting PyTorch"):
        from ..export import export_with_account, find_source
    started = time.perf_counter()
    with progress(f"Exporting {function}"):
        made = export_with_account(
            find_source(function), output, dynamic or (), quantize=quantize.value, delegate=delegate, check=check
        )
    seconds = time.perf_counter() - started
    if json:
        print_json(_account(made, {}) | {"difference": made.difference, "seconds": seconds})
        return
    say((output.name, "bold"), f" · {size(len(made.lowered.data))} · {duration(seconds)}")
    _show_lowered(made.lowered)
    _show_lines([("check", _elements(made))])
    _show_notes(made.notes)


Lines: TypeAlias = Sequence[tuple[str, str | None]]  # a name, and what to say; None: nothing


def _show(made: Exported[Any], output: Path, lines: Lines, check: str | None, more: Lines = ()) -> None:
    say((output.name, "bold"), f" · {size(len(made.lowered.data))}")
    _show_lines(lines)
    _show_lowered(made.lowered)
    times = " · ".join(f"{name.lower()} {duration(s)}" for name, s in made.seconds.items())
    files = ", ".join(path.name for path in made.files)
    _show_lines([("check", check), ("time", times), ("files", files), *more])
    _show_notes(made.notes)


def _show_lines(lines: Lines) -> None:
    for name, text in lines:
        if text is not None:
            say(f"  {name:<12}", text)


def _elements(made: Exported[Any]) -> str | None:
    return f"at most {number(made.check.difference)} from eager PyTorch" if made.check else None


def _logits(made: Exported[ModelSummary]) -> str | None:
    if made.check is None:
        return None
    far = f"logits at most {number(made.check.difference)} from eager PyTorch's, of which the largest is"
    choice = "the same choice" if made.check.same_choice else "another choice"
    return f"{far} {number(made.check.largest)}; {choice} after {made.summary.checked} tokens"


def _task_lines(summary: TaskSummary) -> Lines:
    card = summary.card
    shown = ", ".join(card.labels[:SHOWN]) + (" …" if len(card.labels) > SHOWN else "")
    return [
        ("model", f"{card.architecture}, {summary.parameters:,} parameters, for {card.task}"),
        ("takes", "; ".join(takes_text(card))),
        ("labels", f"{len(card.labels):,}: {shown}" if card.labels else None),
    ]


def _model_lines(summary: ModelSummary) -> Lines:
    c, o, p = summary.config, summary.options, summary.card.vision
    heads = f"{c.heads} heads of {c.head_dim}" + (f", {c.kv_heads} for keys" if c.kv_heads != c.heads else "")
    shape = f"{counted(len(c.layers), 'layer')} of {c.dim:,}, {heads}, vocabulary {c.vocab:,}"
    tiles = f"tiles of {p.size} × {p.size} pixels, {counted(p.rows, 'token')} each" if p else None
    return [
        ("model", f"{c.family}, {summary.parameters:,} parameters: {shape}"),
        ("matrices", ", ".join(f"{count} in {form}" for form, count in _stored(summary).items())),
        ("tokens", f"{o.max_seq:,} in one call, {o.max_context:,} remembered"),
        ("pictures", tiles),
    ]


def _speech_lines(summary: SpeechSummary) -> Lines:
    c, f = summary.config, summary.card.speech
    assert f is not None
    layers = f"{counted(c.encoder_layers, 'layer')} that hear and {c.decoder_layers} that write"
    shape = f"{layers}, of {c.dim:,}, vocabulary {c.vocab:,}"
    return [
        ("model", f"whisper, {summary.parameters:,} parameters: {shape}"),
        ("hears", f"{f.seconds:g} s at once, {counted(len(f.languages or {}) or 1, 'language')}"),
    ]


def _stored(summary: ModelSummary) -> dict[str, int]:
    dtype = summary.options.dtype
    return {dtype if form == "float" else form: count for form, count in summary.stored.items()}


def _show_lowered(lowered: Lowered) -> None:
    inside = f"{counted(sum(lowered.delegated.values()), 'operator')} in {counted(lowered.partitions, 'partition')}"
    _show_lines([("delegated", inside + (", nothing outside" if not lowered.outside else ""))])
    if lowered.outside:
        rows = [[o.operator, o.count, o.reason] for o in lowered.outside]
        show_table("", ["outside, run by ptegpu all the same", "count", "why"], rows, right=(1,))


def _show_notes(notes: list[str]) -> None:
    for note in notes:
        first, *more = note.splitlines()
        say(("note: ", "yellow"), first)
        for line in more:
            say(line)


def _account(made: Exported[Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return an export as JSON; `summary` is what its source says of it."""
    return {
        "files": [str(path) for path in made.files],
        "nbytes": len(made.lowered.data),
        **summary,
        "partitions": made.lowered.partitions,
        "delegated": dict(made.lowered.delegated),
        "outside": [{"operator": o.operator, "count": o.count, "reason": o.reason} for o in made.lowered.outside],
        "notes": made.notes,
        "seconds": made.seconds,
    }


def _speech_json(summary: SpeechSummary) -> dict[str, Any]:
    return {
        "parameters": summary.parameters,
        "encoder_layers": summary.config.encoder_layers,
        "decoder_layers": summary.config.decoder_layers,
        "vocab_size": summary.config.vocab,
        "languages": list((summary.card.speech and summary.card.speech.languages) or {}),
    }


def _model_json(summary: ModelSummary) -> dict[str, Any]:
    c, o, p = summary.config, summary.options, summary.card.vision
    return {
        "family": c.family,
        "parameters": summary.parameters,
        "layers": len(c.layers),
        "vocab_size": c.vocab,
        "dtype": o.dtype,
        "quantize": o.quantize,
        "group": o.group,
        "embedding": o.embedding,
        "max_seq": o.max_seq,
        "max_context": o.max_context,
        "matrices": _stored(summary),
        **({"pictures": {"size": p.size, "tokens": p.rows}} if p else {}),
    }
