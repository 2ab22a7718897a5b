"""Compute pipelines by source: a kernel compiles once per device, whoever asks. Compile errors name the line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DeviceError, DeviceLost, KernelError, OutOfMemory
from ..plan import dialect
from ..plan.plan import Access, Kernel
from . import create, native

_LOCATION = re.compile(r"┌─ .*:(\d+):(\d+)")
_REASON = re.compile(r"(?:parsing|validation) error: (.+)")
_NOTE = re.compile(r"│ +[\^-]+ (.+)")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled kernel."""

    handle: native.Handle
    layout: native.Handle  # of bind group 0


class PipelineCache:
    def __init__(self, device: native.Handle) -> None:
        self._device = device
        self._layouts: dict[tuple[Access, ...], tuple[native.Handle, native.Handle]] = {}  # bind group's, pipeline's
        self._pipelines: dict[tuple[str, str, tuple[Access, ...]], Pipeline] = {}

    def __len__(self) -> int:
        return len(self._pipelines)

    def get(self, kernel: Kernel) -> Pipeline:
        key = (dialect.source(kernel, "naga"), kernel.entry, kernel.access)
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            pipeline = self._pipelines[key] = self._compile(kernel, key[0])
        return pipeline

    def _compile(self, kernel: Kernel, source: str) -> Pipeline:
        if kernel.access not in self._layouts:
            self._layouts[kernel.access] = create.layouts(self._device, kernel.access)
        group_layout, layout = self._layouts[kernel.access]

        def translate(words: str) -> DeviceError:
            ours = native.as_error(words)
            return ours if isinstance(ours, (DeviceLost, OutOfMemory)) else kernel_error(kernel, words, str(ours))

        handle = create.pipeline(self._device, kernel.name, source, kernel.entry, layout, translate)
        return Pipeline(handle, group_layout)


def kernel_error(kernel: Kernel, words: str, summary: str) -> KernelError:
    """The error for the compiler's words about `kernel`; lines count in `kernel.wgsl`, without the prelude."""
    location, reason, note = _LOCATION.search(words), _REASON.search(words), _NOTE.search(words)
    if location is None:
        return KernelError(f"kernel {kernel.name} does not compile: {summary}")
    said = ": ".join(match[1] for match in (reason, note) if match)
    line = int(location[1]) - dialect.prelude(kernel, "naga").count("\n")
    text = _line(kernel.wgsl.splitlines(), line)
    return KernelError(f"kernel {kernel.name} does not compile at line {line}, column {location[2]}: {said}\n  {text}")


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number - 1].strip() if 1 <= number <= len(lines) else ""
