"""The class of an adapter: assumed of its kind, or measured once, kept, and read back. No test expects a speed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.test_adapters import info

from ptegpu.errors import DeviceError
from ptegpu.gpu import Device, discovery, measure, measurement, open_device
from ptegpu.plan.target import CLASSES, DeviceClass, Target

ROOT = Path(__file__).resolve().parents[2]
GPU = info(2, "NVIDIA H200", "discrete")
FOUND = DeviceClass("discrete", 3.9e12, 5.1e13, 1.84e-6, 132, measured=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "a" / "folder"))
    return tmp_path / "a" / "folder"


@pytest.mark.parametrize("kind", CLASSES)
def test_without_a_measurement_the_kind_says_it(kind: Any, cache: Path) -> None:
    assert CLASSES[kind] == discovery.class_of(replace(GPU, type=kind))
    assert not cache.exists()


def test_what_is_kept_is_read_back(cache: Path) -> None:
    discovery.save_class(GPU, FOUND)
    assert FOUND == discovery.class_of(GPU)
    assert [discovery.class_file(GPU)] == list(cache.iterdir())
    slower = replace(FOUND, units=66)
    discovery.save_class(GPU, slower)
    assert slower == discovery.class_of(replace(GPU, index=0, twin=1))


@pytest.mark.parametrize("other", [{"name": "NVIDIA H100"}, {"driver": "another"}, {"backend": "D3D12"}], ids=str)
def test_another_adapter_or_driver_is_measured_anew(other: dict[str, Any], cache: Path) -> None:
    discovery.save_class(GPU, FOUND)
    assert CLASSES["discrete"] == discovery.class_of(replace(GPU, **other))
    discovery.save_class(replace(GPU, **other), replace(FOUND, units=7))
    assert FOUND == discovery.class_of(GPU)


def test_another_way_to_measure_counts_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery.save_class(GPU, FOUND)
    monkeypatch.setattr(discovery, "VERSION", discovery.VERSION + 1)
    assert CLASSES["discrete"] == discovery.class_of(GPU)


def changed(**fields: Any) -> bytes:
    entry = {"adapter": [discovery.VERSION, GPU.name, GPU.backend, GPU.driver], **asdict(FOUND)}
    return json.dumps(entry | fields).encode()


BROKEN = {
    "empty": b"",
    "cut": changed()[:-5],
    "not JSON": b"\xff\x00",
    "deep": b"[" * 100_000,
    "a list": b"[1, 2]",
    "a number": b"3",
    "no figures": b"{}",
    "assumed": changed(measured=False),
    "of another adapter": changed(adapter=[discovery.VERSION, "another", GPU.backend, GPU.driver]),
    "of another kind": changed(name="software"),
    "no kind": changed(name=["discrete"]),
    **{
        f"{name} {value}": changed(**{name: value})
        for name in ("bandwidth", "flops", "dispatch_seconds", "units")
        for value in (0, -1.0, math.nan, math.inf, "5", None, True, 10**400)
    },
    "half a unit": changed(units=0.5),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_ignored_and_replaced(content: bytes, cache: Path) -> None:
    place = discovery.class_file(GPU)
    assert place is not None
    cache.mkdir(parents=True)
    place.write_bytes(changed())
    assert FOUND == discovery.class_of(GPU)
    place.write_bytes(content)
    assert CLASSES["discrete"] == discovery.class_of(GPU)
    discovery.save_class(GPU, FOUND)
    assert FOUND == discovery.class_of(GPU)


def test_what_is_no_file_is_ignored(cache: Path) -> None:
    place = discovery.class_file(GPU)
    assert place is not None
    place.mkdir(parents=True)
    assert CLASSES["discrete"] == discovery.class_of(GPU)


def test_a_pipe_is_not_waited_for_and_a_link_not_followed(cache: Path, tmp_path: Path) -> None:
    place = discovery.class_file(GPU)
    assert place is not None
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(place)
    assert CLASSES["discrete"] == discovery.class_of(GPU)
    discovery.save_class(GPU, FOUND)
    assert FOUND == discovery.class_of(GPU)
    place.unlink()
    place.symlink_to(tmp_path / "elsewhere")
    discovery.save_class(GPU, FOUND)
    assert FOUND == discovery.class_of(GPU)
    assert not place.is_symlink() and not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "file"))
    assert CLASSES["discrete"] == discovery.class_of(GPU)
    with pytest.raises(DeviceError) as raised:
        discovery.save_class(GPU, FOUND)
    expected = f"{discovery.class_file(GPU)} cannot be written (File exists): set PTEGPU_CACHE to another folder"
    assert expected == str(raised.value)


def test_a_write_that_fails_leaves_what_was_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery.save_class(GPU, FOUND)

    def full(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DeviceError):
        discovery.save_class(GPU, replace(FOUND, units=66))
    assert FOUND == discovery.class_of(GPU)
    assert [discovery.class_file(GPU)] == list(cache.iterdir())


@pytest.mark.parametrize(
    "platform, environ, expected",
    [
        ("linux", {}, "home/.cache/ptegpu"),
        ("linux", {"XDG_CACHE_HOME": "xdg"}, "xdg/ptegpu"),
        ("darwin", {}, "home/Library/Caches/ptegpu"),
        ("win32", {"LOCALAPPDATA": "local"}, "local/ptegpu/cache"),
        ("linux", {"PTEGPU_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own"),
        ("linux", {"PTEGPU_CACHE": "", "XDG_CACHE_HOME": "xdg"}, "xdg/ptegpu"),
    ],
)
def test_the_users_cache_folder(
    platform: str, environ: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PTEGPU_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value and str(tmp_path / value))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    place = discovery.class_file(GPU)
    assert place is not None
    assert tmp_path / expected == place.parent


def test_nothing_is_kept_where_that_is_off_or_nobody_is_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    for value in ("off", ""):
        monkeypatch.setenv("PTEGPU_CACHE", value)
        assert discovery.class_file(GPU) is None
        discovery.save_class(GPU, FOUND)
        assert CLASSES["discrete"] == discovery.class_of(GPU)


def test_an_adapter_is_measured_once_and_kept_on_demand(
    device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "measured", None)
    before = device.counters.snapshot()
    figures = measure(device)
    assert device.counters.since(before).submits > 0
    assert not cache.exists()
    assert all(
        0 < figure < math.inf for figure in (figures.bandwidth, figures.flops, figures.dispatch_seconds, figures.units)
    )
    assert (device.info.type, True) == (figures.name, figures.measured)
    before = device.counters.snapshot()
    assert figures is measure(device, keep=True)
    assert 0 == device.counters.since(before).submits
    assert figures == discovery.class_of(device.info)
    assert CLASSES[device.info.type] == device.target.device_class  # as long as it is open


def test_a_device_opens_with_what_was_kept(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faster = replace(FOUND, name=device.info.type, units=66)
    discovery.save_class(device.info, faster)
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    opened = open_device(limits="browser", f16=False, subgroups=False)
    assert Target(name=device.target.name, device_class=faster) == opened.target
    opened.destroy()


def test_what_stops_a_measurement_leaves_no_buffers(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(device)
    counts = device.api.object_counts()
    monkeypatch.setattr(device, "measured", None)

    def stop(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(measurement, "pass_time", stop)
    with pytest.raises(KeyboardInterrupt):
        measure(device)
    assert device.measured is None
    assert counts == device.api.object_counts()


INTERRUPTED = """
import os, signal, threading
from ptegpu.gpu import measure, measurement, open_device
device = open_device()
measurement.ROUNDS = 10**6
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    measure(device, keep=True)
except KeyboardInterrupt:
    print("interrupted", os.path.exists(os.environ["PTEGPU_CACHE"]))
"""


def test_a_measurement_can_be_interrupted(cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    assert (0, "interrupted False\n", "") == (done.returncode, done.stdout, done.stderr)
