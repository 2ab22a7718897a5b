"""Plans run: values, state, outputs that stay on the GPU, and the counters that prove one submit per run."""

from __future__ import annotations

import threading
from dataclasses import replace
from struct import pack

import numpy as np
import pytest
from tests.gpu import plans

from ptegpu.dtypes import DType
from ptegpu.errors import Closed, DeviceError, InvalidInput, LimitExceeded, OutOfMemory
from ptegpu.gpu import Counters, DeviceTensor, Session, SharedConstants, device_bytes
from ptegpu.gpu.recording import Recording
from ptegpu.plan.plan import Buffer, Copy

X = np.arange(plans.N, dtype=np.float32)
ONES = np.ones(plans.N, np.float32)


def run(session, plan, *inputs, **options):
    return session.run(session.prepare(plan), inputs, **options)


def test_two_vectors_are_added(session):
    (y,) = run(session, plans.add(), X, ONES)
    np.testing.assert_array_equal(X + 1, y)


def test_results_are_fresh_arrays(session):
    prepared = session.prepare(plans.add())
    (first,) = session.run(prepared, [X, ONES])
    (second,) = session.run(prepared, [X, X])
    np.testing.assert_array_equal(X + 1, first)
    np.testing.assert_array_equal(X + X, second)


def test_a_non_contiguous_input_is_read_in_its_order(session):
    (y,) = run(session, plans.add(), X[::-1], ONES)
    np.testing.assert_array_equal(X[::-1] + 1, y)


def test_a_chain_depends_on_each_step_before_it(session):
    before, last = run(session, plans.chain(30), ONES)
    np.testing.assert_array_equal(1 + 29 * X, before)
    np.testing.assert_array_equal(1 + 30 * X, last)


def test_a_run_is_one_submit_one_read_back_and_no_allocation(session, device):
    prepared = session.prepare(plans.chain(30))
    session.run(prepared, [ONES])
    before = device.counters.snapshot()
    session.run(prepared, [ONES])
    assert Counters(submits=1, dispatches=30, readbacks=1, bytes_uploaded=80) == device.counters.since(before)


def test_plans_and_what_is_read_alternate(session):
    accumulate, chain = session.prepare(plans.accumulate()), session.prepare(plans.chain())
    for n in range(1, 7):
        np.testing.assert_array_equal(n * X, session.run(accumulate, [X])[0])
        for read in ([0, 1], [0, 1], [0, 1], [1], [1], [0]):
            results = session.run(chain, [ONES], read=read)
            assert read == [k for k, result in enumerate(results) if isinstance(result, np.ndarray)]
            for result, expected in zip(results, (1 + 2 * X, 1 + 3 * X), strict=True):
                value = result.numpy() if isinstance(result, DeviceTensor) else result
                np.testing.assert_array_equal(expected, value)


def test_arrays_and_device_tensors_alternate(session):
    prepared = session.prepare(plans.add())
    value = X
    for n in range(1, 10):
        (value,) = session.run(prepared, [value, ONES], read=[0] if n % 3 == 0 else [])
        result = value if n % 3 == 0 else value.numpy()
        np.testing.assert_array_equal(X + n, result)


def test_a_larger_read_back_replaces_the_staging_buffer(session):
    small, large = session.prepare(plans.add()), session.prepare(plans.fill(5000, (9, 9)))
    for _ in range(3):
        np.testing.assert_array_equal(X + 1, session.run(small, [X, ONES])[0])
    np.testing.assert_array_equal(np.arange(5000), session.run(large, [0])[0])
    for _ in range(3):
        np.testing.assert_array_equal(X + 1, session.run(small, [X, ONES])[0])


def test_parameters_are_blocks_of_one_buffer(session):
    (y,) = run(session, plans.scale((2.0, 3.0, 5.0)), X)
    np.testing.assert_array_equal(30 * X, y)


def test_plans_of_one_graph_share_buffers_but_not_parameters(session, device):
    double = session.prepare(plans.scale((2.0,), "params0"))
    device.pool.clear()  # of what other tests left
    before = device.counters.snapshot()
    triple = session.prepare(plans.scale((3.0,), "params1"))
    counted = device.counters.since(before)
    assert (counted.buffers_created, counted.bind_groups_created, counted.pipelines_created) == (1, 1, 0)
    np.testing.assert_array_equal(2 * X, session.run(double, [X])[0])
    np.testing.assert_array_equal(3 * X, session.run(triple, [X])[0])


