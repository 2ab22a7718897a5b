"""The results of each architecture, as the page docs/models.md: `python -m tools.models > docs/models.md`.

The figures come from tests/data/models.json. `python -m tools.models --measure [NAME …]` writes them, for the named
architectures or for all without figures.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence

from tests.architectures import FIGURES, TOLERANCE, Found, figures, run
from tests.zoo.architectures import ARCHITECTURES, QUICK
from tests.zoo.families import FAMILIES

HEAD = """\
# Models

Made by `python -m tools.models > docs/models.md`; a test checks that it is current. The models are those of
`transformers`, tiny and with random weights, but with the structure of the real ones: several layers, stages and
windows, padded texts.

{counts}

- **Sizes**: *batch* and *length* may change from call to call; a *fixed* model takes inputs of one shape.
- **Plans** are what the GPU runs in one go, **host steps** what NumPy does between or before them. If there are any, or
  more than two plans, it is said why.
- **Error**: the largest difference from PyTorch in float64 of any element, relative to the largest element, at two
  sizes where sizes may change. A test fails above {tolerance:g}.
- **Export** with `hf` is `ptegpu export hf FOLDER`; with `torch`, a function that returns the module
  (`ptegpu export torch package.module:function`). Both are in [exporting](export.md). Language models that generate
  text go through `ptegpu export llm`.

Every line is a test: `make test` runs {quick} of them, `make test-heavy` all others.
"""


LANGUAGE = """\
`ptegpu export llm FOLDER` takes {types} types of models, tested in {all} forms (`tests/export/test_llm_families.py`).
Each is one plan without a host step, and is held to transformers over a prompt and 32 steps, at 1e-4 of the largest
logit:
"""


def page() -> str:
    """Return the page."""
    results = figures()
    plans = Counter(results[a.name]["plans"] for a in ARCHITECTURES)
    free = sum(not results[a.name]["host"] for a in ARCHITECTURES)
    more = sum(n for k, n in plans.items() if k > 2)
    counts = (
        f"{len(ARCHITECTURES)} architectures, besides [language models](#language-models-that-generate-text): "
        f"{plans[1]} are one plan, {plans[2]} are two, {more} are more; {free} run without a host step, "
        f"{len(ARCHITECTURES) - free} with some."
    )
    lines = [
        HEAD.format(counts=counts, tolerance=TOLERANCE, quick=len(QUICK)),
        "| architecture | class | task | sizes | plans | host steps | error | export |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    for a in ARCHITECTURES:
        f = results[a.name]
        row = (
            a.name,
            f"`{a.model}`",
            a.hf or a.task,
            ", ".join(f["sizes"]) or "fixed",
            f["plans"],
            len(f["host"]),
            f"{f['error']:.0e}",
        )
        lines.append(f"| {' | '.join(map(str, row))} | {'hf' if a.hf else 'torch'} |")
    types = list(dict.fromkeys(f["model_type"] for f in FAMILIES.values()))
    lines += ["", "## Language models that generate text", "", LANGUAGE.format(types=len(types), all=len(FAMILIES))]
    lines += [", ".join(f"`{t}`" for t in types) + "."]
    if reasons := [a for a in ARCHITECTURES if a.why]:
        lines += ["", "## Why there are host steps", "", *(f"- **{a.name}**: {a.why}" for a in reasons)]
    return "\n".join(lines) + "\n"


def entry(result: Found) -> dict[str, object]:
    """Return the figures of a result that are saved."""
    lists = {"sizes": list(result.sizes), "host": list(result.host)}
    return {"plans": result.plans, **lists, "error": float(f"{result.error:.1e}")}


def measure(names: Sequence[str]) -> None:
    """Run these architectures, or all without figures, and write the results after each."""
    entries = figures() if FIGURES.exists() else {}
    for a in ARCHITECTURES:
        if a.name in names or (not names and a.name not in entries):
            entries[a.name] = entry(run(a))
            print(f"{a.name}: {entries[a.name]}", file=sys.stderr)
            ordered = {b.name: entries[b.name] for b in ARCHITECTURES if b.name in entries}
            FIGURES.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2:])
    else:
        print(page(), end="")
