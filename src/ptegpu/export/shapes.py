"""The sizes that inputs of a traced program may have; a `.pte` records only their upper bounds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._sympy.value_ranges import bound_sympy

from ..errors import ExportError, ShapeError
from .backend import torch

Shape: TypeAlias = tuple[int, ...]
SPECIAL = 2  # PyTorch reports a lower bound of 2 for programs that accept 0 and 1 as well


@dataclass(frozen=True)
class InputShapes:
    """The sizes of each input, as ints and expressions, and the ranges of their symbols."""

    names: tuple[str, ...]  # of PyTorch
    inputs: tuple[tuple[Any, ...] | None, ...]  # None: not a tensor
    ranges: Mapping[sympy.Symbol, Any]

    @staticmethod
    def of(program: ExportedProgram) -> InputShapes:
        values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
        names = tuple(s.arg.name for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT)
        inputs = tuple(
            tuple(d if isinstance(d, int) else d.node.expr for d in v.shape) if isinstance(v, torch.Tensor) else None
            for v in map(values.get, names)
        )
        return InputShapes(names, inputs, program.range_constraints)

    def bounds(self) -> list[list[tuple[int, int]]]:
        """Return the smallest and the largest size of each dimension of each tensor input."""
        return [[self._range(size) for size in sizes] for sizes in self.inputs if sizes is not None]

    def _range(self, size: Any) -> tuple[int, int]:
        if isinstance(size, int):
            return size, size
        bounds = bound_sympy(size, self.ranges)
        return int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else sys.maxsize

    def check_bounds(self) -> None:
        """Raise ExportError if a size has no upper bound: memory is allocated for the largest."""
        for name, sizes in zip(self.names, self.inputs):
            for k, size in enumerate(sizes or ()):
                if not isinstance(size, int) and any(self._range(s)[1] >= sys.maxsize for s in size.free_symbols):
                    raise ExportError(
                        f'{name}: dimension {k} has no largest size: give one, as in torch.export.Dim("n", max=64)'
                    )

    def check(self, shapes: Sequence[Shape | None], names: Sequence[str]) -> None:
        """Raise ShapeError for a size that a call may not have. Ranks are not checked."""
        values: dict[sympy.Symbol, int] = {}
        tensors = [(n, e, s) for n, e, s in zip(names, self.inputs, shapes) if e is not None and s is not None]
        sizes = [(n, s, k, e, g) for n, es, s in tensors if len(es) == len(s) for k, (e, g) in enumerate(zip(es, s))]
        for name, shape, k, expected, size in sorted(sizes, key=lambda row: not isinstance(row[3], int | sympy.Symbol)):
            if not isinstance(expected, int):
                expected = self._value(expected, size, values)
            if isinstance(expected, tuple):
                low, high = expected
                raise ShapeError(f"dimension {k} of {name} must be from {low} to {high}, not {size} (of {list(shape)})")
            if size != expected:
                raise ShapeError(f"dimension {k} of {name} must be {expected}, not {size} (of {list(shape)})")

    def _value(self, expression: Any, size: int, values: dict[sympy.Symbol, int]) -> int | tuple[int, int]:
        """Return the size that a dimension must have; or the range of a symbol, if the size leads out of it."""
        unknown = expression.free_symbols - values.keys()
        if len(unknown) == 1:
            (symbol,) = unknown
            roots = [size] if expression == symbol else sympy.solve(expression.subs(values) - size, symbol)
            integers = [int(x) for x in roots if x == int(x)]
            if not integers:
                return -1
            values[symbol] = integers[0]
            low, high = self._range(symbol) if symbol in self.ranges else (0, sys.maxsize)
            if integers[0] > high or (integers[0] < low and low > SPECIAL):
                return (low if low > SPECIAL else 0), high
        return size if expression.free_symbols - values.keys() else int(expression.subs(values))
