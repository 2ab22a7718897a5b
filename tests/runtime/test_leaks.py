"""200 times load, run, close: nothing stays behind."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from tests.exporting import export
from tests.models import Encoder

import ptegpu
from ptegpu.gpu.native import object_counts


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
    objects, resident, tracked = object_counts(), resident_bytes(), len(gc.get_objects())
    for _ in range(200):
        cycle()
    gc.collect()
    assert object_counts() == objects
    assert len(gc.get_objects()) - tracked < 200
    assert resident_bytes() - resident < 8 << 20
