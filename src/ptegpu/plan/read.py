"""The reader of bundles, which checks the type of every field and the range of every index."""

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
from ..format import FileMethod as FileMethod
from ..format import ProgramFile as File
from ..format.pte import FileTensor as FileTensor
from ..format.source import open_source
from ..limits import copying, has_read
from . import bundle as layout
from .bundle import ALIGN, HEAD, MAGIC, Bundle, damaged
from .fields import Record, literal
from .method import Call, CompiledMethod, Host, Item, Jump, Move, Run, Var
from .plan import Buffer, Copy, Family, Input, Kernel, Plan
from .target import Target
from .verify import verify

Kind = Literal["temp", "input", "constant", "state"]


def load(source: Any) -> Bundle:
    """Return the bundle in a file, a folder or bytes; raise InvalidProgram for anything else."""
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
        document = _parse(text, layout.VERSION)
        reader = _BundleReader(document, data[min(len(data), start + -start % ALIGN) :])
        kernels = document.field("kernels", tuple[Kernel, ...])
        for variant in document.records("variants"):
            reader.variant(variant, variant.field("target", Target), kernels)
        return reader.bundle(label)
    except InvalidProgram as e:
        raise InvalidProgram(str(e), path=label) if label and not str(e).startswith(label) else e from None


def _load_web(folder: Path) -> Bundle:
    from .web import memory_needs

    document = _parse(read(folder / layout.MANIFEST, InvalidProgram), layout.WEB_VERSION)
    shards: dict[str, bytes] = {}
    for listed in document.items("shards"):
        part = _part(folder, listed)
        if listed[0] in shards:
            damaged(f"{listed[0]} is listed twice")
        shards[listed[0]] = part
    has_read(sum(map(len, shards.values())))
    reader = _BundleReader(document, memoryview(b"".join(shards.values())))
    for head in document.records("variants"):
        variant = Record(_json(_part(folder, head.values.get("file"))), head.where)
        for kernel in variant.records("kernels"):
            for name in ("layout", "enable"):  # for browsers
                kernel.values.pop(name, None)
        kernels = variant.field("kernels", tuple[Kernel, ...])
        methods = reader.variant(variant, head.field("target", Target), kernels)
        if head.values.get("bytes") != memory_needs(methods.values()):
            damaged(f"{head.where} lists other memory needs than its plans have")
    return reader.bundle(str(folder))


def _part(folder: Path, listed: Any) -> bytes:
    """Return the content of a listed file, after checking its size and digest."""
    match listed:
        case [str(name), int(nbytes), str(digest)] if Path(name).name == name and name:
            other = f"{name} is not the file that {layout.MANIFEST} lists"
            try:
                content = read(folder / name, InvalidProgram, max(nbytes, 0))
            except InvalidProgram:
                damaged(other)
            except (OSError, ValueError):
                damaged(f"{name} is missing")
            if len(content) != nbytes or hashlib.sha256(content).hexdigest() != digest:
                damaged(other)
            return content
    damaged("its list of files is wrong")


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        damaged(f"invalid JSON: {str(e)[:80]}")


def _parse(text: bytes, version: int) -> Record:
    document = _json(text)
    if not isinstance(document, dict) or document.get("format") != layout.FORMAT:
        raise InvalidProgram("not a ptegpu bundle")
    if document.get("version") != version:
        problem = f"the bundle has format version {str(document.get('version'))[:20]}, this ptegpu reads {version}"
        raise InvalidProgram(f"{problem}: compile it again")
    return Record(document)