def test_sessions_share_constants_and_the_last_one_gives_them_back(device):
    constants = SharedConstants()
    session_1, session_2 = Session(device, constants), Session(device, constants)
    first = session_1.prepare(plans.chain())
    before = device.counters.snapshot()
    second = session_2.prepare(plans.chain())
    assert device.counters.since(before).bytes_uploaded == 0
    assert first.buffers[1] is second.buffers[1]
    session_1.close()
    assert len(constants) == 1
    np.testing.assert_array_equal(1 + 3 * X, session_2.run(second, [ONES])[1])
    session_2.close()
    assert len(constants) == 0


def test_a_shared_constant_of_another_size_is_refused(device):
    constants = SharedConstants()
    plan = plans.chain()
    larger = replace(plan, buffers=(plan.buffers[0], Buffer("w", 96, "constant", 0), *plan.buffers[2:]))
    with Session(device, constants) as session_1, Session(device, constants) as session_2:
        session_1.prepare(plan)
        with pytest.raises(DeviceError) as caught:
            session_2.prepare(larger)
        assert str(caught.value) == "plan chain: buffer w has 96 bytes, but 80 in an earlier plan"


def test_a_session_uses_the_states_of_another_one(device):
    with Session(device) as owner:
        first = owner.prepare(plans.accumulate(ONES.tobytes()))
        with Session(device, owner=owner) as user:
            second = user.prepare(plans.accumulate(ONES.tobytes()))
            assert first.buffers[1] is second.buffers[1]
            np.testing.assert_array_equal(1 + X, owner.run(first, [X])[0])
            np.testing.assert_array_equal(1 + 2 * X, user.run(second, [X])[0])
            user.reset()  # only the owner resets them
            np.testing.assert_array_equal(1 + 3 * X, owner.run(first, [X])[0])
            owner.reset()
            np.testing.assert_array_equal(1 + X, user.run(second, [X])[0])
        np.testing.assert_array_equal(1 + 2 * X, owner.run(first, [X])[0])
        with Session(device, owner=owner) as user, pytest.raises(DeviceError) as caught:
            user.prepare(plans.chain())
        assert str(caught.value) == "plan chain has other states than the plan whose states it shares"


def test_runs_that_are_held_precede_those_of_another_session_with_the_same_states(device):
    with Session(device) as owner:
        first = owner.prepare(plans.accumulate(ONES.tobytes()))
        with Session(device, owner=owner) as user:
            second = user.prepare(plans.accumulate(ONES.tobytes()))
            held = owner.start(first, [X], hold=True)
            np.testing.assert_array_equal(1 + 2 * X, user.run(second, [X])[0])
            np.testing.assert_array_equal(1 + X, held.result()[0])


def test_a_plan_of_another_session_is_refused(session, device):
    with Session(device) as other:
        prepared = other.prepare(plans.scale())
        with pytest.raises(DeviceError) as caught:
            session.run(prepared, [X])
    assert str(caught.value) == "plan scale was prepared by another session"


def test_parameters_of_two_plans_under_one_name_are_refused(session):
    session.prepare(plans.scale((2.0,)))
    with pytest.raises(DeviceError) as caught:
        session.prepare(plans.scale((3.0,)))
    assert str(caught.value) == "plan scale: buffer params holds the parameters of another plan"


def test_state_persists_between_runs_and_resets(session):
    prepared = session.prepare(plans.accumulate())
    totals = [session.run(prepared, [X])[0] for _ in range(3)]
    for n, total in enumerate(totals, 1):
        np.testing.assert_array_equal(n * X, total)
    session.reset()
    np.testing.assert_array_equal(X, session.run(prepared, [X])[0])


def test_state_starts_at_its_first_bytes_and_returns_to_them(session):
    prepared = session.prepare(plans.accumulate(pack("3f", 7, 8, 9)))  # the rest is zeros
    first = np.zeros(plans.N, np.float32)
    first[:3] = 7, 8, 9
    for _ in range(2):
        np.testing.assert_array_equal(first + X, session.run(prepared, [X])[0])
        np.testing.assert_array_equal(first + 2 * X, session.run(prepared, [X])[0])
        session.reset()


