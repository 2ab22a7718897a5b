"""The registry: an operator is one decorated function, and nothing else in the code base lists operators.

    @op("et_vk.rms_norm.default")
    def rms_norm(x: Tensor, weight: Tensor, eps: float, *, target: Target) -> Steps:
        out = yield Out(x.shape, x.dtype)                      # the shape rule: live shapes in, live shape out
        yield Dispatch(kernel(...), (x, weight), (out,), params={...}, groups=...)

The positional parameters are the operator's schema (`graph/schema.py`). The lowering fills in two keyword-only
parameters if the rule has them: `target` (what the adapter can do) and `outs` (the declared outputs: dtype and maximum
shape). A rule first yields one `Out` per output; shape inference stops there. Then it yields `Dispatch`, `Scratch` and
`Work`, a description of a computation that becomes dispatches later. `Traits` explains the decorator's arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..dtypes import DType
from ..errors import InvalidProgram, PtegpuError, ShapeError
from ..graph.graph import Arg, Shape, Sym, Tensor
from ..graph.schema import Number, Options, Parameter, Schema, SymInt, Traits, parameters_of  # noqa: F401  (for the families)
from ..kernels.wgsl import KernelSpec
from ..plan.target import Target
from . import prefix_stable, spans
from .fits import parsed

NONSENSE = (ArithmeticError, LookupError, ValueError)  # what a rule raises if a program's numbers make no sense


@dataclass(frozen=True, slots=True)
class Out:
    """The live shape of the next output, and the dtype that the program must declare for it."""

    shape: Sequence[int]
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary that lives for this node only; the `yield` returns it as a Tensor.

    With a key in `kept`, its contents may persist: requests with the same key share one tensor.
    """

    shape: Sequence[int]
    dtype: DType
    kept: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Formula:
    """The formula of an elementwise dispatch, for the pass that fuses several into one."""

    body: str  # over `a`, `b`, `c`, … and the scalars' names
    operands: tuple[Tensor | int | float, ...]
    scalars: Mapping[str, int | float]
    compute: DType | None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch over `groups` workgroups. `params` may hold Syms for parameters of type `sym`.

    For profiles: `flops` of products, convolutions and attention; `read_bytes` and `write_bytes` if the launch touches
    less than its operands hold; `label` if the node's name does not describe it. `once`: it reads constants only, so it
    need not run again if its results are kept.
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
    once: bool = False


class Bounded(NamedTuple):
    """Indices that must lie in [low, end). The host checks the values that it has before a run; a kernel must stay
    within its buffers for all others.
    """

    values: Tensor | SymInt
    low: int
    end: int


class Work:
    """A computation as data: a record that a fused node can extend before it becomes dispatches."""

    __slots__ = ()
    label: str

    def steps(self, target: Target) -> Steps:
        """Yield the scratch and dispatches, or further work, that compute it."""
        raise NotImplementedError


