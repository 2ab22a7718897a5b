"""Compiles WGSL under Tint, the compiler of Chrome, through Dawn's null backend: no GPU and no driver is touched.

`check(sources)` is for tests; sources carry their `enable` lines (`ptegpu.plan.directives.source(kernel, "tint")`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ptegpu.errors import DeviceError
from ptegpu.gpu.dawn import Dawn
from ptegpu.gpu.webgpu import MATRICES, ShaderSource


def check(wgsl_sources: Sequence[str]) -> list[str]:
    """What Tint says against each source that it refuses, headed by the source's number; empty when all compile."""
    return [f"source {number}: {said}" for number, wgsl in enumerate(wgsl_sources) if (said := _error(wgsl))]


def _error(wgsl: str) -> str | None:
    try:
        _device().module(ShaderSource("", wgsl, None, lambda words: DeviceError(*words.text.split("\n"))))
    except DeviceError as error:
        return str(error).split("\n\n\n - While")[0].removeprefix("Error while parsing WGSL: ")
    return None


@cache
def _device() -> Dawn:
    """A device with f16, subgroups and matrices that computes nothing."""
    (adapter,) = Dawn.adapters(["Null"])
    return Dawn(adapter, ["shader-f16", "subgroups", MATRICES], {})
