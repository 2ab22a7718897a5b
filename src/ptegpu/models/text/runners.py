"""What runs a scheduler's work: a program for many sequences, or a model for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...errors import InvalidInput, UnsupportedProgram
from ...format import Program as File
from ...kernels.attention import PAGE
from ...plan import Bundle, Var
from ...runtime import LoadOptions, open_program
from ...sampling import SETTINGS, words_of
from .compiling import LIMITS, SERVE, serving_of
from .generation import Generation, Stream
from .pages import Pages
from .sampling import Sampling, Seen
from .schedule import Request, Scheduler, Work
from .signature import METHOD, Signature

if TYPE_CHECKING:
    from ...runtime import Program
    from .model import LanguageModel

SHARE = 2  # the part of the memory that weights leave free which caches take at most, if nobody says otherwise
ROWS = 512  # of a run, where the model takes so many
ROWS_OF = {"discrete": 2048}  # on quicker adapters

NOTHING = bytes(4 * (len(SETTINGS) + 1))  # the settings of a row whose token nobody wants

Results = Callable[[], tuple[list[int], list[float]]]  # waits


class Asked(Protocol):
    """What a runner has to know of a request's caller."""

    sampling: Sampling
    seen: Seen


class Runner(Protocol):
    scheduler: Scheduler
    ahead: int  # runs that can be started before the results of the first of them are known, beyond that one

    def start(self, work: Work) -> Results:
        """Begin a run; tokens and log-probabilities of what is wanted."""

    def prepare(self) -> None:
        """Compile whatever any run may need."""

    def close(self) -> None: ...


class ManyRunner:
    """A program for many sequences; UnsupportedProgram if it cannot be made one."""

    def __init__(
        self,
        source: File | Bundle,
        signature: Signature,
        options: LoadOptions,
        *,
        data: Any,
        sequences: int,
        memory: int | None,
        rows: int | None,
        beside: int,
        queue: float,
        shares: Program | None,
    ) -> None:
        check_chunk(signature)
        opened = options.open()[0] if shares is None else shares.device
        options = replace(options, device=opened)
        if isinstance(source, Bundle):
            if memory is not None:
                raise InvalidInput("a bundle has the caches that it was made with: give the memory to ptegpu compile")
            pages, most, places = bundle_limits(source)
            most = min(rows or most, most)
            first = {SERVE: points_of(signature, 1, 1)[:1]}
            self.program = open_program(source, options, data, methods=[SERVE], first=first)
            self._method = self.program.method(SERVE)
        else:
            most = min(rows or ROWS_OF.get(opened.info.type, ROWS), signature.chunk)
            places = min(sequences, most)
            pages = 0

            def count(sizes: Sequence[int]) -> int:
                nonlocal pages
                given, free = memory, opened.available_bytes()
                if given is None and free is not None:
                    given = max(0, free - (source.nbytes + _bytes_of(data) if shares is None else 0)) // SHARE
                limit = min(opened.target.max_binding_bytes, opened.target.max_buffer_bytes)
                pages = pages_of(signature, places, sizes, given, limit, options.cache == "f16")
                return pages

            points = points_of(signature, most, places)
            self.program = open_program(
                source,
                options,
                data,
                methods=[METHOD],
                append={METHOD: serving_of(signature, count, places)},
                points={METHOD: points},
                first={METHOD: points[:1]},
                beside=shares,
            )
            self._method = self.program.method(METHOD)
        self.ahead = int(self._method.in_one_plan)
        self._signature = signature
        self._tables = np.full((places, _width(signature)), -1, np.int32)
        self._told: list[list[int]] = [[] for _ in range(places)]  # what the tables say
        running = min(sequences, places, most)
        self.scheduler = Scheduler(Pages(pages, PAGE), signature.context, running, most, beside, queue)

    def start(self, work: Work) -> Results:
        for request in work.requests:
            if self._told[request.slot] != request.pages:
                self._told[request.slot] = list(request.pages)
                self._tables[request.slot, : len(request.pages)] = request.pages
        wanted = np.array(work.wanted or [0], np.int32)  # a run gives something
        each: list[Asked] = [request.caller for request in work.whose]
        words = b"".join(asked.sampling.row(step) for asked, step in zip(each, work.steps)) or NOTHING
        settings = np.frombuffer(words, np.int32).reshape(len(wanted), -1)
        penalised = any(asked.sampling.penalises for asked in each)
        seen = np.zeros((len(wanted), words_of(self._signature.vocabulary) if penalised else 0), np.int32)
        for k, (request, asked) in enumerate(zip(work.whose, each)):
            if asked.sampling.penalises:
                seen[k] = asked.seen.update(request.tokens)
        tokens = np.array([work.tokens], self._signature.tokens.numpy)
        arguments = [tokens, np.array(work.rows, np.int32), self._tables, wanted, settings, seen]
        run = self._method.start(arguments) if self._method.in_one_plan else None
        known = None if run else self._method.execute(arguments)

        def results() -> tuple[list[int], list[float]]:
            found, chances = (run.result() if run else known)[:2]  # type: ignore[index]
            return found.tolist()[: len(work.wanted)], chances.tolist()[: len(work.wanted)]

        return results

    def prepare(self) -> None:
        self.program.prepare()

    def close(self) -> None:
        self.program.close()


