"""Where a checkpoint comes from, as its folder says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import ExportError, PtegpuError
from ..files import check_inside, read

HUB = "models--"  # what folders of the cache of Hugging Face begin with
LICENCE = re.compile(rb"\A---\r?\n(?:.*\n)*?license:[ ]*([\w.+-]+)[ ]*\r?\n")


def origin_of(folder: Path) -> dict[str, Any]:
    """Return the name of a checkpoint and its licence, where they are known."""
    place = folder.resolve()
    cached = place.parent.parent.name if place.parent.name == "snapshots" else ""
    name = cached.removeprefix(HUB).replace("--", "/") if cached.startswith(HUB) else place.name
    found: dict[str, Any] = {"origin": name}
    page = folder / "README.md"
    try:
        check_inside(page, folder, ExportError)
        if match := LICENCE.match(read(page, ExportError, 1 << 20)):
            found["licence"] = match[1].decode()
    except (OSError, PtegpuError):  # a card without a licence is as good
        pass
    return found