def test_state_of_two_sessions_is_apart(device):
    with Session(device) as session_1, Session(device) as session_2:
        plan = plans.accumulate()
        first, second = session_1.prepare(plan), session_2.prepare(plan)
        session_1.run(first, [X])
        np.testing.assert_array_equal(X, session_2.run(second, [X])[0])


def test_a_buffer_from_the_pool_starts_as_zeros(device):
    for _ in range(2):
        with Session(device) as session:
            np.testing.assert_array_equal(X, run(session, plans.accumulate(), X)[0])


def test_symbolic_ints_are_written_when_they_change(session, device):
    prepared = session.prepare(plans.fill(5, (1, 1)))
    np.testing.assert_array_equal(np.arange(5) + 7, session.run(prepared, [7])[0])
    before = device.counters.snapshot()
    session.run(prepared, [7])
    assert device.counters.since(before).bytes_uploaded == 0
    np.testing.assert_array_equal(np.arange(5) - 7, session.run(prepared, [-7])[0])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "plan fill takes 1 inputs, 0 given"),
        ([2**31], "plan fill: a symbolic int does not fit 32 bits"),
        ([-(2**31) - 1], "plan fill: a symbolic int does not fit 32 bits"),
        ([2**70], "plan fill: a symbolic int does not fit 32 bits"),
        ([X], "input 0 (s) must be an int, not ndarray"),
    ],
)
def test_unusable_symbolic_ints_are_refused(session, inputs, message):
    with pytest.raises(InvalidInput) as caught:
        run(session, plans.fill(5, (1, 1)), *inputs)
    assert message == str(caught.value)


def test_a_grid_of_two_dimensions_covers_every_element(session):
    elements = 64 * 35 - 3
    (y,) = run(session, plans.fill(elements, (7, 5)), 0)
    np.testing.assert_array_equal(np.arange(elements), y)


def test_an_empty_grid_is_no_dispatch(session, device):
    before = device.counters.snapshot()
    (y,) = run(session, plans.fill(5, (0, 1)), 0)
    assert device.counters.since(before).dispatches == 0
    np.testing.assert_array_equal(np.zeros(5), y)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 3), (0,), (4, 0, 2)])
def test_every_dtype_travels_at_any_size(session, dtype, shape):
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype.numpy)
    (y,) = run(session, plans.move(dtype, shape, 96), x)
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    np.testing.assert_array_equal(x, y)


def test_outputs_that_are_not_read_stay_on_the_device(session, device):
    prepared = session.prepare(plans.chain())
    before = device.counters.snapshot()
    resident, last = session.run(prepared, [ONES], read=[1])
    np.testing.assert_array_equal(1 + 3 * X, last)
    assert isinstance(resident, DeviceTensor)
    assert (resident.dtype, resident.shape, resident.nbytes) == (DType.F32, (plans.N,), 80)
    assert device.counters.since(before).readbacks == 1
    np.testing.assert_array_equal(1 + 2 * X, resident.numpy())


def test_nothing_read_is_no_read_back(session, device):
    prepared = session.prepare(plans.add())
    before = device.counters.snapshot()
    session.run(prepared, [X, X], read=[])
    assert Counters(submits=1, dispatches=1, bytes_uploaded=160) == device.counters.since(before)


def test_a_read_back_that_fails_does_not_spoil_the_next(session, monkeypatch):
    def fail(*_: object) -> memoryview:
        raise KeyboardInterrupt

    prepared = session.prepare(plans.add())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(session.device.api, "map_for_reading", fail)
        session.run(prepared, [X, X])
    np.testing.assert_array_equal(X + 1, session.run(prepared, [X, ONES])[0])


def test_a_device_tensor_feeds_another_session_without_the_host(session, device):
    with Session(device) as other:
        (sum_of,) = run(session, plans.add(), X, ONES, read=[])
        prepared = other.prepare(plans.scale())
        before = device.counters.snapshot()
        (y,) = other.run(prepared, [sum_of])
        used = device.counters.since(before)
        assert (used.submits, used.readbacks, used.bytes_uploaded) == (1, 1, 0)
        np.testing.assert_array_equal(3 * (X + 1), y)


