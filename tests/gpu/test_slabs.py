"""Constants and states in slabs: where each is, which never meet, and when a slab is released."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.gpu import plans

from ptegpu.errors import OutOfMemory, SubmitError
from ptegpu.gpu import Session, SharedConstants
from ptegpu.gpu.recording import Recording
from ptegpu.gpu.slabs import conflicts, layout
from ptegpu.plan.plan import Buffer
from ptegpu.plan.target import Target

X = np.arange(plans.N, dtype=np.float32)
ONES = np.ones(plans.N, np.float32)
P, Q = (np.frombuffer(first.ljust(plans.NBYTES, b"\0"), np.float32) for first in plans.FIRST)
TARGET = Target(max_binding_bytes=1000, max_buffer_bytes=2000)


def places(buffers, apart=None, target=TARGET):
    return [
        [(part.buffer.name, part.offset) for part in parts] for parts in layout(buffers, set(), apart or {}, target)
    ]


def buffers(role, *sizes):
    return [Buffer(f"{role}{k}", nbytes, role, None) for k, nbytes in enumerate(sizes)]


def test_constants_share_a_slab_and_states_another_at_aligned_offsets():
    mixed = [*buffers("constant", 80, 272, 16), *buffers("state", 16, 16), *buffers("temp", 16, 16)]
    expected = [
        [("constant0", 0), ("constant1", 256), ("constant2", 768)],
        [("state0", 0), ("state1", 256)],
        [("temp0", 0)],
        [("temp1", 0)],
    ]
    assert expected == places(mixed)
    interleaved = [mixed[k] for k in (3, 0, 5, 1, 4, 6, 2)]
    assert sorted(expected) == sorted(places(interleaved))


def test_a_slab_can_be_bound_as_a_whole_and_a_larger_constant_is_alone():
    constants = buffers("constant", 512, 1504, 496, 16, 480)
    expected = [[("constant0", 0), ("constant3", 512)], [("constant1", 0)], [("constant2", 0), ("constant4", 512)]]
    assert expected == places(constants, target=replace(TARGET, max_binding_bytes=1007))
    assert [[(f"constant{k}", 0)] for k in range(5)] == places(constants, target=Target(max_buffer_bytes=100))


def test_states_that_must_not_meet_are_in_different_slabs():
    apart = {"state0": {"state1"}, "state1": {"state0", "state2"}, "state2": {"state1"}}
    states = buffers("state", 16, 16, 16, 16)
    assert [[("state0", 0), ("state2", 256), ("state3", 512)], [("state1", 0)]] == places(states, apart)


def test_states_that_a_dispatch_reads_and_writes_conflict():
    apart = {"p": {"q"}, "q": {"p"}}
    assert conflicts(plans.moved(), {"p", "q"}) == conflicts(plans.moved("copy"), {"p", "q"}) == apart
    assert conflicts(plans.summed(), {"p", "q"}) == conflicts(plans.moved(), {"p", "x"}) == {}
    written = replace(plans.ADD, access=("read", "write", "write"))
    plan = replace(plans.moved(), kernels=(written,))  # x is read, and both states are written
    assert {} == conflicts(plan, {"p", "q"})


def test_constants_of_a_plan_are_one_buffer(session, device):
    device.pool.clear()
    before = device.counters.snapshot()
    prepared = session.prepare(plans.weighted("v", "w"))
    assert 2 == device.counters.since(before).buffers_created
    v, w, _ = prepared.buffers
    assert (v.handle, v.offset, w.offset) == (w.handle, 0, 256)
    np.testing.assert_array_equal(2 * X + 100, session.run(prepared, [])[0])
    assert bytes(plans.weighted("v", "w").blobs[1]) == device.read(w, plans.NBYTES)


def test_constants_beyond_the_limit_have_buffers_of_their_own(session, monkeypatch):
    monkeypatch.setattr("ptegpu.gpu.slabs.slab_bytes", lambda target: plans.NBYTES - 1)
    prepared = session.prepare(plans.weighted("v", "w"))
    v, w, _ = prepared.buffers
    assert v.handle is not w.handle
    assert v.slab is w.slab is None
    np.testing.assert_array_equal(2 * X + 100, session.run(prepared, [])[0])


def test_a_slab_is_released_with_its_last_slice(device):
    constants = SharedConstants()
    first, second = Session(device, constants), Session(device, constants)
    v, w, _ = first.prepare(plans.weighted("v", "w")).buffers
    prepared = second.prepare(plans.weighted("v", "u"))
    assert [v, 0] == [prepared.buffers[0], prepared.buffers[1].offset]
    device.trim()
    first.close()
    assert (["u", "v"], 0, 1) == (sorted(constants._buffers), v.owners, w.owners)
    assert 80 == device.pool.nbytes  # the first session's y
    np.testing.assert_array_equal(2 * X + 100, second.run(prepared, [])[0])
    device.trim()
    second.close()
    assert (0, 1, 256 + 80) == (len(constants), v.owners, v.slab.nbytes)
    assert 256 + 80 + 80 + 80 + 1024 == device.pool.nbytes  # the slab, u, the second session's y, its staging


def test_submitted_work_that_uses_a_slice_of_a_destroyed_slab_is_refused(session, device):
    state = session.prepare(plans.summed()).buffers[0]
    session.close()
    device.trim()
    for use in (lambda: device.clear([state]), lambda: device.read(state, 16)):
        with pytest.raises(SubmitError, match="buffer p is destroyed, but submitted work uses it"):
            use()


def test_memory_of_a_slab_counts_once(session, device, monkeypatch):
    monkeypatch.setattr(device, "available_bytes", lambda: 100)
    device.pool.clear()
    with pytest.raises(OutOfMemory, match=f"needs {256 + 80 + 80} more bytes; 100 are available"):
        session.prepare(plans.weighted("v", "w"))


def test_a_prepare_that_fails_during_an_upload_leaves_nothing(device, monkeypatch):
    constants = SharedConstants()
    with Session(device, constants) as session:
        plan = plans.weighted("v", "w")
        device.trim()
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(device, "write", lambda *_: 1 / 0)
            session.prepare(plan)
        assert (0, list(plan.buffers)) == (len(constants), session._store.missing(plan))
        assert 256 + 80 + 80 == device.pool.nbytes  # both are back
        before = device.counters.snapshot()
        prepared = session.prepare(plan)
        assert 0 == device.counters.since(before).buffers_created
        np.testing.assert_array_equal(2 * X + 100, session.run(prepared, [])[0])


def test_states_in_a_slab_start_at_their_first_bytes_and_return_to_them(device):
    for _ in range(2):  # the second time in a slab from the pool
        with Session(device) as session:
            summed = session.prepare(plans.summed())
            p, q, _ = summed.buffers
            assert p.handle is q.handle
            for _ in range(2):
                np.testing.assert_array_equal(P + Q, session.run(summed, [])[0])
                device.write(q, bytes(ONES))
                device.write(p, bytes(X))
                np.testing.assert_array_equal(X + ONES, session.run(summed, [])[0])
                session.reset()


@pytest.mark.parametrize("by", ["dispatch", "copy"])
def test_states_that_meet_in_a_plan(session, by):
    moved = session.prepare(plans.moved(by))
    assert moved.buffers[0].handle is not moved.buffers[1].handle
    x = X if by == "dispatch" else 0 * X
    for _ in range(2):
        np.testing.assert_array_equal(P + x, session.run(moved, [x])[0])
    np.testing.assert_array_equal(P + P + x, session.run(session.prepare(plans.summed()), [])[0])


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize("by", ["dispatch", "copy"])
def test_states_that_meet_in_a_later_plan(session, by, order):
    plan = plans.summed()
    summed = session.prepare(replace(plan, buffers=tuple(plan.buffers[k] for k in order)))
    stored = session.prepare(plans.stored())
    p, q = stored.buffers[:2]
    assert (p.handle, {p.offset, q.offset}) == (q.handle, {0, 256})
    np.testing.assert_array_equal(P + Q, session.run(summed, [])[0])
    held = session.start(stored, [ONES], hold=True)
    moved = session.prepare(plans.moved(by))
    assert (p, q) == tuple(moved.buffers[:2])
    assert p.handle is not q.handle
    for loaded in (summed, stored, moved):
        assert {id(b.handle) for b in loaded.buffers} == {id(b.handle) for b in loaded.touched}
    np.testing.assert_array_equal(ONES, held.result()[0])
    np.testing.assert_array_equal(ONES + Q, session.run(summed, [])[0])
    x = X if by == "dispatch" else 0 * X
    np.testing.assert_array_equal(ONES + x, session.run(moved, [x])[0])
    np.testing.assert_array_equal(ONES + ONES + x, session.run(summed, [])[0])
    session.reset()
    np.testing.assert_array_equal(P + Q, session.run(summed, [])[0])


@pytest.mark.parametrize("later", ["owner", "user"])
def test_states_that_meet_in_a_plan_of_another_session(device, later):
    with Session(device) as owner:
        first = owner.prepare(plans.summed())
        with Session(device, owner=owner) as user:
            second, stored = user.prepare(plans.summed()), user.prepare(plans.stored())
            p, q = second.buffers[:2]
            assert (p, q) == tuple(first.buffers[:2])
            assert p.handle is q.handle
            for session, plan in ((owner, first), (user, second)):
                np.testing.assert_array_equal(P + Q, session.run(plan, [])[0])
            held = user.start(stored, [ONES], hold=True)
            moving = owner if later == "owner" else user
            moved = moving.prepare(plans.moved())
            assert p.handle is not q.handle
            for loaded in (first, second, stored, moved):
                assert {id(b.handle) for b in loaded.buffers} == {id(b.handle) for b in loaded.touched}
            np.testing.assert_array_equal(ONES, held.result()[0])
            np.testing.assert_array_equal(ONES + X, moving.run(moved, [X])[0])
            for session, plan in ((owner, first), (user, second)):
                np.testing.assert_array_equal(ONES + ONES + X, session.run(plan, [])[0])
        assert [owner] == owner.peers
        np.testing.assert_array_equal(ONES + ONES + X, owner.run(first, [])[0])


def test_a_later_plan_whose_states_cannot_be_moved_leaves_the_session_as_it_was(session, device, monkeypatch):
    summed = session.prepare(plans.summed())
    session.run(summed, [])
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(device, "detach", lambda part: 1 / 0)
        session.prepare(plans.moved())
    assert [Buffer("x", plans.NBYTES, "input")] == session._store.missing(plans.moved())
    np.testing.assert_array_equal(P + Q, session.run(summed, [])[0])
    np.testing.assert_array_equal(P + X, session.run(session.prepare(plans.moved()), [X])[0])
    np.testing.assert_array_equal(P + P + X, session.run(summed, [])[0])


def test_a_state_on_the_device_is_read_and_passed_on_from_its_offset(session, device):
    plan = plans.summed()
    summed = session.prepare(plans.giving(plan, plans.f32("p", 0), plans.f32("q", 1)))
    p, q = session.run(summed, [], read=[0])
    assert 256 == q.buffer.offset
    np.testing.assert_array_equal(P, p)
    np.testing.assert_array_equal(Q, q.numpy())
    with Session(device) as other:
        np.testing.assert_array_equal(Q + X, other.run(other.prepare(plans.add()), [q, X])[0])


def test_an_upload_into_a_slice(session, device):
    p, q, _ = session.prepare(plans.summed()).buffers
    recording = Recording(device)
    recording.upload([(q, X)])
    recording.submit()
    assert [bytes(P), bytes(X)] == [device.read(b, plans.NBYTES) for b in (p, q)]


def test_a_dispatch_may_write_two_states_of_a_slab(session):
    kernel = replace(
        plans.ADD,
        wgsl=plans.ADD.wgsl.replace("<storage, read> b", "<storage, read_write> b").replace(
            "y[id.x] = a[id.x] + b[id.x];", "b[id.x] = 2 * a[id.x]; y[id.x] = 3 * a[id.x];"
        ),
        access=("read", "write", "write"),
    )
    plan = replace(plans.moved(), kernels=(kernel,))
    both = plans.giving(plan, plans.f32("p", 0), plans.f32("q", 1))
    prepared = session.prepare(both)
    assert prepared.buffers[0].handle is prepared.buffers[1].handle
    p, q = session.run(prepared, [X])
    np.testing.assert_array_equal([2 * X, 3 * X], [p, q])
