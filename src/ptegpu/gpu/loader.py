"""The Vulkan loader, before wgpu starts it: finds it, points it at an unregistered driver, or says what is missing.

Compute images often carry NVIDIA's libraries without the file that registers them; `configure` writes that file.
It leaves alone whatever an administrator or the user has set up.
"""

from __future__ import annotations

import atexit
import ctypes
import ctypes.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, MutableMapping
from pathlib import Path

INSTALL = "apt-get install libvulkan1 mesa-vulkan-drivers"

_DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_SYSTEM_CONFIG = "/etc"
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
)


def configure(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make the loader find the drivers. Call it before wgpu makes its instance; calling it again changes nothing."""
    if sys.platform != "linux":
        return
    if not environ.get("XDG_RUNTIME_DIR"):
        environ.setdefault("NODEVICE_SELECT", "1")  # Mesa's device-select layer complains on stderr without a session
    load_loader()
    if any(environ.get(name) for name in _DRIVER_VARIABLES) or environ.get("VK_ADD_DRIVER_FILES"):
        return
    registered = icd_files(environ)
    nvidia = _find("libEGL_nvidia.so.0")
    if nvidia is None or any("nvidia" in file.name for file in registered):
        return
    icd = str(_write_icd(nvidia))
    for name in ("VK_ADD_DRIVER_FILES",) if registered else _DRIVER_VARIABLES:
        environ[name] = icd


def load_loader() -> bool:
    """Load the Vulkan loader, so that wgpu finds it by its name; return whether that worked."""
    for name in (lambda: "libvulkan.so.1", lambda: _find("libvulkan.so.1"), lambda: ctypes.util.find_library("vulkan")):
        try:
            ctypes.CDLL(str(name()), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False


def icd_files(environ: MutableMapping[str, str] = os.environ) -> list[Path]:
    """List the files that register Vulkan drivers, where the loader looks for them."""
    explicit = [environ[name] for name in _DRIVER_VARIABLES if environ.get(name)]
    if explicit:
        return _json_files(Path(part) for part in explicit[0].split(os.pathsep))
    home = Path(environ.get("HOME") or "/")
    config = [environ.get("XDG_CONFIG_HOME") or str(home / ".config"), *_split(environ, "XDG_CONFIG_DIRS", "/etc/xdg")]
    data = [
        environ.get("XDG_DATA_HOME") or str(home / ".local/share"),
        *_split(environ, "XDG_DATA_DIRS", "/usr/local/share:/usr/share"),
    ]
    folders = [Path(folder) / "vulkan/icd.d" for folder in (*config, _SYSTEM_CONFIG, *data)]
    added = [Path(part) for part in _split(environ, "VK_ADD_DRIVER_FILES", "")]
    return _json_files([*added, *folders])


def diagnosis(environ: MutableMapping[str, str] = os.environ) -> str:
    """Explain why there is no adapter, and what to run."""
    if sys.platform != "linux":
        return "No GPU adapter was found; install or update the graphics driver"
    if not load_loader():
        return f"No GPU adapter: the Vulkan loader (libvulkan.so.1) is missing. Run: {INSTALL}"
    files = icd_files(environ)
    if not files:
        return f"No GPU adapter: the Vulkan loader is there, but no driver is registered with it. Run: {INSTALL}"
    names = ", ".join(file.name for file in files)
    return f"No GPU adapter: the registered Vulkan drivers ({names}) find no GPU. For a software adapter run: {INSTALL}"


def _find(library: str) -> Path | None:
    folders = [*_split(os.environ, "LD_LIBRARY_PATH", ""), str(Path(sys.prefix) / "lib"), *_LIBRARY_FOLDERS]
    return next((path for folder in folders if (path := Path(folder) / library).exists()), None)


def _split(environ: MutableMapping[str, str], name: str, default: str) -> list[str]:
    return [part for part in (environ.get(name) or default).split(os.pathsep) if part]


def _json_files(places: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for place in places:
        found += sorted(place.glob("*.json")) if place.is_dir() else [place] if place.is_file() else []
    return found


def _write_icd(driver: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ptegpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "nvidia_icd.json"
    icd = {"library_path": str(driver), "api_version": "1.3.290"}
    file.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return file
