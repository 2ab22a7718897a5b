"""The option --size: names of sizes with values or ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer


def parse_sizes(texts: Sequence[str]) -> dict[str, list[int]]:
    """`input 0[1]=1..512`, `input 0[1]=1,2,8..16`; repeated names add up."""
    found: dict[str, list[int]] = {}
    for text in texts:
        match = re.fullmatch(r"\s*(.+?)\s*=\s*(-?\d+(?:\.\.-?\d+)?(?:,-?\d+(?:\.\.-?\d+)?)*)\s*", text)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not of the form 'input 0[1]=1..512'", param_hint="--size")
        for part in match[2].split(","):
            low, _, high = part.partition("..")
            values = range(int(low), int(high or low) + 1)
            if not values:
                raise typer.BadParameter(f"{text!r}: the range is empty", param_hint="--size")
            found.setdefault(match[1], []).extend(values)
    return found


def one_size_each(texts: Sequence[str]) -> dict[str, int]:
    """As `parse_sizes`, with one value for each name."""
    found = parse_sizes(texts)
    for name, values in found.items():
        if len(values) != 1:
            raise typer.BadParameter(f"{name} has {len(values)} values, it can be shown at one", param_hint="--size")
    return {name: value for name, (value,) in found.items()}
