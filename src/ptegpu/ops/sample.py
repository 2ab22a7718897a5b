"""The choice of the next token on the GPU, so that the host reads a token and its log-probability, not all logits.

These operators are ptegpu's own. No exporter writes them; `ptegpu.models.text` appends them to a model's `forward`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import sample as kernels
from ..kernels.sample import PART_WORDS
from ..kernels.sample_selection import BINS, DIGITS, ROW_WORDS, STATE_WORDS, Pick, draw, each_row, row_parts, select
from ..plan.target import Target
from ..sampling import DRAW, PENALTY, SETTINGS, TOP_K, TOP_P
from ..sizes import largest
from .registry import Dispatch, Out, Scratch, Steps, op

SAMPLE, SCORE, SAMPLE_ROWS = "ptegpu.sample.default", "ptegpu.score.default", "ptegpu.sample_rows.default"

EACH = 8  # minimum elements of a part per invocation
MOST_PARTS = 2  # maximum parts, as a multiple of the workgroups that keep a GPU busy
MOST_PARTS_OF_ROWS = 16  # the same for many rows, whose parts are long


@op(SAMPLE, fits="logits float, settings int32, seen int32")
def sample(logits: Tensor, settings: Tensor, seen: Tensor, how: int, *, target: Target) -> Steps:
    """Choose a token from the last row of logits; return it and its log-probability: (1,) int32, (1,) float32.

    `settings` int32[8] are those of `ptegpu.sampling.SETTINGS`. `seen` has a bit per token, read if the flags `how`
    have PENALTY; `how` is a constant of the plan. The steps are, in order: penalty, temperature, the `top_k` largest,
    the fewest of these with `top_p` of their probability, and those within `floor` of the largest. Ties at a threshold
    are kept.
    """
    _check(logits)
    token = yield Out((1,), DType.I32)
    logprob = yield Out((1,), DType.F32)
    if not how:
        return
    length = logits.shape[-1]
    if settings.shape != (len(SETTINGS),) or (how & PENALTY and seen.numel * 32 < length):
        raise ShapeError(f"settings of {list(settings.shape)}, seen of {list(seen.shape)} do not fit {length} tokens")
    history = [seen] if how & PENALTY else []
    if how & DRAW:
        yield from _draw(logits, settings, history, list(_rounds(how)), token, logprob, target)
    else:
        yield from _greedy(logits, [settings, *history] if history else [], token, logprob, target)


def _greedy(logits: Tensor, more: list[Tensor], token: Tensor, logprob: Tensor, target: Target) -> Steps:
    row = _row(logits, 1, target)
    statistics = yield Scratch((row["parts"] * PART_WORDS,), DType.I32)
    kernel = kernels.statistics(logits.dtype, False, bool(more), target)
    yield Dispatch(kernel, [logits, *more], [statistics], row["parts"], row)
    kernel = kernels.choose(logits.dtype, False, target)
    yield Dispatch(kernel, [statistics, logits], [token, logprob], 1, _only(row, "parts", "length", "base"))


def _draw(
    logits: Tensor,
    settings: Tensor,
    history: list[Tensor],
    rounds: list[Round],
    token: Tensor,
    logprob: Tensor,
    target: Target,
) -> Steps:
    row = _row(logits, 1, target)
    parts, part = row["parts"], _only(row, "length", "span")
    statistics = yield Scratch((parts * PART_WORDS,), DType.I32)
    changed = yield Scratch((row["length"],), DType.F32)
    kernel = kernels.statistics(logits.dtype, True, bool(history), target)
    yield Dispatch(kernel, [logits, settings, *history], [changed, statistics], parts, row)
    states = len(rounds) * BINS  # offset in `work`, after the bins
    work = yield Scratch((states + max(1, len(rounds)) * STATE_WORDS,), DType.I32)
    summary = yield Scratch((4,), DType.F32)
    kernel = kernels.choose(logits.dtype, True, target)
    params = {"parts": parts, "words": work.numel, "wanted": states + 1}
    yield Dispatch(kernel, [statistics, settings], [work, summary], 1, params)
    for k, (pick, fresh, mass, digit) in enumerate(rounds):
        read = [changed, *([summary] if mass else []), *([settings] if pick == "share" else [])]
        shift, mask, settled = DIGITS[digit]
        now = {"bins": k * BINS, "state": states + k * STATE_WORDS, "shift": shift, "mask": mask}
        params = part | _before(k, rounds, states) | now | {"settled_bits": settled}
        yield Dispatch(select(pick, fresh, mass, target), read, [work], parts, params)
    best = yield Scratch((parts * 2,), DType.I32)
    kernel = draw(bool(rounds), target)
    params = part | (_before(len(rounds), rounds, states) if rounds else {})
    yield Dispatch(kernel, [changed, summary, settings], [*([work] if rounds else []), best], parts, params)
    kernel = kernels.finish(logits.dtype, target)
    yield Dispatch(kernel, [best, logits, summary], [token, logprob], 1, _only(row, "parts", "length", "base"))


class Round(NamedTuple):
    """One digit of a selection."""

    pick: Pick  # the end of the round before
    fresh: bool  # begins another selection
    mass: bool  # selects by probability
    digit: int


def _rounds(flags: int) -> Iterator[Round]:
    if flags & TOP_K:
        yield Round("none", False, False, 0)
        yield Round("given", False, False, 1)
        yield Round("given", False, False, 2)
    if flags & TOP_P:
        yield Round("given" if flags & TOP_K else "none", True, True, 0)
        yield Round("share", False, True, 1)
        yield Round("given", False, True, 2)


def _before(k: int, rounds: list[Round], states: int) -> dict[str, int]:
    """Return the parameters that locate the bins and the state of the round before `k`."""
    old = max(0, k - 1)
    return {"old_bins": old * BINS, "old_state": states + old * STATE_WORDS, "old_shift": DIGITS[rounds[old].digit][0]}


@op(SAMPLE_ROWS, mutates=["newest"], fits="logits float, settings int32, seen int32, newest int32[_]")
def sample_rows(
    logits: Tensor, settings: Tensor, seen: Tensor, newest: Tensor | None = None, *, target: Target
) -> Steps:
    """Choose a token for each row of logits [1, W, V]; return tokens and log-probabilities: (W,) int32, (W,) float32.

    `settings` int32[W, 10] has the settings of `sample`, its flags `how`, and a sequence per row, whose token becomes
    the `newest` one of that sequence, unless it is -1, or `newest` is None. `seen` [W, words] has bits for rows with
    PENALTY; it is [W, 0] if no row has it.
    """
    if logits.rank != 3 or logits.shape[0] != 1 or not logits.shape[2]:
        raise ShapeError(f"logits of {list(logits.shape)} are not [1, W, V]")
    rows = logits.shape[1]
    words = seen.shape[1] if seen.rank == 2 else -1
    if settings.shape != (rows, ROW_WORDS) or words < 0 or seen.shape[0] != rows:
        raise ShapeError(f"settings of {list(settings.shape)}, seen of {list(seen.shape)} do not fit {rows} rows")
    token = yield Out((rows,), DType.I32)
    logprob = yield Out((rows,), DType.F32)
    if not rows:
        return
    row = _row(logits, rows, target, MOST_PARTS_OF_ROWS)
    parts, shared = row["parts"], {**_only(row, "length", "parts"), "words": words}
    statistics = yield Scratch((rows * parts * PART_WORDS,), DType.I32)
    reads = [logits, settings, seen]
    params = {**shared, "span": row["span"]}
    yield Dispatch(row_parts(logits.dtype, target), reads, [statistics], rows * parts, params)
    results = [token, logprob]
    if newest is not None:
        results, shared = [*results, newest], {**shared, "sequences": newest.numel}
    kernel = each_row(logits.dtype, newest is not None, target)
    yield Dispatch(kernel, [*reads, statistics], results, rows, shared)


@op(SCORE, fits="logits float, tokens int32")
def score(logits: Tensor, tokens: Tensor, *, target: Target) -> Steps:
    """Return the log-probability of one token per row of logits: (1, T) float32, which may be empty."""
    _check(logits)
    length = logits.shape[-1]
    rows = logits.numel // length
    if tokens.rank != 2 or tokens.numel not in (0, rows):
        raise ShapeError(f"{rows} rows of logits cannot score tokens of {list(tokens.shape)}")
    out = yield Out(tokens.shape, DType.F32)
    if not tokens.numel:
        return
    row = _row(logits, rows, target)
    parts = row["parts"]
    statistics = yield Scratch((rows * parts * PART_WORDS,), DType.I32)
    kernel = kernels.statistics(logits.dtype, False, False, target)
    yield Dispatch(kernel, [logits], [statistics], rows * parts, row)
    kernel = kernels.likelihood(logits.dtype, target)
    yield Dispatch(kernel, [statistics, logits, tokens], [out], rows, _only(row, "parts", "length"))


def _check(logits: Tensor) -> None:
    if logits.rank not in (2, 3) or logits.shape[0] != 1 or not logits.numel:
        raise ShapeError(f"logits of {list(logits.shape)} are not [1, V] or [1, S, V]")


def _row(logits: Tensor, rows: int, target: Target, most: int = MOST_PARTS) -> dict[str, int]:
    """Return parameters of rows in parts: their length, elements per part, parts, and the offset of the last rows."""
    length = logits.shape[-1]
    parts = largest(1, most * target.device_class.busy // rows)
    span = largest(EACH * target.team, -(-length // parts))
    return {"length": length, "span": span, "parts": -(-length // span), "base": logits.numel - rows * length}


def _only(row: dict[str, int], *names: str) -> dict[str, int]:
    return {name: row[name] for name in names}
