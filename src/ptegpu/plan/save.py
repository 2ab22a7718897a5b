"""Bundles as files: one for Python, which is mapped and not copied; JSON and shards for the web.

The file is a head (a magic word, the length and the SHA-256 of the JSON), the JSON, and the bytes of constants, states
and parameters, each at a multiple of 64. The JSON holds everything else; in it, kernels and bytes occur once, whoever
uses them. A dataclass is an object without the fields that have their defaults (or a list of all, where there are
many), a number that a runner computes is `[row]`, a slot is `{"slot": k}`. Equal bundles give equal bytes. Reading
proves the kind of every field and every index.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram
from ..files import write
from ..format import Method as FileMethod
from ..format import Program as File
from ..format.pte import BoolList, FloatList, IntList, TensorList
from ..format.pte import Tensor as FileTensor
from ..format.source import open_source
from ..graph.linear import Call, Jump, Move, Var
from .bundle import Bundle, Host, Item, Outer, Run
from .plan import Binding, Buffer, Choice, Copy, Dispatch, Expr, Kernel, Moved, Patch, Plan
from .prove import damaged, prove
from .target import Target

MAGIC = b"ptegpu\x00B"
FORMAT, VERSION = "ptegpu-bundle", 1
HEAD = len(MAGIC) + 8 + 32
ALIGN = 64
SHARD = 24 << 20  # bytes: what content delivery networks take
MANIFEST = "bundle.json"
ARRAYS = (Binding, Patch, Dispatch, Choice, Copy)  # of which there are many: lists of their fields
_LISTS: dict[str, Any] = {"ints": IntList, "floats": FloatList, "bools": BoolList, "tensors": TensorList}


def is_bundle(source: Any) -> bool:
    """Whether a path or bytes begin as a bundle does; a folder, whether it has a manifest."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(memoryview(source)[: len(MAGIC)]) == MAGIC
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    try:
        if path.is_dir():
            return (path / MANIFEST).is_file()
        if not path.is_file():
            return False
        with path.open("rb") as f:
            return f.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def save(bundle: Bundle, path: Any) -> None:
    """Write one file, whole or not at all."""
    write(path, to_bytes(bundle))


def to_bytes(bundle: Bundle) -> bytes:
    """The file's bytes."""
    text, blobs = _document(bundle)
    head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return b"".join([head, bytes(-len(head) % ALIGN), *_stream(blobs)])


def save_web(bundle: Bundle, folder: Any) -> list[Path]:
    """Write `bundle.json` and `shard-000.bin`, …: what a browser fetches. Returns the files."""
    text, blobs = _document(bundle)
    data = b"".join(_stream(blobs))
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    shards = [data[k : k + SHARD] for k in range(0, len(data), SHARD)]
    names = [f"shard-{k:03}.bin" for k in range(len(shards))]
    listed = [[name, len(s), hashlib.sha256(s).hexdigest()] for name, s in zip(names, shards, strict=True)]
    document = json.loads(text) | {"shards": listed}
    for name, shard in zip(names, shards, strict=True):
        write(target / name, shard)
    write(target / MANIFEST, json.dumps(document, separators=(",", ":")).encode())
    return [target / name for name in (MANIFEST, *names)]


def load(source: Any) -> Bundle:
    """The bundle in a file, a folder or bytes; InvalidProgram, saying what is wrong, if it is none."""
    label = None if isinstance(source, bytes | bytearray | memoryview) else os.fspath(source)
    try:
        if label is not None and Path(label).is_dir():
            return _load_web(Path(label))
        data, _ = open_source(source, name=None, wanted="a ptegpu bundle")
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise InvalidProgram("not a ptegpu bundle")
        length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
        if len(data) < HEAD or length > len(data) - HEAD:
            damaged("it ends too early")
        text = bytes(data[HEAD : HEAD + length])
        if hashlib.sha256(text).digest() != bytes(data[HEAD - 32 : HEAD]):
            damaged("its checksum is wrong")
        start = HEAD + length
        return _bundle(_parse(text), data[min(len(data), start + -start % ALIGN) :], label)
    except InvalidProgram as e:
        raise InvalidProgram(str(e), path=label) if label and not str(e).startswith(label) else e from None


