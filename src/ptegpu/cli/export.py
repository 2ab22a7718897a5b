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
from .console import bars, progress
from .options import Quantize, QuantizeFlags, QuantizeName, command
from .report import CommandReport

if TYPE_CHECKING:
    from ..export import Exported, ModelSummary, SpeechSummary, TaskSummary

LABELS = 6  # labels shown of a classifier

export = typer.Typer(name="export", help="Make a .pte from a checkpoint or a PyTorch module.", no_args_is_help=True)


class FloatType(StrEnum):
    float32 = "float32"
    float16 = "float16"


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face checkpoint folder.", show_default=False)]
Output = Annotated[Path, typer.Option("-o", "--output", help="The .pte to write.", show_default=False)]
Delegate = Annotated[bool, typer.Option(help="Use the Vulkan/WebGPU partitioner.")]
Entries: TypeAlias = Sequence[tuple[str, str | None]]  # a name and its text; None: nothing to show


@export.command()
@command
def llm(
    folder: Folder,
    output: Output,
    *,
    dtype: Annotated[FloatType, typer.Option(help="Type of all values that are not quantized.")] = FloatType.float32,
    weights: QuantizeFlags,
    max_seq: Annotated[int | None, typer.Option(help="The most tokens in one call.", show_default="up to 512")] = None,
    max_context: Annotated[
        int | None, typer.Option(help="Context length in tokens.", show_default="up to 2048")
    ] = None,
    all_logits: Annotated[
        bool, typer.Option("--all-logits", help="Return the logits of every token, not only the last.")
    ] = False,
    check: Annotated[bool, typer.Option(help="Compare a few tokens with eager PyTorch.")] = True,
) -> CommandReport:
    """Export a language model (Llama, Mistral, Qwen, Gemma, Phi, Falcon, GPT-2, …), with its tokenizer beside it."""
    forms = weights.options().values()
    return _export_llm(folder, output, check, dtype.value, *forms, max_seq, max_context, all_logits)


def _export_llm(folder: Path, output: Path, check: bool, *options: Any) -> CommandReport:
    check_writable(output)
    check_checkpoint(folder, ExportError)
    with progress("Starting PyTorch"):
        from ..export import LlmOptions, export_llm
    with bars() as update:
        exported = export_llm(folder, output, LlmOptions(*options), check=check, progress=update)
    summary, result = exported.summary, exported.check
    checked, text = None, None
    if result:
        checked = {
            "tokens": summary.checked,
            "difference": result.difference,
            "largest": result.largest,
            "same_choice": result.same_choice,
        }
        distance = f"logits at most {number(result.difference)} from eager PyTorch's, of which the largest is"
        choice = f"{'the same' if result.same_choice else 'another'} choice after {summary.checked} tokens"
        text = f"{distance} {number(result.largest)}; {choice}"
    report = _export_report(exported, output, text, _model_entries(summary), _model_record(summary))
    report.record["check"] = checked
    return report


@export.command()
@command
def hf(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face model folder.", show_default=False)],
    output: Output,
    task: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(TASKS)}.", show_default="the task of config.json")
    ] = None,
    dtype: Annotated[FloatType, typer.Option(help="Type of weights and activations.")] = FloatType.float32,
    quantize: QuantizeName = Quantize.none,
    max_batch: Annotated[int, typer.Option(help="The most texts or pictures in one call.", min=1)] = 8,
    max_length: Annotated[
        int | None,
        typer.Option(help="The most tokens of a text.", show_default="the model's maximum, up to 512", min=2),
    ] = None,
    max_seconds: Annotated[float, typer.Option(help="The longest sound.", min=0.1)] = 15.0,
    delegate: Delegate = True,
    check: Annotated[bool, typer.Option(help="Compare with eager PyTorch.")] = True,
) -> CommandReport:
    """Export a model for texts, pictures or sounds, with what `ptegpu run` needs to use it."""
    check_writable(output)
    check_checkpoint(folder, ExportError, MODEL_OR_SENTENCE)
    with progress("Starting PyTorch"):
        from ..export import Bounds, export_hf, is_decoder
    if task is None and is_decoder(folder):
        return _export_llm(folder, output, check, dtype.value, quantize.value)
    with bars() as update:
        exported = export_hf(
            folder,
            output,
            task=task,  # type: ignore[arg-type]  # checked there
            bounds=Bounds(max_batch, max_length or 512, max_seconds),
            dtype=dtype.value,
            quantize=quantize.value,
            delegate=delegate,
            check=check,
            progress=update,
        )
    card = exported.summary.card
    record = {"parameters": exported.summary.parameters, "card": loads(card.json())}
    entries = _task_entries(exported.summary)
    report = _export_report(exported, output, _check_text(exported), entries, record, difference=exported.difference)
    report.entry("try", try_it(card, output))
    return report


