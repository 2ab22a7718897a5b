"""The writer of bundles: one file for Python, which is mapped without copying, or a folder for the web.

The file is a head (a magic word, the length and the SHA-256 of the JSON), the JSON, and the bytes of constants, states
and parameters, each at a multiple of 64. The JSON has everything else, with each kernel and each blob once. A dataclass
is an object without the fields that have their defaults (or, if frequent, a list of all fields), a number that a runner
computes is `[row]`, a slot is `{"slot": k}`. Equal bundles give equal bytes.

In the folder, each target has a JSON file with its kernels and methods. A small head lists the files, so that a browser
only fetches what it can run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import DType
from ..files import write
from ..format import FileMethod as FileMethod
from ..format.pte import FileTensor as FileTensor
from .bundle import ALIGN, ARRAYS, FORMAT, LISTS, MAGIC, MANIFEST, TENSOR_FIELDS, VERSION, WEB_VERSION, Bundle
from .method import Call, CompiledMethod, Item, Jump, Move, Run, Var
from .plan import Buffer, Expr, Kernel, Moved, Plan
from .web import Buffers, Layouts, method_needs, variant_needs

SHARD = 24 << 20  # bytes, within the file limits of content delivery networks


def save(bundle: Bundle, path: Any) -> None:
    """Write one file, completely or not at all."""
    write(path, to_bytes(bundle))


def to_bytes(bundle: Bundle) -> bytes:
    """Return the bytes of the file."""
    blobs = _Blobs()
    kernels: dict[Kernel, int] = {}
    variants = [
        {"target": _plain(target), "methods": [_method(o, kernels, blobs) for o in methods.values()]}
        for target, methods in zip(bundle.targets, bundle.methods, strict=True)
    ]
    document = {"format": FORMAT, "version": VERSION, "file": _file(bundle), "variants": variants}
    text = _json(document | {"kernels": [_plain(k) for k in kernels], "blobs": blobs.places})
    head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return b"".join([head, bytes(-len(head) % ALIGN), *_stream(blobs)])


def save_web(bundle: Bundle, folder: Any) -> list[Path]:
    """Write what a browser fetches, `bundle.json`, `variant-0.json`, …, `shard-000.bin`, …, and return the paths."""
    blobs = _Blobs()
    variants: list[dict[str, Any]] = []
    names: dict[bytes, str] = {}  # targets with equal contents share a file
    for target, methods in zip(bundle.targets, bundle.methods, strict=True):
        kernels: dict[Kernel, int] = {}
        # A browser has no NumPy for exact calls.
        records = [_method(o, kernels, blobs, exact=False) for o in methods.values()]
        buffers = Buffers(blobs.places)
        for method, record in zip(methods.values(), records, strict=True):
            record |= method_needs(method)
            for plan, plan_record in zip(method.plans, record["plans"], strict=True):
                plan_record |= buffers.plan(plan, plan_record)
        host = not all(record["direct"] for record in records)
        sizes = not all(plan["fixed"] for record in records for plan in record["plans"])
        layouts = Layouts()
        shared = {"kernels": [_plain(k) | layouts.kernel(k) for k in kernels], "layouts": layouts.all}
        text = _json(shared | {"host": host, "sizes": sizes, "buffers": buffers.all, "methods": records})
        file = _listed(names.setdefault(text, f"variant-{len(names)}.json"), text)
        head = {"target": _plain(target) | {"name": target.name}, "file": file}
        variants.append(head | variant_needs(target, methods.values()))
    data = b"".join(_stream(blobs))
    data += bytes(-len(data) % ALIGN)  # GPU buffers are written in words of 4 bytes
    shards = {f"shard-{k // SHARD:03}.bin": data[k : k + SHARD] for k in range(0, len(data), SHARD)}
    manifest = {"format": FORMAT, "version": WEB_VERSION, "file": _file(bundle), "blobs": blobs.places}
    manifest |= {"shards": [_listed(name, shard) for name, shard in shards.items()], "variants": variants}
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    files = {name: text for text, name in names.items()} | shards
    files[MANIFEST] = _json(manifest)  # last: a folder with a manifest is complete
    for name, content in files.items():
        write(path / name, content)
    return [path / name for name in files]


def _listed(name: str, content: bytes) -> list[Any]:
    return [name, len(content), hashlib.sha256(content).hexdigest()]


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


class _Blobs:
    """Blobs for the end of the file, equal ones stored once."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.places: list[list[int]] = []
        self._known: dict[bytes, int] = {}
        self._end = 0

    def add(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        key = hashlib.sha256(view).digest() + len(view).to_bytes(8, "little")
        if key not in self._known:
            self._known[key] = len(self.parts)
            start = -(-self._end // ALIGN) * ALIGN
            self.parts.append(view)
            self.places.append([start, len(view)])
            self._end = start + len(view)
        return self._known[key]


def _stream(blobs: _Blobs) -> Iterator[bytes | memoryview]:
    end = 0
    for part, (start, nbytes) in zip(blobs.parts, blobs.places, strict=True):
        yield bytes(start - end)
        yield part
        end = start + nbytes


def _file(bundle: Bundle) -> dict[str, Any]:
    file = bundle.file
    return {"nbytes": file.nbytes, "version": file.version, "methods": [_signature(m) for m in file.methods]}


def _signature(method: FileMethod) -> dict[str, Any]:
    """Return the inputs, the outputs and the named tensors of a method."""
    named = [v for v in method.values if isinstance(v, FileTensor) and v.name is not None]
    return {
        "name": method.name,
        "inputs": [_value(method.values[k]) for k in method.inputs],
        "outputs": [_value(method.values[k]) for k in method.outputs],
        "named": [_value(v) for v in named],
        "input_tree": method.input_tree,
        "output_tree": method.output_tree,
    }


def _value(value: Any) -> Any:
    if isinstance(value, FileTensor):
        return {"tensor": {name: _plain(getattr(value, name)) for name in TENSOR_FIELDS}}
    for name, kind in LISTS.items():
        if isinstance(value, kind):
            return {name: [_plain(x) for x in value.items]}
    return _plain(value)


def _method(method: CompiledMethod, kernels: dict[Kernel, int], blobs: _Blobs, *, exact: bool = True) -> dict[str, Any]:
    slots: dict[Var, int] = {}

    def operand(o: Any) -> Any:
        if isinstance(o, Var):
            return {"slot": slots.setdefault(o, len(slots))}
        return [operand(x) for x in o] if isinstance(o, tuple) else _plain(o)

    def item(i: Item) -> dict[str, Any]:
        if isinstance(i, Run):
            run = {"run": i.plan, "inputs": operand(i.inputs), "outputs": operand(i.outputs), "read": list(i.read)}
            return run | ({"exact": [item(h) for h in i.exact]} if i.exact and exact else {})
        match i.instruction:
            case Call(op, args, outs, where):
                call = {"call": op, "args": operand(args), "outs": operand(outs), "where": where}
                return call | {"by_size": i.by_size, "by_shape": i.by_shape}
            case Move(source, target):
                return {"move": operand(source), "target": operand(target)}
            case Jump(condition, target):
                return {"jump": operand(condition), "target": target}

    record = {
        "name": method.name,
        "inputs": operand(method.inputs),
        "outputs": operand(method.outputs),
        "input_tree": method.input_tree,
        "output_tree": method.output_tree,
        "items": [item(i) for i in method.items],
        "plans": [_plan(p, kernels, blobs) for p in method.plans],
        "states": operand(method.states),
        "kept": operand(method.kept),
        "given": operand(method.given),
    }
    return record | {"slots": [_slot(v, blobs) for v in slots]}


def _slot(v: Var, blobs: _Blobs) -> dict[str, Any]:
    record = {"name": v.name, "dtype": _plain(v.dtype), "sizes": list(v.sizes), "dynamic": v.dynamic, "kind": v.kind}
    if v.data is not None and (v.kind == "constant" or np.any(v.data)):  # a state of zeros is not stored
        record["data"] = blobs.add(np.ascontiguousarray(v.data).reshape(-1).view(np.uint8).data)
    if v.initial is not None:
        record["initial"] = _plain(v.initial)
    return record


def _plan(plan: Plan, kernels: dict[Kernel, int], blobs: _Blobs) -> dict[str, Any]:
    return {
        "name": plan.name,
        "buffers": [
            _plain(Buffer(b.name, b.nbytes, b.role, None if b.blob is None else blobs.add(plan.blobs[b.blob])))
            for b in plan.buffers
        ],
        "kernels": [kernels.setdefault(k, len(kernels)) for k in plan.kernels],
        "inputs": _plain(plan.inputs),
        "families": _plain(plan.families),
        "copies": _plain(plan.copies),
        "rows": [[op, a, b] for op, a, b in plan.rows],
        "params": [blobs.add(image) for image in plan.params],
    }


def _plain(value: Any) -> Any:
    """Return a value as plain JSON."""
    if isinstance(value, Expr):
        return [value.row]
    if isinstance(value, DType):
        return value.value
    if isinstance(value, ARRAYS):
        return [_plain(getattr(value, f.name)) for f in fields(value)]
    if is_dataclass(value):
        record: dict[str, Any] = {}
        for f in fields(value):
            v = getattr(value, f.name)
            if f.default is MISSING or v != f.default or type(v) is not type(f.default):
                moved = isinstance(value, Moved) and f.name == "args"
                record[f.name] = [_argument(a) for a in v] if moved else _plain(v)
        return record
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _argument(value: Any) -> Any:
    """Return an argument of a `Moved`, where a tuple must differ from a number that a runner computes."""
    return {"tuple": [_argument(v) for v in value]} if isinstance(value, tuple) else _plain(value)
