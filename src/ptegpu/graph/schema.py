"""The schemas of operators, to which GPU rules and NumPy kernels bind arguments, and their traits.

    def select(x: Tensor, dim: int, index: SymInt) -> ...: ...

The positional parameters are the schema, in order. Annotations define the conversion of arguments. (The exporter
merges equal scalars, so an index may arrive as `Double(1.0)`.) They are `Tensor` (`Array` in a NumPy kernel), `int`,
`float`, `bool`, `str`, `Number`, `SymInt` (an int that a kernel may read from the GPU: a `Sym` stays one), lists of
these (`list[int]` or `Sequence[int]`; a single value becomes a list), each perhaps `| None`, and `Any` for ignored
arguments.
`options: Options` stands for dtype, layout, device and pin_memory of a new tensor: a delegate passes all four, a
kernel call none of them. They are ignored, because the program declares the result.

A symbolic int passed for a plain `int` becomes its current value.

`Traits` are what other code may rely on about an operator, whether the GPU or the host runs it. Rules for the GPU
(`@op`) and NumPy kernels (`@portable`) declare them where they are registered. The types of their values come from
`ops/`, which is not imported here, so that a host step of a bundle does not load it.
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
Role = Literal["", "product", "norm", "attention", "rotary", "cache", "pages", "row"]

REQUIRED = inspect.Parameter.empty  # marks a parameter without a default
OPTIONS = ("dtype", "layout", "device", "pin_memory")


class _Options:
    """The type of a parameter for four ignored arguments (see the module)."""


Options: TypeAlias = _Options | None


class Parameter(NamedTuple):
    """A positional parameter."""

    name: str
    convert: Convert = lambda a: a
    default: Any = REQUIRED
    kinds: Kinds = frozenset({Any})  # of its values


@dataclass(frozen=True, eq=False, slots=True)
class Schema:
    """An operator's parameters in order."""

    name: str
    parameters: tuple[Parameter, ...]

    def bind(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments converted as the parameters require; trailing ones may be omitted for their defaults."""
        placed = self.place(args)
        if len(placed) > len(self.parameters):
            limit = len(self.parameters) + len(args) - len(placed)
            raise InvalidProgram(f"{self.name} takes {limit} arguments, the program gives {len(args)}")
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
                text = f"{self.name}: argument '{p.name}' cannot be {describe(placed[k])} ({e})"
                raise InvalidProgram(text) from None
        return values

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the bound arguments by the names of their parameters."""
        return {p.name: value for p, value in zip(self.parameters, self.bind(args), strict=True)}

    def operands(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the unconverted arguments by parameter name, with defaults for omitted ones."""
        placed = self.place(args)
        return {p.name: placed[k] if k < len(placed) else p.default for k, p in enumerate(self.parameters)}

    def place(self, args: Sequence[Any]) -> Sequence[Any]:
        """Return one argument per parameter: `Options`, four arguments or none, become a single None."""
        at = next((k for k, p in enumerate(self.parameters) if _Options in p.kinds), len(args))
        if len(args) <= at:
            return args
        count = len(OPTIONS) if len(args) >= len(self.parameters) else 0
        return (*args[:at], None, *args[at + count :])


@dataclass(frozen=True, eq=False, kw_only=True)
class Traits:
    """Properties of an operator that other code relies on. Decorators take them as keywords, and parameters by name."""

    # Effects: what a call changes, and what changes a call.
    mutates: tuple[int, ...] = ()  # parameters written in place (states)
    hollow: bool = False  # no kernel writes its result, and a program that reads it finds zeros

    # Exactness: which calls the GPU computes as PyTorch would. The host runs the others.
    fits: Fits | None = None  # the tensors it takes (None: any that a GPU holds), declared as text: see `fits.py`
    wide: bool = False  # only moves or compares values, so int64 narrowed with a range check stays exact
    moves: bool = False  # its results have elements of the first argument only, in any order and number
    serves: Serves | None = None  # whether the GPU takes a call: bound arguments, tensors as the program declares them

    # Values: facts about ints and sizes without running it, from operands by name.
    span: SpanRule | None = None  # the range of its first result
    elements: tuple[str, ...] = ()  # parameters whose elements that result has (implies `wide`); for `moves`: the first
    places: int | None = None  # which result holds indices of elements of the first argument
    sums: bool = False  # adds or multiplies ints, in int64 unless its parameter `dtype` names another type
    casts: bool = False  # converts to the dtype of its result
    multiplies: bool = False  # its result is the product of its two arguments
    tests_zero: ZeroTest | None = None  # whether its result marks the nonzero elements of the first argument
    neutral: int | None = None  # a second argument with which its result is the first one
    prefix: PrefixRule | None = None  # the sizes of its result, if a smaller result has its first elements

    # Indices: which arguments are indices, and their bounds at the live shapes, from bound arguments.
    indexes: Indexes | None = None

    # Fusion: what passes may do with it.
    splits: tuple[int, ...] = ()  # parameters that may be constants in parts (`Tensor.parts`)
    role: Role = ""  # in fused nodes: the kind of its last step, or of its only one

    by_row: ByRow = ""  # how each row of its result follows from the same row of its first argument, if it does
    by_channel: ByChannel | None = None  # the factor and the offset that it applies to each channel
    rescaled: Rescaled | None = None  # the arguments that include such factors and offsets; None if impossible

    walks: Walks | None = None  # how strides over its first argument become strides over a result: see `walks.py`

    # Symbolic ints.
    whole: bool = False  # the result is an int for any dtype of the argument
    reads: bool = False  # the result is the element of the first argument at the flat index that the rule returns

    def copies(self, args: Sequence[object]) -> bool:
        """Return whether a call with these arguments returns the first one."""
        return self.neutral is not None and args[1:] == (self.neutral,)


def describe(value: Any) -> str:
    """Return an argument as text for a message: an array as its type and shape."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{', '.join(map(describe, value))}]"
    return repr(value)


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the schema that a function's signature declares."""
    parameters = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            continue
        try:
            if p.annotation is p.empty:
                raise KeyError(p.name)
            kinds, convert = _meaning(p.annotation, function.__globals__)
            default = list(p.default) if isinstance(p.default, tuple) else p.default
            parameters.append(Parameter(p.name, convert, default, kinds))
        except KeyError:
            raise TypeError(
                f"parameter '{p.name}' of {function.__name__} needs an annotation: Tensor, int, float, bool, str, "
                "Number or SymInt, a list of one of these, each perhaps | None, or Any"
            ) from None
    return tuple(parameters)


_meanings: dict[tuple[str, int], tuple[Kinds, Convert]] = {}


def _meaning(annotation: Any, names: dict[str, Any]) -> tuple[Kinds, Convert]:
    """Return the kinds and the conversion of an annotation, evaluated once per module."""
    if not isinstance(annotation, str):
        kinds = kinds_of(annotation)
        return kinds, _converter(kinds)
    key = annotation, id(names)
    if key not in _meanings:
        _meanings[key] = _meaning(eval(annotation, names), names)
    return _meanings[key]


def kinds_of(hint: Any) -> Kinds:
    """Return the kinds of an annotation: {{int}, NoneType} for `list[int] | None`; int includes bool."""
    if isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = frozenset[Any]().union(*map(kinds_of, typing.get_args(hint)))
        return kinds - {bool} if int in kinds else kinds
    if typing.get_origin(hint) in (list, Sequence):
        return frozenset({kinds_of(typing.get_args(hint)[0])})
    return frozenset({Tensor if hint is np.ndarray else type(None) if hint is None else hint})


def _converter(kinds: Kinds) -> Convert:
    """Return the conversion to values of these kinds."""
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


def _number(a: Any) -> Number:
    return a.value if isinstance(a, Sym) else _scalar(a)


def _str(a: Any) -> str:
    if not isinstance(a, str):
        raise TypeError("a string is required")
    return a


_CONVERTERS: dict[Kinds, Convert] = {
    frozenset({Any}): lambda a: a,
    frozenset({_Options}): lambda a: None,
    frozenset({Tensor}): _tensor,
    frozenset({int}): _int,
    frozenset({float}): lambda a: real(_number(a)),
    frozenset({bool}): lambda a: bool(int(_scalar(a))),
    frozenset({str}): _str,
    frozenset({int, float}): _number,
    frozenset({int, Sym}): lambda a: a if isinstance(a, Sym) else _int(a),
    frozenset({Tensor, int, float}): lambda a: (
        _tensor(a) if isinstance(a, Tensor | np.ndarray | np.generic) else _number(a)
    ),
}
