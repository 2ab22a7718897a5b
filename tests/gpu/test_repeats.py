"""Runs that gave up are repeated as dispatches, with those after them. A recording that leaves dispatches out stands in
for merged dispatches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu.plans import N, accumulate, add, chain

import ptegpu
from ptegpu.errors import DeviceError
from ptegpu.gpu import Device, Session, open_device, repeats, residency
from ptegpu.gpu.loaded import LoadedPlan, RecordedSteps
from ptegpu.gpu.readback import Pending
from ptegpu.gpu.recorder import Steps
from ptegpu.gpu.recording import Recording
from ptegpu.models.text import BatchEngine, LanguageModel

X, W = np.arange(N, dtype=np.float32), np.linspace(1, 2, N, dtype=np.float32)
DEMO = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
RUNS = 6


class Merged:
    """Makes all runs of a device wait, and one of them give up after some of its dispatches."""

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.runs, self.gives_up, self.stages = device, 0, -1, 0
        self._failed = False
        device.arrivals = device.buffer("arrivals", 16, "storage")
        device.clear([device.arrivals])
        self._gave_up = device.buffer("gave up", 16, "storage")
        device.write(self._gave_up, np.array([repeats.GAVE_UP, 0, 0, 0], np.int32).data)
        resolve, compute = LoadedPlan._resolve, Recording.compute

        def waiting(loaded: LoadedPlan, *arguments: Any) -> RecordedSteps:
            recorded = resolve(loaded, *arguments)
            recorded.waits = loaded.device is device
            return recorded

        def leaving_out(recording: Recording, steps: Steps, timer: Any) -> None:
            if recording._device is device and device.resident:
                if self.runs == self.gives_up:
                    self._failed = True
                    assert device.arrivals is not None
                    recording.touch([self._gave_up, device.arrivals])
                    recording.copy(self._gave_up, device.arrivals, 16)
                    steps = Steps(*(column[: self.stages] for column in steps))
                elif self._failed:
                    steps = Steps([], [], [], [])
                self.runs += 1
            compute(recording, steps, timer)

        monkeypatch.setattr(LoadedPlan, "_resolve", waiting)
        monkeypatch.setattr(Recording, "compute", leaving_out)

    def check_repeated(self) -> None:
        assert (self.device.resident, self.device.arrivals, len(self.device.in_flight)) == (0, None, 0)
        assert residency.verdict(self.device).reason.startswith("a run gave up: workgroups of plan ")


@pytest.fixture(autouse=True)
def everything_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge short runs, and stages with many groups for the only workgroup."""
    monkeypatch.setattr("ptegpu.gpu.sections.FEWEST", 3)
    monkeypatch.setattr("ptegpu.gpu.persistent.MOST_GROUPS", 1 << 20)


@pytest.fixture
def merged(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Merged]:
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    monkeypatch.setattr(residency, "_saved", {})
    opened = open_device(device.info.index, persistent="on")
    with monkeypatch.context() as patch:
        yield Merged(opened, patch)
    opened.destroy()


def chained(session: Session, hold: bool = False) -> list[Pending]:
    """Start runs that each add to the output of the one before."""
    loaded = session.prepare(add())
    w = W.copy()
    runs = [session.start(loaded, [X, w], hold=hold)]
    for _ in range(RUNS - 1):
        runs.append(session.start(loaded, [runs[-1].outputs[0], w], hold=hold))
    w[:] = -7  # a caller may reuse its arrays
    return runs


def sums() -> list[np.ndarray]:
    results = [X + W]
    while len(results) < RUNS:
        results.append(results[-1] + W)
    return results


@pytest.mark.parametrize("hold", [False, True], ids=["submitted", "held"])
@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "last first"])
@pytest.mark.parametrize("gives_up, stages", [(-1, 0), (0, 0), (2, 0), (2, 1), (RUNS - 1, 1)])
def test_runs_in_flight(gives_up: int, stages: int, backwards: bool, hold: bool, merged: Merged) -> None:
    merged.gives_up, merged.stages = gives_up, stages
    with Session(merged.device) as session:
        runs = chained(session, hold)
        for run, expected in list(zip(runs, sums()))[:: -1 if backwards else 1]:
            np.testing.assert_array_equal(run.result()[0], expected)
        if gives_up >= 0:
            merged.check_repeated()
        assert (merged.device.resident, len(merged.device.in_flight)) == (int(gives_up < 0), 0)
        again = session.run(session._loaded[0], [X, W])
        np.testing.assert_array_equal(again[0], X + W)


