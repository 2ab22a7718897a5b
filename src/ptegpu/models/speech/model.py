"""Speech to text on a GPU: windows of sound in, segments of text out.

A window's log-mel, its encoding and the keys and values of it stay on the GPU; so does the decoder's cache. The choice
of each token is made on the host, by `rules`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ExecutionError, InvalidInput, UnsupportedProgram
from ...format import Program as File
from ...format import Tensor
from ...gpu import Lock
from ...progress import Progress, silent
from ...runtime import open_program
from ..door import Loading, Openable, Source, loading
from ..kinds import SPEECH
from ..parts import Speech
from ..tokenizer import find_tokenizer
from ..wave import read_wave, resample
from .rules import Piece, Rules, cut, log_softmax
from .transcript import Segment, Transcript

METHODS = ("log_mel", "encode", "forward")
RANGE = 8.0  # powers of ten below the loudest that are heard
NO_SPEECH, UNLIKELY = 0.6, -1.0  # a window is silent if that is likelier, and its tokens' mean logprob is lower

Sound = str | os.PathLike[str] | np.ndarray


def check_shapes(file: File, f: Speech) -> None:
    """Raise UnsupportedProgram unless the methods take and give what the card says."""
    name, methods = file.path or "the program", {m.name: m for m in file.methods}
    if missing := [m for m in METHODS if m not in methods]:
        raise UnsupportedProgram(f"{name} is no program for speech: it has no method {missing[0]!r}")

    def shapes(method: str, given: bool) -> list[tuple[int, ...]]:
        m = methods[method]
        values = [m.values[k] for k in (m.inputs if given else m.outputs)]
        return [v.sizes if isinstance(v, Tensor) else () for v in values]

    heard = shapes("encode", False)
    wanted = {
        ("log_mel", True): [(1, (f.frames + 2) * f.hop)],
        ("log_mel", False): [(f.frames, f.mels)],
        ("encode", True): [(1, f.mels, f.frames)],
        ("forward", True): [(1, f.context), (1,), *heard],
        ("forward", False): [(1, f.vocab)],
    }
    for (method, given), expected in wanted.items():
        if shapes(method, given) != expected:
            what = "takes" if given else "gives"
            raise UnsupportedProgram(f"{name}: {method} {what} {shapes(method, given)} and not {expected}")


@dataclass(slots=True)
class _Prompt:
    """What a window's tokens begin with, once the language is known."""

    facts: Speech
    language: int | None
    task: str
    timestamps: bool

    def rest(self) -> list[int]:
        """Behind the first token."""
        f = self.facts
        task = [f.tasks[self.task]] if f.tasks else []
        quiet = [] if self.timestamps or f.no_timestamps is None else [f.no_timestamps]
        return [*([] if self.language is None else [self.language]), *task, *quiet]


@dataclass(frozen=True, slots=True)
class _Window:
    tokens: list[int]
    logprob: float
    no_speech: float


