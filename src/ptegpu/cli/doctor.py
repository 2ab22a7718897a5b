"""`ptegpu doctor`: the GPUs of this machine, what is missing and how to get it, and a test of the adapter."""

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
from .console import progress
from .options import EngineName
from .report import CommandReport

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
    *("PTEGPU_DEVICE", "PTEGPU_ENGINE", "PTEGPU_PERSISTENT", "PTEGPU_ROBUST", "PTEGPU_CACHE"),
    *("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"),
)
NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
LOADER = "apt-get install libvulkan1"


def doctor(
    device: Annotated[str, typer.Option(help="The adapter to check: auto, an index, or part of a name.")] = "auto",
    engine: EngineName = "auto",
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the adapter, and tune later plans to the result.")
    ] = False,
) -> CommandReport:
    """Show engines, adapters and drivers, report what is missing, and check kernels against NumPy."""
    with progress("Looking for adapters"):
        record = examine(device, engine, measure)
    report = CommandReport(record, exit_code=0 if record["healthy"] else 1)
    _add_system(report)
    for name in record["engines"]:
        _add_engine(report, name, record["auto"])
    if record["chosen"] is not None:
        _add_chosen(report)
    if record["checks"]:
        report.table(["self-check", "operator", "", "error against NumPy"], map(_check_row, record["checks"]))
    for problem in record["problems"]:
        report.paragraph(problem, "problem: ", "bold red", indent=9)
    if record["healthy"]:
        report.line(("healthy", "bold green"))
    return report


def examine(device: str, engine: EngineName, measure: bool) -> dict[str, Any]:
    """Return what is known about the GPUs of this machine, with `healthy` as the verdict."""
    from .. import gpu
    from ..gpu import residency, vulkan
    from .selfcheck import run_checks

    record: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("ptegpu", "numpy")},
        "variables": {},
        "vulkan": None,
        "engines": [],
        "auto": None,  # the engine and the index of an adapter
        "chosen": None,
        "class": None,
        "residency": None,
        "checks": [],
        "problems": [],
        "healthy": False,
    }
    before = dict(os.environ)
    try:
        infos: list[AdapterInfo] = []
        for name, (package, install) in gpu.PACKAGES.items():
            adapters = gpu.adapters(name) if gpu.installed(name) else []
            infos += adapters
            record["engines"].append(
                {
                    "name": name,
                    "package": package,
                    "version": _version(package),
                    "install": None if gpu.installed(name) else f"pip install {install}",
                    "adapters": [_adapter(info) for info in adapters],
                    "said": gpu.engine_messages(name),
                }
            )
        if sys.platform == "linux":
            has_loader = vulkan.load_loader()
            drivers = [str(file) for file in vulkan.icd_files()]
            record["vulkan"] = {"loader": _loaded("libvulkan.so") if has_loader else None, "drivers": drivers}
            record["problems"] += nvidia_hints({info.vendor for info in infos}, has_loader)
        record["variables"] = {
            name: {"value": os.environ[name], "set_by_ptegpu": before.get(name) != os.environ[name]}
            for name in VARIABLES
            if os.environ.get(name)
        }
        record["auto"] = _place(gpu.find_adapter())
        record["chosen"] = _place(gpu.find_adapter(device, engine))
        opened = gpu.open_device(device, engine=engine, persistent="off")
        record["subgroup_size"] = opened.target.subgroup_size
        record["available_bytes"] = opened.available_bytes()
        record["class"] = asdict(opened.target.device_class)
        record["checks"] = [asdict(outcome) for outcome in run_checks(opened)]
        if measure:
            record["class"] = asdict(gpu.measure(opened, keep=True))
        verdict = (residency.renew if measure else residency.verdict)(opened)
        auto = verdict.workgroups > 0 and opened.info.type != "software"
        record["residency"] = asdict(verdict) | {"auto": auto}
    except PtegpuError as e:
        record["problems"].append(str(e))
    record["healthy"] = bool(record["checks"]) and all(check["passed"] for check in record["checks"])
    return record


