"""The class of an adapter: as measured once and kept in the user's cache folder, or as is assumed of its kind.

`PTEGPU_CACHE` names another folder; if it is `off`, nothing is kept and nothing read.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from .. import files
from ..errors import DeviceError
from ..plan.target import CLASSES, DeviceClass
from .adapters import AdapterInfo

LARGEST = 1 << 16  # bytes of an entry
VERSION = 1  # of the measurement: what another one kept does not count


def class_of(info: AdapterInfo) -> DeviceClass:
    """Return what was measured on an adapter or, failing that, what is assumed of its kind."""
    path = place(info)
    try:
        return _read(json.loads(files.read_kept(path, DeviceError, LARGEST)), info) if path else CLASSES[info.type]
    except (DeviceError, OSError, ValueError, LookupError, TypeError, RecursionError):
        return CLASSES[info.type]


def keep(info: AdapterInfo, found: DeviceClass) -> None:
    """Save what was measured on an adapter, all of it or nothing."""
    path = place(info)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.keep(path, json.dumps({"adapter": _key(info), **asdict(found)}, indent=2).encode())
    except OSError as e:
        raise DeviceError(f"{path} cannot be written ({e.strerror}): set PTEGPU_CACHE to another folder") from e


def place(info: AdapterInfo) -> Path | None:
    """Return the file of an adapter; None where nothing is to be kept."""
    folder = files.cache_folder()
    return folder and folder / f"adapter-{sha256(json.dumps(_key(info)).encode()).hexdigest()[:16]}.json"


def _key(info: AdapterInfo) -> list[str | int]:
    return [VERSION, info.name, info.backend, info.driver]


def _read(entry: Any, info: AdapterInfo) -> DeviceClass:
    """Return the entry; raise unless it is a measurement of this adapter."""
    found = DeviceClass(**{f.name: entry[f.name] for f in fields(DeviceClass)})
    figures = (found.bandwidth, found.flops, found.dispatch_seconds)
    here = (entry["adapter"], found.name, found.measured) == (_key(info), info.type, True)
    counted = type(found.units) is int and 0 < found.units < 1 << 16
    if not (here and counted and all(type(x) is float and 0 < x < math.inf for x in figures)):
        raise ValueError("no measurement of this adapter")
    return found
