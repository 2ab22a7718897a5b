"""Write requirements/*.txt: the packages that `make` installs, with their versions and the hashes of their files.

    make lock

pip resolves pyproject.toml under constraints.txt once, for all files. Each file has the packages for some extras of
ptegpu, for Python 3.11 to 3.13 on x86-64 and ARM, with markers for those that only some of these need. Hashes come from
the index. PyTorch's build for CPUs, from another index, has a file of its own: pip would prefer the build of the index.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
INDEX = "https://pypi.org/simple"
EXTRAS = {"demo": ("llm",), "quick": ("quick",), "test": ("test",), "dev": ("dev",)}  # file → extras of ptegpu
BUILD = ("hatchling", "editables", "setuptools")  # to install ptegpu itself, and packages without wheels
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
LINK = re.compile(r'href="[^"#]*/([^"#/]+)#sha256=([0-9a-f]{64})"')


@dataclass(frozen=True)
class Package:
    version: str
    needs: tuple[Requirement, ...]
    chosen: str  # hash of the file that pip would install here


def project() -> dict[str, list[str]]:
    """Return ptegpu's requirements by extra or dependency group; "" are those of every installation."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = {"": table["project"]["dependencies"], **table["project"]["optional-dependencies"]}
    for name, group in table["dependency-groups"].items():
        named[name] = [f"ptegpu[{item['include-group']}]" if isinstance(item, dict) else item for item in group]
    return named


def digest() -> str:
    """Return a digest of all inputs of the files; a test compares it."""
    sources = json.dumps([project(), EXTRAS, BUILD, PYTHONS, MACHINES, (ROOT / "constraints.txt").read_text("utf-8")])
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def requirements(extras: Iterable[str]) -> list[Requirement]:
    """Return the requirements of ptegpu with these extras, which may name others."""
    results = []
    for text in [*project()[""], *(text for extra in extras for text in project()[extra])]:
        requirement = Requirement(text)
        results += requirements(requirement.extras) if requirement.name == "ptegpu" else [requirement]
    return results


def resolved() -> dict[str, Package]:
    """Return every package of the files, in the version that pip chooses here."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        needed = {str(r) for group in EXTRAS.values() for r in requirements(group)}
        command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", report]
        subprocess.run([*command, "-c", "constraints.txt", *sorted(needed), *BUILD], cwd=ROOT, check=True)
        items = json.loads(report.read_text())["install"]
    return dict(map(package, items))


def package(item: dict) -> tuple[str, Package]:
    about = item["metadata"]
    chosen = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
    needs = tuple(map(Requirement, about.get("requires_dist", ())))
    return canonicalize_name(about["name"]), Package(about["version"], needs, chosen)


def reached(extras: Iterable[str], packages: dict[str, Package], python: str, machine: str) -> set[str]:
    """Return the names of the packages that these extras need on a Python and a machine."""
    there = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    visited: set[tuple[str, str]] = set()
    left = [(r, "") for r in [*requirements(extras), *map(Requirement, BUILD)]]
    while left:
        requirement, extra = left.pop()
        if requirement.marker and not requirement.marker.evaluate({**there, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in packages:
            raise SystemExit(f"{requirement} is needed on Python {python} and {machine}, but not here: lock it by hand")
        for name_of_extra in ("", *requirement.extras):
            if (name, name_of_extra) not in visited:
                visited.add((name, name_of_extra))
                left += [(need, name_of_extra) for need in packages[name].needs]
    return {name for name, _ in visited}


def hashes(name: str, package: Package) -> list[str]:
    """Return the hashes of all wheels of a version that may be installed, or of its source without such wheels."""
    with urllib.request.urlopen(f"{INDEX}/{name}/") as page:
        files = LINK.findall(page.read().decode())
    plain = package.version.split("+")[0]
    files = [(file.lower().replace("%2b", "+"), sha) for file, sha in files]
    ours = [(file, sha) for file, sha in files if version_of(file) == plain]
    wheels = [sha for file, sha in ours if file.endswith(".whl") and fits(file)]
    sums = wheels or [sha for file, sha in ours if file.endswith((".tar.gz", ".zip"))]
    return sorted({*sums} | ({package.chosen} - {""} if plain == package.version else set()))


def version_of(file: str) -> str:
    return file.split("-")[1] if file.endswith(".whl") else re.sub(r"\.(tar\.gz|zip)$", "", file).rsplit("-", 1)[-1]


def fits(wheel: str) -> bool:
    """Return whether one of our Pythons may install a wheel on one of our machines."""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    ours = {"cp" + version.replace(".", "") for version in PYTHONS}
    runs = "py3" in python or bool(ours & {abi, *python.split(".")}) or abi == "abi3"
    return runs and (
        platform == "any" or ("linux" in platform and platform.endswith(MACHINES) and "musl" not in platform)
    )


def marker(where: set[tuple[str, str]]) -> str:
    """Return the marker for the Pythons and machines that need a package."""
    if len(where) == len(PYTHONS) * len(MACHINES):
        return ""
    pythons, machines = sorted({python for python, _ in where}), sorted({machine for _, machine in where})
    if len(where) != len(pythons) * len(machines):
        raise SystemExit(f"no marker is simple enough for {sorted(where)}")
    parts = []
    if len(machines) < len(MACHINES):
        parts.append(f'platform_machine == "{machines[0]}"')
    if len(pythons) < len(PYTHONS):
        parts.append("(" + " or ".join(f'python_version == "{python}"' for python in pythons) + ")")
    return " ; " + " and ".join(parts)


def main() -> None:
    packages = resolved()
    packages.pop("ptegpu", None)
    sums = {name: hashes(name, package) for name, package in sorted(packages.items())}
    for file, extras in EXTRAS.items():
        places = {(p, m): reached(extras, packages, p, m) for p in PYTHONS for m in MACHINES}
        lines: list[str] = []
        for name in sorted(set().union(*places.values())):
            pin = f"{name}=={packages[name].version.split('+')[0]}"
            lines.append(pin + marker({place for place, names in places.items() if name in names}) + " \\")
            lines += [f"    --hash=sha256:{sha} \\" for sha in sums[name]]
            lines[-1] = lines[-1].removesuffix(" \\")
        write(file, lines)
    torch = packages["torch"]
    if torch.version.endswith("+cpu"):
        write("cpu", [f"torch=={torch.version} --hash=sha256:{torch.chosen}"])


def write(file: str, lines: list[str]) -> None:
    text = "\n".join([f"# Written by `make lock`, of {digest()}", *lines]) + "\n"
    (ROOT / "requirements" / f"{file}.txt").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
