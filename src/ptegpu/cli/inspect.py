"""`ptegpu inspect`: the contents of a program or bundle and how ptegpu would run it. Needs no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from ..errors import InvalidInput
from ..explain.analysis import GPU, HOST, SHAPES, UNSUPPORTED, Analysis, analyse
from ..explain.costs import check_sizes
from ..explain.diagram import diagram
from ..explain.picture import html_page, svg_of
from ..explain.report import HOST_STEPS, bundle_report, file_report, method_report, planned_methods
from ..files import naming
from ..models.card import Card, plain
from ..models.door import ProgramSource
from ..models.kinds import PROGRAM
from ..runtime import MethodSignature
from ..units import counted, number
from ..units import size as size_text
from .console import progress
from .inputs import one_size_each
from .options import DataFiles, ModelPath
from .report import CommandReport
from .values import check_output, find_method, methods_of

_WHERE = {  # most urgent first
    UNSUPPORTED: ("unsupported", "bold red"),
    HOST: ("host (NumPy)", "yellow"),
    GPU: ("GPU", "green"),
    SHAPES: ("host, before the run", "dim"),
}
MAX_GUARDS = 12  # lines about the nodes of a family
MAX_VALUES = 6  # of a list in a card


def inspect(
    model: ModelPath,
    data: DataFiles = None,
    method: Annotated[str | None, typer.Option(help="Show only this method.", show_default="all")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Show what plans cost at a size, such as 'input 0[1]=37'; repeat for more. Others are the largest."
        ),
    ] = None,
    graph: Annotated[Path | None, typer.Option(help="Draw the method as FILE.svg or FILE.html.")] = None,
) -> CommandReport:
    """Show methods, operators and where they run, plans and the sizes they hold for, memory, and unsupported operators.

    Needs no GPU.
    """
    check_output(graph, "--graph", ".svg", ".html")
    sizes = one_size_each(size or [])
    with progress(f"Reading {model.name}"):
        source = ProgramSource.of(model)
        if source.bundle is not None:
            if graph or data:
                raise InvalidInput(f"{model} is a bundle: --data and --graph need the .pte that it was made of")
            pairs = planned_methods(source.bundle, method)
            check_sizes([outer for _, outer in pairs], sizes)
            signatures = [MethodSignature(outer) for _, outer in pairs]
            record = bundle_report(source.bundle, model, pairs, sizes)
        else:
            methods = [find_method(source, method)] if method else methods_of(source)
            analyses = [analyse(source.file, m, data or []) for m in methods]
            check_sizes([a.outer for a in analyses if a.outer], sizes)
            signatures = [MethodSignature(m) for m in methods]
            record = file_report(source.file) | {"methods": [method_report(a, sizes) for a in analyses]}
            if graph:
                _draw(analyses, graph, model)
    record |= {"card": {"kind": source.card.kind} | plain(source.card), "written": [str(graph)] if graph else []}
    report = CommandReport(record)
    named = record.get("named_data", {"nbytes": 0})["nbytes"]
    named_text = f" · named data {size_text(named)}" if named else ""
    report.line((model.name, "bold"), f" · {size_text(record['nbytes'])}", named_text)
    _add_card(report, source.card)
    for row, signature in zip(record["methods"], signatures, strict=True):
        _add_method(report, row, signature)
    if graph:
        report.line(f"wrote {graph}")
    return report


def _draw(analyses: Sequence[Analysis], path: Path, model: Path) -> None:
    chosen = analyses[0] if len(analyses) == 1 else next((a for a in analyses if a.method.name == "forward"), None)
    if chosen is None:
        raise InvalidInput(
            "the program has several methods and none is called forward: choose one for --graph with --method"
        )
    drawn = diagram(chosen, f"{model.name} · {chosen.method.name}")
    with naming(path):
        path.write_text((html_page if path.suffix == ".html" else svg_of)(drawn), "utf-8")


def _add_card(report: CommandReport, card: Card) -> None:
    if card.kind == PROGRAM:
        return
    report.line()
    report.line(("card", "bold cyan"))
    report.entry("kind", f"{card.kind}, {card.task}" if card.task else card.kind)
    for name, value in plain(card).items():
        if name not in ("kind", "task", "version"):
            report.entry(name.replace("_", " "), _card_text(value))


def _card_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_card_text(v)}" for name, v in value.items())
    if isinstance(value, list):
        first = " ".join(map(_card_text, value[:MAX_VALUES]))
        return f"{first} … {len(value):,} in all" if len(value) > MAX_VALUES else first
    return number(value) if isinstance(value, float) else str(value)


def _add_method(report: CommandReport, method: Mapping[str, Any], signature: MethodSignature) -> None:
    report.line()
    target = f" for {method['target']}" if "target" in method else ""
    report.line((f"method {method['name']}{target}", "bold cyan"))
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for k, spec in enumerate(specs):
            report.entry(f"{kind} {k}", str(spec) if spec.name == f"{kind} {k}" else f"{spec}, {spec.name}")
    for k, delegate in enumerate(method.get("delegates", ())):
        calls = "unknown backend" if delegate["calls"] is None else counted(delegate["calls"], "operator")
        report.entry(f"delegate {k}", f"{delegate['backend']}, {size_text(delegate['nbytes'])}, {calls}")
    for kind in ("constants", "states"):
        if kind in method and method[kind]["count"]:
            report.entry(kind, f"{method[kind]['count']}, {size_text(method[kind]['nbytes'])}")
    if method.get("unsupported"):
        report.entry("runs as", "nothing yet: see what is unsupported below")
    elif method["plans"] or method["host_steps"]:
        report.entry("runs as", _plans_text([plan["nodes"] for plan in method["plans"]], method["host"]))
    if method["memory"]:
        parts = [f"{name} {size_text(n)}" for name, n in method["memory"].items() if n and name != "total"]
        report.entry("GPU memory", f"{size_text(method['memory']['total'])}: {', '.join(parts)}")
    if method["numpy"] and "operators" not in method:
        report.entry("needs NumPy", "kernels of " + ", ".join(f"{op} ({n})" for op, n in method["numpy"].items()))
    _add_plans(report, method["plans"])
    if method["at"]:
        _add_costs(report, method["at"])
    if method.get("operators"):
        rows = [[row["name"], row["count"], Text(*_WHERE[row["where"]]), row["why"]] for row in method["operators"]]
        report.table(["operator", "count", "runs on", "why"], rows, right=(1,))
    for note in method.get("notes", ()):
        report.paragraph(note, "note: ", "yellow", indent=6)
    if method.get("unsupported"):
        report.line(("unsupported:", "bold red"))
        for row in method["unsupported"]:
            report.line(f"  {row['count']:4} × {row['call']}")


def _add_plans(report: CommandReport, plans: Sequence[Mapping[str, Any]]) -> None:
    """Add a table of the plans, and for plans with dynamic sizes the sizes that each family holds for."""
    if not plans:
        return
    columns = ["plan", "nodes", "kernels", "families", "choices", "expressions", "dynamic sizes"]
    rows = [
        [k, plan["nodes"], plan["kernels"], len(plan["families"]), plan["choices"], plan["expressions"], _bounds(plan)]
        for k, plan in enumerate(plans, 1)
    ]
    report.table(columns, rows, right=range(6))
    for k, plan in enumerate(plans, 1):
        for n, family in enumerate(plan["families"] if plan["sizes"] else (), 1):
            report.paragraph(_guards(family), f"  plan {k}, family {n}: ", "bold", indent=4)
            nodes: Counter[str] = Counter()
            for step in family["steps"]:
                nodes[" | ".join(map(_guards, step["choices"]))] += step["nodes"] if len(step["choices"]) > 1 else 0
            lines = [(text, count) for text, count in nodes.most_common() if count]
            for text, count in lines[:MAX_GUARDS]:
                report.paragraph(text, f"    {counted(count, 'node')}: ", indent=8)
            if len(lines) > MAX_GUARDS:
                report.line(f"    and {len(lines) - MAX_GUARDS} more: --json has all")


def _bounds(plan: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ≤ {most:,}" if most is not None else name for name, most in plan["sizes"].items())


def _guards(record: Mapping[str, Any]) -> str:
    """Return the guards of a family or a choice as text."""
    where = ", ".join(record["where"]) or "every other size"
    return f"{where} (refused: {record['refusal']})" if record["refusal"] else where


def _add_costs(report: CommandReport, costs: Sequence[Mapping[str, Any]]) -> None:
    columns = ["plan", "at", "family", "choice × nodes", "dispatches", "workgroups", "FLOP", "read", "written"]
    rows = []
    for k, cost in enumerate(costs, 1):
        at = ", ".join(f"{name}={n}" for name, n in cost["sizes"].items())
        if cost["family"] is None or cost["refusal"]:
            rows.append([k, at, cost["family"] or "", cost["refusal"] or "not planned", *[""] * 5])
            continue
        choices = ", ".join(f"{choice} × {n}" for choice, n in sorted(cost["choices"].items()))
        figures = [f"{cost['dispatches']:,}", f"{cost['workgroups']:,}", number(cost["flops"])]
        traffic = [size_text(cost[name]) for name in ("read_bytes", "write_bytes")]
        rows.append([k, at, cost["family"], choices, *figures, *traffic])
    report.table(columns, rows, right=(0, 2, 4, 5, 6, 7, 8))


def _plans_text(nodes: Sequence[int], host: Mapping[str, int]) -> str:
    """Return text such as `2 plans (3 and 4 nodes); on the host 1 jump and 2 moves`."""
    sizes = f"{_listed([*map(str, nodes)])} node{'s' * (list(nodes) != [1])}"
    gpu = f"{counted(len(nodes), 'plan')} ({sizes})" if nodes else "nothing on the GPU"
    steps = [counted(host[name], kind) for name, kind in HOST_STEPS.items() if host[name]]
    return f"{gpu}; on the host {_listed(steps)}" if steps else gpu


def _listed(words: Sequence[str]) -> str:
    """Join words: a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