class SpeechModel:
    """A Whisper model on a GPU. Close it, or use it as a context manager.

    `source` is a `.pte` or bundle of `ptegpu export speech`, or a checkpoint folder, which is exported once and kept in
    the cache. The tokenizer is looked for beside it. `options` are `LoadOptions`, or a device; `more` are their
    fields by name.
    """

    def __init__(
        self,
        source: Openable,
        options: Loading = None,
        tokenizer: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> None:
        options = loading(options, more)
        found = Source.of(source, options, (SPEECH,))
        found.check_kind(SPEECH)
        assert found.card.speech is not None
        self.facts = found.card.speech
        check_shapes(found.file, self.facts)
        self.tokenizer = find_tokenizer(found.path, tokenizer)
        step = {"forward": [{"input 0[1]": 1}]}
        self.program = open_program(found.program, options, methods=METHODS, first=step)
        self._mel, self._encode, self._forward = map(self.program.method, METHODS)
        self._lock = Lock()

    def transcribe(self, sound: Sound, **options: Any) -> Transcript:
        """All that is said; options are those of `stream`."""
        transcript, segments = self.stream(sound, **options)
        for _ in segments:
            pass
        return transcript

    def stream(
        self,
        sound: Sound,
        *,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool | None = None,
        no_speech: float | None = NO_SPEECH,
        unlikely: float = UNLIKELY,
        progress: Progress = silent,
    ) -> tuple[Transcript, Iterator[Segment]]:
        """What is said, filled while the segments are asked for one by one.

        `sound` is a WAV file, or samples at the model's rate. `language` is a code such as "en"; None finds it out in
        the first window. `task` may be "translate": into English. Without `timestamps`, a window is one segment; None:
        with them where there is more than one window, which needs them. A window counts as silent if `no_speech` is
        less than how likely that is and the mean logprob of its tokens is below `unlikely`; None: never.
        """
        prompt = self._prompt(language, task)
        samples = _checked(sound) if isinstance(sound, np.ndarray) else resample(*read_wave(sound)[:2], self.facts.rate)
        several = len(samples) > self.facts.frames * self.facts.hop
        prompt.timestamps = several if timestamps is None else timestamps
        if self.facts.no_timestamps is None and prompt.timestamps:
            raise InvalidInput(f"this model has no timestamps: it hears {self.facts.seconds:g} seconds at most")
        if several and not prompt.timestamps:
            raise InvalidInput(f"sound of more than {self.facts.seconds:g} seconds needs timestamps")
        transcript = Transcript(len(samples) / self.facts.rate)
        return transcript, self._segments(transcript, samples, prompt, no_speech, unlikely, progress)

    def log_mel(self, samples: np.ndarray, progress: Progress = silent) -> np.ndarray:
        """(mels, frames), as the model hears it. Less than a window is filled up with silence."""
        f = self.facts
        size = f.frames * f.hop
        samples = np.pad(samples, (0, max(0, size - len(samples))))
        frames, padded = len(samples) // f.hop, np.pad(samples, f.window // 2, mode="reflect")
        found = np.empty((frames, f.mels), np.float32)
        piece = np.zeros((1, size + 2 * f.hop), np.float32)
        for first in range(0, frames, f.frames):
            progress("Listening", first, frames)
            given = padded[first * f.hop : first * f.hop + piece.shape[1]]
            piece[0, : len(given)], piece[0, len(given) :] = given, 0
            with self._lock:
                found[first : first + f.frames] = self._mel(piece)[: frames - first]
        progress("Listening", frames, frames)
        return np.ascontiguousarray((np.maximum(found, found.max() - RANGE) + 4).T / 4)

    def close(self) -> None:
        """Give the GPU memory back."""
        self.program.close()

    def __enter__(self) -> SpeechModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prompt(self, language: str | None, task: str) -> _Prompt:
        f, token = self.facts, None
        if f.languages is None and (language or task != "transcribe"):
            raise InvalidInput("this model knows one language only, and transcribes it")
        if f.languages is not None and language is not None:
            token = f.languages.get(language.lower().strip("<|>"))
            if token is None:
                raise InvalidInput(f"language {language!r} is unknown; the model knows {', '.join(f.languages)}")
        if f.tasks is not None and task not in f.tasks:
            raise InvalidInput(f"task {task!r} is unknown; the model can {', '.join(f.tasks)}")
        return _Prompt(f, token, task, True)

    def _segments(
        self,
        transcript: Transcript,
        samples: np.ndarray,
        prompt: _Prompt,
        no_speech: float | None,
        unlikely: float,
        progress: Progress,
    ) -> Iterator[Segment]:
        f, rules = self.facts, Rules(self.facts, prompt.timestamps)
        mel = self.log_mel(samples, progress)
        names = {token: name for name, token in (f.languages or {}).items()}
        seek, end = 0, mel.shape[1]
        while seek < end:
            progress("Transcribing", seek, end)
            heard = np.zeros((1, f.mels, f.frames), np.float32)
            frames = min(f.frames, end - seek)
            heard[0, :, :frames] = mel[:, seek : seek + frames]
            window = self._window(heard, prompt, rules)
            transcript.language = names.get(prompt.language) if prompt.language is not None else None
            pieces, forward = [Piece(0, frames // 2, window.tokens)], frames
            if prompt.timestamps:
                pieces, forward = cut(window.tokens, frames, f)
            if no_speech is not None and window.no_speech > no_speech and window.logprob < unlikely:
                pieces, forward = [], frames
            for piece in pieces:
                first = seek * f.hop / f.rate
                text = self.tokenizer.decode([t for t in piece.tokens if t < f.end])
                start, stop = first + piece.start * f.precision, first + piece.end * f.precision
                segment = Segment(start, stop, text, piece.tokens, window.logprob, window.no_speech)
                transcript.segments.append(segment)
                yield segment
            seek += forward
        progress("Transcribing", end, end)

    def _window(self, heard: np.ndarray, prompt: _Prompt, rules: Rules) -> _Window:
        """The tokens of one window, greedily; finds out the prompt's language if that is not known."""
        f = self.facts
        with self._lock:
            if self._encode.in_one_plan:
                given: Sequence[Any] = self._encode.start([heard], read=False).resident()
            else:
                given = self._encode.execute([heard])
            logits = self._step([f.start], 0, given)
            if f.languages and prompt.language is None:
                known = list(f.languages.values())
                prompt.language = known[int(logits[known].argmax())]
            silence = 0.0 if f.no_speech is None else float(np.exp(log_softmax(logits)[f.no_speech]))
            rest = prompt.rest()
            if rest:
                logits = self._step(rest, 1, given)
            tokens: list[int] = []
            total, place = 0.0, 1 + len(rest)
            while True:
                scores = rules.scores(logits, tokens)
                token = int(scores.argmax())
                total += log_softmax(scores)[token]
                if token == f.end:
                    return _Window(tokens, total / (len(tokens) + 1), silence)
                tokens.append(token)
                if place + len(tokens) >= f.context:
                    return _Window(tokens, total / len(tokens), silence)
                logits = self._step([token], place + len(tokens) - 1, given)

    def _step(self, tokens: list[int], position: int, heard: Sequence[Any]) -> np.ndarray:
        """The logits (V) after these tokens."""
        inputs = [np.array([tokens], np.int64), np.array([position], np.int64), *heard]
        if self._forward.in_one_plan:
            (logits,) = self._forward.start(inputs).result()
        else:
            (logits,) = self._forward.execute(inputs)
        found = np.asarray(logits).reshape(-1)
        if not np.isfinite(found).all():
            raise ExecutionError(f"the model's logits at position {position} are not finite numbers")
        return found


def _checked(samples: np.ndarray) -> np.ndarray:
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise InvalidInput(f"samples are floats in one dimension, not {samples.dtype} {list(samples.shape)}")
    if not np.isfinite(samples).all():
        raise InvalidInput("samples are not finite numbers")
    return samples.astype(np.float32)


def transcribe(sound: Sound, model: Openable, device: Loading = None, **options: Any) -> Transcript:
    """Return what is said in a WAV file or in samples, by a model that is loaded for it; see `SpeechModel`."""
    with SpeechModel(model, device) as loaded:
        return loaded.transcribe(sound, **options)
