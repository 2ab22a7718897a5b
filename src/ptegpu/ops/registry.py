"""The registry: an operator is one decorated function, and nothing else in the code base lists operators.

    @op("et_vk.rms_norm.default")
    def rms_norm(x: Tensor, weight: Tensor, eps: float, *, target: Target) -> Steps:
        out = yield Out(x.shape, x.dtype)                      # the shape rule: live shapes in, live shape out
        yield Dispatch(kernel(...), (x, weight), (out,), params={...}, groups=...)

The parameters are the operator's schema in order, and their annotations say what the importer makes of the exporter's
scalars (an index may arrive as `Double(1.0)`): `Tensor`, `Tensor | None`, `int`, `float`, `bool`, `str`, `Number`,
`SymInt` (an int that a kernel may read from the GPU: passed through as `Sym`), `list[...]` of these, each `| None`, and
`Any` for what the operator ignores.
Keyword-only parameters are filled in by the lowering if present: `target` (what the adapter can do) and `outs` (the
declared outputs: dtype and maximum shape). First come as many `Out`s as there are outputs, and running a rule for its
shapes stops there; then `Dispatch`, `Scratch`, and `Work`, which says what is computed and is made dispatches later.

A symbolic int given for a plain `int` is its value now: the plan is made again when it changes.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from ..dtypes import DType
from ..errors import InvalidProgram, PtegpuError, ShapeError
from ..graph.graph import Arg, Shape, Sym, Tensor
from ..kernels.wgsl import KernelSpec
from ..plan.target import Target
from ..sizes import Size

OPTIONS = ("dtype", "layout", "device", "pinned", "pin_memory")  # of a new tensor
NONSENSE = (ArithmeticError, LookupError, ValueError)  # what Python raises where a program's numbers make no sense

Number: TypeAlias = int | float
SymInt: TypeAlias = int | Sym


@dataclass(frozen=True, slots=True)
class Out:
    """The live shape of the next output; a dtype, if given, must be the declared one."""

    shape: Sequence[int]
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary that lives for this node only; the `yield` returns it as a Tensor."""

    shape: Sequence[int]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Formula:
    """What an elementwise dispatch computes, for the pass that joins several into one."""

    body: str  # over `a`, `b`, `c`, … and the scalars' names
    operands: tuple[Tensor | int | float, ...]
    scalars: Mapping[str, int | float]
    compute: DType | None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch over `groups` workgroups. `params` may hold Syms for parameters of type `sym`.

    For profiles: `flops` of products, convolutions and attention; `read_bytes` and `write_bytes` where a launch needs
    less than its operands hold; `label` where it is not the node's name that says what is computed.
    """

    kernel: KernelSpec
    read: Sequence[Tensor]
    write: Sequence[Tensor]
    groups: int
    params: Mapping[str, int | float | Sym] = field(default_factory=dict)
    formula: Formula | None = None
    flops: int = 0
    read_bytes: int | None = None
    write_bytes: int | None = None
    label: str = ""


class Bounded(NamedTuple):
    """Values that name elements: each is from `low` to below `end`. The host checks those that it knows before a run;
    a kernel must not leave a buffer with any others."""

    values: Tensor | SymInt
    low: int
    end: int


class Work:
    """What is to be computed, as data: a record that a joined node can add to before it becomes dispatches."""

    __slots__ = ()

    def steps(self, target: Target) -> Steps:
        """The scratch and dispatches, or further work, that compute it."""
        raise NotImplementedError


Step: TypeAlias = Out | Scratch | Dispatch | Work
Steps: TypeAlias = Generator[Step, Any, None]
Rule = Callable[..., Steps]
Indexes = Callable[[Mapping[str, Any]], Iterable[Bounded]]  # of the arguments by name
Serves = Callable[[Mapping[str, Any]], bool]  # of the operands by name: slots (`dtype`, `sizes`), numbers, None, tuples
Convert = Callable[[Arg], Any]
Role = Literal["", "product", "norm"]


@dataclass(frozen=True, eq=False, slots=True)
class OpDef:
    """A registered operator. Exactly one of `steps`, `view`, `sym` says what it does."""

    name: str
    parameters: tuple[
        tuple[str, Convert, bool, Any], ...
    ]  # (name, coercion, keeps Sym, default or inspect.Parameter.empty)
    wants: frozenset[str]  # of the keyword-only parameters: "target", "outs"
    steps: Rule | None = None
    view: Callable[..., Sequence[int]] | None = None  # returns the shape; same elements, maybe another dtype
    sym: Callable[..., int] | None = None  # computed by the host before the run
    mutates: tuple[int, ...] = ()  # parameters written in place (states)
    splits: tuple[int, ...] = ()  # parameters that may be constants in parts (`Tensor.parts`)
    positions: tuple[int, ...] = ()  # parameters that kernels read and no shape depends on
    dtypes: tuple[DType, ...] = ()  # of the first tensor; empty: any that a GPU holds
    wide: bool = False  # moves or compares values only, so int64 narrowed with a range check stays exact
    moves: bool = False  # results have elements of the first argument only, in any order and number
    indexes: Indexes | None = None  # which arguments are indices from data, and their bounds
    serves: Serves | None = None  # whether the GPU takes a call; without it, all
    numbers: tuple[int, ...] = ()  # parameters that are scalars of the tensors' kind
    role: Role = ""  # in joined nodes: its last step is a `Product`, or its only one a `Norm` of its first argument
    doc: str = ""

    def bind(self, args: Sequence[Arg]) -> list[Any]:
        """The arguments as the function wants them; trailing ones may be left to their defaults."""
        if len(args) > len(self.parameters):
            raise InvalidProgram(f"{self.name} takes {len(self.parameters)} arguments, the program gives {len(args)}")
        values = []
        for k, (name, convert, _, default) in enumerate(self.parameters):
            if k >= len(args):
                if default is inspect.Parameter.empty:
                    raise InvalidProgram(f"{self.name}: argument '{name}' is missing")
                values.append(default)
                continue
            try:
                values.append(convert(args[k]))
            except (TypeError, ValueError, OverflowError) as e:
                raise InvalidProgram(f"{self.name}: argument '{name}' cannot be {args[k]!r} ({e})") from None
        return values

    def infer(self, args: Sequence[Arg], outs: Sequence[Tensor]) -> list[Shape]:
        """Live output shapes from live input shapes: the rule runs up to its last `Out`."""
        try:
            return self._infer(args, outs)
        except PtegpuError:
            raise
        except (*NONSENSE, TypeError, StopIteration) as e:
            raise _refused(args, e) from e

    def _infer(self, args: Sequence[Arg], outs: Sequence[Tensor]) -> list[Shape]:
        values = self.bind(args)
        if self.view is not None:
            return [tuple(self.view(*values))]
        assert self.steps is not None
        steps = self.steps(*values, **self.extras(Target(), outs))
        shapes: list[Shape] = []
        step = next(steps)
        while True:
            if not isinstance(step, Out) or len(shapes) == len(outs):
                raise TypeError(f"{self.name}: the rule must yield {len(outs)} Outs before anything else")
            out = outs[len(shapes)]
            if step.dtype is not None and step.dtype is not out.dtype:
                raise InvalidProgram(
                    f"{self.name}: the result is {step.dtype.value}, the program says {out.dtype.value}"
                )
            shapes.append(tuple(step.shape))
            if len(shapes) == len(outs):
                steps.close()
                return shapes
            step = steps.send(out)

    def steps_into(self, args: Sequence[Arg], outs: Sequence[Tensor], target: Target, *, whole: bool = False) -> Steps:
        """The rule's steps with its results in `outs`: scratch and dispatches, and with `whole` work as it is."""
        assert self.steps is not None
        steps = self.steps(*self.bind(args), **self.extras(target, outs))
        left = iter(outs)
        reply: Tensor | None = None
        try:
            while True:
                step = steps.send(reply)
                reply = None
                if isinstance(step, Out):
                    reply = next(left, None)
                    if reply is None:
                        raise InvalidProgram(f"it has more results than the {len(outs)} that the program takes")
                elif isinstance(step, Work) and not whole:
                    yield from _worked(step, target)
                else:
                    reply = yield step
        except StopIteration:
            return
        except PtegpuError:
            raise
        except NONSENSE as e:
            raise _refused(args, e) from e

    def extras(self, target: Target, outs: Sequence[Tensor]) -> dict[str, Any]:
        """The keyword-only parameters that the rule asked for."""
        given = {"target": target, "outs": tuple(outs)}
        return {k: given[k] for k in self.wants}

    def bounds(self, args: Sequence[Arg]) -> list[Bounded]:
        """The indices among the arguments, with what they may be at the live shapes; none if the rule refuses those."""
        if self.indexes is None:
            return []
        try:
            return list(self.indexes(dict(zip((name for name, *_ in self.parameters), self.bind(args), strict=True))))
        except (PtegpuError, *NONSENSE):
            return []

    def takes(self, operands: Sequence[Any]) -> bool:
        """Whether the GPU serves a call with these operands; what does not fit the schema is the rule's to refuse."""
        if self.serves is None:
            return True
        try:
            return self.serves(dict(zip((name for name, *_ in self.parameters), operands, strict=False)))
        except (AttributeError, LookupError, TypeError, ValueError):
            return True

    def without_options(self, args: Sequence[Any]) -> list[Any]:
        """The arguments that an out variant has too: it takes its dtype, layout and device from the result."""
        return [a for a, (name, *_) in zip(args, self.parameters, strict=False) if name not in OPTIONS]

    def baked(self, args: Sequence[Arg]) -> list[Sym]:
        """Symbolic ints that the lowering sees by value only: a plan holds for these values alone."""
        found: list[Sym] = []
        for a, (_, _, keeps, _) in zip(args, self.parameters, strict=False):
            if not keeps:
                found += [s for s in (a if isinstance(a, tuple) else (a,)) if isinstance(s, Sym)]
        return found


