"""Delegates as calls on slots: which values of the caller a blob takes and returns, and its graph inlined.

The caller lists inputs, then outputs. Two things are not in the file, and follow from the types of the values. The
Vulkan backend leaves an unused input out of the blob, while the caller still lists it. And a blob may have more outputs
than the caller lists: the first ones are the new values of buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NoReturn

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram, UnsupportedProgram
from ..format import ptd
from ..format.delegate import BlobCall as BlobCall
from ..format.delegate import BlobGraph, BlobTensor, BlobValue, Ints, SymInt, ValueList
from ..format.pte import BoolList, FileTensor, FloatList, Value
from ..limits import spend
from ..plan.method import Call, Instruction, Operand, Var, variables
from .names import ADD, CHECKS, COPY, PREPACK

Ids = tuple[int, ...]


def split_arguments(
    blob: BlobGraph, ids: Ids, values: Sequence[Value], unset: Callable[[int], bool], where: str, path: str | None
) -> tuple[Ids, Ids]:
    """Return the ids of a call's inputs and outputs. `unset(id)` is True for a value not yet written at the call."""
    count = len(blob.inputs)
    if len(ids) < count:
        raise InvalidProgram(f"{where} takes {count} inputs, the call has {len(ids)} values", path=path)
    results = len(blob.outputs) - _count_buffers(blob)
    if len(ids) < count + results:
        text = f"{where} takes {count} inputs and has {results} results, the call has {len(ids)} values for both"
        raise InvalidProgram(f"{text}; export the program again", path=path)
    outs = max(results, len(list(takewhile(unset, reversed(ids)))))
    listed = ids[: len(ids) - min(outs, len(blob.outputs))]
    if len(listed) <= count:
        return ids[:count], ids[count:]
    inputs = [blob.values[k] for k in blob.inputs]
    first = _embed(inputs, [values[k] for k in listed])
    last = _embed(inputs[::-1], [values[k] for k in reversed(listed)])
    if first is None or last is None:
        shown = ", ".join(_show(values[k]) for k in listed)
        raise InvalidProgram(f"{where} takes ({', '.join(map(_show, inputs))}), the call has ({shown})", path=path)
    if first != [len(listed) - 1 - place for place in reversed(last)]:
        raise UnsupportedProgram(
            f"{where} takes {count} of the {len(listed)} inputs of its call, and the file does not say which; "
            "export without partitions (`ptegpu export torch --no-delegate`)"
        )
    return tuple(listed[place] for place in first), ids[len(listed) :]


def _count_buffers(blob: BlobGraph) -> int:
    """Return how many outputs may be new values of buffers: the first ones, which have the type of a constant."""
    tensors = [v for v in blob.values if isinstance(v, BlobTensor)]
    constants = {(t.dtype, t.dims) for t in tensors if t.constant >= 0}
    outputs = [v for k in blob.outputs if isinstance(v := blob.values[k], BlobTensor)]
    return len(list(takewhile(lambda t: (t.dtype, t.dims) in constants, outputs)))


def _embed(inputs: Sequence[BlobValue], listed: Sequence[Value]) -> list[int] | None:
    """Return the first places of `listed` that fit the inputs in order, or None.

    If the last such places are the same, there is no other way.
    """
    places: list[int] = []
    for place, value in enumerate(listed):
        if len(places) < len(inputs) and _fits(inputs[len(places)], value):
            places.append(place)
    return places if len(places) == len(inputs) else None


def _fits(inner: BlobValue, outer: Value) -> bool:
    """Return True if a blob's value can be this one of the caller.

    f16 blobs take f32, and a symbolic int may come as a tensor of one element.
    """
    if not isinstance(inner, BlobTensor):
        return isinstance(outer, int | None) or (isinstance(outer, FileTensor) and outer.numel == 1)
    if not isinstance(outer, FileTensor) or len(inner.dims) != len(outer.sizes):
        return False
    same_type = inner.dtype.device is outer.dtype.device or (inner.dtype.is_float and outer.dtype.is_float)
    return same_type and (outer.dynamic or inner.dims == outer.sizes)


def _show(value: BlobValue | Value) -> str:
    if isinstance(value, BlobTensor):
        return f"{value.dtype.value}{list(value.dims)}"
    return f"{value.dtype.value}{list(value.sizes)}" if isinstance(value, FileTensor) else "int"


