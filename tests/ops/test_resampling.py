"""Resampling: stretched images, grids in every mode, reflected and replicated padding, dynamic sizes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from tests.oracle import Case, T, check, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, ShapeError
from ptegpu.plan.target import Target

F16 = DType.F16
nearest = partial(Case, "aten.upsample_nearest2d.vec")
bilinear = partial(Case, "aten.upsample_bilinear2d.vec")
sample = partial(Case, "aten.grid_sampler_2d.default")


def centres(x: torch.Tensor, stride: int, offset: float) -> torch.Tensor:
    y, x = torch.meshgrid(*((torch.arange(n, dtype=x.dtype) + offset) * stride for n in x.shape[-2:]), indexing="ij")
    return torch.stack((x.ravel(), y.ravel()), -1)


priors = partial(Case, "et_vk.grid_priors.default", reference=centres)

STRETCHED = [
    nearest((T((2, 3, 4, 5)), [8, 10], None)),
    nearest((T((2, 3, 4, 5)), None, [2.0, 2.0])),
    nearest((T((1, 3, 7, 9)), [5, 20], None)),
    nearest((T((1, 3, 7, 9)), None, [1.3, 0.6])),
    nearest((T((1, 2, 10, 10)), None, [2.05, 1.05])),
    nearest((T((1, 2, 37, 41)), [101, 73], None)),
    nearest((T((1, 2, 3, 3), F16), [6, 7], None)),
    nearest((T((1, 2, 3, 3), DType.U8, 0, 255), [6, 7], None)),
    nearest((T((0, 2, 3, 3)), [6, 7], None)),
    Case("aten.upsample_nearest2d.default", (T((1, 3, 4, 5)), [9, 7], 2.3, None)),
    Case("aten.upsample_nearest2d.default", (T((1, 3, 4, 5)), [8, 10])),
    *(
        bilinear((T(shape), size, aligned, factors))
        for aligned in (False, True)
        for shape, size, factors in [
            ((2, 3, 4, 5), [8, 10], None),
            ((1, 3, 7, 9), [5, 20], None),
            ((1, 3, 7, 9), None, [1.3, 0.6]),
            ((1, 2, 5, 4), None, [1.1, 1.1]),
            ((1, 2, 5, 1), [1, 6], None),
        ]
    ),
    bilinear((T((1, 2, 3, 3), F16), [6, 7], False, None)),
    bilinear((T((0, 2, 3, 3)), [6, 7], True, None)),
    Case("aten.upsample_bilinear2d.default", (T((1, 3, 4, 5)), [9, 7], False, 2.3, None)),
]

SAMPLED = [
    *(
        sample((T((2, 3, 5, 7)), T((2, 4, 3, 2), low=-1.6, high=1.6), interpolation, padding, aligned))
        for interpolation in range(3)
        for padding in range(3)
        for aligned in (False, True)
    ),
    sample((T((1, 2, 4, 4)), T((1, 3, 5, 2), low=-9, high=9), 0, 2, False), note=" far outside"),
    sample((T((1, 2, 1, 4)), T((1, 3, 5, 2)), 0, 2, True), note=" a single row"),
    sample((T((1, 2, 4, 4), F16), T((1, 3, 5, 2), F16, -1, 1), 0, 1, True), atol=2e-2),
    sample((T((0, 2, 4, 4)), T((0, 3, 5, 2)), 0, 0, False)),
    sample((T((2, 0, 4, 4)), T((2, 3, 5, 2)), 0, 0, False)),
    sample((T((1, 2, 4, 4)), T((1, 0, 5, 2)), 0, 0, False)),
]

PADDED = [
    Case("aten.reflection_pad1d.default", (T((3, 5)), [4, 2])),
    Case("aten.reflection_pad2d.default", (T((2, 3, 4, 5)), [1, 4, 3, 0])),
    Case("aten.reflection_pad2d.default", (T((3, 4, 5)), [-1, 2, 1, -2])),
    Case("aten.reflection_pad3d.default", (T((2, 3, 4, 5)), [1, 2, 3, 0, 2, 1])),
    Case("aten.replication_pad1d.default", (T((2, 3, 5)), [4, 9])),
    Case("aten.replication_pad2d.default", (T((2, 3, 4, 5)), [1, 7, 9, 0])),
    Case("aten.replication_pad2d.default", (T((3, 4, 5), F16), [-2, 1, 1, 1])),
    Case("aten.replication_pad3d.default", (T((2, 3, 4, 5)), [1, 2, 3, 0, 2, 1])),
    Case("aten.reflection_pad2d.default", (T((0, 3, 4, 5)), [1, 1, 1, 1])),
]

PRIORS = [
    priors((T((1, 2, 5, 7)), 8, 0.5)),
    priors((T((3, 4)), 16, 0.0)),
]

CASES = [*STRETCHED, *SAMPLED, *PADDED, *PRIORS]

BENCHMARKS = [  # at real sizes
    nearest((T((4, 64, 128, 128)), None, [2.0, 2.0])),
    bilinear((T((4, 64, 128, 128)), None, False, [2.0, 2.0])),
    sample((T((4, 64, 128, 128)), T((4, 256, 256, 2), low=-1.0, high=1.0), 0, 0, False)),
]
BROWSER = [c for c in CASES if c.args[0].dtype is F16] + CASES[::9]


@pytest.mark.parametrize("shape", [(1, 3, 7, 9), (2, 3, 4, 12), (0, 3, 8, 12)])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: nearest((x, None, [2.0, 1.5])),
        lambda x: bilinear((x, None, False, [2.0, 1.5])),
        lambda x: Case("aten.reflection_pad2d.default", (x, [1, 2, 3, 0])),
        lambda x: priors((x, 8, 0.5)),
    ],
    ids=["nearest", "bilinear", "reflection", "priors"],
)
def test_live_sizes(make, shape):
    check(make(T(shape, limit=(2, 3, 8, 12))))


def test_live_grid():
    check(sample((T((1, 3, 4, 4), limit=(2, 3, 6, 5)), T((1, 2, 9, 2), limit=(2, 5, 9, 2)), 0, 1, True)))


REFUSED = [
    (nearest((T((3, 4, 4)), [2, 2], None)), "images have the shape (batch, channels, height, width), not [3, 4, 4]"),
    (nearest((T((1, 3, 4, 4)), None, None)), "an upsampling needs an output size or scale factors"),
    (bilinear((T((1, 3, 4, 4)), None, False, [0.1, 2.0])), "[1, 3, 4, 4] cannot be resampled to [0, 8]"),
    (
        sample((T((2, 3, 4, 4)), T((1, 2, 2, 2)), 0, 0, False)),
        "a grid of [1, 2, 2, 2] does not fit images of [2, 3, 4, 4]",
    ),
    (sample((T((1, 3, 4, 4)), T((1, 2, 2, 2)), 3, 0, False)), "interpolation 3 is not supported with padding 0"),
    (
        Case("aten.reflection_pad2d.default", (T((1, 3, 4, 4)), [1, 1])),
        "[1, 1] cannot pad the last 2 dimensions of [1, 3, 4, 4]",
    ),
    (
        Case("aten.reflection_pad2d.default", (T((1, 3, 4, 4)), [4, 1, 1, 1])),
        "[4, 1, 1, 1] reflects more than [1, 3, 4, 4] has",
    ),
    (
        Case("aten.replication_pad2d.default", (T((1, 3, 4, 4)), [-4, 0, 1, 1])),
        "[-4, 0, 1, 1] removes more than [1, 3, 4, 4] has",
    ),
    (priors((T((4,)), 8, 0.5)), "'x' is arg0:float32[4], but must be [..., h, w]"),
]


@pytest.mark.parametrize("case, message", REFUSED, ids=str)
def test_refused(case, message):
    arrays = {id(a): np.zeros(a.shape, np.float32) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 4), np.float32)])
    with pytest.raises((ShapeError, InvalidProgram)) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
