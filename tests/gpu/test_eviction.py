"""Plans that are released, and plans that make room for others: what is pending or on the device stays right."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from tests.gpu import plans

import ptegpu
from ptegpu.errors import DeviceError, InvalidInput
from ptegpu.gpu import Counters, Device, Session, native
from ptegpu.runtime import engine

DATA = Path(__file__).resolve().parents[1] / "data"
X = np.arange(plans.N, dtype=np.float32)
STALE = "this device tensor is from an earlier run: read it or pass it on before the next one"


@pytest.fixture
def program() -> ptegpu.Program:
    return ptegpu.load(DATA / "dynamic.pte", [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"])


def tokens(length: int) -> np.ndarray:
    return np.arange(length)[None] % 11


def test_an_output_in_a_buffer_that_other_plans_have_outlives_its_plan(session: Session) -> None:
    double, triple = (session.prepare(plans.scale((factor,), f"params{factor}")) for factor in (2.0, 3.0))
    (y,) = session.run(double, [X], read=[])
    session.release(double)
    np.testing.assert_array_equal(2 * X, y.numpy())
    np.testing.assert_array_equal(6 * X, session.run(triple, [y])[0])


def test_an_output_outlives_the_release_of_another_plan(session: Session) -> None:
    add, chain = session.prepare(plans.add()), session.prepare(plans.chain())
    (y,) = session.run(add, [X, X], read=[])
    session.release(chain)
    np.testing.assert_array_equal(3 * X, session.run(add, [y, X])[0])


def test_an_output_whose_buffer_goes_with_its_plan_is_refused(session: Session) -> None:
    add = session.prepare(plans.add())
    (y,) = session.run(add, [X, X], read=[])
    session.release(add)
    with pytest.raises(InvalidInput, match=STALE):
        y.numpy()
    again = session.prepare(plans.add())  # takes the same buffer from the pool, and clears it
    with pytest.raises(InvalidInput, match=STALE):
        session.run(again, [y, X])


def test_a_run_that_is_pending_outlives_its_plan(session: Session) -> None:
    add, scale = session.prepare(plans.add()), session.prepare(plans.scale())
    pending = session.start(add, [X, X])
    session.release(add)
    np.testing.assert_array_equal(3 * X, session.run(scale, [X])[0])
    np.testing.assert_array_equal(2 * X, pending.result()[0])
    with pytest.raises(DeviceError) as caught:
        session.start(add, [X, X])
    assert "plan add was prepared by another session, or released" == str(caught.value)


def test_shapes_come_back_after_their_plans_are_gone(program: ptegpu.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with program:
        expected = {n: program(tokens(n)) for n in range(2, 9)}
        monkeypatch.setattr(engine, "MAX_PLANS", 2)
        for n in (8, 2, 3, 4, 2, 8, 8, 5, 7, 6, 2):
            for want, got in zip(expected[n], program(tokens(n)), strict=True):
                np.testing.assert_array_equal(want, got)
        assert {2} == {len(e.plans) for e in program.method("forward")._method.engines.values() if e.joined.dynamic}


def test_200_shapes_keep_nothing(program: ptegpu.Program, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_PLANS", 3)

    def shapes(count: int) -> tuple[dict[str, int], Counters]:
        before = device.counters.snapshot()
        for n in range(count):
            program(tokens(2 + n % 7))
        gc.collect()
        return native.object_counts(), device.counters.since(before)

    with program:
        shapes(14)
        few, _ = shapes(14)
        many, made = shapes(200)
        assert (few, 0, 0) == (many, made.buffers_created, made.pipelines_created)
        assert made.bind_groups_created >= 200  # each came back as a new plan
