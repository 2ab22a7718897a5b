"""`ptegpu evaluate`: the perplexity of a text, with PyTorch's beside it if the checkpoint is given."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidInput
from ..files import read_text
from ..units import counted, duration
from .console import bar, note, progress
from .generate import TextModel, open_model
from .options import AsJson, LoadFlags, QuantizeFlags, TokenizerPath
from .report import CommandReport

if TYPE_CHECKING:
    from ..models.text import Evaluation

ONE_BY_ONE = (
    "this model gives logits for the last token only, so each token takes a run of its own; "
    "one exported with --all-logits scores a window in one run"
)


def evaluate(
    model: TextModel,
    text: Annotated[Path, typer.Argument(help="A text file.", show_default=False)],
    *,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens in one window, context included.", show_default="512, or the model's context"),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens from one window to the next.", show_default="half a window")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many tokens.", min=2, show_default="all")] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Compare with eager PyTorch, using this checkpoint folder.",
            show_default=False,
        ),
    ] = None,
    weights: QuantizeFlags,  # of the checkpoint, as in `export llm`
    tokenizer: TokenizerPath = None,
    loading: LoadFlags,
    json: AsJson = False,
) -> CommandReport:
    """Compute the perplexity of a text; --checkpoint compares it with PyTorch's."""
    from ..models.text.perplexity import WINDOW
    from ..models.text.perplexity import evaluate as perplexity

    content = read_text(text, InvalidInput)
    loaded, _ = open_model(model, tokenizer, loading)
    with loaded:
        tokens = loaded.tokenizer.encode(content)
        nbytes = len(content.encode())
        if limit is not None and limit < len(tokens):
            tokens = tokens[:limit]
            nbytes = len(loaded.tokenizer.decode(tokens).encode())
        size = min(WINDOW if window is None else window, loaded.signature.context)
        notes = []
        if window is not None and window > size:
            notes.append(f"--window {window} is more than the model's context: windows have {counted(size, 'token')}")
        if not loaded.signature.every:
            notes.append(ONE_BY_ONE)
        if not json:  # while the evaluation runs, not after it
            for remark in notes:
                note(remark, ("note: ", "yellow"))
        with bar(model.name) as update:
            result = perplexity(loaded, tokens, nbytes, size, stride, update)
        adapter = loaded.program.device.info
    record = {"model": str(model), "text": str(text), "adapter": adapter.record, "window": size, "notes": notes}
    report = CommandReport(record | _figures(result))
    report.line((f"perplexity {result.perplexity:.5g}", "bold"), f" · {_details(result)}")
    if checkpoint is None:
        return report
    with progress(f"Loading {checkpoint}"):
        from ..export.reference import Reference

        reference = Reference(checkpoint, size, **weights.options())
    with bar("PyTorch") as update:
        expected = perplexity(reference, tokens, nbytes, size, stride, update)
    difference = result.perplexity / expected.perplexity - 1
    report.record["reference"] = {"checkpoint": str(checkpoint), **_figures(expected)}
    report.record["difference"] = difference
    report.line(f"PyTorch    {expected.perplexity:.5g} · {_details(expected)}")
    report.line(f"difference {difference:+.3%}")
    return report


def _figures(result: Evaluation) -> dict[str, Any]:
    return asdict(result) | {"perplexity": result.perplexity, "bits_per_byte": result.bits_per_byte}


def _details(result: Evaluation) -> str:
    rate = result.scored / result.seconds
    scored = f"{counted(result.scored, 'token')} in {counted(result.windows, 'window')}"
    each = f"{result.nats:.4f} nats per token, {result.bits_per_byte:.4f} bits per byte"
    return f"{each} · {scored}, {duration(result.seconds)}, {rate:.3g} tokens/s"
