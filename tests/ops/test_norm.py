"""Normalisations: rows in registers and in passes, aligned and odd widths, optional weights, all outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.oracle import Case, T, check, device, graph_of, plan_of

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError

F16, F32 = DType.F16, DType.F32
LAYER, RMS = "aten.native_layer_norm.default", "et_vk.rms_norm.default"
GROUP = "aten.native_group_norm.default"
BATCH, BATCH_ITSELF = "aten._native_batch_norm_legit_no_training.default", "aten._native_batch_norm_legit.no_stats"


def layer(shape: tuple[int, ...], last: int = 1, dtype: DType = F32, *, weight: bool = True, bias: bool = True) -> Case:
    inner = shape[len(shape) - last :]
    w, b = T(inner, dtype, constant=True), T(inner, dtype)
    return Case(LAYER, (T(shape, dtype), list(inner), w if weight else None, b if bias else None, 1e-5))


def root_mean_square(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rms(shape: tuple[int, ...], dtype: DType = F32, weight: DType | None = None) -> Case:
    args = (T(shape, dtype), T(shape[-1:], weight or dtype), 1e-6)
    return Case(RMS, args, lambda x, w, eps: root_mean_square(x, w, eps).to(x.dtype))


def group(shape: tuple[int, ...], groups: int, dtype: DType = F32, *, weight: bool = True, bias: bool = True) -> Case:
    n, c, *rest = shape
    w, b = T((c,), dtype), T((c,), dtype)
    sizes = (n, c, int(np.prod(rest)))
    return Case(GROUP, (T(shape, dtype), w if weight else None, b if bias else None, *sizes, groups, 1e-5))


def batch(shape: tuple[int, ...], dtype: DType = F32, *, weight: bool = True, bias: bool = True) -> Case:
    c = shape[1:2]
    w, b = T(c, dtype), T(c, dtype)
    statistics = (T(c, dtype), T(c, dtype, 0.5, 2.0))
    return Case(BATCH, (T(shape, dtype), w if weight else None, b if bias else None, *statistics, 0.1, 1e-5))


def batch_itself(shape: tuple[int, ...], dtype: DType = F32, *, weight: bool = True) -> Case:
    w, b = T(shape[1:2], dtype), T(shape[1:2], dtype)
    return Case(BATCH_ITSELF, (T(shape, dtype), w if weight else None, b if weight else None, True, 0.1, 1e-5))


FAR = T((3, 64), low=1000, high=1001)
FROM_FAR = (2e-4, 1e-6, 1e-4)  # normalised, mean, 1 / deviation: a mean rounded at 1000 shifts a row of deviation 0.3
CASES = [
    *(layer(shape) for shape in [
        (3, 4, 5), (3, 16), (259, 16), (40, 17), (9, 128), (9, 129), (2, 512), (3, 515), (2, 1024), (2, 1027),
        (1, 4096), (2, 4100), (1, 1, 2049), (2, 10243), (1, 41000), (2049, 132), (2048, 257),
        (7,), (8,), (3, 1), (0, 4), (2, 1, 2, 1, 2, 1, 2, 8),
    ]),
    *(layer((2, 3, 4, 5), last) for last in (2, 3, 4)),
    *(layer((3, 12), weight=weight, bias=bias) for weight, bias in [(True, False), (False, True), (False, False)]),
    *(layer(shape, 1, F16) for shape in [(3, 5), (3, 8), (2, 300), (2, 1024), (1, 41000)]),
    Case(LAYER, (FAR, [64], None, None, 1e-5), atol=FROM_FAR, note=" far from zero"),
    Case(LAYER, (T((2, 10243), low=1000, high=1001), [10243], None, None, 1e-5), atol=FROM_FAR, note=" far from zero"),
    Case(LAYER, (T((3, 8), F16), [8], T((8,)), T((8,)), 1e-5), atol=1e-2, note=" mixed",
         reference=lambda x, s, w, b, e: torch.ops.aten.native_layer_norm(x, s, w.to(x.dtype), b.to(x.dtype), e)),
    Case(LAYER, (T((2, 0)), [0], None, None, 1e-5)),
    *(rms(shape) for shape in [
        (5, 7), (5, 16), (2, 3, 64), (1, 1, 2048), (2, 2050), (1, 5000), (1, 8192), (300, 4), (0, 8), (2, 10243),
        (1, 41000),
    ]),
    *(rms(shape, F16) for shape in [(3, 7), (2, 64), (1, 1028)]),
    rms((3, 64), F16, F32),
    Case("aten.rms_norm.default", (T((2, 3, 8)), [3, 8], T((3, 8)), 1e-6)),
    Case("aten.rms_norm.default", (T((2, 7)), [7], None, None)),
    *(group(shape, groups) for shape, groups in [
        ((2, 4), 2), ((2, 6, 5), 3), ((2, 8, 4), 2), ((2, 8, 3, 3), 8), ((1, 6, 4, 4), 1), ((2, 4, 2, 3, 4), 2),
        ((1, 4, 24, 24), 2), ((1, 2, 47, 47), 1), ((1, 4, 84, 120), 1), ((1, 6, 63, 85), 2), ((0, 4, 3), 2),
    ]),
    group((2, 6, 5), 2, weight=False),
    group((2, 6, 4), 2, bias=False, weight=False),
    group((2, 4, 4, 4), 2, F16),
    group((2, 4, 3), 2, F16),
    *(batch(shape) for shape in [(5, 3), (2, 3, 7), (2, 3, 4, 4), (1, 5, 2, 3, 2), (0, 3, 2)]),
    batch((2, 3, 5), weight=False),
    batch((2, 3, 5), bias=False, weight=False),
    batch((2, 3, 4), F16),
    *(batch_itself(shape) for shape in [(5, 3), (2, 3, 7), (3, 5, 4, 4), (1, 6, 3, 5), (2, 3, 33, 40), (8, 2, 72, 72)]),
    batch_itself((2, 3, 8), weight=False),
    batch_itself((2, 3, 8), F16),
]  # fmt: skip

BENCHMARKS = [  # at real sizes
    layer((16384, 1024)),
    layer((4096, 4096), dtype=F16),
    *(
        replace(rms(shape), peer=lambda x, w, eps: F.rms_norm(x, w.shape, w, eps))
        for shape in [(4096, 4096), (1, 2048)]
    ),
    group((16, 320, 64, 64), 32),
    batch((32, 256, 56, 56)),
]
BROWSER = [c for c in CASES if c.args[0].dtype is F16 or c.args[0].shape[-1] > 64]


@pytest.mark.parametrize("case", CASES[:60:4], ids=str)
def test_small_workgroups(case: Case) -> None:
    check(case, max_invocations=128)


def test_batch_norm_gives_the_statistics_it_used_where_they_are_wanted() -> None:
    def reference(x, w, b, mean, var, momentum, eps):  # type: ignore[no-untyped-def]
        out = torch.nn.functional.batch_norm(x, mean, var, w, b, False, momentum, eps)
        return out, mean, torch.rsqrt(var + eps)

    check(Case(BATCH, batch((2, 3, 4)).args, reference))


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case(LAYER, (T((2, 3)), [4], None, None, 1e-5)), "[2, 3] does not end in [4]"),
        (Case(LAYER, (T((2, 3)), [3], T((2,)), None, 1e-5)), "the weight [2] does not have 3 elements"),
        (group((2, 3, 4), 2), "the channels of [2, 3, 4] do not form 2 equal groups"),
        (Case(BATCH_ITSELF, (T((3,)), None, None, True, 0.1, 1e-5)), "'x' is arg0:float32[3], but must be [_, c, ...]"),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(case: Case, text: str) -> None:
    arrays = {id(a): a.make(np.random.default_rng(0)) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros((2, 3), np.float32)] * 3)
    with pytest.raises(ShapeError) as e:
        plan_of(graph, device().target)
    assert str(e.value) == f"{case.op}: {text}"
