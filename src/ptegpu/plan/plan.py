"""A `Plan`: plain data that a runner executes without knowing any operator.

One run is one compute pass: the dispatches in order, then `copies` (state written back), then outputs are read. A value
that depends on the sizes of the inputs and on symbolic ints is a `Number`: an int, or a row of `Plan.rows`, a small
program that a runner evaluates before a run. A `Family` holds for all sizes that satisfy its guards. Each of its steps
has choices with guards of their own, and the first choice whose guards hold is launched. A new size therefore costs one
evaluation and one write of parameters: buffers, kernels and bindings are the same for every size.

A buffer is identified by its `name`: a runner allocates each name once, even if several plans have it.
Nothing here imports wgpu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..dtypes import DType
from ..errors import LimitExceeded

Role = Literal["input", "temp", "constant", "state", "params", "syms"]
Access = Literal["read", "write", "uniform"]  # "write" is read-write storage
Feature = Literal["f16", "subgroups", "matrices"]
WordKind = Literal["u32", "i32", "f32"]

ALIGN = 16  # buffer sizes are padded to this, for loads and stores of vec4s
OFFSET_ALIGN = 256  # of bindings and of parameter blocks, as every adapter and browser accepts

INDEPENDENT = "// independent of earlier stages until here"
"""A line of a kernel. What comes before it reads only what no dispatch of the plan writes before this kernel."""

OPERATORS = ("add", "sub", "mul", "floordiv", "mod", "div", "min", "max", "ceil", "floor", "lt", "ge", "eq", "ne")
Row: TypeAlias = tuple[str, int | float, int | float]
"""A number that a runner computes: ("const", n, 0); ("size", input, dimension); ("int", input, 0), the value of an int
input; ("item", row, input), the element of an int input at the flat index in a row; or an operator on two earlier rows.
Comparisons are 1 or 0; x // 0, x % 0 and elements out of range are 0; "ceil" and "floor" take their first operand."""


@dataclass(frozen=True, slots=True)
class Expr:
    """The value of a row of the plan."""

    row: int


Number: TypeAlias = int | Expr


def plain(n: Number) -> int:
    """Return a number of a plan for one set of sizes."""
    assert not isinstance(n, Expr), "the plan holds for more than one size: see `resolve.evaluated`"
    return n


