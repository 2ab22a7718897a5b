"""The launches of one combination of a plan's choices, ready for any sizes that take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..plan.plan import Dispatch, Expr, Number, Plan
from ..plan.resolve import At
from .ownership import Handle
from .pipelines import Pipeline
from .recorder import Steps


class Launch(NamedTuple):
    """A dispatch with what it takes to record it."""

    pipeline: Pipeline
    group: Handle
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

    constants: tuple[int, ...]
    places: Steps  # with the places of the grids' sizes
    patches: list[Patches]

    def steps(self, at: At) -> tuple[Steps, int]:
        """Return what to record at these sizes, and the most workgroups in one dimension."""
        numbers = (*at.numbers, *self.constants)
        pipelines, groups, *places = self.places
        x, y = ([numbers[k] for k in axis] for axis in places)
        steps = Steps(pipelines, groups, x, y)
        if min(x, default=1) <= 0 or min(y, default=1) <= 0:  # a dispatch of no workgroups is left out
            kept = [k for k in range(len(groups)) if x[k] > 0 and y[k] > 0]
            steps = Steps(*([column[k] for k in kept] for column in steps))
        return steps, max([*x, *y], default=0)

    def images(self, plan: Plan, at: At) -> list[np.ndarray]:
        """Return the contents of the parameter buffers at these sizes; none where they never change."""
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

    x, y = ([place(launch.dispatch.grid[axis]) for launch in launches] for axis in (0, 1))
    places = Steps([launch.pipeline.handle for launch in launches], [launch.group for launch in launches], x, y)
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
    return Combined(tuple(constants), places, patches)
