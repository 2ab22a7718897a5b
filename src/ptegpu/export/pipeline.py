"""The one way from modules to a `.pte`: trace, lower, check, write. What differs between sources is data: a `Job`.

| phase | |
|---|---|
| Reading weights | a source makes modules and a job of a checkpoint |
| Tracing | `torch.export`, each method |
| Lowering | to bytes through the partitioner; without partitions where a job allows it and they fail |
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
from .check import CannotRun, Check, Checked, NotChecked
from .lowering import FORWARD, NO_LIMITS, CannotLower, Lowered, Source, lower, ranges, trace
from .shapes import Shapes

QUANTIZES = re.compile(r"\.(quantize|choose_qparams)_")  # activations; weights are quantized before
S = TypeVar("S")
T = TypeVar("T")
Traced: TypeAlias = dict[str, ExportedProgram]  # by the names of methods; lowering empties it, since it uses them up


@dataclass(frozen=True, slots=True)
class Job(Generic[S]):
    """What to export, and how."""

    sources: Mapping[str, Source]  # by the names of methods, `forward` among them
    check: Check | None  # None: it is not checked
    summary: S  # for the result
    constants: Mapping[str, Any] = field(default_factory=dict)  # what further methods return
    options: Mapping[str, Any] = field(default_factory=dict)  # of the partitioner
    delegate: bool = True  # False: without partitions
    fallback: bool = False  # without partitions where they fail; with them, inputs keep the bounds that were asked for
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Exported(Generic[S]):
    """A program, and an account of its export."""

    lowered: Lowered
    notes: list[str]
    check: Checked | None  # None: it was not checked
    seconds: dict[str, float]  # of each phase
    summary: S  # what its source says of it
    files: list[Path] = field(default_factory=list)  # written

    @property
    def difference(self) -> float | None:
        """The largest difference of any element from eager PyTorch; None: not checked."""
        return self.check.difference if self.check else None


class Pipeline:
    """An export under way: its phases are reported and timed."""

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

    def trace(self, sources: Mapping[str, Source]) -> Traced:
        """Return each method traced; raise ExportError where an input has no largest size."""
        with self.phase("Tracing"):
            programs = {}
            for name, s in sources.items():
                programs[name] = trace(s.module, s.args, s.dynamic_shapes, s.kwargs)
                Shapes.of(programs[name]).check_bounds()
            return programs

    def make(self, job: Job[S], traced: Traced | None = None) -> Exported[S]:
        """Return the program of a job, checked and not written. `traced` are its methods, if they were."""
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

    def lower(self, job: Job[Any], programs: Traced, use: Callable[[Lowered, list[str]], T]) -> T:
        """Return what `use` makes of the program and notes on it: one without partitions where those fail."""
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

    def _with_bounds(self, job: Job[Any], programs: Traced) -> Lowered:
        """Lower a program so that its inputs keep their bounds: checking the sizes of textures, which ptegpu does not
        use, the partitioner may tighten them silently."""
        if len(programs) == 1:
            wanted = ranges(programs[FORWARD])
            lowered = self._lower(job, programs)
            sizes = [pair for dims, shape in zip(wanted, lowered.bounds) for pair in zip(dims, shape)]
            if all(high <= size for (_, high), size in sizes):
                return lowered
            programs = self.trace(job.sources)
        return self._lower(replace(job, options={**job.options, "texture_limits": NO_LIMITS}), programs)

    def _lower(self, job: Job[Any], programs: Traced, *, delegate: bool = True) -> Lowered:
        with self.phase("Lowering"):
            try:
                return lower(programs, delegate=delegate, options=job.options, constants=job.constants)
            finally:
                programs.clear()

    def write(
        self, made: Exported[S], path: str | os.PathLike[str], tokenizer: Mapping[str, bytes] | None = None
    ) -> Exported[S]:
        """Write the program to `path`, and the files of its tokenizer, named by their endings, beside it."""
        target = Path(path)
        with self.phase("Writing"):
            files = {target: made.lowered.data}
            files |= {target.with_suffix(ending): data for ending, data in (tokenizer or {}).items()}
            for file, data in files.items():
                write(file, data)
        return replace(made, files=list(files))


def rounds(program: ExportedProgram) -> bool:
    """Return whether it rounds activations to few bits."""
    return any(QUANTIZES.search(str(n.target)) for n in program.graph.nodes)
