"""`ptegpu export`: language models and any PyTorch module to `.pte`. PyTorch is imported when a command runs."""

from __future__ import annotations

import time
from enum import StrEnum
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ExportError
from ..files import MODEL_OR_SENTENCE, check_checkpoint, check_writable
from ..models.tasks.specs import TASKS
from ..units import counted, duration, number, size
from .answers import takes_text, try_it
from .console import bars, print_json, progress, say, show_table

if TYPE_CHECKING:
    from ..export import ExportedModel, ExportedSpeech, ExportedTask, Lowered

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


@export.command()
def llm(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A Hugging Face checkpoint folder.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the .pte.", show_default=False)],
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
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
        print_json(_model_json(made))
    else:
        _show_model(made, output)


@export.command()
def hf(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face model folder.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the .pte.", show_default=False)],
    task: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(TASKS)}.", show_default="what config.json says")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Of weights and activations.")] = DType.float32,
    quantize: Annotated[
        Quantize, typer.Option(help="Linear layers: weights in 4 or 8 bits; 8da4w: in 4 bits, activations in 8.")
    ] = Quantize.none,
    max_batch: Annotated[int, typer.Option(help="Texts or pictures in one call.", min=1)] = 8,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of a text.", show_default="what the model allows, up to 512", min=2)
    ] = None,
    max_seconds: Annotated[float, typer.Option(help="Of a sound.", min=0.1)] = 15.0,
    delegate: Annotated[bool, typer.Option(help="Use the Vulkan/WebGPU partitioner.")] = True,
    check: Annotated[bool, typer.Option(help="Compare with eager PyTorch.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
        print_json(_task_json(made))
    else:
        _show_task(made, output)


@export.command()
def speech(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A Hugging Face checkpoint folder.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the .pte.", show_default=False)],
    check: Annotated[bool, typer.Option(help="Compare noise and a few tokens with eager PyTorch.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export a Whisper model for `ptegpu transcribe`, with its tokenizer beside it."""
    check_writable(output)
    check_checkpoint(folder, ExportError)
    with progress("Starting PyTorch"):
        from ..export import export_speech
    with bars() as report:
        made = export_speech(folder, output, check=check, progress=report)
    if json:
        print_json(_speech_json(made))
    else:
        _show_speech(made, output)


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
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the .pte.", show_default=False)],
    dynamic: Annotated[
        list[str] | None,
        typer.Option(help="INPUT:DIMENSION=LOW..HIGH, as 0:1=1..64; repeat for more.", show_default=False),
    ] = None,
    quantize: Annotated[
        Quantize, typer.Option(help="Linear layers: weights in 4 or 8 bits; 8da4w: in 4 bits, activations in 8.")
    ] = Quantize.none,
    delegate: Annotated[bool, typer.Option(help="Use the Vulkan/WebGPU partitioner.")] = True,
    check: Annotated[bool, typer.Option(help="Compare with eager PyTorch on the example inputs.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export any module, with example inputs and dimensions that may change."""
    check_writable(output)
    with progress("Starting PyTorch"):
        from ..export import export_with_account, find_source
    started = time.perf_counter()
    with progress(f"Exporting {function}"):
        how: dict[str, Any] = {"quantize": quantize.value, "delegate": delegate, "check": check}
        made = export_with_account(find_source(function), output, dynamic or (), **how)
    seconds, nbytes = time.perf_counter() - started, len(made.lowered.data)
    if json:
        account = _lowered_json(made.lowered) | {"notes": made.notes, "difference": made.difference}
        print_json({"files": [str(output)], "nbytes": nbytes} | account | {"seconds": seconds})
        return
    say((output.name, "bold"), f" · {size(nbytes)} · {duration(seconds)}")
    _show_lowered(made.lowered)
    if made.difference is not None:
        _line("check", f"at most {number(made.difference)} from eager PyTorch")
    _show_notes(made.notes)


def _show_task(made: ExportedTask, output: Path) -> None:
    card, lowered = made.card, made.exported.lowered
    say((output.name, "bold"), f" · {size(len(lowered.data))}")
    _line("model", f"{card.architecture}, {made.parameters:,} parameters, for {card.task}")
    _line("takes", "; ".join(takes_text(card)))
    if card.labels:
        shown = ", ".join(card.labels[:SHOWN]) + (" …" if len(card.labels) > SHOWN else "")
        _line("labels", f"{len(card.labels):,}: {shown}")
    _show_lowered(lowered)
    if made.exported.difference is not None:
        _line("check", f"at most {number(made.exported.difference)} from eager PyTorch")
    _line("time", " · ".join(f"{name.lower()} {duration(s)}" for name, s in made.seconds.items()))
    _line("files", ", ".join(path.name for path in made.files))
    _line("try", try_it(card, output))
    _show_notes(made.notes)


def _show_model(made: ExportedModel, output: Path) -> None:
    c, o = made.config, made.options
    say((output.name, "bold"), f" · {size(len(made.lowered.data))}")
    heads = f"{c.heads} heads of {c.head_dim}" + (f", {c.kv_heads} for keys" if c.kv_heads != c.heads else "")
    shape = f"{counted(len(c.layers), 'layer')} of {c.dim:,}, {heads}, vocabulary {c.vocab:,}"
    _line("model", f"{c.family}, {made.parameters:,} parameters: {shape}")
    _line("matrices", ", ".join(f"{count} in {how}" for how, count in _stored(made).items()))
    _line("tokens", f"{o.max_seq:,} in one call, {o.max_context:,} remembered")
    if made.card.vision:
        p = made.card.vision
        _line("pictures", f"tiles of {p.size} × {p.size} pixels, {counted(p.rows, 'token')} each")
    _show_lowered(made.lowered)
    if made.check:
        far = f"logits at most {number(made.check.difference)} from eager PyTorch's, of which the largest is"
        choice = "the same choice" if made.check.same_choice else "another choice"
        _line("check", f"{far} {number(made.check.largest)}; {choice} after {made.check.tokens} tokens")
    _line("time", " · ".join(f"{name.lower()} {duration(s)}" for name, s in made.seconds.items()))
    _line("files", ", ".join(path.name for path in made.files))
    _show_notes(made.notes)


def _show_speech(made: ExportedSpeech, output: Path) -> None:
    c, f = made.config, made.card.speech
    assert f is not None
    say((output.name, "bold"), f" · {size(len(made.lowered.data))}")
    layers = f"{counted(c.encoder_layers, 'layer')} that hear and {c.decoder_layers} that write"
    _line("model", f"whisper, {made.parameters:,} parameters: {layers}, of {c.dim:,}, vocabulary {c.vocab:,}")
    _line("hears", f"{f.seconds:g} s at once, {counted(len(f.languages or {}) or 1, 'language')}")
    _show_lowered(made.lowered)
    if made.difference is not None:
        _line("check", f"at most {number(made.difference)} of the largest value from eager PyTorch")
    _line("time", " · ".join(f"{name.lower()} {duration(s)}" for name, s in made.seconds.items()))
    _line("files", ", ".join(path.name for path in made.files))
    _show_notes(made.notes)


def _speech_json(made: ExportedSpeech) -> dict[str, Any]:
    return {
        "files": [str(path) for path in made.files],
        "nbytes": len(made.lowered.data),
        "parameters": made.parameters,
        "encoder_layers": made.config.encoder_layers,
        "decoder_layers": made.config.decoder_layers,
        "vocab_size": made.config.vocab,
        "languages": list((made.card.speech and made.card.speech.languages) or {}),
        **_lowered_json(made.lowered),
        "difference": made.difference,
        "notes": made.notes,
        "seconds": made.seconds,
    }


def _stored(made: ExportedModel) -> dict[str, int]:
    return {made.options.dtype if how == "float" else how: count for how, count in made.stored.items()}


def _show_lowered(lowered: Lowered) -> None:
    inside = f"{counted(sum(lowered.delegated.values()), 'operator')} in {counted(lowered.partitions, 'partition')}"
    _line("delegated", inside + (", nothing outside" if not lowered.outside else ""))
    if lowered.outside:
        rows = [[o.operator, o.count, o.reason] for o in lowered.outside]
        show_table("", ["outside, run by ptegpu all the same", "count", "why"], rows, right=(1,))


def _show_notes(notes: list[str]) -> None:
    for note in notes:
        first, *more = note.splitlines()
        say(("note: ", "yellow"), first)
        for line in more:
            say(line)


def _line(name: str, text: str) -> None:
    say(f"  {name:<12}", text)


def _lowered_json(lowered: Lowered) -> dict[str, Any]:
    return {
        "partitions": lowered.partitions,
        "delegated": dict(lowered.delegated),
        "outside": [{"operator": o.operator, "count": o.count, "reason": o.reason} for o in lowered.outside],
    }


def _task_json(made: ExportedTask) -> dict[str, Any]:
    return {
        "files": [str(path) for path in made.files],
        "nbytes": len(made.exported.lowered.data),
        "parameters": made.parameters,
        "card": loads(made.card.json()),
        **_lowered_json(made.exported.lowered),
        "difference": made.exported.difference,
        "notes": made.notes,
        "seconds": made.seconds,
    }


def _model_json(made: ExportedModel) -> dict[str, Any]:
    c, o = made.config, made.options
    check = made.check and {
        "tokens": made.check.tokens,
        "difference": made.check.difference,
        "largest": made.check.largest,
        "same_choice": made.check.same_choice,
    }
    return {
        "files": [str(path) for path in made.files],
        "nbytes": len(made.lowered.data),
        "family": c.family,
        "parameters": made.parameters,
        "layers": len(c.layers),
        "vocab_size": c.vocab,
        "dtype": o.dtype,
        "quantize": o.quantize,
        "group": o.group,
        "embedding": o.embedding,
        "max_seq": o.max_seq,
        "max_context": o.max_context,
        "matrices": _stored(made),
        **({"pictures": {"size": made.card.vision.size, "tokens": made.card.vision.rows}} if made.card.vision else {}),
        **_lowered_json(made.lowered),
        "check": check,
        "notes": made.notes,
        "seconds": made.seconds,
    }
