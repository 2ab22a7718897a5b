"""Speculative decoding: tokens that are proposed cheaply, and how many of them are worth verifying.

A run that verifies k proposals has k + 1 rows and chooses a token after each, as plain decoding does. It accepts
proposals up to the first one that differs, so it gives 1 to k + 1 tokens. Proposals come from the text itself, or from
a draft model. Whether they pay depends on the share that is accepted, and on the measured cost of runs by their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from ...errors import InvalidInput
from .generation import Acceptance

if TYPE_CHECKING:
    from .sampling import Sampling

Speculate = Literal["off", "auto"] | int  # a number: always that many proposals, where there are as many

COUNTS = (15, 7, 3, 1)  # proposals of a run, which then has 16, 8, 4 or 2 rows
MOST = COUNTS[0]
LONGEST = 8  # last tokens of a text that are compared with earlier ones; 2 at least must match
START = 1.1  # gain from which proposals are verified again after they did not pay
PROBE = 3  # proposals of a run that tries whether they pay again
PATIENCE, MOST_PATIENCE = 8, 256  # chances that are passed over before that
DECAY = 0.9  # of the weight of earlier proposals, per run
OUTLIER = 8  # times the usual seconds, which a run counts as at most


class Costs:
    """The seconds of runs by their number of rows, rounded up to powers of two, as this process measured them.

    The first run of each class is left out, because it may compile kernels.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], float | None] = {}

    def add(self, rows: int, seconds: float, drafted: bool = False) -> None:
        """Count a run, which took these seconds including the proposals of a draft model."""
        key = (rows - 1).bit_length(), drafted
        usual = self._seconds.get(key)
        if key not in self._seconds:
            self._seconds[key] = None
        elif usual is None:
            self._seconds[key] = seconds
        else:
            self._seconds[key] = usual + (min(seconds, OUTLIER * usual) - usual) / 8

    def of(self, rows: int, drafted: bool = False) -> float | None:
        """Return the seconds of such a run, or of the largest one below it that was measured; None if none was."""
        for number in range((rows - 1).bit_length(), -1, -1):
            seconds = self._seconds.get((number, drafted)) or self._seconds.get((number, False))
            if seconds is not None:
                return seconds
        return None


class Source(Protocol):
    """Proposals for one text."""

    drafted: bool  # they take time

    def available(self, text: Sequence[int], most: int) -> int:
        """Return how many tokens it can propose after a text, at most `most`."""

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Return that many tokens."""


class Lookup:
    """Proposals from the text itself: what followed the latest earlier occurrence of its last tokens, longest first."""

    drafted = False

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary  # larger tokens are rows of pictures, which cannot be proposed
        self._tokens = np.empty(1024, np.int64)
        self._count = 0
        self._proposals: list[int] = []

    def available(self, text: Sequence[int], most: int) -> int:
        self._proposals = []
        tokens = self._read(text)
        last = len(tokens) - 1
        if last >= 2 and most > 0:
            ends = np.flatnonzero((tokens[1:last] == tokens[last]) & (tokens[: last - 1] == tokens[last - 1])) + 1
            for length in range(2, LONGEST):
                longer = ends[ends >= length]
                longer = longer[tokens[longer - length] == tokens[last - length]] if last >= length else longer[:0]
                if not len(longer):
                    break
                ends = longer
            if len(ends):
                self._proposals = self._after(tokens, int(ends[-1]), most)
        return len(self._proposals)

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        return self._proposals[:count]

    def _after(self, tokens: np.ndarray, end: int, most: int) -> list[int]:
        """Return the tokens after a position. At the end of the text, they repeat themselves."""
        proposals: list[int] = tokens[end + 1 : end + 1 + most].tolist()
        while len(proposals) < most:
            proposals.append(proposals[len(proposals) - (len(tokens) - end - 1)])
        first = next((k for k, token in enumerate(proposals) if token >= self._vocabulary), most)
        return proposals[:first]

    def _read(self, text: Sequence[int]) -> np.ndarray:
        """Return the text as an array. Texts only grow."""
        count = len(text)
        if count > len(self._tokens):
            self._tokens = np.concatenate([self._tokens[: self._count], np.empty(count, np.int64)])
        self._tokens[self._count : count] = text[self._count :]
        self._count = count
        return self._tokens[:count]


class Verifier(Protocol):
    """A runner, as far as speculation uses it."""

    def refusal_to_verify(self) -> str:
        """Return why it cannot verify proposed tokens; an empty text if it can."""

    def sources(self, tokens: Sequence[int], sampling: Sampling) -> list[Source]:
        """Return what proposes tokens after a prompt, the best source first."""


class Proposals(NamedTuple):
    """Proposals that are worth a run."""

    source: Source
    number: int


class _Experience:
    """The share of one source's proposals that was accepted in a text, and whether they pay."""

    def __init__(self) -> None:
        self.accepted, self.tried = 2.0, 3.0  # as if it had been right two times of three
        self.pays, self.missed, self.patience = True, 0, PATIENCE

    def tokens(self, count: int) -> float:
        """Return how many of `count` proposals will be accepted, on average."""
        share = self.accepted / self.tried
        return sum(share**k for k in range(1, count + 1))

    def learn(self, proposed: int, accepted: int) -> None:
        self.accepted = self.accepted * DECAY + accepted
        self.tried = self.tried * DECAY + accepted + (accepted < proposed)