@pytest.mark.parametrize("stages", [0, 1])
def test_an_input_from_a_run_of_dispatches(stages: int, merged: Merged) -> None:
    merged.gives_up, merged.stages = 1, stages
    with Session(merged.device) as session:
        loaded = session.prepare(add())
        run = session.resolve(loaded, [X, W])
        run.recorded.waits = False
        first = session.start(loaded, [X, W], run=run)
        run.recorded.waits = True
        second = session.start(loaded, [first.outputs[0], W])
        np.testing.assert_array_equal(second.result()[0], X + W + W)
        merged.check_repeated()


def test_results_that_were_left(merged: Merged) -> None:
    merged.gives_up = 2
    with Session(merged.device) as session:
        *left, last = chained(session)
        for run in left:
            run.discard()
        np.testing.assert_array_equal(last.result()[0], sums()[-1])


def test_an_output_on_the_device(merged: Merged) -> None:
    merged.gives_up = 2
    with Session(merged.device) as session:
        np.testing.assert_array_equal(chained(session)[-1].outputs[0].numpy(), sums()[-1])
        merged.check_repeated()


@pytest.mark.parametrize("stages", range(3))
def test_a_part_of_a_run(stages: int, merged: Merged) -> None:
    merged.gives_up, merged.stages = 1, stages
    with Session(merged.device) as session:
        loaded = session.prepare(chain(3))
        runs = [session.start(loaded, [X + k]) for k in range(3)]
        for k, run in enumerate(runs):
            before, last = run.result()
            np.testing.assert_array_equal(before, X + k + 2 * np.arange(N, dtype=np.float32))
            np.testing.assert_array_equal(last, X + k + 3 * np.arange(N, dtype=np.float32))


