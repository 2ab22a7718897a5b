"""Signal handlers that raise, wherever they come: the exception arrives at once, the next call is right, nothing leaks.

Most run in a process of their own, which must end by itself and say nothing on stderr: what is raised in a callback or
a finalizer would be printed there, and lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from ptegpu.errors import DeviceError, DeviceLost
from ptegpu.gpu import Device
from ptegpu.gpu.native import reported
from ptegpu.gpu.webgpu import WebGPU

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100  # that a hang is given; the tests take a few

START = """
import gc, os, signal, threading, time
from dataclasses import replace
import numpy as np
from ptegpu.gpu import Session, open_device, measurement
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
    plan = measurement.arithmetic(device.target, groups=64, turns=turns)
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
    seconds = 1e9
    for _ in range(2):  # the machine may be busy
        began = time.perf_counter()
        (expected,) = session.run(load, [])
        seconds = min(seconds, time.perf_counter() - began)
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


def run(*command: str) -> list[str]:
    """Return what it prints."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        cwd=ROOT,
        timeout=SECONDS,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout.splitlines()


def test_an_interrupt_ends_a_long_wait_and_leaves_everything_usable() -> None:
    assert [*["interrupted during the run", "True True"] * 3, "True"] == run("-c", START + DURING_A_RUN)


def test_a_process_that_ends_does_not_wait_for_its_work() -> None:
    assert ["True"] == run("-c", START + WHEN_THE_PROCESS_ENDS)


def test_interrupts_wherever_one_can_come() -> None:
    """Some of the places; `python -m tools.interrupts` takes all."""
    last = run("-m", "tools.interrupts", "call", "load", "reset", "states", "error", "lost", "--every", "67")[-1]
    assert re.fullmatch(r"(wgpu|dawn): \d+ interrupts, 0 faults, .*", last)


@pytest.mark.slow
def test_interrupts_at_random() -> None:
    last = run("-m", "tools.interrupts", "call", "shapes", "plan", "--random", "60")[-1]
    assert re.fullmatch(r"(wgpu|dawn): 180 interrupts, 0 faults, .*", last)


def test_a_callback_that_is_interrupted_does_its_work_and_the_interrupt_is_raised_after_it(device: Device) -> None:
    def deliver(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "on_error":
            sys.settrace(None)
            raise KeyboardInterrupt

    traced = sys.gettrace()
    sys.settrace(deliver)
    try:
        with pytest.raises(KeyboardInterrupt):
            device.api.buffer("refused", 16, 0)
    finally:
        sys.settrace(traced)
    assert 1 == len(reported.errors)
    with pytest.raises(DeviceError):
        device.api.buffer("refused", 16, 0)


def test_an_interrupt_in_the_callback_of_a_loss_is_raised_before_the_loss() -> None:
    """Whoever handles DeviceLost would not hear of the interrupt otherwise."""
    reported.raised.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        WebGPU.check_alive(SimpleNamespace(lost=["it is gone"]))  # type: ignore[arg-type]
    with pytest.raises(DeviceLost, match="it is gone"):
        WebGPU.check_alive(SimpleNamespace(lost=["it is gone"]))  # type: ignore[arg-type]
