"""The choice of an engine, for made-up adapters and on this machine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ptegpu
from ptegpu.errors import InvalidInput, NoAdapter
from ptegpu.gpu import AdapterInfo, discovery, find_adapter, open_device
from ptegpu.plan.target import Target

MODULE = discovery
ROOT = Path(__file__).resolve().parents[2]
MATRICES = ("f16 f32 16x16x16",)


def info(index: int, name: str, kind: str, **more: object) -> AdapterInfo:
    return AdapterInfo(index, name, "Vulkan", kind, "vendor", "driver", frozenset(), {}, **more)


WGPU = [
    info(0, "llvmpipe", "software"),
    info(1, "NVIDIA H200", "discrete"),
    info(2, "NVIDIA H200", "discrete", twin=1),
    info(3, "Intel Iris Xe", "integrated"),
]
DAWN = [
    info(0, "NVIDIA H200", "discrete", engine="dawn", matrices=MATRICES),
    info(1, "NVIDIA H200", "discrete", engine="dawn", matrices=MATRICES, twin=1),
    info(2, "Intel Iris Xe", "integrated", engine="dawn"),
]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PTEGPU_DEVICE", raising=False)
    monkeypatch.delenv("PTEGPU_ENGINE", raising=False)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with these adapters; what engines are asked is noted."""
    queried: list[str] = []
    monkeypatch.setattr(MODULE, "installed", lambda engine: True)
    monkeypatch.setattr(
        MODULE, "adapters", lambda engine="wgpu": queried.append(engine) or (WGPU if engine == "wgpu" else DAWN)
    )
    return queried


@pytest.mark.parametrize(
    ("device", "expected"), [("auto", DAWN[0]), (1, DAWN[0]), (2, DAWN[1]), ("intel", WGPU[3]), ("llvm", WGPU[0])]
)
def test_auto_is_dawn_where_it_offers_matrices(made_up: list[str], device: int | str, expected: AdapterInfo) -> None:
    assert expected == find_adapter(device)


def test_wgpu_is_not_asked_where_dawn_knows(made_up: list[str]) -> None:
    find_adapter("auto")
    find_adapter("h200")
    assert {"dawn"} == set(made_up)
    find_adapter(1)
    assert {"dawn", "wgpu"} == set(made_up)


def test_each_engine_counts_its_own(made_up: list[str]) -> None:
    assert WGPU[1] == find_adapter(1, "wgpu")
    assert DAWN[1] == find_adapter(1, "dawn")
    assert DAWN[0] == find_adapter("auto", "dawn")


def test_the_environment_stands_in_for_auto(made_up: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTEGPU_ENGINE", "wgpu")
    assert WGPU[1] == find_adapter()
    assert DAWN[0] == find_adapter("auto", "dawn")
    monkeypatch.setenv("PTEGPU_ENGINE", "metal")
    with pytest.raises(InvalidInput, match='engine is "auto", "wgpu" or "dawn", not \'metal\''):
        find_adapter()


def test_without_dawn_auto_is_wgpu(made_up: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "installed", lambda engine: engine == "wgpu")
    assert WGPU[1] == find_adapter()


def test_an_engine_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "find_spec", lambda name: None)
    with pytest.raises(NoAdapter) as caught:
        open_device(engine="dawn")
    assert "wgpudawn is not installed. Run: pip install 'ptegpu[dawn]'" == str(caught.value)


def test_dawn_that_accepts_no_adapter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "native_adapters", lambda engine: ())
    with pytest.raises(NoAdapter, match="Dawn accepts no adapter of this machine; `ptegpu doctor` shows its messages"):
        open_device(engine="dawn")


def test_an_engine_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys, ptegpu.gpu, ptegpu.runtime.program\n"
        "print({'wgpu', 'wgpudawn', 'cffi'} & set(sys.modules))\n"
        "ptegpu.gpu.open_device(engine='wgpu')\n"
        "print('wgpu' in sys.modules, 'wgpudawn' in sys.modules)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ["set()", "True False"] == done.stdout.splitlines()


@pytest.mark.parametrize("precision", ["auto", "exact", "fast"])
def test_precision_is_what_is_planned_for(precision: str) -> None:
    file = ROOT / "tests" / "data" / "mlp.pte"
    with ptegpu.load(file, precision=precision) as program:
        assert precision == program.bundle.targets[0].precision
        assert replace(program.device.target, precision=precision) == program.bundle.targets[0]
    (target,) = ptegpu.compile(file, precision=precision).targets
    assert Target(precision=precision) == target


def test_what_precision_there_is() -> None:
    for use in (ptegpu.load, ptegpu.compile):
        with pytest.raises(InvalidInput, match='invalid precision \'half\': expected "auto", "exact" or "fast"'):
            use(ROOT / "tests" / "data" / "mlp.pte", precision="half")


def test_a_bundle_that_may_round_is_not_exact() -> None:
    exact, auto = Target(precision="exact"), Target()
    assert "" == auto.lacks(exact)  # without f16 nothing rounds to it
    half = replace(auto, f16=True)
    assert "products that may round to f16" == half.lacks(replace(exact, f16=True))
    assert "" == replace(half, precision="exact").lacks(replace(exact, f16=True))