Step: TypeAlias = Out | Scratch | Dispatch | Work
Steps: TypeAlias = Generator[Step, Any, None]
Rule = Callable[..., Steps]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class OpDef(Traits, Schema):
    """A registered operator. Exactly one of `steps`, `view` and `sym` is set: its rule.

    `serves` and `indexes` are called for every call that binds, before its rule. They must accept operands of any
    shape; an exception in them is a bug.
    """

    wants: frozenset[str]  # the rule's keyword-only parameters: "target", "outs"
    steps: Rule | None = None
    view: Callable[..., Sequence[int]] | None = None  # returns the shape; same elements, maybe another dtype
    sym: Callable[..., int] | None = None  # computed by the host before the run
    doc: str = ""

    @property
    def rule(self) -> Callable[..., Any]:
        """Return its function, whichever of the three it is."""
        rule = self.steps or self.view or self.sym
        assert rule is not None
        return rule

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Return the dtypes that the GPU takes for the first tensor; empty: all."""
        return () if self.fits is None else self.fits.first

    @property
    def by_shape(self) -> bool:
        """Return True if it computes a scalar from shapes and scalars, without reading any elements."""
        return self.sym is not None and not self.reads

    def infer(self, args: Sequence[Arg], outs: Sequence[Tensor], *, any_dtype: bool = False) -> list[Shape]:
        """Return live output shapes for live input shapes: run the rule up to its last `Out`. With `any_dtype`, accept
        outputs of other dtypes than the GPU would give.
        """
        try:
            return self._infer(args, outs, any_dtype)
        except PtegpuError:
            raise
        except (*NONSENSE, TypeError, StopIteration) as e:
            raise _refused(args, e) from e

    def _infer(self, args: Sequence[Arg], outs: Sequence[Tensor], any_dtype: bool) -> list[Shape]:
        values = self.bind(args)
        if self.view is not None:
            return [tuple(self.view(*values))]
        assert self.steps is not None
        values_by_name = {p.name: value for p, value in zip(self.parameters, values, strict=True)}
        fits = None if any_dtype else self.fits
        if fits is not None:
            fits.check_dtypes(values_by_name)
            fits.check_sizes(values_by_name)
        steps = self.steps(*values, **self.extras(Target(), outs))
        shapes: list[Shape] = []
        step = next(steps)
        while True:
            if not isinstance(step, Out) or len(shapes) == len(outs):
                count = len(shapes) if len(shapes) < len(outs) else f"more than {len(outs)}"
                raise InvalidProgram(f"{self.name} has {count} results, the program declares {len(outs)}")
            out = outs[len(shapes)]
            if step.dtype is None and fits is not None:
                fits.check_result(len(shapes), out, values_by_name)
            if step.dtype is not None and step.dtype is not out.dtype and not any_dtype:
                raise InvalidProgram(
                    f"{self.name}: the result is {step.dtype.value}, the program says {out.dtype.value}"
                )
            shapes.append(tuple(step.shape))
            if len(shapes) == len(outs):
                steps.close()
                return shapes
            step = steps.send(out)

    def steps_into(self, args: Sequence[Arg], outs: Sequence[Tensor], target: Target, *, whole: bool = False) -> Steps:
        """Yield the rule's steps with its results in `outs`: scratch and dispatches, and with `whole` work as it is."""
        assert self.steps is not None
        try:
            yield from _placed(self.steps(*self.bind(args), **self.extras(target, outs)), outs, target, whole)
        except PtegpuError:
            raise
        except NONSENSE as e:
            raise _refused(args, e) from e

    def extras(self, target: Target, outs: Sequence[Tensor]) -> dict[str, Any]:
        """Return the rule's keyword-only arguments."""
        values = {"target": target, "outs": tuple(outs)}
        return {k: values[k] for k in self.wants}

    def bounds(self, args: Sequence[Arg]) -> list[Bounded]:
        """Return the indices among the arguments, with their bounds at the live shapes."""
        return [] if self.indexes is None else list(self.indexes(self.named(args)))

    def takes(self, args: Sequence[Arg]) -> bool:
        """Return True if the GPU serves a call with these arguments."""
        return self.serves is None or self.serves(self.named(args))

    def numbers(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments that are scalars of the tensors' kind."""
        return [
            a
            for a, p in zip(self.place(args), self.parameters)
            if {int, float} <= p.kinds and isinstance(a, int | float)
        ]


REGISTRY: dict[str, OpDef] = {}


def _placed(steps: Steps, outs: Sequence[Tensor], target: Target, whole: bool) -> Steps:
    """Answer each `Out` with the next of `outs`, and replace each `Work` by its steps unless it stays `whole`."""
    remaining = iter(outs)
    reply: Tensor | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        reply = None
        if isinstance(step, Out):
            reply = next(remaining, None)
            if reply is None:
                raise InvalidProgram(f"it has more results than the {len(outs)} that the program declares")
        elif isinstance(step, Work) and not whole:
            yield from _placed(step.steps(target), (), target, whole)
        else:
            reply = yield step


def _refused(args: Sequence[Arg], e: Exception) -> ShapeError:
    shown = ", ".join(map(repr, args))
    return ShapeError(f"cannot compute with ({shown if len(shown) < 200 else shown[:200] + ' …'}): {e}")


def op(*names: str, **traits: Any) -> Callable[[F], F]:
    """Register a generator of steps under each name."""
    return _decorator(names, "steps", traits)


def view(*names: str, **traits: Any) -> Callable[[F], F]:
    """Register an operator whose result has the elements of its first argument in the same order.

    The function returns the shape. It costs nothing if the dtypes agree; otherwise it is a cast.
    """
    return _decorator(names, "view", {"moves": True, "prefix": prefix_stable.reshaped, **traits})


def sym(*names: str, **traits: Any) -> Callable[[F], F]:
    """Register host arithmetic whose result is a symbolic int."""
    return _decorator(names, "sym", {"wide": True, **traits})


def _decorator(names: Sequence[str], kind: str, traits: Mapping[str, Any]) -> Callable[[F], F]:
    def register(rule: F) -> F:
        define(names, rule, kind, **traits)
        return rule

    return register


def define(names: Iterable[str], rule: Callable[..., Any], kind: str, **traits: Any) -> None:
    """Put a rule into the registry under each name; `traits` are those of `Traits`, with names for parameters.

    `differs` adds to its documentation how it differs from PyTorch, in paragraphs that begin with "Unlike".
    """
    parameters = parameters_of(rule)
    places = {p.name: k for k, p in enumerate(parameters)}
    for trait in ("mutates", "splits"):
        traits[trait] = tuple(places[name] for name in traits.get(trait, ()))
    tensors = [
        p.name for p in parameters if Tensor in p.kinds or any(Tensor in k for k in p.kinds if isinstance(k, frozenset))
    ]
    traits["fits"] = parsed(traits["fits"], tensors) if "fits" in traits else None
    if traits.get("moves"):
        traits["elements"] = (parameters[0].name,)
    if "elements" in traits:
        traits |= {"wide": True, "span": spans.elements(*traits["elements"])}
    paragraphs = (inspect.getdoc(rule), traits.pop("differs", None))
    traits |= {kind: rule, "doc": "\n\n".join(filter(None, paragraphs))}
    signature = inspect.signature(rule).parameters.values()
    wants = frozenset(p.name for p in signature if p.kind is p.KEYWORD_ONLY)
    for name in names:
        if name in REGISTRY:
            raise ValueError(
                f"operator {name} is registered already: give yours another name, "
                f"or delete ptegpu.ops.REGISTRY[{name!r}] first"
            )
        REGISTRY[name] = OpDef(name, parameters, wants, **traits)


def normalise_dim(dim: int, rank: int) -> int:
    """Return a dimension counted from the front."""
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise ShapeError(f"dimension {dim} is out of range for rank {rank}")
    return dim % rank if rank else 0


def is_one(n: int) -> bool:
    """Return True if it is 1 at every size; comparing a live size with 1 would split a plan in two."""
    return type(n) is int and n == 1


def broadcast(*shapes: Shape) -> Shape:
    """Return the common shape of operands under PyTorch's broadcasting."""
    rank = max(map(len, shapes), default=0)
    out = []
    for k in range(rank):
        size = 1
        for n in (s[k - rank + len(s)] for s in shapes if k - rank + len(s) >= 0):
            if is_one(size):  # so far
                size = n
            if n == size or n == 1:
                continue
            if size != 1:
                raise ShapeError(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
            size = n
        out.append(size)
    return tuple(out)
