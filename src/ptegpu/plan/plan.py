"""A `Plan` is plain data that a runner executes without knowing any operator.

One plan is one compute pass: `dispatches` run in order, then `copies` (state written back), then outputs are read.
Plans of one graph at different live shapes share their buffers: a buffer is known by its `name`, and a runner
allocates each name once. Nothing here imports wgpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..dtypes import DType

Role = Literal["input", "temp", "constant", "state", "params", "syms"]
Access = Literal["read", "write", "uniform"]  # "write" is read-write storage
Feature = Literal["f16", "subgroups"]

ALIGN = 16  # buffer sizes are padded to this, so that kernels may load and store whole vec4s
OFFSET_ALIGN = 256  # of bindings and of parameter blocks: what every adapter and browser accepts


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
    entry: str = "main"


@dataclass(frozen=True, slots=True)
class Binding:
    buffer: int  # index into Plan.buffers
    offset: int  # a multiple of OFFSET_ALIGN
    nbytes: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    kernel: int  # index into Plan.kernels
    bindings: tuple[Binding, ...]
    grid: tuple[int, int]  # workgroups in x and y, each within the adapter's limit
    label: str  # the node it serves, for profiles and errors
    read_bytes: int = 0  # what it needs of its operands at their live sizes, for profiles
    write_bytes: int = 0
    flops: int = 0  # operations of matrix products, convolutions and attention; 0 for others

    @property
    def nbytes(self) -> int:
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from one buffer to another after the pass."""

    source: int
    target: int
    nbytes: int  # a multiple of 4


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output tensor: contiguous elements of `dtype` at the start of a buffer."""

    name: str
    buffer: int
    dtype: DType  # on the device; the host side may be wider (int64 → int32)
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        n = self.dtype.size
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, slots=True)
class SymStep:
    """How a symbolic int is made on the host before a run; `target` is its word in the `syms` buffer.

    ("input", i): the i-th scalar given to the run; ("item", input, flat element): read from an input tensor;
    ("const", n); and ("add" | "sub" | "mul" | "floordiv" | "mod" | "lt" | "le" | "gt" | "ge" | "eq" | "ne" |
    "min" | "max", a, b) on words; ("neg" | "not", a).
    """

    target: int
    op: str
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    dispatches: tuple[Dispatch, ...]
    copies: tuple[Copy, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    params: bytes  # the contents of the "params" buffer, written once
    syms: tuple[SymStep, ...] = ()
    sym_outputs: tuple[int, ...] = ()  # words of `syms` that are results
    blobs: Sequence[memoryview | bytes] = ()  # first bytes of constants and states; views on the mapped file

    @property
    def device_bytes(self) -> int:
        """GPU memory the plan's buffers take."""
        return sum(b.nbytes for b in self.buffers)

    def to_json(self) -> tuple[str, bytes]:
        """The plan as JSON text and the binary it refers to."""
        from .serialize import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str, binary: bytes | memoryview) -> Plan:
        """The plan that `to_json` saved."""
        from .serialize import from_json

        return from_json(text, binary)