class _BundleReader:
    """Reads the program's signatures and the data at once, and variants one by one."""

    def __init__(self, document: Record, data: memoryview) -> None:
        self.blobs: list[memoryview] = []
        for place in document.items("blobs"):
            match place:
                case [int(start), int(nbytes)] if 0 <= start <= start + nbytes <= len(data) and type(start) is int:
                    self.blobs.append(data[start : start + nbytes])
                case _:
                    damaged("it refers to bytes that it does not have")
        file = document.record("file")
        self.signatures = tuple(map(_read_signature, file.records("methods")))
        self.numbers = [file.field(name, int) for name in ("nbytes", "version")]
        self.targets: list[Target] = []
        self.methods: list[dict[str, CompiledMethod]] = []

    def variant(self, variant: Record, target: Target, kernels: tuple[Kernel, ...]) -> dict[str, CompiledMethod]:
        methods: dict[str, CompiledMethod] = {}
        constants: dict[str, Buffer] = {}
        for record in variant.records("methods"):
            method = _CompiledMethodReader(record, kernels, self.blobs).method()
            if method.name in methods:
                damaged(f"it has two methods {method.name}")
            methods[method.name] = method
            for b in (b for p in method.plans for b in p.buffers if b.role == "constant"):
                if constants.setdefault(b.name, b) != b:
                    damaged(f"the constant {b.name} is not the same in two plans")
        self.targets.append(target)
        self.methods.append(methods)
        return methods

    def bundle(self, path: str | None) -> Bundle:
        if not self.targets:
            damaged("it has no targets")
        file = File(path, self.numbers[0], self.numbers[1], self.signatures, {})
        return Bundle(file, tuple(self.targets), tuple(self.methods))


def _read_signature(record: Record) -> FileMethod:
    values: list[Any] = []
    places = []
    for name in ("inputs", "outputs", "named"):
        listed = record.items(name)
        places.append(tuple(range(len(values), len(values) + len(listed))))
        values += [_read_value(v, f"{record.where}.{name}") for v in listed]
    name, *trees = (record.field(name, str) for name in ("name", "input_tree", "output_tree"))
    return FileMethod(name, tuple(values), places[0], places[1], (), (), *trees)


def _read_value(value: Any, where: str) -> Any:
    match value:
        case {"tensor": dict(t)}:
            if set(t) != set(layout.TENSOR_FIELDS):
                damaged(f"{where} is not a tensor")
            hints, record = get_type_hints(FileTensor), Record(t, where)
            fields = {name: record.field(name, hints[name]) for name in layout.TENSOR_FIELDS}
            if not all(0 <= n < 2**48 for n in fields["sizes"]) or len(fields["sizes"]) > 64:
                damaged(f"{where} is not a tensor")
            return FileTensor(**fields)
        case dict(item) if len(item) == 1 and next(iter(item)) in layout.LISTS:
            (name,) = item
            return layout.LISTS[name](tuple(literal(x, where) for x in Record(item, where).items(name)))
    return literal(value, where)


