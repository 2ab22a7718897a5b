"""A decode step's attention: GPU time of a layer by position, and what share of the caches' bytes per second that is.

    python -m benchmarks.attention [--positions 128,2048,8192,32000] [--cache f32,f16] [--part 128] [--times 1]
                                   [--each 2] [--heads 32/8x64] [--layers 16] [--device auto] [--json]

Layers with caches of their own run in one pass, each waiting for the one before, as in decoding: rotary embedding,
cache write and attention, and then either the merge of parts, or a 4-bit product that merges them (its time is also
shown alone). GPU time by timestamps, clocks warm, the median of the repeats. `--part`, `--times` and `--each` take
lists, and stand for `ROWS_PART` and `OF_ROWS` of `ops/attending.py` and `KEYS_EACH` of `kernels/attention_rows.py`:
what is found here belongs there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.gpu import Device, Session, open_device
from ptegpu.gpu.loads import warm
from ptegpu.gpu.timer import Timer
from ptegpu.graph.graph import Graph, Node, Sym, Tensor, Value
from ptegpu.kernels import attention_rows
from ptegpu.ops import attending
from ptegpu.ops.registry import REGISTRY
from ptegpu.passes.attention import join_attention

REPEATS = 20
GROUP = 32
LINEAR, VIEW = "et_vk.linear_q4gsw.default", "aten.view_copy.default"
ROTARY, ATTENTION = "et_vk.apply_rotary_emb_hf.default", "sdpa_with_kv_cache.default"


class Layers:
    """A graph of layers; what is `done` in each: "attention", a "product", or "both"."""

    def __init__(self, heads: int, shared: int, dim: int, context: int, cache: DType, layers: int, done: str) -> None:
        self.graph, self.rng = Graph("layers"), np.random.default_rng(0)
        self.heads, self.shared, self.dim, self.context, self.cache = heads, shared, dim, context, cache
        start = Sym("position")
        x = self.input("x", 1, 1, heads, dim)
        self.k, self.v = (self.input(n, 1, 1, shared, dim) for n in "kv")
        self.graph.inputs.append(start)
        width = heads * dim
        angles = np.arange(context)[:, None] * 1e4 ** (-np.arange(dim) % (dim // 2) / (dim // 2))
        tables = [self.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
        weight = self.constant(self.rng.integers(0, 256, (width, width // 2), np.uint8))
        scales = self.constant(self.rng.random((width // GROUP, width), np.float32) * np.float32(0.02 / width**0.5))
        for _ in range(layers):
            if done != "product":
                x = self.attention(x, tables, start)
            if done != "attention":
                flat = self.node(VIEW, x, (1, 1, width), shapes=[(1, 1, width)])[0]
                flat = self.node(LINEAR, flat, weight, scales, GROUP, None, shapes=[(1, 1, width)])[0]
                x = self.node(VIEW, flat, (1, 1, heads, dim), shapes=[(1, 1, heads, dim)])[0]
        self.graph.outputs = [x]
        join_attention(self.graph)

    def input(self, name: str, *shape: int) -> Tensor:
        self.graph.inputs.append(Tensor(name, DType.F32, shape, "input"))
        return self.graph.inputs[-1]  # type: ignore[return-value]

    def constant(self, array: np.ndarray) -> Tensor:
        return Tensor(f"c{len(self.graph.nodes)}", DType.of(array.dtype), array.shape, "constant", array)

    def node(
        self, op: str, *args: Any, shapes: list[tuple[int, ...]], mutates: tuple[Tensor, ...] = ()
    ) -> list[Tensor]:
        number = len(self.graph.nodes)
        outs = [Tensor(f"t{number}.{k}", DType.F32, shape) for k, shape in enumerate(shapes)]
        self.graph.nodes.append(Node(REGISTRY[op], args, tuple[Value, ...](outs), f"{op} #{number}", mutates))
        return outs

    def attention(self, x: Tensor, tables: list[Tensor], start: Sym) -> Tensor:
        shape = (1, self.context, self.shared, self.dim)
        old = [Tensor(f"{n}{len(self.graph.nodes)}", self.cache, shape, "state") for n in "kv"]
        q, k = self.node(ROTARY, x, self.k, *tables, start, shapes=[x.shape, self.k.shape])
        given = (q, k, self.v, *old, start, 1, None, 0.0, True, None)
        return self.node(ATTENTION, *given, shapes=[x.shape], mutates=tuple(old))[0]


def measure(device: Device, made: Layers, layers: int, position: int) -> tuple[float, int]:
    """Seconds of a layer, and its dispatches."""
    plan = Planner(made.graph, device.target).cover().plan()
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(v.shape, np.float32) for v in made.graph.inputs if isinstance(v, Tensor)]
    with Session(device) as session:
        prepared = session.prepare(plan)
        warm(device)
        timer = Timer(device, each=False)
        for _ in range(3):
            session.run(prepared, [*inputs, position], read=[])
        with timer.watching([session]):
            for _ in range(REPEATS):
                session.run(prepared, [*inputs, position], read=[])
    seconds = [run.spans[-1][1] - run.spans[0][0] for run in timer.runs]
    return statistics.median(seconds) / layers, len(plan.dispatches) // layers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("positions", "128,2048,8192,32000"), ("cache", "f32,f16"), ("part", ""), ("times", "")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--each", default="", help="1 or 2")
    parser.add_argument("--heads", default="32/8x64", help="query heads / key heads x elements")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    heads, shared, dim = map(int, options.heads.replace("/", "x").split("x"))
    device, rows = open_device(options.device), list[dict[str, Any]]()
    knobs = [options.part or attending.ROWS_PART, options.times or attending.OF_ROWS]
    knobs.append(options.each or attention_rows.KEYS_EACH)
    ways = [*itertools.product(*(map(int, str(k).split(",")) for k in knobs))]
    for position, cache in itertools.product(map(int, options.positions.split(",")), options.cache.split(",")):
        context = max(1024, 1 << position.bit_length())
        for way in ways:
            attending.ROWS_PART, attending.OF_ROWS, attention_rows.KEYS_EACH = way
            attention_rows.rows.cache_clear()  # type: ignore[attr-defined]
            dtype = DType.F16 if cache == "f16" else DType.F32
            found: dict[str, Any] = {"position": position, "cache": cache}
            found |= dict(zip(("part", "times", "each"), way, strict=True))
            for done in ("attention", "both", "product"):
                made = Layers(heads, shared, dim, context, dtype, options.layers, done)
                seconds, found[f"{done}_dispatches"] = measure(device, made, options.layers, position)
                found[f"{done}_us"] = round(seconds * 1e6, 2)
            nbytes = 2 * (position + 1) * shared * dim * dtype.size
            found["gigabytes_per_second"] = round(nbytes / found["attention_us"] / 1e3, 1)
            rows.append(found)
    if options.json:
        print(json.dumps({"adapter": device.target.name, "layers": options.layers, "rows": rows}))
        return
    console = Console(width=150)
    console.print(f"{device.target.name}: {heads} heads of {dim} that share {shared}, µs of a layer")
    table = Table(*rows[0], box=None)
    for found in rows:
        table.add_row(*map(str, found.values()))
    console.print(table)


if __name__ == "__main__":
    main()
