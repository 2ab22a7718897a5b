"""`ptegpu demo`: the bundled language model streams a short tale; `ptegpu demo digits` classifies images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import ptegpu

from ..units import counted
from .console import console, say
from .digits import digits
from .generate import generation_report, interruptible, open_model, write
from .options import JsonAtEnd, LoadFlags, SamplingFlags, command
from .report import CommandReport

MODEL = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
TITLE, SEED, TOKENS, TEMPERATURE = "The King's Daughter in the Forest", 5, 200, 0.7
MIN_P = 0.05  # drops the unlikeliest words, which lead a small model astray
SAMPLING = SamplingFlags(TOKENS, TEMPERATURE, min_p=MIN_P, seed=SEED)
WIDTH = 88  # columns of a tale, on a terminal that is wide enough

demo = typer.Typer(name="demo", help="Generate a short tale with the bundled model.", invoke_without_command=True)
demo.command()(command(digits))


@demo.callback()
@command
def tell(
    context: typer.Context,
    *,
    prompt: Annotated[str, typer.Option(help="The title of the tale.")] = TITLE,
    sampling: SamplingFlags = SAMPLING,
    loading: LoadFlags,
    json: JsonAtEnd = False,
) -> CommandReport | None:
    if context.invoked_subcommand is not None:
        if any(
            source is not None and source.name == "COMMANDLINE"
            for source in map(context.get_parameter_source, context.params)
        ):
            context.fail(f"options of {context.invoked_subcommand} come after its name")
        return None
    model, load_s = open_model(MODEL, None, loading)
    with model:
        stream = model.stream(f"{prompt}\n", **sampling.options())
        lines = WrappedLines(min(console().width, WIDTH) if sys.stdout.isatty() else None)
        if not json:
            say((prompt, "bold"), end="\n\n")
        with interruptible(stream):
            for piece in stream:
                if not json:
                    write(lines.push(piece))
        generation = stream.generation
        if not json:
            write(f"{lines.finish()}{'' if generation.finish_reason == 'stop' else ' …'}\n\n")
        report = generation_report(MODEL, model, generation, load_s)
        speed = f"{counted(len(generation.tokens), 'token')}, {generation.timings.decode_rate:.3g} tokens/s"
        place = f"{MODEL.name} on {model.program.device.info.place}"
        report.line((f"{place} · {speed} · seed {generation.seed}", "dim"))
        return report


class WrappedLines:
    """Streamed text as lines of whole words, at most `width` columns wide; unchanged if `width` is None."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self._column = 0
        self._word = ""  # the beginning of a word that may continue, with the space before it

    def push(self, text: str) -> str:
        """Return what can be shown: everything but the last word."""
        if self.width is None:
            return text
        shown = ""
        for character in text:
            if character in " \n":
                shown += self.finish()
            if character == "\n":
                shown, self._column = shown + "\n", 0
            else:
                self._word += character
        return shown

    def finish(self) -> str:
        """Return the last word."""
        word, self._word = self._word, ""
        if self.width is not None and self._column + len(word) > self.width and word.startswith(" "):
            word = "\n" + word[1:]
            self._column = -1
        self._column += len(word)
        return word