@dataclass(frozen=True, slots=True)
class Buffer:
    """A GPU buffer. `blob` is the index of its initial bytes in `Plan.blobs`; without one it starts as zeros.

    Roles: an `input` is written by the host before each run, a `temp` lives within a run (outputs are temps without
    reuse), a `constant` is uploaded once, a `state` persists between runs, `params` and `syms` are uniforms.
    """

    name: str
    nbytes: int  # a multiple of ALIGN
    role: Role
    blob: int | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compute shader without `enable` lines, which the runner adds because they differ between naga and Tint."""

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
    """A word of the parameters that depends on sizes: its offset in the buffer, in words, and its value."""

    word: int
    value: Expr
    kind: WordKind


@dataclass(frozen=True, slots=True)
class PlannedDispatch:
    kernel: int  # index into Plan.kernels
    bindings: tuple[Binding, ...]
    grid: tuple[Number, Number]  # workgroups in x and y, within the adapter's limit; nothing runs if one is 0
    label: str  # the node it serves, for profiles and errors
    read_bytes: Number = 0  # bytes of its operands at their live sizes, for profiles
    write_bytes: Number = 0
    flops: Number = 0  # operations of matrix products, convolutions and attention; 0 for others
    patches: tuple[Patch, ...] = ()
    once: bool = False  # its results are the same in every run and persist: a runner need not repeat it

    @property
    def nbytes(self) -> int:
        return plain(self.read_bytes) + plain(self.write_bytes)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of bytes from one buffer to another after the pass."""

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
        """Return the size in bytes, in a plan for one set of sizes."""
        return math.prod(map(plain, self.shape)) * self.dtype.size


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a run: a tensor of this shape (at most this shape if `dynamic`), or, without dtype, an int."""

    name: str
    buffer: int | None = None
    dtype: DType | None = None
    shape: tuple[int, ...] = ()
    dynamic: bool = False
    index: bool = False  # only used as an index


@dataclass(frozen=True, slots=True)
class Moved:
    """A step that moves values on their way to an index: a reshape ("view"), or an operator that only moves elements.

    Arguments are numbers, None, bools, strings and tuples of these; `VALUES` stands for the moved values.
    """

    op: str
    args: tuple[object, ...]
    number: int  # which of the operator's `results`
    results: int
    shape: tuple[Number, ...]


VALUES = "<values>"


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of an index that the host knows: the run is refused unless low <= index < end."""

    kind: Literal["input", "constant", "int"]
    source: Number  # the position among the inputs; the buffer of a constant; the int
    low: Number
    end: Number
    text: str  # with {} for the value and its position: "input 1: the index {} at {}"
    node: str
    dtype: DType | None = None  # of a constant
    shape: tuple[int, ...] = ()  # of a constant
    moves: tuple[Moved, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """Dispatches to run if all guards hold (rows that are not 0); or the reason for a refusal."""

    guards: tuple[int, ...]
    dispatches: tuple[PlannedDispatch, ...]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """The sizes at which shapes follow the same expressions."""

    guards: tuple[int, ...]
    steps: tuple[tuple[Choice, ...], ...]
    outputs: tuple[Port | Number, ...]
    words: tuple[Number, ...] = ()  # contents of the `syms` buffer
    bounds: tuple[Bound, ...] = ()
    refusal: str = ""  # the reason why these sizes are refused


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    inputs: tuple[Input, ...]
    families: tuple[Family, ...]
    copies: tuple[Copy, ...] = ()
    rows: tuple[Row, ...] = ()
    params: tuple[bytes, ...] = ()  # contents of the "params" buffers in order, before patches
    blobs: Sequence[memoryview | bytes] = ()  # initial bytes of constants and states; views of the mapped file

    @property
    def device_bytes(self) -> int:
        """Return the total size of the plan's buffers."""
        return sum(b.nbytes for b in self.buffers)

    @property
    def dispatches(self) -> tuple[PlannedDispatch, ...]:
        """Return the dispatches of a plan that is the same for every size."""
        (family,) = self.families
        return tuple(d for (choice,) in family.steps for d in choice.dispatches)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Return the output tensors of a plan that is the same for every size."""
        (family,) = self.families
        return tuple(o for o in family.outputs if isinstance(o, Port))


def fixed(
    name: str,
    buffers: Sequence[Buffer],
    kernels: Sequence[Kernel],
    dispatches: Sequence[PlannedDispatch],
    copies: Sequence[Copy] = (),
    inputs: Sequence[Port] = (),
    outputs: Sequence[Port] = (),
    params: bytes = b"",
    blobs: Sequence[memoryview | bytes] = (),
) -> Plan:
    """Return a plan with these dispatches, the same for every size."""
    tensors = tuple(Input(p.name, p.buffer, p.dtype, p.shape) for p in inputs)  # type: ignore[arg-type]
    family = Family((), tuple((Choice((), (d,)),) for d in dispatches), tuple(outputs))
    images = (params,) if params else ()
    return Plan(name, tuple(buffers), tuple(kernels), tensors, (family,), tuple(copies), (), images, blobs)


def fold(groups: int, limit: int, kernel: str) -> tuple[int, int]:
    """Return workgroups as a grid of two dimensions, with the second as small as the limit of the first allows."""
    if groups <= limit:
        return groups, 1
    y = -(-groups // limit)
    x = -(-groups // y)
    if y > limit:
        raise LimitExceeded(f"kernel {kernel} needs {groups:,} workgroups, the device allows {limit:,} × {limit:,}")
    return x, y