def _load_web(folder: Path) -> Bundle:
    document = _parse((folder / MANIFEST).read_bytes())
    parts = []
    for listed in _list(document.pop("shards", None), "shards"):
        match listed:
            case [str(name), int(nbytes), str(digest)] if Path(name).name == name and name:
                try:
                    part = (folder / name).read_bytes()
                except (OSError, ValueError):
                    damaged(f"{name} is missing")
                if len(part) != nbytes or hashlib.sha256(part).hexdigest() != digest:
                    damaged(f"{name} is not the shard that it should be")
                parts.append(part)
            case _:
                damaged("its list of shards is wrong")
    return _bundle(document, memoryview(b"".join(parts)), str(folder))


def _parse(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        damaged(f"no JSON: {str(e)[:80]}")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidProgram("not a ptegpu bundle")
    if document.get("version") != VERSION:
        found = str(document.get("version"))[:20]
        raise InvalidProgram(f"the bundle has format version {found}, this ptegpu reads {VERSION}: compile it again")
    return document


# Writing


class _Blobs:
    """Bytes that are stored once, whoever uses them."""

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


def _document(bundle: Bundle) -> tuple[bytes, _Blobs]:
    blobs = _Blobs()
    kernels: dict[Kernel, int] = {}
    made = [
        {"target": _plain(target), "methods": [_outer(o, kernels, blobs) for o in methods.values()]}
        for target, methods in zip(bundle.targets, bundle.methods, strict=True)
    ]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "file": {
            "nbytes": bundle.file.nbytes,
            "version": bundle.file.version,
            "methods": [_ends(m) for m in bundle.file.methods],
        },
        "variants": made,
        "kernels": [_plain(k) for k in kernels],
        "blobs": blobs.places,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(), blobs


def _ends(method: FileMethod) -> dict[str, Any]:
    """What a method tells of itself: its inputs, its outputs, the tensors that have names."""
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
        kept = ("dtype", "sizes", "dim_order", "dynamic", "bounded", "planned", "name")
        return {"tensor": {name: _plain(getattr(value, name)) for name in kept}}
    for name, kind in _LISTS.items():
        if isinstance(value, kind):
            return {name: [_plain(x) for x in value.items]}
    return _plain(value)


def _outer(outer: Outer, kernels: dict[Kernel, int], blobs: _Blobs) -> dict[str, Any]:
    slots: dict[Var, int] = {}

    def operand(o: Any) -> Any:
        if isinstance(o, Var):
            return {"slot": slots.setdefault(o, len(slots))}
        return [operand(x) for x in o] if isinstance(o, tuple) else _plain(o)

    def item(i: Item) -> dict[str, Any]:
        if isinstance(i, Run):
            return {"run": i.plan, "inputs": operand(i.inputs), "outputs": operand(i.outputs), "read": list(i.read)}
        how = {"by_size": i.by_size, "by_shape": i.by_shape}
        match i.instruction:
            case Call(op, args, outs, where):
                return {"call": op, "args": operand(args), "outs": operand(outs), "where": where} | how
            case Move(source, target):
                return {"move": operand(source), "target": operand(target)}
            case Jump(condition, target):
                return {"jump": operand(condition), "target": target}

    found = {
        "name": outer.name,
        "inputs": operand(outer.inputs),
        "outputs": operand(outer.outputs),
        "input_tree": outer.input_tree,
        "output_tree": outer.output_tree,
        "items": [item(i) for i in outer.items],
        "plans": [_plan(p, kernels, blobs) for p in outer.plans],
        "states": operand(outer.states),
        "kept": operand(outer.kept),
        "given": operand(outer.given),
    }
    return found | {"slots": [_slot(v, blobs) for v in slots]}


def _slot(v: Var, blobs: _Blobs) -> dict[str, Any]:
    found = {"name": v.name, "dtype": _plain(v.dtype), "sizes": list(v.sizes), "dynamic": v.dynamic, "kind": v.kind}
    if v.data is not None and (v.kind == "constant" or np.any(v.data)):  # a state of zeros is not stored
        found["data"] = blobs.add(np.ascontiguousarray(v.data).reshape(-1).view(np.uint8).data)
    if v.initial is not None:
        found["initial"] = _plain(v.initial)
    return found


def _plan(plan: Plan, kernels: dict[Kernel, int], blobs: _Blobs) -> dict[str, Any]:
    buffers = []
    for b in plan.buffers:
        data = None if b.blob is None else plan.blobs[b.blob]
        if data is not None and b.role == "state" and not np.any(np.frombuffer(data, np.uint8)):
            data = None
        buffers.append(_plain(Buffer(b.name, b.nbytes, b.role, None if data is None else blobs.add(data))))
    return {
        "name": plan.name,
        "buffers": buffers,
        "kernels": [kernels.setdefault(k, len(kernels)) for k in plan.kernels],
        "inputs": _plain(plan.inputs),
        "families": _plain(plan.families),
        "copies": _plain(plan.copies),
        "rows": [[op, a, b] for op, a, b in plan.rows],
        "params": [blobs.add(image) for image in plan.params],
    }


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Expr):
        return [value.row]
    if isinstance(value, DType):
        return value.value
    if isinstance(value, ARRAYS):
        return [_plain(getattr(value, f.name)) for f in fields(value)]
    if is_dataclass(value):
        found: dict[str, Any] = {}
        for f in fields(value):
            v = getattr(value, f.name)
            if f.default is MISSING or v != f.default or type(v) is not type(f.default):
                moved = isinstance(value, Moved) and f.name == "args"
                found[f.name] = [_argument(a) for a in v] if moved else _plain(v)
        return found
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _argument(value: Any) -> Any:
    """Of an operator that moves an index: a tuple must be told from a number that a runner computes."""
    return {"tuple": [_argument(v) for v in value]} if isinstance(value, tuple) else _plain(value)


