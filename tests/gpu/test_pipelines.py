"""The lifetime of pipelines: as long as a plan uses them, and a while longer."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from tests.gpu import plans

from ptegpu.errors import KernelError
from ptegpu.gpu import Device, Session
from ptegpu.gpu.pipelines import PipelineCache
from ptegpu.plan.plan import Kernel


def distinct(count: int) -> list[Kernel]:
    return [replace(plans.ADD, wgsl=f"{plans.ADD.wgsl}// {k} of {count}\n") for k in range(count)]


def alive(device: Device) -> int:
    gc.collect()
    return device.api.object_counts().get("computePipelines", 0)


def test_what_nothing_uses_goes_but_for_the_last(device: Device) -> None:
    cache = PipelineCache(device.api, max_unused=3)
    kernels, before = distinct(8), alive(device)
    for kernel in kernels:
        cache.get(kernel)
    assert (3, 8) == (alive(device) - before, cache.compiled)
    for kernel in kernels[-3:]:
        cache.get(kernel)
    assert 8 == cache.compiled
    cache.get(kernels[-3])  # now the last
    cache.get(kernels[0])
    cache.get(kernels[-3])
    assert (3, 9) == (alive(device) - before, cache.compiled)


def test_what_is_used_is_shared_however_long_ago_it_was_asked_for(device: Device) -> None:
    cache = PipelineCache(device.api, max_unused=1)
    first, *others = distinct(5)
    used = cache.get(first)
    for kernel in others:
        cache.get(kernel)
    assert used is cache.get(first)
    assert 5 == cache.compiled


def test_several_compile_at_once(device: Device) -> None:
    cache = PipelineCache(device.api)
    kernels = [replace(plans.ADD, wgsl=f"{plans.ADD.wgsl}// together {k}\n") for k in range(5)]
    pipelines = cache.get_all([*kernels, kernels[0]])
    assert (5, True) == (cache.compiled, pipelines[0] is pipelines[5])
    assert pipelines[:5] == [cache.get(kernel) for kernel in kernels]


def test_of_several_the_wrong_one_is_named(device: Device) -> None:
    cache = PipelineCache(device.api)
    kernels = [replace(plans.ADD, name=f"add{k}", wgsl=f"{plans.ADD.wgsl}// one of {k}\n") for k in range(4)]
    syntax = replace(kernels[2], wgsl="fn main() {")
    entry = replace(kernels[2], wgsl=kernels[2].wgsl.replace("fn main", "fn other"))
    for wrong in (syntax, entry):
        with pytest.raises(KernelError, match=r"^kernel add2 does not compile"):
            cache.get_all([*kernels[:2], wrong, kernels[3]])
    assert 4 == len(cache.get_all(kernels))


def test_a_plan_keeps_its_pipelines(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_pipelines", PipelineCache(device.api, max_unused=1))
    x = np.arange(plans.N, dtype=np.float32)
    before = alive(device)
    with Session(device) as session:
        prepared = session.prepare(plans.add())
        for kernel in distinct(3):
            device.pipeline(kernel)
        assert 2 == alive(device) - before
        np.testing.assert_array_equal(2 * x, session.run(prepared, [x, x])[0])
    assert 1 == alive(device) - before
