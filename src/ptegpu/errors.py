"""The errors of ptegpu. Each is also the nearest builtin, so that ordinary `except` clauses work.

A message says what is wrong, where, and what to do; `docs/errors.md` lists them with examples.
"""

from __future__ import annotations

from .printing import shown, shown_lines


class PtegpuError(RuntimeError):
    """The base of all errors that ptegpu raises on purpose. A RuntimeError, like ExecuTorch's errors.

    Its arguments are the lines of the message. They may contain names from files, which `printing` escapes.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__(*shown_lines(lines))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


def quoted(before: str, error: BaseException) -> list[str]:
    """Return the lines of a message that quotes all lines of another error."""
    first, *rest = str(error).split("\n")
    return [before + first, *rest]


class InvalidProgram(PtegpuError, ValueError):
    """A file is invalid. This is the only error that a bad `.pte`, `.ptd` or delegate blob can cause."""

    def __init__(self, reason: str, *, offset: int | None = None, path: str | None = None) -> None:
        self.reason, self.offset, self.path = shown(reason), offset, path
        prefix = f"{path}: " if path else ""
        suffix = f" (at byte {offset})" if offset is not None else ""
        super().__init__(f"{prefix}{reason}{suffix}")


class UnsupportedProgram(PtegpuError, NotImplementedError):
    """A valid program uses something that ptegpu does not support; loading it lists all such things at once."""


class ExportError(PtegpuError, ValueError):
    """A checkpoint or a module cannot be exported; the message names what is missing, unknown or of the wrong kind."""


class InvalidInput(PtegpuError, ValueError):
    """An argument of a call has the wrong count, dtype, rank, shape or range."""


class ShapeError(InvalidInput):
    """A value cannot have the shape that the inputs of this call require."""


class IndexOutOfRange(InvalidInput, IndexError):
    """A value that is used as an index, or as a position in a cache, is out of range."""


class ExecutionError(PtegpuError, RuntimeError):
    """The program itself failed while it ran: a division by zero, an int beyond 64 bits, a missing item."""


class LimitExceeded(PtegpuError, RuntimeError):
    """A program exceeds its limits (`Limits`) or those of the adapter. Raised before anything is allocated."""


class Closed(PtegpuError, RuntimeError):
    """A program was used after `close()`."""


class QueueFull(PtegpuError, RuntimeError):
    """Too many requests are waiting for a model; try again later."""


class NoAdapter(PtegpuError, RuntimeError):
    """No GPU adapter matches; the message names the package to install or the available adapters."""


class DeviceError(PtegpuError, RuntimeError):
    """A WebGPU call failed; the message quotes it."""


class KernelError(DeviceError):
    """A WGSL source does not compile; the message has the compiler's line and column."""


class SubmitError(DeviceError):
    """A submit would have aborted the process: a destroyed or mapped buffer, a command buffer submitted twice."""


class DeviceLost(DeviceError):
    """The GPU device is gone (driver reset, unplugged, destroyed). Load the program again."""


class OutOfMemory(DeviceError, MemoryError):
    """The device, or the host for its states, has too little memory; the message has the bytes that are needed."""
