"""Compute pipelines by source: a kernel compiles once per device. Compile errors name the line.

All pipelines in use are shared. Of the unused ones, only the most recent are kept: each takes about a megabyte of the
host's memory with a software adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias
from weakref import ref

from ..errors import DeviceError, DeviceLost, KernelError, OutOfMemory
from ..plan import directives
from ..plan.plan import Access, Kernel
from ..progress import Progress, silent
from .native import Handle, Report
from .threads import Lock
from .webgpu import ShaderSource, WebGPU

_MAX_UNUSED = 128

_Key: TypeAlias = tuple[str, tuple[Access, ...]]  # source, bindings


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ComputePipeline:
    """A compiled kernel. It is shared as long as a plan holds it."""

    handle: Handle
    layout: Handle  # of bind group 0


class PipelineCache:
    def __init__(self, api: WebGPU, max_unused: int = _MAX_UNUSED) -> None:
        self.compiled = 0  # kernels so far
        self._api, self._max_unused = api, max_unused
        self._layouts: dict[tuple[Access, ...], tuple[Handle, Handle]] = {}  # bind group's, pipeline's
        self._alive: dict[_Key, ref[ComputePipeline]] = {}  # without callbacks, in which an interrupt would be lost
        self._recent: dict[_Key, ComputePipeline] = {}  # in order of use
        self.lock = Lock()  # held while anything compiles

    def find(self, kernels: Sequence[Kernel]) -> list[ComputePipeline] | None:
        """Return the pipelines if all are compiled already, else None."""
        with self.lock:
            pipelines = [self._find(self._key(kernel)) for kernel in kernels]
            return None if None in pipelines else [self.get(kernel) for kernel in kernels]

    def get_all(self, kernels: Sequence[Kernel], progress: Progress = silent) -> list[ComputePipeline]:
        """Compile several kernels in parallel, which takes a driver a tenth of the time."""
        with self.lock:
            return self._get_all(kernels, progress)

    def _get_all(self, kernels: Sequence[Kernel], progress: Progress) -> list[ComputePipeline]:
        new = {key: k for k in kernels if self._find(key := self._key(k)) is None}
        handles: list[Handle] = []
        if len(new) > 1:
            with suppress(DeviceError):  # compiling them one by one below tells which kernel is wrong
                sources = [self._source(kernel, key[0]) for key, kernel in new.items()]
                handles = self._api.pipelines(sources, lambda done: progress("Compiling kernels", done, len(new)))
        alive = [ComputePipeline(handle, self._layout(key[1])[0]) for key, handle in zip(new, handles)]
        for key, pipeline in zip(new, alive):
            self._add(key, pipeline)
        return [self.get(kernel) for kernel in kernels]

    def get(self, kernel: Kernel) -> ComputePipeline:
        key = self._key(kernel)
        pipeline = self._find(key)
        if pipeline is None:
            handle = self._api.pipeline(self._source(kernel, key[0]))
            pipeline = self._add(key, ComputePipeline(handle, self._layout(kernel.access)[0]))
        self._recent.pop(key, None)
        self._recent[key] = pipeline
        if len(self._recent) > self._max_unused:
            del self._recent[next(iter(self._recent))]
        return pipeline

    def _find(self, key: _Key) -> ComputePipeline | None:
        alive = self._alive.get(key)
        return alive() if alive else None

    def _add(self, key: _Key, pipeline: ComputePipeline) -> ComputePipeline:
        self._alive[key] = ref(pipeline)
        self.compiled += 1
        if self.compiled % self._max_unused == 0:
            self._alive = {key: alive for key, alive in self._alive.items() if alive() is not None}
        return pipeline

    def _layout(self, access: tuple[Access, ...]) -> tuple[Handle, Handle]:
        if access not in self._layouts:
            self._layouts[access] = self._api.layouts(access)
        return self._layouts[access]

    def _source(self, kernel: Kernel, wgsl: str) -> ShaderSource:
        def translate(report: Report) -> DeviceError:
            error = self._api.as_error(report)
            if isinstance(error, (DeviceLost, OutOfMemory)):
                return error
            return self._error(kernel, report.text, str(error))

        return ShaderSource(kernel.name, wgsl, self._layout(kernel.access)[1], translate)

    def _key(self, kernel: Kernel) -> _Key:
        return directives.source(kernel, self._api.dialect), kernel.access

    def _error(self, kernel: Kernel, report: str, summary: str) -> KernelError:
        """Return the error for a compiler's report; lines count in `kernel.wgsl`, without the prelude."""
        line, column, message = self._api.fault(report) or (0, 0, summary)
        line -= directives.prelude(kernel, self._api.dialect).count("\n")
        if line < 1:
            return KernelError(f"kernel {kernel.name} does not compile: {message}")
        lines = kernel.wgsl.splitlines()
        text = lines[line - 1].strip() if line <= len(lines) else ""
        where = f"at line {line}, column {column}"
        return KernelError(f"kernel {kernel.name} does not compile {where}: {message}", f"  {text}")
