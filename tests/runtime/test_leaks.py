"""200 times load, run, close: nothing stays behind."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path

import torch
from tests.exporting import export
from tests.zoo.modules import Encoder

import ptegpu
from ptegpu.gpu import open_device


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_load_run_close_leaves_nothing() -> None:
    module = Encoder(layers=1).eval()
    ids = torch.randint(0, 50, (1, 7))
    file = export(module, (ids,))

    def cycle() -> None:
        with ptegpu.load(file) as program:
            program(ids.numpy())

    for _ in range(20):
        cycle()
    gc.collect()
    objects, tracked = open_device().api.object_counts(), len(gc.get_objects())
    resident = [resident_bytes()]
    for _ in range(2):
        for _ in range(100):
            cycle()
        gc.collect()
        resident.append(resident_bytes())
    assert open_device().api.object_counts() == objects
    assert len(gc.get_objects()) - tracked < 200
    grown = [after - before for before, after in pairwise(resident)]
    assert min(grown) < 1 << 20, f"each hundred adds: {grown}"  # a leak adds every time, other tests' remains but once
