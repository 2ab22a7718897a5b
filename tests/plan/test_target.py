"""Classes of adapters: what is assumed of each, and that tables choose by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cases import Case, T, graph_of, plan_of, walk

from ptegpu.dtypes import DType
from ptegpu.plan.plan import Plan
from ptegpu.plan.target import CLASSES, DeviceClass, Target

GPU = CLASSES["discrete"]


def plan(op: str, args: Sequence[Any], shape: tuple[int, ...], device_class: DeviceClass) -> Plan:
    case = Case(op, tuple(args))
    arrays: dict[int, np.ndarray] = {}
    walk(list(args), lambda a: arrays.update({id(a): np.zeros(a.shape, a.dtype.numpy)}) if isinstance(a, T) else None)
    graph, _ = graph_of(case, arrays, [np.empty(shape, np.float32)])
    return plan_of(graph, Target(device_class=device_class))


def product(m: int, k: int, n: int, device_class: DeviceClass) -> Plan:
    return plan("aten.mm.default", (T((m, k)), T((k, n))), (m, n), device_class)


def names(traced: Plan) -> list[str]:
    return [traced.kernels[d.kernel].name for d in traced.dispatches]


def test_a_target_without_a_device_is_always_the_same() -> None:
    assert Target() == Target(device_class=CLASSES["discrete"])
    assert (128, False) == (Target().device_class.busy, Target().device_class.measured)
    assert all(name == assumed.name and not assumed.measured for name, assumed in CLASSES.items())


@pytest.mark.parametrize(
    "units, busy",
    [(1, 1), (2, 2), (3, 4), (10, 8), (28, 32), (108, 128), (120, 128), (132, 128), (144, 128), (304, 256)],
)
def test_noise_in_the_number_of_units_changes_no_plan(units: int, busy: int) -> None:
    assert busy == replace(GPU, units=units).busy


def test_cores_of_a_cpu_change_no_plan() -> None:
    software = CLASSES["software"]
    assert {128} == {replace(software, units=n).busy for n in (1, 2, 64)}


def test_a_gpu_of_the_assumed_size_has_the_assumed_plans() -> None:
    measured = DeviceClass("discrete", 3.9e12, 5.1e13, 2e-6, 132, measured=True)
    assert product(128, 4096, 128, GPU) == product(128, 4096, 128, measured)


def test_a_small_gpu_gets_larger_tiles() -> None:
    assert names(product(512, 64, 512, GPU)) != names(product(512, 64, 512, replace(GPU, units=8)))


def test_a_small_gpu_is_not_kept_busy_by_parts() -> None:
    assert 2 == len(product(512, 1024, 512, GPU).dispatches)
    assert 1 == len(product(512, 1024, 512, replace(GPU, units=8)).dispatches)


@pytest.mark.parametrize(
    "op, args, shape",
    [
        ("aten.sum.dim_IntList", (T((4, 400_000)), [1], False), (4,)),
        ("aten.sum.dim_IntList", (T((1000, 1024)), [1], False), (1000,)),
        ("aten.sum.dim_IntList", (T((512, 8192)), [0], False), (8192,)),
        ("aten._softmax.default", (T((1000, 1024)), 1, False), (1000, 1024)),
        ("aten.linear.default", (T((1, 256)), T((4000, 256))), (1, 4000)),
        (
            "aten.scaled_dot_product_attention.default",
            (T((1, 8, 1, 64)), T((1, 8, 4096, 64)), T((1, 8, 4096, 64))),
            (1, 8, 1, 64),
        ),
    ],
)
def test_less_work_fills_a_small_gpu(op: str, args: Sequence[Any], shape: tuple[int, ...]) -> None:
    plans = [plan(op, args, shape, replace(GPU, units=n)) for n in (128, 132, 16)]
    assert plans[0] == plans[1]
    assert sum(np.prod(d.grid) for d in plans[2].dispatches) < sum(np.prod(d.grid) for d in plans[0].dispatches)


def test_packed_products_of_few_rows_are_shared_out_by_class() -> None:
    weight, scales = T((64, 512), DType.U8, constant=True), T((32, 64), constant=True)
    args = (T((1, 1024)), weight, scales, 32, None)
    plans = {
        name: plan("et_vk.linear_q4gsw.default", args, (1, 64), device_class) for name, device_class in CLASSES.items()
    }
    assert plans["discrete"] == plans["integrated"] != plans["software"]
    assert (16, 0) == (plans["software"].kernels[0].workgroup, plans["software"].kernels[0].shared_bytes)
