"""The pipeline of every export: trace, lower, check, write. An `ExportJob` holds what differs between sources.

| phase | |
|---|---|
| Reading weights | a source builds modules and a job from a checkpoint |
| Tracing | `torch.export` of each method |
| Lowering | to bytes through the partitioner; without partitions if that fails and the job allows it |
| Checking | against eager PyTorch; a wrong program is an error, and nothing is written |
| Writing | the program, and the tokenizer beside it |
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from torch.export import ExportedProgram

from ..errors import InvalidProgram, UnsupportedProgram
from ..files import write
from ..progress import Progress, silent
from .check import CannotRun, CheckResult, EagerCheck, NotChecked
from .lowering import FORWARD, NO_LIMITS, CannotLower, Lowered, MethodSource, lower, trace
from .shapes import InputShapes

QUANTIZES = re.compile(r"\.(quantize|choose_qparams)_")  # operators that round activations
S = TypeVar("S")
T = TypeVar("T")
Traced: TypeAlias = dict[str, ExportedProgram]  # by method; lowering empties it, because it consumes the programs


@dataclass(frozen=True, slots=True)
class ExportJob(Generic[S]):
    """The methods of a program, and how to export them."""

    sources: Mapping[str, MethodSource]  # by method, `forward` among them
    check: EagerCheck | None  # None: skip it
    summary: S  # for the result
    constants: Mapping[str, Any] = field(default_factory=dict)  # the results of further methods
    options: Mapping[str, Any] = field(default_factory=dict)  # of the partitioner
    delegate: bool = True  # False: without partitions
    fallback: bool = False  # export without partitions if they fail, and keep the requested bounds if they do not
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Exported(Generic[S]):
    """A program, and an account of its export."""

    lowered: Lowered
    notes: list[str]
    check: CheckResult | None  # None: not checked
    seconds: dict[str, float]  # of each phase
    summary: S  # of the source
    files: list[Path] = field(default_factory=list)  # written

    @property
    def difference(self) -> float | None:
        """The largest difference of any element from eager PyTorch; None: not checked."""
        return self.check.difference if self.check else None


class ExportPipeline:
    """An export whose phases are reported and timed."""

    def __init__(self, progress: Progress = silent) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report a phase, and add the time of the block to it."""
        self.progress(name, 0, 1)
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.progress(name, 1, 1)

    def trace(self, sources: Mapping[str, MethodSource]) -> Traced:
        """Trace each method; raise ExportError if an input has no largest size."""
        with self.phase("Tracing"):
            programs = {}
            for name, s in sources.items():
                programs[name] = trace(s.module, s.args, s.dynamic_shapes, s.kwargs)
                InputShapes.of(programs[name]).check_bounds()
            return programs

    def run(self, job: ExportJob[S], traced: Traced | None = None) -> Exported[S]:
        """Return the program of a job, checked but not written. `traced` methods are not traced again."""
        programs = traced or self.trace(job.sources)
        rounded = bool(job.options.get("force_fp16")) or any(map(rounds, programs.values()))

        def checked(lowered: Lowered, notes: list[str]) -> Exported[S]:
            result = None
            if job.check:
                with self.phase("Checking"):
                    try:
                        result = job.check.compare(lowered.data, rounded=rounded)
                    except NotChecked as e:
                        notes = [*notes, f"not checked: {e}"]
            return Exported(lowered, [*job.notes, *notes], result, self.seconds, job.summary)

        return self.lower(job, programs, checked)

    def lower(self, job: ExportJob[Any], programs: Traced, use: Callable[[Lowered, list[str]], T]) -> T:
        """Call `use` with the program and notes, and return its result; if partitions fail, with one without them."""
        if not job.delegate:
            return use(self._lower(job, programs, delegate=False), [])
        try:
            lowered = self._with_bounds(job, programs) if job.fallback else self._lower(job, programs)
            return use(lowered, list(lowered.notes))
        except (CannotLower, CannotRun, InvalidProgram, UnsupportedProgram) as e:
            if not job.fallback:
                raise
            notes = [f"there are no partitions: {e}"]
        return use(self._lower(job, self.trace(job.sources), delegate=False), notes)

    def _with_bounds(self, job: ExportJob[Any], programs: Traced) -> Lowered:
        """Lower a program without losing the bounds of its inputs, which the partitioner may silently reduce to the
        limits of textures. ptegpu uses no textures.
        """
        if len(programs) == 1:
            requested = InputShapes.of(programs[FORWARD]).bounds()
            lowered = self._lower(job, programs)
            sizes = [pair for dims, shape in zip(requested, lowered.bounds) for pair in zip(dims, shape)]
            if all(high <= size for (_, high), size in sizes):
                return lowered
            programs = self.trace(job.sources)
        return self._lower(replace(job, options={**job.options, "texture_limits": NO_LIMITS}), programs)

    def _lower(self, job: ExportJob[Any], programs: Traced, *, delegate: bool = True) -> Lowered:
        with self.phase("Lowering"):
            try:
                return lower(programs, delegate=delegate, options=job.options, constants=job.constants)
            finally:
                programs.clear()

    def write(
        self, exported: Exported[S], path: str | os.PathLike[str], tokenizer: Mapping[str, bytes] | None = None
    ) -> Exported[S]:
        """Write the program to `path`, and the files of its tokenizer, by ending, beside it."""
        target = Path(path)
        files = {target: exported.lowered.data}
        files |= {target.with_suffix(ending): data for ending, data in (tokenizer or {}).items()}
        with self.phase("Writing"):
            for file, data in files.items():
                write(file, data)
        return replace(exported, files=list(files))


def rounds(program: ExportedProgram) -> bool:
    """Return whether a program rounds activations to few bits."""
    return any(QUANTIZES.search(str(n.target)) for n in program.graph.nodes)
