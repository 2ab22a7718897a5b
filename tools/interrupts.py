"""Interrupts at every possible place: `python -m tools.interrupts`, with `PTEGPU_ENGINE=dawn` for that engine.

Python runs a signal's handler in the main thread: when a function begins, after a call, and at the end of an iteration.
The work is traced once to find all such places. Then it runs once for each of them with `KeyboardInterrupt` raised
there, also in callbacks and finalizers. The caller must get the interrupt, nothing may be printed, the next call must
be right, and no object may be left in the end. `--random N` sends real signals at random moments instead.
"""

from __future__ import annotations

import argparse
import dis
import faulthandler
import gc
import inspect
import os
import random
import signal
import sys
import time
import traceback
from _thread import interrupt_main
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from tests.gpu import plans

import ptegpu
from ptegpu.gpu import Device, Session, open_device
from ptegpu.models.text.model import LanguageModel
from ptegpu.plan.plan import Kernel

ROOT = Path(__file__).resolve().parents[1]
DATA, DEMO = ROOT / "tests" / "data", ROOT / "src" / "ptegpu" / "demo"
PURE = tuple(str(ROOT / "src" / "ptegpu" / name) for name in ("compiler", "format", "graph", "kernels", "ops", "plan"))
LOOKS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}  # instructions that check for signals
PATIENCE = 60  # seconds until a hang is reported
LATE = 1.0  # seconds
X = np.arange(plans.N, dtype=np.float32)


class Place(NamedTuple):
    """A place where Python checks for signals, with its caller."""

    code: CodeType
    at: int
    caller: CodeType | None
    caller_at: int

    def __str__(self) -> str:
        def name(code: CodeType | None, at: int) -> str:
            if code is None:
                return "C"
            line = next((n for first, end, n in code.co_lines() if first <= at < end), 0)
            return f"{Path(code.co_filename).name}:{line} {code.co_name}+{at}"

        return f"{name(self.code, self.at)} < {name(self.caller, self.caller_at)}"


