"""Moves of one tensor: every dimension, every dtype, aligned and odd sizes, symbolic starts, empty tensors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.cases import given
from tests.oracle import Case, S, T, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
EVERY = (F32, F16, I32, I8, U8, BOOL)
END = 2**63 - 1  # how PyTorch writes "to the end"


def aten(name: str, *args: Any) -> Case:
    return Case(f"aten.{name}", args)


def of(dtype: DType, *shape: int) -> T:
    return T(shape, dtype, low=0 if dtype is U8 else -9, high=9)


PERMUTED = [
    *(aten("permute_copy.default", T((3, 4, 5)), list(order)) for order in itertools.permutations(range(3))),
    *(aten("permute_copy.default", of(d, 3, 8, 5), [2, 0, -2]) for d in EVERY),
    *(aten("permute_copy.default", of(d, 2, 8, 4), [1, 0, 2]) for d in EVERY),
    aten("permute_copy.default", T((2, 3, 1, 2, 1, 3, 2, 2)), [7, 0, 3, 2, 1, 6, 5, 4]),
    aten("permute_copy.default", T((0, 3)), [1, 0]),
    aten("permute_copy.default", T(()), []),
    aten("permute_copy.default", T((33, 65)), [1, 0]),
    aten("permute_copy.default", T((3, 5), limit=(8, 9)), [1, 0]),
    *(aten("t_copy.default", of(d, 36, 68)) for d in EVERY),  # in tiles
    *(aten("t_copy.default", T(shape)) for shape in [(32, 64), (16, 16), (100, 130), (64, 17), (132, 67), (16, 1)]),
    *(aten("permute_copy.default", of(d, 2, 20, 3, 17), [3, 0, 2, 1]) for d in (F32, F16, U8)),
    *(aten("permute_copy.default", T((2, 3, 20, 24)), order) for order in ([0, 1, 3, 2], [0, 3, 1, 2], [3, 1, 0, 2])),
    aten("permute_copy.default", T((2, 2, 16, 2, 2, 20)), [0, 5, 1, 4, 3, 2]),
    *(aten("transpose_copy.int", T((2, 3, 4)), a, b) for a, b in ((0, 1), (0, -1), (1, 1), (-2, -1))),
    aten("permute.default", T((3, 4, 5)), [2, -3, 1]),
    aten("transpose_copy.int", T(()), 0, -1),
    *(aten("t_copy.default", T(shape)) for shape in ((3, 5), (4,), ())),
]  # fmt: skip

SPANS = [(None, None), (1, None), (None, 2), (1, 3), (-2, END), (2, -1), (-99, 99), (3, 1), (99, END), (0, -99)]
SLICED = [
    *(aten("slice_copy.Tensor", T((4, 5)), dim, *span, step)
      for dim in (0, 1) for span in SPANS for step in (1, 2) if step == 1 or dim == 1),
    *(aten("slice_copy.Tensor", of(d, 4, 8), 1, start, END, 1) for d in EVERY for start in (1, 4)),
    *(aten("slice_copy.Tensor", T((2, 8, 3)), dim, 1, END, 3) for dim in (0, 1, 2, -1)),
    aten("slice_copy.Tensor", T((3, 0)), 1, 0, END, 1),
    aten("slice_copy.Tensor", T((5, 4), limit=(9, 4)), 0, -2, END, 1),
    *(aten("slice_copy.Tensor", of(d, 6, w), 0, S(3, 1), S(5, 3), 1) for d in (F32, F16, BOOL) for w in (4, 5)),
    aten("slice_copy.Tensor", T((4, 9)), 1, S(5, 0), S(9, 4), 1),
    aten("slice_copy.Tensor", T((4, 8)), 1, S(-4, 0), S(8, 4), 2),
    aten("slice_copy.Tensor", T((6, 4)), 0, S(-99, 0), 2, 1),
    aten("slice_copy.Tensor", T((6, 4)), 0, S(6), END, 1),
    aten("narrow_copy.default", T((4, 6)), 1, 2, 3),
    aten("narrow_copy.default", T((4, 6)), 1, S(-3, 0), 3),
    *(aten("select_copy.int", T((3, 4, 5)), dim, index) for dim in (0, 1, -1) for index in (0, 2, -1)),
    *(aten("select_copy.int", of(d, 3, 8), 0, 1) for d in EVERY),
    Case("aten.select_copy.int", (T((5,)), 0.0, 1.0), lambda x, *_: x[1]),
    *(aten("select_copy.int", of(d, 5, 4), dim, S(index, 0))
      for d in (F32, BOOL) for dim in (0, 1) for index in (3, -1)),
    *(aten("split_with_sizes_copy.default", of(d, 4, 9), [2, 3, 4], 1) for d in EVERY),
    aten("split_with_sizes_copy.default", T((6, 4)), [0, 1, 5], 0),
    aten("split_with_sizes_copy.default", T((4, 6), limit=(8, 6)), [2, 4], -1),
    *(aten("split_copy.Tensor", T((5, 4)), size, dim) for size in (2, 5, 7) for dim in (0, 1)),
    *(aten("unbind_copy.int", T((2, 3, 4)), dim) for dim in (0, 1, -1)),
    aten("unbind_copy.int", T((3,), BOOL), 0),
]  # fmt: skip

SPREAD = [
    *(aten("expand_copy.default", T(shape), size) for shape, size in (
        ((3, 1), [3, 4]), ((3, 1), [-1, 5]), ((1,), [2, 3, 4]), ((), [3]), ((2, 1, 3), [4, 2, 5, -1]), ((1, 3), [0, 3]),
        ((4,), [4]), ((1, 8), [3, 8]), ((), []),
    )),
    *(aten("expand_copy.default", of(d, 3, 1), [2, 3, 5]) for d in EVERY),
    aten("expand_copy.default", T((2, 1), limit=(6, 1)), [-1, S(3)]),
    *(aten("repeat.default", T(shape), times) for shape, times in (
        ((3, 4), [2, 3]), ((3,), [2, 1, 4]), ((), [3]), ((2, 3), [1, 1]), ((2, 3), [0, 2]), ((2, 3, 4), [2, 1, 3]),
        ((1, 5), [3, 2]), ((8,), [4]),
    )),
    *(aten("repeat.default", of(d, 2, 3), [2, 2]) for d in EVERY),
    *(aten("flip.default", T((2, 3, 4)), dims) for dims in ([0], [1], [2], [0, 2], [-1, 0, 1], [])),
    *(aten("flip.default", of(d, 3, 8), [1]) for d in EVERY),
    aten("flip.default", T((0, 3)), [0]),
    aten("flip.default", T(()), []),
    *(aten("unfold_copy.default", T((3, 7)), dim, size, step) for dim, size, step in
      ((1, 3, 1), (1, 2, 3), (0, 2, 1), (-1, 7, 1), (0, 3, 2), (1, 0, 1))),
    aten("unfold_copy.default", T(()), 0, 1, 1),
    *(aten("pixel_shuffle.default", of(d, 2, 8, 3, 2), 2) for d in EVERY),
    aten("pixel_shuffle.default", T((18, 2, 3)), 3),
    aten("pixel_shuffle.default", T((2, 1, 4, 1, 2)), 1),
    *(aten("pixel_unshuffle.default", of(d, 2, 2, 4, 6), 2) for d in EVERY),
    aten("pixel_unshuffle.default", T((1, 6, 3)), 3),
    aten("as_strided_copy.default", T((4, 6)), [3, 2], [6, 2], 1),
    aten("as_strided_copy.default", T((4, 6), I8), [2, 3, 4], [1, 0, 5]),
    aten("as_strided_copy.default", T((4, 6)), [], [], 7),
    *(aten("diagonal_copy.default", T((3, 5)), offset) for offset in (0, 1, -1, 4, 9, -9)),
    aten("diagonal_copy.default", T((2, 3, 4, 3), I32), 1, -1, 1),
    *(aten("copy.default", of(d, 2, 3), of(F32, 3)) for d in (F32, F16, I32, I8, BOOL)),
    aten("copy.default", T((2, 4)), T((2, 4), I32)),
    aten("copy.default", T((2, 4), F16), T((), BOOL)),
]  # fmt: skip

CASES = [*PERMUTED, *SLICED, *SPREAD]

BENCHMARKS = [  # at real sizes
    aten("permute_copy.default", T((32, 512, 16, 64)), [0, 2, 1, 3]),
    aten("permute_copy.default", T((32, 3, 224, 224)), [0, 2, 3, 1]),
    aten("t_copy.default", T((4096, 4096))),
    aten("t_copy.default", T((4096, 8192), F16)),
    aten("slice_copy.Tensor", T((4096, 8192)), 1, 1024, 5120, 1),
    aten("expand_copy.default", T((1, 8, 1, 1024, 64)), [4, 8, 8, 1024, 64]),
    aten("repeat.default", T((512, 1024)), [8, 4]),
    aten("flip.default", T((4096, 4096)), [1]),
    aten("pixel_shuffle.default", T((4, 256, 128, 128)), 2),
]
BROWSER = [c for c in CASES if isinstance(c.args[0], T) and c.args[0].dtype in (F16, I8, BOOL)][::2]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (aten("permute.default", T((2, 3)), [0, 0]), "[0, 0] is not an order of the 2 dimensions of [2, 3]"),
        (aten("t.default", T((2, 3, 4))), "t takes a matrix, not [2, 3, 4]"),
        (aten("slice.Tensor", T((2, 3)), 0, 0, 1, 0), "a slice needs a positive step, not 0"),
        (aten("slice.Tensor", T((2, 3)), 2, 0, 1, 1), "dimension 2 is out of range for rank 2"),
        (aten("narrow_copy.default", T((2, 3)), 1, 2, 2), "2 elements from 2 on exceed dimension 1 of [2, 3]"),
        (aten("select.int", T((2, 3)), 1, 3), "index 3 is out of range for dimension 1 of [2, 3]"),
        (aten("select.int", T((2, 3)), -1, S(-4)), "index -4 is out of range for dimension 1 of [2, 3]"),
        (
            aten("split_with_sizes.default", T((2, 3)), [1, 1], 1),
            "dimension 1 of [2, 3] cannot be split into 1 parts of [1, 1]",
        ),
        (aten("split.Tensor", T((2, 3)), 0, 1), "dimension 1 of [2, 3] cannot be split into parts of 0"),
        (aten("unbind.int", T((2, 3)), 1), "dimension 1 of [2, 3] cannot be unbound into 1 parts"),
        (aten("expand.default", T((2, 3)), [2, 4]), "[2, 3] cannot be expanded to [2, 4]"),
        (aten("expand.default", T((2, 3)), [-1, 2, 3]), "[2, 3] cannot be expanded to [-1, 2, 3]"),
        (aten("repeat.default", T((2, 3)), [2]), "[2, 3] cannot be repeated [2] times"),
        (
            aten("unfold_copy.default", T((2, 3)), 1, 4, 1),
            "windows of 4, 1 apart, do not fit dimension 1 of [2, 3]",
        ),
        (aten("pixel_shuffle.default", T((3, 2, 2)), 2), "3 channels are not a multiple of 2²"),
        (aten("pixel_unshuffle.default", T((3, 3, 2)), 2), "an image of 3 × 2 cannot be cut into blocks of 2 × 2"),
        (aten("pixel_shuffle.default", T((2, 2)), 2), "an image has at least three dimensions, not [2, 2]"),
        (aten("as_strided_copy.default", T((2, 3)), [4], [2], 0), "strides [2] over [4] from 0 reach outside [2, 3]"),
        (aten("diagonal_copy.default", T((2, 3)), 0, 1, -1), "a diagonal needs two dimensions, not 1 and -1"),
        (aten("copy.default", T((3,)), T((2, 3))), "[2, 3] cannot be copied into [3]"),
    ],
    ids=str,
)
def test_refusals(case: Case, text: str) -> None:
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, inputs = graph_of(case, arrays, [np.zeros(4, np.float32)])
    with pytest.raises(ShapeError) as raised:
        plan_of(graph, device().target, given(graph, case, inputs))
    assert str(raised.value) == f"{case.op}: {text}"
