"""What a decode step costs the host: 500 steps of the bundled language model at increasing positions.

    python benchmarks/replay.py [--steps 500] [--device auto]

A step uploads a token, a position and a few settings, records one pass and submits it; nothing is planned, created or
allocated, which the counters show. "host" is the time until the step is submitted, "whole" until its token is read.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib.resources import files

import numpy as np

import ptegpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    model = files("ptegpu") / "demo" / "tales.pte"
    with ptegpu.load(str(model), device=args.device, methods=["forward"]) as program:
        forward = program.method("forward")
        token = np.array([[5]])
        for position in range(3):
            forward(token, np.array([position]))
        before = program.device.counters.snapshot()
        host, whole = [], []
        for step in range(args.steps):
            position = np.array([3 + step % 250])
            began = time.perf_counter()
            run = forward.start([token, position])
            host.append(time.perf_counter() - began)
            run.result()
            whole.append(time.perf_counter() - began)
        done = program.device.counters.snapshot().since(before)
    print(f"{program.device.target.name}: {done.dispatches // done.submits} dispatches a step, {args.steps} steps")
    print(f"host  {statistics.median(host) * 1e6:8.0f} µs a step (median)")
    print(f"whole {statistics.median(whole) * 1e6:8.0f} µs a step (median)")
    print(
        f"created: {done.buffers_created} buffers, {done.bind_groups_created} bind groups, "
        f"{done.pipelines_created} pipelines; {done.submits} submits"
    )


if __name__ == "__main__":
    main()
