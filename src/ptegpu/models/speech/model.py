"""Speech to text on a GPU: windows of sound in, segments of text out.

A window's log-mel, its encoding and their keys and values stay on the GPU, as does the decoder's cache. The host
chooses each token, by `rules`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import InvalidInput, UnsupportedProgram
from ...format import FileTensor
from ...format import ProgramFile as File
from ...gpu import Lock
from ...progress import Progress, silent
from ...runtime import open_program
from ..calls import not_finite, start
from ..door import Loading, Openable, ProgramSource, loading
from ..kinds import SPEECH
from ..parts import Speech
from ..tokenizer import find_tokenizer
from ..wave import read_wave, resample
from .rules import Rules, TimedTokens, cut, log_softmax
from .transcript import Segment, Transcript

METHODS = ("log_mel", "encode", "forward")
RANGE = 8.0  # powers of ten below the loudest that are heard
NO_SPEECH, UNLIKELY = 0.6, -1.0  # a window is silent if silence is likelier, and its tokens' mean logprob is lower

Sound = str | os.PathLike[str] | np.ndarray


def check_shapes(file: File, card: Speech) -> None:
    """Raise UnsupportedProgram unless the methods have the shapes that the card declares."""
    name, methods = file.path or "the program", {m.name: m for m in file.methods}
    if missing := [m for m in METHODS if m not in methods]:
        raise UnsupportedProgram(f"{name} is not a program for speech: it has no method {missing[0]!r}")

    def shapes(method: str, verb: str) -> list[tuple[int, ...]]:
        m = methods[method]
        values = [m.values[k] for k in (m.inputs if verb == "takes" else m.outputs)]
        return [v.sizes if isinstance(v, FileTensor) else () for v in values]

    expected = {
        ("log_mel", "takes"): [(1, (card.frames + 2) * card.hop)],
        ("log_mel", "gives"): [(card.frames, card.mels)],
        ("encode", "takes"): [(1, card.mels, card.frames)],
        ("forward", "takes"): [(1, card.context), (1,), *shapes("encode", "gives")],
        ("forward", "gives"): [(1, card.vocab)],
    }
    for (method, verb), sizes in expected.items():
        if shapes(method, verb) != sizes:
            raise UnsupportedProgram(f"{name}: {method} {verb} {shapes(method, verb)} and not {sizes}")


@dataclass(slots=True)
class _Decoding:
    """The options for decoding windows. The first window detects the language if it is None."""

    language: int | None  # its token
    task: str
    timestamps: bool
    no_speech: float | None
    unlikely: float


@dataclass(frozen=True, slots=True)
class _DecodedWindow:
    tokens: list[int]
    logprob: float
    no_speech: float


class SpeechModel:
    """A Whisper model on a GPU. Close it, or use it as a context manager.

    `source` is a `.pte` or bundle of `ptegpu export speech`, or a checkpoint folder, which is exported once and kept in
    the cache. The tokenizer is searched for beside it. `options` are `LoadOptions`, or a device; `more` are their
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
        opened = ProgramSource.of(source, options, (SPEECH,))
        opened.check_kind(SPEECH)
        assert opened.card.speech is not None
        self.card = opened.card.speech
        check_shapes(opened.file, self.card)
        self.tokenizer = find_tokenizer(opened.path, tokenizer)
        step = {"forward": [{"input 0[1]": 1}]}
        self.program = open_program(opened.program, options, methods=METHODS, first=step)
        self._mel, self._encode, self._forward = map(self.program.method, METHODS)
        self._lock = Lock()

    def transcribe(self, sound: Sound, **options: Any) -> Transcript:
        """Return the transcript of a sound; options are those of `stream`."""
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
        """Return a transcript and an iterator over its segments, which fills it.

        `sound` is a WAV file, or samples at the model's rate. `language` is a code such as "en"; by default, the first
        window decides. `task` may be "translate": into English. Without `timestamps`, a window is one segment; by
        default, they are on if there are several windows, which need them. A window counts as silent if the
        probability of silence exceeds `no_speech` and the mean logprob of its tokens is below `unlikely`; with None,
        no window does.
        """
        card, language_token = self.card, None
        if card.languages is None and (language or task != "transcribe"):
            raise InvalidInput("this model knows one language only: omit language and task")
        if card.languages is not None and language is not None:
            language_token = card.languages.get(language.lower().strip("<|>"))
            if language_token is None:
                raise InvalidInput(f"unknown language {language!r}: expected one of {', '.join(card.languages)}")
        if card.tasks is not None and task not in card.tasks:
            raise InvalidInput(f"unknown task {task!r}: expected one of {', '.join(card.tasks)}")
        samples = _checked(sound) if isinstance(sound, np.ndarray) else resample(*read_wave(sound)[:2], card.rate)
        several = len(samples) > card.frames * card.hop
        timestamps = several if timestamps is None else timestamps
        if card.no_timestamps is None and timestamps:
            raise InvalidInput(f"this model has no timestamps: it hears {card.seconds:g} seconds at most")
        if several and not timestamps:
            raise InvalidInput(f"sound of more than {card.seconds:g} seconds needs timestamps")
        transcript = Transcript(len(samples) / card.rate)
        decoding = _Decoding(language_token, task, timestamps, no_speech, unlikely)
        return transcript, self._segments(transcript, samples, decoding, progress)

    def log_mel(self, samples: np.ndarray, progress: Progress = silent) -> np.ndarray:
        """Return the spectrogram (mels, frames) that the model hears, padded to a full window with silence."""
        card = self.card
        size = card.frames * card.hop
        samples = np.pad(samples, (0, max(0, size - len(samples))))
        frames, padded = len(samples) // card.hop, np.pad(samples, card.window // 2, mode="reflect")
        mels = np.empty((frames, card.mels), np.float32)
        piece = np.zeros((1, size + 2 * card.hop), np.float32)
        for first in range(0, frames, card.frames):
            progress("Listening", first, frames)
            part = padded[first * card.hop : first * card.hop + piece.shape[1]]
            piece[0, : len(part)], piece[0, len(part) :] = part, 0
            with self._lock:
                mels[first : first + card.frames] = self._mel(piece)[: frames - first]
        progress("Listening", frames, frames)
        return np.ascontiguousarray((np.maximum(mels, mels.max() - RANGE) + 4).T / 4)

    def close(self) -> None:
        """Free the GPU memory."""
        self.program.close()

    def __enter__(self) -> SpeechModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _segments(
        self, transcript: Transcript, samples: np.ndarray, decoding: _Decoding, progress: Progress
    ) -> Iterator[Segment]:
        card = self.card
        mel = self.log_mel(samples, progress)
        names = {token: name for name, token in (card.languages or {}).items()}
        position, end = 0, mel.shape[1]  # in frames
        while position < end:
            progress("Transcribing", position, end)
            padded = np.zeros((1, card.mels, card.frames), np.float32)
            frames = min(card.frames, end - position)
            padded[0, :, :frames] = mel[:, position : position + frames]
            window = self._window(padded, decoding)
            transcript.language = names.get(decoding.language) if decoding.language is not None else None
            parts, forward = [TimedTokens(0, frames // 2, window.tokens)], frames
            if decoding.timestamps:
                parts, forward = cut(window.tokens, frames, card)
            limit = decoding.no_speech
            if limit is not None and window.no_speech > limit and window.logprob < decoding.unlikely:
                parts, forward = [], frames
            offset = position * card.hop / card.rate
            for part in parts:
                text = self.tokenizer.decode([t for t in part.tokens if t < card.end])
                first, last = offset + part.start * card.precision, offset + part.end * card.precision
                segment = Segment(first, last, text, part.tokens, window.logprob, window.no_speech)
                transcript.segments.append(segment)
                yield segment
            position += forward
        progress("Transcribing", end, end)

    def _window(self, mel: np.ndarray, decoding: _Decoding) -> _DecodedWindow:
        """Decode one window greedily; detect the language if it is unknown."""
        card, rules = self.card, Rules(self.card, decoding.timestamps)
        with self._lock:
            encoded = start(self._encode, [mel], read=False).resident()
            logits = self._step([card.start], 0, encoded)
            if card.languages and decoding.language is None:
                languages = list(card.languages.values())
                decoding.language = languages[int(logits[languages].argmax())]
            silence = 0.0 if card.no_speech is None else float(np.exp(log_softmax(logits)[card.no_speech]))
            task = card.tasks[decoding.task] if card.tasks else None
            quiet = None if decoding.timestamps else card.no_timestamps
            prompt = [token for token in (decoding.language, task, quiet) if token is not None]
            if prompt:
                logits = self._step(prompt, 1, encoded)
            tokens: list[int] = []
            total, length = 0.0, 1 + len(prompt)
            while True:
                scores = rules.scores(logits, tokens)
                token = int(scores.argmax())
                total += log_softmax(scores)[token]
                if token == card.end:
                    return _DecodedWindow(tokens, total / (len(tokens) + 1), silence)
                tokens.append(token)
                if length + len(tokens) >= card.context:
                    return _DecodedWindow(tokens, total / len(tokens), silence)
                logits = self._step([token], length + len(tokens) - 1, encoded)

    def _step(self, tokens: list[int], position: int, encoded: Sequence[Any]) -> np.ndarray:
        """Return the logits (V) after these tokens."""
        inputs = [np.array([tokens], np.int64), np.array([position], np.int64), *encoded]
        (logits,) = start(self._forward, inputs).result()
        logits = np.asarray(logits).reshape(-1)
        if not np.isfinite(logits).all():
            raise not_finite(position)
        return logits


def _checked(samples: np.ndarray) -> np.ndarray:
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise InvalidInput(f"samples are floats in one dimension, not {samples.dtype} {list(samples.shape)}")
    if not np.isfinite(samples).all():
        raise InvalidInput("samples are not finite numbers")
    return samples.astype(np.float32)


def transcribe(sound: Sound, model: Openable, device: Loading = None, **options: Any) -> Transcript:
    """Load a model and return the transcript of a WAV file or of samples; see `SpeechModel`."""
    with SpeechModel(model, device) as loaded:
        return loaded.transcribe(sound, **options)
