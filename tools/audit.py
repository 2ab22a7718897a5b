"""Asks the database of OSV about every package of requirements/*.txt, in its locked version.

    make audit

Prints what is known against them. Ends with 0 where that is nothing, with 1 where there is something, and with 2 where
the database did not answer: then nothing was audited.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "requirements"
DATABASE = "https://api.osv.dev/v1/querybatch"
PIN = re.compile(r"^([\w.-]+)==([\w.+!-]+)", re.MULTILINE)


def pins(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Name and version of every package of any file."""
    return sorted({pin for path in folder.glob("*.txt") for pin in PIN.findall(path.read_text("utf-8"))})


def known(packages: list[tuple[str, str]]) -> list[tuple[str, str, list[str]]]:
    """Those against which something is known, with its names."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    request = urllib.request.Request(DATABASE, json.dumps({"queries": queries}).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        results = json.load(answer)["results"]
    found = zip(packages, results, strict=True)
    return [(*pin, [v["id"] for v in result["vulns"]]) for pin, result in found if result.get("vulns")]


def main() -> int:
    packages = pins()
    try:
        found = known(packages)
    except (OSError, ValueError, KeyError) as e:
        print(f"error: nothing was audited: {DATABASE} does not answer ({e})", file=sys.stderr)
        return 2
    for name, version, names in found:
        print(f"{name} {version}: {', '.join(names)}")
    print(f"{len(packages)} packages, {len(found)} with something known against them")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
