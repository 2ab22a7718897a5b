"""Signal handlers that raise, wherever they come: the exception arrives at once, the next call is right, nothing leaks.

Each test runs in a process of its own, which must end by itself and say nothing on stderr: what is raised in a callback
or a finalizer would be printed there, and lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100  # that a hang is given; the tests take a few

START = """
import gc, os, random, signal, sys, threading, time
from dataclasses import replace
import numpy as np
import ptegpu
from ptegpu.gpu import Session, loads, open_device
from ptegpu.plan.plan import Kernel
from tests.gpu import plans

X = np.arange(plans.N, dtype=np.float32)
device = open_device()

def counts():
    gc.collect()
    device.trim()
    return device.api.object_counts()
"""

SLOW = """
from _cffi_backend import callback

def slow(turns):
    plan = loads.arithmetic(device.target, groups=64, turns=turns)
    return session.prepare(plans.giving(replace(plan, name=f"slow{turns}"), plans.f32("y", 1, (4,))))

def busy(api, handle, queue):
    if api.dialect == "naga":
        return not api.lib.wgpuDevicePoll(handle, 0, api.ffi.NULL) & 1
    answer = []
    called = callback(api.ffi.typeof("void (*)(uint32_t)"), answer.append, None, None)
    info = api.ffi.new("WGPUQueueWorkDoneCallbackInfo *")
    info.mode = api.lib.WGPUCallbackMode_AllowProcessEvents
    info.callback = api.ffi.cast("WGPUQueueWorkDoneCallback", called)
    asked.append(called)
    api.lib.wgpuQueueOnSubmittedWorkDone(queue, info[0])
    api.poll(None)
    return not answer

asked = []

session = Session(device)
turns, seconds = 1 if device.info.type == "software" else 100, 0.0
while seconds < 0.5:
    turns *= 2
    load = slow(turns)
    began = time.perf_counter()
    (expected,) = session.run(load, [])
    seconds = time.perf_counter() - began
"""

# A run that takes a while, interrupted when it has begun: the process is in the library then, so that Python runs the
# signal's handler in the first Python code after that, be it a callback's.
DURING_A_RUN = (
    SLOW
    + """
other = Session(device)
add = other.prepare(plans.add())
other.run(add, [X, X])
before = counts()
for wait in (device.wait, lambda: other.run(add, [X, X]), lambda: pending.result()):
    pending = session.start(load, [])
    threading.Timer(seconds / 5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
        print("not interrupted")
    except KeyboardInterrupt:
        early = busy(type(device.api), device.api.handle, device.api.queue)
        print("interrupted", "during the run" if early else "after the run")
    print(np.array_equal(other.run(add, [X, X])[0], X + X), np.array_equal(pending.result()[0], expected))
del pending
print(before == counts())
"""
)

WHEN_THE_PROCESS_ENDS = (
    SLOW
    + """
from ptegpu.gpu import device as module
pending = session.start(load, [])
api, ffi = type(device.api), device.api.ffi
handle, queue = ffi.cast("WGPUDevice", device.api.handle), ffi.cast("WGPUQueue", device.api.queue)
module._leave()
module._devices.clear()
del device, session, load, pending
gc.collect()
print(busy(api, handle, queue))
"""
)

# What a signal's handler raises in the first line of a callback, delivered exactly there.
IN_A_CALLBACK = """
def deliver(frame, event, argument):
    if event == "call" and frame.f_code.co_name in sys.argv[1].split():
        sys.settrace(None)
        raise KeyboardInterrupt

def interrupted(work):
    sys.settrace(deliver)
    try:
        work()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)

session = Session(device)
add = session.prepare(plans.add())
bad = Kernel("bad", "fn main() {", ("read",), 1)
"""

IN_AN_ERROR = (
    IN_A_CALLBACK
    + """
print(interrupted(lambda: device.pipeline(bad)))
try:
    device.pipeline(bad)
except ptegpu.KernelError as error:
    print(str(error).partition(":")[0])
print(np.array_equal(session.run(add, [X, X])[0], X + X))
"""
)

WHEN_A_DEVICE_OPENS = (
    IN_A_CALLBACK
    + """
before = counts()
print(interrupted(lambda: open_device(subgroups=False)))
print(before == counts())
with Session(open_device(subgroups=False)) as other:
    print(np.array_equal(other.run(other.prepare(plans.add()), [X, X])[0], X + X))
