"""The launches of one combination of a plan's choices, ready for any sizes that take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..plan.plan import Dispatch, Expr, Number, Plan
from ..plan.resolve import At
from . import webgpu
from .pipelines import Pipeline


class Launch(NamedTuple):
    """A dispatch with what it takes to record it."""

    pipeline: Pipeline
    group: webgpu.Handle
    dispatch: Dispatch


class Patches(NamedTuple):
    """Words of the parameters that depend on sizes: their places in an image, and those of the numbers."""

    buffer: int  # number of the image
    ints: np.ndarray
    int_places: list[int]
    floats: np.ndarray
    float_places: list[int]


class Combined(NamedTuple):
    """All launches, as places in the numbers of a plan at some sizes with constants behind them."""

    launches: list[Launch]
    constants: tuple[int, ...]
    recorded: list[tuple[webgpu.Handle | None, webgpu.Handle, int, int]]  # pipeline, group, places of the grid's sizes
    grids: list[int]  # the places of all of these
    patches: list[Patches]

    def steps(self, at: At) -> tuple[list[webgpu.Step], int]:
        """What is recorded at these sizes, and the most workgroups in one dimension."""
        numbers = (*at.numbers, *self.constants)
        sizes = [numbers[k] for k in self.grids]
        if min(sizes, default=1) > 0:
            return [(p, g, numbers[x], numbers[y]) for p, g, x, y in self.recorded], max(sizes, default=0)
        steps: list[webgpu.Step] = []
        last: Pipeline | None = None
        for (pipeline, group, _), (_, _, x, y) in zip(self.launches, self.recorded, strict=True):
            if numbers[x] > 0 and numbers[y] > 0:  # a dispatch of no workgroups is left out
                steps.append((None if pipeline is last else pipeline.handle, group, numbers[x], numbers[y]))
                last = pipeline
        return steps, max(sizes)

    def images(self, plan: Plan, at: At) -> list[np.ndarray]:
        """What the parameter buffers hold at these sizes; nothing where it is the same at all."""
        if not plan.rows:
            return []
        numbers, images = at.numbers, []
        for p in self.patches:
            image = np.frombuffer(plan.params[p.buffer], np.uint32).copy()
            image[p.ints] = np.array([int(numbers[k]) & 0xFFFFFFFF for k in p.int_places], np.uint32)
            if p.float_places:
                with np.errstate(over="ignore"):  # of numbers that no kernel can take
                    image[p.floats] = np.array([numbers[k] for k in p.float_places], np.float32).view(np.uint32)
            images.append(image)
        return images


def combine(launches: list[Launch], order: Mapping[int, int], params: Sequence[int]) -> Combined:
    """`order` is where each row is among the numbers; `params` are the parameter buffers."""
    constants: dict[int, int] = {}

    def place(n: Number) -> int:
        return order[n.row] if isinstance(n, Expr) else len(order) + constants.setdefault(n, len(constants))

    recorded = []
    last: Pipeline | None = None
    for pipeline, group, d in launches:
        recorded.append((None if pipeline is last else pipeline.handle, group, place(d.grid[0]), place(d.grid[1])))
        last = pipeline
    grids = sorted({k for _, _, x, y in recorded for k in (x, y)})
    words: dict[int, dict[int, tuple[int, bool]]] = {k: {} for k in range(len(params))}
    for _, _, d in launches:
        if d.patches:
            image = next(params.index(b.buffer) for b in d.bindings if b.buffer in params)
            words[image] |= {p.word: (order[p.value.row], p.kind == "f32") for p in d.patches}
    patches = []
    for image, found in words.items():
        arrays: list[Any] = []
        for real in (False, True):
            pairs = [(word, at) for word, (at, kind) in found.items() if kind == real]
            arrays += [np.array([word for word, _ in pairs], np.int64), [at for _, at in pairs]]
        patches.append(Patches(image, *arrays))
    return Combined(launches, tuple(constants), recorded, grids, patches)
