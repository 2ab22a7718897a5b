"""Constraints that hold every direct requirement of ptegpu at the lowest version that pyproject.toml allows.

python -m tools.lowest > lowest.txt && pip install ptegpu -c lowest.txt
"""

from __future__ import annotations

import re

from tools.lock import project, requirements

LOWEST = re.compile(r"(?:>=|==)\s*([0-9.]+?)(?:\.\*)?$")


def lowest() -> list[str]:
    """Return `name==version` for each requirement with a lower bound."""
    pins = {}
    for requirement in requirements(project()):
        for specifier in str(requirement.specifier).split(","):
            if match := LOWEST.match(specifier):
                series = specifier.endswith("*")  # any patch release of it
                pins[requirement.name] = f"{requirement.name}{f'~={match[1]}.0' if series else f'=={match[1]}'}"
    return sorted(pins.values())


if __name__ == "__main__":
    print("\n".join(lowest()))
