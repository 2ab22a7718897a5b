"""The registry: an operator is one decorated function, and nothing else in the code base lists operators.

    @op("et_vk.rms_norm.default")
    def rms_norm(x: Tensor, weight: Tensor, eps: float, *, target: Target) -> Steps:
        out = yield Out(x.shape, x.dtype)                      # the shape rule: live shapes in, live shape out
        yield Dispatch(kernel(...), (x, weight), (out,), params={...}, groups=...)

The positional parameters are the operator's schema (`schema.py`). Keyword-only parameters are filled in by the lowering
if present: `target` (what the adapter can do) and `outs` (the declared outputs: dtype and maximum shape). First come as
many `Out`s as there are outputs, and running a rule for its shapes stops there; then `Dispatch`, `Scratch`, and `Work`,
which says what is computed and is made dispatches later. What the decorator says is explained in `Traits`.
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

NONSENSE = (ArithmeticError, LookupError, ValueError)  # what Python raises where a program's numbers make no sense


@dataclass(frozen=True, slots=True)
class Out:
    """The live shape of the next output; a dtype, if given, must be the declared one."""

    shape: Sequence[int]
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary that lives for this node only; the `yield` returns it as a Tensor.

    With a key in `kept`, what is written to it may stay: whoever has the same key has the same tensor.
    """

    shape: Sequence[int]
    dtype: DType
    kept: tuple[object, ...] = ()


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
    less than its operands hold; `label` where it is not the node's name that says what is computed. `once`: it makes
    the same of constants in every run, so that it need not be repeated if what it writes is kept.
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
    """Values that name elements: each is from `low` to below `end`. The host checks those that it knows before a run;
    a kernel must not leave a buffer with any others."""

    values: Tensor | SymInt
    low: int
    end: int


class Work:
    """What is to be computed, as data: a record that a fused node can add to before it becomes dispatches."""

    __slots__ = ()
    label: str

    def steps(self, target: Target) -> Steps:
        """The scratch and dispatches, or further work, that compute it."""
        raise NotImplementedError


Step: TypeAlias = Out | Scratch | Dispatch | Work
Steps: TypeAlias = Generator[Step, Any, None]
Rule = Callable[..., Steps]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class OpDef(Traits, Schema):
    """A registered operator. Exactly one of `steps`, `view`, `sym` says what it does.

    `serves` and `indexes` are asked about every call that binds, before its rule is: they must cope with operands of
    any shape, and what they raise is a bug.
    """

    wants: frozenset[str]  # of the keyword-only parameters: "target", "outs"
    steps: Rule | None = None
    view: Callable[..., Sequence[int]] | None = None  # returns the shape; same elements, maybe another dtype
    sym: Callable[..., int] | None = None  # computed by the host before the run
    doc: str = ""

    @property
    def rule(self) -> Callable[..., Any]:
        """Whichever of the three it has."""
        found = self.steps or self.view or self.sym
        assert found is not None
        return found

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Those of the first tensor that the GPU takes; empty: all."""
        return () if self.fits is None else self.fits.first

    @property
    def by_shape(self) -> bool:
        """Whether it computes a scalar from shapes and scalars, without looking at any elements."""
        return self.sym is not None and not self.reads

    def infer(self, args: Sequence[Arg], outs: Sequence[Tensor], *, any_dtype: bool = False) -> list[Shape]:
        """Live output shapes from live input shapes: the rule runs up to its last `Out`. With `any_dtype`, the outputs
        may be of other dtypes than the GPU would give."""
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
        named = {p.name: value for p, value in zip(self.parameters, values, strict=True)}
        if self.fits is not None and not any_dtype:
            self.fits.check_dtypes(named)
            self.fits.check_sizes(named)
        steps = self.steps(*values, **self.extras(Target(), outs))
        shapes: list[Shape] = []
        step = next(steps)
        while True:
            if not isinstance(step, Out) or len(shapes) == len(outs):
                gives = f"{len(shapes)} results" if len(shapes) < len(outs) else "results"
                raise InvalidProgram(f"{self.name} gives {gives}, the program takes {len(outs)}")
            out = outs[len(shapes)]
            if step.dtype is None and self.fits is not None and not any_dtype:
                self.fits.check_result(len(shapes), out, named)
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
        """The indices among the arguments, with what they may be at the live shapes."""
        return [] if self.indexes is None else list(self.indexes(self.named(args)))

    def takes(self, args: Sequence[Arg]) -> bool:
        """Whether the GPU serves a call with these arguments."""
        return self.serves is None or self.serves(self.named(args))

    def numbers(self, args: Sequence[Any]) -> list[Any]:
        """The arguments that are scalars of the tensors' kind."""
        return [a for a, p in zip(self.place(args), self.parameters) if {int, float} == p.kinds - {type(None)}]


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


def op(*names: str, **traits: Any) -> Callable[[F], F]:
    """Register a generator of steps under each name."""
    return _registering(names, "steps", traits)


def view(*names: str, **traits: Any) -> Callable[[F], F]:
    """Register an operator whose result has the elements of its first argument in the same order.

    The function returns the shape. It costs nothing where the dtypes agree; otherwise it is a cast.
    """
    return _registering(names, "view", {"moves": True, "prefix": prefix_stable.reshaped, **traits})


def sym(*names: str, **traits: Any) -> Callable[[F], F]:
    """Register host arithmetic whose result is a symbolic int."""
    return _registering(names, "sym", {"wide": True, **traits})


def _registering(names: Sequence[str], kind: str, traits: Mapping[str, Any]) -> Callable[[F], F]:
    def register(rule: F) -> F:
        define(names, rule, kind, **traits)
        return rule

    return register


def define(names: Iterable[str], rule: Callable[..., Any], kind: str, **traits: Any) -> None:
    """Put a rule into the registry under each name; `traits` are those of `Traits`, with names for parameters."""
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
    traits |= {kind: rule, "doc": inspect.getdoc(rule) or ""}
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
    """A dimension counted from the end becomes one counted from the front."""
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise ShapeError(f"dimension {dim} is out of range for rank {rank}")
    return dim % rank if rank else 0


def is_one(n: int) -> bool:
    """Whether it is 1 at every size: asking a live size whether it is now would split a plan in two."""
    return type(n) is int and n == 1


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of operands under PyTorch's broadcasting."""
    rank = max(map(len, shapes), default=0)
    out = []
    for k in range(rank):
        size = 1
        for n in (s[k - rank + len(s)] for s in shapes if k - rank + len(s) >= 0):
            if is_one(size):  # so far: whatever comes now is the size
                size = n
            if n == size or n == 1:
                continue
            if size != 1:
                raise ShapeError(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
            size = n
        out.append(size)
    return tuple(out)
