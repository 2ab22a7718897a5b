"""A `Plan` is plain data that a runner executes without knowing any operator.

One run is one compute pass: the dispatches in order, then `copies` (state written back), then outputs are read. What
depends on the sizes of the inputs and on symbolic ints is a `Number`: an int, or a row of `Plan.rows`, a small program
that a runner evaluates before a run. A `Family` holds for all sizes that satisfy its guards; in it, each step has
choices with guards of their own, of which the first that holds is launched. So a size that was never seen before costs
an evaluation and one write of parameters: buffers, kernels and bindings are the same for every size.

A buffer is known by its `name`: a runner allocates each name once, also where several plans have it.
Nothing here imports wgpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..dtypes import DType
from ..errors import LimitExceeded

Role = Literal["input", "temp", "constant", "state", "params", "syms"]
Access = Literal["read", "write", "uniform"]  # "write" is read-write storage
Feature = Literal["f16", "subgroups", "matrices"]
WordKind = Literal["u32", "i32", "f32"]

ALIGN = 16  # buffer sizes are padded to this, so that kernels may load and store whole vec4s
OFFSET_ALIGN = 256  # of bindings and of parameter blocks: what every adapter and browser accepts

OPERATORS = ("add", "sub", "mul", "floordiv", "mod", "div", "min", "max", "ceil", "floor", "lt", "ge", "eq", "ne")
Row: TypeAlias = tuple[str, int | float, int | float]
"""A number that a runner computes: ("const", n, 0); ("size", input, dimension); ("int", input, 0), an int that is
given; ("item", row, input): the element of an int input that a row says; or an operator on two rows before it.
Comparisons are 1 or 0; x // 0, x % 0 and elements that are not there are 0; "ceil" and "floor" take their first
operand."""


@dataclass(frozen=True, slots=True)
class Expr:
    """What row number `row` gives."""

    row: int


Number: TypeAlias = int | Expr


def plain(n: Number) -> int:
    """A number of a plan at given sizes."""
    assert not isinstance(n, Expr), "the plan holds for more than one size: see `resolve.evaluated`"
    return n


@dataclass(frozen=True, slots=True)
class Buffer:
    """A GPU buffer. `blob` is the index into `Plan.blobs` of its first bytes; without one it starts as zeros.

    Roles: an `input` is written by the host before each run, a `temp` lives within a run (outputs are temps that
    nobody reuses), a `constant` is uploaded once, a `state` persists between runs, `params` and `syms` are uniforms.
    """

    name: str
    nbytes: int  # a multiple of ALIGN
    role: Role
    blob: int | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compute shader, without the `enable` lines (they differ between naga and Tint: the runner adds them)."""

    name: str
    wgsl: str
    access: tuple[Access, ...]  # of binding 0, 1, … in group 0
    workgroup: int  # invocations, one-dimensional
    shared_bytes: int = 0
    needs: tuple[Feature, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    buffer: int  # index into Plan.buffers
    offset: int  # a multiple of OFFSET_ALIGN
    nbytes: int


@dataclass(frozen=True, slots=True)
class Patch:
    """A word of the parameters that depends on sizes: where it is in its buffer, in words, and what it is."""

    word: int
    value: Expr
    kind: WordKind


@dataclass(frozen=True, slots=True)
class Dispatch:
    kernel: int  # index into Plan.kernels
    bindings: tuple[Binding, ...]
    grid: tuple[Number, Number]  # workgroups in x and y, each within the adapter's limit; none with a 0 in it
    label: str  # the node it serves, for profiles and errors
    read_bytes: Number = 0  # what it needs of its operands at their live sizes, for profiles
    write_bytes: Number = 0
    flops: Number = 0  # operations of matrix products, convolutions and attention; 0 for others
    patches: tuple[Patch, ...] = ()
    once: bool = False  # what it writes is the same in every run, and stays: a runner need not repeat it

    @property
    def nbytes(self) -> int:
        return plain(self.read_bytes) + plain(self.write_bytes)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from one buffer to another after the pass."""

    source: int
    target: int
    nbytes: int  # a multiple of 4


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor: contiguous elements of `dtype` at the start of a buffer."""

    name: str
    buffer: int
    dtype: DType  # on the device; the host side may be wider (int64 → int32)
    shape: tuple[Number, ...]

    @property
    def nbytes(self) -> int:
        """Of a plan at given sizes."""
        n = self.dtype.size
        for d in self.shape:
            n *= plain(d)
        return n


@dataclass(frozen=True, slots=True)
class Input:
    """What a run is given: a tensor of at most this shape (just this, unless `dynamic`), or, without dtype, an int."""

    name: str
    buffer: int | None = None
    dtype: DType | None = None
    shape: tuple[int, ...] = ()
    dynamic: bool = False
    index: bool = False  # used as an index and for nothing else


@dataclass(frozen=True, slots=True)
class Moved:
    """Values on their way to an index: reshaped ("view"), or by an operator that only moves them.

    Arguments are numbers, None, bools, strings and tuples of these; `VALUES` stands for what is moved.
    """

    op: str
    args: tuple[object, ...]
    number: int  # of the operator's `results`
    results: int
    shape: tuple[Number, ...]


VALUES = "<values>"


@dataclass(frozen=True, slots=True)
class Bound:
    """An index that the host knows: from `low` to below `end`, or the run is refused."""

    kind: Literal["input", "constant", "int"]
    source: Number  # the position among the inputs; the buffer of a constant; the int
    low: Number
    end: Number
    text: str  # with {} for the value (and {} for its place): "input 1: the index {} at {}"
    node: str
    dtype: DType | None = None  # of a constant
    shape: tuple[int, ...] = ()  # of a constant
    moves: tuple[Moved, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Dispatches that serve where all guards (rows that are not 0) hold; or the reason why nothing does."""

    guards: tuple[int, ...]
    dispatches: tuple[Dispatch, ...]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All sizes at which shapes follow the same expressions."""

    guards: tuple[int, ...]
    steps: tuple[tuple[Choice, ...], ...]
    outputs: tuple[Port | Number, ...]
    words: tuple[Number, ...] = ()  # of the `syms` buffer
    bounds: tuple[Bound, ...] = ()
    refusal: str = ""  # why nothing runs at these sizes


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    inputs: tuple[Input, ...]
    families: tuple[Family, ...]
    copies: tuple[Copy, ...] = ()
    rows: tuple[Row, ...] = ()
    params: tuple[bytes, ...] = ()  # what the buffers of the role "params" hold, in their order; patches come on top
    blobs: Sequence[memoryview | bytes] = ()  # first bytes of constants and states; views on the mapped file

    @property
    def device_bytes(self) -> int:
        """GPU memory the plan's buffers take."""
        return sum(b.nbytes for b in self.buffers)

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        """Of a plan that is the same at every size."""
        (family,) = self.families
        return tuple(d for (choice,) in family.steps for d in choice.dispatches)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The tensors among the outputs of a plan that is the same at every size."""
        (family,) = self.families
        return tuple(o for o in family.outputs if isinstance(o, Port))


def fixed(
    name: str,
    buffers: Sequence[Buffer],
    kernels: Sequence[Kernel],
    dispatches: Sequence[Dispatch],
    copies: Sequence[Copy] = (),
    inputs: Sequence[Port] = (),
    outputs: Sequence[Port] = (),
    params: bytes = b"",
    blobs: Sequence[memoryview | bytes] = (),
) -> Plan:
    """A plan of these dispatches, the same at every size."""
    takes = tuple(Input(p.name, p.buffer, p.dtype, p.shape) for p in inputs)  # type: ignore[arg-type]
    family = Family((), tuple((Choice((), (d,)),) for d in dispatches), tuple(outputs))
    held = (params,) if params else ()
    return Plan(name, tuple(buffers), tuple(kernels), takes, (family,), tuple(copies), (), held, blobs)


def fold(groups: int, limit: int, kernel: str) -> tuple[int, int]:
    """Workgroups as a grid of two dimensions, as square as needed to stay within the limit of each."""
    if groups <= limit:
        return groups, 1
    y = -(-groups // limit)
    x = -(-groups // y)
    if y > limit:
        raise LimitExceeded(f"kernel {kernel} needs {groups:,} workgroups, the device allows {limit:,} × {limit:,}")
    return x, y
