"""What operators take: one schema per operator, to which its GPU rule and its NumPy kernel both bind their arguments.

    def select(x: Tensor, dim: int, index: SymInt) -> ...: ...

The positional parameters are the schema, in order. Annotations say what becomes of what the file has (the exporter
merges equal scalars, so an index may arrive as `Double(1.0)`): `Tensor` (`Array` in a NumPy kernel), `int`, `float`,
`bool`, `str`, `Number`, `SymInt` (an int that a kernel may read from the GPU: a `Sym` is handed on), lists of these
(`list[int]` or `Sequence[int]`; a single value is a list of one), each perhaps `| None`, and `Any` for what is ignored.
`options: Options` stands for dtype, layout, device and pin_memory of a new tensor: a delegate gives all four, a
kernel call none of them, and no kernel needs them, because the program declares the result.

A symbolic int given for a plain `int` is its value now.

`Traits` are what the rest of the code may rely on about an operator, whether the GPU or the host runs it. Rules for the
GPU (`@op`) and NumPy kernels (`@portable`) declare them where they are registered. The types of their values are those
of `ops/`, which is not imported here, so that a host step of a bundle needs none of it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..errors import InvalidProgram
from ..sizes import Size, real
from .graph import Sym, Tensor

if TYPE_CHECKING:
    from ..ops.fits import Fits
    from ..ops.prefix_stable import Rule as PrefixRule
    from ..ops.registry import Bounded
    from ..ops.spans import Operands
    from ..ops.spans import Rule as SpanRule
    from .graph import Arg

Number: TypeAlias = int | float
SymInt: TypeAlias = int | Sym
Convert = Callable[[Any], Any]
Kinds: TypeAlias = frozenset[Any]  # types, `Any`, and the kinds of a list's items
Indexes = Callable[[Mapping[str, Any]], "Iterable[Bounded]"]
Serves = Callable[[Mapping[str, Any]], bool]
ByChannel = Callable[[Mapping[str, Any]], "tuple[np.ndarray, np.ndarray] | None"]
Rescaled = Callable[[Mapping[str, Any], np.ndarray, np.ndarray], "tuple[Arg, ...] | None"]
Walks = Callable[[Mapping[str, Any], Any, Tensor, int], Any]
ZeroTest = Callable[["Operands"], bool]
ByRow = Literal["", "product", "norm", "elements"]
Role = Literal["", "product", "norm", "attention", "rotary", "cache", "row"]

REQUIRED = inspect.Parameter.empty  # the default of a parameter that has none
OPTIONS = ("dtype", "layout", "device", "pin_memory")


class _Options:
    """Nothing: see the module."""


Options: TypeAlias = _Options | None


class Parameter(NamedTuple):
    """One positional parameter."""

    name: str
    convert: Convert = lambda a: a
    default: Any = REQUIRED
    kinds: Kinds = frozenset({Any})  # what a value can be


@dataclass(frozen=True, eq=False, slots=True)
class Schema:
    """An operator's parameters in order."""

    name: str
    parameters: tuple[Parameter, ...]

    def bind(self, args: Sequence[Any]) -> list[Any]:
        """The arguments as the parameters want them; trailing ones may be left to their defaults."""
        placed = self.place(args)
        if len(placed) > len(self.parameters):
            most = len(self.parameters) + len(args) - len(placed)
            raise InvalidProgram(f"{self.name} takes {most} arguments, the program gives {len(args)}")
        values = []
        for k, p in enumerate(self.parameters):
            if k >= len(placed):
                if p.default is REQUIRED:
                    raise InvalidProgram(f"{self.name}: argument '{p.name}' is missing")
                values.append(p.default)
                continue
            try:
                values.append(p.convert(placed[k]))
            except (TypeError, ValueError, OverflowError) as e:
                given = f"argument '{p.name}' cannot be {describe(placed[k])}"
                raise InvalidProgram(f"{self.name}: {given} ({e})") from None
        return values

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """The bound arguments by the names of their parameters."""
        return {p.name: value for p, value in zip(self.parameters, self.bind(args), strict=True)}

    def operands(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments as they are by the names of their parameters, with the defaults of those left out."""
        placed = self.place(args)
        return {p.name: placed[k] if k < len(placed) else p.default for k, p in enumerate(self.parameters)}

    def place(self, args: Sequence[Any]) -> Sequence[Any]:
        """One argument per parameter: `Options`, which are four arguments or none, become one None."""
        at = next((k for k, p in enumerate(self.parameters) if _Options in p.kinds), len(args))
        if len(args) <= at:
            return args
        given = len(OPTIONS) if len(args) >= len(self.parameters) else 0
        return (*args[:at], None, *args[at + given :])


@dataclass(frozen=True, eq=False, kw_only=True)
class Traits:
    """What others may rely on about an operator. Decorators take these by name, and parameters by theirs."""

    # Effects: what a call changes, and what changes a call.
    mutates: tuple[int, ...] = ()  # parameters written in place (states)
    hollow: bool = False  # its result holds nothing: no kernel writes it, and a program that looks finds zeros

    # Exactness: which calls the GPU computes as PyTorch would. The host has the others.
    fits: Fits | None = None  # what its tensors must be; None: any that a GPU holds. Given as text: see `fits.py`
    wide: bool = False  # moves or compares values only, so int64 narrowed with a range check stays exact
    moves: bool = False  # results have elements of the first argument only, in any order and number
    serves: Serves | None = None  # whether the GPU takes a call: of bound arguments, tensors as the program declares

    # Values: what follows about ints and sizes without running it. Of operands by name.
    span: SpanRule | None = None  # the range of its first result
    elements: tuple[str, ...] = ()  # parameters whose elements that has (so it is wide); of what moves: the first
    places: int | None = None  # which result has numbers of elements of the first argument
    sums: bool = False  # adds or multiplies ints, in int64 unless its parameter `dtype` names another type
    casts: bool = False  # converts to the dtype of its result
    multiplies: bool = False  # its result is the product of its two arguments
    tests_zero: ZeroTest | None = None  # whether its result says which elements of the first argument are not 0
    neutral: int | None = None  # a second argument with which its result is the first one
    prefix: PrefixRule | None = None  # the sizes of its result, if smaller ones see the first elements of it

    # Indices: which arguments name elements, and their bounds at the live shapes. Of bound arguments.
    indexes: Indexes | None = None

    # Joining: what passes may make of it.
    splits: tuple[int, ...] = ()  # parameters that may be constants in parts (`Tensor.parts`)
    role: Role = ""  # in fused nodes: its last step is a `Product`, or its only one another work of that kind

    by_row: ByRow = ""  # how each row of its result follows from the same row of its first argument, if it does
    by_channel: ByChannel | None = None  # what each channel of its first argument is multiplied with, and what is added
    rescaled: Rescaled | None = None  # the arguments by which its result has such factors; None where that cannot be

    walks: Walks | None = None  # how strides over its first argument become those over a result: see `walks.py`

    # Symbolic ints.
    whole: bool = False  # the result is an int whatever the argument's dtype
    reads: bool = False  # the result is an element of the first argument: the rule says which of all

    def copies(self, args: Sequence[object]) -> bool:
        """Return whether a call with these arguments gives the first one."""
        return self.neutral is not None and args[1:] == (self.neutral,)


def describe(value: Any) -> str:
    """An argument in a message: an array by its type and shape."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{', '.join(map(describe, value))}]"
    return repr(value)


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The schema that a function's signature declares."""
    found = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            continue
        try:
            if p.annotation is p.empty:
                raise KeyError(p.name)
            kinds, convert = _meaning(p.annotation, function.__globals__)
            default = list(p.default) if isinstance(p.default, tuple) else p.default
            found.append(Parameter(p.name, convert, default, kinds))
        except KeyError:
            raise TypeError(
                f"parameter '{p.name}' of {function.__name__} needs an annotation: Tensor, int, float, bool, str, "
                "Number or SymInt, a list of one of these, each perhaps | None, or Any"
            ) from None
    return tuple(found)


_meanings: dict[tuple[str, int], tuple[Kinds, Convert]] = {}


def _meaning(annotation: Any, names: dict[str, Any]) -> tuple[Kinds, Convert]:
    """What an annotation allows and asks for. Few are written in a module, each of them often: evaluated once."""
    if not isinstance(annotation, str):
        kinds = kinds_of(annotation)
        return kinds, _converter(kinds)
    key = annotation, id(names)
    if key not in _meanings:
        _meanings[key] = _meaning(eval(annotation, names), names)
    return _meanings[key]


def kinds_of(hint: Any) -> Kinds:
    """What an annotation allows: `list[int] | None` is {{int}, NoneType}; a bool counts as an int where both may be."""
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        found = frozenset[Any]().union(*map(kinds_of, typing.get_args(hint)))
        return found - {bool} if int in found else found
    if typing.get_origin(hint) in (list, Sequence):
        return frozenset({kinds_of(typing.get_args(hint)[0])})
    return frozenset({Tensor if hint is np.ndarray else type(None) if hint is None else hint})


def _converter(kinds: Kinds) -> Convert:
    """The coercion that an annotation asks for."""
    some = kinds - {type(None)}
    if len(some) == 1 and isinstance(kind := next(iter(some)), frozenset):
        item = _converter(kind)
        convert: Convert = lambda a: [item(x) for x in (a if isinstance(a, tuple | list) else (a,))]
    else:
        convert = _CONVERTERS[some]
    if Any in kinds or some != kinds:
        return lambda a: None if a is None else convert(a)

    def coerce(a: Any) -> Any:
        if a is None:
            raise TypeError("a value is required")
        return convert(a)

    return coerce


def _tensor(a: Any) -> Any:
    if isinstance(a, np.generic):
        return np.asarray(a)
    if not isinstance(a, Tensor | np.ndarray):
        raise TypeError("a tensor is required")
    return a


def _scalar(a: Any) -> Any:
    if isinstance(a, Tensor | np.ndarray | tuple | list | str):
        raise TypeError("a scalar is required")
    return a.item() if isinstance(a, np.generic) else a


def _int(a: Any) -> int:
    if isinstance(a, float) and not a.is_integer():
        raise ValueError("an integer is required")
    return a.value if isinstance(a, Sym) else a if isinstance(a, Size) else int(_scalar(a))  # type: ignore[return-value]


def _float(a: Any) -> float:
    return real(a.value if isinstance(a, Sym) else _scalar(a))


def _number(a: Any) -> Number:
    return a.value if isinstance(a, Sym) else _scalar(a)


def _str(a: Any) -> str:
    if not isinstance(a, str):
        raise TypeError("a string is required")
    return a


def _either(a: Any) -> Any:
    return _tensor(a) if isinstance(a, Tensor | np.ndarray | np.generic) else _number(a)


_CONVERTERS: dict[Kinds, Convert] = {
    frozenset({Any}): lambda a: a,
    frozenset({_Options}): lambda a: None,
    frozenset({Tensor}): _tensor,
    frozenset({int}): _int,
    frozenset({float}): _float,
    frozenset({bool}): lambda a: bool(int(_scalar(a))),
    frozenset({str}): _str,
    frozenset({int, float}): _number,
    frozenset({int, Sym}): lambda a: a if isinstance(a, Sym) else _int(a),
    frozenset({Tensor, int, float}): _either,
}