# Reading


def _bundle(document: dict[str, Any], data: memoryview, path: str | None) -> Bundle:
    blobs = []
    for place in _list(document.get("blobs"), "blobs"):
        match place:
            case [int(start), int(nbytes)] if 0 <= start <= start + nbytes <= len(data) and type(start) is int:
                blobs.append(data[start : start + nbytes])
            case _:
                damaged("it refers to bytes that it does not have")
    kernels = _read(tuple[Kernel, ...], document.get("kernels"), "kernels")
    told = _object(document.get("file"), "file")
    ends = [_read_ends(m, f"methods[{k}]") for k, m in enumerate(_list(told.get("methods"), "methods"))]
    numbers = [_read(int, told.get(name), f"file.{name}") for name in ("nbytes", "version")]
    targets, methods = [], []
    for k, variant in enumerate(_list(document.get("variants"), "variants")):
        where = f"variants[{k}]"
        found = _object(variant, where)
        targets.append(_read(Target, found.get("target"), f"{where}.target"))
        made: dict[str, Outer] = {}
        constants: dict[str, Buffer] = {}
        for j, outer in enumerate(_list(found.get("methods"), f"{where}.methods")):
            read = _Reader(_object(outer, f"{where}.methods[{j}]"), kernels, blobs, f"{where}.methods[{j}]").outer()
            if read.name in made:
                damaged(f"it has two methods {read.name}")
            made[read.name] = read
            for b in (b for p in read.plans for b in p.buffers if b.role == "constant"):
                if constants.setdefault(b.name, b) != b:
                    damaged(f"the constant {b.name} is not the same in two plans")
        methods.append(made)
    if not targets:
        damaged("it is for no target")
    file = File(path, numbers[0], numbers[1], tuple(ends), {})
    return Bundle(file, tuple(targets), tuple(methods))


def _read_ends(m: Any, where: str) -> FileMethod:
    found = _object(m, where)
    values: list[Any] = []
    places = {}
    for name in ("inputs", "outputs", "named"):
        given = _list(found.get(name), f"{where}.{name}")
        places[name] = tuple(range(len(values), len(values) + len(given)))
        values += [_read_value(v, f"{where}.{name}") for v in given]
    texts = [_read(str, found.get(name), f"{where}.{name}") for name in ("name", "input_tree", "output_tree")]
    return FileMethod(texts[0], tuple(values), places["inputs"], places["outputs"], (), (), texts[1], texts[2], ())


