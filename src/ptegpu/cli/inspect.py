"""`ptegpu inspect`: what is in a program or a bundle and how ptegpu would run it, without running it. Needs no GPU."""

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
from ..explain.picture import draw, html_page
from ..explain.report import HOST_STEPS, bundle_report, file_report, method_report, planned_methods
from ..files import naming
from ..models.card import Card, plain
from ..models.door import Source
from ..models.kinds import PROGRAM
from ..runtime import Signature
from ..units import counted, number, size
from .console import explain, print_json, progress, say, show_table
from .sizes import one_size_each
from .values import check_folder, find_method, methods_of

_WHERE = {  # most urgent first
    UNSUPPORTED: ("unsupported", "bold red"),
    HOST: ("host (NumPy)", "yellow"),
    GPU: ("GPU", "green"),
    SHAPES: ("host, before the run", "dim"),
}
MAX_GUARDS = 12  # lines about the nodes of a family
MAX_VALUES = 6  # of a list in a card


def inspect(
    model: Annotated[Path, typer.Argument(help="The program, a .pte file or a bundle.", show_default=False)],
    data: Annotated[list[Path] | None, typer.Option(help="A .ptd file with constants; repeat for more.")] = None,
    method: Annotated[str | None, typer.Option(help="Show only this method.", show_default="all")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Show what plans cost at a size, such as 'input 0[1]=37'; repeat for more. Others are the largest.",
            show_default="none",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    graph: Annotated[Path | None, typer.Option(help="Draw the method as FILE.svg or FILE.html.")] = None,
) -> None:
    """Show methods, operators and where they run, plans and the sizes they hold for, memory, and what is unsupported.

    Needs no GPU.
    """
    if graph and graph.suffix not in (".svg", ".html"):
        raise typer.BadParameter(f"{graph} must end in .svg or .html", param_hint="--graph")
    check_folder(graph, "--graph")
    given = one_size_each(size or [])
    with progress(f"Reading {model.name}"):
        source = Source.of(model)
        program = methods_of(source)
        if source.bundle is not None:
            if graph or data:
                raise InvalidInput(
                    f"{model} is a bundle, which takes no data and has no operators to draw: give its .pte"
                )
            found: list[Analysis] = []
            made = planned_methods(source.bundle, method)
            check_sizes([outer for _, outer in made], given)
            signatures = [Signature(outer) for _, outer in made]
            report = bundle_report(source.bundle, model, made, given)
        else:
            methods = [find_method(program, method)] if method else program.methods
            found = [analyse(program, m, data or []) for m in methods]
            check_sizes([a.outer for a in found if a.outer], given)
            signatures = [Signature(m) for m in methods]
            report = file_report(program) | {"methods": [method_report(a, given) for a in found]}
        drawn = found[0] if len(found) == 1 else next((a for a in found if a.method.name == "forward"), None)
        written = _write_picture(drawn, graph, model)
    if json:
        report |= {"card": {"kind": source.card.kind} | plain(source.card)}
        print_json(report | {"written": [str(path) for path in written]})
        return
    _show(report, model.name, source.card, signatures)
    for path in written:
        say(f"wrote {path}")


def _show(report: Mapping[str, Any], model: str, card: Card, signatures: Sequence[Signature]) -> None:
    named = report.get("named_data", {"nbytes": 0})["nbytes"]
    say((model, "bold"), f" · {size(report['nbytes'])}", f" · named data {size(named)}" if named else "")
    _show_card(card)
    for method, signature in zip(report["methods"], signatures, strict=True):
        _show_method(method, signature)


def _show_card(card: Card) -> None:
    """What a program is for; nothing where it does not say so."""
    if card.kind == PROGRAM:
        return
    say()
    say(("card", "bold cyan"))
    _line("kind", f"{card.kind}, {card.task}" if card.task else card.kind)
    for name, value in plain(card).items():
        if name not in ("kind", "task", "version"):
            _line(name.replace("_", " "), _card_text(value))


def _card_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_card_text(v)}" for name, v in value.items())
    if isinstance(value, list):
        shown = " ".join(map(_card_text, value[:MAX_VALUES]))
        return f"{shown} … {len(value):,} in all" if len(value) > MAX_VALUES else shown
    return number(value) if isinstance(value, float) else str(value)


