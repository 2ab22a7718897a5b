"""Which adapter is meant, on made-up lists; and that this machine has one."""

from __future__ import annotations

import pytest

from ptegpu.errors import NoAdapter
from ptegpu.gpu import AdapterInfo, adapters, choose, loader


def info(index: int, name: str, kind: str) -> AdapterInfo:
    return AdapterInfo(index, name, "Vulkan", kind, "vendor", "driver", frozenset(), {})


CPU, IGPU, GPU, GPU2 = (
    info(0, "llvmpipe (LLVM 15)", "software"),
    info(1, "Intel Iris Xe", "integrated"),
    info(2, "NVIDIA H200", "discrete"),
    info(3, "NVIDIA T4", "discrete"),
)
ALL = (CPU, IGPU, GPU, GPU2)


@pytest.fixture(autouse=True)
def no_device_in_the_environment(monkeypatch):
    monkeypatch.delenv("PTEGPU_DEVICE", raising=False)


@pytest.mark.parametrize(
    ("infos", "device", "expected"),
    [
        (ALL, "auto", GPU),
        ((CPU, IGPU), "auto", IGPU),
        ((CPU,), "auto", CPU),
        (ALL, 3, GPU2),
        (ALL, "0", CPU),
        (ALL, "t4", GPU2),
        (ALL, "nvidia", GPU),
        (ALL, "LLVM", CPU),
    ],
)
def test_choice(infos, device, expected):
    assert expected == choose(infos, device)


@pytest.mark.parametrize(("variable", "expected"), [("llvm", CPU), ("1", IGPU), ("", GPU)])
def test_the_environment_stands_in_for_auto_only(monkeypatch, variable, expected):
    monkeypatch.setenv("PTEGPU_DEVICE", variable)
    assert expected == choose(ALL, "auto")
    assert choose(ALL, "T4") == GPU2


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (7, "No adapter has index 7. "),
        ("radeon", "No adapter has 'radeon' in its name. "),
    ],
)
def test_no_match_lists_what_there_is(device, message):
    with pytest.raises(NoAdapter) as caught:
        choose((CPU, GPU), device)
    there = "There is 0: llvmpipe (LLVM 15) (software, Vulkan); 2: NVIDIA H200 (discrete, Vulkan)"
    assert message + there == str(caught.value)


def test_nothing_at_all_is_diagnosed(monkeypatch):
    monkeypatch.setattr(loader, "diagnosis", lambda: "install it")
    with pytest.raises(NoAdapter, match="install it"):
        choose((), "auto")


def test_this_machine_has_an_adapter():
    found = adapters()
    assert list(range(len(found))) == [adapter.index for adapter in found]
    chosen = choose(found)
    assert chosen.name
    assert chosen.limits["max-compute-invocations-per-workgroup"] >= 256
