"""Proposals of speculative decoding, and how many of them are worth a run."""

from __future__ import annotations

from collections.abc import Sequence

from ptegpu.models.text.generation import Acceptance
from ptegpu.models.text.speculation import MOST_PATIENCE, PATIENCE, PROBE, Costs, Lookup, Speculation, count_of


def test_a_text_proposes_what_followed_its_last_tokens() -> None:
    lookup = Lookup(100)

    def proposed(text: Sequence[int], most: int = 3) -> list[int]:
        lookup = Lookup(100)
        assert lookup.available(text, most) == len(lookup.propose(text, most))
        return lookup.propose(text, most)

    assert [] == proposed([]) == proposed([1]) == proposed([1, 2]) == proposed([1, 2, 3, 4, 3])
    assert [3, 9, 1] == proposed([1, 2, 3, 9, 1, 2])
    assert [3] == proposed([1, 2, 3, 9, 1, 2], 1)
    assert [] == proposed([1, 2, 3, 9, 1, 2], 0)
    assert [6, 1, 2] == proposed([1, 2, 5, 1, 2, 6, 1, 2])  # the latest of two
    assert [5, 8, 1] == proposed([4, 1, 2, 5, 8, 1, 2, 6, 4, 1, 2])  # the longest before the latest
    assert [1, 2, 1, 2, 1] == proposed([1, 2, 1, 2], 5)  # a text that repeats itself goes on
    assert [7] * 4 == proposed([7, 7, 7], 4)
    assert [5] == proposed([1, 2, 5, 100, 1, 2])  # beyond the vocabulary are rows of pictures
    text = [1, 2, 3]
    assert 0 == lookup.available(text, 3)
    for token in range(4, 3000):  # a text grows
        text += [token % 90, 1, 2]
        assert 3 == lookup.available(text, 3)
    assert [text[-3 * 90], 1, 2] == lookup.propose(text, 3)  # with the token before them, they occurred 90 turns ago


def test_costs_are_those_of_runs_with_as_many_rows() -> None:
    costs = Costs()
    assert costs.of(1) is None
    costs.add(1, 9.0)  # the first one may compile kernels
    assert costs.of(1) is None
    costs.add(1, 1.0)
    assert 1.0 == costs.of(1) == costs.of(16) == costs.of(16, drafted=True)
    for seconds in (9.0, 2.0):
        costs.add(4, seconds)
    assert (1.0, 2.0, 2.0, 2.0) == (costs.of(2), costs.of(3), costs.of(4), costs.of(5))
    costs.add(3, 10.0)
    assert 3.0 == costs.of(4)
    costs.add(3, 1e9)  # an interruption counts as eight usual runs
    assert 3.0 + 21 / 8 == costs.of(4)
    for _ in range(2):
        costs.add(4, 7.0, drafted=True)
    assert (7.0, 3.0 + 21 / 8) == (costs.of(4, drafted=True), costs.of(4))


class Some:
    """A source that always has proposals."""

    def __init__(self, drafted: bool = False) -> None:
        self.drafted = drafted

    def available(self, text: Sequence[int], most: int) -> int:
        return most

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        return [0] * count


def measured(**seconds: float) -> Costs:
    """Return the costs of runs; each name has a number of rows."""
    costs = Costs()
    for rows, each in seconds.items():
        for _ in range(2):
            costs.add(int(rows.removeprefix("of_")), each)
    return costs


def test_as_many_are_proposed_as_pay() -> None:
    cheap = measured(of_1=1.0, of_2=1.0, of_4=1.0, of_8=1.0, of_16=1.0)
    acceptance = Acceptance()
    speculation = Speculation([Some()], None, [acceptance])
    assert speculation.choose([1], 99, Costs()) is None  # a plain run is measured first
    choice = speculation.choose([1], 99, cheap)
    assert choice is not None and 15 == choice.number
    choice = speculation.choose([1], 6, cheap)
    assert choice is not None and 3 == choice.number
    for _ in range(30):
        speculation.learn(choice, 0)
    assert (30, 90, 0, 0.0) == (acceptance.runs, acceptance.proposed, acceptance.accepted, acceptance.rate)
    steep = measured(of_1=1.0, of_2=1.2, of_4=2.0, of_8=3.0, of_16=8.0)
    for patience in (PATIENCE, 2 * PATIENCE, 4 * PATIENCE):  # it tries again, less and less often
        for _ in range(patience - 1):
            assert speculation.choose([1], 99, steep) is None
        choice = speculation.choose([1], 99, steep)
        assert choice is not None and PROBE == choice.number
        speculation.learn(choice, 0)
    for _ in range(30):
        speculation.learn(choice, 3)
    choice = speculation.choose([1], 99, steep)
    assert choice is not None and 7 == choice.number  # 8 tokens in 3 seconds
    assert MOST_PATIENCE >= 8 * PATIENCE


def test_what_does_not_pay_must_gain_more_to_begin_again() -> None:
    speculation = Speculation([Some()], None, [])
    (_, known), *_ = speculation._sources
    known.accepted, known.tried = 1.0, 2.0
    even = measured(of_1=1.0, of_2=1.45, of_4=9.0, of_8=9.0, of_16=9.0)  # 1.5 tokens in 1.45 seconds
    assert speculation.choose([1], 99, even) is not None
    known.accepted = 0.1
    assert speculation.choose([1], 99, even) is None
    known.accepted = 1.0
    assert speculation.choose([1], 99, even) is None
    known.accepted = 1.4
    assert speculation.choose([1], 99, even) is not None


def test_a_run_with_others_counts_their_tokens() -> None:
    speculation = Speculation([Some()], None, [])
    costs = measured(of_1=1.0, of_16=1.0, of_32=4.0)
    choice = speculation.choose([1], 15, costs, rows=1)
    assert choice is not None and 15 == choice.number
    choice = speculation.choose([1], 15, costs, rows=9, tokens=9.0)
    assert choice is not None and 7 == choice.number  # no more fit into 16 rows
    assert speculation.choose([1], 15, costs, rows=16, tokens=16.0) is None


def test_the_best_source_proposes() -> None:
    text, draft = Some(), Some(drafted=True)
    costs = measured(of_1=1.0, of_4=1.5)
    for _ in range(2):
        costs.add(4, 2.0, drafted=True)
    speculation = Speculation([text, draft], None, [])
    choice = speculation.choose([1], 3, costs)
    assert choice is not None and choice.source is text
    for _ in range(20):
        speculation.learn(choice, 0)
    choice = speculation.choose([1], 3, costs)
    assert choice is not None and choice.source is draft
    assert count_of("auto") is None and (0, 3) == (count_of("off"), count_of(3))
