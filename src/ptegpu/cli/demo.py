"""`ptegpu demo`: the bundled language model tells a tale, streaming; `ptegpu demo digits` classifies images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import ptegpu

from ..units import counted
from .console import console, print_json, say
from .digits import digits
from .generate import CANCELLED, MaxTokens, Temperature, interruptible, open_model, report, write
from .options import DeviceName, Engine, Precision

MODEL = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
TITLE, SEED, TOKENS, TEMPERATURE = "The King's Daughter in the Forest", 5, 200, 0.7
MIN_P = 0.05  # without the unlikeliest words, a small model strays less
WIDTH = 88  # columns of a tale, where the terminal has so many

demo = typer.Typer(name="demo", help="Have the bundled language model tell a tale.", invoke_without_command=True)
demo.command()(digits)


@demo.callback()
def tell(
    context: typer.Context,
    prompt: Annotated[str, typer.Option(help="The title of the tale.")] = TITLE,
    seed: Annotated[int, typer.Option(help="A different seed tells a different tale.")] = SEED,
    max_tokens: MaxTokens = TOKENS,
    temperature: Temperature = TEMPERATURE,
    device: DeviceName = "auto",
    engine: Engine = "auto",
    precision: Precision = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    if context.invoked_subcommand is not None:
        if any(
            source is not None and source.name == "COMMANDLINE"
            for source in map(context.get_parameter_source, context.params)
        ):
            context.fail(f"options of {context.invoked_subcommand} come after its name")
        return
    model, load_s = open_model(MODEL, None, device, engine, precision)
    with model:
        stream = model.stream(f"{prompt}\n", max_tokens=max_tokens, temperature=temperature, min_p=MIN_P, seed=seed)
        lines = Lines(min(console().width, WIDTH) if sys.stdout.isatty() else None)
        if not json:
            say((prompt, "bold"), end="\n\n")
        with interruptible(stream):
            for piece in stream:
                if not json:
                    write(lines.push(piece))
        made, adapter = stream.generation, model.program.device.info
        if json:
            print_json(report(MODEL, model, made, load_s))
        else:
            write(f"{lines.finish()}{'' if made.finish_reason == 'stop' else ' …'}\n\n")
            speed = f"{counted(len(made.tokens), 'token')}, {made.timings.decode_rate:.3g} tokens/s"
            place = f"{MODEL.name} on {adapter.place}"
            say((f"{place} · {speed} · seed {made.seed}", "dim"))
    if made.finish_reason == "cancelled":
        raise typer.Exit(CANCELLED)


class Lines:
    """Text that comes in pieces, as lines of whole words; as it is if `width` is None."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self._column = 0
        self._word = ""  # what came of a word that may go on, with the space before it

    def push(self, text: str) -> str:
        """What can be shown: all but the last word."""
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
        """The last word."""
        word, self._word = self._word, ""
        if self.width is not None and self._column + len(word) > self.width and word.startswith(" "):
            word = "\n" + word[1:]
            self._column = -1
        self._column += len(word)
        return word
