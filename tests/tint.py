"""Compilation of WGSL with Tint, Chrome's compiler, through Dawn's null backend: it needs no GPU and no driver.

`check(sources)` is for tests; sources carry their `enable` lines (`ptegpu.plan.directives.source(kernel, "tint")`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ptegpu.errors import DeviceError
from ptegpu.gpu.dawn import Dawn
from ptegpu.gpu.webgpu import MATRICES, ShaderSource


def check(wgsl_sources: Sequence[str]) -> list[str]:
    """Return Tint's error for each source that it refuses, with the number of the source."""
    return [f"source {number}: {message}" for number, wgsl in enumerate(wgsl_sources) if (message := _error(wgsl))]


def _error(wgsl: str) -> str | None:
    try:
        _device().module(ShaderSource("", wgsl, None, lambda words: DeviceError(*words.text.split("\n"))))
    except DeviceError as error:
        return str(error).split("\n\n\n - While")[0].removeprefix("Error while parsing WGSL: ")
    return None


@cache
def _device() -> Dawn:
    """Return a null device with f16, subgroups and matrices."""
    (adapter,) = Dawn.adapters(["Null"])
    return Dawn(adapter, ["shader-f16", "subgroups", MATRICES], {})