@export.command()
@command
def speech(
    folder: Folder,
    output: Output,
    check: Annotated[bool, typer.Option(help="Compare noise and a few tokens with eager PyTorch.")] = True,
) -> CommandReport:
    """Export a Whisper model for `ptegpu transcribe`, with its tokenizer beside it."""
    check_writable(output)
    check_checkpoint(folder, ExportError)
    with progress("Starting PyTorch"):
        from ..export import export_speech
    with bars() as update:
        exported = export_speech(folder, output, check=check, progress=update)
    summary, result = exported.summary, exported.check
    record = {
        "parameters": summary.parameters,
        "encoder_layers": summary.config.encoder_layers,
        "decoder_layers": summary.config.decoder_layers,
        "vocab_size": summary.config.vocab,
        "languages": list((summary.card.speech and summary.card.speech.languages) or {}),
    }
    check_text = f"at most {number(result.relative)} of the largest value from eager PyTorch" if result else None
    difference = result.relative if result else None
    return _export_report(exported, output, check_text, _speech_entries(summary), record, difference=difference)


@export.command()
@command
def torch(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function that returns (nn.Module, inputs) or (nn.Module, inputs, dynamic_shapes).",
            show_default=False,
        ),
    ],
    output: Output,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(help="INPUT:DIMENSION=LOW..HIGH, as 0:1=1..64; repeat for more.", show_default=False),
    ] = None,
    quantize: QuantizeName = Quantize.none,
    delegate: Delegate = True,
    check: Annotated[bool, typer.Option(help="Compare with eager PyTorch on the example inputs.")] = True,
) -> CommandReport:
    """Export any module, with example inputs and dynamic dimensions."""
    check_writable(output)
    with progress("Starting PyTorch"):
        from ..export import export_with_account, find_source
    started = time.perf_counter()
    with progress(f"Exporting {function}"):
        exported = export_with_account(
            find_source(function), output, dynamic or (), quantize=quantize.value, delegate=delegate, check=check
        )
    more = {"difference": exported.difference, "seconds": time.perf_counter() - started}
    return _export_report(exported, output, _check_text(exported), [], {}, **more)


def _export_report(
    exported: Exported[Any], output: Path, check: str | None, entries: Entries, summary: Mapping[str, Any], **more: Any
) -> CommandReport:
    """Report an export; `summary` and `more` are figures of its kind."""
    lowered = exported.lowered
    record = {
        "files": [str(path) for path in exported.files],
        "nbytes": len(lowered.data),
        **summary,
        "partitions": lowered.partitions,
        "delegated": dict(lowered.delegated),
        "outside": [{"operator": o.operator, "count": o.count, "reason": o.reason} for o in lowered.outside],
        "notes": exported.notes,
        "seconds": exported.seconds,
    }
    report = CommandReport(record | more)
    total = f" · {duration(more['seconds'])}" if "seconds" in more else ""
    report.line((output.name, "bold"), f" · {size(len(lowered.data))}{total}")
    for entry in entries:
        report.entry(*entry)
    inside = f"{counted(sum(lowered.delegated.values()), 'operator')} in {counted(lowered.partitions, 'partition')}"
    report.entry("delegated", inside + (", nothing outside" if not lowered.outside else ""))
    if lowered.outside:
        rows = [[o.operator, o.count, o.reason] for o in lowered.outside]
        report.table(["outside, run by ptegpu all the same", "count", "why"], rows, right=(1,))
    report.entry("check", check)
    report.entry("time", " · ".join(f"{name.lower()} {duration(s)}" for name, s in exported.seconds.items()))
    report.entry("files", ", ".join(path.name for path in exported.files))
    for note in exported.notes:
        first, *rest = note.splitlines()
        report.line(("note: ", "yellow"), first)
        for line in rest:
            report.line(line)
    return report


def _check_text(exported: Exported[Any]) -> str | None:
    return f"at most {number(exported.check.difference)} from eager PyTorch" if exported.check else None


def _task_entries(summary: TaskSummary) -> Entries:
    card = summary.card
    labels = ", ".join(card.labels[:LABELS]) + (" …" if len(card.labels) > LABELS else "")
    return [
        ("model", f"{card.architecture}, {summary.parameters:,} parameters, for {card.task}"),
        ("takes", "; ".join(takes_text(card))),
        ("labels", f"{len(card.labels):,}: {labels}" if card.labels else None),
    ]


def _speech_entries(summary: SpeechSummary) -> Entries:
    c, card = summary.config, summary.card.speech
    assert card is not None
    layers = f"{counted(c.encoder_layers, 'layer')} that hear and {c.decoder_layers} that write"
    shape = f"{layers}, of {c.dim:,}, vocabulary {c.vocab:,}"
    return [
        ("model", f"whisper, {summary.parameters:,} parameters: {shape}"),
        ("hears", f"{card.seconds:g} s at once, {counted(len(card.languages or {}) or 1, 'language')}"),
    ]


def _model_entries(summary: ModelSummary) -> Entries:
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


def _model_record(summary: ModelSummary) -> dict[str, Any]:
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


def _stored(summary: ModelSummary) -> dict[str, int]:
    dtype = summary.options.dtype
    return {dtype if form == "float" else form: count for form, count in summary.stored.items()}