"""
)

AT_RANDOM = """
class Interrupts:
    '''Raises KeyboardInterrupt somewhere in the work, again and again.'''

    def __init__(self, longest):
        self.random, self.longest, self.slowest = random.Random(0), longest, 0.0
        signal.signal(signal.SIGALRM, self.handle)

    def handle(self, *_):
        self.began = time.thread_time()
        raise KeyboardInterrupt

    def during(self, work):
        try:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, self.longest), 3)
            while True:
                work()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.slowest = max(self.slowest, time.thread_time() - self.began)

def report(interrupts, before):
    print("right:", right, "slow:", interrupts.slowest > 1, "leaked:", {
        kind: n - before[kind] for kind, n in counts().items() if n != before[kind]
    })
"""

CALLS = (
    AT_RANDOM
    + """
def work():
    session.run(chain, [X])
    (y,) = session.run(add, [X, X], read=[])
    session.run(add, [y, X], read=[])[0].numpy()
    session.run(total, [X])
    session.run(fill, [next(numbers)])

session = Session(device)
chain, add, total = session.prepare(plans.chain(20)), session.prepare(plans.add()), session.prepare(plans.accumulate())
fill = session.prepare(plans.fill(1000, (4, 4)))
numbers = iter(range(1, 1 << 30))
session.run(chain, [X]), session.run(add, [X, X], read=[])[0].numpy(), session.run(fill, [0])
before, interrupts, right = counts(), Interrupts(0.02), 0
for _ in range(100):
    interrupts.during(work)
    number = next(numbers)
    right += (
        np.array_equal(session.run(chain, [X])[1], X + 20 * X)
        and np.array_equal(session.run(fill, [number])[0], np.arange(1000) + number)
        and np.array_equal(session.run(fill, [7])[0], np.arange(1000) + 7)
        and np.array_equal((sums := session.run(total, [X])[0]), round(sums[1]) * X)
    )
report(interrupts, before)
"""
)

SHAPES = (
    AT_RANDOM
    + """
program = ptegpu.load("tests/data/dynamic.pte", ["tests/data/dynamic-0.ptd", "tests/data/dynamic-1.ptd"])
given = [np.arange(n)[None] % 11 for n in range(2, 8)]
expected = [program(x) for x in given]
chosen = random.Random(1)
before, interrupts, right = counts(), Interrupts(0.05), 0
for _ in range(100):
    interrupts.during(lambda: program(chosen.choice(given)))
    k = chosen.randrange(len(given))
    right += all(np.array_equal(a, b) for a, b in zip(expected[k], program(given[k])))
for x in given:
    program(x)
program.close()
with ptegpu.load("tests/data/dynamic.pte", ["tests/data/dynamic-0.ptd", "tests/data/dynamic-1.ptd"]) as program:
    for x in given:
        program(x)
    report(interrupts, before)
"""
)

LOADS = (
    AT_RANDOM
    + """
def work():
    with ptegpu.load("src/ptegpu/demo/digits.pte") as program:
        return program(image)

image = np.random.default_rng(0).random((1, 8, 8), np.float32)
expected = work()
work()
before, interrupts, right = counts(), Interrupts(0.06), 0
for _ in range(100):
    interrupts.during(work)
    right += np.array_equal(expected, work())
report(interrupts, before)
"""
)


def run(script: str, *arguments: str, lossy: bool = False) -> list[str]:
    """What it prints. If it is `lossy`, Python may have ignored an exception in a finalizer of its own: it says so."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", START + script, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        cwd=ROOT,
        timeout=SECONDS,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    said = "" if lossy and done.stderr.startswith("Exception ignored in") else done.stderr
    assert (0, "") == (done.returncode, said)
    return done.stdout.splitlines()


def test_an_interrupt_ends_a_long_wait_and_leaves_everything_usable() -> None:
    assert [*["interrupted during the run", "True True"] * 3, "True"] == run(DURING_A_RUN)


def test_a_process_that_ends_does_not_wait_for_its_work() -> None:
    assert ["True"] == run(WHEN_THE_PROCESS_ENDS)


def test_an_interrupt_in_the_callback_of_an_error_is_raised() -> None:
    names = "on_error uncaptured_error_callback"
    assert ["True", "kernel bad does not compile at line 1, column 12", "True"] == run(IN_AN_ERROR, names)


def test_an_interrupt_in_the_callback_of_a_device_is_raised_and_the_device_released() -> None:
    assert ["True", "True", "True"] == run(WHEN_A_DEVICE_OPENS, "answered request_device_callback")


@pytest.mark.slow
@pytest.mark.parametrize("script", [CALLS, SHAPES, LOADS], ids=["calls", "shapes", "loads"])
def test_interrupts_at_random(script: str) -> None:
    """Whoever is not heard, as when Python is in a finalizer, asks again after some seconds."""
    assert ["right: 100 slow: False leaked: {}"] == run(script, lossy=True)
