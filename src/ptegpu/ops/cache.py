"""Key-value caches [B, C, H, D] that are written in place from a position on, which the GPU reads.

The host knows the position before a run, and refuses one from which the rows do not fit. The kernels stay within the
cache on their own: a negative position counts as 0, and what would lie beyond the end is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import FLOATS
from ..errors import ShapeError
from ..graph.graph import Sym, Tensor
from ..kernels.cache import write_cache
from ..kernels.wgsl import writable
from ..plan.target import Target
from .registry import Bounded, Dispatch, Out, Steps, SymInt, Work, op


def check_cache(value: Tensor, cache: Tensor) -> None:
    """Both are [B, positions, H, D], the value of no more positions."""
    same = value.rank == cache.rank == 4 and value.shape[0] == cache.shape[0] and value.shape[2:] == cache.shape[2:]
    if not same or value.shape[1] > cache.shape[1]:
        raise ShapeError(f"{list(value.shape)} does not fit a cache of {list(cache.shape)}; both are [B, S, H, D]")


@dataclass(frozen=True, slots=True)
class Written(Work):
    """Values go into caches of one shape."""

    values: tuple[Tensor, ...]
    caches: tuple[Tensor, ...]
    start: SymInt
    label: str = ""

    def steps(self, target: Target) -> Steps:
        values, caches = self.values, self.caches
        batch, queries, heads, dim = values[0].shape
        positions, width = caches[0].shape[1], heads * dim
        if width % 4 == 0:
            style, width = "quads", width // 4
            units = batch * queries * width
        elif all(writable(c.dtype, target) for c in caches):
            style, units = "elements", batch * queries * width
        else:
            style, units = "words", -(-batch * positions * width // 4) if queries else 0
        kernel = write_cache(style, tuple(v.dtype for v in values), tuple(c.dtype for c in caches), target)
        params: dict[str, int | float | Sym] = {"batch": batch, "queries": queries, "positions": positions}
        params |= {"width": width, "start": self.start}
        changed = sum(v.numel * c.dtype.size for v, c in zip(values, caches, strict=True))
        groups = -(-units // kernel.kernel.workgroup)
        yield Dispatch(kernel, values, caches, groups, params, write_bytes=changed, label=self.label)


def fitting(value: Tensor, cache: Tensor, start: SymInt) -> list[Bounded]:
    """The positions from which the value's rows lie in the cache."""
    both = min(value.rank, cache.rank) > 1
    return [Bounded(start, 0, cache.shape[1] - value.shape[1] + 1)] if both else []


@op(
    "update_cache.default",
    "llama.update_cache.default",
    mutates=["cache"],
    positions=["start_pos"],
    dtypes=FLOATS,
    indexes=lambda a: fitting(a["value"], a["cache"], a["start_pos"]),
    role="cache",
)
def update_cache(value: Tensor, cache: Tensor, start_pos: SymInt) -> Steps:
    """value [B, S, H, D] into cache [B, C, H, D] at `start_pos`; the result is one element that means nothing."""
    check_cache(value, cache)
    yield Out((1,))
    yield Written((value,), (cache,), start_pos)
