"""Faults at every call of the C library that a run makes: `python -m tools.faults`, with `PTEGPU_ENGINE=dawn` for that
engine.

Before one of these calls the device is destroyed ("lost"), or after it the library reports that memory is full
("full"). The run must raise the error of that name or be right, and the process must survive. The next run, on a new
device after a loss, must be right. `tools/interrupts.py` does the same with interrupts.

wgpu-native aborts the process if a device is lost inside `wgpuQueueSubmit`. ptegpu checks right before that call, so
losses inside it are not tested here.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.gpu import plans

import ptegpu
from ptegpu.errors import DeviceLost, OutOfMemory
from ptegpu.gpu import Device, Session, native, open_device
from ptegpu.gpu.discovery import library

ROOT = Path(__file__).resolve().parents[1]
UNCOUNTED = ("wgpuGetVersion", "wgpuDeviceDestroy")
STEPS = {  # of a run, with the functions of each
    "write": "wgpuQueueWriteBuffer",
    "submit": "wgpuQueueSubmit",
    "map": "wgpuBufferMapAsync",
    "poll": "wgpuDevicePoll wgpuInstanceProcessEvents wgpuQueueOnSubmittedWorkDone",
    "read": "wgpuBufferGetConstMappedRange wgpuBufferGetMappedRange",
    "unmap": "wgpuBufferUnmap",
    "make": "wgpuDeviceCreateBuffer wgpuDeviceCreateBindGroup wgpuDeviceCreateComputePipeline "
    "wgpuDeviceCreateComputePipelineAsync wgpuDeviceCreateShaderModule",
}
X = np.arange(plans.N, dtype=np.float32)


def step_of(name: str) -> str:
    return next((step for step, names in STEPS.items() if name in names.split()), "record")


class Library:
    """The C library, with counted calls, one of which has a fault."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.count = 0
        self.at: int | None = None
        self.fault: Callable[[Callable[[], Any]], Any] = lambda call: call()
        self.hit = ""
        self.skipped: tuple[str, ...] = ()
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.real, name)
        if not callable(function) or name.endswith("Release") or name in UNCOUNTED:
            return function

        def call(*arguments: Any) -> Any:
            self.count += 1
            self.names.append(name)
            if self.count != self.at:
                return function(*arguments)
            if name in self.skipped:
                return function(*arguments)
            self.hit = name
            return self.fault(lambda: function(*arguments))

        return call

    def arm(self, at: int | None, fault: Callable[[Callable[[], Any]], Any]) -> None:
        self.count, self.at, self.fault, self.hit, self.names = 0, at, fault, "", []


class Bench:
    """A device that may be lost, and the works that run on it."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.digits = ptegpu.compile(ROOT / "src" / "ptegpu" / "demo" / "digits.pte")
        self.image = np.random.default_rng(0).random((1, 8, 8), np.float32)
        self.expected: dict[str, Any] = {}
        self.works: dict[str, Callable[[], Any]] = {
            "call": self.call,
            "resident": self.resident,
            "states": self.states,
            "load": self.load,
        }
        self.open()
        for name, work in self.works.items():
            self.expected[name] = work()

    def open(self) -> None:
        self.device: Device = open_device()
        self.session = Session(self.device)
        self.chain, self.add = self.session.prepare(plans.chain(20)), self.session.prepare(plans.add())
        self.total = self.session.prepare(plans.accumulate())

    def call(self) -> Any:
        return self.session.run(self.chain, [X])

    def resident(self) -> Any:
        (y,) = self.session.run(self.add, [X, X], read=[])
        back = y.numpy()
        self.session.reset()
        return [back, *self.session.run(self.total, [X])]

    def states(self) -> Any:
        """Prepare a plan that takes a state of an earlier plan out of its slab."""
        with Session(self.device) as session:
            summed = session.prepare(plans.summed())
            moved = session.prepare(plans.moved())
            results = [*session.run(moved, [X]), *session.run(summed, [])]
            session.reset()
            return [*results, *session.run(summed, [])]

    def load(self) -> Any:
        with ptegpu.load(self.digits) as program:
            return program(self.image)

    def lose(self, call: Callable[[], Any]) -> Any:
        self.library.real.wgpuDeviceDestroy(self.device.api.handle)
        return call()

    def fill(self, call: Callable[[], Any]) -> Any:
        result = call()
        native.reported.errors.append(native.Report(True, "not enough memory left"))
        return result

    def same(self, name: str, results: Any) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(self.expected[name], results, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="test only every N-th call of the library")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print each test before it runs")
    options = parser.parse_args()
    api = library(open_device().info.engine)
    module, counted = sys.modules[api.__module__], Library(api.lib)
    api.lib = module.lib = counted  # type: ignore[attr-defined]
    bench = Bench(counted)
    done: Counter[tuple[str, str, str]] = Counter()
    wrong = 0
    for round_ in range(options.rounds):
        for kind, fault, error in (("lost", bench.lose, DeviceLost), ("full", bench.fill, OutOfMemory)):
            counted.skipped = ("wgpuQueueSubmit",) if kind == "lost" and api.dialect == "naga" else ()
            for name, work in bench.works.items():
                counted.arm(None, fault)
                work()
                for at in range(1 + round_ % options.every, counted.count + 1, options.every):
                    counted.arm(at, fault)
                    if options.verbose:
                        print(kind, name, at, flush=True)
                    try:
                        results = work()
                        outcome = "right" if bench.same(name, results) else "wrong"
                    except error:
                        outcome = error.__name__
                    except Exception as other:
                        outcome = f"wrong: {other!r}"
                    hit = counted.hit
                    counted.arm(None, fault)
                    if not hit:
                        continue
                    if "wrong" in outcome:
                        wrong += 1
                        print(f"{kind} {name} {at} {hit}: {outcome}", flush=True)
                    if kind == "lost":
                        bench.session.close()
                        bench.open()
                    if not all(bench.same(n, w()) for n, w in bench.works.items()):
                        wrong += 1
                        print(f"{kind} {name} {at} {hit}: the next run is wrong", flush=True)
                    done[kind, step_of(hit), outcome.split(":")[0]] += 1
    gc.collect()
    for (kind, step, outcome), times in sorted(done.items()):
        print(f"{kind:5} {step:7} {outcome:12} {times:5}")
    print(f"{bench.device.info.engine}: {sum(done.values())} faults, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
