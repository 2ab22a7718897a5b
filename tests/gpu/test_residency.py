"""Workgroups that may wait for each other: the probe, the option, what is saved, and the mark of a run that gave up."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ptegpu
from ptegpu.errors import DeviceError, InvalidInput, LimitExceeded, OutOfMemory
from ptegpu.gpu import Device, open_device, residency
from ptegpu.gpu.residency import Residency, barriers, mark_failed, probe, renew, verdict
from ptegpu.plan import Plan, Target
from ptegpu.runtime import LoadOptions

FOUND = Residency(132, "", 256, 1.3e-6, 100_000)
IN_VAIN = "some workgroups waited in vain ({} at once, {} looks)"
MLP = Path(__file__).parents[1] / "data" / "mlp.pte"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and a process without verdicts."""
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PTEGPU_PERSISTENT", raising=False)
    monkeypatch.setattr(residency, "_saved", {})
    return tmp_path / "cache"


@pytest.fixture
def waiting(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device whose workgroups may wait for each other, which no other test uses."""
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    opened = open_device(device.info.index, persistent="on")
    assert (opened.resident, opened.target.resident) == (1, 1)
    yield opened
    opened.destroy()


def probing(monkeypatch: pytest.MonkeyPatch, result: Residency | Exception | None) -> list[Device]:
    """Replace the probe; return the devices that it was called for. None: it must not be called."""
    probed: list[Device] = []

    def replaced(device: Device, **_: Any) -> Residency:
        assert result is not None
        probed.append(device)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(residency, "probe", replaced)
    return probed


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "_saved", {})


# The probe.


def test_a_single_workgroup_passes(device: Device) -> None:
    result = probe(device)
    assert replace(result, barrier_seconds=0.0) == Residency(1, rounds=residency.SOFTWARE_ROUNDS)
    assert result.barrier_seconds > 0


def test_two_workgroups_pass_unless_they_run_in_turn(device: Device) -> None:
    result = probe(device, 2)
    assert result.workgroups in (1, 2)
    assert (result.reason, result.rounds) == ("", residency.SOFTWARE_ROUNDS)


def test_more_workgroups_than_run_at_the_same_time_give_up(device: Device) -> None:
    assert probe(device, 2048, spins=1000) == Residency(0, IN_VAIN.format(2048, "1,000"))


def test_a_failure_is_a_verdict(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Residency(0, IN_VAIN.format(2048, 0))
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    with monkeypatch.context() as patch:
        patch.setattr(residency, "probe", lambda device, **_: probe(device, 2048, spins=0))
        with pytest.raises(LimitExceeded, match="has none: some workgroups waited in vain"):
            open_device(device.info.index, persistent="on")
    assert verdict(device) == failure
    in_another_process(monkeypatch)
    assert verdict(device) == failure
    assert renew(device).workgroups == 1


@pytest.mark.parametrize(
    "written, wrong",
    [
        ("plain[round * region + i] = tag + i;", "plain[round * region + i] = tag + i + round / 20u;"),
        ("atomicStore(&halves[half + i], tag ^ i);", "atomicStore(&halves[half + i], (tag ^ i) + round / 20u);"),
        ("memory[slot(round, lane)] = tag + lane;", "memory[slot(round, lane)] = tag + lane + round / 20u;"),
        ("        atomicAdd(&state[0], 1u);", "        atomicAdd(&state[0], 1u + round / 20u);"),
    ],
    ids=["plain", "atomic", "workgroup memory", "arrivals"],
)
def test_wrong_values_are_found(written: str, wrong: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first dispatch has fewer than 20 rounds."""

    def broken(target: Target, workgroups: int) -> Plan:
        plan = barriers(target, workgroups)
        (kernel,) = plan.kernels
        assert written in kernel.wgsl
        return replace(plan, kernels=(replace(kernel, wgsl=kernel.wgsl.replace(written, wrong)),))

    monkeypatch.setattr(residency, "barriers", broken)
    result = probe(device)
    assert result.workgroups == 0
    assert re.fullmatch(r"workgroups read [\d,]+ wrong values behind a barrier \(1 at once\)", result.reason)


def test_fewer_workgroups_are_tried(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def attempt(_session: object, workgroups: int, *_: object) -> Residency:
        tried.append(workgroups)
        return Residency(workgroups if workgroups < 100 else 0, "too many" if workgroups >= 100 else "")

    monkeypatch.setattr(residency, "_attempt", attempt)
    assert probe(device, 132) == Residency(99)
    assert probe(device, 8000) == Residency(0, "too many")
    assert tried == [132, 99, 8000, 6000, 4000, 2000]


def test_an_error_is_a_verdict_and_full_memory_is_none(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception, *_: object) -> Residency:
        raise error

    monkeypatch.setattr(residency, "_attempt", partial(fail, DeviceError("the GPU is gone")))
    assert probe(device) == Residency(0, "the GPU is gone")
    monkeypatch.setattr(residency, "_attempt", partial(fail, OutOfMemory("no room")))
    with pytest.raises(OutOfMemory):
        probe(device)


# What is saved.


def test_a_verdict_is_saved(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = probing(monkeypatch, FOUND)
    assert [verdict(device), verdict(device)] == [FOUND, FOUND]
    assert probed == [device]
    (path,) = cache.iterdir()
    assert path.name.startswith("resident-")
    in_another_process(monkeypatch)
    probing(monkeypatch, None)
    assert verdict(device) == FOUND


@pytest.mark.parametrize("changed", ["name", "driver", "backend", "engine", "version", "memory"])
def test_another_adapter_is_probed_anew(changed: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = probing(monkeypatch, FOUND)
    verdict(device)
    if changed == "version":
        monkeypatch.setattr(residency, "VERSION", residency.VERSION + 1)
    elif changed == "memory":
        monkeypatch.setattr(device, "target", replace(device.target, max_shared_bytes=16384 + 4096))
    else:
        monkeypatch.setattr(device, "info", replace(device.info, **{changed: "another"}))
    verdict(device)
    assert len(probed) == 2


BROKEN: dict[str, Any] = {
    "nothing": b"",
    "not JSON": b"\xff\x00",
    "a list": b"[1]",
    "no figures": {"workgroups": None},
    "too many": {"workgroups": 1 << 20},
    "negative": {"workgroups": -1},
    "a text": {"workgroups": "132"},
    "true": {"workgroups": True},
    "no reason": {"reason": 3},
    "of another": {"adapter": []},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_ignored(change: Any, device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probing(monkeypatch, FOUND)
    verdict(device)
    (path,) = cache.iterdir()
    path.write_bytes(
        change if isinstance(change, bytes) else json.dumps(json.loads(path.read_text()) | change).encode()
    )
    in_another_process(monkeypatch)
    other = replace(FOUND, workgroups=66)
    probing(monkeypatch, other)
    assert verdict(device) == other
    in_another_process(monkeypatch)
    assert verdict(device) == other


def test_full_memory_is_not_saved(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probing(monkeypatch, OutOfMemory("no room"))
    assert verdict(device) == Residency(0, "no room")
    assert not cache.exists()
    probing(monkeypatch, FOUND)
    assert verdict(device) == FOUND


def test_a_folder_that_cannot_be_written(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PTEGPU_CACHE", str(tmp_path / "file"))
    probed = probing(monkeypatch, FOUND)
    assert [verdict(device), verdict(device)] == [FOUND, FOUND]
    assert len(probed) == 1
    with pytest.raises(DeviceError, match="set PTEGPU_CACHE to another folder"):
        renew(device)


@pytest.mark.parametrize("folder", ["cache", "off"])
def test_a_mark_outweighs_the_verdict_until_a_new_probe(
    folder: str, waiting: Device, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folder == "off":
        monkeypatch.setenv("PTEGPU_CACHE", "off")
    mark_failed(waiting, "plan forward.0 waited in vain")
    assert (waiting.resident, waiting.target.resident) == (0, 0)
    if folder == "cache":
        in_another_process(monkeypatch)
    probing(monkeypatch, FOUND)
    marked = Residency(0, "a run gave up: plan forward.0 waited in vain")
    assert verdict(waiting) == marked
    residency._save("resident", waiting, FOUND)  # of a process that was probing meanwhile
    assert verdict(waiting) == marked
    expected = (
        f'persistent="on" needs workgroups that wait for each other; {waiting.target.name} has none: {marked.reason}'
    )
    with pytest.raises(LimitExceeded) as raised:
        LoadOptions(waiting, persistent="on").open()
    assert str(raised.value) == expected
    assert renew(waiting) == FOUND
    if folder == "cache":
        assert len(list(cache.iterdir())) == 1
        in_another_process(monkeypatch)
    assert verdict(waiting) == FOUND


# The option.


def test_auto_leaves_software_adapters_alone(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    probing(monkeypatch, None)
    assert (device.info.type, device.resident, device.target.resident) == ("software", 0, 0)
    assert device is open_device(device.info.index) is open_device(device.info.index, persistent="off")


def test_a_device_for_each_setting(device: Device, waiting: Device) -> None:
    index = device.info.index
    assert waiting is open_device(index, persistent="on") is not open_device(index)
    assert LoadOptions(index, persistent="on").open() == (waiting, waiting.target)
    assert LoadOptions(index).open()[1].resident == 0


def test_auto_on_a_gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    gpu = replace(device.info, type="discrete")
    monkeypatch.setattr("ptegpu.gpu.device.find_adapter", lambda *_: gpu)
    probed = probing(monkeypatch, FOUND)
    opened = open_device()
    assert (opened.resident, opened.target.resident) == (132, 132)
    assert opened is open_device() is open_device(persistent="on")
    assert open_device(persistent="off").resident == 0
    assert probed == [opened]
    opened.destroy()


def test_a_gpu_that_fails(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})
    gpu = replace(device.info, type="discrete")
    monkeypatch.setattr("ptegpu.gpu.device.find_adapter", lambda *_: gpu)
    probing(monkeypatch, Residency(0, "too bad"))
    assert open_device().resident == 0
    with pytest.raises(LimitExceeded, match="has none: too bad"):
        open_device(persistent="on")


def test_a_device_lost_by_the_probe_is_opened_again(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.gpu.device._devices", {})

    def lose(device: Device, **_: Any) -> Residency:
        device.destroy()
        return Residency(0, "the device was lost")

    monkeypatch.setattr(residency, "probe", lose)
    monkeypatch.setenv("PTEGPU_PERSISTENT", "on")
    with pytest.raises(LimitExceeded, match="has none: the device was lost"):
        open_device(device.info.index)
    (opened,) = ptegpu.gpu.device._devices.values()
    assert not opened.lost
    assert opened.resident == 0


def test_the_variable_replaces_auto(device: Device, waiting: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTEGPU_PERSISTENT", "on")
    assert open_device(device.info.index) is waiting
    assert open_device(device.info.index, persistent="off").resident == 0
    monkeypatch.setenv("PTEGPU_PERSISTENT", "never")
    with pytest.raises(InvalidInput, match="invalid persistent 'never'"):
        open_device(device.info.index)


def test_an_open_device_has_its_own_setting(device: Device, waiting: Device) -> None:
    assert LoadOptions(waiting).open()[1].resident == 1
    assert LoadOptions(waiting, persistent="on").open()[1].resident == 1
    with pytest.raises(InvalidInput) as raised:
        LoadOptions(waiting, persistent="off").open()
    assert str(raised.value) == (
        'this device was opened for persistent="auto" or "on": open another with persistent="off", or give its index'
    )
    assert LoadOptions(device, persistent="off").open()[1].resident == 0
    with pytest.raises(LimitExceeded, match="has none: this device was opened without them"):
        LoadOptions(device, persistent="on").open()


def test_programs_beside_each_other(waiting: Device) -> None:
    with (
        ptegpu.load(MLP, device=waiting.info.index, persistent="on") as first,
        ptegpu.load(MLP, beside=first) as second,
    ):
        assert first.device is second.device is waiting


def test_bundles_run_with_and_without(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "mlp.bundle"
    ptegpu.compile(MLP).save(path)
    assert b"resident" not in path.read_bytes()
    ptegpu.compile(MLP, targets=Target(resident=132)).save(path)
    with ptegpu.load(path, device=device) as program:
        assert program.bundle.targets == (Target(resident=132),)
