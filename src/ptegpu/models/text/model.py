"""A language model: prompts in, text out. The KV cache and the choice of the next token stay on the GPU.

What the cache holds is known token by token, so a prompt that begins with what is there already only runs the rest:
the next turn of a chat, or the same prompt again. The result is the same as from an empty cache.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ...errors import ExecutionError, InvalidInput, UnsupportedProgram
from ...gpu import Lock
from ...runtime import open_program
from ...sampling import GREEDY, SETTINGS
from ..door import Loading, Openable, Source, loading
from ..kinds import LANGUAGE
from .compiling import GENERATE, SERVE, points_of, sampling_of
from .generation import Generation, Stream
from .pictures import Picture, Pictures
from .prompts import MAX_TOKENS, Options, Prompt, Prompts, Writer, check_max_tokens
from .sampling import Sampling, Seen
from .signature import METHOD, VISION, read_signature

if TYPE_CHECKING:
    from ..template import Message
    from .batch import BatchEngine

TOGETHER = 4  # decode steps in one submit, where nobody waits for each token
TOGETHER_MANY = 16  # sequences, where there are several prompts
CHUNK = 512  # tokens of a prompt in one call, where the model takes so many: a call is not interrupted
CHUNKS = {"discrete": 2048}  # on quicker adapters
TOKEN, SCORES = 0, 2  # among the outputs of the program with what is appended

NO_TARGETS = np.zeros((1, 0), np.int32)


class LanguageModel(Prompts):
    """A language model on a GPU. Close it, or use it as a context manager.

    `source` may be a checkpoint folder, too: it is exported once, as `ptegpu export llm` does, and kept in the cache.
    `options` are `LoadOptions`, or a device; `more` are fields of them by name. The tokenizer is looked for beside the
    model (`NAME.tokenizer.json`, `tokenizer.json`), or given as a file or folder; without one, prompts are lists of
    tokens. `data` is one or several `.ptd` files. `chunk` is how many tokens of a prompt run at once. With the option
    `cache="f16"`, long contexts are faster.
    """

    def __init__(
        self,
        source: Openable,
        options: Loading = None,
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        chunk: int | None = None,
        **more: Any,
    ) -> None:
        options = loading(options, more)
        found = Source.of(source, options, LANGUAGE)
        super().__init__(found.path, read_signature(found.file, found.card), tokenizer)
        if chunk is not None and chunk < 1:
            raise InvalidInput(f"chunk must be at least 1, not {chunk}")
        alone = found.bundle is not None and SERVE not in found.bundle.methods[0]
        self._source = None if alone else (found, options, tokenizer, data)  # of the same for many
        self._many: BatchEngine | None = None
        facts = self.signature.pictures
        sees = [VISION] if facts else []
        points = points_of(self.signature)
        step = [p for p in points if p["how"] == GREEDY][:1]  # a token of greedy decoding
        method = METHOD if found.bundle is None else GENERATE
        planned: dict[str, Any] = {}
        if found.bundle is None:
            planned = {"append": {METHOD: sampling_of(self.signature)}, "points": {METHOD: points}}
        elif GENERATE not in found.bundle.methods[0]:
            where = self._path or "the bundle"
            raise InvalidInput(f"{where} has no method {GENERATE!r}: make it with `ptegpu compile`")
        self.program = open_program(
            found.program, options, data, methods=[method, *sees], first={method: step}, **planned
        )
        self._forward = self.program.method(method)
        self.pictures: Pictures | None = None  # that it has seen, if it can see
        if facts is not None:
            self.pictures = Pictures(facts, self.signature.vocabulary, self.program.method(VISION))
        usual = CHUNKS.get(self.program.device.info.type, CHUNK)
        self.chunk = min(usual if chunk is None else chunk, self.signature.chunk)
        self._lock = Lock()
        self._cached: list[int] = []  # the tokens whose keys and values are in the cache
        self._owner: object = None  # whose tokens they are
        self._ahead: deque[Any] = deque()  # the owner's next steps, already on their way

    @property
    def cached(self) -> tuple[int, ...]:
        """The tokens that the cache holds."""
        return tuple(self._cached)

    def encode(self, prompt: Prompt, pictures: Sequence[Picture] = ()) -> list[int]:
        """The tokens of a prompt, checked; each `<image>` in a text is one of the pictures, or they come first."""
        if pictures:
            if not isinstance(prompt, str):
                raise InvalidInput("pictures go with a text, not with tokens")
            prompt = self._seeing().encode(prompt, pictures, self.tokenizer.encode)
        return super().encode(prompt)

    def encode_chat(self, messages: Sequence[Message], pictures: Sequence[Picture] = ()) -> list[int]:
        """The tokens of a conversation, in whose messages there are so many pictures."""
        if not pictures:
            return super().encode_chat(messages)
        text = self.tokenizer.chat.render(self._parts(messages))
        return super().encode(self._seeing().encode(text, pictures, self.tokenizer.encode_rendered))

    def see(self, picture: Picture) -> Picture:
        """A picture that was looked at: used again, it costs nothing."""
        return self._seeing().look(picture)

    def _seeing(self) -> Pictures:
        if self.pictures is None:
            raise InvalidInput("this model sees no pictures: it has no method for them")
        return self.pictures

    def _known(self) -> int:
        return self.pictures.end if self.pictures else super()._known()

    def generate(
        self,
        prompt: Prompt,
        *,
        stream: Callable[[str], object] | None = None,
        pictures: Sequence[Picture] = (),
        **options: Unpack[Options],
    ) -> Generation:
        """The continuation of a prompt. `stream` is called with each piece of text as it comes."""
        pieces = self.stream(prompt, pictures=pictures, **options)
        pieces.together = 1 if stream else TOGETHER
        for text in pieces:
            if stream is not None:
                stream(text)
        return pieces.generation

    def generate_batch(self, prompts: Iterable[Prompt], **options: Unpack[Options]) -> list[Generation]:
        """The continuations of several prompts: at once, where the program can be made one for many sequences.

        That is another program, with caches of its own on the GPU; it is made the first time and kept.
        """
        tokens = [self.encode(prompt) for prompt in prompts]
        many = self._for_many() if len(tokens) > 1 else None
        if many is None:
            return [self.generate(prompt, **options) for prompt in tokens]
        handles = [many.submit(prompt, options) for prompt in tokens]  # type: ignore[arg-type]
        try:
            return [handle.wait() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise

    def _for_many(self) -> BatchEngine | None:
        """The same model for many sequences; None if there cannot be one."""
        from .batch import BatchEngine

        with self._lock:
            if self._many is None and self._source is not None:
                source, options, tokenizer, data = self._source
                try:
                    self._many = BatchEngine(
                        source, options, tokenizer, data=data, sequences=TOGETHER_MANY, queue=None, one_by_one=False,
                        shares=self.program,
                    )  # fmt: skip
                except UnsupportedProgram:
                    self._source = None
                else:
                    weakref.finalize(self, self._many.close)
            return self._many

    def stream(self, prompt: Prompt, *, pictures: Sequence[Picture] = (), **options: Unpack[Options]) -> Stream:
        """An iterator over the text of the continuation; its `generation` tells the rest."""
        return self._stream(self.encode(prompt, pictures), **options)

    def chat(self, system: str | None = None, **options: Unpack[Options]) -> Any:
        """A conversation with the model; see `Conversation`."""
        from .chat import Conversation

        return Conversation(self, system, **options)

    def score(self, prompt: Prompt, first: int = 1) -> np.ndarray:
        """The log-probability of each token of `prompt`, from number `first` on, given those before it."""
        tokens = self.encode(prompt)
        if not 1 <= first <= len(tokens):
            raise InvalidInput(f"first must be from 1 to {len(tokens)}, not {first}")
        with self._lock:
            self._owner = None
            self._keep(tokens[: first - 1])
            self._prefill(tokens[: first - 1], 0)
            step = self.chunk if self.signature.every else 1
            found = [np.empty(0, np.float32)]
            for k in range(first, len(tokens), step):
                targets = np.array([tokens[k : k + step]], np.int32)
                found.append(self._run(tokens[k - 1 : k - 1 + targets.shape[1]], targets=targets)[0])
            return np.concatenate(found)

    def reset(self) -> None:
        """Empty the cache: everything as when the model was loaded."""
        with self._lock:
            self._forget_ahead()
            self.program.reset()
            self._cached, self._owner = [], None

    def close(self) -> None:
        """Give the GPU memory back."""
        self.program.close()
        if self._many is not None:
            self._many.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(
        self,
        prompt: list[int],
        *,
        max_tokens: int = MAX_TOKENS,
        stop: str | Iterable[str] = (),
        stop_tokens: Iterable[int] | None = None,
        **sampling: Any,
    ) -> Stream:
        check_max_tokens(max_tokens)
        chosen = Sampling(**sampling)
        assert chosen.seed is not None
        stream = Stream(Generation(prompt, chosen.seed))
        writer = self.writer(stream.generation, stop)
        return stream.start(self._pieces(stream, chosen, max_tokens, self.ends(stop_tokens), writer))

    def _pieces(
        self, stream: Stream, sampling: Sampling, max_tokens: int, ends: frozenset[int], writer: Writer
    ) -> Iterator[str]:
        """The pieces of a stream, whose generation is filled on the way."""
        made = stream.generation
        tokens, seen = list(made.prompt_tokens), Seen(self.signature.vocabulary, sampling.penalises)
        while made.finish_reason is None:
            if len(made.tokens) >= max_tokens:
                made.finish_reason = "length"
                break
            if len(tokens) > self.signature.context:
                made.finish_reason = "context"
                break
            seen.update(self._said(tokens) if seen.needed else tokens)
            token, logprob = self.following(stream, tokens, sampling, seen, max_tokens)
            if stream.cancelled:
                made.finish_reason = "cancelled"
                break
            if token in ends:
                made.finish_reason = "stop"
                break
            tokens.append(token)
            text = writer.push(token, logprob)
            if writer.stopped:
                made.finish_reason = "stop"
            if text:
                yield text
        rest = writer.finish()
        if rest:
            yield rest

    def following(
        self, stream: Stream, tokens: list[int], sampling: Sampling, seen: Seen, max_tokens: int
    ) -> tuple[int, float]:
        """The token after `tokens`, of which the cache may hold some; nothing of worth if cancelled on the way.

        The steps after it are started before this one is waited for, with the token as it is on the GPU.
        """
        timings, step = stream.generation.timings, len(stream.generation.tokens)
        started = time.perf_counter()
        with self._lock:
            reused = len(self._cached)
            if self._ahead and self._owner is stream:
                run = self._ahead.popleft()
                self._cached.append(tokens[-1])
            else:
                self._forget_ahead()
                if self._owner is not stream:
                    self._keep(tokens[:-1])
                    self._owner = stream
                reused = len(self._cached)
                self._prefill(tokens, self.chunk, stream)
                if stream.cancelled:
                    return 0, 0.0
                rest = tokens[len(self._cached) :]
                run = self._start(
                    np.array([rest], self.signature.tokens.numpy), len(self._cached), sampling, step, seen
                )
                self._cached.extend(rest)
            if self._can_run_ahead(sampling):
                left = min(self.signature.context - len(tokens), max_tokens - step - 1)
                self._run_ahead(run, stream, left, len(tokens), sampling, step + 1, seen)
            token, logprob = run.result()[:2]
        elapsed = time.perf_counter() - started
        if step == 0:
            timings.reused_tokens, timings.prefill_tokens, timings.prefill_s = reused, len(tokens) - reused, elapsed
        else:
            timings.decode_tokens, timings.decode_s = step, timings.decode_s + elapsed
        chance = logprob.item()
        if not math.isfinite(chance):
            raise ExecutionError(f"the model's logits at position {len(tokens) - 1} are not finite numbers")
        return token.item(), chance

    def _run_ahead(
        self, run: Any, stream: Stream, left: int, position: int, sampling: Sampling, step: int, seen: Seen
    ) -> None:
        """Start steps behind `run`, `left` at most: as many as go together, once fewer than that are on their way.

        The first ones go one by one, so that a short text wastes little. What is computed behind the end of a text is
        thrown away: the cache is written again from the position on that the next call has.
        """
        begun, together = len(self._ahead), min(stream.together, step)
        if begun >= together:
            return
        count = min(together, left - begun)
        latest = self._ahead[-1] if begun else run
        try:
            for k in range(begun, begun + count):
                hold, following = k + 1 < begun + count, latest.resident()[TOKEN]
                latest = self._start(following, position + k, sampling, step + k, seen, hold)
                self._ahead.append(latest)
        except BaseException:  # those that were held are lost
            self._forget_ahead()
            raise

    def _can_run_ahead(self, sampling: Sampling) -> bool:
        """A penalty needs the host to know each token first."""
        return self._forward.in_one_plan and not sampling.penalises

    def _forget_ahead(self) -> None:
        while self._ahead:
            self._ahead.pop().discard()

    def _keep(self, tokens: Sequence[int]) -> None:
        """Forget what the cache holds from the first token on that is not in `tokens`."""
        pairs = zip(self._cached, tokens)
        same = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(self._cached), len(tokens)))
        del self._cached[same:]

    def _prefill(self, tokens: Sequence[int], leave: int, stream: Stream | None = None) -> None:
        """Run those of `tokens` that the cache lacks, in chunks, until at most `leave` are left, or cancelled."""
        while len(tokens) - len(self._cached) > leave and not (stream and stream.cancelled):
            first = len(self._cached)
            self._run(tokens[first : first + self.chunk])

    def _run(
        self,
        tokens: Sequence[int],
        targets: np.ndarray = NO_TARGETS,
    ) -> np.ndarray:
        """One call of the model, after what is in the cache: the scores of targets."""
        self._forget_ahead()
        given = np.array([tokens], self.signature.tokens.numpy)
        scores = self._forward(*self._arguments(given, len(self._cached), None, 0, None, targets))[SCORES]
        self._cached.extend(tokens)
        return scores  # type: ignore[no-any-return]

    def _start(self, tokens: Any, position: int, sampling: Sampling, step: int, seen: Seen, hold: bool = False) -> Any:
        """One call of the model that is not waited for, where it runs at once; `tokens` may be on the device."""
        arguments = self._arguments(tokens, position, sampling, step, seen, NO_TARGETS)
        if self._forward.in_one_plan:
            return self._forward.start(arguments, hold)
        return _Done(self._forward.execute(arguments))

    def _arguments(
        self,
        tokens: Any,
        position: int,
        sampling: Sampling | None,
        step: int,
        seen: Seen | None,
        targets: np.ndarray,
    ) -> list[Any]:
        words = sampling.words(step) if sampling else np.zeros(len(SETTINGS), np.int32)
        bits = seen.bits if seen else np.zeros(1, np.int32)
        at = np.array([position], self.signature.position.numpy)
        rows: Sequence[np.ndarray] = ()
        if self.pictures and isinstance(tokens, np.ndarray):
            tokens, *rows = self.pictures.arguments(tokens)
        elif self.pictures:  # one that was chosen on the device
            rows = self.pictures.none
        return [tokens, at, *rows, words, bits, sampling.how if sampling else 0, targets]


class _Done:
    """A call that was waited for."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def result(self) -> list[Any]:
        return self._results
