"""Ask the OSV database about every package of requirements/*.txt, in its locked version.

    make audit

Print their known vulnerabilities. Exit with 0 if there are none, with 1 if there are some, and with 2 if the database
did not answer: then nothing was audited.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "requirements"
DATABASE = "https://api.osv.dev/v1/querybatch"
PIN = re.compile(r"^([\w.-]+)==([\w.!-]+)", re.MULTILINE)


def pins(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Return the name and version of every package in the files."""
    return sorted({pin for path in folder.glob("*.txt") for pin in PIN.findall(path.read_text("utf-8"))})


def vulnerabilities(packages: list[tuple[str, str]]) -> list[tuple[str, str, list[str]]]:
    """Return the packages with known vulnerabilities, each with the names of these."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    request = urllib.request.Request(DATABASE, json.dumps({"queries": queries}).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        results = json.load(answer)["results"]
    pairs = zip(packages, results, strict=True)
    return [(*pin, [v["id"] for v in result["vulns"]]) for pin, result in pairs if result.get("vulns")]


def main() -> int:
    packages = pins()
    try:
        vulnerable = vulnerabilities(packages)
    except (OSError, ValueError, KeyError) as e:
        print(f"error: nothing was audited: {DATABASE} does not answer ({e})", file=sys.stderr)
        return 2
    for name, version, names in vulnerable:
        print(f"{name} {version}: {', '.join(names)}")
    print(f"{len(packages)} packages, {len(vulnerable)} with known vulnerabilities")
    return bool(vulnerable)


if __name__ == "__main__":
    sys.exit(main())