def _show_method(report: Mapping[str, Any], signature: Signature) -> None:
    say()
    target = f" for {report['target']}" if "target" in report else ""
    say((f"method {report['name']}{target}", "bold cyan"))
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for k, spec in enumerate(specs):
            plain = spec.name == f"{kind} {k}"
            _line(f"{kind} {k}", str(spec) if plain else f"{spec}, {spec.name}")
    for k, delegate in enumerate(report.get("delegates", ())):
        calls = "unknown backend" if delegate["calls"] is None else counted(delegate["calls"], "operator")
        _line(f"delegate {k}", f"{delegate['backend']}, {size(delegate['nbytes'])}, {calls}")
    for kind in ("constants", "states"):
        if kind in report and report[kind]["count"]:
            _line(kind, f"{report[kind]['count']}, {size(report[kind]['nbytes'])}")
    if report.get("unsupported"):
        _line("runs as", "nothing yet: see what is unsupported below")
    elif report["plans"] or report["host_steps"]:
        _line("runs as", _plans_text([plan["nodes"] for plan in report["plans"]], report["host"]))
    if report["memory"]:
        parts = [f"{name} {size(n)}" for name, n in report["memory"].items() if n and name != "total"]
        _line("GPU memory", f"{size(report['memory']['total'])}: {', '.join(parts)}")
    if report["numpy"] and "operators" not in report:
        _line("needs NumPy", "kernels of " + ", ".join(f"{name} ({n})" for name, n in report["numpy"].items()))
    _show_plans(report["plans"])
    if report["at"]:
        _show_costs(report["at"])
    if report.get("operators"):
        rows = [[row["name"], row["count"], Text(*_WHERE[row["where"]]), row["why"]] for row in report["operators"]]
        show_table("", ["operator", "count", "runs on", "why"], rows, right=(1,))
    for note in report.get("notes", ()):
        explain(note, "note: ", "yellow", indent=6)
    if report.get("unsupported"):
        say(("unsupported:", "bold red"))
        for row in report["unsupported"]:
            say(f"  {row['count']:4} × {row['call']}")


def _show_plans(plans: Sequence[Mapping[str, Any]]) -> None:
    """What each plan is made of; of one that is not the same at every size, what sizes its families hold for."""
    if not plans:
        return
    columns = ["plan", "nodes", "kernels", "families", "choices", "expressions", "sizes that may change"]
    rows = [
        [k, plan["nodes"], plan["kernels"], len(plan["families"]), plan["choices"], plan["expressions"], _sizes(plan)]
        for k, plan in enumerate(plans, 1)
    ]
    show_table("", columns, rows, right=range(6))
    for k, plan in enumerate(plans, 1):
        for n, family in enumerate(plan["families"] if plan["sizes"] else (), 1):
            explain(_guards(family), f"  plan {k}, family {n}: ", "bold", indent=4)
            nodes: Counter[str] = Counter()
            for step in family["steps"]:
                nodes[" | ".join(map(_guards, step["choices"]))] += step["nodes"] if len(step["choices"]) > 1 else 0
            shown = [(text, count) for text, count in nodes.most_common() if count]
            for text, count in shown[:MAX_GUARDS]:
                explain(text, f"    {counted(count, 'node')}: ", indent=8)
            if len(shown) > MAX_GUARDS:
                say(f"    and {len(shown) - MAX_GUARDS} more: --json has all")


def _sizes(plan: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ≤ {most:,}" if most is not None else name for name, most in plan["sizes"].items())


def _guards(record: Mapping[str, Any]) -> str:
    """Of a family or a choice."""
    where = ", ".join(record["where"]) or "every other size"
    return f"{where} (refused: {record['refusal']})" if record["refusal"] else where


def _show_costs(found: Sequence[Mapping[str, Any]]) -> None:
    columns = ["plan", "at", "family", "choice × nodes", "dispatches", "workgroups", "FLOP", "read", "written"]
    rows = []
    for k, cost in enumerate(found, 1):
        at = ", ".join(f"{name}={n}" for name, n in cost["sizes"].items())
        if cost["family"] is None or cost["refusal"]:
            rows.append([k, at, cost["family"] or "", cost["refusal"] or "not planned", *[""] * 5])
            continue
        choices = ", ".join(f"{choice} × {n}" for choice, n in sorted(cost["choices"].items()))
        figures = [f"{cost['dispatches']:,}", f"{cost['workgroups']:,}", number(cost["flops"])]
        moved = [size(cost[name]) for name in ("read_bytes", "write_bytes")]
        rows.append([k, at, cost["family"], choices, *figures, *moved])
    show_table("", columns, rows, right=(0, 2, 4, 5, 6, 7, 8))


def _line(name: str, text: str) -> None:
    explain(text, f"  {name:<12}", indent=14)


def _plans_text(nodes: Sequence[int], host: Mapping[str, int]) -> str:
    """1 plan (3 nodes); 2 plans (3 and 4 nodes); on the host 1 jump and 2 moves; nothing on the GPU."""
    sizes = f"{_listed([*map(str, nodes)])} node{'s' * (list(nodes) != [1])}"
    gpu = f"{counted(len(nodes), 'plan')} ({sizes})" if nodes else "nothing on the GPU"
    steps = [counted(host[name], kind) for name, kind in HOST_STEPS.items() if host[name]]
    return f"{gpu}; on the host {_listed(steps)}" if steps else gpu


def _listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _write_picture(found: Analysis | None, path: Path | None, model: Path) -> list[Path]:
    if path is None:
        return []
    chosen = _one(found, "--graph")
    picture = draw(chosen, f"{model.name} · {chosen.method.name}")
    with naming(path):
        path.write_text(html_page(picture) if path.suffix == ".html" else picture.svg, "utf-8")
    return [path]


def _one(found: Analysis | None, option: str) -> Analysis:
    if found is None:
        raise InvalidInput(
            f"the program has several methods and none is called forward: choose one for {option} with --method"
        )
    return found
