"""Timestamps around passes, the figures derived from them, and the loads. No test compares times."""

from __future__ import annotations

import gc
import struct
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tests.gpu import plans

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidInput, LimitExceeded, SubmitError
from ptegpu.gpu import measurement
from ptegpu.gpu.measurement import _copy_bytes
from ptegpu.gpu.timing import KernelTime, Timer, busy, kernel_times, launches, pass_time
from ptegpu.plan.plan import Binding, Input, PlannedDispatch, Port
from ptegpu.plan.target import CLASSES, Target

X = np.arange(plans.N, dtype=np.float32)


def profile(session, loaded, inputs, repeats=10):
    """Return the time of every dispatch, the median over `repeats` runs after one that does not count."""
    timer = Timer(session.device, each=True)
    measurement.warm(session.device)
    with timer.watching([session]):
        for _ in range(repeats + 1):
            session.run(loaded, inputs, read=[])
    return kernel_times(launches(timer.runs[0].plan), [run.spans for run in timer.runs[1:]])


def test_a_device_says_whether_it_has_timestamps(device):
    assert device.timestamps == ("timestamp-query" in device.info.features)


def test_every_dispatch_has_a_time(session):
    plan = plans.chain(5)
    measured = profile(session, session.prepare(plan), [X], repeats=3)
    assert [("add", d) for d in plan.dispatches] == [(k.kernel, k.dispatch) for k in measured]
    assert 0.0 == measured[0].begin
    for before, after in pairwise(measured):
        assert before.seconds >= 0.0
        assert after.begin >= before.begin + before.seconds


def test_passes_that_are_split_compute_the_same(session):
    prepared = session.prepare(plans.scale((2.0, 3.0)))
    with Timer(session.device, each=True).watching([session]):
        np.testing.assert_array_equal(X * 6, session.run(prepared, [X])[0])
    assert session.timer is None


def test_more_queries_than_a_set_holds(session, monkeypatch):
    monkeypatch.setattr("ptegpu.gpu.timing.MAX_QUERIES", 32)
    set_sizes = []
    api = session.device.api
    original = api.query_set
    monkeypatch.setattr(api, "query_set", lambda count: set_sizes.append(count) or original(count))
    assert 40 == len(profile(session, session.prepare(plans.chain(40)), [X], repeats=1))
    assert [32, 32, 16] * 2 == set_sizes  # one run to warm up, one that counts


def test_symbolic_ints_and_empty_dispatches(session):
    plan = plans.fill(100, (2, 1))
    plan = plans.dispatching(plan, replace(plan.dispatches[0], grid=(0, 1)), *plan.dispatches)
    prepared = session.prepare(plan)
    assert [plan.dispatches[1]] == [k.dispatch for k in profile(session, prepared, [7], repeats=1)]
    assert pass_time(session, prepared, [7]) >= 0.0
    np.testing.assert_array_equal(np.arange(100) + 7, session.run(prepared, [7])[0])


def test_a_plan_without_dispatches_takes_no_time(session):
    prepared = session.prepare(plans.move(DType.F32, (4,), 16))
    x = np.ones(4, np.float32)
    assert [] == profile(session, prepared, [x], repeats=2)
    assert 0.0 == pass_time(session, prepared, [x])


def test_no_run_no_timer(session):
    prepared = session.prepare(plans.add())
    with pytest.raises(InvalidInput):
        profile(session, prepared, [X])
    assert session.timer is None


def test_timed_work_goes_through_the_guarded_submit(session):
    prepared = session.prepare(plans.add())
    prepared.buffers[2].destroy()
    with pytest.raises(SubmitError) as caught:
        pass_time(session, prepared, [X, X])
    assert "buffer y is destroyed, but submitted work uses it" == str(caught.value)


def test_an_adapter_without_timestamps_is_told(session, monkeypatch):
    prepared = session.prepare(plans.add())
    monkeypatch.setattr(session.device, "timestamps", False)
    for measure in (profile, pass_time):
        with pytest.raises(LimitExceeded) as caught:
            measure(session, prepared, [X, X])
        name = session.device.target.name
        assert f"GPU time is measured with timestamp queries, which {name} does not have" == str(caught.value)