class _CompiledMethodReader:
    def __init__(self, record: Record, kernels: tuple[Kernel, ...], blobs: list[memoryview]) -> None:
        self.record, self.kernels, self.blobs, self.where = record, kernels, blobs, record.where
        self.slots = [self.slot(s) for s in record.records("slots")]

    def method(self) -> CompiledMethod:
        record, where = self.record, self.where
        name, *trees = (record.field(name, str) for name in ("name", "input_tree", "output_tree"))
        plans = tuple(self.plan(p) for p in record.records("plans"))
        listed = record.records("items")
        items = tuple(self.item(i, plans, len(listed)) for i in listed)
        inputs, outputs = (self.operand(record.items(name)) for name in ("inputs", "outputs"))
        states, kept, given = (self.vars(record.items(name)) for name in ("states", "kept", "given"))
        if any(v.dtype is None for v in states):
            damaged(f"{where} has a state that is not a tensor")
        early = [i for i in items if isinstance(i, Host) and i.by_size]
        results = {v for i in early if isinstance(i.instruction, Call) for v in i.instruction.outs}
        if list(items[: len(early)]) != early or not results.issuperset(kept):
            damaged(f"{where} keeps slots that its first items do not write")
        return CompiledMethod(name, inputs, outputs, trees[0], trees[1], items, plans, states, kept, given)

    def slot(self, record: Record) -> Var:
        name, dtype = record.field("name", str), record.field("dtype", DType | None)
        sizes, kind = record.field("sizes", tuple[int, ...]), record.field("kind", Kind)
        if len(sizes) > 64 or min(sizes, default=0) < 0 or math.prod(n or 1 for n in sizes) >= 2**48:
            damaged(f"the slot {name[:40]} has the sizes {list(sizes)[:9]}")
        if dtype is not None and not dtype.runs:
            damaged(f"the slot {name[:40]} has dtype {dtype}")
        data = None
        if record.values.get("data") is not None:
            blob = self.blob(record.values["data"])
            if dtype is None or len(blob) != math.prod(sizes) * dtype.size:
                damaged(f"the slot {name[:40]} does not have the size of its data")
            data = np.frombuffer(blob, np.uint16 if dtype is DType.BF16 else dtype.numpy).reshape(sizes)
        elif kind == "constant" and dtype is not None and math.prod(sizes):
            damaged(f"the constant {name[:40]} has no data")
        initial = literal(record.values.get("initial"), f"{record.where}.initial")
        return Var(name, dtype, sizes, record.field("dynamic", bool), kind, data, initial)

    def blob(self, k: Any) -> memoryview:
        if type(k) is not int or not 0 <= k < len(self.blobs):
            damaged(f"{self.where} refers to bytes that it does not have")
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

    def vars(self, listed: list[Any]) -> tuple[Var, ...]:
        slots = self.operand(listed)
        if not all(isinstance(v, Var) for v in slots):
            damaged(f"{self.where} has a number instead of a slot")
        return slots  # type: ignore[no-any-return]

    def item(self, record: Record, plans: tuple[Plan, ...], count: int) -> Item:
        values = record.values
        if "run" in values:
            plan = record.field("run", int)
            if not 0 <= plan < len(plans):
                damaged(f"{self.where} has no plan {plan}")
            exact = [self.item(i, (), 0) for i in record.records("exact")] if "exact" in values else []
            calls = tuple(i for i in exact if isinstance(i, Host) and isinstance(i.instruction, Call))
            if len(calls) < len(exact):
                damaged(f"{self.where} has an exact item that is not a call")
            inputs, outputs = (self.vars(record.items(name)) for name in ("inputs", "outputs"))
            run = Run(plan, inputs, outputs, record.field("read", tuple[int, ...]), calls)
            self.check_run(run, plans[plan])
            return run
        by_size, by_shape = (record.field(name, bool, False) for name in ("by_size", "by_shape"))
        if "call" in values:
            op, where = record.field("call", str), record.field("where", str)
            call = Call(op, self.operand(record.items("args")), self.vars(record.items("outs")), where)
            return Host(call, by_size, by_shape)
        if "move" in values:
            source, slot = self.operand(values["move"]), self.operand(values.get("target"))
            if not isinstance(slot, Var) or slot.dtype is not getattr(source, "dtype", None):
                damaged(f"{self.where} moves a value to a slot of another type")
            return Host(Move(source, slot))
        target = record.field("target", int)
        if "jump" not in values or not 0 <= target <= count:
            damaged(f"{self.where} has an invalid item")
        return Host(Jump(self.operand(values["jump"]), target))

    def check_run(self, run: Run, plan: Plan) -> None:
        """Raise InvalidProgram unless the slots of a run fit the inputs and outputs of its plan."""
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
            damaged(f"{self.where} runs plan {plan.name} with slots that do not fit it")

    def plan(self, record: Record) -> Plan:
        kernels = []
        for k in record.items("kernels"):
            if type(k) is not int or not 0 <= k < len(self.kernels):
                damaged(f"{record.where} has no kernel {k}")
            kernels.append(self.kernels[k])
        buffers = record.field("buffers", tuple[Buffer, ...])
        rows = []
        for row in record.items("rows"):
            match row:
                case [str(op), int() | float() as a, int() | float() as b] if not isinstance(a, bool | NoneType):
                    rows.append((op, a, b))
                case _:
                    damaged(f"{record.where}.rows has an invalid row")
        name, inputs = record.field("name", str), record.field("inputs", tuple[Input, ...])
        families, copies = record.field("families", tuple[Family, ...]), record.field("copies", tuple[Copy, ...])
        params = [self.blob(k) for k in record.items("params")]
        copying(sum(map(len, params)))
        images = tuple(map(bytes, params))
        plan = Plan(name, buffers, tuple(kernels), inputs, families, copies, tuple(rows), images, self.blobs)
        verify(plan)
        return plan
