"""Measure the bundled tale-teller: the figures and samples of its model card.

    python -m tools.tales_card [--write]

Print the measured part of src/ptegpu/demo/README.md, or write it there. Needs a GPU; on a software adapter the held-out
tales take some minutes.
"""

from __future__ import annotations

import argparse
import textwrap

from ptegpu.cli.demo import MIN_P, MODEL, SEED, TEMPERATURE, TITLE, TOKENS
from ptegpu.models.text import Evaluation, LanguageModel, evaluate

CARD = MODEL.with_name("README.md")
HELDOUT = MODEL.with_name("tales.heldout.txt")
BEGIN, END = "<!-- measured: python -m tools.tales_card --write -->\n", "<!-- end -->\n"
PREFIX = 600  # tokens that a test measures again
GREEDY = 40  # tokens, likewise
WIDTH = 118  # columns of the card


def measure(model: LanguageModel, limit: int | None = None) -> Evaluation:
    """Evaluate the held-out tales, or their first `limit` tokens, in the windows of `ptegpu evaluate`."""
    text = HELDOUT.read_text("utf-8")
    tokens = model.tokenizer.encode(text)[:limit]
    nbytes = len((model.tokenizer.decode(tokens) if limit else text).encode())
    return evaluate(model, tokens, nbytes, model.signature.context)


def row(name: str, evaluation: Evaluation) -> str:
    figures = f"{evaluation.nats:.4f} | {evaluation.perplexity:.2f} | {evaluation.bits_per_byte:.4f}"
    return f"| {name} | {evaluation.tokens:,} | {figures} |"


def greedy(model: LanguageModel) -> str:
    """Return the likeliest beginning of the demo's tale."""
    return model.generate(f"{TITLE}\n", max_tokens=GREEDY).text


def quote(text: str) -> str:
    lines = [line for paragraph in text.splitlines() for line in (*textwrap.wrap(paragraph, WIDTH - 2), "")]
    return "\n".join(f"> {line}".rstrip() for line in lines[:-1])


def measured(model: LanguageModel) -> str:
    """Return the part of the card between its marks."""
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
