"""Compute pipelines by source: a kernel compiles once per device. Compile errors name the line.

Pipelines in use are shared, however many there are. Of those that nothing uses, only the last are kept: each takes
about a megabyte of the host's memory under a software adapter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias
from weakref import WeakValueDictionary

from ..errors import DeviceError, DeviceLost, KernelError, OutOfMemory
from ..plan import dialect
from ..plan.plan import Access, Kernel
from .held import Handle, Words
from .webgpu import WebGPU

_KEPT = 128
_THREADS = min(8, os.cpu_count() or 1)

_Key: TypeAlias = tuple[str, str, tuple[Access, ...]]  # source, entry, bindings


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
        self._alive: WeakValueDictionary[_Key, Pipeline] = WeakValueDictionary()
        self._recent: dict[_Key, Pipeline] = {}  # used last comes last

    def get_all(self, kernels: Sequence[Kernel]) -> list[Pipeline]:
        """Several at once: those that are new compile side by side, which takes a driver a tenth of the time."""
        new = {key: k for k in kernels if (key := self._key(k)) not in self._alive}
        made: list[tuple[_Key, Pipeline]] = []
        if len(new) > 1:
            for kernel in new.values():
                self._layout(kernel.access)
            with ThreadPoolExecutor(min(len(new), _THREADS)) as pool:
                try:
                    found = pool.map(lambda key: (key, self._compile(new[key], key[0])), new)
                    made = list(found)
                except DeviceError:  # whose, is told one by one: errors of one thread may be seen by another
                    made = []
                finally:
                    pool.shutdown(cancel_futures=True)
        for key, pipeline in made:
            self._alive[key] = pipeline
            self.compiled += 1
        return [self.get(kernel) for kernel in kernels]

    def get(self, kernel: Kernel) -> Pipeline:
        key = self._key(kernel)
        pipeline = self._alive.get(key)
        if pipeline is None:
            pipeline = self._alive[key] = self._compile(kernel, key[0])
            self.compiled += 1
        self._recent.pop(key, None)
        self._recent[key] = pipeline
        if len(self._recent) > self._kept:
            del self._recent[next(iter(self._recent))]
        return pipeline

    def _layout(self, access: tuple[Access, ...]) -> tuple[Handle, Handle]:
        if access not in self._layouts:
            self._layouts[access] = self._api.layouts(access)
        return self._layouts[access]

    def _compile(self, kernel: Kernel, source: str) -> Pipeline:
        group_layout, layout = self._layout(kernel.access)

        def translate(words: Words) -> DeviceError:
            ours = self._api.as_error(words)
            return ours if isinstance(ours, (DeviceLost, OutOfMemory)) else self._error(kernel, words.text, str(ours))

        return Pipeline(self._api.pipeline(kernel.name, source, kernel.entry, layout, translate), group_layout)

    def _key(self, kernel: Kernel) -> _Key:
        return dialect.source(kernel, self._api.dialect), kernel.entry, kernel.access

    def _error(self, kernel: Kernel, words: str, summary: str) -> KernelError:
        """The error for the compiler's words about `kernel`; lines count in `kernel.wgsl`, without the prelude."""
        line, column, said = self._api.fault(words) or (0, 0, summary)
        line -= dialect.prelude(kernel, self._api.dialect).count("\n")
        if line < 1:
            return KernelError(f"kernel {kernel.name} does not compile: {said}")
        text = _line(kernel.wgsl.splitlines(), line)
        return KernelError(f"kernel {kernel.name} does not compile at line {line}, column {column}: {said}\n  {text}")


def _line(lines: Sequence[str], number: int) -> str:
    return lines[number - 1].strip() if 1 <= number <= len(lines) else ""