class OneRunner:
    """A model for one sequence, which keeps its own cache: requests come one after the other."""

    ahead = 0  # the model itself runs ahead

    def __init__(self, model: LanguageModel, queue: float) -> None:
        context = model.signature.context
        self._model = model
        self.scheduler = Scheduler(Pages(1, context), context, 1, context, limit=queue)
        self._request: Request | None = None

    def start(self, work: Work) -> Results:
        (request,) = work.whose
        asked: Asked = request.caller
        if self._request is not request:
            self._request = request
            self._stream = Stream(Generation(list(request.prompt), 0))
        self._stream.generation.tokens = request.tokens[len(request.prompt) :]
        asked.seen.update(request.tokens)

        def results() -> tuple[list[int], list[float]]:
            found = self._model.following(self._stream, request.tokens, asked.sampling, asked.seen, request.max_tokens)
            request.reused = self._stream.generation.timings.reused_tokens
            return [found[0]], [found[1]]

        return results

    def prepare(self) -> None:
        self._model.program.prepare()

    def close(self) -> None:
        self._model.close()


def check_chunk(signature: Signature) -> None:
    if signature.chunk == 1:
        raise UnsupportedProgram("a program that takes one token at a time cannot serve several sequences at once")
    if signature.pictures:
        raise UnsupportedProgram("a program that sees pictures cannot serve several sequences at once")


def bundle_limits(bundle: Bundle) -> tuple[int, int, int]:
    """What a bundle was made for: pages of caches, rows of a run, sequences."""
    outers = bundle.methods[0]
    if SERVE not in outers:
        missing = "the bundle has no plans for several sequences at once"
        raise UnsupportedProgram(f"{missing}: `ptegpu compile --serve` makes one that has")
    pages, rows = outers[LIMITS].outputs
    (tables,) = (v for v in outers[SERVE].inputs if isinstance(v, Var) and v.name == "tables")
    assert isinstance(pages, int) and isinstance(rows, int)
    return pages, rows, tables.sizes[0]


def _width(signature: Signature) -> int:
    """Pages of a sequence, at most."""
    return -(-signature.context // PAGE)


def pages_of(
    signature: Signature, sequences: int, sizes: Sequence[int], memory: int | None, limit: int, half: bool
) -> int:
    """As many as all sequences can use, of those that there is memory for; one sequence always runs.

    `sizes` are the bytes of a page of each cache, if it is not stored by `half`; a cache has `limit` bytes at most.
    """
    parts = 2 if half else 1
    count = sequences * _width(signature)
    if memory is not None:
        count = min(count, memory * parts // sum(sizes))
    return max(_width(signature), min(count, limit * parts // max(sizes)))


def _bytes_of(*files: Any) -> int:
    """What files have, about: paths, bytes, or several of them."""
    total = 0
    for file in files:
        if isinstance(file, list | tuple):
            total += _bytes_of(*file)
        elif isinstance(file, str | os.PathLike):
            total += os.path.getsize(file)
        elif file is not None:
            total += sum(map(len, file.values())) if isinstance(file, Mapping) else len(file)
    return total


def points_of(signature: Signature, rows: int, sequences: int) -> list[dict[str, int]]:
    """The sizes to plan for: every number of rows, and of those that are wanted, with and without what was seen."""
    words = words_of(signature.vocabulary)
    sizes = [(n, w) for n in range(1, rows + 1) for w in {1, min(n, sequences)}]
    sizes += [(n, w) for w in range(1, sequences + 1) for n in {w, rows}]

    def point(n: int, wanted: int, words: int) -> dict[str, int]:
        each = {f"{name}[0]": wanted for name in ("wanted", "settings", "seen")}
        return {"input 0[1]": n, "rows[0]": n, "seen[1]": words, **each}

    return [point(n, wanted, seen) for seen in (0, words) for n, wanted in sizes]
