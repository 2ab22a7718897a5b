"""Readers that turn JSON into dataclasses, one for each annotation, and check the type of every value."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints

from ..dtypes import DType
from .bundle import ARRAYS, damaged
from .plan import Expr


def literal(value: Any, where: str) -> Any:
    """Return a plain value of JSON; raise InvalidProgram for a list or an object."""
    match value:
        case {"float": str(text)} if text in ("inf", "-inf", "nan"):
            return float(text)
        case None | bool() | int() | float() | str():
            return value
    damaged(f"{where} is {str(value)[:40]!r}")


class Record:
    """An object of a bundle's JSON, with the path to it for messages."""

    def __init__(self, values: Any, where: str = "") -> None:
        if not isinstance(values, dict):
            damaged(f"{where} is not an object")
        self.values, self.where = values, where

    def path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def field(self, name: str, kind: Any, default: Any = None) -> Any:
        """Return a field of an annotated type, as `save` wrote it; raise InvalidProgram for other types."""
        try:
            return _reader(kind)(self.values.get(name, default))
        except _Mismatch as e:
            damaged(f"{self.path(name)}{e}")

    def items(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            damaged(f"{self.path(name)} is not a list")
        return value

    def record(self, name: str) -> Record:
        return Record(self.values.get(name), self.path(name))

    def records(self, name: str) -> list[Record]:
        return [Record(value, f"{self.path(name)}[{k}]") for k, value in enumerate(self.items(name))]


def read_value(kind: Any, value: Any) -> Any:
    """Return a value of an annotated type from any JSON; raise ValueError(" is …" or ".field is …") for other types."""
    return _reader(kind)(value)


class _Mismatch(ValueError):
    """A value of another type; the text starts with the path to it."""


def _mismatch(value: Any, problem: str) -> NoReturn:
    raise _Mismatch(f" is {str(value)[:40]!r}, {problem}")


Reader: TypeAlias = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    parts, origin = get_args(kind), get_origin(kind)
    if kind is Expr:
        return _read_row
    if isinstance(kind, type) and is_dataclass(kind):
        return _array_reader(kind) if kind in ARRAYS else _object_reader(kind)
    if origin is tuple:
        return _tuple_reader(parts)
    if origin in (UnionType, Union):
        return _union_reader(parts)
    if origin is dict:
        return _dict_reader(_reader(parts[1]))
    if origin is Literal or kind is DType:
        choices = {v: v for v in parts} if origin is Literal else {d.value: d for d in DType}
        names = ", ".join(map(str, choices))

        def choice(value: Any) -> Any:
            valid = type(value) is str and value in choices
            return choices[value] if valid else _mismatch(value, f"not one of {names}")

        return choice
    if kind is object:
        return _read_argument

    def scalar(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        _mismatch(value, f"expected {getattr(kind, '__name__', kind)}")

    return scalar


def _read_row(value: Any) -> Expr:
    if type(value) is list and len(value) == 1 and type(value[0]) is int:
        return Expr(value[0])
    _mismatch(value, "expected a row")


def _array_reader(kind: Any) -> Reader:
    """Return a reader for a dataclass stored as a list of its fields."""
    hints = get_type_hints(kind)
    names, readers = list(hints), [_reader(hint) for hint in hints.values()]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            _mismatch(value, f"expected the {len(readers)} fields of a {kind.__name__}")
        values: list[Any] = []
        try:
            for reader, v in zip(readers, value, strict=True):
                values.append(reader(v))
        except _Mismatch as e:
            raise _Mismatch(f".{names[len(values)]}{e}") from None
        return kind(*values)

    return read


def _object_reader(kind: Any) -> Reader:
    """Return a reader for a dataclass stored as an object, without the fields that have their defaults."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    required = {f.name for f in fields(kind) if f.default is MISSING}

    def read(value: Any) -> Any:
        if type(value) is not dict or not required <= set(value) <= set(readers):
            _mismatch(value, f"expected the fields of a {kind.__name__}")
        values, name = {}, ""
        try:
            for name, v in value.items():
                values[name] = readers[name](v)
        except _Mismatch as e:
            raise _Mismatch(f".{name}{e}") from None
        return kind(**values)

    return read


def _tuple_reader(parts: tuple[Any, ...]) -> Reader:
    repeated = parts[-1] is Ellipsis
    readers = [_reader(p) for p in parts if p is not Ellipsis]

    def read(value: Any) -> Any:
        if type(value) is not list or not (repeated or len(value) == len(readers)):
            _mismatch(value, "expected a list" if repeated else f"expected a list of {len(readers)}")
        each = itertools.repeat(readers[0]) if repeated else readers
        return tuple([reader(v) for reader, v in zip(each, value, strict=False)])

    return read


def _dict_reader(reader: Reader) -> Reader:
    """Return a reader for an object with values of one type."""

    def read(value: Any) -> Any:
        if type(value) is not dict:
            _mismatch(value, "expected an object")
        return {name: reader(v) for name, v in value.items()}

    return read


def _union_reader(parts: tuple[Any, ...]) -> Reader:
    """Return a reader for None, an int, a row, or one other type."""
    none, row, number = NoneType in parts, Expr in parts, int in parts
    rest = [_reader(p) for p in parts if p not in (NoneType, Expr, int)]

    def read(value: Any) -> Any:
        if (number and type(value) is int) or (none and value is None):
            return value
        if row and type(value) is list:
            return _read_row(value)
        return rest[0](value) if len(rest) == 1 else _mismatch(value, "which has the wrong type")

    return read


def _read_argument(value: Any, depth: int = 0) -> Any:
    """Return an argument of an operator that moves an index."""
    match value:
        case {"tuple": list(items)} if depth < 8:
            return tuple(_read_argument(x, depth + 1) for x in items)
        case [int()]:
            return _read_row(value)
    return literal(value, "an argument")