def test_a_device_tensor_is_copied_once_for_several_runs(session, device, monkeypatch):
    copies, copy = [], Recording.copy
    monkeypatch.setattr(Recording, "copy", lambda *value: copies.append(value) or copy(*value))
    with Session(device) as other:
        (sum_of,) = run(session, plans.add(), X, ONES, read=[])
        prepared = other.prepare(plans.scale())
        for value, expected, count in ((sum_of, X + 1, 2), (sum_of, X + 1, 1), (X, X, 1), (sum_of, X + 1, 2)):
            copies.clear()
            np.testing.assert_array_equal(3 * expected, other.run(prepared, [value])[0])
            assert count == len(copies)  # one of them reads the result back
        session.run(session.prepare(plans.add()), [ONES, ONES], read=[])
        with pytest.raises(InvalidInput, match="from an earlier run"):
            other.run(prepared, [sum_of])


def test_a_device_tensor_that_a_run_overwrites_is_copied_for_each(session, device):
    with Session(device) as other:
        (sum_of,) = run(session, plans.add(), X, ONES, read=[])
        back = Copy(plans.add().outputs[0].buffer, 0, X.nbytes)  # the result becomes the first input
        prepared = other.prepare(replace(plans.add(), copies=(back,)))
        for _ in range(3):
            np.testing.assert_array_equal(X + 2, other.run(prepared, [sum_of, ONES])[0])


def test_a_device_tensor_feeds_its_own_session(session):
    prepared = session.prepare(plans.add())
    value = X
    for _ in range(3):
        (value,) = session.run(prepared, [value, ONES], read=[])
    np.testing.assert_array_equal(X + 3, value.numpy())


def test_a_device_tensor_in_another_inputs_buffer_is_not_overwritten_first(session):
    plan = plans.add()
    through = plans.giving(plan, *plan.outputs, plans.f32("a", 0))  # y, and the input a as it came
    prepared = session.prepare(through)
    _, a = session.run(prepared, [X, ONES], read=[0])
    y, _ = session.run(prepared, [10 * X, a])
    np.testing.assert_array_equal(11 * X, y)


def test_a_device_tensor_that_is_its_own_input_stays_in_place(session):
    plan = plans.add()
    prepared = session.prepare(plans.giving(plan, *plan.outputs, plans.f32("a", 0)))
    _, a = session.run(prepared, [X, ONES], read=[0])
    y, _ = session.run(prepared, [a, X])
    np.testing.assert_array_equal(2 * X, y)


def test_a_stale_device_tensor_is_refused(session):
    prepared = session.prepare(plans.add())
    (old,) = session.run(prepared, [X, X], read=[])
    session.run(prepared, [X, X])
    for use in (old.numpy, lambda: session.run(prepared, [old, X])):
        with pytest.raises(InvalidInput) as caught:
            use()
        assert (
            str(caught.value) == "this device tensor is from an earlier run: read it or pass it on before the next one"
        )


