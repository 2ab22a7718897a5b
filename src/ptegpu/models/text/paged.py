"""The runner for several sequences: a program whose caches are in pages that the scheduler assigns."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidInput
from ...format import ProgramFile as File
from ...kernels.attention import PAGE
from ...plan import Bundle
from ...runtime import LoadOptions, open_program
from ..calls import start
from .compiling import SERVE, bundle_limits, check_chunk, pages_of, serving_of, serving_points, width_of
from .draft import sources
from .engine import Results
from .pages import Pages
from .sampling import NO_SEQUENCE, SampledRow, Sampling, row_operands
from .schedule import PlannedRun, Scheduler
from .signature import METHOD, TextSignature
from .speculation import MOST, Source

if TYPE_CHECKING:
    from ...runtime import Program
    from .sequential import SequentialRunner

SHARE = 2  # by default, caches take at most 1/SHARE of the memory that weights leave free
ROWS = 512  # of a run; fewer if the model takes fewer
ROWS_OF = {"discrete": 2048}  # on faster adapters
PREFILL_ROWS = 128  # of a run that also has texts in progress


class PagedRunner:
    """A program for several sequences; UnsupportedProgram if it cannot be turned into one."""

    def __init__(
        self,
        source: File | Bundle,
        signature: TextSignature,
        options: LoadOptions,
        *,
        sequences: int,
        data: Any = None,
        memory: int | None = None,
        rows: int | None = None,
        prefill_rows: int = PREFILL_ROWS,
        queue: float = math.inf,
        shares: Program | None = None,
    ) -> None:
        check_chunk(signature)
        device = options.open()[0] if shares is None else shares.device
        options = replace(options, device=device)
        if isinstance(source, Bundle):
            if memory is not None:
                raise InvalidInput("a bundle has the caches that it was made with: give the memory to ptegpu compile")
            pages, max_rows, slots = bundle_limits(source)
            max_rows, sampled = min(rows or max_rows, max_rows), slots
            first = {SERVE: serving_points(signature, 1, 1)[:1]}
            self.program = open_program(source, options, data, methods=[SERVE], first=first)
            self.method = self.program.method(SERVE)
        else:
            max_rows = min(rows or ROWS_OF.get(device.info.type, ROWS), signature.chunk)
            slots = min(sequences, max_rows)
            sampled = min(max_rows, max(slots, MOST + 1))  # room for proposals of a single request
            pages = 0

            def count(sizes: Sequence[int]) -> int:
                nonlocal pages
                budget, free = memory, device.available_bytes()
                if budget is None and free is not None:
                    budget = max(0, free - (source.nbytes + _bytes_of(data) if shares is None else 0)) // SHARE
                limit = min(device.target.max_binding_bytes, device.target.max_buffer_bytes)
                pages = pages_of(signature, slots, sizes, budget, limit, options.cache)
                return pages

            points = serving_points(signature, max_rows, sampled)
            self.program = open_program(
                source,
                options,
                data,
                methods=[METHOD],
                append={METHOD: serving_of(signature, count, slots)},
                points={METHOD: points},
                first={METHOD: points[:1]},
                beside=shares,
            )
            self.method = self.program.method(METHOD)
        self.ahead = int(self.method.in_one_plan)
        self.draft: SequentialRunner | None = None  # a smaller model that proposes tokens for a single text
        self._signature = signature
        self._tables = np.full((slots, width_of(signature)), -1, np.int32)
        running = min(sequences, slots, max_rows)
        self.scheduler = Scheduler(
            Pages(pages, PAGE), signature.context, running, max_rows, prefill_rows, queue, sampled
        )

    def start(self, run: PlannedRun) -> Results:
        call, count = start(self.method, self.arguments(run)), len(run.sample_rows)

        def results() -> tuple[list[int], list[float]]:
            tokens, logprobs = call.result()[:2]
            return tokens.tolist()[:count], logprobs.tolist()[:count]

        return results

    def arguments(self, run: PlannedRun) -> list[Any]:
        """Return the inputs of the method for a run."""
        for request in run.requests:
            if request.moved:
                self._tables[request.slot, : len(request.pages)] = request.pages
                request.moved = False
        settings, seen_bits = row_operands(_sampled_rows(run), self._signature.vocabulary)
        sample_rows = np.array(run.sample_rows or [0], np.int32)  # one at least
        tokens = np.array([run.tokens], self._signature.tokens.numpy)
        single = int(len(run.sample_rows) == len(run.rows) and not run.verified)  # only proposals are sampled rows too
        return [tokens, np.array(run.rows, np.int32), self._tables, sample_rows, settings, seen_bits, single]

    def refusal_to_verify(self) -> str:
        if self.scheduler.sampled > 1:
            return ""
        return "the bundle chooses one token in a run: `ptegpu compile --serve --sequences 16` makes one that does more"

    def sources(self, tokens: Sequence[int], sampling: Sampling) -> list[Source]:
        return sources(self._signature, tokens, sampling, self.draft, lambda: len(self.scheduler.running) == 1)

    def prepare(self) -> None:
        self.program.prepare()

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        self.program.close()


def _sampled_rows(run: PlannedRun) -> Iterator[SampledRow]:
    """List the sampled rows of a run. The host knows the tokens after proposals before the next run of the text."""
    for request, step, proposals in zip(run.sample_requests, run.steps, run.proposals, strict=True):
        sequence = NO_SEQUENCE if request in run.verified else request.slot
        yield SampledRow(request.sampler, step, request.tokens, proposals, sequence)


def _bytes_of(*files: Any) -> int:
    """Return the approximate size of files: paths, bytes, or lists of them."""
    total = 0
    for file in files:
        if isinstance(file, list | tuple):
            total += _bytes_of(*file)
        elif isinstance(file, str | os.PathLike):
            total += os.path.getsize(file)
        elif file is not None:
            total += sum(map(len, file.values())) if isinstance(file, Mapping) else len(file)
    return total