class Tracer:
    """A tracer that counts the places passed, and signals at the n-th pass of one, where Python handles it at once."""

    def __init__(self, target: Place | None = None, nth: int = 1) -> None:
        self.passes: Counter[Place] = Counter()
        self.raised = 0.0
        self._target, self._nth = target, nth

    def trace(self, frame: FrameType, _event: str, _: Any) -> Any:
        """Trace the opcodes of a function that begins."""
        code = frame.f_code
        if code.co_filename.startswith(PURE) or code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        caller, looks = frame.f_back, looks_of(code)
        called_by = (None, 0) if caller is None else (caller.f_code, caller.f_lasti)

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode" and frame.f_lasti in looks and self._pass(Place(code, frame.f_lasti, *called_by)):
                for _ in map(interrupt_main, (signal.SIGINT,)):  # without a call, which would check for signals
                    return local
            return local

        resumed = bool(code.co_flags & inspect.CO_GENERATOR)  # or closed, which does not check for signals
        if not resumed and self._pass(Place(code, -1, *called_by)):
            for _ in map(interrupt_main, (signal.SIGINT,)):
                return local
        return local

    def _pass(self, place: Place) -> bool:
        self.passes[place] += 1
        return place == self._target and self.passes[place] == self._nth

    def handle(self, *_: object) -> None:
        sys.settrace(None)
        self.raised = time.perf_counter()
        raise KeyboardInterrupt

    def during(self, work: Callable[[], Any]) -> bool:
        """Run the work, and return whether it was interrupted."""
        signal.signal(signal.SIGINT, self.handle)
        sys.settrace(self.trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False


@cache
def looks_of(code: CodeType) -> frozenset[int]:
    """Return the instructions at which Python checks for signals."""
    return frozenset(i.offset for i in dis.get_instructions(code) if i.opname in LOOKS or "BACKWARD" in i.opname)


class Works:
    """The works to interrupt. Each returns a result that must be the same the next time."""

    def __init__(self) -> None:
        self.device: Device = open_device()
        self.image = np.random.default_rng(0).random((1, 8, 8), np.float32)
        self.digits = ptegpu.compile(DEMO / "digits.pte")
        self.model: LanguageModel | None = None
        self.session = Session(self.device)
        works = (plans.chain(20), plans.add(), plans.fill(1000, (4, 4)), plans.accumulate())
        self.plans = [self.session.prepare(plan) for plan in works]
        self.numbers = count()
        self.dynamic: Any = None

    def before(self, name: str) -> None:
        """Prepare a work, without interrupts."""
        if name == "lost":
            self.other = open_device(subgroups=False)
            self.on_other = Session(self.other)
            self.add = self.on_other.prepare(plans.add())

    def load(self) -> Any:
        """Load, call and close a bundle."""
        with ptegpu.load(self.digits) as program:
            return program(self.image)

    def plan(self) -> Any:
        """Load, call and close a program from its file."""
        with ptegpu.load(DEMO / "digits.pte") as program:
            return program(self.image)

    def call(self) -> Any:
        """Run plans with constants, results that stay on the device, numbers and state, and some in one batch."""
        chain, add, fill, total = self.plans
        numbers = [next(self.numbers) for _ in range(3)]
        first = self.session.run(chain, [X])
        (y,) = self.session.run(add, [X, X], read=[])
        second = self.session.run(add, [y, X])
        pending = [self.session.start(fill, [n], hold=True) for n in numbers]
        filled = [p.result()[0] - n for p, n in zip(pending, numbers, strict=True)]
        (sums,) = self.session.run(total, [X])
        return [*first, *second, *filled, np.array_equal(sums, round(sums[1]) * X)]

    def shapes(self) -> Any:
        """Call a program for any length at several lengths."""
        if self.dynamic is None:
            self.dynamic = ptegpu.load(DATA / "dynamic.pte", [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"])
        return [y for n in (3, 5) for y in self.dynamic(np.arange(n)[None] % 11)]

    def reset(self) -> Any:
        """Run and reset a session with state."""
        with Session(self.device) as session:
            total = session.prepare(plans.accumulate())
            session.run(total, [X])
            session.reset()
            return session.run(total, [X])

    def states(self) -> Any:
        """Prepare a plan that takes a state of an earlier plan out of its slab."""
        with Session(self.device) as session:
            summed = session.prepare(plans.summed())
            moved = session.prepare(plans.moved())
            results = [*session.run(moved, [X]), *session.run(summed, [])]
            session.reset()
            return [*results, *session.run(summed, [])]

    def generate(self) -> Any:
        if self.model is None:
            self.model = LanguageModel(DEMO / "tales.pte")
        return [np.array(self.model.generate("Once upon a time", max_tokens=4, temperature=0).tokens)]

    def open(self) -> Any:
        """Open another device, and do its first work."""
        other = open_device(subgroups=False)
        try:
            with Session(other) as session:
                return session.run(session.prepare(plans.add()), [X, X])
        finally:
            other.destroy()

    def error(self) -> Any:
        """Cause errors that arrive in callbacks: kernels that do not compile, and a buffer that is refused."""
        messages = []
        for number in (1, 2):
            try:
                self.device.pipelines([Kernel(f"bad{k}", "fn main() {", ("read",), k + 1) for k in range(number)])
            except ptegpu.KernelError as error:
                messages.append(str(error))
        try:
            self.device.api.buffer("refused", 16, 0)
        except ptegpu.DeviceError as error:
            messages.append(str(error))
        return messages

    def lost(self) -> Any:
        """Use a device after it was destroyed."""
        self.other.api.lib.wgpuDeviceDestroy(self.other.api.handle)
        try:
            self.on_other.run(self.add, [X, X])
        except ptegpu.DeviceLost as error:
            return [str(error)]
        return []

    def counts(self) -> dict[str, int]:
        self.other, self.on_other, self.add = None, None, None  # type: ignore[assignment]
        gc.collect()
        self.device.trim()
        self.device.wait()
        gc.collect()
        return self.device.api.object_counts()


NAMES = ("call", "load", "plan", "shapes", "reset", "states", "generate", "open", "error", "lost")


def equal(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


class Report:
    """The faults of all works, each with the place of its interrupt."""

    def __init__(self) -> None:
        self.interrupts, self.missed, self.slowest = 0, 0, 0.0
        self.faults: list[str] = []
        self.unheard: list[str] = []
        sys.unraisablehook = lambda args: self.unheard.append(f"{args.exc_type.__name__} in {args.object!r}")

    def fault(self, what: str) -> None:
        self.faults.append(what)
        print(what, flush=True)


def everywhere(works: Works, name: str, report: Report, every: int, first: int) -> None:
    work = getattr(works, name)
    for _ in range(2):
        works.before(name)
        expected = work()
    works.before(name)
    passed = Tracer()
    assert not passed.during(work)
    before = works.counts()
    targets = [(place, nth) for place, passes in passed.passes.items() for nth in dict.fromkeys((1, passes))]
    for place, nth in targets[first::every]:
        what = f"{name}: {place} ({nth})"
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        if VERBOSE:
            print(what, flush=True)
        works.before(name)
        tracer = Tracer(place, nth)
        heard = tracer.during(work)
        late = time.perf_counter() - tracer.raised
        if not tracer.raised:
            report.missed += 1
            continue
        report.interrupts += 1
        report.slowest = max(report.slowest, late)
        if not heard:
            report.fault(f"{what}: lost {report.unheard}")
        elif report.unheard:
            report.fault(f"{what}: printed {report.unheard}")
        elif late > LATE:
            report.fault(f"{what}: took {late:.1f} s")
        report.unheard.clear()
        works.before(name)
        if not equal(expected, work()):
            report.fault(f"{what}: the next call is wrong")
    faulthandler.cancel_dump_traceback_later()
    left = {kind: n - before.get(kind, 0) for kind, n in works.counts().items() if n != before.get(kind, 0)}
    if left:
        report.fault(f"{name}: left {left}")
    print(f"{name}: {len(targets)} places", flush=True)


def at_random(works: Works, name: str, report: Report, count: int, seed: int) -> None:
    work = getattr(works, name)
    works.before(name)
    expected = work()
    began = time.perf_counter()
    works.before(name)
    work()
    longest = 2 * (time.perf_counter() - began)
    before, chosen = works.counts(), random.Random(f"{seed} {name}")
    raised = late = 0.0
    where: list[str] = []

    def handle(_: int, frame: FrameType | None) -> None:
        nonlocal raised
        raised = time.perf_counter()
        where[:] = traceback.format_stack(frame)[-6:]
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handle)
    for number in range(count):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            works.before(name)
            signal.setitimer(signal.ITIMER_REAL, chosen.uniform(1e-5, longest))
            raised = 0.0
            while not raised:
                work()
            report.fault(f"{name}: number {number} was lost {report.unheard}: {where}")
        except KeyboardInterrupt:
            late = time.perf_counter() - raised
        report.interrupts += 1
        report.slowest = max(report.slowest, late)
        if late > LATE:
            report.fault(f"{name}: number {number} took {late:.1f} s")
        if report.unheard:
            report.fault(f"{name}: number {number} printed {report.unheard}")
            report.unheard.clear()
        works.before(name)
        if not equal(expected, work()):
            report.fault(f"{name}: number {number}: the next call is wrong")
    faulthandler.cancel_dump_traceback_later()
    left = {kind: n - before.get(kind, 0) for kind, n in works.counts().items() if n != before.get(kind, 0)}
    if left:
        report.fault(f"{name}: left {left}")


VERBOSE = bool(os.environ.get("VERBOSE"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.interrupts", description=__doc__)
    parser.add_argument("works", nargs="*", default=NAMES, metavar="WORK", help=f"of {', '.join(NAMES)}; all of them")
    parser.add_argument("--every", type=int, default=1, help="test only every N-th place")
    parser.add_argument("--first", type=int, default=0, help="the first place")
    parser.add_argument("--random", type=int, metavar="N", help="send N signals at random moments of each instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    works, report = Works(), Report()
    for name in options.works:
        if options.random:
            at_random(works, name, report, options.random, options.seed)
        else:
            everywhere(works, name, report, options.every, options.first)
    engine, faults = works.device.info.engine, len(report.faults)
    print(
        f"{engine}: {report.interrupts} interrupts, {faults} faults, slowest {report.slowest:.2f} s,"
        f" {report.missed} places not reached again"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
