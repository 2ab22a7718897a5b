"""What a prompt of a length never seen before costs the host, beside one of the same length again.

    python benchmarks/lengths.py [--device auto] [--model model.pte]

Everything is compiled first (`Program.prepare`). Then prompts of new lengths run, each followed by five more of it.
"host" is the time until a call is submitted; the GPU is idle when it begins. The counters show that no call
planned, compiled or bound anything.
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib.resources import files

import numpy as np

from ptegpu.llm import LanguageModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", default=str(files("ptegpu") / "demo" / "tales.pte"))
    parser.add_argument("--lengths", type=int, default=100)
    args = parser.parse_args()
    with LanguageModel(args.model, args.device) as model:
        began = time.perf_counter()
        model.program.prepare()
        print(f"{model.program.device.target.name}: everything compiled in {time.perf_counter() - began:.2f} s")
        forward, device, nothing = model._forward, model.program.device, np.zeros((1, 0), np.int32)
        kind = model.signature.tokens.numpy

        def call(length: int) -> float:
            arguments = model._arguments(np.ones((1, length), kind), 0, None, 0, None, nothing)
            device.wait()
            start = time.perf_counter()
            run = forward.start(arguments)
            host = time.perf_counter() - start
            run.result()
            return host

        longest = min(model.chunk, 250)
        for length in (longest, 2, longest):
            call(length)
        before = device.counters.snapshot()
        new, again = [], []
        rng = np.random.default_rng(0)
        for length in rng.permutation(np.arange(3, longest))[: args.lengths]:
            new.append(call(int(length)))
            again += [call(int(length)) for _ in range(5)]
        done = device.counters.snapshot().since(before)
    first, repeated = statistics.median(new) * 1e6, statistics.median(again) * 1e6
    print(f"host, a new length   {first:8.0f} µs (median of {len(new)})")
    print(f"host, the same again {repeated:8.0f} µs, ratio {first / repeated:.2f}")
    print(
        f"created: {done.bind_groups_created} bind groups, {done.pipelines_created} pipelines; {done.submits} submits"
    )


if __name__ == "__main__":
    main()
