"""The set-up scripts, with fake `apt-get`, `sudo` and other commands that only log their calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
APT = "env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120"
INSTALL = f"{APT} install -y --no-install-recommends"
VULKAN = "WebGPU finds no adapter; Mesa's drivers for Vulkan have one for any machine."


class Machine:
    """A PATH with fake commands before those of the system."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log = folder / "bin", folder / "log"
        self.bin.mkdir()
        self.log.touch()
        self.command("id", "echo 0")
        self.command("dpkg-query", "exit 1")  # nothing is installed
        self.command("apt-get")
        self.command("sudo", '[ "$1" = -n ] && shift; "$@"')

    def command(self, name: str, does: str = "") -> None:
        noted = "" if name in ("id", "dpkg-query") else f'echo "{name} $*" >>{self.log}\n'
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{noted}{does}\n")
        path.chmod(0o755)

    def run(self, script: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        command = [TOOLS / script, *arguments]
        done = subprocess.run(command, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    @property
    def calls(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(("apt-get", "sudo"))]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_line_is_said_before_it_runs(machine: Machine) -> None:
    assert (0, "", f"Why. Installing one two:\n+ {INSTALL} one two\n") == machine.run(
        "install.sh", "Why.", "one", "two"
    )
    assert ["apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends one two"] == machine.calls


def test_only_what_is_missing_is_installed(machine: Machine) -> None:
    machine.command("dpkg-query", '[ "${@: -1}" = one ] && echo installed')
    assert (0, "", f"Why. Installing two:\n+ {INSTALL} two\n") == machine.run("install.sh", "Why.", "one", "two")
    assert (0, "", "") == machine.run("install.sh", "Why.", "one")
    assert 1 == len(machine.calls)


def test_install_0_only_prints(machine: Machine) -> None:
    message = f"Why. Nothing is installed; run: {INSTALL} one\n"
    assert (1, "", message) == machine.run("install.sh", "Why.", "one", INSTALL="0")
    assert [] == machine.calls


def test_lists_of_packages_are_renewed_if_need_be(machine: Machine) -> None:
    machine.command("apt-get", f'[ "$3" = update ] || [ "$(grep -c update {machine.log})" = 1 ]')
    message = f"Why. Installing one:\n+ {INSTALL} one\n+ {APT} update\n+ {INSTALL} one\n"
    assert (0, "", message) == machine.run("install.sh", "Why.", "one")


def test_what_fails_says_so(machine: Machine) -> None:
    machine.command("apt-get", "echo no such package; exit 100")
    code, _, errors = machine.run("install.sh", "Why.", "one")
    assert (1, "no such package") == (code, errors.splitlines()[-1])


def test_others_than_root_go_through_sudo(machine: Machine) -> None:
    machine.command("id", "echo 1000")
    assert (0, "", f"Why. Installing one:\n+ sudo -n {INSTALL} one\n") == machine.run("install.sh", "Why.", "one")
    machine.command("sudo", "exit 1")  # as if it asked for a password
    before = len([c for c in machine.calls if c.startswith("apt-get")])
    message = f"Why. Nothing is installed; run: sudo {INSTALL} one\n"
    assert (1, "", message) == machine.run("install.sh", "Why.", "one")
    assert before == len([c for c in machine.calls if c.startswith("apt-get")])


def test_nothing_is_installed_where_an_adapter_exists(machine: Machine) -> None:
    machine.command("python")
    assert (0, "", "") == machine.run("ensure-vulkan.sh", "python")
    assert [] == machine.calls


def test_drivers_are_installed_where_none_exists(machine: Machine, tmp_path: Path) -> None:
    machine.command("python", f"[ -e {tmp_path}/driver ] || exit 3")
    machine.command("apt-get", f"touch {tmp_path}/driver")
    line = f"{INSTALL} libvulkan1 mesa-vulkan-drivers"
    packages = "libvulkan1 mesa-vulkan-drivers"
    message = f"{VULKAN} Nothing is installed; run: {line}\n"
    assert (1, "", message) == machine.run("ensure-vulkan.sh", "python", INSTALL="0")
    assert (0, "", f"{VULKAN} Installing {packages}:\n+ {line}\n") == machine.run("ensure-vulkan.sh", "python")


def test_drivers_without_an_adapter(machine: Machine) -> None:
    machine.command("python", "exit 3")
    code, _, errors = machine.run("ensure-vulkan.sh", "python")
    packages = "libvulkan1 mesa-vulkan-drivers"
    assert (1, f"{packages} are installed, but WebGPU still finds no adapter.") == (code, errors.splitlines()[-1])


def test_a_search_that_fails_installs_nothing(machine: Machine) -> None:
    machine.command("python", "echo no wgpu; exit 1")
    assert (1, "", "no wgpu\n") == machine.run("ensure-vulkan.sh", "python")
    assert [] == machine.calls


def test_chromium_is_used_if_there(machine: Machine) -> None:
    machine.command("chromium")
    assert (0, f"{machine.bin}/chromium\n", "") == machine.run("chromium.sh")
    assert [] == machine.calls


def test_a_python_without_venv(machine: Machine, tmp_path: Path) -> None:
    machine.command("python", 'case "$2" in *ensurepip*) exit 1;; *print*) echo python3.11;; esac')
    message = f"python cannot make virtual environments. Nothing is installed; run: {INSTALL} python3.11-venv\n"
    assert (1, "", message) == machine.run("make-venv.sh", "python", INSTALL="0")
    assert [] == machine.calls