class Speculation:
    """The speculation of one text. `count` is a fixed number of proposals; with None, only as many as pay.

    `records` count what becomes of the proposals.
    """

    def __init__(self, sources: Sequence[Source], count: int | None, records: Sequence[Acceptance]) -> None:
        self._fixed, self._records = count, records
        self._sources = [(source, _Experience()) for source in sources]

    def choose(
        self, text: Sequence[int], most: int, costs: Costs, rows: int = 1, tokens: float = 1.0
    ) -> Proposals | None:
        """Return the proposals after a text, at most `most`, that gain most; None if none are worth a run.

        Without them, the run has `rows` rows and gives `tokens` tokens, on average.
        """
        best, highest = None, 0.0
        for source, experience in self._sources:
            available = source.available(text, min(most, MOST))
            if available < 1:
                continue
            if self._fixed is not None:
                count = min(self._fixed, available)
                gain = experience.tokens(count)
            else:
                count, gain = self._worth(source, experience, available, costs, rows, tokens)
            if count and gain > highest:
                best, highest = Proposals(source, count), gain
        return best

    def learn(self, choice: Proposals, accepted: int) -> None:
        """Count the proposals of a run, and the number that was accepted."""
        next(e for source, e in self._sources if source is choice.source).learn(choice.number, accepted)
        for record in self._records:
            record.add(choice.number, accepted)

    def _worth(
        self, source: Source, experience: _Experience, available: int, costs: Costs, rows: int, tokens: float
    ) -> tuple[int, float]:
        """Return how many proposals of a source gain most, and how many times the tokens per second they give."""
        plain = costs.of(rows)
        if plain is None:  # a plain run is measured first
            return 0, 0.0
        best, most = 0, 1.0 if experience.pays else START
        for count in COUNTS:
            seconds = costs.of(rows + count, source.drafted)
            if count <= available and seconds is not None:
                gain = (1 + experience.tokens(count) / tokens) * plain / seconds
                best, most = (count, gain) if gain > most else (best, most)
        experience.pays = best > 0
        if best:
            experience.missed, experience.patience = 0, PATIENCE
            return best, most
        experience.missed += 1
        if experience.missed < experience.patience:
            return 0, 0.0
        experience.missed, experience.patience = 0, min(2 * experience.patience, MOST_PATIENCE)
        return min(PROBE, available), 1.0


def count_of(speculate: Speculate) -> int | None:
    """Return the fixed number of proposals; 0 for "off", None for "auto"."""
    if speculate == "off":
        return 0
    if speculate == "auto":
        return None
    if isinstance(speculate, bool) or not isinstance(speculate, int) or not 1 <= speculate <= MOST:
        raise InvalidInput(f'invalid speculate {speculate!r}: expected "off", "auto" or an int from 1 to {MOST}')
    return speculate
