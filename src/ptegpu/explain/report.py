"""Reports: what is in a program or a bundle and how it would run, as plain data for JSON and for tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput
from ..format import Program
from ..plan import Bundle, CompiledMethod, Host, Target
from ..runtime import Kind, Signature, Spec, kind_of
from .analysis import GPU, HOST, SHAPES, UNSUPPORTED, Analysis, memory_bytes
from .costs import costs
from .guards import numpy_calls, plan_report

HOST_STEPS: dict[str, Kind] = {
    "numpy_calls": "NumPy call",
    "scalar_calls": "scalar call",
    "jumps": "jump",
    "moves": "move",
}
PLACES = (UNSUPPORTED, HOST, GPU, SHAPES)  # where an operator runs, most urgent first


def file_report(program: Program) -> dict[str, Any]:
    named = {"count": len(program.named_data), "nbytes": sum(map(len, program.named_data.values()))}
    return {"file": program.path, "nbytes": program.nbytes, "version": program.version, "named_data": named}


def planned_methods(bundle: Bundle, name: str | None) -> list[tuple[Target, CompiledMethod]]:
    """All methods, or that of a name, for each target."""
    pairs = zip(bundle.targets, bundle.methods, strict=True)
    found = [(target, outer) for target, outers in pairs for outer in outers.values()]
    if name is not None and name not in bundle.methods[0]:
        raise InvalidInput(f"no method {name!r}; the bundle has {', '.join(bundle.methods[0]) or 'none'}")
    return [(target, outer) for target, outer in found if name in (None, outer.name)]


def bundle_report(
    bundle: Bundle, path: Path, made: Sequence[tuple[Target, CompiledMethod]], given: Mapping[str, int]
) -> dict[str, Any]:
    """What a bundle knows: for each target and method what it takes, its plans, what the host does."""
    methods = [
        {"name": outer.name, "target": target.name, **_signature(Signature(outer)), **_runs(outer, given)}
        for target, outer in made
    ]
    targets = [asdict(target) for target in bundle.targets]
    nbytes = sum(f.stat().st_size for f in (path.iterdir() if path.is_dir() else [path]))
    return {"file": str(path), "nbytes": nbytes, "targets": targets, "methods": methods}


def method_report(found: Analysis, given: Mapping[str, int]) -> dict[str, Any]:
    """Everything about a method, as plain data."""
    return {
        "name": found.method.name,
        **_signature(Signature(found.method)),
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
        **_runs(found.outer, given),
        "unsupported": [{"call": call, "count": count} for call, count in sorted(found.unsupported.items())],
        "notes": found.notes,
    }


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": [spec_json(spec) for spec in signature.inputs],
        "outputs": [spec_json(spec) for spec in signature.outputs],
    }


def _runs(outer: CompiledMethod | None, given: Mapping[str, int]) -> dict[str, Any]:
    """Plans, what the host does between them, what they take."""
    items = outer.items if outer else ()
    on_host = [item for item in items if isinstance(item, Host)]
    kinds = Counter(map(kind_of, on_host))
    return {
        "plans": [plan_report(plan) for plan in outer.plans] if outer else [],
        "at": [asdict(cost) for cost in costs(outer, given)] if outer and given else None,
        "host_steps": len(on_host),
        "host": {name: kinds[kind] for name, kind in HOST_STEPS.items()},
        "numpy": dict(numpy_calls(outer)) if outer else {},
        "memory": memory_bytes(outer) if outer else None,
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
    return PLACES.index(where), -count, name, why


def spec_json(spec: Spec) -> dict[str, Any]:
    """An input or output for programs: a tensor with its bounds, or a number with the value it was exported with."""
    if spec.shape is None and not spec.dynamic:
        return {"name": spec.name, "dtype": None if spec.dtype == "None" else spec.dtype, "value": spec.value}
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "dtype": spec.dtype, "shape": shape, "dynamic": spec.dynamic}
