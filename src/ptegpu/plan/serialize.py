"""A plan as JSON and one binary, and back: what a browser or a later process runs.

The JSON holds everything but bytes; `blobs` there are (offset, length) in the binary, 16-byte aligned, and the
parameters are in it too. Equal plans give equal bytes. Reading proves the kind of every field, and that every index
is one of something; what a device cannot do is found when the plan is prepared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from ..dtypes import RUNS, DType
from ..errors import InvalidProgram
from .plan import Plan

FORMAT = "ptegpu-plan"
VERSION = 1
_ALIGN = 16
_BYTES = ("params", "blobs")  # fields whose contents are in the binary


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
        **{f.name: _plain(getattr(plan, f.name)) for f in fields(plan) if f.name not in _BYTES},
        "params": place(plan.params),
        "blobs": [place(b) for b in plan.blobs],
    }
    return json.dumps(document, separators=(",", ":")), bytes(binary)


def from_json(text: str, binary: bytes | memoryview) -> Plan:
    """The plan that `to_json` saved; InvalidProgram if it is not one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        _damaged(f"no JSON: {e}")
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise InvalidProgram(f"not a ptegpu plan of version {VERSION}")
    view = memoryview(binary)

    def take(place: tuple[int, int]) -> memoryview:
        start, length = place
        if not 0 <= start <= start + length <= len(view):
            raise InvalidProgram(f"the plan's bytes {start}…{start + length} are not in its binary of {len(view)}")
        return view[start : start + length]

    hints = get_type_hints(Plan) | {"params": tuple[int, int], "blobs": tuple[tuple[int, int], ...]}
    missing = [name for name in hints if name not in document]
    if missing:
        _damaged(f"{', '.join(missing)} missing")
    read = {name: _read(hint, document[name], name) for name, hint in hints.items()}
    read["params"], read["blobs"] = bytes(take(read["params"])), tuple(map(take, read["blobs"]))
    plan = Plan(**read)
    for what, index, count in _indices(plan):
        if not 0 <= index < count:
            _damaged(f"{what} is {index}, there are {count}")
    return plan


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return value.value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _read(kind: Any, value: Any, where: str) -> Any:
    """The value that `_plain` made this of, where a field is annotated with `kind`."""
    parts = get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(hints):
            _damaged(f"{where} does not have the fields {', '.join(hints)}")
        return kind(**{name: _read(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    if get_origin(kind) is tuple:
        repeated = parts[-1] is Ellipsis
        if not isinstance(value, list) or not (repeated or len(value) == len(parts)):
            _damaged(f"{where} is not a list{'' if repeated else f' of {len(parts)}'}")
        return tuple(_read(parts[0], v, f"{where}[{k}]") for k, v in enumerate(value))
    if get_origin(kind) is UnionType:  # int | None
        return None if value is None else _read(parts[0], value, where)
    allowed = parts if get_origin(kind) is Literal else [d.value for d in RUNS] if kind is DType else None
    if allowed is not None:
        if value not in allowed:
            _damaged(f"{where} is {value!r}, not one of {', '.join(allowed)}")
        return DType(value) if kind is DType else value
    if type(value) is not kind:
        _damaged(f"{where} is {value!r}, no {kind.__name__}")
    return value


def _indices(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Everything that counts in a list of the plan: what, the index, the list's length."""
    buffers = len(plan.buffers)
    for k, buffer in enumerate(plan.buffers):
        if buffer.blob is not None:
            yield f"buffers[{k}].blob", buffer.blob, len(plan.blobs)
    for k, dispatch in enumerate(plan.dispatches):
        yield f"dispatches[{k}].kernel", dispatch.kernel, len(plan.kernels)
        for j, binding in enumerate(dispatch.bindings):
            yield f"dispatches[{k}].bindings[{j}].buffer", binding.buffer, buffers
    for k, copy in enumerate(plan.copies):
        yield f"copies[{k}].source", copy.source, buffers
        yield f"copies[{k}].target", copy.target, buffers
    for name, ports in (("inputs", plan.inputs), ("outputs", plan.outputs)):
        for k, port in enumerate(ports):
            yield f"{name}[{k}].buffer", port.buffer, buffers


def _damaged(how: str) -> NoReturn:
    raise InvalidProgram(f"the plan is damaged: {how}")
