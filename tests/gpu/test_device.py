"""The device: cached, limited like a browser on request, its pipelines by source, its pool bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.gpu import plans

from ptegpu.errors import DeviceError, DeviceLost, KernelError, LimitExceeded, NoAdapter, OutOfMemory
from ptegpu.gpu import Session, open_device
from ptegpu.gpu.buffers import BufferPool, GpuBuffer
from ptegpu.gpu.discovery import host_available_bytes
from ptegpu.gpu.native import Report
from ptegpu.gpu.wgpu_native import WgpuNative
from ptegpu.plan.plan import Kernel
from ptegpu.plan.target import CLASSES, Target


def test_a_device_is_opened_once_per_options(device):
    assert device is open_device(device.info.index)
    assert device is not open_device(device.info.index, subgroups=False)


def test_the_target_is_the_adapter(device):
    target = device.target
    assert device.info.name == target.name
    assert ("shader-f16" in device.info.features) == target.f16
    assert ("subgroups" in device.info.features) == target.subgroups
    assert target.subgroup_size & (target.subgroup_size - 1) == 0
    assert CLASSES[device.info.type] == target.device_class


def test_the_limits_of_a_browser():
    device = open_device(limits="browser", f16=False, subgroups=False)
    assert Target(name=device.target.name, device_class=CLASSES[device.info.type]) == device.target
    with Session(device) as session:
        x = np.arange(plans.N, dtype=np.float32)
        np.testing.assert_array_equal(x + x, session.run(session.prepare(plans.add()), [x, x])[0])
        wide = replace(plans.ADD, workgroup=512, wgsl=plans.ADD.wgsl.replace("(64)", "(512)"))
        with pytest.raises(LimitExceeded):
            session.prepare(replace(plans.add(), kernels=(wide,)))


def test_a_kernel_without_its_feature_is_refused():
    device = open_device(f16=False, subgroups=False)
    half = replace(plans.ADD, needs=("f16",), wgsl=plans.ADD.wgsl.replace("f32", "f16"))
    with Session(device) as session, pytest.raises(LimitExceeded):
        session.prepare(replace(plans.add(), kernels=(half,)))


def test_pipelines_are_shared_by_source(device):
    kernel = replace(plans.ADD, wgsl=plans.ADD.wgsl + "// of its own\n")
    first = device.pipeline(kernel)
    before = device.counters.snapshot()
    assert first is device.pipeline(replace(kernel, name="another name"))
    assert device.counters.since(before).pipelines_created == 0


@pytest.mark.parametrize(
    ("wgsl", "needs", "messages"),
    [
        (
            "@compute @workgroup_size(1)\nfn main() {\n    let x = nothing;\n}",
            (),
            {
                "wgpu": "kernel bad does not compile at line 3, column 13: no definition in scope for identifier: "
                "`nothing`: unknown identifier\n  let x = nothing;",
                "dawn": "kernel bad does not compile at line 3, column 13: unresolved value 'nothing'\n"
                "  let x = nothing;",
            },
        ),
        (
            "@compute @workgroup_size(1)\nfn main() {\n    let x: f16 = 1u;\n}",
            ("f16",),
            {
                "wgpu": "kernel bad does not compile at line 3, column 9: the type of `x` is expected to be `f16`, "
                "but got `u32`: definition of `x`\n  let x: f16 = 1u;",
                "dawn": "kernel bad does not compile: extension 'f16' is not allowed in the current environment",
            },
        ),
        (
            "@group(0) @binding(0) var<storage, read> x: array<f32>;\n@compute @workgroup_size(1)\nfn main() {\n"
            "    x[0] = 1.0;\n}",
            (),
            {
                "wgpu": "kernel bad does not compile at line 4, column 5: Entry point main at Compute is invalid: "
                "writing to this location is not permitted\n  x[0] = 1.0;",
                "dawn": "kernel bad does not compile at line 4, column 10: cannot store into a read-only type "
                "'ref<storage, f32, read>'\n  x[0] = 1.0;",
            },
        ),
    ],
)
def test_compile_errors_name_the_line(device, wgsl, needs, messages):
    """On Dawn f16 is refused altogether: SwiftShader has none."""
    with pytest.raises(KernelError) as caught:
        device.pipeline(Kernel("bad", wgsl, ("read",), 1, needs=needs))
    assert messages[device.info.engine] == str(caught.value)


def test_a_missing_entry_point_is_a_kernel_error(device):
    with pytest.raises(KernelError) as caught:
        device.pipeline(replace(plans.ADD, wgsl=plans.ADD.wgsl.replace("fn main", "fn other")))
    expected = {
        "wgpu": "In wgpuDeviceCreateComputePipeline, label = 'add': Error matching shader requirements against the "
        "pipeline: Unable to find entry point 'main'",
        "dawn": 'Entry point ""main"" doesn\'t exist in the shader module [ShaderModule "add"]',
    }
    assert f"kernel add does not compile: {expected[device.info.engine]}" == str(caught.value)


def test_errors_of_recording_are_raised_when_it_is_submitted(device):
    small, large = device.buffer("small", 16, "storage"), device.buffer("large", 64, "storage")
    with device.api.record() as recorder:
        recorder.copy(large.handle, 0, small.handle, 0, 64)
        with pytest.raises(DeviceError) as caught:
            device.submit(recorder, [small, large])
    expected = {
        "wgpu": "overrunning the bounds of the Destination buffer of size 16",
        "dawn": 'Copy range (offset: 0, size: 64) does not fit in [Buffer "small"] size (16)',
    }
    assert expected[device.info.engine] in str(caught.value)


def test_writes_of_any_length_and_size(device, monkeypatch):
    monkeypatch.setattr("ptegpu.gpu.device._WRITE_CHUNK", 64)
    monkeypatch.setattr("ptegpu.gpu.device._WRITE_PENDING", 128)
    data = bytes(range(251))
    buffer = device.buffer("written", 256, "storage")
    device.clear([buffer])
    device.write(buffer, data)
    assert data.ljust(256, b"\0") == device.read(buffer, 256)


def test_more_bytes_than_a_buffer_may_have(device):
    with pytest.raises(DeviceError, match=r"greater than the maximum buffer size|exceeds the max buffer size limit"):
        device.buffer("huge", device.target.max_buffer_bytes + 1, "storage")


def test_words_of_wgpu_become_typed_errors():
    out = WgpuNative.as_error(Report(False, "Out of Memory\n\nCaused by:\n  In wgpuX\n    Not enough memory left"))
    assert OutOfMemory is type(out)
    assert str(out) == "the GPU is out of memory (In wgpuX: Not enough memory left)"
    lost = WgpuNative.as_error(Report(False, "Validation Error\n\nCaused by:\n  In wgpuX\n    Parent device is lost"))
    assert DeviceLost is type(lost)
    assert str(lost) == "the GPU device is lost (In wgpuX: Parent device is lost); load the program again"


def test_out_of_memory_empties_the_pool_and_tries_again(device, monkeypatch):
    device.pool.clear()
    device.release(device.buffer("old", 1024, "storage"))
    calls: list[int] = []

    def scarce(wrapped, name, nbytes, kind):
        calls.append(len(device.pool))
        if len(device.pool):
            raise OutOfMemory("full")
        return GpuBuffer(wrapped, name, nbytes, kind)

    monkeypatch.setattr("ptegpu.gpu.device.GpuBuffer", scarce)
    assert device.buffer("new", 2048, "storage").nbytes == 2048
    assert len(calls) == 2
    assert calls[-1] == 0


def test_out_of_memory_says_what_was_needed_and_what_there_is(device, monkeypatch):
    def full(wrapped, name, nbytes, kind):
        raise OutOfMemory("full")

    device.pool.clear()
    monkeypatch.setattr("ptegpu.gpu.device.GpuBuffer", full)
    monkeypatch.setattr(device, "available_bytes", lambda: 1000)
    with pytest.raises(OutOfMemory) as caught:
        device.buffer("new", 2048, "storage")
    assert str(caught.value) == f"buffer new needs 2048 bytes on {device.target.name}; 1000 are available"


def test_the_pool_reuses_by_size_and_forgets_the_oldest(device):
    pool = BufferPool(max_bytes=100, max_count=3)
    small = [GpuBuffer(device.api, f"{n}", 16, "storage") for n in range(4)]
    for buffer in small:
        pool.give(buffer)
    assert [buffer.state for buffer in small] == ["destroyed", "ready", "ready", "ready"]
    assert pool.take(32, "storage") is None
    assert pool.take(16, "uniform") is None
    assert small[3] is pool.take(16, "storage")
    assert small[3].dirty
    assert pool.nbytes == 32
    large = GpuBuffer(device.api, "large", 112, "storage")
    pool.give(large)
    assert large.state == "destroyed"
    pool.clear()
    assert (len(pool), pool.nbytes) == (0, 0)


def test_a_destroyed_device_is_lost_and_replaced():
    device = open_device(f16=False, subgroups=True)
    session = Session(device)
    prepared = session.prepare(plans.add())
    x = np.ones(plans.N, np.float32)
    device.destroy()
    assert device.lost
    for use in (lambda: session.run(prepared, [x, x]), lambda: session.prepare(plans.chain()), session.reset):
        with pytest.raises(DeviceLost):
            use()
    session.close()
    with Session(open_device(f16=False, subgroups=True)) as session:
        np.testing.assert_array_equal(x + x, session.run(session.prepare(plans.add()), [x, x])[0])


def test_an_unknown_device_is_refused():
    with pytest.raises(NoAdapter, match="No adapter has 'no such GPU' in its name"):
        open_device("no such GPU")


def test_available_memory_is_what_linux_says(tmp_path):
    meminfo = tmp_path / "meminfo"
    assert host_available_bytes(meminfo) is None
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   42 kB\n")
    assert host_available_bytes(meminfo) == 42 * 1024
