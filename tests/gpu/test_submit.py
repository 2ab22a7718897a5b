"""The four cases in which wgpu-native aborts the process: ours raise, and the process lives on to work again.

Dawn reports the first three by itself; its errors are the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptegpu.gpu import open_device
from ptegpu.gpu.recorder import FIRST, FURTHER, LONG, Steps
from ptegpu.plan.plan import Kernel

ROOT = Path(__file__).resolve().parents[2]

CASE = """
import sys
from ptegpu.errors import DeviceError
from ptegpu.gpu import open_device

case = sys.argv[1]
device = open_device(subgroups=False)
source, staging = device.buffer("source", 64, "storage"), device.buffer("target", 64, "staging")
recorder = device.api.record()
recorder.copy(source.handle, 0, staging.handle, 0, 64)
if case == "destroyed":
    source.destroy()
elif case == "mapped":
    staging.read(device, 64)
elif case == "twice":
    device.submit(recorder, (source, staging))
elif case == "lost":
    device.api.destroy()
try:
    device.submit(recorder, (source, staging))
except DeviceError as error:
    print(f"{type(error).__name__}: {error}")
fresh = open_device(subgroups=False)
buffer = fresh.buffer("after", 16, "storage")
fresh.write(buffer, b"it is alive now.")
print(fresh.read(buffer, 16).decode())
"""

UNGUARDED = CASE.replace(
    "    device.submit(recorder, (source, staging))\nexcept", "    device.api.submit(recorder.end())\nexcept"
)


def run(script: str, case: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", script, case]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120, check=False)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("destroyed", "SubmitError: buffer source is destroyed, but submitted work uses it"),
        ("mapped", "SubmitError: buffer target is mapped, but submitted work uses it"),
        ("twice", "SubmitError: a command buffer was submitted twice; record it again"),
        (
            "lost",
            "DeviceLost: the GPU device is lost ({}); load the program again",
        ),
    ],
)
def test_what_would_abort_raises_and_the_process_survives(device, case, message):
    lost = {"wgpu": "In wgpuQueueWriteBuffer: Parent device is lost", "dawn": "Device was destroyed"}
    message = message.format(lost[device.info.engine])
    done = run(CASE, case)
    assert (0, [message, "it is alive now."]) == (done.returncode, done.stdout.splitlines())


def test_without_the_guard_the_process_of_wgpu_native_dies(device):
    assert (run(UNGUARDED, "destroyed").returncode != 0) == (device.info.engine == "wgpu")


COUNTING = """
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1)
fn main() { x[0] = x[0] * 3u + %du; }
"""


@pytest.mark.parametrize("count", [LONG - 1, LONG, 3 * FURTHER + 5])
def test_a_long_pass_is_submitted_in_parts_that_run_in_order(count):
    device = open_device(subgroups=False)
    each = [device.pipeline(Kernel("count", COUNTING % k, ("write",), 1)) for k in range(3)]
    pipelines = [each[k * k % 3] for k in range(count)]
    buffer, staging = device.buffer("x", 16, "storage"), device.buffer("back", 16, "staging")
    device.write(buffer, bytes(16))
    group = device.bind_group(each[0], [(buffer, 0, 16)])
    groups = [group] * count
    steps = Steps([p.handle for p in pipelines], groups, [1] * count, [1] * count)
    before = device.counters.submits
    with device.api.record() as recorder:
        recorder.compute_soon(steps)
        recorder.copy(buffer.handle, 0, staging.handle, 0, 16)
        device.submit(recorder, (buffer, staging))
    want = 0
    for k in range(count):
        want = (want * 3 + k * k % 3) % 2**32
    assert device.counters.submits - before == (1 if count < LONG else 2 + len(range(FIRST, count - FIRST, FURTHER)))
    assert int.from_bytes(bytes(staging.read(device, 16))[:4], "little") == want
    staging.unmap()
