"""Fields of a bundle's JSON as what they were, the kind of each proved: one reader for each annotation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeAlias, Union, get_args, get_origin, get_type_hints

from ..dtypes import DType
from .layout import ARRAYS
from .plan import Expr
from .prove import damaged


def literal(value: Any, where: str) -> Any:
    match value:
        case {"float": str(text)} if text in ("inf", "-inf", "nan"):
            return float(text)
        case None | bool() | int() | float() | str():
            return value
    damaged(f"{where} is {str(value)[:40]!r}")


def read_field(kind: Any, value: Any, where: str) -> Any:
    """The value that `_plain` made this of, where a field is annotated with `kind`."""
    try:
        return read_value(kind, value)
    except _Wrong as e:
        damaged(f"{where}{e}")


def read_value(kind: Any, value: Any) -> Any:
    """The same of any JSON; ValueError, with what is wrong after where it is, if that is not of this kind."""
    return _reader(kind)(value)


class _Wrong(ValueError):
    """What is wrong with a value, after where it is."""


def _no(value: Any, what: str) -> NoReturn:
    raise _Wrong(f" is {str(value)[:40]!r}, {what}")


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
        known = {v: v for v in parts} if origin is Literal else {d.value: d for d in DType}
        names = ", ".join(map(str, known))

        def choice(value: Any) -> Any:
            return known[value] if type(value) is str and value in known else _no(value, f"not one of {names}")

        return choice
    if kind is object:
        return _read_argument

    def scalar(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int:
            return float(value)
        _no(value, f"no {getattr(kind, '__name__', kind)}")

    return scalar


def _read_row(value: Any) -> Expr:
    if type(value) is list and len(value) == 1 and type(value[0]) is int:
        return Expr(value[0])
    _no(value, "no row")


def _array_reader(kind: Any) -> Reader:
    """A dataclass that is written as a list of its fields."""
    hints = get_type_hints(kind)
    readers = [(name, _reader(hint)) for name, hint in hints.items()]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            _no(value, f"not the {len(readers)} fields of a {kind.__name__}")
        found = []
        for (name, reader), v in zip(readers, value, strict=True):
            try:
                found.append(reader(v))
            except _Wrong as e:
                raise _Wrong(f".{name}{e}") from None
        return kind(*found)

    return read


def _object_reader(kind: Any) -> Reader:
    """A dataclass that is written as an object, without the fields that have their defaults."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    required = {f.name for f in fields(kind) if f.default is MISSING}

    def read(value: Any) -> Any:
        if type(value) is not dict or not required <= set(value) <= set(readers):
            _no(value, f"without the fields of a {kind.__name__}")
        found = {}
        for name, v in value.items():
            try:
                found[name] = readers[name](v)
            except _Wrong as e:
                raise _Wrong(f".{name}{e}") from None
        return kind(**found)

    return read


def _tuple_reader(parts: tuple[Any, ...]) -> Reader:
    repeated = parts[-1] is Ellipsis
    readers = [_reader(p) for p in parts if p is not Ellipsis]

    def read(value: Any) -> Any:
        if type(value) is not list or not (repeated or len(value) == len(readers)):
            _no(value, "no list" if repeated else f"no list of {len(readers)}")
        each = itertools.repeat(readers[0]) if repeated else readers
        return tuple([reader(v) for reader, v in zip(each, value, strict=False)])

    return read


def _dict_reader(reader: Reader) -> Reader:
    """Names, each with a value of one kind."""

    def read(value: Any) -> Any:
        return {name: reader(v) for name, v in value.items()} if type(value) is dict else _no(value, "no object")

    return read


def _union_reader(parts: tuple[Any, ...]) -> Reader:
    """An int or a row, a port or one of these, something or nothing."""
    none, row, whole = NoneType in parts, Expr in parts, int in parts
    rest = [_reader(p) for p in parts if p not in (NoneType, Expr, int)]

    def read(value: Any) -> Any:
        if (whole and type(value) is int) or (none and value is None):
            return value
        if row and type(value) is list:
            return _read_row(value)
        return rest[0](value) if len(rest) == 1 else _no(value, "nothing that it can be")

    return read


def _read_argument(value: Any, depth: int = 0) -> Any:
    """Of an operator that moves an index."""
    match value:
        case {"tuple": list(items)} if depth < 8:
            return tuple(_read_argument(x, depth + 1) for x in items)
        case [int()]:
            return _read_row(value)
    return literal(value, "an argument")
