"""Reports on a program or a bundle and how it would run, as plain data for JSON and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from ..format import ProgramFile
from ..plan import Bundle, CompiledMethod, Host, Target
from ..runtime import ItemKind, MethodSignature, Spec, kind_of
from .analysis import GPU, HOST, SHAPES, UNSUPPORTED, Analysis, memory_bytes
from .costs import costs
from .guards import numpy_calls, plan_report

HOST_STEPS: dict[str, ItemKind] = {
    "numpy_calls": "NumPy call",
    "scalar_calls": "scalar call",
    "jumps": "jump",
    "moves": "move",
}
PLACES = (UNSUPPORTED, HOST, GPU, SHAPES)  # where an operator runs, most urgent first


def file_report(program: ProgramFile) -> dict[str, Any]:
    named = {"count": len(program.named_data), "nbytes": sum(map(len, program.named_data.values()))}
    return {"file": program.path, "nbytes": program.nbytes, "version": program.version, "named_data": named}


def planned_methods(bundle: Bundle, name: str | None) -> list[tuple[Target, CompiledMethod]]:
    """Return all methods, or the named one, for each target."""
    if name is not None and name not in bundle.methods[0]:
        raise InvalidInput(f"no method {name!r}; the bundle has {', '.join(bundle.methods[0]) or 'none'}")
    pairs = zip(bundle.targets, bundle.methods, strict=True)
    return [(target, outer) for target, outers in pairs for outer in outers.values() if name in (None, outer.name)]


def bundle_report(
    bundle: Bundle, path: Path, pairs: Sequence[tuple[Target, CompiledMethod]], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the inputs, outputs, plans and host steps of each target and method."""
    methods = [
        {"name": outer.name, "target": target.name, **_signature(MethodSignature(outer)), **_runs(outer, sizes)}
        for target, outer in pairs
    ]
    targets = [asdict(target) for target in bundle.targets]
    nbytes = sum(f.stat().st_size for f in (path.iterdir() if path.is_dir() else [path]))
    return {"file": str(path), "nbytes": nbytes, "targets": targets, "methods": methods}


def method_report(analysis: Analysis, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return everything about a method."""
    return {
        "name": analysis.method.name,
        **_signature(MethodSignature(analysis.method)),
        "delegates": [
            {
                "backend": delegate.id,
                "nbytes": len(delegate.blob),
                "calls": len(analysis.blobs[k].calls) if k in analysis.blobs else None,
            }
            for k, delegate in enumerate(analysis.method.delegates)
        ],
        "constants": {"count": len(analysis.stored("constant")), "nbytes": _nbytes(analysis, "constant")},
        "states": {"count": len(analysis.stored("state")), "nbytes": _nbytes(analysis, "state")},
        "operators": [
            {"name": name, "count": count, "where": where, "why": why}
            for (name, where, why), count in sorted(analysis.operators.items(), key=_order)
        ],
        **_runs(analysis.outer, sizes),
        "unsupported": [{"call": call, "count": count} for call, count in sorted(analysis.unsupported.items())],
        "notes": analysis.notes,
    }


def _signature(signature: MethodSignature) -> dict[str, Any]:
    return {
        "inputs": [spec_json(spec) for spec in signature.inputs],
        "outputs": [spec_json(spec) for spec in signature.outputs],
    }


def _runs(outer: CompiledMethod | None, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the plans, the host steps between them and their memory."""
    items = outer.items if outer else ()
    on_host = [item for item in items if isinstance(item, Host)]
    kinds = Counter(map(kind_of, on_host))
    return {
        "plans": [plan_report(plan) for plan in outer.plans] if outer else [],
        "at": [asdict(cost) for cost in costs(outer, sizes)] if outer and sizes else None,
        "host_steps": len(on_host),
        "host": {name: kinds[kind] for name, kind in HOST_STEPS.items()},
        "numpy": dict(numpy_calls(outer)) if outer else {},
        "memory": memory_bytes(outer) if outer else None,
    }


def _nbytes(analysis: Analysis, kind: str) -> int:
    """Return the bytes of the states, or of the constants, counting each once however often the file uses it."""
    stored = analysis.stored(kind)
    if kind == "state":
        return sum(v.dtype.size * prod(v.sizes) for v in stored if v.dtype)
    arrays = [v.data for v in stored if v.data is not None]
    return sum({a.__array_interface__["data"][0]: a.nbytes for a in arrays}.values())  # by address


def _order(item: tuple[tuple[str, str, str], int]) -> tuple[int, int, str, str]:
    (name, where, why), count = item
    return PLACES.index(where), -count, name, why


def spec_json(spec: Spec) -> dict[str, Any]:
    """Return an input or output as JSON: a tensor with its bounds, or a number with its value at export."""
    if spec.shape is None and not spec.dynamic:
        return {"name": spec.name, "dtype": None if spec.dtype == "None" else spec.dtype, "value": spec.value}
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "dtype": spec.dtype, "shape": shape, "dynamic": spec.dynamic}
