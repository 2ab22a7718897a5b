"""A plan as JSON and one binary, and back: what a browser or a later process runs.

The JSON holds everything but bytes; `blobs` there are (offset, length) in the binary, 16-byte aligned, and the
parameters are in it too. Equal plans give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..dtypes import DType
from ..errors import InvalidProgram
from .plan import Binding, Buffer, Copy, Dispatch, Kernel, Plan, Port, SymStep

FORMAT = "ptegpu-plan"
VERSION = 1
_ALIGN = 16


def to_json(plan: Plan) -> tuple[str, bytes]:
    """The plan's JSON text and its binary."""
    binary = bytearray()

    def place(data: memoryview | bytes) -> list[int]:
        binary.extend(bytes(-len(binary) % _ALIGN))
        start = len(binary)
        binary.extend(data)
        return [start, len(binary) - start]

    document = {
        "format": FORMAT,
        "version": VERSION,
        **{f.name: _plain(getattr(plan, f.name)) for f in fields(plan) if f.name not in ("params", "blobs")},
        "params": place(plan.params),
        "blobs": [place(b) for b in plan.blobs],
    }
    return json.dumps(document, separators=(",", ":")), bytes(binary)


def from_json(text: str, binary: bytes | memoryview) -> Plan:
    """The plan that `to_json` saved; InvalidProgram if it is not one."""
    try:
        document = json.loads(text)
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise InvalidProgram(f"not a ptegpu plan of version {VERSION}")
        view = memoryview(binary)

        def take(place: list[int]) -> memoryview:
            start, length = place
            if not 0 <= start <= start + length <= len(view):
                raise InvalidProgram(f"the plan's bytes {start}…{start + length} are not in its binary of {len(view)}")
            return view[start : start + length]

        return Plan(
            name=document["name"],
            buffers=tuple(Buffer(**b) for b in document["buffers"]),
            kernels=tuple(Kernel(**_tuples(k)) for k in document["kernels"]),
            dispatches=tuple(_dispatch(d) for d in document["dispatches"]),
            copies=tuple(Copy(**c) for c in document["copies"]),
            inputs=tuple(_port(p) for p in document["inputs"]),
            outputs=tuple(_port(p) for p in document["outputs"]),
            params=bytes(take(document["params"])),
            syms=tuple(SymStep(**_tuples(s)) for s in document["syms"]),
            sym_outputs=tuple(document["sym_outputs"]),
            blobs=tuple(take(b) for b in document["blobs"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        if isinstance(e, InvalidProgram):
            raise
        raise InvalidProgram(f"the plan is damaged: {e!r}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return value.value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _tuples(fields_: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields_.items()}


def _dispatch(d: Mapping[str, Any]) -> Dispatch:
    return Dispatch(d["kernel"], tuple(Binding(**b) for b in d["bindings"]), tuple(d["grid"]), d["label"])


def _port(p: Mapping[str, Any]) -> Port:
    return Port(p["name"], p["buffer"], DType(p["dtype"]), tuple(p["shape"]))