REGISTRY: dict[str, OpDef] = {}


def _worked(work: Work, target: Target) -> Steps:
    """The steps of a work, without any further work among them."""
    steps = work.steps(target)
    reply: Tensor | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        if isinstance(step, Work):
            reply = None
            yield from _worked(step, target)
        else:
            reply = yield step


def _refused(args: Sequence[Arg], e: Exception) -> ShapeError:
    shown = ", ".join(map(repr, args))
    return ShapeError(f"cannot compute with ({shown if len(shown) < 200 else shown[:200] + ' …'}): {e}")


def op(
    *names: str,
    mutates: Sequence[str] = (),
    splits: Sequence[str] = (),
    positions: Sequence[str] = (),
    dtypes: Sequence[DType] = (),
    wide: bool = False,
    moves: bool = False,
    indexes: Indexes | None = None,
    serves: Serves | None = None,
    role: Role = "",
) -> Callable[[Rule], Rule]:
    """Register a generator of steps under each name; see `OpDef` for what the rest says. What moves is wide."""

    def register(rule: Rule) -> Rule:
        define(
            names,
            rule,
            "steps",
            mutates=mutates,
            splits=splits,
            positions=positions,
            dtypes=dtypes,
            wide=wide or moves,
            moves=moves,
            indexes=indexes,
            serves=serves,
            role=role,
        )
        return rule

    return register


