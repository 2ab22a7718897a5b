"""The sizes that inputs of a traced program may have: a `.pte` only says how large they are at most."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..errors import ExportError, ShapeError
from .backend import torch

Shape: TypeAlias = tuple[int, ...]
SPECIAL = 2  # PyTorch says from 2 on where the program takes 0 and 1 as well


@dataclass(frozen=True)
class Shapes:
    """The sizes of each input, as ints and expressions, and the ranges of what these are made of."""

    names: tuple[str, ...]  # as PyTorch calls them
    inputs: tuple[tuple[Any, ...] | None, ...]  # None: it is no tensor
    ranges: Mapping[sympy.Symbol, tuple[int, int]]

    @staticmethod
    def of(program: ExportedProgram) -> Shapes:
        values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
        names = tuple(s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT)
        found = [values.get(name) for name in names]
        inputs = tuple(tuple(map(_expression, v.shape)) if isinstance(v, torch.Tensor) else None for v in found)
        ranges = {symbol: (_int(r.lower), _int(r.upper)) for symbol, r in program.range_constraints.items()}
        return Shapes(names, inputs, ranges)

    def check_bounds(self) -> None:
        """Raises if a size has no largest value: memory is allocated for it."""
        for name, sizes in zip(self.names, self.inputs):
            for k, size in enumerate(sizes or ()):
                if not isinstance(size, int) and any(self.ranges[s][1] >= sys.maxsize for s in size.free_symbols):
                    raise ExportError(
                        f'{name}: dimension {k} has no largest size: give one, as in torch.export.Dim("n", max=64)'
                    )

    def check(self, given: Sequence[Shape | None], names: Sequence[str]) -> None:
        """Raises ShapeError where a size is another one than a call may have. Ranks are not looked at."""
        values: dict[sympy.Symbol, int] = {}
        tensors = [(n, e, s) for n, e, s in zip(names, self.inputs, given) if e is not None and s is not None]
        sizes = [(n, s, k, e, g) for n, es, s in tensors if len(es) == len(s) for k, (e, g) in enumerate(zip(es, s))]
        for name, shape, k, expected, size in sorted(sizes, key=lambda row: not isinstance(row[3], int | sympy.Symbol)):
            if not isinstance(expected, int):
                expected = self._value(expected, size, values)
            if isinstance(expected, tuple):
                low, high = expected
                raise ShapeError(f"dimension {k} of {name} must be from {low} to {high}, not {size} (of {list(shape)})")
            if size != expected:
                raise ShapeError(f"dimension {k} of {name} must be {expected}, not {size} (of {list(shape)})")

    def _value(self, size: Any, given: int, values: dict[sympy.Symbol, int]) -> int | tuple[int, int]:
        """What a size must be; or the range that it is not in."""
        unknown = size.free_symbols - values.keys()
        if len(unknown) == 1:
            (symbol,) = unknown
            found = [given] if size == symbol else sympy.solve(size.subs(values) - given, symbol)
            whole = [int(x) for x in found if x == int(x)]
            if not whole:
                return -1
            values[symbol] = whole[0]
            low, high = self.ranges.get(symbol, (0, sys.maxsize))
            if whole[0] > high or (whole[0] < low and low > SPECIAL):
                return (low if low > SPECIAL else 0), high
        return given if size.free_symbols - values.keys() else int(size.subs(values))


def _expression(size: int | torch.SymInt) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _int(bound: Any) -> int:
    return int(bound) if bound.is_Integer else sys.maxsize