def _read_value(value: Any, where: str) -> Any:
    match value:
        case {"tensor": dict(t)}:
            hints: dict[str, Any] = {
                "dtype": DType,
                "sizes": tuple[int, ...],
                "dim_order": tuple[int, ...],
                "dynamic": bool,
            }
            hints |= {"bounded": bool, "planned": bool, "name": str | None}
            if set(t) != set(hints):
                damaged(f"{where} is no tensor")
            read = {name: _read(hint, t[name], f"{where}.{name}") for name, hint in hints.items()}
            if not all(0 <= n < 2**48 for n in read["sizes"]) or len(read["sizes"]) > 64:
                damaged(f"{where} is no tensor")
            return FileTensor(**read)
        case dict(one) if len(one) == 1 and next(iter(one)) in _LISTS:
            (name, items) = next(iter(one.items()))
            return _LISTS[name](tuple(_literal(x, where) for x in _list(items, where)))
    return _literal(value, where)


class _Reader:
    """One method."""

    def __init__(self, found: dict[str, Any], kernels: Any, blobs: list[memoryview], where: str) -> None:
        self.found, self.kernels, self.blobs, self.where = found, kernels, blobs, where
        self.slots = [self.slot(s) for s in _list(found.get("slots"), f"{where}.slots")]

    def slot(self, s: Any) -> Var:
        found = _object(s, f"{self.where}.slots")
        name = _read(str, found.get("name"), "a slot's name")
        dtype = _read(DType | None, found.get("dtype"), "a slot's dtype")
        sizes = _read(tuple[int, ...], found.get("sizes"), "a slot's sizes")
        kind = _read(Literal["temp", "input", "constant", "state"], found.get("kind"), "a slot's kind")
        if len(sizes) > 64 or min(sizes, default=0) < 0 or math.prod(n or 1 for n in sizes) >= 2**48:
            damaged(f"the slot {name[:40]} has the sizes {list(sizes)[:9]}")
        if dtype is not None and not dtype.runs:
            damaged(f"the slot {name[:40]} is of {dtype}")
        data = None
        if found.get("data") is not None:
            blob = self.blob(found["data"])
            if dtype is None or len(blob) != math.prod(sizes) * dtype.size:
                damaged(f"the slot {name[:40]} is not of its data")
            held = np.uint16 if dtype is DType.BF16 else dtype.numpy
            data = np.frombuffer(blob, held).reshape(sizes)
        elif kind == "constant" and dtype is not None and math.prod(sizes):
            damaged(f"the constant {name[:40]} has no data")
        initial = None if found.get("initial") is None else _literal(found["initial"], "a slot's first value")
        return Var(name, dtype, sizes, _read(bool, found.get("dynamic"), "a slot"), kind, data, initial)

    def blob(self, k: Any) -> memoryview:
        if type(k) is not int or not 0 <= k < len(self.blobs):
            damaged(f"{self.where} refers to bytes that are not there")
        return self.blobs[k]

    def operand(self, o: Any, depth: int = 0) -> Any:
        match o:
            case {"slot": int(k)} if len(o) == 1 and type(k) is int:
                if not 0 <= k < len(self.slots):
                    damaged(f"{self.where} has no slot {k}")
                return self.slots[k]
            case list() if depth < 8:
                return tuple(self.operand(x, depth + 1) for x in o)
        return _literal(o, self.where)

    def vars(self, name: Any) -> tuple[Var, ...]:
        found = self.operand(_list(name, self.where))
        if not all(isinstance(v, Var) for v in found):
            damaged(f"{self.where} has a number where a slot must be")
        return found  # type: ignore[no-any-return]

    def outer(self) -> Outer:
        found, where = self.found, self.where
        name = _read(str, found.get("name"), f"{where}.name")
        plans = tuple(self.plan(p) for p in _list(found.get("plans"), f"{where}.plans"))
        given = _list(found.get("items"), f"{where}.items")
        items = tuple(self.item(i, plans, len(given)) for i in given)
        trees = [_read(str, found.get(n), f"{where}.{n}") for n in ("input_tree", "output_tree")]
        ends = [self.operand(_list(found.get(n), f"{where}.{n}")) for n in ("inputs", "outputs")]
        rest = [self.vars(found.get(n)) for n in ("states", "kept", "given")]
        if any(v.dtype is None for v in rest[0]):
            damaged(f"{where} has a state that is no tensor")
        early = [i for i in items if isinstance(i, Host) and i.by_size]
        made = {v for i in early if isinstance(i.instruction, Call) for v in i.instruction.outs}
        if list(items[: len(early)]) != early or not made.issuperset(rest[1]):
            damaged(f"{where} keeps what its first items do not make")
        return Outer(name, ends[0], ends[1], trees[0], trees[1], items, plans, rest[0], rest[1], rest[2])

    def item(self, i: Any, plans: tuple[Plan, ...], count: int) -> Item:
        found = _object(i, f"{self.where}.items")
        if "run" in found:
            plan = _read(int, found["run"], "an item's plan")
            if not 0 <= plan < len(plans):
                damaged(f"{self.where} has no plan {plan}")
            run = Run(
                plan,
                self.vars(found.get("inputs")),
                self.vars(found.get("outputs")),
                _read(tuple[int, ...], found.get("read"), "an item's outputs"),
            )
            self.fits(run, plans[plan])
            return run
        by_size, by_shape = (_read(bool, found.get(n, False), n) for n in ("by_size", "by_shape"))
        if "call" in found:
            op, where = (_read(str, found.get(n), f"an item's {n}") for n in ("call", "where"))
            args = self.operand(_list(found.get("args"), "an item's arguments"))
            return Host(Call(op, args, self.vars(found.get("outs")), where), by_size, by_shape)
        if "move" in found:
            source, target = self.operand(found["move"]), self.operand(found.get("target"))
            if not isinstance(target, Var) or target.dtype is not getattr(source, "dtype", None):
                damaged(f"{self.where} moves to what is no slot for it")
            return Host(Move(source, target))
        target = _read(int, found.get("target"), "the target of a jump")
        if "jump" not in found or not 0 <= target <= count:
            damaged(f"{self.where} has an item that does nothing")
        return Host(Jump(self.operand(found["jump"]), target))

    def fits(self, run: Run, plan: Plan) -> None:
        """The slots of a run are what its plan takes and gives."""
        sound = len(run.inputs) == len(plan.inputs)
        for v, i in zip(run.inputs, plan.inputs, strict=False):
            sound &= (v.dtype is None) == (i.dtype is None)
            sound &= v.dtype is None or (v.dtype.device is i.dtype and len(v.sizes) == len(i.shape))
        for family in plan.families:
            if family.refusal:
                continue
            sound &= len(family.outputs) == len(run.outputs)
            for v, o in zip(run.outputs, family.outputs, strict=False):
                dtype = getattr(o, "dtype", None)
                sound &= (v.dtype is None) == (dtype is None) and (v.dtype is None or v.dtype.device is dtype)
        sound &= all(0 <= k < len(run.outputs) for k in run.read)
        if not sound:
            damaged(f"{self.where} runs plan {plan.name} with slots that it does not take")

    def plan(self, p: Any) -> Plan:
        found = _object(p, f"{self.where}.plans")
        where = f"{self.where}.plan"
        kernels = []
        for k in _list(found.get("kernels"), f"{where}.kernels"):
            if type(k) is not int or not 0 <= k < len(self.kernels):
                damaged(f"{where} has no kernel {k}")
            kernels.append(self.kernels[k])
        buffers = _read(tuple[Buffer, ...], found.get("buffers"), f"{where}.buffers")
        rows = []
        for row in _list(found.get("rows"), f"{where}.rows"):
            match row:
                case [str(op), int() | float() as a, int() | float() as b] if not isinstance(a, bool | NoneType):
                    rows.append((op, a, b))
                case _:
                    damaged(f"{where}.rows has what is no row")
        hints = get_type_hints(Plan)
        read = {n: _read(hints[n], found.get(n), f"{where}.{n}") for n in ("name", "inputs", "families", "copies")}
        params = [self.blob(k) for k in _list(found.get("params"), f"{where}.params")]
        images = tuple(bytes(image) for image in params)
        plan = Plan(buffers=buffers, kernels=tuple(kernels), rows=tuple(rows), params=images, blobs=self.blobs, **read)
        prove(plan)
        return plan


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        damaged(f"{where} is no object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        damaged(f"{where} is no list")
    return value


def _literal(value: Any, where: str) -> Any:
    match value:
        case {"float": str(text)} if text in ("inf", "-inf", "nan"):
            return float(text)
        case None | bool() | int() | float() | str():
            return value
    damaged(f"{where} is {str(value)[:40]!r}")


def _read(kind: Any, value: Any, where: str) -> Any:
    """The value that `_plain` made this of, where a field is annotated with `kind`."""
    try:
        return _reader(kind)(value)
    except _Wrong as e:
        damaged(f"{where}{e}")


class _Wrong(Exception):
    """What is wrong with a value, after where it is."""


def _no(value: Any, what: str) -> NoReturn:
    raise _Wrong(f" is {str(value)[:40]!r}, {what}")


Reader: TypeAlias = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    parts, origin = get_args(kind), get_origin(kind)
    if kind is Expr:
        return _read_row
    if isinstance(kind, type) and is_dataclass(kind):
        return _array_reader(kind) if kind in ARRAYS else _object_reader(kind)
    if origin is tuple:
        return _tuple_reader(parts)
    if origin in (UnionType, Union):
        return _union_reader(parts)
    if origin is Literal or kind is DType:
        known = {v: v for v in parts} if origin is Literal else {d.value: d for d in DType}
        names = ", ".join(map(str, known))

        def choice(value: Any) -> Any:
            return known[value] if type(value) is str and value in known else _no(value, f"not one of {names}")

        return choice
    if kind is object:
        return _read_argument

    def scalar(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        _no(value, f"no {getattr(kind, '__name__', kind)}")

    return scalar


def _read_row(value: Any) -> Expr:
    if type(value) is list and len(value) == 1 and type(value[0]) is int:
        return Expr(value[0])
    _no(value, "no row")


def _array_reader(kind: Any) -> Reader:
    """A dataclass that is written as a list of its fields."""
    hints = get_type_hints(kind)
    readers = [(name, _reader(hint)) for name, hint in hints.items()]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            _no(value, f"not the {len(readers)} fields of a {kind.__name__}")
        found = []
        for (name, reader), v in zip(readers, value, strict=True):
            try:
                found.append(reader(v))
            except _Wrong as e:
                raise _Wrong(f".{name}{e}") from None
        return kind(*found)

    return read


def _object_reader(kind: Any) -> Reader:
    """A dataclass that is written as an object, without the fields that have their defaults."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    required = {f.name for f in fields(kind) if f.default is MISSING}

    def read(value: Any) -> Any:
        if type(value) is not dict or not required <= set(value) <= set(readers):
            _no(value, f"without the fields of a {kind.__name__}")
        found = {}
        for name, v in value.items():
            try:
                found[name] = readers[name](v)
            except _Wrong as e:
                raise _Wrong(f".{name}{e}") from None
        return kind(**found)

    return read


def _tuple_reader(parts: tuple[Any, ...]) -> Reader:
    repeated = parts[-1] is Ellipsis
    readers = [_reader(p) for p in parts if p is not Ellipsis]

    def read(value: Any) -> Any:
        if type(value) is not list or not (repeated or len(value) == len(readers)):
            _no(value, "no list" if repeated else f"no list of {len(readers)}")
        each = itertools.repeat(readers[0]) if repeated else readers
        return tuple([reader(v) for reader, v in zip(each, value, strict=False)])

    return read


def _union_reader(parts: tuple[Any, ...]) -> Reader:
    """An int or a row, a port or one of these, something or nothing."""
    none, row, whole = NoneType in parts, Expr in parts, int in parts
    rest = [_reader(p) for p in parts if p not in (NoneType, Expr, int)]

    def read(value: Any) -> Any:
        if (whole and type(value) is int) or (none and value is None):
            return value
        if row and type(value) is list:
            return _read_row(value)
        return rest[0](value) if len(rest) == 1 else _no(value, "nothing that it can be")

    return read


def _read_argument(value: Any, depth: int = 0) -> Any:
    """Of an operator that moves an index."""
    match value:
        case {"tuple": list(items)} if depth < 8:
            return tuple(_read_argument(x, depth + 1) for x in items)
        case [int()]:
            return _read_row(value)
    return _literal(value, "an argument")