def nvidia_hints(vendors: set[str], has_loader: bool, version_file: Path = NVIDIA_VERSION) -> list[str]:
    """Return why an NVIDIA GPU whose driver is loaded is not among the adapters."""
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
    driver = f"an NVIDIA driver ({branch}) and its Vulkan library are there"
    if not has_loader:
        return [f"{driver}; only the loader is missing. Run: {LOADER}"]
    return [
        f"{driver}, but give no adapter: VK_DRIVER_FILES or VK_ICD_FILENAMES may point elsewhere, or /dev/nvidia* may "
        "be out of reach"
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
    """Return the path of a library that this process has loaded."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return library
    match = re.search(rf"\S*/{re.escape(library)}\S*", maps)
    return match[0] if match else library


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


def _add(report: CommandReport, name: str, text: str) -> None:
    report.paragraph(text, f"{name:<10}", "bold", indent=10)


def _add_system(report: CommandReport) -> None:
    record = report.record
    packages = " · ".join(f"{name} {version or 'missing'}" for name, version in record["packages"].items())
    _add(report, "system", f"{record['system']} · Python {record['python']} · {packages}")
    if record["vulkan"]:
        report.line(("Vulkan    ", "bold"), record["vulkan"]["loader"] or ("no loader (libvulkan.so.1)", "red"))
        drivers = record["vulkan"]["drivers"]
        for k, driver in enumerate(drivers or [("none registered", "red")]):
            report.line((f"{'' if k else 'drivers':<10}", "bold"), driver)
    for name, variable in record["variables"].items():
        report.line(f"          {name}={variable['value']}", " (set by ptegpu)" if variable["set_by_ptegpu"] else "")


def _add_engine(report: CommandReport, engine: Mapping[str, Any], auto: Mapping[str, Any] | None) -> None:
    report.line()
    package = f"{engine['package']} {engine['version']}{'' if engine['adapters'] else ', sees no adapter'}"
    status = f"not installed. Run: {engine['install']}" if engine["install"] else package
    _add(report, "engine", f"{engine['name']} · {status}")
    if engine["said"] and not engine["adapters"]:
        _add(report, "", engine["said"][0])
    for adapter in engine["adapters"]:
        limits = adapter["limits"]
        features = ", ".join(name for name, present in adapter["features"].items() if present) or "none"
        chosen = " · chosen by auto" if auto == {"engine": engine["name"], "index": adapter["index"]} else ""
        report.line((f"adapter {adapter['index']:<2}", "bold"), adapter["name"], (chosen, "green"))
        driver = f", {adapter['driver']}" if adapter["driver"] else ""
        _add(report, "", f"{adapter['type']}, {adapter['backend']}{driver}")
        _add(report, "", f"features: {features}")
        if adapter["matrices"]:
            _add(report, "", f"matrices: {', '.join(adapter['matrices'])}")
        _add(report, "", f"buffers of {size(limits['buffer'])}, {size(limits['binding'])} of one bound at a time")
        groups = f"workgroups of {limits['invocations']:,} with {size(limits['shared'])} of shared memory"
        _add(report, "", f"{groups}, {limits['storage_buffers']:,} storage buffers")


def _add_chosen(report: CommandReport) -> None:
    record = report.record
    free = record.get("available_bytes")
    memory = f", {size(free)} free" if free else ""
    lanes = f", subgroups of {record['subgroup_size']}" if record.get("subgroup_size") else ""
    engine, index = record["chosen"]["engine"], record["chosen"]["index"]
    adapters = next(row["adapters"] for row in record["engines"] if row["name"] == engine)
    report.line()
    _add(report, "checked", f"{index}: {adapters[index]['name']} on {engine}{memory}{lanes}")
    if device := record["class"]:
        source = "measured" if device["measured"] else "assumed: ptegpu doctor --measure finds them out"
        rates = f"{number(device['bandwidth'] / 1e9)} GB/s, {number(device['flops'] / 1e12)} TFLOP/s (f32)"
        times = f"{duration(device['dispatch_seconds'])} per dispatch, {counted(device['units'], 'parallel unit')}"
        _add(report, "class", f"{device['name']} · {rates}, {times} ({source})")
    if verdict := record["residency"]:
        _add(report, "", f"one dispatch per step: {_residency(verdict)}")


def _residency(verdict: Mapping[str, Any]) -> str:
    if not verdict["workgroups"]:
        return f"no: {verdict['reason']}"
    answer = "yes" if verdict["auto"] else "only with --persistent on"
    barrier = f"barrier {duration(verdict['barrier_seconds'])} ({counted(verdict['rounds'], 'round')})"
    return f"{answer}, {counted(verdict['workgroups'], 'workgroup')}, {barrier}"


def _check_row(check: Mapping[str, Any]) -> list[object]:
    verdict = Text("pass", "green") if check["passed"] else Text("FAIL", "bold red")
    error = check["problem"] or ("exact" if check["error"] == 0 else number(check["error"]))
    return [check["name"], check["operator"], verdict, error]
