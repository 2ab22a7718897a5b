"""A delegate's graph as calls on slots, with its inputs and outputs joined to the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram, UnsupportedProgram
from ..format import ptd
from ..format.delegate import BlobGraph, BlobTensor, Ints, SymInt, ValueList
from ..format.delegate import Call as BlobCall
from ..format.pte import BoolList, FloatList
from ..limits import spend
from ..plan.method import Call, Instruction, Operand, Var, variables
from .names import ADD, CHECKS, COPY, PREPACK


def inline(
    blob: BlobGraph,
    given: Sequence[Operand],
    outs: Sequence[Var],
    named_data: Mapping[str, memoryview | ptd.NamedTensor],
    where: str,
    path: str | None,
) -> list[Instruction]:
    """The blob's calls. `given` are the caller's inputs, `outs` the slots its outputs go to.

    A blob may have more outputs than the call takes: the first ones are the new values of buffers it mutates.
    """
    return _Inliner(blob, named_data, where, path).run(given, outs)


class _Inliner:
    def __init__(
        self, blob: BlobGraph, named_data: Mapping[str, memoryview | ptd.NamedTensor], where: str, path: str | None
    ) -> None:
        self.blob, self.named_data, self.where, self.path = blob, named_data, where, path
        self.prefix = f"d{where.rsplit(' ', 1)[-1]}.v"  # of the names of its values
        self.inputs = frozenset(blob.inputs)
        self.slots: dict[int, Operand] = {}
        self.known: set[Var] = set()  # inputs, and what a call has written so far
        self.code: list[Instruction] = []
        self.made: dict[Var, int] = {}  # which call wrote a value last
        self.took: list[tuple[set[Var], set[int]]] = []  # of each call: constants, and the calls that made the others

    def run(self, given: Sequence[Operand], outs: Sequence[Var]) -> list[Instruction]:
        blob = self.blob
        for value_id, operand in zip(blob.inputs, given, strict=True):
            self.slots[value_id] = self._input(value_id, operand)
            self.known.update(variables(self.slots[value_id]))
        for call in blob.calls:  # first of all: an upload happens at load, wherever it stands
            if call.operator == PREPACK:
                self._prepack(call)
        for call in blob.calls:
            name = f"{call.operator} #{call.node}"
            if not call.args:
                self._fail(f"{name} has no result")
            if call.operator == PREPACK:
                continue
            args = tuple(self._read(i, f"{name} reads") for i in call.args[:-1])
            if call.operator in CHECKS:  # of sizes, which shape rules refuse where they do not fit; backends drop it
                continue
            results = tuple(self._results(call.args[-1], name))
            if taken := [i for i in self._result_ids(call) if i in self.inputs]:
                self._fail(f"{name} writes {self.operand(taken[0])!r}, which has a value already")
            self.known.update(results)
            self._note(args, results)
            self.code.append(Call(call.operator, args, results, f"{name} of {self.where}"))
        extra = len(blob.outputs) - len(outs)
        if extra < 0:
            self._fail(f"it has {len(blob.outputs)} outputs, the call takes {len(outs)}")
        values = [self._read(i, f"its output {k} is") for k, i in enumerate(blob.outputs)]
        states = self._mutated_buffers(values[:extra])
        for value_id, target in zip(blob.outputs[extra:], outs, strict=True):
            self._check_dtype("output", value_id, target)
        for source, target in zip(values, [*states, *outs], strict=True):
            if source is target:
                continue
            op = COPY if target.dtype is not None else ADD
            args = (source,) if target.dtype is not None else (source, 0)
            self.code.append(Call(op, args, (target,), f"output of {self.where}"))
        return self.code

    def _input(self, value_id: int, operand: Operand) -> Operand:
        """Return the caller's value, converted where an f16 program takes f32."""
        value = self.blob.values[value_id]
        if isinstance(value, BlobTensor):
            if not isinstance(operand, Var) or operand.dtype is None:
                self._fail(f"its input {value_id} is a tensor, the call gives {operand!r}")
            self._check_dtype("input", value_id, operand)
            if value.dtype.device is not operand.dtype.device:
                inner = Var(f"{self.prefix}{value_id}", value.dtype, value.dims, operand.dynamic)
                self.code.append(Call(COPY, (operand,), (inner,), f"input of {self.where}"))
                return inner
        return operand

    def _check_dtype(self, end: str, value_id: int, outer: Var) -> None:
        """Raise InvalidProgram unless a tensor of the blob has the elements that the call's value has.

        Outside the GPU, a tensor is of its staging type: f32 for the f16 tensors of `force_fp16`. Constants have none.
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
        """Return an operand that has a value by now."""
        operand = self.operand(value_id)
        for v in variables(operand):
            if v.kind != "constant" and v not in self.known:
                self._fail(f"{reader} {v!r}, which is no input, no constant and no result of a call before it")
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
        results = self.operand(value_id)
        listed = results if isinstance(results, tuple) else (results,)
        for r in listed:
            if not isinstance(r, Var):
                self._fail(f"value {value_id} cannot be a result of {name}")
        return [r for r in listed if isinstance(r, Var)]

    def _prepack(self, call: BlobCall) -> None:
        """Make the result of an upload the constant that is uploaded."""
        name = f"{call.operator} #{call.node}"
        if len(call.args) != 2:
            self._fail(f"{name} has {len(call.args)} values: it takes a constant and has one result")
        source, target = call.args
        constant, value = self.operand(source), self.blob.values[target]
        if not isinstance(constant, Var) or constant.kind != "constant" or source in self.inputs:
            self._fail(f"{name} uploads {constant!r}, which is no constant")
        if target in self.slots:
            self._fail(f"{name} writes {self.slots[target]!r}, which has a value already")
        if not isinstance(value, BlobTensor) or (value.dtype, value.dims) != (constant.dtype, constant.sizes):
            made = f"{value.dtype.value}{list(value.dims)}" if isinstance(value, BlobTensor) else "no tensor"
            self._fail(f"{name} makes {made} of the constant {constant!r}")
        self.slots[target] = constant

    def _constant(self, value: BlobTensor) -> np.ndarray:
        constant = self.blob.constants[value.constant]
        data = constant.data
        if data is None:
            assert constant.key is not None
            found = self.named_data.get(constant.key)
            if found is None:
                self._fail(f"constant {value.constant} ('{constant.key}') is in no file given; give its .ptd file")
            data = found.data if isinstance(found, ptd.NamedTensor) else found
        if len(data) != value.nbytes and value.nbytes:
            self._fail(
                f"constant {value.constant} needs {value.nbytes} bytes, and its data '{constant.key}' has {len(data)}; "
                "give the data that was exported with this program"
            )
        return np.frombuffer(data[: value.nbytes], value.dtype.numpy).reshape(value.dims)

    def _note(self, args: tuple[Operand, ...], results: Sequence[Var]) -> None:
        taken = variables(args)
        constants = {v for v in (*taken, *results) if v.kind == "constant"}
        self.took.append((constants, {self.made[v] for v in taken if v in self.made}))
        self.made |= dict.fromkeys(results, len(self.took) - 1)

    def _sources(self, v: Var) -> set[Var]:
        """The constants that a value was computed from."""
        found, left = set(), {self.made[v]} if v in self.made else set()
        seen = set(left)
        while left:
            constants, calls = self.took[left.pop()]
            found |= constants
            left |= calls - seen
            seen |= calls
        return found

    def _mutated_buffers(self, values: Sequence[Operand]) -> list[Var]:
        """Which constants the extra outputs are new values of. The file does not say; it must follow from it.

        A mutated buffer is computed from its old value, so the candidates are the constants of its shape that it
        depends on and that no earlier output claimed.
        """
        claimed: list[Var] = []
        for k, value in enumerate(values):
            if isinstance(value, Var) and value.kind == "constant":  # alias_buffer_mutations: written in place
                claimed.append(value)
                continue
            self._check_lasts(k, len(self.blob.outputs) - len(values))
            candidates = [
                c
                for c in (self._sources(value) if isinstance(value, Var) else ())
                if isinstance(value, Var) and (c.dtype, c.sizes) == (value.dtype, value.sizes) and c not in claimed
            ]
            if len(candidates) != 1:
                raise UnsupportedProgram(
                    f"{self.where} changes a buffer, but the file does not say which of {len(candidates)} constants "
                    "it is; export with the compile option alias_buffer_mutations=True"
                )
            claimed.append(candidates[0])
        return claimed

    def _check_lasts(self, k: int, taken: int) -> None:
        """Raise InvalidProgram if an output that the call does not take cannot be the new value of a buffer.

        Exporters write each value once among the outputs, and give an output memory that nothing takes after it.
        """
        outputs, values, value_id = self.blob.outputs, self.blob.values, self.blob.outputs[k]
        text = f"it has {len(outputs)} outputs, the call takes {taken}; its output {k} is no new value of a buffer: "
        if outputs.count(value_id) > 1:
            self._fail(f"{text}it is there {outputs.count(value_id)} times")
        memory = value.memory if isinstance(value := values[value_id], BlobTensor) else -1
        written = [(c, self._result_ids(c)) for c in self.blob.calls if c.operator != PREPACK]
        maker = next((n for n, (_, ids) in enumerate(written) if value_id in ids), len(written))
        for call, ids in written[maker + 1 :] if memory >= 0 else ():
            if any(isinstance(v := values[i], BlobTensor) and v.memory == memory for i in ids):
                self._fail(f"{text}{call.operator} #{call.node} overwrites it")

    def _result_ids(self, call: BlobCall) -> tuple[int, ...]:
        last = self.blob.values[call.args[-1]]
        return last.items if isinstance(last, ValueList) else call.args[-1:]

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidProgram(f"{self.where}: {reason}", path=self.path)
