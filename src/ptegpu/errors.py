"""Every error ptegpu raises, each also the nearest builtin, so that ordinary `except` clauses work.

The messages say what went wrong, where, and what to do; `docs/errors.md` lists them with examples.
"""

from __future__ import annotations

from .printing import shown, shown_lines


class PtegpuError(RuntimeError):
    """The root: catch this to catch everything ptegpu raises on purpose. A RuntimeError, as ExecuTorch raises.

    Its arguments are the lines of the message. They may hold names from files: see `printing` for what becomes of them.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__(*shown_lines(lines))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


def quoted(before: str, error: BaseException) -> list[str]:
    """Return the lines of a message that quotes another one, all of its lines."""
    first, *rest = str(error).split("\n")
    return [before + first, *rest]


class InvalidProgram(PtegpuError, ValueError):
    """A file is not what it claims to be. The only error a bad `.pte`, `.ptd` or delegate blob can cause."""

    def __init__(self, reason: str, *, offset: int | None = None, path: str | None = None) -> None:
        self.reason, self.offset, self.path = shown(reason), offset, path
        where = f"{path}: " if path else ""
        at = f" (at byte {offset})" if offset is not None else ""
        super().__init__(f"{where}{reason}{at}")


class UnsupportedProgram(PtegpuError, NotImplementedError):
    """A valid program asks for something ptegpu does not do; all such things are listed at once, at load."""


class ExportError(PtegpuError, ValueError):
    """A checkpoint or a module cannot be exported; the message says what is missing, unknown or of the wrong kind."""


class InvalidInput(PtegpuError, ValueError):
    """An argument of a call has the wrong count, dtype, rank, shape or range."""


class ShapeError(InvalidInput):
    """A value cannot have the shape that the inputs of this call ask for."""


class IndexOutOfRange(InvalidInput, IndexError):
    """A value that is used as an index, or a position in a cache, names no element of what it indexes."""


class ExecutionError(PtegpuError, RuntimeError):
    """The program itself failed while it ran: a division by zero, an int beyond 64 bits, a missing item."""


class LimitExceeded(PtegpuError, RuntimeError):
    """A program needs more than its limits (`Limits`) or those of the adapter allow; found before anything is made."""


class Closed(PtegpuError, RuntimeError):
    """A program was used after `close()`."""


class QueueFull(PtegpuError, RuntimeError):
    """Too many requests wait for a model already; try again later."""


class NoAdapter(PtegpuError, RuntimeError):
    """No GPU adapter fits; the message names the package to install or the adapters there are."""


class DeviceError(PtegpuError, RuntimeError):
    """WebGPU refused or failed something; the message carries its words."""


class KernelError(DeviceError):
    """A WGSL source did not compile; the message carries the compiler's line and column."""


class SubmitError(DeviceError):
    """Work was about to be submitted that would abort the process: a destroyed or mapped buffer, a command
    buffer submitted twice."""


class DeviceLost(DeviceError):
    """The GPU device is gone (driver reset, unplugged, destroyed). Load the program again."""


class OutOfMemory(DeviceError, MemoryError):
    """The device, or the host for its states, cannot hold the program: the message has the bytes that are needed."""
