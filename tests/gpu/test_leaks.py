"""200 open-run-close cycles: the library's objects and the process's memory stay where they were."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
from tests.gpu import plans

from ptegpu.gpu import Session

CYCLES = 200
SLACK = 4 << 20  # bytes: Python's and the allocator's own breathing


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cycle(device) -> None:
    with Session(device) as session:
        x = np.ones(plans.N, np.float32)
        chain = session.prepare(plans.chain(5))
        for _ in range(3):
            session.run(chain, [x])
        (total,) = session.run(session.prepare(plans.accumulate()), [x], read=[])
        total.numpy()
        session.reset()


def test_cycles_leave_nothing_behind(device):
    for _ in range(20):
        cycle(device)
    gc.collect()
    objects, counters, resident = device.api.object_counts(), device.counters.snapshot(), resident_bytes()
    for _ in range(CYCLES):
        cycle(device)
    gc.collect()
    assert objects == device.api.object_counts()
    counted = device.counters.since(counters)
    assert (counted.buffers_created, counted.pipelines_created) == (0, 0)
    assert resident_bytes() - resident < SLACK


def test_a_session_that_is_never_closed_leaves_nothing_behind(device):
    def forget() -> None:
        session = Session(device)
        session.run(session.prepare(plans.scale((2.0, 3.0))), [np.ones(plans.N, np.float32)])

    for _ in range(5):
        forget()
    gc.collect()
    objects = device.api.object_counts()
    for _ in range(20):
        forget()
    gc.collect()
    assert objects == device.api.object_counts()
