"""The choice of an adapter, from made-up lists and on this machine."""

from __future__ import annotations

import sys
from ctypes import c_void_p
from types import SimpleNamespace

import pytest

from ptegpu.errors import NoAdapter
from ptegpu.gpu import AdapterInfo, adapters, choose_adapter, discovery, vulkan


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
    assert expected == choose_adapter(infos, device)


@pytest.mark.parametrize(("variable", "expected"), [("llvm", CPU), ("1", IGPU), ("", GPU)])
def test_the_environment_stands_in_for_auto_only(monkeypatch, variable, expected):
    monkeypatch.setenv("PTEGPU_DEVICE", variable)
    assert expected == choose_adapter(ALL, "auto")
    assert choose_adapter(ALL, "T4") == GPU2


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (7, "No adapter has index 7. "),
        ("radeon", "No adapter has 'radeon' in its name. "),
    ],
)
def test_no_match_lists_what_there_is(device, message):
    with pytest.raises(NoAdapter) as caught:
        choose_adapter((CPU, GPU), device)
    there = "There is 0: llvmpipe (LLVM 15) (software, Vulkan); 2: NVIDIA H200 (discrete, Vulkan)"
    assert message + there == str(caught.value)


def test_nothing_at_all_is_diagnosed(monkeypatch):
    monkeypatch.setattr(vulkan, "diagnosis", lambda: "install it")
    with pytest.raises(NoAdapter, match="install it"):
        choose_adapter((), "auto")


def test_this_machine_has_an_adapter():
    infos = adapters()
    assert list(range(len(infos))) == [adapter.index for adapter in infos]
    chosen = choose_adapter(infos)
    assert chosen.name
    assert chosen.limits["max-compute-invocations-per-workgroup"] >= 256


class FakeVulkan:
    """A Vulkan with these GPUs; the free memory of each is its place, in GiB."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def vkGetPhysicalDeviceProperties2(self, gpu, properties):
        properties._obj.name = self.names[gpu.value - 1].encode()

    def vkGetPhysicalDeviceMemoryProperties2(self, gpu, output):
        output._obj.heaps, output._obj.heap[0].flags = 1, 1
        vulkan._Budget.from_address(output._obj.next).budget[0] = gpu.value << 30


def test_of_two_equal_gpus_each_has_its_own_memory(monkeypatch):
    names = ("NVIDIA H200", "llvmpipe", "NVIDIA H200", "NVIDIA T4", "NVIDIA H200")
    adapter_info = {"vendor": "", "vendor_id": 0x10DE, "description": "", "adapter_type": "DiscreteGPU"}
    native = [
        SimpleNamespace(info=adapter_info | {"device": name, "backend_type": backend}, features=(), limits={})
        for backend in ("Vulkan", "D3D12")
        for name in names
    ]
    fake = FakeVulkan(*names)
    monkeypatch.setattr(vulkan, "_loader", lambda: fake)
    monkeypatch.setattr(vulkan, "_gpus", lambda: [c_void_p(n + 1) for n in range(len(names))])
    monkeypatch.setattr(discovery, "native_adapters", lambda engine: native)
    vulkan._gpu.cache_clear()
    try:
        nbytes = [discovery.available_bytes(info) for info in adapters()]
    finally:
        vulkan._gpu.cache_clear()
    assert [n << 30 for n in (1, 2, 3, 4, 5)] + [None] * 5 == nbytes


def test_each_system_opens_the_backends_it_has(monkeypatch):
    from wgpu.backends.wgpu_native import extras

    from ptegpu.gpu import wgpu_native

    opened: list[list[str]] = []
    monkeypatch.setattr(vulkan, "configure", lambda: None)
    monkeypatch.setattr(wgpu_native, "set_instance_extras", lambda backends: opened.append(backends))
    for system in ("linux", "darwin", "win32"):
        monkeypatch.setattr(sys, "platform", system)
        discovery.native_adapters.__wrapped__("wgpu")
    assert [["Vulkan"], ["Metal"], ["Vulkan", "DX12"]] == opened
    assert all(f"InstanceBackend.{name}" in extras.native_flags for names in opened for name in names)
