"""Semantic search: MiniLM, exported once to a `.pte`, embeds a corpus on the GPU and ranks it for each query.

    python examples/semantic_search.py --model MiniLM "how do birds find their way" "a cheap dinner"
    python examples/semantic_search.py --corpus notes.txt --top 5 --json "the meeting about the budget"

The folder has the files of all-MiniLM-L6-v2 or of another text encoder. The first run exports it, which needs PyTorch
and transformers (`pip install "ptegpu[hf]"`); later runs need only `pip install "ptegpu[llm]"`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ptegpu

MAX_BATCH, MAX_TOKENS = 16, 256

CORPUS = (
    "Arctic terns fly from pole to pole every year, steering by the sun and the Earth's magnetic field.",
    "Honeybees tell their sisters where the flowers are by dancing on the comb.",
    "An octopus has three hearts and can taste with its arms.",
    "Wolves hunt in packs and raise their pups together.",
    "Old oaks feed hundreds of kinds of insects.",
    "Lentil soup with carrots and cumin costs very little and feeds a family.",
    "Knead the dough for ten minutes, then let it rise until it has doubled.",
    "Espresso is brewed by pressing hot water through finely ground coffee.",
    "Ripe tomatoes, basil and good olive oil need no other dressing.",
    "Sourdough keeps fresh for days because of its acidity.",
    "The orchestra tuned to the oboe before the symphony began.",
    "She practised the violin every evening until her fingers hurt.",
    "The band sold out the stadium within an hour.",
    "Impressionist painters left their studios to catch the changing light.",
    "The novel follows three generations of a family of fishermen.",
    "The goalkeeper saved two penalties in the final.",
    "She ran her first marathon in under four hours.",
    "Chess players prepare their openings with computers now.",
    "The climbers reached the summit just before the storm.",
    "Interest rates rose again as the central bank fought inflation.",
    "The start-up raised ten million from investors in its second round.",
    "Many tenants spend half of their wages on rent.",
    "The union called a strike over wages and working hours.",
    "Parliament passed the budget by a single vote.",
    "The court ruled that the contract was void.",
    "Vaccines train the immune system to recognise a virus.",
    "Regular sleep helps the brain to store memories.",
    "The surgeon replaced the worn hip with one of titanium.",
    "Drinking enough water can prevent some headaches.",
    "Black holes bend light so strongly that nothing escapes them.",
    "The rover drills into Martian rock and looks for traces of water.",
    "Tides follow the moon's pull on the oceans.",
    "Glaciers in the Alps lose metres of ice every summer.",
    "Wind turbines now supply a third of the country's electricity.",
    "The battery of the electric car charges in twenty minutes.",
    "A compiler translates a program into instructions for the machine.",
    "The password was leaked because the database had no encryption.",
    "A neural network learns by adjusting its weights to reduce its errors.",
    "Graphics cards multiply matrices thousands of times faster than a hand could.",
    "The night train to Lisbon leaves at half past nine.",
    "Trams were brought back to make the streets quieter.",
    "The Romans built roads that are still in use today.",
    "The printing press made books affordable for the first time.",
    "Children learn a second language most easily before they are ten.",
)
QUERIES = ("how do birds find their way", "a cheap dinner", "machine learning hardware")


class Missing(Exception):
    """A file that the example needs is missing or empty; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Hit:
    text: str
    score: float  # cosine of the angle between query and text


class Searcher:
    """A text encoder that ranks a corpus by similarity to a query."""

    def __init__(self, pipe: ptegpu.Pipeline) -> None:
        self.pipe = pipe
        self.dispatches = 0  # of the last call of `embed`

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors, float32 (texts, width). Texts of similar length share a batch."""
        order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
        counters = self.pipe.program.device.counters
        before = counters.snapshot()
        vectors = np.stack(self.pipe([texts[k] for k in order]))
        self.dispatches = counters.since(before).dispatches
        return vectors[np.argsort(order)]

    def rank(self, query: str, texts: Sequence[str], vectors: np.ndarray, top: int) -> list[Hit]:
        """Return the `top` texts that are most similar to the query, best first."""
        scores = vectors @ self.embed([query])[0]
        return [Hit(texts[k], float(scores[k])) for k in np.argsort(-scores, kind="stable")[:top]]


def export_to(path: Path, folder: Path) -> None:
    """Export the encoder, like `ptegpu export hf FOLDER -o FILE --task sentence-embedding`."""
    if not (folder / "config.json").is_file():
        raise Missing(f"missing file {folder / 'config.json'}: pass the folder of all-MiniLM-L6-v2")
    from ptegpu.export import Bounds, export_hf

    export_hf(folder, path, task="sentence-embedding", bounds=Bounds(MAX_BATCH, MAX_TOKENS))


def read_corpus(path: Path | None) -> Sequence[str]:
    """Return the texts of a file, one per line."""
    if path is None:
        return CORPUS
    if not path.is_file():
        raise Missing(f"{path} is not a file: pass a text file with one text per line")
    texts = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    if not texts:
        raise Missing(f"{path} is empty: pass a text file with one text per line")
    return texts


def search(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the queries of the command line and return the results as plain data."""
    texts = read_corpus(arguments.corpus)
    if not arguments.pte.exists():
        print(f"Exporting MiniLM to {arguments.pte}, once (a minute or so) …", file=sys.stderr, flush=True)
        export_to(arguments.pte, arguments.model)
    with ptegpu.pipeline(arguments.pte, arguments.device) as pipe:
        searcher = Searcher(pipe)
        start = time.perf_counter()
        vectors = searcher.embed(texts)
        embedded = time.perf_counter()
        hits = {query: searcher.rank(query, texts, vectors, arguments.top) for query in arguments.queries}
        end = time.perf_counter()
        return {
            "device": pipe.program.device.target.name,
            "program": str(arguments.pte),
            "texts": len(texts),
            "ms_per_text": 1e3 * (embedded - start) / len(texts),
            "ms_per_query": 1e3 * (end - embedded) / len(hits),
            "plans": len(pipe.program.method("forward").plans),
            "dispatches": searcher.dispatches,
            "queries": [
                {"query": query, "results": [{"score": hit.score, "text": hit.text} for hit in results]}
                for query, results in hits.items()
            ],
        }


def report(results: dict[str, Any]) -> None:
    for answer in results["queries"]:
        print(answer["query"])
        for hit in answer["results"]:
            print(f"  {hit['score']:6.3f}  {hit['text']}")
        print()
    texts = f"{results['texts']} texts, {results['ms_per_text']:.1f} ms each including kernel compilation"
    queries = f"{results['ms_per_query']:.1f} ms per query"
    print(f"{results['device']}: {texts}; {queries}; {results['dispatches']} dispatches")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Search a few sentences, or the lines of a file, by meaning.")
    parser.add_argument("queries", nargs="*", metavar="QUERY", help="text to search for (default: a few examples)")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="one text per line (built-in sentences)")
    parser.add_argument("--model", type=Path, default=Path("MiniLM"), metavar="FOLDER", help="the checkpoint (MiniLM)")
    parser.add_argument(
        "--pte",
        type=Path,
        default=Path("minilm.pte"),
        metavar="FILE",
        help="exported if missing",
    )
    parser.add_argument("--top", type=int, default=3, metavar="N", help="results per query (3)")
    parser.add_argument("--device", default="auto", help="adapter, as listed by `ptegpu doctor` (auto)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    options.queries = options.queries or list(QUERIES)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        results = search(options)
    except (Missing, ptegpu.PtegpuError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as e:
        print(f'error: {e.name} is not installed: run pip install "ptegpu[hf]"', file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    else:
        report(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
