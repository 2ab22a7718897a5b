"""GPU time of a plan: of every dispatch, in a pass of its own, and of the single pass that ordinary runs record.

WebGPU has timestamps at the ends of passes only. Splitting passes costs time that ordinary runs do not take, so the
dispatches add up to more than `pass_time` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low

from ..plan.plan import Dispatch, Plan
from .inputs import Argument
from .loaded import LoadedPlan
from .session import Session
from .timer import Span, Timer


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A dispatch and the time it took."""

    kernel: str
    dispatch: Dispatch
    begin: float  # seconds after the first dispatch began
    seconds: float


def pass_time(session: Session, loaded: LoadedPlan, inputs: Sequence[Argument]) -> float:
    """Return the seconds on the GPU of one ordinary run; 0 for a plan without dispatches."""
    timer = Timer(session.device, each=False)
    with timer.watching([session]):
        session.run(loaded, inputs, read=[])
    return sum(seconds for _, seconds in busy(timer.runs[0].spans))


def launches(plan: Plan) -> list[tuple[str, Dispatch]]:
    """List the dispatches that run, with their kernels' names: not the empty ones, nor those that ran before."""
    return [(plan.kernels[d.kernel].name, d) for d in plan.dispatches if 0 not in d.grid and not d.once]


def busy(spans: Sequence[Span]) -> list[Span]:
    """Return begin and duration of each pass. One that begins before the one before it ends only counts from there."""
    found, free = [], float("-inf")
    for begin, end in spans:
        begin = max(begin, free)
        free = max(begin, end)
        found.append((begin, free - begin))
    return found


def kernel_times(launched: Sequence[tuple[str, Dispatch]], runs: Sequence[Sequence[Span]]) -> list[KernelTime]:
    """Durations are medians over the runs. Beginnings are those of the run of median length, none before the end of the
    one before it."""
    measured = [busy(spans) for spans in runs]
    totals = [sum(seconds for _, seconds in passes) for passes in measured]
    typical = measured[totals.index(median_low(totals))]
    found: list[KernelTime] = []
    for number, (kernel, dispatch) in enumerate(launched):
        begin = typical[number][0] - typical[0][0]
        if found:
            begin = max(begin, found[-1].begin + found[-1].seconds)
        found.append(KernelTime(kernel, dispatch, begin, median(passes[number][1] for passes in measured)))
    return found
