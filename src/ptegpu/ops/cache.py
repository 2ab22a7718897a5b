"""Key-value caches [B, C, H, D] that are written in place, from a position that the GPU reads.

The host knows the position before a run, and refuses one at which the rows exceed the cache. Kernels stay within the
cache for any position: a negative one counts as 0, and rows beyond the end are dropped.
"""

from __future__ import annotations

from ..errors import ShapeError
from ..graph.graph import Tensor
from .attention_record import CacheWrite
from .registry import Bounded, Out, Steps, SymInt, op


def check_cache(value: Tensor, cache: Tensor) -> None:
    """Raise ShapeError unless both are [B, positions, H, D] and the value has at most as many positions."""
    same = value.rank == cache.rank == 4 and value.shape[0] == cache.shape[0] and value.shape[2:] == cache.shape[2:]
    if not same or value.shape[1] > cache.shape[1]:
        raise ShapeError(f"{list(value.shape)} does not fit a cache of {list(cache.shape)}; both are [B, S, H, D]")


def start_bounds(value: Tensor, cache: Tensor, start: SymInt) -> list[Bounded]:
    """Return the bounds of the position from which the value's rows fit in the cache."""
    both = min(value.rank, cache.rank) > 1
    return [Bounded(start, 0, cache.shape[1] - value.shape[1] + 1)] if both else []


WRITE = ("update_cache.default", "llama.update_cache.default")


@op(
    *WRITE,
    mutates=["cache"],
    hollow=True,
    fits="value float, cache float|q8",
    indexes=lambda a: start_bounds(a["value"], a["cache"], a["start_pos"]),
    role="cache",
)
def update_cache(value: Tensor, cache: Tensor, start_pos: SymInt) -> Steps:
    """Write a value [B, S, H, D] into a cache [B, C, H, D] at `start_pos`; the result is an undefined element."""
    check_cache(value, cache)
    yield Out((1,))
    yield CacheWrite((value,), (cache,), start_pos)