def test_an_empty_device_tensor_reads_as_an_empty_array(session):
    plan = plans.move(DType.F32, (0, 3), 16)
    (y,) = run(session, plan, np.empty((0, 3), np.float32), read=[])
    assert y.numpy().shape == (0, 3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([X], "plan add takes 2 inputs, 1 given"),
        ([X, X[:3]], "input 1 (b) must be float32[20], not float32[3]"),
        ([X, 3], "input 1 (b) must be a tensor, not the int 3"),
        ([X.astype(np.float64), X], "input 0 (a) must be float32[20], not float64[20]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(session, inputs, message):
    with pytest.raises(InvalidInput) as caught:
        run(session, plans.add(), *inputs)
    assert message == str(caught.value)


def test_a_closed_session_refuses_everything(session):
    prepared = session.prepare(plans.add())
    (resident,) = session.run(prepared, [X, X], read=[])
    session.close()
    session.close()
    for use in (lambda: session.run(prepared, [X, X]), lambda: session.prepare(plans.add()), session.reset):
        with pytest.raises(Closed, match="the session is closed"):
            use()
    with pytest.raises(Closed, match="the session of this device tensor is closed"):
        resident.numpy()


def test_a_prepare_that_fails_leaves_the_session_as_it_was(session, device):
    plan = plans.add()
    broken = replace(plan.kernels[0], wgsl="fn main() {")
    before = device.counters.snapshot()
    with pytest.raises(DeviceError):
        session.prepare(replace(plan, kernels=(broken,)))
    counted = device.counters.since(before)
    assert (0, 0, 0) == (counted.pipelines_created, counted.bind_groups_created, counted.dispatches)
    assert session._store.missing(plan) == list(plan.buffers)
    np.testing.assert_array_equal(X + X, run(session, plan, X, X)[0])


def test_a_buffer_that_changes_its_size_is_refused(session):
    session.prepare(plans.add())
    plan = plans.add()
    grown = replace(plan, buffers=(Buffer("a", 96, "input"), *plan.buffers[1:]))
    with pytest.raises(DeviceError) as caught:
        session.prepare(grown)
    assert str(caught.value) == "plan add: buffer a has 96 bytes, but 80 in an earlier plan"


def test_limits_are_checked_before_anything_is_made(session, device):
    plan = plans.add()
    too_wide = replace(plan.kernels[0], workgroup=1 << 20)
    before = device.counters.snapshot()
    with pytest.raises(LimitExceeded):
        session.prepare(replace(plan, kernels=(too_wide,)))
    assert Counters() == device.counters.since(before)


def test_memory_is_checked_before_anything_is_made(session, device, monkeypatch):
    monkeypatch.setattr(device, "available_bytes", lambda: 100)
    device.pool.clear()
    before = device.counters.snapshot()
    with pytest.raises(OutOfMemory) as caught:
        session.prepare(plans.add())
    assert f"plan add on {device.target.name} needs 240 more bytes; 100 are available" == str(caught.value)
    assert Counters() == device.counters.since(before)


def test_device_bytes_counts_buffers_and_staging():
    assert device_bytes(plans.add()) == 3 * 80 + 80


def test_two_threads_on_one_session_take_turns(session):
    prepared = session.prepare(plans.chain(10))
    wrong: list[str] = []

    def work(number: int) -> None:
        for n in range(40):
            value = np.full(plans.N, number * 1000 + n, np.float32)
            before, last = session.run(prepared, [value])
            if not (np.array_equal(value + 9 * X, before) and np.array_equal(value + 10 * X, last)):
                wrong.append(f"thread {number}, run {n}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_sessions_in_two_threads_do_not_meet(device):
    wrong: list[int] = []

    def work(number: int) -> None:
        with Session(device) as own:
            prepared = own.prepare(plans.accumulate())
            for n in range(1, 41):
                (total,) = own.run(prepared, [X + number])
                if not np.array_equal(n * (X + number), total):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_runs_that_are_held_share_a_submit_and_a_read_back(session, device):
    total = session.prepare(plans.accumulate())
    session.run(total, [X])
    before = device.counters.snapshot()
    pending = [session.start(total, [n * ONES], hold=n < 3) for n in range(1, 4)]
    assert 1 == device.counters.since(before).submits
    for n, run in enumerate(pending, 1):
        np.testing.assert_array_equal(X + n * (n + 1) / 2, run.result()[0])
    assert (1, 1) == (device.counters.since(before).submits, device.counters.since(before).readbacks)
    np.testing.assert_array_equal(X + 6, session.run(total, [0 * X])[0])


def test_a_run_that_is_held_begins_when_it_is_asked_for(session, device):
    add, total = session.prepare(plans.add()), session.prepare(plans.accumulate())
    run = session.start(add, [X, ONES], hold=True)
    np.testing.assert_array_equal(X + 1, run.result()[0])
    run = session.start(add, [X, X], read=[], hold=True)
    np.testing.assert_array_equal(X + X, run.outputs[0].numpy())
    chained = session.start(add, [X, ONES], read=[], hold=True)
    for _ in range(3):
        chained = session.start(add, [chained.outputs[0], ONES], read=[], hold=True)
    with Session(device) as other:
        np.testing.assert_array_equal(X + 5, other.run(other.prepare(plans.add()), [chained.outputs[0], ONES])[0])
    session.start(total, [X], hold=True)
    session.reset()
    np.testing.assert_array_equal(ONES, session.run(total, [ONES])[0])


def test_symbolic_ints_of_runs_that_are_held(session):
    fill = session.prepare(plans.fill(100, (1, 2)))
    pending = [session.start(fill, [n], hold=True) for n in (3, 3, 5, 2)]
    for n, run in zip((3, 3, 5, 2), pending, strict=True):
        np.testing.assert_array_equal(np.arange(100) + n, run.result()[0])


def test_what_was_held_with_a_run_that_fails_never_begins(session, monkeypatch):
    fill, total = session.prepare(plans.fill(100, (1, 2))), session.prepare(plans.accumulate())
    session.run(fill, [4])
    pending = session.start(fill, [9], hold=True)
    with monkeypatch.context() as patch:
        patch.setattr(Recording, "compute", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.start(total, [X])
    with pytest.raises(DeviceError, match="batched with one that failed"):
        pending.result()
    for n in (9, 4):
        np.testing.assert_array_equal(np.arange(100) + n, session.run(fill, [n])[0])
    np.testing.assert_array_equal(X, session.run(total, [X])[0])


def test_a_large_upload_that_fails_counts_nothing_as_written(session, monkeypatch):
    add = session.prepare(plans.add())
    session.run(add, [X, X])
    assert [add] == list(session._guard.params)
    monkeypatch.setattr("ptegpu.gpu.session.MAX_UPLOAD", 0)
    with monkeypatch.context() as patch:
        patch.setattr(session.device, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.run(add, [X, X])
    assert {} == session._guard.params
    np.testing.assert_array_equal(X + X, session.run(add, [X, X])[0])


def test_runs_that_are_held_and_discarded(session):
    add = session.prepare(plans.add())
    pending = [session.start(add, [X, n * ONES], hold=n < 5) for n in range(6)]
    for run in pending[:3]:
        run.discard()
    np.testing.assert_array_equal(X + 4, pending[4].result()[0])
    other = session.start(add, [X, X])
    np.testing.assert_array_equal(X + 3, pending[3].result()[0])
    pending[5].discard()
    np.testing.assert_array_equal(X + X, other.result()[0])


def test_inputs_are_the_callers_again_once_a_run_has_started(session):
    add = session.prepare(plans.add())
    x, ones = X.copy(), ONES.copy()
    run = session.start(add, [x, ones], hold=True)
    x[:], ones[:] = 7, 7
    (first,) = run.result()
    (second,) = session.run(add, [x, ones])
    np.testing.assert_array_equal(X + 1, first)  # not the mapped memory that the second run came through
    np.testing.assert_array_equal(14 * ONES, second)


@pytest.mark.parametrize("largest", [8, 1 << 20])
def test_arrays_that_are_written_in_pieces(session, monkeypatch, largest):
    monkeypatch.setattr("ptegpu.gpu.session.MAX_UPLOAD", largest)
    add = session.prepare(plans.add())
    pending = session.start(add, [X, X[::-1]], hold=True)
    np.testing.assert_array_equal(X + ONES, session.run(add, [X, ONES])[0])
    np.testing.assert_array_equal(X + X[::-1], pending.result()[0])


def test_arrays_that_several_threads_copy(session, monkeypatch):
    monkeypatch.setattr("ptegpu.gpu.buffers._SMALL", 0)
    monkeypatch.setattr("ptegpu.gpu.buffers._BY_THREADS", 1)
    monkeypatch.setattr("ptegpu.gpu.buffers._THREADS", 3)
    add = session.prepare(plans.add())
    for n in range(5):
        np.testing.assert_array_equal(X * n + X[::-1], session.run(add, [X * n, X[::-1]])[0])


def test_uploads_use_the_same_buffers_again(session, device):
    add = session.prepare(plans.add())
    for _ in range(3):
        session.run(add, [X, ONES])
    before = device.counters.snapshot()
    for _ in range(20):
        session.run(add, [X, ONES])
    assert 0 == device.counters.since(before).buffers_created
    device.trim()
    np.testing.assert_array_equal(X + 1, session.run(add, [X, ONES])[0])


def test_preparing_tells_how_far_it_is(session, device):
    events: list[tuple[str, int, int]] = []
    add = plans.ADD.wgsl
    kernels = tuple(replace(plans.ADD, wgsl=f"const told{n} = 0;\n{add}") for n in range(3))
    session.prepare(replace(plans.chain(), kernels=kernels), progress=lambda *report: events.append(report))
    assert [("Uploading weights", 80, 80)] == [report for report in events if report[0] == "Uploading weights"]
    compiled = [report[1:] for report in events if report[0] == "Compiling kernels"]
    assert compiled == sorted(compiled) and (3, 3) == compiled[-1]
