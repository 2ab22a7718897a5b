"""`.pte` programs: bytes to frozen dataclasses, with every offset, count, index and size checked.

Constants are views of the mapped file. Every reference in a method's values, instructions and lists is valid. Whether
an operator accepts its arguments is not checked here. Slot numbers are those of ExecuTorch's `program.fbs`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from ..dtypes import DType
from ..errors import InvalidProgram
from .container import MAX_IDS, Segments, check_end, named_entries, read_ids, read_layout
from .flatbuffer import FlatBuffer, FlatTable
from .source import PROGRAM, Source, fail_foreign, open_source

MAX_LITERALS = 1 << 12  # in one list of numbers; lists of ids have their own limit
MIN_HEADER_BYTES, FULL_HEADER_BYTES = 24, 32


@dataclass(frozen=True, slots=True)
class FileTensor:
    dtype: DType
    sizes: tuple[int, ...]  # upper bounds where `dynamic`
    dim_order: tuple[int, ...]  # dimensions from the outermost in memory to the innermost
    dynamic: bool = False
    bounded: bool = True  # False: `sizes` are meaningless
    data: memoryview | None = None  # of a constant: exactly `nbytes`
    initial: memoryview | None = None  # the initial state of a mutable buffer: exactly `nbytes`
    planned: bool = False  # the exporter reserved memory for it
    key: str | None = None  # of named data with its bytes, usually in a .ptd
    place: tuple[int, int] | None = None  # (memory, offset) of planned memory; a view has those of its source
    name: str | None = None  # in the exported module, if the exporter recorded it

    @property
    def is_stored(self) -> bool:
        """Return whether the program or its data contain the initial elements."""
        return self.data is not None or self.initial is not None or self.key is not None

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size


@dataclass(frozen=True, slots=True)
class IntList:
    """Ids of values that are ints; a null value is a symbolic int."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorList:
    """Ids of values that are tensors; if `optional`, also of nulls, and None for a missing value."""

    items: tuple[int | None, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class FloatList:
    items: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoolList:
    items: tuple[bool, ...]


Value = None | bool | int | float | str | FileTensor | IntList | TensorList | FloatList | BoolList


@dataclass(frozen=True, slots=True)
class KernelCall:
    operator: str  # "aten::mul.Scalar_out"
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DelegateCall:
    delegate: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoveCall:
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class JumpFalse:
    condition: int
    destination: int  # index of an instruction in the same chain, or the chain's length


@dataclass(frozen=True, slots=True)
class FreeCall:
    value: int


Instruction = KernelCall | DelegateCall | MoveCall | JumpFalse | FreeCall


@dataclass(frozen=True, slots=True)
class Delegate:
    id: str
    blob: memoryview
    offset: int = 0  # of the blob in the file


@dataclass(frozen=True, slots=True)
class FileMethod:
    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    chains: tuple[tuple[Instruction, ...], ...]
    delegates: tuple[Delegate, ...]
    input_tree: str  # PyTorch's encoding of nested containers, "" if absent
    output_tree: str


@dataclass(frozen=True, slots=True)
class ProgramFile:
    path: str | None
    nbytes: int
    version: int
    methods: tuple[FileMethod, ...]
    named_data: Mapping[str, memoryview]


def read_program(source: Source, *, name: str | None = None) -> ProgramFile:
    """Read a `.pte`, mapping it if `source` is a path; `name` replaces the path in messages."""
    data, path = open_source(source, name=name, expected=PROGRAM)
    if bytes(data[4:8]) != b"ET12":
        fail_foreign(data, path, PROGRAM)
    tables_size, base = _read_header(data, path)
    root = FlatBuffer(data[:tables_size], path=path).root()
    store = _Store(root, Segments(data, base, root, 4))
    methods: dict[str, FileMethod] = {}
    for plan in root.tables(1):
        method = _MethodReader(plan, store).read()
        if method.name in methods:
            plan.fail(f"two methods have the name {method.name!r}")
        methods[method.name] = method
    segments = store.segments
    named_data = {key: segments.find(entry.u32(1), entry)[1] for key, entry in named_entries(root.tables(7))}
    return ProgramFile(path, len(data), root.u32(0), tuple(methods.values()), MappingProxyType(named_data))


def _read_header(data: memoryview, path: str | None) -> tuple[int, int]:
    """Return the size of the tables at the start, and the offset of the segments, 0 without segments."""
    if bytes(data[8:12]) != b"eh00":
        return len(data), 0
    if len(data) < 8 + FULL_HEADER_BYTES:
        raise InvalidProgram(f"truncated: the file ends in its header, after {len(data)} bytes", offset=8, path=path)
    length, tables_size, base, segments_size = struct.unpack_from("<IQQQ", data, 12)
    if length < MIN_HEADER_BYTES:
        raise InvalidProgram(f"a header of {length} bytes is too short", offset=12, path=path)
    check_end(tables_size, data, "the table area", 16, path)
    check_end(base + (segments_size if length >= FULL_HEADER_BYTES else 0), data, "the segment area", 24, path)
    return tables_size, base


class _Store:
    """The program's bytes: constants, initial states and delegate blobs."""

    def __init__(self, root: FlatTable, segments: Segments) -> None:
        self.segments = segments
        self._constants = _Subsegments(root.table(5), segments)
        self._inline_constants = [buffer.view(0) for buffer in root.tables(2)]
        self._states = [_Subsegments(table, segments) for table in root.tables(6)]
        self._inline_blobs = [(blob.offset(0), blob.view(0)) for blob in root.tables(3)]
        if self._inline_constants and self._constants:
            root.fail("the program has both inline constants and a constant segment")

    def constant(self, index: int, nbytes: int, user: FlatTable) -> memoryview:
        if self._constants:
            return self._constants.find(index, nbytes, user)
        user.check_index("constant", index, len(self._inline_constants))
        data = self._inline_constants[index]
        if nbytes > len(data):
            user.fail(f"constant {index} holds {len(data)} bytes, its tensor needs {nbytes}")
        return data[:nbytes]

    def state(self, group: int, index: int, nbytes: int, user: FlatTable) -> memoryview:
        user.check_index("mutable data segment", group, len(self._states))
        return self._states[group].find(index, nbytes, user)

    def blob(self, reference: FlatTable) -> tuple[int, memoryview]:
        """Return the file offset and the bytes of a delegate's blob."""
        location, index = reference.i8(0), reference.u32(1)
        if location == 1:
            return self.segments.find(index, reference)
        if location != 0:
            reference.fail(f"unknown place {location} of a delegate blob")
        reference.check_index("inline delegate blob", index, len(self._inline_blobs))
        return self._inline_blobs[index]


class _Subsegments:
    """Tensors in one segment, by index into a list of offsets; entry 0 stands for no tensor."""

    def __init__(self, table: FlatTable | None, segments: Segments) -> None:
        self._offsets = table.ints(1, "Q") if table else ()
        self._data = segments.find(table.u32(0), table)[1] if table and self else memoryview(b"")

    def __bool__(self) -> bool:
        return len(self._offsets) > 1

    def find(self, index: int, nbytes: int, user: FlatTable) -> memoryview:
        user.check_index("constant", index, len(self._offsets))
        start = self._offsets[index]
        if start + nbytes > len(self._data):
            user.fail(f"a constant of {nbytes} bytes at {start} ends after its segment of {len(self._data)} bytes")
        return self._data[start : start + nbytes]


class _MethodReader:
    def __init__(self, plan: FlatTable, store: _Store) -> None:
        self._plan, self._store = plan, store
        self._lists: list[tuple[int, IntList | TensorList]] = []  # with their positions
        self._operators: tuple[str, ...] = ()
        self._delegates: tuple[Delegate, ...] = ()
        self._values: tuple[Value, ...] = ()
        self._buffer_sizes = plan.ints(8, "q", MAX_IDS)  # of planned memory; entry 0 is unused

    def read(self) -> FileMethod:
        plan = self._plan
        name = plan.required_string(0, "a method's name")
        if self._buffer_sizes and min(self._buffer_sizes) < 0:
            plan.fail(f"method {name!r} plans a negative buffer size")
        trees = plan.table(1)
        self._values = tuple([self._value(*value.union(0, "a value")) for value in plan.tables(2)])
        self._check_lists()
        self._operators = tuple([self._operator(operator) for operator in plan.tables(6)])
        self._delegates = tuple([self._delegate(delegate) for delegate in plan.tables(7)])
        chains = tuple([self._chain(chain) for chain in plan.tables(5)])
        if not chains:
            plan.fail(f"method {name!r} has no instructions")
        return FileMethod(
            name,
            self._values,
            self._ids(plan, 3),
            self._ids(plan, 4),
            chains,
            self._delegates,
            (trees and trees.string(0)) or "",
            (trees and trees.string(1)) or "",
        )

    def _value(self, kind: int, table: FlatTable) -> Value:
        match kind:
            case 1:
                return None
            case 2:
                return table.i64(0)
            case 3:
                return table.u8(0) != 0
            case 4:
                return table.f64(0)
            case 5:
                return self._tensor(table)
            case 6:
                return table.required_string(0, "a string")
            case 7:
                return self._list(table, IntList(table.ints(0, "q", MAX_IDS)))
            case 8:
                return FloatList(table.floats(0, MAX_LITERALS))
            case 9:
                return BoolList(tuple([item != 0 for item in table.ints(0, "B", MAX_LITERALS)]))
            case 10:
                return self._list(table, TensorList(table.ints(0, "i", MAX_IDS)))
            case 11:
                items = tuple([None if item == -1 else item for item in table.ints(0, "i", MAX_IDS)])
                return self._list(table, TensorList(items, optional=True))
        table.fail(f"unknown kind of value {kind}")

    def _list(self, table: FlatTable, items: IntList | TensorList) -> IntList | TensorList:
        self._lists.append((table.position, items))
        return items

    def _check_lists(self) -> None:
        """Check the items of lists, now that all values are read: a list may refer to later values."""
        values, count, fail = self._values, len(self._values), self._plan.buffer.fail
        for position, ids in self._lists:
            for item in ids.items:
                if item is None:
                    continue
                if not 0 <= item < count:
                    fail(f"value {item} does not exist: there are {count}", position)
                value = values[item]
                if isinstance(ids, IntList):
                    if value is not None and type(value) is not int:
                        fail(f"value {item} in a list of ints is not an int", position)
                elif not isinstance(value, FileTensor) and not (ids.optional and value is None):
                    fail(f"value {item} in a list of tensors is not a tensor", position)

    def _tensor(self, table: FlatTable) -> FileTensor:
        dtype, sizes, dim_order, nbytes = read_layout(table, 0, 2, 3)
        if table.i32(1):
            table.fail(f"a tensor with storage offset {table.i32(1)}: only 0 is supported")
        dynamism, index, allocation, extra = table.i8(8), table.u32(5), table.table(6), table.table(9)
        if not 0 <= dynamism <= 2:
            table.fail(f"unknown kind of dynamic shape {dynamism}")
        data = initial = key = None
        if extra and extra.i8(2) == 1:
            key = extra.required_string(1, "the name of a tensor outside the file")
        elif extra and extra.i8(2):
            extra.fail(f"unknown place {extra.i8(2)} of a tensor")
        elif index and allocation:
            initial = self._store.state(extra.u64(0) if extra else 0, index, nbytes, table)
        elif index:
            data = self._store.constant(index, nbytes, table)
        place = self._place(allocation, nbytes if dynamism < 2 else 0) if allocation else None
        name = extra.string(1) if extra else None
        dynamic, bounded, planned = dynamism > 0, dynamism < 2, place is not None
        return FileTensor(dtype, sizes, dim_order, dynamic, bounded, data, initial, planned, key, place, name)

    def _place(self, table: FlatTable, nbytes: int) -> tuple[int, int]:
        memory, offset, sizes = table.u32(0), table.u32(1) | table.u32(2) << 32, self._buffer_sizes
        table.check_index("planned memory", memory, len(sizes), first=1)
        if offset + nbytes > sizes[memory]:
            table.fail(f"a tensor of {nbytes} bytes at {offset} ends after its planned memory of {sizes[memory]} bytes")
        return memory, offset

    def _operator(self, table: FlatTable) -> str:
        name, overload = table.required_string(0, "an operator's name"), table.string(1)
        return f"{name}.{overload}" if overload else name

    def _delegate(self, table: FlatTable) -> Delegate:
        reference = table.table(1)
        if reference is None:
            table.fail("a delegate has no blob")
        offset, blob = self._store.blob(reference)
        return Delegate(table.required_string(0, "a delegate's id"), blob, offset)

    def _chain(self, table: FlatTable) -> tuple[Instruction, ...]:
        count = table.count(2)
        return tuple([self._instruction(*entry.union(0, "an instruction"), count) for entry in table.tables(2)])

    def _instruction(self, kind: int, table: FlatTable, count: int) -> Instruction:
        match kind:
            case 1:
                index = self._index(table, 0, len(self._operators), "operator")
                return KernelCall(self._operators[index], self._ids(table, 1))
            case 2:
                return DelegateCall(self._index(table, 0, len(self._delegates), "delegate"), self._ids(table, 1))
            case 3:
                return MoveCall(self._value_id(table, 0), self._value_id(table, 1))
            case 4:
                return JumpFalse(self._value_id(table, 0), self._index(table, 1, count + 1, "jump destination"))
            case 5:
                return FreeCall(self._value_id(table, 0))
        table.fail(f"unknown kind of instruction {kind}")

    def _ids(self, table: FlatTable, slot: int) -> tuple[int, ...]:
        return read_ids(table, slot, "i", len(self._values))

    def _value_id(self, table: FlatTable, slot: int) -> int:
        return self._index(table, slot, len(self._values), "value")

    @staticmethod
    def _index(table: FlatTable, slot: int, count: int, noun: str) -> int:
        index = table.i32(slot)
        table.check_index(noun, index, count)
        return index
