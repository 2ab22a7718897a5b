"""Mutants of programs: files in which a few of the fields that the readers read are changed.

A number becomes another number, a reference points to another object of its kind, a list gets shorter or longer, a
field disappears, a name becomes another name. `seeds` are the original programs: models, and a delegate for a case of
each operator. `python -m tools.mutate` makes thousands of mutants.
"""

from __future__ import annotations

import math
import random
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.format import read_program
from ptegpu.format.container import SCALAR_TYPES
from ptegpu.format.delegate import DATA_TYPES, read_delegate
from ptegpu.format.flatbuffer import FlatTable
from ptegpu.format.ptd import read_data
from tests.cases import Problem, S, T
from tests.format.build import Table as Built
from tests.format.build import (
    Tables,
    Vector,
    delegate_blob,
    f64,
    i8,
    i32,
    i64,
    ids,
    program,
    table,
    text,
    u8,
    u32,
    u64,
    union,
)
from tests.format.test_pte import of, plan, tensor
from tests.sweep import judged, within

DATA = Path(__file__).parent / "data"
IN_DELEGATES = {dtype: code for code, dtype in DATA_TYPES.items()}
IN_PROGRAMS = {dtype: code for code, dtype in SCALAR_TYPES.items()}
INTS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    16,
    100,
    127,
    -1,
    -2,
    -9,
    255,
    2**16,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**62,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-45, 1e38, 1e308, math.inf, -math.inf, math.nan, 2.0**31)
MAX_INPUT = 1 << 22  # elements of an input
STEP_LIMIT = ptegpu.Limits(instructions=20_000)  # an endless loop is a valid program


@dataclass(frozen=True)
class Place:
    """A place that a reader read: a number of a `struct` code, or an offset to an object of a kind."""

    at: int  # in the file
    code: str
    kind: str = ""  # of an offset: the table and slot that contain it
    target: int = 0


@dataclass
class ParsedFile:
    """A file with the places that its reader read."""

    content: bytes
    places: list[Place] = field(default_factory=list)
    _alike: dict[tuple[str, str], list[Place]] = field(default_factory=dict)

    def alike(self, code: str, kind: str = "") -> list[Place]:
        """Return the places of a code, or the offsets of a kind."""
        if (code, kind) not in self._alike:
            self._alike[code, kind] = [p for p in self.places if p.code == code and kind in ("", p.kind)]
        return self._alike[code, kind]


