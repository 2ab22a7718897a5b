"""The runner for one sequence: a program with a cache of its own, whose tokens are known one by one.

A prompt that begins with the cached tokens runs only the rest: the next turn of a chat, or the same prompt again.
The result is the same as from an empty cache. Requests may take turns with every token; each turn of another request
computes what the cache lacks.

Proposed tokens are verified by another method, whose plan shares the weights and the cache. Wrong ones leave keys and
values behind their position, which the next call overwrites.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidInput, UnsupportedProgram
from ...gpu import Lock
from ...runtime import LoadOptions, open_program
from ...sampling import GREEDY
from ..calls import start
from ..door import ProgramSource
from .compiling import GENERATE, points_of, sampling_of, verifying_of, verifying_points
from .draft import sources
from .engine import Results
from .pages import Pages
from .pictures import Pictures
from .sampling import NO_SAMPLING, SampledRow, Sampler, Sampling, row_operands
from .schedule import PlannedRun, Scheduler, TextRequest
from .signature import METHOD, VISION, TextSignature
from .speculation import Costs, Proposals, Source

if TYPE_CHECKING:
    from ...runtime import Program

CHUNK = 512  # tokens of a prompt in one call, which cannot be interrupted; fewer if the model takes fewer
CHUNKS = {"discrete": 2048}  # on faster adapters
TOKEN, LOGPROB, SCORES = 0, 1, 2  # outputs of the method with sampling

NO_TARGETS = np.zeros((1, 0), np.int32)


class SequentialRunner:
    """A program for one sequence. `chunk` is how many tokens of a prompt run at once, at most."""

    ahead = 0  # the runner itself starts steps ahead

    def __init__(
        self,
        source: ProgramSource,
        signature: TextSignature,
        options: LoadOptions,
        *,
        data: Any = None,
        chunk: int | None = None,
        queue: float = math.inf,
    ) -> None:
        if chunk is not None and chunk < 1:
            raise InvalidInput(f"chunk must be at least 1, not {chunk}")
        self.signature = signature
        points = points_of(signature)
        step = [p for p in points if p["how"] == GREEDY][:1]  # a token of greedy decoding
        method, planned = GENERATE, dict[str, Any]()
        if source.bundle is None:
            method, planned = METHOD, {"append": {METHOD: sampling_of(signature)}, "points": {METHOD: points}}
        elif GENERATE not in source.bundle.methods[0]:
            where = source.path or "the bundle"
            raise InvalidInput(f"{where} has no method {GENERATE!r}: make it with `ptegpu compile`")
        methods = [method, VISION] if signature.pictures else [method]
        self.program = open_program(
            source.program, options, data, methods=methods, first={method: step}, **planned  # type: ignore[arg-type]
        )  # fmt: skip
        self.method = self.program.method(method)
        self.pictures: Pictures | None = None  # those that the model has seen
        if signature.pictures is not None:
            self.pictures = Pictures(signature.pictures, signature.vocabulary, self.program.method(VISION))
        default = CHUNKS.get(self.program.device.info.type, CHUNK)
        self.chunk = min(default if chunk is None else chunk, signature.chunk)
        self.scheduler = Scheduler(Pages(1, signature.context), signature.context, 1, signature.context, limit=queue)
        self._lock = Lock()
        self._cached: list[int] = []  # the tokens whose keys and values are in the cache
        self._owner: TextRequest | Sampler | None = None  # whose tokens they are
        self._source, self._options = source, options
        self._verifier: Program | None = None
        self._refusal: str | None = None  # the reason if there is none; None before the first attempt
        self._costs = Costs()
        self.draft: SequentialRunner | None = None  # a smaller model that proposes tokens
        self._since: tuple[TextRequest, float] | None = None  # whose token was the latest, and when
        self._ahead: deque[Any] = deque()  # started steps of the owner

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens that the cache holds."""
        return tuple(self._cached)

    def start(self, run: PlannedRun) -> Results:
        (request,) = run.sample_requests

        def results() -> tuple[list[int], list[float]]:
            token, logprob = self.next_token(request)
            return [token], [logprob]

        return results

    def next_token(self, request: TextRequest) -> tuple[int, float]:
        """Return the token after the request's tokens, and its log-probability; undefined if it is cancelled.

        The steps after it start before this one is waited for, with the token that is still on the GPU.
        """
        tokens, step = request.tokens, request.generated
        with self._lock:
            if request.cancelled:
                return 0, 0.0
            if request.accepted:
                return request.accepted.popleft()
            choice = self._choose(request)
            if self._ahead and self._owner is request:
                call = self._ahead.popleft()
                self._cached.append(tokens[-1])
            else:
                self._forget_ahead()
                if self._owner is not request:
                    self._keep(tokens[:-1])
                    self._owner = request
                if not step:
                    request.reused = len(self._cached)
                self._prefill(tokens, self.chunk, request)
                if request.cancelled:
                    return 0, 0.0
                rest = tokens[len(self._cached) :]
                if choice and len(rest) == 1:
                    self._verify(request, choice)
                    return request.accepted.popleft()
                call = self._start(request, self._ids(rest), len(self._cached), step)
                self._cached.extend(rest)
            if len(self._ahead) < min(request.lookahead, step + 1) and self.method.in_one_plan and not choice:
                self._run_ahead(request, call, step + 1)
            results = call.result()
            if request.speculation:
                self._count(request, 1)
        return results[TOKEN].item(), results[LOGPROB].item()

    def refusal_to_verify(self) -> str:
        """Load what verifies proposals, the first time; return why that is impossible, or an empty text."""
        with self._lock:
            if self._refusal is None:
                self._refusal = ""
                try:
                    self._verifier = self._load_verifier()
                except UnsupportedProgram as reason:
                    self._refusal = str(reason)
            return self._refusal

    def score(self, tokens: list[int], first: int) -> np.ndarray:
        """Return the log-probability of each token from number `first` on, given those before it."""
        with self._lock:
            self._owner = None
            self._keep(tokens[: first - 1])
            self._prefill(tokens[: first - 1], 0)
            step = self.chunk if self.signature.every else 1
            scores = [np.empty(0, np.float32)]
            for k in range(first, len(tokens), step):
                targets = np.array([tokens[k : k + step]], np.int32)
                scores.append(self._run(tokens[k - 1 : k - 1 + targets.shape[1]], targets)[0])
            return np.concatenate(scores)

    def reset(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._forget_ahead()
            self.program.reset()
            self._cached, self._owner = [], None

    def prepare(self) -> None:
        self.program.prepare()

    def sources(self, tokens: Sequence[int], sampling: Sampling) -> list[Source]:
        return sources(self.signature, tokens, sampling, self.draft)

    def continuation(self, text: Sequence[int], count: int, sampler: Sampler, step: int, same: int = 0) -> list[int]:
        """Return tokens after a text, the first of which is the `step`-th that the sampler chooses.

        The first `same` tokens of the text are those of the last call with this sampler.
        """
        with self._lock:
            self._forget_ahead()
            self._keep(text[:-1], same if self._owner is sampler else 0)
            self._owner = sampler
            self._prefill(text, self.chunk)
            rest = list(text[len(self._cached) :])
            tokens, position, calls = self._ids(rest), len(self._cached), []
            try:
                for k in range(count):
                    arguments = self.arguments(tokens, position, sampler.operands(step + k, text))
                    calls.append(self.method.start(arguments, hold=k + 1 < count))
                    tokens, position = calls[-1].resident()[TOKEN], len(text) + k
                chosen = [call.result()[TOKEN].item() for call in calls]
            except BaseException:
                for call in calls:
                    call.discard()
                raise
            self._cached.extend([*rest, *chosen[:-1]])
            return chosen

    def close(self) -> None:
        if self.draft is not None:
            self.draft.close()
        if self._verifier is not None:
            self._verifier.close()
        self.program.close()

    def _load_verifier(self) -> Program:
        """Return a program of the method that verifies proposals, with the weights and the cache of this one."""
        if self._source.bundle is not None:
            raise UnsupportedProgram("a bundle has no plans that verify proposed tokens: open the .pte file instead")
        if self.signature.chunk == 1:
            raise UnsupportedProgram("a program that takes one token at a time cannot verify several at once")
        if not self.method.in_one_plan:
            raise UnsupportedProgram("a program that partly runs on the host cannot share its cache")
        points = verifying_points(self.signature)
        program = open_program(
            self._source.program,
            self._options,
            methods=[METHOD],
            append={METHOD: verifying_of(self.signature)},
            points={METHOD: points},
            first={METHOD: points[: len(points) // 2]},  # those without a penalty
            beside=self.program,
            states=self.method,
        )
        if not program.method(METHOD).in_one_plan:
            program.close()
            raise UnsupportedProgram("the program cannot verify several tokens at once in a single plan")
        return program

    def _choose(self, request: TextRequest) -> Proposals | None:
        """Return the proposals that are worth a run, if there are any."""
        if request.speculation is None:
            return None
        return request.speculation.choose(request.tokens, min(request.room, self.signature.chunk - 1), self._costs)

    def _verify(self, request: TextRequest, choice: Proposals) -> None:
        """Run the latest token and the proposals after it; add the tokens that they give to those accepted."""
        assert self._verifier and request.speculation
        text, step, position = request.tokens, request.generated, len(self._cached)
        proposals = choice.source.propose(text, choice.number)
        count = len(proposals) + 1
        rows = [SampledRow(request.sampler, step + k, text, proposals[:k]) for k in range(count)]
        ids = self._ids([text[-1], *proposals])
        arguments = self.arguments(ids, position, (), np.arange(count, dtype=np.int32))
        operands = row_operands(rows, self.signature.vocabulary)
        call = start(self._verifier.method(METHOD), [*arguments, *operands])
        tokens, logprobs = (x.tolist() for x in call.result()[:2])
        right = next((k for k, token in enumerate(proposals) if token != tokens[k]), len(proposals))
        request.accepted.extend(zip(tokens[: right + 1], logprobs))  # what the cache lacks would only run again
        self._cached.extend([text[-1], *proposals[:right]])
        request.speculation.learn(choice, right)
        self._count(request, count, choice.source.drafted)

    def _count(self, request: TextRequest, rows: int, drafted: bool = False) -> None:
        """Add the time since the request's latest run to the costs."""
        now = time.perf_counter()
        if self._since and self._since[0] is request:
            self._costs.add(rows, now - self._since[1], drafted)
        self._since = request, now

    def _run_ahead(self, request: TextRequest, call: Any, step: int) -> None:
        """Start steps after `call`, from the `step`-th on: as many as are submitted at once.

        The first ones are submitted one by one, so that a short text wastes little. Tokens computed past the end of a
        text are discarded: the next call writes the cache again from its own position on.
        """
        if request.sampler.penalises:  # each token must reach the host before the next one is computed
            return
        position, started = len(request.tokens), len(self._ahead)
        left = min(request.context - position, request.max_tokens - step)
        last = min(started + min(request.lookahead, step), left)
        try:
            for k in range(started, last):
                token = (self._ahead[-1] if k else call).resident()[TOKEN]
                self._ahead.append(self._start(request, token, position + k, step + k, k + 1 < last))
        except BaseException:  # the steps on hold are lost
            self._forget_ahead()
            raise

    def _forget_ahead(self) -> None:
        while self._ahead:
            self._ahead.pop().discard()

    def _keep(self, tokens: Sequence[int], same: int = 0) -> None:
        """Forget the cached tokens from the first one on that differs from `tokens`; the first `same` do not."""
        end = min(len(self._cached), len(tokens))
        pairs = zip(self._cached[same:], tokens[same:])
        del self._cached[next((same + k for k, (a, b) in enumerate(pairs) if a != b), end) :]

    def _prefill(self, tokens: Sequence[int], leave: int, request: TextRequest | None = None) -> None:
        """Run the tokens that the cache lacks, in chunks, until at most `leave` remain or the request is cancelled."""
        while len(tokens) - len(self._cached) > leave and not (request and request.cancelled):
            first = len(self._cached)
            self._run(tokens[first : first + self.chunk])

    def _run(self, tokens: Sequence[int], targets: np.ndarray = NO_TARGETS) -> np.ndarray:
        """Run tokens after those in the cache; return the scores of the targets."""
        self._forget_ahead()
        scores = self.method(*self.arguments(self._ids(tokens), len(self._cached), NO_SAMPLING, targets))[SCORES]
        self._cached.extend(tokens)
        return scores  # type: ignore[no-any-return]

    def _start(self, request: TextRequest, tokens: Any, position: int, step: int, hold: bool = False) -> Any:
        """Start a call that chooses the `step`-th token of a text; `tokens` may be on the device."""
        sampling = request.sampler.operands(step, request.tokens)
        return start(self.method, self.arguments(tokens, position, sampling), hold)

    def _ids(self, tokens: Sequence[int]) -> np.ndarray:
        return np.array([tokens], self.signature.tokens.numpy)

    def arguments(
        self, tokens: Any, position: int, sampling: Sequence[Any], targets: np.ndarray = NO_TARGETS
    ) -> list[Any]:
        """Return the inputs of the method; `tokens` [1, S] are on the host, or a single one on the device.

        Those of the method that verifies are the same with rows in place of `targets`, without `sampling`.
        """
        positions = np.array([position], self.signature.position.numpy)
        rows: Sequence[np.ndarray] = ()
        if self.pictures and isinstance(tokens, np.ndarray):
            tokens, *rows = self.pictures.arguments(tokens)
        elif self.pictures:
            rows = self.pictures.none
        return [tokens, positions, *rows, *sampling, targets]
