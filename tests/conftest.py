"""Every kernel that any test compiles under naga is compiled under Tint too, when the run ends.

`PTEGPU_HEAVY=3/33` lets `make test` run the third slice, counted from 0, of 33 of the heavy tests, too.
`PTEGPU_TESTS_WITHOUT_TINT=1` leaves that out, for GPU hosts where Dawn's Python package cannot be installed. With
`PTEGPU_ENGINE=dawn` Tint compiles them anyway.
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

os.environ["PTEGPU_CACHE"] = "off"  # no test depends on what was once measured on this machine
os.environ.setdefault("PTEGPU_ENGINE", "wgpu")  # or on what else is installed
os.environ.setdefault("GALLIVM_PERF", "nopt")  # most kernels run once: lavapipe need not optimize them


@pytest.hookimpl(tryfirst=True)  # before marks are looked at
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
def kernels_compile_under_tint() -> Iterator[None]:
    if os.environ.get("PTEGPU_TESTS_WITHOUT_TINT") or os.environ.get("PTEGPU_ENGINE") == "dawn":
        yield
        return
    from tests.tint import check

    compiled: dict[str, str] = {}
    original = PipelineCache.get

    def record(self: PipelineCache, kernel: Kernel) -> object:
        pipeline = original(self, kernel)  # what naga refuses is some test's point
        compiled.setdefault(source(kernel, "tint"), kernel.name)
        return pipeline

    PipelineCache.get = record  # type: ignore[method-assign, assignment]
    yield
    PipelineCache.get = original  # type: ignore[method-assign]
    texts = list(compiled)
    refused = check(texts)
    if refused:
        said = (line for text in refused[:5] for line in text.split("\n"))
        raise KernelError(f"Tint refuses {len(refused)} of {len(texts)} kernels:", *said)
