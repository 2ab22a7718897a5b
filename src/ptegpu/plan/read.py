"""Bundles read from files: the kind of every field and every index is proved, a bad one raises `InvalidProgram`."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_type_hints

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram
from ..files import read
from ..format import Method as FileMethod
from ..format import Program as File
from ..format.pte import Tensor as FileTensor
from ..format.source import open_source
from ..limits import copying, has_read
from .bundle import Bundle
from .fields import literal, read_field
from .layout import ALIGN, FORMAT, HEAD, LISTS, MAGIC, MANIFEST, VERSION, WEB_VERSION
from .method import Call, CompiledMethod, Host, Item, Jump, Move, Run, Var
from .plan import Buffer, Kernel, Plan
from .prove import damaged, prove
from .target import Target


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


def find_bundle(source: Any) -> Bundle | None:
    """Load the bundle in a path or in bytes; return None if it is another file."""
    return load(source) if is_bundle(source) else None


def load(source: Any) -> Bundle:
    """The bundle in a file, a folder or bytes; InvalidProgram, saying what is wrong, if it is none."""
    label = None if isinstance(source, bytes | bytearray | memoryview) else os.fspath(source)
    try:
        if label is not None and Path(label).is_dir():
            return _load_web(Path(label))
        data, _ = open_source(source, name=None, expected="a ptegpu bundle")
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise InvalidProgram("not a ptegpu bundle")
        length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
        if len(data) < HEAD or length > len(data) - HEAD:
            damaged("it ends too early")
        text = bytes(data[HEAD : HEAD + length])
        if hashlib.sha256(text).digest() != bytes(data[HEAD - 32 : HEAD]):
            damaged("its checksum is wrong")
        start = HEAD + length
        document = _parse(text, VERSION)
        reader = _Bundle(document, data[min(len(data), start + -start % ALIGN) :])
        kernels = _kernels(document, "kernels")
        for k, variant in enumerate(_list(document.get("variants"), "variants")):
            reader.variant(_object(variant, f"variants[{k}]"), kernels)
        return reader.bundle(label)
    except InvalidProgram as e:
        raise InvalidProgram(str(e), path=label) if label and not str(e).startswith(label) else e from None


def _load_web(folder: Path) -> Bundle:
    from .web import needed

    document = _parse(read(folder / MANIFEST, InvalidProgram), WEB_VERSION)
    shards: dict[str, bytes] = {}
    for listed in _list(document.get("shards"), "shards"):
        part = _part(folder, listed)
        if listed[0] in shards:
            damaged(f"{listed[0]} is listed twice")
        shards[listed[0]] = part
    has_read(sum(map(len, shards.values())))
    reader = _Bundle(document, memoryview(b"".join(shards.values())))
    for k, variant in enumerate(_list(document.get("variants"), "variants")):
        found = _object(variant, f"variants[{k}]")
        content = _object(_json(_part(folder, found.get("file"))), f"variants[{k}]")
        for kernel in _list(content.get("kernels"), f"variants[{k}].kernels"):
            for name in ("layout", "enable"):  # for browsers
                _object(kernel, f"variants[{k}].kernels").pop(name, None)
        made = reader.variant(content | {"target": found.get("target")}, _kernels(content, f"variants[{k}].kernels"))
        if found.get("bytes") != needed(made.values()):
            damaged(f"variants[{k}] does not say what it needs")
    return reader.bundle(str(folder))


def _part(folder: Path, listed: Any) -> bytes:
    """A file of the folder, which is what the head says of it."""
    match listed:
        case [str(name), int(nbytes), str(digest)] if Path(name).name == name and name:
            try:
                content = read(folder / name, InvalidProgram, max(nbytes, 0))
            except InvalidProgram:
                damaged(f"{name} is not the file that it should be")
            except (OSError, ValueError):
                damaged(f"{name} is missing")
            if len(content) != nbytes or hashlib.sha256(content).hexdigest() != digest:
                damaged(f"{name} is not the file that it should be")
            return content
    damaged("its list of files is wrong")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        damaged(f"no JSON: {str(e)[:80]}")


def _parse(text: bytes, version: int) -> dict[str, Any]:
    document = _json(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidProgram("not a ptegpu bundle")
    if document.get("version") != version:
        found = str(document.get("version"))[:20]
        raise InvalidProgram(f"the bundle has format version {found}, this ptegpu reads {version}: compile it again")
    return document


def _kernels(document: dict[str, Any], where: str) -> tuple[Kernel, ...]:
    return read_field(tuple[Kernel, ...], document.get("kernels"), where)  # type: ignore[no-any-return]


class _Bundle:
    """All but the variants, which are read one by one."""

    def __init__(self, document: dict[str, Any], data: memoryview) -> None:
        self.blobs: list[memoryview] = []
        for place in _list(document.get("blobs"), "blobs"):
            match place:
                case [int(start), int(nbytes)] if 0 <= start <= start + nbytes <= len(data) and type(start) is int:
                    self.blobs.append(data[start : start + nbytes])
                case _:
                    damaged("it refers to bytes that it does not have")
        told = _object(document.get("file"), "file")
        self.ends = [_read_ends(m, f"methods[{k}]") for k, m in enumerate(_list(told.get("methods"), "methods"))]
        self.numbers = [read_field(int, told.get(name), f"file.{name}") for name in ("nbytes", "version")]
        self.targets: list[Target] = []
        self.methods: list[dict[str, CompiledMethod]] = []

    def variant(self, found: dict[str, Any], kernels: tuple[Kernel, ...]) -> dict[str, CompiledMethod]:
        where = f"variants[{len(self.targets)}]"
        self.targets.append(read_field(Target, found.get("target"), f"{where}.target"))
        made: dict[str, CompiledMethod] = {}
        constants: dict[str, Buffer] = {}
        for j, listed in enumerate(_list(found.get("methods"), f"{where}.methods")):
            told = _object(listed, f"{where}.methods[{j}]")
            read = _Reader(told, kernels, self.blobs, f"{where}.methods[{j}]").method()
            if read.name in made:
                damaged(f"it has two methods {read.name}")
            made[read.name] = read
            for b in (b for p in read.plans for b in p.buffers if b.role == "constant"):
                if constants.setdefault(b.name, b) != b:
                    damaged(f"the constant {b.name} is not the same in two plans")
        self.methods.append(made)
        return made

    def bundle(self, path: str | None) -> Bundle:
        if not self.targets:
            damaged("it is for no target")
        file = File(path, self.numbers[0], self.numbers[1], tuple(self.ends), {})
        return Bundle(file, tuple(self.targets), tuple(self.methods))


def _read_ends(m: Any, where: str) -> FileMethod:
    found = _object(m, where)
    values: list[Any] = []
    places = {}
    for name in ("inputs", "outputs", "named"):
        given = _list(found.get(name), f"{where}.{name}")
        places[name] = tuple(range(len(values), len(values) + len(given)))
        values += [_read_value(v, f"{where}.{name}") for v in given]
    texts = [read_field(str, found.get(name), f"{where}.{name}") for name in ("name", "input_tree", "output_tree")]
    return FileMethod(texts[0], tuple(values), places["inputs"], places["outputs"], (), (), texts[1], texts[2])


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
            read = {name: read_field(hint, t[name], f"{where}.{name}") for name, hint in hints.items()}
            if not all(0 <= n < 2**48 for n in read["sizes"]) or len(read["sizes"]) > 64:
                damaged(f"{where} is no tensor")
            return FileTensor(**read)
        case dict(one) if len(one) == 1 and next(iter(one)) in LISTS:
            (name, items) = next(iter(one.items()))
            return LISTS[name](tuple(literal(x, where) for x in _list(items, where)))
    return literal(value, where)


class _Reader:
    """One method."""

    def __init__(self, found: dict[str, Any], kernels: Any, blobs: list[memoryview], where: str) -> None:
        self.found, self.kernels, self.blobs, self.where = found, kernels, blobs, where
        self.slots = [self.slot(s) for s in _list(found.get("slots"), f"{where}.slots")]

    def slot(self, s: Any) -> Var:
        found = _object(s, f"{self.where}.slots")
        name = read_field(str, found.get("name"), "a slot's name")
        dtype = read_field(DType | None, found.get("dtype"), "a slot's dtype")
        sizes = read_field(tuple[int, ...], found.get("sizes"), "a slot's sizes")
        kind = read_field(Literal["temp", "input", "constant", "state"], found.get("kind"), "a slot's kind")
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
        initial = None if found.get("initial") is None else literal(found["initial"], "a slot's first value")
        return Var(name, dtype, sizes, read_field(bool, found.get("dynamic"), "a slot"), kind, data, initial)

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
        return literal(o, self.where)

    def vars(self, name: Any) -> tuple[Var, ...]:
        found = self.operand(_list(name, self.where))
        if not all(isinstance(v, Var) for v in found):
            damaged(f"{self.where} has a number where a slot must be")
        return found  # type: ignore[no-any-return]

    def method(self) -> CompiledMethod:
        found, where = self.found, self.where
        name = read_field(str, found.get("name"), f"{where}.name")
        plans = tuple(self.plan(p) for p in _list(found.get("plans"), f"{where}.plans"))
        given = _list(found.get("items"), f"{where}.items")
        items = tuple(self.item(i, plans, len(given)) for i in given)
        trees = [read_field(str, found.get(n), f"{where}.{n}") for n in ("input_tree", "output_tree")]
        ends = [self.operand(_list(found.get(n), f"{where}.{n}")) for n in ("inputs", "outputs")]
        rest = [self.vars(found.get(n)) for n in ("states", "kept", "given")]
        if any(v.dtype is None for v in rest[0]):
            damaged(f"{where} has a state that is no tensor")
        early = [i for i in items if isinstance(i, Host) and i.by_size]
        made = {v for i in early if isinstance(i.instruction, Call) for v in i.instruction.outs}
        if list(items[: len(early)]) != early or not made.issuperset(rest[1]):
            damaged(f"{where} keeps what its first items do not make")
        return CompiledMethod(name, ends[0], ends[1], trees[0], trees[1], items, plans, rest[0], rest[1], rest[2])

    def item(self, i: Any, plans: tuple[Plan, ...], count: int) -> Item:
        found = _object(i, f"{self.where}.items")
        if "run" in found:
            plan = read_field(int, found["run"], "an item's plan")
            if not 0 <= plan < len(plans):
                damaged(f"{self.where} has no plan {plan}")
            run = Run(
                plan,
                self.vars(found.get("inputs")),
                self.vars(found.get("outputs")),
                read_field(tuple[int, ...], found.get("read"), "an item's outputs"),
                tuple(self.exact(h) for h in _list(found.get("exact", []), "an item's exact calls")),
            )
            self.fits(run, plans[plan])
            return run
        by_size, by_shape = (read_field(bool, found.get(n, False), n) for n in ("by_size", "by_shape"))
        if "call" in found:
            op, where = (read_field(str, found.get(n), f"an item's {n}") for n in ("call", "where"))
            args = self.operand(_list(found.get("args"), "an item's arguments"))
            return Host(Call(op, args, self.vars(found.get("outs")), where), by_size, by_shape)
        if "move" in found:
            source, target = self.operand(found["move"]), self.operand(found.get("target"))
            if not isinstance(target, Var) or target.dtype is not getattr(source, "dtype", None):
                damaged(f"{self.where} moves to what is no slot for it")
            return Host(Move(source, target))
        target = read_field(int, found.get("target"), "the target of a jump")
        if "jump" not in found or not 0 <= target <= count:
            damaged(f"{self.where} has an item that does nothing")
        return Host(Jump(self.operand(found["jump"]), target))

    def exact(self, h: Any) -> Host:
        """Return a call that stands in for a plan."""
        if "call" not in _object(h, f"{self.where}.items"):
            damaged(f"{self.where} has an exact item that is no call")
        call = self.item(h, (), 0)
        assert isinstance(call, Host)
        return call

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
        exact = [v for h in run.exact if isinstance(h.instruction, Call) for v in h.instruction.outs]
        sound &= not run.exact or set(exact).issuperset(run.outputs)
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
        buffers = read_field(tuple[Buffer, ...], found.get("buffers"), f"{where}.buffers")
        rows = []
        for row in _list(found.get("rows"), f"{where}.rows"):
            match row:
                case [str(op), int() | float() as a, int() | float() as b] if not isinstance(a, bool | NoneType):
                    rows.append((op, a, b))
                case _:
                    damaged(f"{where}.rows has what is no row")
        hints = get_type_hints(Plan)
        read = {n: read_field(hints[n], found.get(n), f"{where}.{n}") for n in ("name", "inputs", "families", "copies")}
        params = [self.blob(k) for k in _list(found.get("params"), f"{where}.params")]
        copying(sum(map(len, params)))
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