class Inliner:
    """Inlines one blob; `run` takes the caller's operands, and slots for the outputs that the caller lists."""

    def __init__(
        self, blob: BlobGraph, named_data: Mapping[str, memoryview | ptd.NamedTensor], where: str, path: str | None
    ) -> None:
        self.blob, self.named_data, self.where, self.path = blob, named_data, where, path
        self.prefix = f"d{where.rsplit(' ', 1)[-1]}.v"  # names of its values start with it
        self.inputs = frozenset(blob.inputs)
        self.slots: dict[int, Operand] = {}
        self.written: set[Var] = set()  # inputs, and results of calls so far
        self.code: list[Instruction] = []
        self.writers: dict[Var, int] = {}  # the last call that wrote each value
        self.reads: list[tuple[set[Var], set[int]]] = []  # per call: constants, and the calls that wrote other operands

    def run(self, operands: Sequence[Operand], outs: Sequence[Var]) -> list[Instruction]:
        blob = self.blob
        for value_id, operand in zip(blob.inputs, operands, strict=True):
            self.slots[value_id] = self._input(value_id, operand)
            self.written.update(variables(self.slots[value_id]))
        for call in blob.calls:  # uploads first: they happen at load, wherever they are in the list
            if call.operator == PREPACK:
                self._prepack(call)
        for call in blob.calls:
            name = f"{call.operator} #{call.node}"
            if not call.args:
                self._fail(f"{name} has no result")
            if call.operator == PREPACK:
                continue
            args = tuple(self._read(i, f"{name} reads") for i in call.args[:-1])
            if call.operator in CHECKS:  # shape rules refuse wrong sizes; backends drop these checks
                continue
            results = tuple(self._results(call.args[-1], name))
            if clobbered := [i for i in self._result_ids(call) if i in self.inputs]:
                self._fail(f"{name} writes {self.operand(clobbered[0])!r}, which already has a value")
            self.written.update(results)
            read = variables(args)
            constants = {v for v in (*read, *results) if v.kind == "constant"}
            self.reads.append((constants, {self.writers[v] for v in read if v in self.writers}))
            self.writers |= dict.fromkeys(results, len(self.reads) - 1)
            self.code.append(Call(call.operator, args, results, f"{name} of {self.where}"))
        extra = len(blob.outputs) - len(outs)
        if extra < 0:
            self._fail(f"it has {len(blob.outputs)} outputs, the call lists {len(outs)}")
        values = [self._read(i, f"its output {k} is") for k, i in enumerate(blob.outputs)]
        states = self._mutated_buffers(values[:extra])
        for value_id, target in zip(blob.outputs[extra:], outs, strict=True):
            self._check_dtype("output", value_id, target)
        for source, target in zip(values, [*states, *outs], strict=True):
            if source is target:
                continue
            op, args = (ADD, (source, 0)) if target.dtype is None else (COPY, (source,))
            self.code.append(Call(op, args, (target,), f"output of {self.where}"))
        return self.code

    def _input(self, value_id: int, operand: Operand) -> Operand:
        """Return the caller's value, converted where an f16 program takes f32."""
        value = self.blob.values[value_id]
        if isinstance(value, BlobTensor):
            if not isinstance(operand, Var) or operand.dtype is None:
                self._fail(f"its input {value_id} is a tensor, the call has {operand!r}")
            self._check_dtype("input", value_id, operand)
            if value.dtype.device is not operand.dtype.device:
                inner = Var(f"{self.prefix}{value_id}", value.dtype, value.dims, operand.dynamic)
                self.code.append(Call(COPY, (operand,), (inner,), f"input of {self.where}"))
                return inner
        return operand

    def _check_dtype(self, end: str, value_id: int, outer: Var) -> None:
        """Raise InvalidProgram unless a tensor of the blob has the element type of the caller's value.

        Outside the GPU, a tensor has its staging type: f32 for the f16 tensors of `force_fp16`. Constants have none.
        """
        value = self.blob.values[value_id]
        if not isinstance(value, BlobTensor) or outer.dtype is None:
            return
        staging = value.dtype if value.staging is None else value.staging
        same = value.dtype.device is staging.device is outer.dtype.device
        from_half = value.staging in (None, DType.F32) or value.constant >= 0
        half = value.dtype is DType.F16 and outer.dtype.device is DType.F32 and from_half
        if not same and not half:
            types = " staged as ".join(dict.fromkeys(t.value for t in (value.dtype, staging)))
            self._fail(f"its {end} {value_id} is {types}, the call's value is {outer!r}; export the program again")

    def _read(self, value_id: int, reader: str) -> Operand:
        """Return an operand; raise InvalidProgram if nothing has written it yet."""
        operand = self.operand(value_id)
        for v in variables(operand):
            if v.kind != "constant" and v not in self.written:
                self._fail(f"{reader} {v!r}, which is neither an input, a constant nor the result of an earlier call")
        return operand

    def operand(self, value_id: int) -> Operand:
        if value_id in self.slots:
            return self.slots[value_id]
        value = self.blob.values[value_id]
        operand: Operand
        if isinstance(value, BlobTensor):
            operand = Var(f"{self.prefix}{value_id}", value.dtype, value.dims)
            operand.narrowed = value.dtype is DType.I32 and value.constant < 0
            if value.constant >= 0:
                operand.kind, operand.data = "constant", self._constant(value)
        elif isinstance(value, SymInt):
            operand = Var(f"{self.prefix}{value_id}", None)
        elif isinstance(value, ValueList):
            spend("items", len(value.items), self.where)
            return tuple(self.operand(i) for i in value.items)
        elif isinstance(value, Ints | FloatList | BoolList):
            spend("items", len(value.items), self.where)
            return tuple(value.items)
        else:
            return value
        self.slots[value_id] = operand
        return operand

    def _results(self, value_id: int, name: str) -> list[Var]:
        operand = self.operand(value_id)
        listed = operand if isinstance(operand, tuple) else (operand,)
        results = [r for r in listed if isinstance(r, Var)]
        if len(results) < len(listed):
            self._fail(f"value {value_id} cannot be a result of {name}")
        return results

    def _prepack(self, call: BlobCall) -> None:
        """Let the result of an upload stand for the uploaded constant."""
        name = f"{call.operator} #{call.node}"
        if len(call.args) != 2:
            self._fail(f"{name} has {len(call.args)} values: expected a constant and one result")
        source, target = call.args
        constant, value = self.operand(source), self.blob.values[target]
        if not isinstance(constant, Var) or constant.kind != "constant" or source in self.inputs:
            self._fail(f"{name} uploads {constant!r}, which is not a constant")
        if target in self.slots:
            self._fail(f"{name} writes {self.slots[target]!r}, which already has a value")
        if not isinstance(value, BlobTensor) or (value.dtype, value.dims) != (constant.dtype, constant.sizes):
            result = _show(value) if isinstance(value, BlobTensor) else "a value that is not a tensor"
            self._fail(f"{name} uploads the constant {constant!r} to {result}")
        self.slots[target] = constant

    def _constant(self, value: BlobTensor) -> np.ndarray:
        constant = self.blob.constants[value.constant]
        data = constant.data
        if data is None:
            assert constant.key is not None
            named = self.named_data.get(constant.key)
            if named is None:
                self._fail(f"no file has the data '{constant.key}' of constant {value.constant}: pass its .ptd file")
            data = named.data if isinstance(named, ptd.NamedTensor) else named
        if len(data) != value.nbytes and value.nbytes:
            self._fail(
                f"constant {value.constant} needs {value.nbytes} bytes, and its data '{constant.key}' has {len(data)}; "
                "pass the data that was exported with this program"
            )
        return np.frombuffer(data[: value.nbytes], value.dtype.numpy).reshape(value.dims)

    def _sources(self, v: Var) -> set[Var]:
        """Return the constants that a value was computed from."""
        sources, pending = set(), {self.writers[v]} if v in self.writers else set()
        visited = set(pending)
        while pending:
            constants, calls = self.reads[pending.pop()]
            sources |= constants
            pending |= calls - visited
            visited |= calls
        return sources

    def _mutated_buffers(self, values: Sequence[Operand]) -> list[Var]:
        """Return the constants that the extra outputs are new values of, which the file does not list.

        A mutated buffer is computed from its old value, so the candidates are the constants of its shape that it
        depends on and that no earlier output claimed.
        """
        claimed: list[Var] = []
        for k, value in enumerate(values):
            if isinstance(value, Var) and value.kind == "constant":  # alias_buffer_mutations: written in place
                claimed.append(value)
                continue
            self._check_survives(k, len(self.blob.outputs) - len(values))
            candidates: list[Var] = []
            if isinstance(value, Var):
                kind = value.dtype, value.sizes
                candidates = [c for c in self._sources(value) if (c.dtype, c.sizes) == kind and c not in claimed]
            if len(candidates) != 1:
                raise UnsupportedProgram(
                    f"{self.where} changes a buffer, but the file does not say which of {len(candidates)} constants "
                    "it is; export with the compile option alias_buffer_mutations=True"
                )
            claimed.append(candidates[0])
        return claimed

    def _check_survives(self, k: int, listed: int) -> None:
        """Raise InvalidProgram if an output that the call does not list cannot be the new value of a buffer.

        Exporters list each value once among the outputs, and nothing reuses the memory of an output.
        """
        outputs, values, value_id = self.blob.outputs, self.blob.values, self.blob.outputs[k]
        text = f"it has {len(outputs)} outputs, the call lists {listed}; output {k} cannot be a buffer's new value: "
        if outputs.count(value_id) > 1:
            self._fail(f"{text}it is listed {outputs.count(value_id)} times")
        memory = value.memory if isinstance(value := values[value_id], BlobTensor) else -1
        written = [(c, self._result_ids(c)) for c in self.blob.calls if c.operator != PREPACK]
        writer = next((n for n, (_, ids) in enumerate(written) if value_id in ids), len(written))
        for call, ids in written[writer + 1 :] if memory >= 0 else ():
            if any(isinstance(v := values[i], BlobTensor) and v.memory == memory for i in ids):
                self._fail(f"{text}{call.operator} #{call.node} overwrites it")

    def _result_ids(self, call: BlobCall) -> tuple[int, ...]:
        last = self.blob.values[call.args[-1]]
        return last.items if isinstance(last, ValueList) else call.args[-1:]

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidProgram(f"{self.where}: {reason}", path=self.path)
