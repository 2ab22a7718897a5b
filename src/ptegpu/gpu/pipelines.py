"""Compute pipelines by source: a kernel compiles once per device. Compile errors name the line.

Pipelines in use are shared, however many there are. Of those that nothing uses, only the last are kept: each takes
about a megabyte of the host's memory under a software adapter.
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
from .faults import Report
from .ownership import Handle
from .threads import Lock
from .webgpu import Source, WebGPU

_KEPT = 128

_Key: TypeAlias = tuple[str, tuple[Access, ...]]  # source, bindings


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Pipeline:
    """A compiled kernel. Plans that use it keep it, so that others find it."""

    handle: Handle
    layout: Handle  # of bind group 0


class PipelineCache:
    def __init__(self, api: WebGPU, kept: int = _KEPT) -> None:
        self.compiled = 0  # kernels, so far
        self._api, self._kept = api, kept
        self._layouts: dict[tuple[Access, ...], tuple[Handle, Handle]] = {}  # bind group's, pipeline's
        self._alive: dict[_Key, ref[Pipeline]] = {}  # without callbacks: an interrupt that arrives in one is lost
        self._recent: dict[_Key, Pipeline] = {}  # used last comes last
        self.lock = Lock()  # held while anything compiles

    def found(self, kernels: Sequence[Kernel]) -> list[Pipeline] | None:
        """Return the pipelines if all are compiled already, else None."""
        with self.lock:
            found = [self._found(self._key(kernel)) for kernel in kernels]
            return None if None in found else [self.get(kernel) for kernel in kernels]

    def get_all(self, kernels: Sequence[Kernel], progress: Progress = silent) -> list[Pipeline]:
        """Compile several at once: side by side, which takes a driver a tenth of the time."""
        with self.lock:
            return self._get_all(kernels, progress)

    def _get_all(self, kernels: Sequence[Kernel], progress: Progress) -> list[Pipeline]:
        new = {key: k for k in kernels if self._found(key := self._key(k)) is None}
        made: list[Handle] = []
        if len(new) > 1:
            with suppress(DeviceError):  # whose, is told one by one
                sources = [self._source(kernel, key[0]) for key, kernel in new.items()]
                made = self._api.pipelines(sources, lambda done: progress("Compiling kernels", done, len(new)))
        alive = [Pipeline(handle, self._layout(key[1])[0]) for key, handle in zip(new, made)]
        for key, pipeline in zip(new, alive):
            self._add(key, pipeline)
        return [self.get(kernel) for kernel in kernels]

    def get(self, kernel: Kernel) -> Pipeline:
        key = self._key(kernel)
        pipeline = self._found(key)
        if pipeline is None:
            handle = self._api.pipeline(self._source(kernel, key[0]))
            pipeline = self._add(key, Pipeline(handle, self._layout(kernel.access)[0]))
        self._recent.pop(key, None)
        self._recent[key] = pipeline
        if len(self._recent) > self._kept:
            del self._recent[next(iter(self._recent))]
        return pipeline

    def _found(self, key: _Key) -> Pipeline | None:
        alive = self._alive.get(key)
        return alive() if alive else None

    def _add(self, key: _Key, pipeline: Pipeline) -> Pipeline:
        self._alive[key] = ref(pipeline)
        self.compiled += 1
        if self.compiled % self._kept == 0:
            self._alive = {key: alive for key, alive in self._alive.items() if alive() is not None}
        return pipeline

    def _layout(self, access: tuple[Access, ...]) -> tuple[Handle, Handle]:
        if access not in self._layouts:
            self._layouts[access] = self._api.layouts(access)
        return self._layouts[access]

    def _source(self, kernel: Kernel, wgsl: str) -> Source:
        def translate(report: Report) -> DeviceError:
            ours = self._api.as_error(report)
            return ours if isinstance(ours, (DeviceLost, OutOfMemory)) else self._error(kernel, report.text, str(ours))

        return Source(kernel.name, wgsl, self._layout(kernel.access)[1], translate)

    def _key(self, kernel: Kernel) -> _Key:
        return directives.source(kernel, self._api.dialect), kernel.access

    def _error(self, kernel: Kernel, words: str, summary: str) -> KernelError:
        """Return the error for the compiler's words; lines count in `kernel.wgsl`, without the prelude."""
        line, column, said = self._api.fault(words) or (0, 0, summary)
        line -= directives.prelude(kernel, self._api.dialect).count("\n")
        if line < 1:
            return KernelError(f"kernel {kernel.name} does not compile: {said}")
        text = _line(kernel.wgsl.splitlines(), line)
        where = f"at line {line}, column {column}"
        return KernelError(f"kernel {kernel.name} does not compile {where}: {said}", f"  {text}")


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number - 1].strip() if 1 <= number <= len(lines) else ""
