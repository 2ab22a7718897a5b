"""A fixture for all tests: at the end, Tint compiles every kernel that a test compiled with naga.

`PTEGPU_TESTS_WITHOUT_TINT=1` turns it off, for GPU hosts where Dawn's Python package cannot be installed. With
`PTEGPU_ENGINE=dawn` Tint compiles all kernels anyway. `PTEGPU_HEAVY=3/33` makes `make test` also run slice 3, counted
from 0, of 33 slices of the heavy tests. With `PTEGPU_PERSISTENT=on`, whatever can be merged becomes one dispatch, which
software adapters run with a single workgroup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from ptegpu.errors import KernelError
from ptegpu.gpu.pipelines import PipelineCache
from ptegpu.plan.directives import source
from ptegpu.plan.plan import Kernel

os.environ["PTEGPU_CACHE"] = "off"  # no test depends on cached measurements
os.environ.setdefault("PTEGPU_ENGINE", "wgpu")  # nor on the installed engines
os.environ.setdefault("GALLIVM_PERF", "nopt")  # most kernels run once, so optimizing them in lavapipe does not pay


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    k, _, count = os.environ.get("PTEGPU_HEAVY", "0/0").partition("/")
    heavy = [item for item in items if item.get_closest_marker("heavy")]
    for item in heavy[int(k) :: int(count)] if int(count) else ():
        item.add_marker("chosen")


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        from tests.exporting import hasten

        hasten()


@pytest.fixture(scope="session", autouse=True)
def everything_merges_if_anything() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("PTEGPU_PERSISTENT") == "on":
            patch.setattr("ptegpu.gpu.sections.FEWEST", 3)
            patch.setattr("ptegpu.gpu.persistent.MOST_GROUPS", 1 << 20)
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_compile_under_tint() -> Iterator[None]:
    if os.environ.get("PTEGPU_TESTS_WITHOUT_TINT") or os.environ.get("PTEGPU_ENGINE") == "dawn":
        yield
        return
    from tests.tint import check

    compiled: dict[str, str] = {}
    original = PipelineCache.get

    def record(self: PipelineCache, kernel: Kernel) -> object:
        pipeline = original(self, kernel)  # raises if naga refuses the kernel, as some tests expect
        compiled.setdefault(source(kernel, "tint"), kernel.name)
        return pipeline

    PipelineCache.get = record  # type: ignore[method-assign, assignment]
    yield
    PipelineCache.get = original  # type: ignore[method-assign]
    texts = list(compiled)
    refused = check(texts)
    if refused:
        messages = (line for text in refused[:5] for line in text.split("\n"))
        raise KernelError(f"Tint refuses {len(refused)} of {len(texts)} kernels:", *messages)
