"""`ptegpu doctor`: what this machine has, what is missing and how to get it, whether its adapter computes correctly."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import ptegpu

from ..errors import PtegpuError
from ..units import counted, duration, number, size
from .console import explain, print_json, progress, say, show_table
from .options import Engine

if TYPE_CHECKING:
    from ..gpu import AdapterInfo

FEATURES = {"f16": "shader-f16", "subgroups": "subgroups", "timestamps": "timestamp-query"}
LIMITS = {  # shown as: wgpu's name
    "binding": "max-storage-buffer-binding-size",
    "buffer": "max-buffer-size",
    "shared": "max-compute-workgroup-storage-size",
    "invocations": "max-compute-invocations-per-workgroup",
    "storage_buffers": "max-storage-buffers-per-shader-stage",
}
VARIABLES = (
    *("PTEGPU_DEVICE", "PTEGPU_ENGINE", "PTEGPU_ROBUST", "PTEGPU_CACHE"),
    *("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"),
)
NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
LOADER = "apt-get install libvulkan1"


def doctor(
    device: Annotated[str, typer.Option(help="The adapter to check: auto, an index, or part of a name.")] = "auto",
    engine: Engine = "auto",
    measure: Annotated[bool, typer.Option("--measure", help="Measure it, and tune later plans to that.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show engines, adapters and drivers, say what is missing, and check kernels against NumPy."""
    with progress("Looking for adapters"):
        report = examine(device, engine, measure)
    if json:
        print_json(report)
    else:
        _show(report)
    if not report["healthy"]:
        raise typer.Exit(1)


def examine(device: str, engine: Engine = "auto", measure: bool = False) -> dict[str, Any]:
    """Everything that is known about GPUs here, with `healthy` as the verdict."""
    report: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("ptegpu", "numpy")},
        "variables": {},
        "vulkan": None,
        "engines": [],
        "auto": None,  # the engine and the index of an adapter
        "chosen": None,
        "class": None,
        "checks": [],
        "problems": [],
        "healthy": False,
    }
    from .. import gpu
    from ..gpu import vulkan
    from .selfcheck import run_checks

    before = dict(os.environ)
    try:
        infos: list[AdapterInfo] = []
        for name, (package, install) in gpu.PACKAGES.items():
            found = gpu.adapters(name) if gpu.installed(name) else []
            infos += found
            report["engines"].append(
                {
                    "name": name,
                    "package": package,
                    "version": _version(package),
                    "install": None if gpu.installed(name) else f"pip install {install}",
                    "adapters": [_adapter(info) for info in found],
                    "said": gpu.said(name),
                }
            )
        if sys.platform == "linux":
            there = vulkan.load_loader()
            drivers = [str(file) for file in vulkan.icd_files()]
            report["vulkan"] = {"loader": _loaded("libvulkan.so") if there else None, "drivers": drivers}
            report["problems"] += nvidia_hints({info.vendor for info in infos}, there)
        report["variables"] = {
            name: {"value": os.environ[name], "set_by_ptegpu": before.get(name) != os.environ[name]}
            for name in VARIABLES
            if os.environ.get(name)
        }
        report["auto"] = _place(gpu.find())
        report["chosen"] = _place(gpu.find(device, engine))
        opened = gpu.open_device(device, engine=engine)
        report["subgroup_size"] = opened.target.subgroup_size
        report["available_bytes"] = opened.available_bytes()
        report["class"] = asdict(opened.target.device_class)
        report["checks"] = [asdict(outcome) for outcome in run_checks(opened)]
        if measure:
            report["class"] = asdict(gpu.measure(opened, keep=True))
    except PtegpuError as e:
        report["problems"].append(str(e))
    report["healthy"] = bool(report["checks"]) and all(check["passed"] for check in report["checks"])
    return report


def nvidia_hints(vendors: set[str], loader: bool, version_file: Path = NVIDIA_VERSION) -> list[str]:
    """What keeps an NVIDIA GPU whose driver is loaded from being an adapter."""
    if "NVIDIA" in vendors or not version_file.exists():
        return []
    match = re.search(r"\b(\d{3})\.\d+", version_file.read_text(errors="replace"))
    branch = match[1] if match else "…"
    try:
        ctypes.CDLL("libEGL_nvidia.so.0")
    except OSError:
        return [
            f"an NVIDIA driver ({branch}) is loaded, but its Vulkan library libEGL_nvidia.so.0 is missing. Run: "
            f"apt-get install libnvidia-gl-{branch} (Ubuntu) or nvidia-vulkan-icd (Debian); start a container with "
            "NVIDIA_DRIVER_CAPABILITIES=all"
        ]
    if not loader:
        return [
            f"an NVIDIA driver ({branch}) and its Vulkan library are there; only the loader is missing. Run: {LOADER}"
        ]
    return [
        f"an NVIDIA driver ({branch}) and its Vulkan library are there, but give no adapter: VK_DRIVER_FILES or "
        "VK_ICD_FILENAMES may point elsewhere, or /dev/nvidia* may be out of reach"
    ]