def view(*names: str) -> Callable[[Callable[..., Sequence[int]]], Callable[..., Sequence[int]]]:
    """Register an operator whose result has the elements of its first argument in the same order.

    The function returns the shape. It costs nothing where the dtypes agree; otherwise it is a cast.
    """

    def register(rule: Callable[..., Sequence[int]]) -> Callable[..., Sequence[int]]:
        define(names, rule, "view", wide=True, moves=True)
        return rule

    return register


def sym(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register host arithmetic whose result is a symbolic int."""

    def register(rule: Callable[..., int]) -> Callable[..., int]:
        define(names, rule, "sym", wide=True)
        return rule

    return register


def define(
    names: Iterable[str],
    rule: Callable[..., Any],
    kind: str,
    *,
    mutates: Sequence[str] = (),
    splits: Sequence[str] = (),
    positions: Sequence[str] = (),
    dtypes: Sequence[DType] = (),
    wide: bool = False,
    moves: bool = False,
    indexes: Indexes | None = None,
    serves: Serves | None = None,
    role: Role = "",
) -> None:
    """Put a rule into the registry under each name."""
    hints = typing.get_type_hints(rule)
    positional, wants = [], set()
    for p in inspect.signature(rule).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            wants.add(p.name)
            continue
        try:
            positional.append((p.name, _converter(hints[p.name]), _keeps_sym(hints[p.name]), p.default))
        except KeyError:
            raise TypeError(
                f"parameter '{p.name}' of {rule.__name__} needs an annotation: Tensor, int, float, bool, str, Number "
                "or SymInt, a list of one of these, each perhaps | None, or Any"
            ) from None
    index = {n: k for k, (n, *_) in enumerate(positional)}
    for name in names:
        if name in REGISTRY:
            raise ValueError(
                f"operator {name} is registered already: give yours another name, "
                f"or delete ptegpu.ops.REGISTRY[{name!r}] first"
            )
        REGISTRY[name] = OpDef(
            name,
            tuple(positional),
            frozenset(wants),
            mutates=tuple(index[m] for m in mutates),
            splits=tuple(index[m] for m in splits),
            positions=tuple(index[m] for m in positions),
            dtypes=tuple(dtypes),
            wide=wide,
            moves=moves,
            indexes=indexes,
            serves=serves,
            role=role,
            numbers=tuple(k for k, (n, *_) in enumerate(positional) if _is_number(hints[n])),
            doc=inspect.getdoc(rule) or "",
            **{kind: rule},
        )


def _keeps_sym(hint: Any) -> bool:
    """Whether a parameter of this annotation is handed a Sym itself rather than its value."""
    return hint is Sym or any(_keeps_sym(a) for a in typing.get_args(hint))


def _is_number(hint: Any) -> bool:
    return {int, float} == {a for a in typing.get_args(hint) if a is not type(None)}


def _converter(hint: Any) -> Convert:
    """The coercion that an annotation asks for."""
    options = (
        typing.get_args(hint)
        if isinstance(hint, type(int | None)) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )
    if hint is Any:
        return lambda a: a
    optional = type(None) in options
    kinds = tuple(o for o in options if o is not type(None))
    convert = _list_converter(kinds[0]) if typing.get_origin(kinds[0]) is list else _SCALARS[frozenset(kinds)]

    def coerce(a: Arg) -> Any:
        if a is None:
            if optional:
                return None
            raise TypeError("a value is required")
        return convert(a)

    return coerce


def _list_converter(hint: Any) -> Convert:
    item = _converter(typing.get_args(hint)[0])

    def coerce(a: Arg) -> list[Any]:
        return [item(x) for x in (a if isinstance(a, tuple) else (a,))]

    return coerce


def _tensor(a: Arg) -> Tensor:
    if not isinstance(a, Tensor):
        raise TypeError("a tensor is required")
    return a


def _int(a: Arg) -> int:
    if isinstance(a, float) and not a.is_integer():
        raise ValueError("an integer is required")
    return _value(a) if isinstance(a, Sym | Size) else int(_scalar(a))


def _value(a: Sym | Size) -> int:
    """A symbolic int's value now, as the trace knows it."""
    return a.value if isinstance(a, Sym) else a  # type: ignore[return-value]


def _float(a: Arg) -> float:
    return _value(a) if isinstance(a, Sym | Size) else float(_scalar(a))


def _scalar(a: Arg) -> Any:
    if isinstance(a, Tensor | tuple | str):
        raise TypeError("a scalar is required")
    return a


def _str(a: Arg) -> str:
    if not isinstance(a, str):
        raise TypeError("a string is required")
    return a


_SCALARS: dict[frozenset[Any], Convert] = {
    frozenset({Tensor}): _tensor,
    frozenset({int}): _int,
    frozenset({float}): _float,
    frozenset({bool}): lambda a: bool(int(_scalar(a))),
    frozenset({str}): _str,
    frozenset({int, float}): lambda a: _value(a) if isinstance(a, Sym) else _scalar(a),
    frozenset({int, Sym}): lambda a: a if isinstance(a, Sym) else _int(a),
}


def normalise_dim(dim: int, rank: int) -> int:
    """A dimension counted from the end becomes one counted from the front."""
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise ShapeError(f"dimension {dim} is out of range for rank {rank}")
    return dim % rank if rank else 0


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of operands under PyTorch's broadcasting."""
    rank = max(map(len, shapes), default=0)
    out = []
    for k in range(rank):
        size = 1
        for n in (s[k - rank + len(s)] for s in shapes if k - rank + len(s) >= 0):
            if n == size or n == 1:
                continue
            if size != 1:
                raise ShapeError(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
            size = n
        out.append(size)
    return tuple(out)