def interrupt(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a repetition behind the submit of this run."""
    repeat, numbers = Session.repeat, iter(range(100))

    def interrupted(session: Session, flight: Any, restore: bool) -> Pending:
        pending = repeat(session, flight, restore)
        if next(numbers) == number:
            raise KeyboardInterrupt
        return pending

    monkeypatch.setattr(Session, "repeat", interrupted)


@pytest.mark.parametrize("gives_up, stages, interrupted", [(0, 0, -1), (1, 1, -1), (3, 0, -1), (1, 0, 0), (1, 1, 2)])
def test_a_small_state(
    gives_up: int, stages: int, interrupted: int, merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy at the end of a run writes wrong values, even in runs that left out their dispatches."""
    merged.gives_up, merged.stages = gives_up, stages
    with Session(merged.device) as session:
        loaded = session.prepare(accumulate())
        runs = [session.start(loaded, [X * k]) for k in range(4)]
        if interrupted >= 0:
            with monkeypatch.context() as patch:
                interrupt(interrupted, patch)
                with pytest.raises(KeyboardInterrupt):
                    runs[-1].result()
            runs.append(session.start(loaded, [X * 4]))
        totals = [run.result()[0] for run in runs]
        for k, total in enumerate(totals):
            np.testing.assert_array_equal(total, X * sum(range(k + 1)))
        merged.check_repeated()
        assert not any(f.inputs or f._saved for f in (run.in_flight for run in runs) if f)


def test_a_reset_comes_after_the_repetition(merged: Merged) -> None:
    merged.gives_up = 1
    with Session(merged.device) as session:
        loaded = session.prepare(accumulate())
        runs = [session.start(loaded, [X * k]) for k in range(1, 4)]
        session.reset()
        merged.check_repeated()
        np.testing.assert_array_equal(session.run(loaded, [X])[0], X)
        np.testing.assert_array_equal(runs[-1].result()[0], X * 6)


def test_runs_without_a_readback_do_not_pile_up(merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST", 4)
    merged.gives_up = 10
    with Session(merged.device) as session:
        loaded = session.prepare(accumulate())
        for _ in range(20):
            session.start(loaded, [X], read=[])
            assert len(merged.device.in_flight) <= 4
        merged.check_repeated()
        np.testing.assert_array_equal(session.run(loaded, [X])[0], X * 21)


def test_sessions(merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only runs that may have used wrong values are repeated: not those of a session whose runs never wait."""
    repeated: list[str] = []
    repeat = Session.repeat

    def noting(session: Session, flight: Any, restore: bool) -> Pending:
        repeated.append(names[session])
        return repeat(session, flight, restore)

    monkeypatch.setattr(Session, "repeat", noting)
    merged.gives_up = 1
    with Session(merged.device) as first, Session(merged.device) as second, Session(merged.device) as third:
        names = {first: "first", second: "second", third: "third"}
        one, two, three = first.prepare(add()), second.prepare(add()), third.prepare(accumulate())
        a = first.start(one, [X, W])
        b = first.start(one, [a.outputs[0], W])
        run = three.resolve([X])
        run.recorded.waits = False
        merged.device.resident = 0  # for a moment: its dispatches are ordinary ones
        c = third.start(three, [X], run=run)
        merged.device.resident = 1
        d = second.start(two, [b.outputs[0], W])
        np.testing.assert_array_equal(d.result()[0], X + W + W + W)
        np.testing.assert_array_equal(a.result()[0], X + W)
        np.testing.assert_array_equal(b.result()[0], X + W + W)
        np.testing.assert_array_equal(c.result()[0], X)
        assert repeated == ["first", "first", "second"]


@pytest.mark.parametrize("gives_up, waiting", [(0, True), (1, True), (0, False)])
def test_sessions_with_the_same_states(gives_up: int, waiting: bool, merged: Merged) -> None:
    """The states are those before the first run only once, and a run that never waits is repeated too."""
    merged.gives_up = gives_up
    with Session(merged.device) as owner:
        first = owner.prepare(accumulate())
        with Session(merged.device, owner=owner) as user:
            second = user.prepare(accumulate())
            sessions = [(owner, first), (user, second)] * 2
            runs = []
            for k, (session, loaded) in enumerate(sessions):
                run = session.resolve(loaded, [X])
                run.recorded.waits = waiting or k % 2 == 0
                runs.append(session.start(loaded, [X + k], run=run))
            for total, run in zip(np.cumsum([X + k for k in range(4)], axis=0), runs):
                np.testing.assert_array_equal(run.result()[0], total)
            merged.check_repeated()


def test_an_input_that_is_lost(merged: Merged) -> None:
    """The output of a right run was not read, and a later run may have overwritten it."""
    merged.gives_up = 1
    with Session(merged.device) as session:
        loaded = session.prepare(add())
        a = session.start(loaded, [X, W], read=[])
        a.outputs[0].numpy()  # it is right
        b = session.start(loaded, [a.outputs[0], W])
        c = session.start(loaded, [b.outputs[0], W])
        for run in (b, c):
            with pytest.raises(DeviceError, match="call the method again"):
                run.result()
        np.testing.assert_array_equal(session.run(loaded, [X, W])[0], X + W)


def test_nothing_leaks(merged: Merged) -> None:
    with Session(merged.device) as session:
        chained(session)[-1].result()
        loaded = session.prepare(accumulate())
        session.run(loaded, [X])
        before = merged.device.counters.buffers_created
        for _ in range(50):
            session.start(loaded, [X]).result()
        assert merged.device.counters.buffers_created == before


@pytest.mark.parametrize("gives_up", [3, 9])
def test_a_language_model(gives_up: int, merged: Merged) -> None:
    with LanguageModel(DEMO, device="auto") as model:
        expected = model.generate("Once", max_tokens=16, temperature=0.8, seed=5).text
    merged.gives_up = gives_up
    with LanguageModel(DEMO, device=merged.device) as model:
        text = model.generate("Once", max_tokens=16, temperature=0.8, seed=5).text
    merged.check_repeated()
    assert text == expected


@pytest.mark.parametrize("gives_up", [4, 11])
def test_many_sequences(gives_up: int, merged: Merged) -> None:
    prompts = ["Once upon a time", "The", "A small dog ran to"]

    def texts(device: Any) -> list[str]:
        with BatchEngine(DEMO, device, sequences=4, rows=20) as engine:
            handles = [engine.submit(p, {"max_tokens": 12 + k}) for k, p in enumerate(prompts)]
            return [handle.wait().text for handle in handles]

    expected = texts("auto")
    merged.gives_up = gives_up
    assert texts(merged.device) == expected
    merged.check_repeated()
