"""Measure the bundled tale-teller: what its model card says of held-out tales, and its samples.

    python -m tools.tales_card [--write]

Prints the measured part of src/ptegpu/demo/README.md, or writes it there. Needs a GPU, a software one too, on which
the held-out tales take some minutes.
"""

from __future__ import annotations

import argparse
import textwrap

from ptegpu.cli.demo import MIN_P, MODEL, SEED, TEMPERATURE, TITLE, TOKENS
from ptegpu.models.text import Evaluation, LanguageModel, evaluate

CARD = MODEL.with_name("README.md")
HELDOUT = MODEL.with_name("tales.heldout.txt")
BEGIN, END = "<!-- measured: python -m tools.tales_card --write -->\n", "<!-- end -->\n"
PREFIX = 600  # tokens, which a test measures again
GREEDY = 40  # tokens, likewise
WIDTH = 118  # columns of the card


def measure(model: LanguageModel, limit: int | None = None) -> Evaluation:
    """The held-out tales, or their first tokens, in the windows of `ptegpu evaluate`."""
    text = HELDOUT.read_text("utf-8")
    tokens = model.tokenizer.encode(text)[:limit]
    nbytes = len((model.tokenizer.decode(tokens) if limit else text).encode())
    return evaluate(model, tokens, nbytes, model.signature.context)


def row(name: str, found: Evaluation) -> str:
    figures = f"{found.nats:.4f} | {found.perplexity:.2f} | {found.bits_per_byte:.4f}"
    return f"| {name} | {found.tokens:,} | {figures} |"


def greedy(model: LanguageModel) -> str:
    """The likeliest beginning of the tale that the demo tells."""
    return model.generate(f"{TITLE}\n", max_tokens=GREEDY).text


def quote(text: str) -> str:
    lines = [line for paragraph in text.splitlines() for line in (*textwrap.wrap(paragraph, WIDTH - 2), "")]
    return "\n".join(f"> {line}".rstrip() for line in lines[:-1])


def measured(model: LanguageModel) -> str:
    """The part of the card between its marks."""
    sample = model.generate(f"{TITLE}\n", max_tokens=TOKENS, temperature=TEMPERATURE, min_p=MIN_P, seed=SEED)
    return f"""{BEGIN}
| held-out text | tokens | nats per token | perplexity | bits per character |
|---|---|---|---|---|
{row("all 10 tales", measure(model))}
{row(f"their first {PREFIX} tokens", measure(model, PREFIX))}

"{TITLE}", temperature {TEMPERATURE}, min-p {MIN_P}, seed {SEED}, {len(sample.tokens)} tokens; what `ptegpu demo` tells:

{quote(sample.text)}

The same title, always the likeliest token, {GREEDY} tokens:

{quote(greedy(model))}

{END}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into the card")
    write = parser.parse_args().write
    with LanguageModel(MODEL) as model:
        part = measured(model)
    if not write:
        print(part, end="")
        return
    before, _, rest = CARD.read_text("utf-8").partition(BEGIN)
    CARD.write_text(before + part + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
