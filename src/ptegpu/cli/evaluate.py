"""`ptegpu evaluate`: the perplexity of a text and, given the checkpoint, PyTorch's next to it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from ..files import read_text
from ..units import counted, duration
from .console import bar, note, print_json, progress, say
from .generate import Model, TokenizerPath, open_model
from .options import CacheType, DeviceName, Engine, Precision

if TYPE_CHECKING:
    from ..models.text import Evaluation

ONE_BY_ONE = (
    "this model gives logits for the last token only, so each token takes a run of its own; "
    "one exported with --all-logits scores a window in one run"
)


def evaluate(
    model: Model,
    text: Annotated[Path, typer.Argument(help="A text file.", show_default=False)],
    window: Annotated[
        int | None,
        typer.Option(help="Tokens in one window, context included.", show_default="512, or the model's context"),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens from one window to the next.", show_default="half a window")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many tokens.", min=2, show_default="all")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Compare with eager PyTorch, using this checkpoint folder.", show_default=False)
    ] = None,
    quantize: Annotated[str, typer.Option(help="How to quantize the checkpoint, as in `export llm`.")] = "none",
    group: Annotated[int, typer.Option(help="How many weights share a scale, as in `export llm`.")] = 32,
    embedding: Annotated[
        str | None,
        typer.Option(
            help="How to store its embedding, as in `export llm`.", show_default="4bit if the weights are in 4 bits"
        ),
    ] = None,
    tokenizer: TokenizerPath = None,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: CacheType = "f32",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the perplexity of a text; --checkpoint compares it with PyTorch's."""
    from ..models.text.perplexity import WINDOW
    from ..models.text.perplexity import evaluate as perplexity

    decoded = read_text(text, InvalidInput)
    loaded, _ = open_model(model, tokenizer, device, engine, precision, cache)
    with loaded:
        tokens = loaded.tokenizer.encode(decoded)
        nbytes = len(decoded.encode())
        if limit is not None and limit < len(tokens):
            tokens = tokens[:limit]
            nbytes = len(loaded.tokenizer.decode(tokens).encode())
        context = loaded.signature.context
        size = min(WINDOW if window is None else window, context)
        notes = []
        if window is not None and window > size:
            notes.append(f"--window {window} is more than the model's context: windows have {counted(size, 'token')}")
        if not loaded.signature.every:
            notes.append(ONE_BY_ONE)
        if not json:
            for line in notes:
                note(line, ("note: ", "yellow"))
        with bar(model.name) as update:
            found = perplexity(loaded, tokens, nbytes, size, stride, update)
        adapter = loaded.program.device.info
    expected = None
    if checkpoint is not None:
        with progress(f"Loading {checkpoint}"):
            from ..export.reference import Reference

            reference = Reference(checkpoint, size, quantize=quantize, group=group, embedding=embedding)
        with bar("PyTorch") as update:
            expected = perplexity(reference, tokens, nbytes, size, stride, update)
    if json:
        report = {"model": str(model), "text": str(text), "adapter": adapter.record, "window": size}
        report |= {"notes": notes, **_figures(found)}
        if expected is not None:
            difference = found.perplexity / expected.perplexity - 1
            report |= {"reference": {"checkpoint": str(checkpoint), **_figures(expected)}, "difference": difference}
        print_json(report)
        return
    say((f"perplexity {found.perplexity:.5g}", "bold"), f" · {_details(found)}")
    if expected is not None:
        difference = found.perplexity / expected.perplexity - 1
        say(f"PyTorch    {expected.perplexity:.5g} · {_details(expected)}")
        say(f"difference {difference:+.3%}")


def _figures(found: Evaluation) -> dict[str, Any]:
    return asdict(found) | {"perplexity": found.perplexity, "bits_per_byte": found.bits_per_byte}


def _details(found: Evaluation) -> str:
    rate = found.scored / found.seconds
    scored = f"{counted(found.scored, 'token')} in {counted(found.windows, 'window')}"
    each = f"{found.nats:.4f} nats per token, {found.bits_per_byte:.4f} bits per byte"
    return f"{each} · {scored}, {duration(found.seconds)}, {rate:.3g} tokens/s"
