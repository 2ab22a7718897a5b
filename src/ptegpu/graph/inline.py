"""A delegate's graph as calls on slots, with its inputs and outputs joined to the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from ..dtypes import DType
from ..errors import InvalidProgram, UnsupportedProgram
from ..format import ptd
from ..format.delegate import BlobGraph, BlobTensor, Ints, SymInt, ValueList
from ..format.pte import BoolList, FloatList
from ..limits import spend
from .linear import Call, Instruction, Operand, Var, variables
from .names import ADD, COPY, PREPACK


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
        self.slots: dict[int, Operand] = {}
        self.code: list[Instruction] = []
        self.made: dict[Var, int] = {}  # which call wrote a value last
        self.took: list[tuple[set[Var], set[int]]] = []  # of each call: constants, and the calls that made the others

    def run(self, given: Sequence[Operand], outs: Sequence[Var]) -> list[Instruction]:
        blob = self.blob
        for value_id, operand in zip(blob.inputs, given, strict=True):
            self.slots[value_id] = self._input(value_id, operand)
        for call in blob.calls:
            if not call.args:
                self._fail(f"{call.operator} #{call.node} has no result")
            args = tuple(self.operand(i) for i in call.args[:-1])
            if call.operator == PREPACK and args and isinstance(args[0], Var) and args[0].kind == "constant":
                self._prepack(call.args[-1], args[0])
                continue
            results = tuple(self._results(call.args[-1]))
            self._note(args, results)
            self.code.append(Call(call.operator, args, results, f"{call.operator} #{call.node} of {self.where}"))
        extra = len(blob.outputs) - len(outs)
        if extra < 0:
            self._fail(f"it has {len(blob.outputs)} outputs, the call takes {len(outs)}")
        values = [self.operand(i) for i in blob.outputs]
        states = self._mutated_buffers(values[:extra])
        for source, target in zip(values, [*states, *outs], strict=True):
            if source is target:
                continue
            op = COPY if target.dtype is not None else ADD
            args = (source,) if target.dtype is not None else (source, 0)
            self.code.append(Call(op, args, (target,), f"output of {self.where}"))
        return self.code

    def _input(self, value_id: int, operand: Operand) -> Operand:
        """The caller's value; a tensor of another type (f16 programs take f32) is converted."""
        value = self.blob.values[value_id]
        if isinstance(value, BlobTensor):
            if not isinstance(operand, Var) or operand.dtype is None:
                self._fail(f"its input {value_id} is a tensor, the call gives {operand!r}")
            if value.dtype.device is not operand.dtype.device:
                inner = Var(f"{self.prefix}{value_id}", value.dtype, value.dims, operand.dynamic)
                self.code.append(Call(COPY, (operand,), (inner,), f"input of {self.where}"))
                return inner
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

    def _results(self, value_id: int) -> list[Var]:
        results = self.operand(value_id)
        listed = results if isinstance(results, tuple) else (results,)
        for r in listed:
            if not isinstance(r, Var):
                self._fail(f"value {value_id} cannot be a result")
        return [r for r in listed if isinstance(r, Var)]

    def _prepack(self, value_id: int, constant: Var) -> None:
        """The upload of a constant: its result is the constant."""
        value = self.blob.values[value_id]
        if not isinstance(value, BlobTensor) or (value.dtype, value.dims) != (constant.dtype, constant.sizes):
            self._fail(f"prepack makes {value!r} out of the constant {constant!r}")
        self.slots[value_id] = constant

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
        for value in values:
            if isinstance(value, Var) and value.kind == "constant":  # alias_buffer_mutations: written in place
                claimed.append(value)
                continue
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

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidProgram(f"{self.where}: {reason}", path=self.path)
