"""`ptegpu inspect`: what is in a program and how ptegpu would run it, without running it or needing a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from ..compiler.partition import Host
from ..errors import InvalidInput
from ..format import Program, read_program
from ..plan.serialize import to_json
from ..runtime.signature import Signature
from ..runtime.steps import Kind, kind_of
from .analysis import GPU, HOST, SHAPES, UNSUPPORTED, Analysis, analyse, memory, plans
from .console import counted, explain, print_json, progress, say, show_table, size
from .picture import draw, html_page
from .values import check_folder, find_method, spec_json

_WHERE = {  # most urgent first
    UNSUPPORTED: ("unsupported", "bold red"),
    HOST: ("host (NumPy)", "yellow"),
    GPU: ("GPU", "green"),
    SHAPES: ("host, before the run", "dim"),
}
_HOST: dict[str, Kind] = {
    "numpy_calls": "NumPy call",
    "scalar_calls": "scalar call",
    "jumps": "jump",
    "moves": "move",
}


def inspect(
    model: Annotated[Path, typer.Argument(help="The program, a .pte file.", show_default=False)],
    data: Annotated[list[Path] | None, typer.Option(help="A .ptd file with constants; repeat for more.")] = None,
    method: Annotated[str | None, typer.Option(help="Show only this method.", show_default="all")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    graph: Annotated[Path | None, typer.Option(help="Draw the method as FILE.svg or FILE.html.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Write the method's plans for a browser's limits to FILE.json and FILE.bin.")
    ] = None,
) -> None:
    """Show methods, operators and where they run, memory, and what is unsupported. Needs no GPU."""
    if graph and graph.suffix not in (".svg", ".html"):
        raise typer.BadParameter(f"{graph} must end in .svg or .html", param_hint="--graph")
    if plan and plan.suffix != ".json":
        raise typer.BadParameter(f"{plan} must end in .json", param_hint="--plan")
    check_folder(graph, "--graph")
    check_folder(plan, "--plan")
    with progress(f"Reading {model.name}"):
        program = read_program(model)
        methods = [find_method(program, method)] if method else program.methods
        found = [analyse(program, m, data or []) for m in methods]
        reports = [method_report(a) for a in found]
        drawn = found[0] if len(found) == 1 else next((a for a in found if a.method.name == "forward"), None)
        written = _write_picture(drawn, graph, model) + _write_plans(drawn, plan)
    if json:
        print_json(_file_report(program) | {"methods": reports, "written": [str(path) for path in written]})
        return
    named = f" · named data {size(sum(map(len, program.named_data.values())))}" if program.named_data else ""
    say((model.name, "bold"), f" · {size(program.nbytes)}{named}")
    for report, analysis in zip(reports, found):
        _show(report, analysis)
    for path in written:
        say(f"wrote {path}")


def _file_report(program: Program) -> dict[str, Any]:
    named = {"count": len(program.named_data), "nbytes": sum(map(len, program.named_data.values()))}
    return {"file": program.path, "nbytes": program.nbytes, "version": program.version, "named_data": named}


def method_report(found: Analysis) -> dict[str, Any]:
    """Everything about a method, as plain data."""
    signature = Signature(found.method)
    used = memory(found)
    on_host = [item for item in found.items if isinstance(item, Host)]
    kinds = Counter(map(kind_of, on_host))
    return {
        "name": found.method.name,
        "inputs": [spec_json(spec) for spec in signature.inputs],
        "outputs": [spec_json(spec) for spec in signature.outputs],
        "delegates": [
            {
                "backend": delegate.id,
                "nbytes": len(delegate.blob),
                "calls": len(found.blobs[k].calls) if k in found.blobs else None,
            }
            for k, delegate in enumerate(found.method.delegates)
        ],
        "constants": {"count": len(found.stored("constant")), "nbytes": _nbytes(found, "constant")},
        "states": {"count": len(found.stored("state")), "nbytes": _nbytes(found, "state")},
        "operators": [
            {"name": name, "count": count, "where": where, "why": why}
            for (name, where, why), count in sorted(found.operators.items(), key=_order)
        ],
        "plans": [len(joined.graph.nodes) for joined in found.graphs.values()],  # nodes of each, after the passes
        "host_steps": len(on_host),
        "host": {name: kinds[kind] for name, kind in _HOST.items()},
        "memory": used,
        "unsupported": [{"call": call, "count": count} for call, count in sorted(found.unsupported.items())],
        "notes": found.notes,
    }


def _nbytes(found: Analysis, kind: str) -> int:
    """Bytes of the constants, each counted once however often the file uses it, or of the states."""
    stored = found.stored(kind)
    if kind == "state":
        return sum(v.dtype.size * prod(v.sizes) for v in stored if v.dtype)
    return sum({_address(v.data): v.data.nbytes for v in stored if v.data is not None}.values())


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _order(item: tuple[tuple[str, str, str], int]) -> tuple[int, int, str, str]:
    (name, where, why), count = item
    return list(_WHERE).index(where), -count, name, why


def _show(report: Mapping[str, Any], found: Analysis) -> None:
    say()
    say((f"method {report['name']}", "bold cyan"))
    signature = Signature(found.method)
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for k, spec in enumerate(specs):
            plain = spec.name == f"{kind} {k}"
            _line(f"{kind} {k}", str(spec) if plain else f"{spec}, {spec.name}")
    for k, delegate in enumerate(report["delegates"]):
        calls = "unknown backend" if delegate["calls"] is None else counted(delegate["calls"], "operator")
        _line(f"delegate {k}", f"{delegate['backend']}, {size(delegate['nbytes'])}, {calls}")
    for kind in ("constants", "states"):
        if report[kind]["count"]:
            _line(kind, f"{report[kind]['count']}, {size(report[kind]['nbytes'])}")
    if report["unsupported"]:
        _line("runs as", "nothing yet: see what is unsupported below")
    elif report["operators"]:
        _line("runs as", _plans_text(report["plans"], report["host"]))
    if report["memory"]:
        parts = [f"{name} {size(n)}" for name, n in report["memory"].items() if n and name != "total"]
        _line("GPU memory", f"{size(report['memory']['total'])}: {', '.join(parts)}")
    if report["operators"]:
        rows = [[row["name"], row["count"], Text(*_WHERE[row["where"]]), row["why"]] for row in report["operators"]]
        show_table("", ["operator", "count", "runs on", "why"], rows, right=(1,))
    for note in report["notes"]:
        explain(note, "note: ", "yellow", indent=6)
    if report["unsupported"]:
        say(("unsupported:", "bold red"))
        for row in report["unsupported"]:
            say(f"  {row['count']:4} × {row['call']}")


def _line(name: str, text: str) -> None:
    explain(text, f"  {name:<12}", indent=14)


def _plans_text(nodes: Sequence[int], host: Mapping[str, int]) -> str:
    """1 plan (3 nodes); 2 plans (3 and 4 nodes); on the host 1 jump and 2 moves; nothing on the GPU."""
    sizes = f"{_listed([*map(str, nodes)])} node{'s' * (list(nodes) != [1])}"
    gpu = f"{counted(len(nodes), 'plan')} ({sizes})" if nodes else "nothing on the GPU"
    steps = [counted(host[name], kind) for name, kind in _HOST.items() if host[name]]
    return f"{gpu}; on the host {_listed(steps)}" if steps else gpu


def _listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _write_picture(found: Analysis | None, path: Path | None, model: Path) -> list[Path]:
    if path is None:
        return []
    chosen = _one(found, "--graph")
    picture = draw(chosen, f"{model.name} · {chosen.method.name}")
    path.write_text(html_page(picture) if path.suffix == ".html" else picture.svg, "utf-8")
    return [path]


def _write_plans(found: Analysis | None, path: Path | None) -> list[Path]:
    """FILE.json and FILE.bin; where there are several plans, FILE.0.json, FILE.0.bin, and so on."""
    if path is None:
        return []
    chosen = _one(found, "--plan")
    if chosen.unsupported or not chosen.graphs:
        raise InvalidInput(f"method {chosen.method.name} has no plan: inspect it without --plan to see why")
    written = []
    made = plans(chosen)
    for k, plan in enumerate(made):
        text, binary = to_json(plan)
        target = path if len(made) == 1 else path.with_suffix(f".{k}.json")
        target.write_text(text, "utf-8")
        target.with_suffix(".bin").write_bytes(binary)
        written += [target, target.with_suffix(".bin")]
    return written


def _one(found: Analysis | None, option: str) -> Analysis:
    if found is None:
        raise InvalidInput(
            f"the program has several methods and none is called forward: choose one for {option} with --method"
        )
    return found
