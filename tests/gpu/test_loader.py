"""The Vulkan loader's surroundings, in made-up folders and environments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ptegpu.gpu import vulkan


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Linux host whose libraries and driver files are all below one folder, and whose loader loads."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(vulkan, "_LIBRARY_FOLDERS", (str(tmp_path / "lib"),))
    monkeypatch.setattr(vulkan, "load_loader", lambda: True)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def environment(host: Path, **more: str) -> dict[str, str]:
    below = {"HOME": "home", "XDG_CONFIG_DIRS": "etc", "XDG_DATA_DIRS": "share", "XDG_RUNTIME_DIR": "run"}
    return {name: str(host / folder) for name, folder in below.items()} | more


def register(host: Path, name: str) -> Path:
    file = host / "share/vulkan/icd.d" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    return file


def install_nvidia(host: Path) -> Path:
    library = host / "lib/libEGL_nvidia.so.0"
    library.parent.mkdir()
    library.touch()
    return library


def test_an_unregistered_nvidia_driver_is_registered(host):
    library = install_nvidia(host)
    environ = environment(host)
    vulkan.configure(environ)
    assert environ["VK_DRIVER_FILES"] == environ["VK_ICD_FILENAMES"]
    written = json.loads(Path(environ["VK_DRIVER_FILES"]).read_text())
    assert str(library) == written["ICD"]["library_path"]


def test_it_is_added_to_the_drivers_of_others(host):
    install_nvidia(host)
    register(host, "lvp_icd.json")
    environ = environment(host)
    vulkan.configure(environ)
    assert Path(environ["VK_ADD_DRIVER_FILES"]).name == "nvidia_icd.json"
    assert "VK_DRIVER_FILES" not in environ
    assert [file.name for file in vulkan.icd_files(environ)] == ["nvidia_icd.json", "lvp_icd.json"]


def test_a_registered_nvidia_driver_is_left_alone(host):
    install_nvidia(host)
    register(host, "nvidia_icd.json")
    environ = environment(host)
    vulkan.configure(environ)
    assert environment(host) == environ


@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"])
def test_what_the_user_set_is_left_alone(host, variable):
    install_nvidia(host)
    environ = environment(host, **{variable: "mine.json"})
    vulkan.configure(environ)
    assert environment(host, **{variable: "mine.json"}) == environ


def test_without_nvidia_nothing_is_set(host):
    environ = environment(host)
    vulkan.configure(environ)
    assert environment(host) == environ


def test_mesa_is_kept_quiet_where_there_is_no_session(host):
    environ = environment(host)
    del environ["XDG_RUNTIME_DIR"]
    vulkan.configure(environ)
    assert environ["NODEVICE_SELECT"] == "1"


def test_a_folder_of_driver_files_can_be_named(host):
    files = [register(host, name) for name in ("a.json", "b.json")]
    assert files == vulkan.icd_files(environment(host, VK_DRIVER_FILES=str(files[0].parent)))
    assert files[1:] == vulkan.icd_files(environment(host, VK_ICD_FILENAMES=f"{files[1]}:gone.json"))


def test_no_loader(host, monkeypatch):
    monkeypatch.setattr(vulkan, "load_loader", lambda: False)
    assert vulkan.diagnosis(environment(host)) == (
        "No GPU adapter: the Vulkan loader (libvulkan.so.1) is missing. "
        "Run: apt-get install libvulkan1 mesa-vulkan-drivers"
    )


def test_no_driver(host, monkeypatch):
    monkeypatch.setattr(vulkan, "_SYSTEM_CONFIG", str(host / "etc"))
    assert vulkan.diagnosis(environment(host)) == (
        "No GPU adapter: the Vulkan loader is there, but no driver is registered with it. "
        "Run: apt-get install libvulkan1 mesa-vulkan-drivers"
    )


def test_no_adapter_of_the_drivers(host, monkeypatch):
    monkeypatch.setattr(vulkan, "_SYSTEM_CONFIG", str(host / "etc"))
    register(host, "radeon_icd.json")
    assert vulkan.diagnosis(environment(host)) == (
        "No GPU adapter: the registered Vulkan drivers (radeon_icd.json) find no GPU. "
        "For a software adapter run: apt-get install libvulkan1 mesa-vulkan-drivers"
    )
