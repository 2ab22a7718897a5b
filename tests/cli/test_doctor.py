"""`ptegpu doctor`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Invoke

from ptegpu import gpu
from ptegpu.cli import selfcheck
from ptegpu.cli.doctor import nvidia_hints
from ptegpu.gpu import discovery, residency
from ptegpu.ops import REGISTRY
from ptegpu.plan.target import CLASSES, DeviceClass


def test_this_machine_is_healthy(invoke: Invoke) -> None:
    report = invoke("doctor", "--json").json()
    assert report["healthy"]
    assert report["problems"] == []
    assert report["chosen"] == report["auto"]
    assert set(report["packages"]) == {"ptegpu", "numpy"}
    engines = {engine["name"]: engine for engine in report["engines"]}
    assert list(engines) == ["wgpu", "dawn"]
    adapter = engines[report["chosen"]["engine"]]["adapters"][report["chosen"]["index"]]
    assert set(adapter["features"]) == {"f16", "subgroups", "timestamps"}
    assert adapter["limits"]["invocations"] >= 256
    assert [check["name"] for check in report["checks"]] == [check.name for check in selfcheck.checks()]


def test_a_missing_engine_says_how_to_install_it(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "find_spec", lambda name: None if name == "wgpudawn" else name)
    wgpu, dawn = invoke("doctor", "--json").json()["engines"]
    assert (wgpu["install"], dawn["install"], dawn["adapters"]) == (None, "pip install 'ptegpu[dawn]'", [])
    assert "engine    dawn · not installed. Run: pip install 'ptegpu[dawn]'\n" in invoke("doctor").out
    ended = invoke("doctor", "--engine", "dawn")
    assert ended.code == 1
    assert "problem: wgpudawn is not installed. Run: pip install 'ptegpu[dawn]'\n" in ended.out


def test_it_is_readable(invoke: Invoke) -> None:
    ended = invoke("doctor", "--device", 0)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("system    ")
    assert ended.out.endswith("healthy\n")
    assert "self-check" in ended.out


def test_the_class_and_its_figures(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path))
    device = gpu.open_device()
    assumed = CLASSES[device.info.type]
    assert asdict(assumed) == invoke("doctor", "--json").json()["class"]
    shown = "10 GB/s, 0.05 TFLOP/s (f32), 20 µs per dispatch, 4 parallel units (assumed: ptegpu doctor --measure finds"
    made_up = DeviceClass("software", 1e10, 5e10, 2e-5, 4)
    with monkeypatch.context() as patched:
        patched.setattr(device, "target", replace(device.target, device_class=made_up))
        assert f"class     software · {shown} them out)\n" in invoke("doctor").out
    assert not list(tmp_path.glob("adapter-*"))

    record = invoke("doctor", "--measure", "--json").json()
    assert (record["healthy"], record["problems"]) == (True, [])
    assert record["class"] == asdict(discovery.class_of(device.info))
    assert record["class"]["measured"]
    assert "(measured)\n" in invoke("doctor", "--measure").out


def test_the_verdict_on_waiting_workgroups(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path))
    monkeypatch.setattr(residency, "_saved", {})
    record = invoke("doctor", "--json").json()["residency"]
    assert record["barrier_seconds"] > 0
    expected = residency.Residency(1, "", 256, record["barrier_seconds"], residency.SOFTWARE_ROUNDS)
    assert record == asdict(expected) | {"auto": False}
    assert "\n          one dispatch per step: only with --persistent on, 1 workgroup, barrier " in invoke("doctor").out

    device = gpu.open_device()
    residency.mark_failed(device, "plan forward.0 waited in vain")
    assert "one dispatch per step: no: a run gave up: plan forward.0 waited in vain\n" in invoke("doctor").out
    record = invoke("doctor", "--measure", "--json").json()
    assert (record["healthy"], record["residency"]["workgroups"]) == (True, 1)
    assert residency.verdict(device).workgroups == 1

    monkeypatch.setattr(device, "info", replace(device.info, type="discrete"))
    monkeypatch.setattr(residency, "verdict", lambda _: residency.Residency(132, "", 256, 1.3e-6, 100_000))
    assert "one dispatch per step: yes, 132 workgroups, barrier 1.3 µs (100,000 rounds)\n" in invoke("doctor").out


def test_a_measurement_that_cannot_be_kept_is_a_problem(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "file"))
    ended = invoke("doctor", "--measure")
    assert ended.code == 0
    assert "cannot be written (File exists): set PTEGPU_CACHE to another folder\n" in ended.out


def test_every_family_is_checked() -> None:
    assert {check.operator for check in selfcheck.checks()} <= set(REGISTRY)


def test_a_wrong_kernel_is_found(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    good, *_ = selfcheck.checks()
    bad = replace(good, name="bad", expected=good.expected + 1)
    unknown = replace(good, name="impossible", args=(good.args[0], good.args[0].T.copy(), 1))
    monkeypatch.setattr(selfcheck, "checks", lambda: [good, bad, unknown])
    ended = invoke("doctor", "--json")
    assert ended.code == 1
    outcomes = selfcheck.run_checks(gpu.open_device())
    assert [outcome.passed for outcome in outcomes] == [True, False, False]
    assert outcomes[2].problem.startswith("impossible: shapes [7, 33], [33, 7] do not broadcast")
    assert "FAIL" in invoke("doctor").out


def test_every_check_can_fail() -> None:
    for check in selfcheck.checks():
        expected = check.expected
        assert selfcheck.judge(check, expected).passed
        wrong = [np.zeros_like(expected), np.roll(expected, 1), expected[:-1]]
        wrong += [] if expected.dtype == bool else [(expected * 1.05).astype(expected.dtype)]
        wrong += [np.full_like(expected, np.nan)] if expected.dtype.kind == "f" else []
        for got in wrong:
            assert not selfcheck.judge(check, got).passed, check.name
        small = replace(check, expected=(expected * 1e-6).astype(expected.dtype)) if not check.exact else check
        assert not selfcheck.judge(small, np.zeros_like(expected)).passed, check.name


def test_no_adapter_names_the_package(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "native_adapters", lambda engine: ())
    monkeypatch.setattr("ptegpu.gpu.vulkan.load_loader", lambda: False)
    ended = invoke("doctor")
    assert ended.code == 1
    expected = (
        "problem: No GPU adapter: the Vulkan loader (libvulkan.so.1) is missing. "
        "Run: apt-get install libvulkan1 mesa-vulkan-drivers"
    )
    assert ended.out.splitlines()[-1] == expected
    assert "no loader (libvulkan.so.1)" in ended.out


def test_an_unknown_device_is_a_problem(invoke: Invoke) -> None:
    ended = invoke("doctor", "--device", "no such GPU")
    assert ended.code == 1
    assert "problem: No adapter has 'no such GPU' in its name. There is 0: " in ended.out


def test_nvidia_without_its_vulkan_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tmp_path / "version"
    assert nvidia_hints(set(), True, version) == []
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 2025\n")
    assert nvidia_hints({"NVIDIA"}, True, version) == []

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    expected = (
        "an NVIDIA driver (580) is loaded, but its Vulkan library libEGL_nvidia.so.0 is missing. "
        "Run: apt-get install libnvidia-gl-580 (Ubuntu) or nvidia-vulkan-icd (Debian); "
        "start a container with NVIDIA_DRIVER_CAPABILITIES=all"
    )
    assert nvidia_hints({"Intel"}, True, version) == [expected]
    monkeypatch.setattr("ctypes.CDLL", lambda name: name)
    expected = (
        "an NVIDIA driver (580) and its Vulkan library are there, but give no adapter: VK_DRIVER_FILES or "
        "VK_ICD_FILENAMES may point elsewhere, or /dev/nvidia* may be out of reach"
    )
    assert nvidia_hints(set(), True, version) == [expected]
    expected = (
        "an NVIDIA driver (580) and its Vulkan library are there; only the loader is missing. "
        "Run: apt-get install libvulkan1"
    )
    assert nvidia_hints(set(), False, version) == [expected]
