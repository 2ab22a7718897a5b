"""The import of a file's method as a `FlatMethod`: delegates inlined, omitted views and states made explicit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram, UnsupportedProgram
from ..format import ptd, pte
from ..format.delegate import BlobGraph, read_delegate
from ..limits import spend, tick
from ..plan.method import Call, Instruction, Jump, Move, Operand, Var, variables
from .delegates import Ids, Inliner, split_arguments
from .flat import FlatMethod
from .graph import Shape
from .names import COPY_INDEX, SCALAR_RESULTS, VIEW, functional

NamedData = Mapping[str, memoryview | ptd.NamedTensor]
Effect = tuple[pte.Instruction, Ids, Ids]  # an instruction with the values it reads and writes
Mutates = Callable[[str], tuple[int, ...]]  # operator name → positions of arguments written in place

BACKENDS = ("VulkanBackend",)


def import_method(
    method: pte.FileMethod, named_data: NamedData, mutates: Mutates, path: str | None = None
) -> FlatMethod:
    """Return everything the method does, as calls on slots."""
    return _Importer(method, named_data, mutates, path).run()


class _Importer:
    def __init__(self, method: pte.FileMethod, named_data: NamedData, mutates: Mutates, path: str | None) -> None:
        self.method, self.named_data, self.mutates, self.path = method, named_data, mutates, path
        self.slots: dict[int, Var] = {}
        self.blobs: dict[tuple[int, int], BlobGraph] = {}
        self.owners: dict[tuple[int, int], int] = {}  # place in planned memory → the value last written there so far
        self.defined: set[int] = set()  # tensors written so far
        self._check_supported()
        self.chains = self._effects()
        written = [v for chain in self.chains for _, _, writes in chain for v in writes]
        self.written = set(written)
        self.last_owners = {v.place: k for k in written if isinstance(v := method.values[k], pte.FileTensor)}

    def run(self) -> FlatMethod:
        method = self.method
        flat = FlatMethod(method.name, input_tree=method.input_tree, output_tree=method.output_tree)
        for k, value_id in enumerate(method.inputs):
            operand = self.operand(value_id)
            if isinstance(operand, Var):
                operand.kind, operand.name = "input", f"input {k}"
            elif operand is None and value_id in self._used_ids:
                operand = self.slots[value_id] = Var(f"input {k}", None, dynamic=True, kind="input")
            flat.inputs.append(operand)
        for value_id in method.inputs:
            self._write(value_id)
        for chain in self.chains:
            self._chain(chain, flat.code)
        self._find_views(method.outputs, flat.code)
        flat.outputs = [self.operand(v) for v in method.outputs]
        self._mark_states(flat)
        self._check_written(flat)
        _check_buffers(flat)
        return flat

    def _check_written(self, flat: FlatMethod) -> None:
        """Raise InvalidProgram for an output that no instruction writes, on any path."""
        written = {v for i in flat.code for v in (i.outs if isinstance(i, Call) else ())}
        written |= {i.target for i in flat.code if isinstance(i, Move)}
        for k, v in ((k, v) for k, o in enumerate(flat.outputs) for v in variables(o)):
            if v.kind == "temp" and v not in written and v.initial is None:
                raise InvalidProgram(f"method {flat.name}: nothing writes its output {k}, {v!r}", path=self.path)

    def _check_supported(self) -> None:
        """Raise UnsupportedProgram with all backends and element types that ptegpu does not run."""
        method, problems = self.method, []
        calls = [i for chain in method.chains for i in chain if isinstance(i, pte.DelegateCall)]
        others = dict.fromkeys(d for c in calls if (d := method.delegates[c.delegate].id) not in BACKENDS)
        if others:
            problems.append(
                f"method {method.name} calls the backend{'s' if len(others) > 1 else ''} {', '.join(others)}; ptegpu "
                f"runs {', '.join(BACKENDS)} and programs without a delegate: export with VulkanPartitioner or "
                "WebGPUPartitioner"
            )
        names = {value_id: f"input {k}" for k, value_id in enumerate(method.inputs)}
        tensors = [(names.get(k, f"v{k}"), v) for k, v in enumerate(method.values) if isinstance(v, pte.FileTensor)]
        unsupported = [f"{name} is {t.dtype.value}{list(t.sizes)}" for name, t in tensors if not t.dtype.runs]
        if unsupported:
            problems.append(
                f"method {method.name} has tensors that ptegpu does not compute with: {', '.join(unsupported)}; "
                "export it with tensors of bools, ints and floats"
            )
        if problems:
            raise UnsupportedProgram(*problems)

    def _chain(self, chain: list[Effect], code: list[Instruction]) -> None:
        start, starts = len(code), list[int]()
        for number, (instruction, reads, writes) in enumerate(chain):
            starts.append(len(code))
            self._find_views(reads, code)
            for value_id in writes:
                self._write(value_id)
            if isinstance(instruction, pte.KernelCall):
                args, outs = tuple(map(self.operand, reads)), tuple(map(self.slot, writes))
                name = instruction.operator
                code.append(Call(functional(name), args, outs, f"{name} #{number}"))
            elif isinstance(instruction, pte.DelegateCall):
                where = f"delegate {instruction.delegate}"
                inliner = Inliner(self._blob(instruction.delegate), self.named_data, where, self.path)
                code.extend(inliner.run(list(map(self.operand, reads)), list(map(self.slot, writes))))
            elif isinstance(instruction, pte.MoveCall):
                code.append(self._move(instruction))
            elif isinstance(instruction, pte.JumpFalse):
                code.append(Jump(self.operand(instruction.condition), instruction.destination))
        starts.append(len(code))
        code[start:] = [Jump(i.condition, starts[i.target]) if isinstance(i, Jump) else i for i in code[start:]]

    def _effects(self) -> list[list[Effect]]:
        """Return the chains of instructions, each with the values it reads and writes."""
        values = self.method.values
        has_value = set(self.method.inputs)
        has_value.update(k for k, v in enumerate(values) if isinstance(v, pte.FileTensor) and v.is_stored)
        chains: list[list[Effect]] = []
        for chain in self.method.chains:
            chains.append([])
            for instruction in chain:
                reads, writes = self._ids(instruction, has_value)
                has_value.update(writes)
                chains[-1].append((instruction, reads, writes))
        return chains

    def _ids(self, instruction: pte.Instruction, has_value: set[int]) -> tuple[Ids, Ids]:
        if not isinstance(instruction, pte.DelegateCall):
            spend("nodes", 1, f"method {self.method.name}")
        if isinstance(instruction, pte.KernelCall):
            return self._split(instruction)
        if isinstance(instruction, pte.DelegateCall):
            blob, where = self._blob(instruction.delegate), f"delegate {instruction.delegate}"
            spend("nodes", max(1, len(blob.calls)), where)
            spend("items", len(blob.values), where)
            values = self.method.values
            return split_arguments(blob, instruction.args, values, lambda k: k not in has_value, where, self.path)
        if isinstance(instruction, pte.MoveCall):
            return (instruction.source,), (instruction.target,)
        if isinstance(instruction, pte.JumpFalse):
            return (instruction.condition,), ()
        return (), ()

    def _write(self, value_id: int) -> None:
        value = self.method.values[value_id]
        if isinstance(value, pte.FileTensor):
            self.defined.add(value_id)
            if value.place is not None:
                self.owners[value.place] = value_id

    def _find_views(self, ids: Iterable[int | None], code: list[Instruction]) -> None:
        """Add the views that the exporter left out: tensors without a writer, at a place with one.

        A place not yet written in this call belongs to a buffer, and holds what the previous call wrote last.
        """
        for value_id in ids:
            value = None if value_id is None else self.method.values[value_id]
            if isinstance(value, pte.TensorList):
                self._find_views(value.items, code)
            if (
                value_id is None
                or not isinstance(value, pte.FileTensor)
                or value_id in self.defined
                or value.place is None
            ):
                continue
            owner = self.owners.get(value.place)
            later = owner is None and value_id not in self.written
            owner = self.last_owners.get(value.place) if later else owner
            source = None if owner is None else self.method.values[owner]
            if owner is None or not isinstance(source, pte.FileTensor):
                continue
            if value.initial is not None and (source.initial is None or not later):
                continue
            if (source.dtype, source.numel) != (value.dtype, value.numel) or source.dynamic or value.dynamic:
                if later:
                    continue
                text = f"value {value_id} shares the memory of value {owner}, but cannot be a view of it"
                raise InvalidProgram(text, path=self.path)
            view = self.slot(value_id)
            view.kind, view.data = "temp", None
            code.append(Call(VIEW, (self.operand(owner), value.sizes), (view,), f"view of v{owner}"))
            self.defined.add(value_id)

    @cached_property
    def _used_ids(self) -> set[int]:
        used = set(self.method.outputs)
        for chain in self.method.chains:
            for instruction in chain:
                if isinstance(instruction, pte.KernelCall | pte.DelegateCall):
                    used.update(instruction.args)
                elif isinstance(instruction, pte.MoveCall):
                    used.add(instruction.source)
                elif isinstance(instruction, pte.JumpFalse):
                    used.add(instruction.condition)
        for value in self.method.values:
            if isinstance(value, pte.IntList):
                used.update(value.items)
        return used

    def operand(self, value_id: int) -> Operand:
        """Return the literal or slot of a value id."""
        if value_id in self.slots:
            return self.slots[value_id]
        value = self.method.values[value_id]
        if isinstance(value, pte.FileTensor):
            return self.slots.setdefault(value_id, self._tensor(value_id, value))
        if isinstance(value, pte.IntList | pte.TensorList | pte.FloatList | pte.BoolList):
            spend("items", len(value.items), f"method {self.method.name}")
        if isinstance(value, pte.IntList):
            return tuple(self.operand(i) for i in value.items)
        if isinstance(value, pte.TensorList):
            return tuple(None if i is None else self.operand(i) for i in value.items)
        if isinstance(value, pte.FloatList | pte.BoolList):
            return tuple(value.items)
        if value_id in self.written:
            return self.slots.setdefault(value_id, Var(f"v{value_id}", None, initial=value))
        return value

    def slot(self, value_id: int) -> Var:
        operand = self.operand(value_id)
        if not isinstance(operand, Var):
            raise InvalidProgram(f"method {self.method.name}: value {value_id} cannot be written", path=self.path)
        return operand

    def _tensor(self, value_id: int, t: pte.FileTensor) -> Var:
        name = f"v{value_id}"
        var = Var(name, t.dtype, t.sizes, t.dynamic)
        if t.key is not None:
            var.kind, var.data = "constant", self._external(name, t)
        elif t.data is not None:
            var.kind, var.data = "constant", array_of(t.data, t.dtype, t.sizes, t.dim_order)
        elif t.initial is not None:
            var.kind, var.data = "state", array_of(t.initial, t.dtype, t.sizes, t.dim_order)
        return var

    def _external(self, name: str, t: pte.FileTensor) -> np.ndarray:
        assert t.key is not None
        data = self.named_data.get(t.key)
        if data is None:
            raise InvalidProgram(f"no file has the data '{t.key}' of {name}: pass its .ptd file", path=self.path)
        if isinstance(data, ptd.NamedTensor):
            if data.dtype is not None and (data.dtype, data.sizes) != (t.dtype, t.sizes):
                types = [f"{x.dtype.value}{list(x.sizes or ())}" for x in (data, t) if x.dtype is not None]
                raise InvalidProgram(f"{name}: the data '{t.key}' is {types[0]}, not {types[1]}", path=self.path)
            data = data.data
        if len(data) < t.nbytes:
            text = f"{name}: the data '{t.key}' has {len(data)} bytes, expected {t.nbytes}"
            raise InvalidProgram(text, path=self.path)
        return array_of(data[: t.nbytes], t.dtype, t.sizes, t.dim_order)

    def _split(self, call: pte.KernelCall) -> tuple[Ids, Ids]:
        """Return the value ids of a kernel call's arguments and of its results."""
        args = call.args
        if not args:
            raise InvalidProgram(f"{call.operator} has no arguments", path=self.path)
        last = self.method.values[args[-1]]
        if call.operator == COPY_INDEX:
            return args, args[:1]
        if call.operator.startswith(SCALAR_RESULTS):
            return args[:-1], args[-1:]
        if isinstance(last, pte.TensorList):
            outs = tuple(i for i in last.items if i is not None)
            rest = args[:-1]
            if rest and self.method.values[rest[-1]] == last:  # out= takes the list
                rest = rest[:-1]
            elif rest[len(rest) - len(outs) :] == outs:  # or each output is an argument
                rest = rest[: len(rest) - len(outs)]
            return rest, outs
        if len(args) > 1 and args[-2] == args[-1]:
            return args[:-2], args[-1:]
        return args[:-1], args[-1:]

    def _move(self, move: pte.MoveCall) -> Move:
        """Return a move; raise InvalidProgram unless the source has the dtype and sizes that the target declares."""
        source, target = self.operand(move.source), self.slot(move.target)
        dtype, sizes = (source.dtype, source.sizes) if isinstance(source, Var) else (None, ())
        dynamic = target.dynamic or (isinstance(source, Var) and source.dynamic)
        if dtype is not target.dtype or len(sizes) != len(target.sizes) or (sizes != target.sizes and not dynamic):
            text = f"value {move.source}, {source!r}, does not fit value {move.target}, {target!r}, where it is moved"
            raise InvalidProgram(f"method {self.method.name}: {text}", path=self.path)
        return Move(source, target)

    def _blob(self, index: int) -> BlobGraph:
        delegate = self.method.delegates[index]
        place = delegate.offset, len(delegate.blob)  # several delegates may share a blob
        if place not in self.blobs:
            tick()
            self.blobs[place] = read_delegate(delegate.blob, base=delegate.offset, path=self.path)
        return self.blobs[place]

    def _mark_states(self, flat: FlatMethod) -> None:
        """Make states of constants that are written, and of planned tensors that are read before they are written.

        Also mark results computed from a dynamic value as dynamic.
        """
        written: set[Var] = {v for v in flat.inputs if isinstance(v, Var)}
        for instruction in flat.code:
            if isinstance(instruction, Jump):
                continue
            if isinstance(instruction, Move):
                written.add(instruction.target)
                continue
            for v in variables(instruction.args):
                if v not in written and v.kind == "temp" and v.dtype is not None:
                    v.kind = "state"
            places = [k for k in self.mutates(instruction.op) if k < len(instruction.args)]
            mutated = [v for k in places for v in variables(instruction.args[k])]
            for v in (*instruction.outs, *mutated):
                if v.kind == "constant":
                    v.kind = "state"
                written.add(v)
            if any(v.dynamic for v in variables(instruction.args)):
                for v in instruction.outs:
                    v.dynamic = True