def test_ticks_become_seconds_since_the_first_pass(session, monkeypatch):
    monkeypatch.setattr(session.device.api, "timestamp_period", lambda: 20.0)  # ns
    timer = Timer(session.device, each=True)
    prepared = session.prepare(plans.chain(2))
    first = 1 << 60  # far beyond what a float holds exactly
    for ticks in ((0, 5, 7, 12), (100, 150, 150, 151)):
        monkeypatch.setattr(session.device, "read", lambda *_, t=ticks: struct.pack("4Q", *(first + n for n in t)))
        with timer.watching([session]):
            session.run(prepared, [X], read=[])
    expected = [[(0, 100e-9), (140e-9, 240e-9)], [(2000e-9, 3000e-9), (3000e-9, 3020e-9)]]
    for passes, run in zip(expected, timer.runs, strict=True):
        assert run.plan.dispatches == prepared.plan.dispatches
        np.testing.assert_allclose(run.spans, passes)


def test_a_pass_counts_from_the_end_of_the_one_before():
    spans = [(1.0, 2.0), (1.5, 4.0), (3.0, 3.5), (6.0, 7.0)]
    assert [(1.0, 1.0), (2.0, 2.0), (4.0, 0.0), (6.0, 1.0)] == busy(spans)


def test_times_are_medians_on_the_line_of_the_median_run():
    launched = [("add", plans.chain(2).dispatches[k]) for k in (0, 1)]
    runs = [[(10.0, 11.0), (11.0, 15.0)], [(20.0, 23.0), (24.0, 25.0)], [(30.0, 32.0), (34.0, 39.0)]]
    expected = [KernelTime("add", launched[0][1], 0.0, 2.0), KernelTime("add", launched[1][1], 2.0, 4.0)]
    assert expected == kernel_times(launched, runs)


def test_launches_name_the_kernels():
    plan = plans.scale((1.0, 2.0))
    assert [("scale", d) for d in plan.dispatches] == launches(plan)


def test_profiles_leave_nothing_behind(session):
    prepared = session.prepare(plans.chain(3))

    def measure() -> None:
        profile(session, prepared, [X], repeats=1)
        pass_time(session, prepared, [X])

    measure()
    gc.collect()
    objects = session.device.api.object_counts()
    for _ in range(10):
        measure()
    gc.collect()
    assert objects == session.device.api.object_counts()


def test_the_copying_load_copies(session):
    plan = measurement.copying(Target(max_groups=2), 16 * 1000)
    assert (2, 2) == plan.dispatches[0].grid
    shape = (4000,)
    plan = replace(plan, inputs=(Input("x", 0, DType.F32, shape),))
    plan = plans.giving(plan, Port("y", 1, DType.F32, shape))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(x, session.run(session.prepare(plan), [x])[0])
    assert 32_000 == plan.dispatches[0].nbytes


def test_the_arithmetic_load_computes(session):
    plan = measurement.arithmetic(Target(max_invocations=64), groups=2, turns=8)
    plan = plans.giving(plan, Port("y", 1, DType.F32, (128, 4)))
    (y,) = session.run(session.prepare(plan), [])
    start = np.array([[n, 0, 1, 2] for n in range(128)], np.float32) + 1
    np.testing.assert_allclose(y, 16 * start, rtol=1e-6)  # eight sums, each at its limit, start / (1 - 0.5)
    assert 2 * 4 * 64 * 8 * 128 == plan.dispatches[0].flops


def test_only_a_gpu_is_warmed(device, monkeypatch):
    small = measurement.arithmetic
    monkeypatch.setattr(measurement, "arithmetic", lambda target, groups, turns: small(target, 1, 1))
    for kind, sizes in measurement.SIZES.items():
        monkeypatch.setitem(measurement.SIZES, kind, sizes._replace(seconds=min(sizes.seconds, 0.001)))
        monkeypatch.setattr(device, "target", replace(device.target, device_class=CLASSES[kind]))
        before = device.counters.snapshot()
        measurement.warm(device)
        assert (kind == "software") == (device.counters.since(before).dispatches == 0)


@pytest.mark.parametrize(
    "free, binding, kind, expected",
    [
        (None, 2 << 30, "discrete", 256 << 20),
        (None, 128 << 20, "integrated", 128 << 20),
        (1 << 30, 2 << 30, "discrete", 128 << 20),
        (1000, 2 << 30, "discrete", 1 << 20),
        (None, 2 << 30, "software", 8 << 20),
        (None, 1001, "software", 992),
    ],
)
def test_the_copy_fits_limits_and_memory(device, monkeypatch, free, binding, kind, expected):
    target = Target(max_binding_bytes=binding, max_buffer_bytes=2 << 30, device_class=CLASSES[kind])
    monkeypatch.setattr(device, "target", target)
    monkeypatch.setattr(device, "available_bytes", lambda: free)
    assert expected == _copy_bytes(device)


def test_dispatches_without_figures_have_none():
    dispatch = PlannedDispatch(0, (Binding(0, 0, 16),), (1, 1), "y")
    assert (0, 0) == (dispatch.nbytes, dispatch.flops)