@contextmanager
def reading(places: list[Place]) -> Iterator[None]:
    """Record every place that is read in FlatBuffers inside the block."""
    codes = {"u8": "B", "i8": "b", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f64": "d"}

    def scalar(name: str, code: str) -> Callable[..., Any]:
        original = getattr(FlatTable, name)

        def get(self: FlatTable, slot: int, *default: int) -> Any:
            if at := self._field(slot, struct.calcsize(code)):
                places.append(Place(self.buffer.base + at, code))
            return original(self, slot, *default)

        return get

    target, numbers, vector = FlatTable._target, FlatTable.ints, FlatTable._vector

    def pointed(self: FlatTable, slot: int) -> int:
        position = target(self, slot)
        if position:
            base, at = self.buffer.base, self._field(slot, 4)
            places.append(Place(base + at, "I", f"{len(self._fields)}.{slot}", base + position))
            vtable = self.position - struct.unpack_from("<i", self._data, self.position)[0]
            places.append(Place(base + vtable + 4 + 2 * slot, "H"))
        return position

    def counted(self: FlatTable, slot: int, item_bytes: int) -> tuple[int, int]:
        start, count = vector(self, slot, item_bytes)
        if start:
            places.append(Place(self.buffer.base + start - 4, "I"))
        return start, count

    def listed(self: FlatTable, slot: int, code: str, limit: int | None = None) -> tuple[int, ...]:
        items = numbers(self, slot, code, limit)
        start, size = vector(self, slot, struct.calcsize(code))[0], struct.calcsize(code)
        places.extend(Place(self.buffer.base + start + k * size, code) for k in range(min(len(items), 64)))
        return items

    patches = [patch.object(FlatTable, name, scalar(name, code)) for name, code in codes.items()]
    patches += [patch.object(FlatTable, "_target", pointed), patch.object(FlatTable, "_vector", counted)]
    patches += [patch.object(FlatTable, "ints", listed)]
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def read(content: bytes) -> ParsedFile:
    """Return the places of numbers, references and lists in a program or a data file."""
    result = ParsedFile(content)
    with reading(result.places):
        read_all(content)
    result.places = list(dict.fromkeys(result.places))
    return result


def read_all(content: bytes) -> None:
    """Read a program with its delegates, or a data file."""
    if content[4:8] == b"FT01":
        read_data(content)
        return
    for method in read_program(content).methods:
        for delegate in method.delegates:
            read_delegate(delegate.blob, base=delegate.offset)


def mutant(file: ParsedFile, rng: random.Random) -> bytes:
    """Return the file with up to three fields changed."""
    content = bytearray(file.content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        place = rng.choice(file.places)
        if place.kind and rng.random() < 0.8:  # point to another object of its kind
            others = [p.target for p in file.alike(place.code, place.kind) if p.target > place.at]
            _put(content, place.at, "I", rng.choice(others) - place.at)
        elif place.code == "d":
            old = struct.unpack_from("<d", content, place.at)[0]
            _put(content, place.at, "d", rng.choice((*FLOATS, -old, old * 2, rng.gauss(0, 100))))
        else:
            old = struct.unpack_from(f"<{place.code}", content, place.at)[0]
            near = (old + 1, old - 1, old * 2, old // 2, old ^ (1 << rng.randrange(8 * struct.calcsize(place.code))))
            other = struct.unpack_from(f"<{place.code}", content, rng.choice(file.alike(place.code)).at)[0]
            _put(content, place.at, place.code, rng.choice((rng.choice(INTS), rng.choice(near), other)))
    if rng.random() < 0.02:
        content = content[: rng.randrange(len(content))]
    return bytes(content)


def _put(content: bytearray, at: int, code: str, value: float) -> None:
    if code != "d":
        size = struct.calcsize(code)
        value = int(value) & ((1 << 8 * size) - 1)
        code = code.upper()
    struct.pack_into(f"<{code}", content, at, value)


def program_of(problem: Problem, wide: bool = False) -> bytes:
    """Return a program whose delegate is one case; with `wide`, its int32 are int64 in the surrounding program."""
    values: list[Built] = []
    constants: list[Built] = []
    data = bytearray()
    inputs: list[tuple[int, Built]] = []

    def outside(dtype: DType) -> int:
        return IN_PROGRAMS[DType.I64 if wide and dtype is DType.I32 else dtype]

    def add(value: Built) -> int:
        values.append(value)
        return len(values) - 1

    def tensor_of(dtype: DType, shape: Sequence[int], constant: int = -1) -> int:
        memory = -1 if constant >= 0 else len(values)
        dims = Vector("I", list(shape))
        return add(union(5, table(i8(IN_DELEGATES[dtype]), dims, i32(constant), i32(memory))))

    def value(a: Any) -> int:
        if isinstance(a, T):
            array = problem.arrays[id(a)]
            if a.constant:
                constants.append(table(u64(len(data)), u64(array.nbytes)))
                data.extend(array.tobytes())
                return tensor_of(a.dtype, a.shape, len(constants) - 1)
            shape = list(a.shape)
            index = tensor_of(a.dtype, shape)
            inputs.append((index, tensor(shape, dtype=outside(a.dtype))))
            return index
        a = a.value if isinstance(a, S) else a
        if isinstance(a, list | tuple):
            a = [x.value if isinstance(x, S) else x for x in a]
            if any(isinstance(x, T) or x is None for x in a):
                return add(union(9, table(ids(*map(value, a)))))
            if any(isinstance(x, float) for x in a):
                return add(union(7, table(Vector("d", [float(x) for x in a]))))
            return add(union(6, table(Vector("q", [int(x) for x in a]))))
        match a:
            case None:
                return add(union(1))
            case bool():
                return add(union(4, table(u8(a))))
            case int():
                return add(union(2, table(i64(a))))
            case float():
                return add(union(3, table(f64(a))))
        return add(union(10, table(text(str(a)))))

    case = problem.case
    args = [value(a) for a in case.args]
    results = problem.eager[: len(problem.eager) - len(case.mutated)]
    dtypes = [case.out or DType.of(e.dtype).device for e in results]
    outs = [tensor_of(d, e.shape) for d, e in zip(dtypes, results, strict=True)]
    last = outs if len(outs) == 1 else [add(union(9, table(ids(*outs))))]
    call = table(u32(0), text(case.op), ids(*args, *last))
    input_ids = Vector("I", [k for k, _ in inputs])
    graph = table(text("0"), Tables([call]), Tables(values), input_ids, Vector("I", outs), Tables(constants))
    blob = delegate_blob(graph, bytes(data))
    outer = [t for _, t in inputs]
    outer += [tensor(list(e.shape), dtype=outside(d)) for d, e in zip(dtypes, results, strict=True)]
    n = len(inputs)
    execution_plan = plan(
        *outer,
        more={
            3: ids(*range(n)),
            4: ids(*range(n, len(outer))),
            7: Tables([table(text("VulkanBackend"), table(i8(0), u32(0)))]),
        },
        instructions=[union(2, table(i32(0), ids(*range(len(outer)))))],
    )
    return program(of(execution_plan, s3=Tables([table(Vector("B", list(blob)))])))


def programs() -> dict[str, bytes]:
    """Return models by name."""
    from tests.test_few import PROGRAMS

    contents = {path.name: path.read_bytes() for path in sorted(DATA.glob("*.pte")) if path.stem != "dynamic"}
    return contents | {name: p.data for name, p in PROGRAMS.items() if name != "bert"}


def seeds() -> dict[str, bytes]:
    """Return the programs to start from, by name."""
    from tests.test_few import PROBLEMS

    contents = programs()
    for name, problem in PROBLEMS.items():
        if sum(a.nbytes for a in problem.arrays.values()) <= 1 << 14:
            contents[name] = program_of(problem)
    return contents


def run(content: bytes, device: Any, *, data: Any = None, call: bool = True, seconds: int = 10) -> tuple[str, str]:
    """Load a program, call it with zeros and with ones, and return the outcome: see `sweep`."""
    try:
        with within(seconds), ptegpu.load(content, data, device=device, limits=STEP_LIMIT) as loaded:
            for name in loaded.methods if call else ():
                for fill in (0, 1):
                    inputs = loaded.method(name).inputs
                    loaded.method(name)(*(_input(spec, fill) for spec in inputs))
    except Exception as e:
        return judged(e)
    return "ran" if call else "loaded", ""


def _input(spec: Any, fill: int) -> Any:
    """Return a valid value for an input."""
    if spec.shape is None and spec.dtype in ("int", "float", "bool", "str", "None", "list"):
        return fill if spec.value is None and spec.dtype == "int" else spec.value
    shape = (2,) if spec.shape is None else spec.shape
    if math.prod(shape) > MAX_INPUT:
        raise ptegpu.InvalidInput(f"{list(shape)} is too large to try")
    return np.full(shape, fill, "uint16" if spec.dtype == "bfloat16" else spec.dtype)


def parsed(content: bytes) -> tuple[str, str]:
    """Read a file with its delegates, and return the outcome."""
    try:
        with within(10):
            read_all(content)
    except ptegpu.InvalidProgram as e:
        return "InvalidProgram", str(e)
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        return f"wrong: {type(e).__name__}", f"{at.filename.rsplit('/', 1)[-1]}:{at.lineno}: {e}"
    return "read", ""