def _check_buffers(flat: FlatMethod) -> None:
    """Raise UnsupportedProgram if a buffer that a delegate writes may also be a constant that is read outside it.

    Exporters store a copy of a buffer for each delegate that uses it and one for the calls outside, without its name.
    Only equal elements show that two are copies, and a reader of one copy would never see writes to another.
    """
    calls = [i for i in flat.code if isinstance(i, Call)]
    states = {v for c in calls for v in (*variables(c.args), *c.outs) if v.kind == "state" and _delegate_of(v)}
    for call in calls if states else ():
        for v in variables(call.args):
            state = next((s for s in states if v.kind == "constant" and _may_copy(v, s)), None)
            if state is not None:
                buffer = repr(state).removeprefix(f"{state.name}:")
                raise UnsupportedProgram(
                    f"delegate {_delegate_of(state)[1:]} changes a buffer, {buffer}, that {call.where} seems to read "
                    "from a copy of its own, which does not change; export without partitions "
                    "(`ptegpu export torch --no-delegate`)"
                )


def _delegate_of(v: Var) -> str:
    """Return "d3" for a value of delegate 3, "" for a value outside of delegates."""
    return v.name.rpartition(".")[0]


def _may_copy(constant: Var, state: Var) -> bool:
    """Return True if a constant has the initial elements of a state of another delegate."""
    a, b = constant.data, state.data
    if constant.sizes != state.sizes or a is None or b is None or _delegate_of(constant) == _delegate_of(state):
        return False
    with np.errstate(all="ignore"):
        return a.dtype.kind == b.dtype.kind and np.array_equal(a.astype(b.dtype), b)


def array_of(data: memoryview, dtype: DType, sizes: Shape, dim_order: tuple[int, ...]) -> np.ndarray:
    """Return bytes of a file as an array of logical shape: a view with the strides of their dimension order."""
    flat = np.frombuffer(data, dtype.numpy)
    if dim_order == tuple(range(len(sizes))):
        return flat.reshape(sizes)
    stored = flat.reshape([sizes[d] for d in dim_order])
    return stored.transpose(np.argsort(dim_order))
