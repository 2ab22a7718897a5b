"""The attention of a decode step by itself: GPU time of a layer by position, for each way to split the keys.

Layers with their own caches run in one pass, each after the previous one: rotary embedding, cache write and attention,
and then either the merge of parts, or a 4-bit product that merges them; the product is also timed by itself. The ways
are those of `ROWS_PART` and `OF_ROWS` in `ops/attention_record.py` and `KEYS_EACH` in `kernels/attention_rows.py`. The
fastest should be the values there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Node, Sym, Tensor, Value
from ptegpu.kernels import attention_rows
from ptegpu.ops import attention_record
from ptegpu.ops.registry import REGISTRY
from ptegpu.passes.attention import fuse_attention

from .harness import Bench, Row, Way

HEADS, SHARED, DIM, LAYERS, GROUP = 32, 8, 64, 16, 32
POSITIONS = (128, 2048, 8192, 32000)
GRID = ((64, 128, 256, 512), (1, 2, 4), (1, 2))  # keys of a part, times the units, keys of an invocation
DONE = {"attention": "attention, merged", "both": "attention and product", "product": "product alone"}
SHOWN = 6  # of the fastest
LINEAR, VIEW = "et_vk.linear_q4gsw.default", "aten.view_copy.default"
ROTARY, ATTENTION = "et_vk.apply_rotary_emb_hf.default", "sdpa_with_kv_cache.default"

Knobs = tuple[int, int, int]


def attention(bench: Bench) -> Iterator[Row]:
    """µs of a layer's attention in a decode step, with the product after it: the fastest ways, and the one taken."""
    current = attention_record.ROWS_PART, attention_record.OF_ROWS, attention_rows.KEYS_EACH
    grid = [current, *(k for k in itertools.product(*GRID) if k != current)][: 2 if bench.quick else None]
    for position, cache in itertools.product((9,) if bench.quick else POSITIONS, (DType.F32, DType.F16)):
        case = f"position {position}, {cache.value}"
        if not bench.wants(case):
            continue
        for way in bench.engines:
            rows: list[Row] = []
            for knobs in grid:
                label = f"part {knobs[0]}, times {knobs[1]}, each {knobs[2]}{'  (taken)' * (knobs == current)}"
                row = bench.row("attention", case, way, timed, bench, way, position, cache, knobs, label)
                rows.append(row)
            fastest = sorted(rows, key=lambda r: r.value if r.value is not None else 0.0)
            yield from (r for n, r in enumerate(fastest) if n < SHOWN or "taken" in r.note or r.failure)


@contextmanager
def set_to(knobs: Knobs) -> Iterator[None]:
    """Split keys in this way inside the block."""
    before = attention_record.ROWS_PART, attention_record.OF_ROWS, attention_rows.KEYS_EACH
    try:
        attention_record.ROWS_PART, attention_record.OF_ROWS, attention_rows.KEYS_EACH = knobs
        attention_rows.rows.cache_clear()  # type: ignore[attr-defined]
        yield
    finally:
        attention_record.ROWS_PART, attention_record.OF_ROWS, attention_rows.KEYS_EACH = before
        attention_rows.rows.cache_clear()  # type: ignore[attr-defined]


def timed(bench: Bench, way: Way, position: int, cache: DType, knobs: Knobs, label: str) -> dict[str, Any]:
    """Return the time of attention with the product; the note has both, and the rate at which caches are read."""
    count, context = (2, 256) if bench.quick else (LAYERS, max(1024, 1 << position.bit_length()))
    times: dict[str, float] = {}
    dispatches = 0
    for part in DONE if "taken" in label else list(DONE)[:2]:
        with set_to(knobs):
            layers = Layers(HEADS, SHARED, DIM, context, cache, count, part)
            plan = Planner(layers.graph, bench.target(way)).cover().plan()
        rng = np.random.default_rng(1)
        inputs = [rng.standard_normal(v.shape, np.float32) for v in layers.graph.inputs if isinstance(v, Tensor)]
        seconds, _ = bench.timed(bench.device(way.engine), plan, [*inputs, position])
        times[part] = seconds / count
        dispatches = len(plan.dispatches) // count if part == "both" else dispatches
    nbytes = 2 * (position + 1) * SHARED * DIM * cache.size
    note = "; ".join(f"{DONE[part]} {seconds * 1e6:.1f} µs" for part, seconds in times.items())
    rate = f"{nbytes / times['attention'] / 1e9:.0f} GB/s of caches"
    figures = {
        "value": times["both"] * 1e6,
        "unit": "µs",
        "gpu": times["attention"],
        "nbytes": nbytes,
    }
    return figures | {"dispatches": dispatches, "note": f"{label}: {note}, {rate}"}


class Layers:
    """A graph of layers. `done` is the work of each: "attention", a "product", or "both"."""

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
        fuse_attention(self.graph)

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
        arguments = (q, k, self.v, *old, start, 1, None, 0.0, True, None)
        return self.node(ATTENTION, *arguments, shapes=[x.shape], mutates=tuple(old))[0]
