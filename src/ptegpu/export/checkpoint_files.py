"""The files of a checkpoint besides its config and its weights: the tokenizer, the origin and the licence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..errors import ExportError, PtegpuError
from ..files import check_inside, read, read_text
from .config_keys import read_optional

HUB = "models--"  # prefix of folders in the cache of Hugging Face
LICENCE = re.compile(rb"\A---\r?\n(?:.*\n)*?license:[ ]*([\w.+-]+)[ ]*\r?\n")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def read_origin(folder: Path) -> dict[str, Any]:
    """Return the name of a checkpoint and its licence, as far as its folder tells them."""
    place = folder.resolve()
    cached = place.parent.parent.name if place.parent.name == "snapshots" else ""
    origin = {"origin": cached.removeprefix(HUB).replace("--", "/") if cached.startswith(HUB) else place.name}
    page = folder / "README.md"
    try:
        check_inside(page, folder, ExportError)
        if match := LICENCE.match(read(page, ExportError, 1 << 20)):
            origin["licence"] = match[1].decode()
    except (OSError, PtegpuError):  # the licence is optional
        pass
    return origin


def read_tokenizer(folder: Path) -> dict[str, bytes]:
    """Return the files to write beside the program, by ending; none if the folder has no tokenizer."""
    tokenizer, settings, template = (folder / name for name in TOKENIZER)
    if not tokenizer.exists():
        return {}
    for file in (tokenizer, settings, template):
        check_inside(file, folder, ExportError)
    values = read_optional(settings)
    if template.exists():
        values["chat_template"] = read_text(template, ExportError)
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    return {
        ".tokenizer.json": read(tokenizer, ExportError),
        ".tokenizer_config.json": text.encode("utf-8", "backslashreplace"),  # an unpaired surrogate has no bytes
    }


def has_chat_template(tokenizer: dict[str, bytes]) -> bool:
    settings = tokenizer.get(".tokenizer_config.json")
    return settings is not None and bool(json.loads(settings).get("chat_template"))
