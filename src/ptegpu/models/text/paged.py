"""The runner for several sequences: a program whose caches are in pages that the scheduler assigns."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
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
from .engine import Results
from .pages import Pages
from .sampling import row_operands
from .schedule import PlannedRun, Scheduler
from .signature import METHOD, TextSignature

if TYPE_CHECKING:
    from ...runtime import Program

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
            max_rows = min(rows or max_rows, max_rows)
            first = {SERVE: serving_points(signature, 1, 1)[:1]}
            self.program = open_program(source, options, data, methods=[SERVE], first=first)
            self.method = self.program.method(SERVE)
        else:
            max_rows = min(rows or ROWS_OF.get(device.info.type, ROWS), signature.chunk)
            slots = min(sequences, max_rows)
            pages = 0

            def count(sizes: Sequence[int]) -> int:
                nonlocal pages
                budget, free = memory, device.available_bytes()
                if budget is None and free is not None:
                    budget = max(0, free - (source.nbytes + _bytes_of(data) if shares is None else 0)) // SHARE
                limit = min(device.target.max_binding_bytes, device.target.max_buffer_bytes)
                pages = pages_of(signature, slots, sizes, budget, limit, options.cache)
                return pages

            points = serving_points(signature, max_rows, slots)
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
        self._signature = signature
        self._tables = np.full((slots, width_of(signature)), -1, np.int32)
        running = min(sequences, slots, max_rows)
        self.scheduler = Scheduler(Pages(pages, PAGE), signature.context, running, max_rows, prefill_rows, queue)

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
        sampled = ((r.sampler, step, r.slot, r.tokens) for r, step in zip(run.sample_requests, run.steps))
        settings, seen_bits = row_operands(sampled, self._signature.vocabulary)
        sample_rows = np.array(run.sample_rows or [0], np.int32)  # one at least
        tokens = np.array([run.tokens], self._signature.tokens.numpy)
        rows, single = np.array(run.rows, np.int32), int(len(run.sample_rows) == len(run.rows))
        return [tokens, rows, self._tables, sample_rows, settings, seen_bits, single]  # a sequence has one sampled row

    def prepare(self) -> None:
        self.program.prepare()

    def close(self) -> None:
        self.program.close()


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