def _place(info: AdapterInfo) -> dict[str, Any]:
    return {"engine": info.engine, "index": info.index}


def _version(package: str) -> str | None:
    if package == "ptegpu":
        return ptegpu.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _loaded(library: str) -> str:
    """Where a library that this process has loaded is."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return library
    found = re.search(rf"\S*/{re.escape(library)}\S*", maps)
    return found[0] if found else library


def _adapter(info: AdapterInfo) -> dict[str, Any]:
    return {
        "index": info.index,
        "name": info.name,
        "type": info.type,
        "backend": info.backend,
        "vendor": info.vendor,
        "driver": info.driver,
        "features": {name: feature in info.features for name, feature in FEATURES.items()},
        "matrices": list(info.matrices),
        "limits": {name: info.limits.get(limit) for name, limit in LIMITS.items()},
    }


def _show(report: Mapping[str, Any]) -> None:
    packages = " · ".join(f"{name} {version or 'missing'}" for name, version in report["packages"].items())
    _line("system", f"{report['system']} · Python {report['python']} · {packages}")
    if report["vulkan"]:
        say(("Vulkan    ", "bold"), report["vulkan"]["loader"] or ("no loader (libvulkan.so.1)", "red"))
        drivers = report["vulkan"]["drivers"]
        for k, driver in enumerate(drivers or [""]):
            say((f"{'' if k else 'drivers':<10}", "bold"), ("" if drivers else "none registered", "red"), driver)
    for name, variable in report["variables"].items():
        say(f"          {name}={variable['value']}", " (set by ptegpu)" if variable["set_by_ptegpu"] else "")
    for engine in report["engines"]:
        _show_engine(engine, report["auto"])
    if report["chosen"] is not None:
        _show_chosen(report)
    if report["checks"]:
        _show_checks(report)
    for problem in report["problems"]:
        explain(problem, "problem: ", "bold red", indent=9)
    if report["healthy"]:
        say(("healthy", "bold green"))


def _show_engine(engine: Mapping[str, Any], auto: Mapping[str, Any] | None) -> None:
    say()
    package = f"{engine['package']} {engine['version']}{'' if engine['adapters'] else ', sees no adapter'}"
    _line(
        "engine",
        f"{engine['name']} · " + (f"not installed. Run: {engine['install']}" if engine["install"] else package),
    )
    if engine["said"] and not engine["adapters"]:
        _line("", engine["said"][0])
    for adapter in engine["adapters"]:
        limits = adapter["limits"]
        features = ", ".join(name for name, there in adapter["features"].items() if there) or "none"
        chosen = " · chosen by auto" if auto == {"engine": engine["name"], "index": adapter["index"]} else ""
        say((f"adapter {adapter['index']:<2}", "bold"), adapter["name"], (chosen, "green"))
        _line("", f"{adapter['type']}, {adapter['backend']}" + (f", {adapter['driver']}" if adapter["driver"] else ""))
        _line("", f"features: {features}")
        if adapter["matrices"]:
            _line("", f"matrices: {', '.join(adapter['matrices'])}")
        _line("", f"buffers of {size(limits['buffer'])}, {size(limits['binding'])} of one bound at a time")
        groups = f"workgroups of {limits['invocations']:,} with {size(limits['shared'])} of shared memory"
        _line("", f"{groups}, {limits['storage_buffers']:,} storage buffers")


def _show_chosen(report: Mapping[str, Any]) -> None:
    free = report.get("available_bytes")
    memory = f", {size(free)} free" if free else ""
    lanes = f", subgroups of {report['subgroup_size']}" if report.get("subgroup_size") else ""
    engine, index = report["chosen"]["engine"], report["chosen"]["index"]
    adapters = next(found["adapters"] for found in report["engines"] if found["name"] == engine)
    say()
    _line("checked", f"{index}: {adapters[index]['name']} on {engine}{memory}{lanes}")
    if report["class"]:
        _line("class", _class(report["class"]))


def _class(found: Mapping[str, Any]) -> str:
    """What it is, its figures, and where they are from."""
    source = "measured" if found["measured"] else "assumed: ptegpu doctor --measure finds them out"
    rates = f"{number(found['bandwidth'] / 1e9)} GB/s, {number(found['flops'] / 1e12)} TFLOP/s (f32)"
    times = f"{duration(found['dispatch_seconds'])} per dispatch, {counted(found['units'], 'parallel unit')}"
    return f"{found['name']} · {rates}, {times} ({source})"


def _line(name: str, text: str) -> None:
    explain(text, f"{name:<10}", "bold", indent=10)


def _show_checks(report: Mapping[str, Any]) -> None:
    rows = []
    for check in report["checks"]:
        verdict = Text("pass", "green") if check["passed"] else Text("FAIL", "bold red")
        error = check["problem"] or ("exact" if check["error"] == 0 else number(check["error"]))
        rows.append([check["name"], check["operator"], verdict, error])
    show_table("", ["self-check", "operator", "", "error against NumPy"], rows)
