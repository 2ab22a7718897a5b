"""Load, run and close, again and again, then call again and again: `python -m tools.cycles`, at low priority (`nice`).

Memory must stay flat: the process and the library must hold no more at the end than after a tenth of the calls.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ptegpu
from ptegpu.gpu import open_device

DIGITS = Path(__file__).resolve().parents[1] / "src" / "ptegpu" / "demo" / "digits.pte"
SLACK = 4 << 20  # bytes of noise, from Python and the allocators


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def flat(noun: str, count: int, work: Callable[[], np.ndarray]) -> bool:
    device, expected, began = open_device(), work(), time.perf_counter()
    sizes, objects, matches = [], [], 1
    for part in range(10):
        matches += sum(np.array_equal(expected, work()) for _ in range(count // 10))
        sizes.append(resident())
        objects.append(device.api.object_counts())
        print(f"  {noun} {(part + 1) * count // 10}: {sizes[-1] / 2**20:.1f} MiB", flush=True)
    grown, seconds = max(sizes[1:]) - sizes[0], time.perf_counter() - began
    good = matches == count + 1 and grown < SLACK and objects[0] == objects[-1]
    left = "as many objects" if objects[0] == objects[-1] else f"objects {objects[0]} → {objects[-1]}"
    print(
        f"{device.info.engine}: {count} {noun} in {seconds:.0f} s, {matches - 1} right,"
        f" {grown / 2**20:+.1f} MiB after the first tenth, {left}: {'flat' if good else 'NOT FLAT'}",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cycles", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=100_000)
    options = parser.parse_args()
    os.nice(5)
    image = np.random.default_rng(0).random((1, 8, 8), np.float32)
    bundle = ptegpu.compile(DIGITS)

    def cycle() -> np.ndarray:
        with ptegpu.load(bundle) as program:
            return program(image)  # type: ignore[no-any-return]

    good = flat("cycles", options.cycles, cycle)
    with ptegpu.load(bundle) as program:
        good &= flat("calls", options.calls, lambda: program(image))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
