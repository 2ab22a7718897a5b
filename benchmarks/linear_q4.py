"""Which way to share out a 4-bit linear layer is fastest here: every `Gemv` of a grid, by size of the weight.

    python benchmarks/linear_q4.py [--shapes 128256x2048,16384x2048,2048x8192,2048x2048] [--rows 1] [--group 32]
                                   [--best 8] [--device auto]

Each way runs a pass of layers whose weights together exceed any cache, each waiting for the one before, as in decoding;
GPU time by timestamps, clocks warm, the best of the repeats. The way that `ptegpu.ops.few.GEMVS` takes is marked:
what is found here belongs into that table.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.gpu import Device, Prepared, Session, SharedConstants, open_device
from ptegpu.gpu.timer import Timer
from ptegpu.graph.graph import Graph, Node, Tensor
from ptegpu.kernels.linear_q4 import Gemv
from ptegpu.ops import few
from ptegpu.ops.few import Choice
from ptegpu.ops.registry import REGISTRY
from ptegpu.passes.memory import ConstantKey
from ptegpu.plan.target import Target

AT_ONCE = 256 << 20  # bytes of weights in a pass
MOST_LAYERS = 64
MOST_SUMS = 32  # of one invocation
REPEATS = 5
WARM_SECONDS = 0.5


def layers(n: int, k: int, rows: int, group: int) -> Graph:
    """Layers that all read one input and write one buffer, which makes them wait for each other."""
    graph = Graph(f"{n}x{k}")
    x = Tensor("x", DType.F32, (rows, k), "input")
    graph.inputs.append(x)
    rng = np.random.default_rng(0)
    count = max(2, min(MOST_LAYERS, AT_ONCE // (n * k // 2)))
    for i in range(count):
        weight = rng.integers(0, 256, (n, k // 2), np.uint8)
        scales = rng.random((k // group, n), np.float32) / 100
        args = (
            x,
            Tensor(f"weight{i}", DType.U8, weight.shape, "constant", weight),
            Tensor(f"scales{i}", DType.F32, scales.shape, "constant", scales),
            group,
            None,
        )
        out = Tensor(f"y{i}", DType.F32, (rows, n))
        graph.nodes.append(Node(REGISTRY["et_vk.linear_q4gsw.default"], args, (out,), f"layer {i}"))
    graph.outputs = [graph.nodes[-1].outs[0]]
    return graph


def ways(m: int, target: Target) -> Iterator[Choice]:
    """The grid: workgroups have 64 to 256 invocations."""
    words_of = (1, 4) if m == 1 else (1, 2)
    for rows, lanes, words, staged in itertools.product((1, 2, 4, 8), (32, 64, 256), words_of, (False, True)):
        for workgroup in (64, 128, 256):
            if lanes <= workgroup <= target.max_invocations and rows * m <= MOST_SUMS:
                yield Choice(Gemv(rows, lanes, words, workgroup // lanes, staged))


def fits(choice: Choice, k: int, rows: int, target: Target) -> bool:
    """Whether there is a load for most lanes, and memory for what they share."""
    loads = -(-k // (8 * choice.gemv.words))
    shared = rows * loads * choice.gemv.words * 32 if choice.gemv.staged else 0
    tree = 0 if target.subgroup_size else choice.gemv.rows * choice.gemv.lanes * choice.gemv.slots * 4
    return choice.gemv.lanes <= loads and shared + tree + 1024 <= target.max_shared_bytes


def name(choice: Choice) -> str:
    g = choice.gemv
    return f"rows {g.rows}, lanes {g.lanes}, words {g.words}, slots {g.slots}{', staged' * g.staged}"


def measure(device: Device, n: int, k: int, rows: int, group: int, console: Console) -> list[tuple[float, str]]:
    """(seconds of a layer, way), the fastest first."""
    graph = layers(n, k, rows, group)
    target = device.target
    names: dict[ConstantKey, str] = {}
    x = np.random.default_rng(1).standard_normal((rows, k), np.float32)
    table = few.GEMVS
    taken = next(c for c in table if c.when(rows, n, k))
    choices = [(f"{name(taken)}  (taken)", taken)]
    choices += [(name(c), c) for c in ways(rows, target) if fits(c, k, rows, target)]
    prepared: dict[str, tuple[Session, Prepared]] = {}
    with ExitStack() as sessions:  # one for each way: they share the weights
        constants = SharedConstants()
        for label, choice in track(choices, f"{n} x {k}: compiling", console=console):
            few.GEMVS = (Choice(choice.gemv),)
            try:
                plan = Planner(graph, target, names=names).cover().plan()
            finally:
                few.GEMVS = table
            session = sessions.enter_context(Session(device, constants))
            prepared[label] = session, session.prepare(plan)
        warm_until = time.perf_counter() + WARM_SECONDS
        for session, way in itertools.cycle(prepared.values()):
            session.run(way, [x], read=[])
            if time.perf_counter() > warm_until:
                break
        timer = Timer(device, each=False)
        order = list(prepared) * REPEATS
        with timer.watching([session for session, _ in prepared.values()]):
            for label in track(order, f"{n} x {k}: timing", console=console):
                session, way = prepared[label]
                session.run(way, [x], read=[])
    best = dict.fromkeys(prepared, float("inf"))
    for label, run in zip(order, timer.runs, strict=True):
        best[label] = min(best[label], *(end - begin for begin, end in run.spans))
    return sorted((seconds / len(graph.nodes), label) for label, seconds in best.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="128256x2048,16384x2048,2048x8192,2048x2048", help="N x K of the weights")
    parser.add_argument("--rows", type=int, default=1, help="of x")
    parser.add_argument("--group", type=int, default=32)
    parser.add_argument("--best", type=int, default=8, help="how many to show for each shape")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    console = Console()
    device = open_device(options.device)
    console.print(device.target.name)
    for shape in options.shapes.split(","):
        n, k = map(int, shape.split("x"))
        nbytes = n * k // 2 + n * k // options.group * 4
        table = Table("way", "µs", "TB/s", title=f"{n} x {k}, {options.rows} rows")
        results = measure(device, n, k, options.rows, options.group, console)
        for i, (seconds, label) in enumerate(results):
            if i < options.best or "taken" in label:
                table.add_row(label, f"{seconds * 1e6:.1f}", f"{nbytes / seconds / 1e12:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
