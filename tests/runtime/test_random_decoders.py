"""Random graphs with the parts of decoders, with and without the passes that fuse nodes, compared with PyTorch.

They have packed and plain products, several products of one x, norms before them, elementwise chains after and between
them, caches written in place, states that get a new value, and intermediate results that are also outputs. The number
of rows goes from one to more than a product for few rows accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.cases import compare
from tests.graphs import engine_of
from tests.ops.test_attention import attention
from tests.ops.test_linear_q4 import int8pack, q4gsw, qcs4w
from tests.runtime.test_random_graphs import MAXIMUM, Builder, Value, aten, broadcast, norm, sizes

from ptegpu.dtypes import DType
from ptegpu.gpu import Device, open_device
from ptegpu.graph.graph import Node, Tensor
from ptegpu.ops import REGISTRY
from ptegpu.passes.attention import fuse_attention
from ptegpu.passes.fuse import fuse_elementwise
from ptegpu.passes.norms import fuse_norms
from ptegpu.passes.siblings import fuse_siblings
from ptegpu.plan.target import CLASSES

WIDTHS = (8, 16, 20)  # of rows
POSITIONS = 20  # of a cache
ROWS = [("b", "t"), ("t",), ("1", "t")]


@dataclass
class Decoder(Builder):
    states: dict[Value, torch.Tensor] = field(default_factory=dict)  # with their first values
    written: list[tuple[Value, Value]] = field(default_factory=list)  # a state, and its value after the run
    outputs: list[Value] = field(default_factory=list)
    groups: dict[int, int] = field(default_factory=dict)  # that share a scale, by length of a row

    def packed(self, *shape: int, dtype: DType) -> tuple[Tensor, torch.Tensor]:
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        low, high = (0, 256) if dtype is DType.U8 else (-8, 8)
        data = rng.integers(low, high, shape).astype(dtype.numpy)
        return Tensor(f"w{len(self.graph.nodes)}", dtype, shape, "constant", data), torch.from_numpy(data)

    def scales(self, *shape: int) -> tuple[Tensor, torch.Tensor]:
        tensor, values = self.constant(*shape)
        return tensor, values.abs_().mul_(0.05).add_(0.01)

    def state(self, *shape: int) -> Value:
        tensor, values = self.constant(*shape)
        tensor.kind = "state"
        value = self._keep(Value(tuple(map(str, shape)), tensor))
        self.states[value] = values.clone()
        return value

    def changed(self, op: str, args: tuple[object, ...], value: Value, compute: Callable[..., torch.Tensor]) -> None:
        """Append a node that writes `value` in place."""
        placeholder = Tensor(f"v{len(self.graph.nodes)}", DType.F32, (1,))
        label = f"{op} #{len(self.graph.nodes)}"
        self.graph.nodes.append(Node(REGISTRY[op], args, (placeholder,), label, (value.tensor,)))  # type: ignore[arg-type]

        def run(e: dict[Value, torch.Tensor]) -> torch.Tensor:
            e[value] = compute(e)
            return torch.zeros(1)

        self.values.append(Value((), placeholder, run))

    def alike(self, v: Value) -> Value:
        """Return a recent value of the same shape, maybe v itself."""
        return self.rng.choice([w for w in self.values if w.dims == v.dims][-6:])


def linear(k: Decoder, v: Value, n: int | None = None, kind: str | None = None) -> Value:
    """Append a product of the rows of v with a constant."""
    width, n = int(v.dims[-1]), n or k.rng.choice(WIDTHS)
    kind = kind or k.rng.choice(["q4", "q4", "q4", "c4", "c8", "plain"])
    biased = k.rng.random() < 0.4
    dims = (*v.dims[:-1], str(n))
    if kind == "q4":
        group = k.groups.setdefault(width, k.rng.choice([g for g in (4, 8, 10, 16) if g <= width]))
        columns = -(-n // 4) * 4
        (w, wt), (s, st_) = k.packed(n, -(-width // 8) * 4, dtype=DType.U8), k.scales(-(-width // group), columns)
        b, bt = k.constant(columns) if biased else (None, None)
        compute = lambda e: q4gsw(e[v], wt, st_, group, bt)
        return k.apply("et_vk.linear_q4gsw.default", (v.tensor, w, s, group, b), dims, compute)
    if kind == "c4":
        (w, wt), (s, st_) = k.packed(n, width // 2, dtype=DType.U8), k.scales(n)
        return k.apply("et_vk.linear_qcs4w.default", (v.tensor, w, s), dims, lambda e: qcs4w(e[v], wt, st_))
    if kind == "c8":
        (w, wt), (s, st_) = k.packed(n, width, dtype=DType.I8), k.scales(n)
        return k.apply("aten._weight_int8pack_mm.default", (v.tensor, w, s), dims, lambda e: int8pack(e[v], wt, st_))
    (w, wt), (b, bt) = k.constant(n, width), k.constant(n) if biased else (None, None)
    compute = lambda e: torch.nn.functional.linear(e[v], wt, bt)
    return k.apply("aten.linear.default", (v.tensor, w, b), dims, compute)


def matrices(k: Decoder, v: Value) -> None:
    """Append products of matrices, or of a batch of them."""
    width, n = int(v.dims[-1]), k.rng.choice(WIDTHS)
    if len(v.dims) == 2:
        (w, wt), (b, bt) = k.constant(width, n), k.constant(n)
        if k.rng.random() < 0.5:
            k.apply("aten.mm.default", (v.tensor, w), (v.dims[0], str(n)), lambda e: e[v] @ wt)
        else:
            compute = lambda e: torch.addmm(bt, e[v], wt, beta=2, alpha=0.5)
            k.apply("aten.addmm.default", (b, v.tensor, w, 2, 0.5), (v.dims[0], str(n)), compute)
    elif len(v.dims) == 3:
        turned = k.apply(
            "aten.permute_copy.default", (v.tensor, (0, 2, 1)), (v.dims[0], v.dims[2], v.dims[1]), lambda e: e[v].mT
        )
        scores = k.apply(
            "aten.bmm.default",
            (v.tensor, turned.tensor),
            (v.dims[0], v.dims[1], v.dims[1]),
            lambda e: torch.bmm(e[v], e[turned]),
        )
        unary(k, scores)
        k.apply("aten.bmm.default", (scores.tensor, v.tensor), v.dims, lambda e: torch.bmm(e[scores], e[v]))


def unary(k: Decoder, v: Value) -> Value:
    name = k.rng.choice(["abs", "neg", "relu", "sigmoid", "tanh", "silu", "gelu"]) + ".default"
    return k.apply(f"aten.{name}", (v.tensor,), v.dims, lambda e: aten(name)(e[v]))


def binary(k: Decoder, v: Value, w: Value | None = None) -> Value:
    w = w or k.alike(v)
    a, b = (v, w) if k.rng.random() < 0.5 else (w, v)
    name = k.rng.choice(["add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default"])
    return k.apply(f"aten.{name}", (a.tensor, b.tensor), v.dims, lambda e: aten(name)(e[a], e[b]))


def chain(k: Decoder, v: Value) -> None:
    for _ in range(k.rng.randint(1, 4)):
        v = k.rng.choice([unary, binary])(k, v)


def shrunk(k: Decoder, v: Value) -> None:
    """Append a chain with one number for each row."""
    dims = (*v.dims[:-1], "1")
    args = (v.tensor, (len(dims) - 1,), True)
    w = k.apply("aten.mean.dim", args, dims, lambda e: e[v].mean(-1, True))
    k.apply("aten.mul.Tensor", (v.tensor, w.tensor), v.dims, lambda e: e[v] * e[w])


def several(k: Decoder, v: Value) -> None:
    """Append several products of v, which chains may read before the last product."""
    kind = k.rng.choice(["q4", "c4", "c8", None])
    for _ in range(k.rng.randint(2, 5)):
        w = linear(k, v, kind=kind)
        if k.rng.random() < 0.3:
            chain(k, w)


def gated(k: Decoder, v: Value) -> None:
    """Append two products of v that meet in a chain, sometimes with other operators in between."""
    n, kind = k.rng.choice(WIDTHS), k.rng.choice(["q4", "q4", "c4", "c8", None])
    a = linear(k, v, n, kind)
    first = unary(k, a) if k.rng.random() < 0.5 else a
    if k.rng.random() < 0.2:
        change(k, v)
    b = linear(k, v, n, kind)
    first = unary(k, first) if k.rng.random() < 0.5 else first
    w = binary(k, first, b if k.rng.random() < 0.7 else unary(k, b))
    if k.rng.random() < 0.4:
        chain(k, w)


def residual(k: Decoder, v: Value) -> None:
    w = linear(k, v, int(v.dims[-1]))
    for _ in range(k.rng.randrange(2)):
        w = unary(k, w)
    binary(k, w, v if k.rng.random() < 0.7 else None)


def normed(k: Decoder, v: Value) -> None:
    norm(k, v)
    k.rng.choice([linear, several, gated, residual])(k, k.values[-1])


def cache(k: Decoder) -> Value:
    """Return a cache of the graph: a state, a copy of one, or a value computed from one."""
    caches = [v for v in k.values if len(v.dims) == 4 and v.dims[1] == str(POSITIONS) and v.dims[3] != "1"]
    if caches and k.rng.random() < 0.8:
        return k.rng.choice(caches)
    state = k.state(1, POSITIONS, 2, k.rng.choice(WIDTHS) // 2)
    return state if k.rng.random() < 0.7 else copied(k, state)


def copied(k: Decoder, v: Value) -> Value:
    return k.apply("aten.clone.default", (v.tensor,), v.dims, lambda e: e[v].clone())


def change(k: Decoder, v: Value, c: Value | None = None) -> None:
    """Write rows of v to a cache, which is read before, after, or both."""
    c = c or cache(k)
    width = int(c.dims[2]) * int(c.dims[3])
    if int(v.dims[-1]) != width:
        v = linear(k, v, width)
    if k.rng.random() < 0.5:
        look(k, c)
    most = longest(v)
    if most > POSITIONS:
        return
    keep(k, in_heads(k, v, 2), c, k.rng.randint(0, POSITIONS - most))
    if k.rng.random() < 0.7:
        look(k, c)


def longest(v: Value) -> int:
    """Return the maximum number of rows of v."""
    return sizes(("*".join(v.dims[:-1]),), MAXIMUM)[0]


def in_heads(k: Decoder, v: Value, heads: int) -> Value:
    """Return the rows of v as [1, S, H, D]."""
    count, dim = "*".join(v.dims[:-1]), int(v.dims[-1]) // heads
    rows = k.size(v, 0)
    for d in range(1, len(v.dims) - 1):
        rows = k.symbol("mul", rows, k.size(v, d))
    dims = ("1", f"({count})", str(heads), str(dim))
    args = (v.tensor, (1, rows, heads, dim))
    return k.apply("aten.view_copy.default", args, dims, lambda e: e[v].reshape(1, -1, heads, dim))


def keep(k: Decoder, v: Value, c: Value, start: int) -> None:
    """Write v [1, S, H, D] to a cache."""

    def written(e: dict[Value, torch.Tensor]) -> torch.Tensor:
        now = e[c].clone()
        now[:, start : start + e[v].shape[1]] = e[v]
        return now

    k.changed("llama.update_cache.default", (v.tensor, c.tensor, start), c, written)


def turned(k: Decoder, q: Value, key: Value, start: int) -> tuple[Value, Value]:
    """Rotate both by the same tables."""
    dim = int(q.dims[-1])
    (c, ct), (s, st_) = k.constant(POSITIONS, dim), k.constant(POSITIONS, dim)
    outs = tuple(Tensor(f"v{len(k.graph.nodes)}.{n}", DType.F32, x.tensor.max_shape) for n, x in enumerate((q, key)))
    op = "et_vk.apply_rotary_emb_hf.default"
    args = (q.tensor, key.tensor, c, s, start)
    k.graph.nodes.append(Node(REGISTRY[op], args, outs, f"{op} #{len(k.graph.nodes)}"))

    def turn(x: Value) -> Callable[[dict[Value, torch.Tensor]], torch.Tensor]:
        def compute(e: dict[Value, torch.Tensor]) -> torch.Tensor:
            rows = slice(start, start + e[x].shape[1])
            half = torch.cat((-e[x][..., dim // 2 :], e[x][..., : dim // 2]), -1)
            return e[x] * ct[rows].unsqueeze(1) + half * st_[rows].unsqueeze(1)

        return compute

    rotated = [Value(x.dims, out, turn(x)) for x, out in zip((q, key), outs, strict=True)]
    k.values += rotated
    return rotated[0], rotated[1]


def attend(k: Decoder, v: Value) -> None:
    """Append attention over caches and a product of its result; other nodes may read the intermediate values."""
    most, dim = longest(v), k.rng.choice([12, 24])  # no widths: few others go on with these
    if most > POSITIONS:
        return
    start = k.rng.randint(0, POSITIONS - most)
    kind = k.rng.choice(["q4", "q4", "plain"])
    q, key, value = (in_heads(k, linear(k, v, heads * dim, kind), heads) for heads in (4, 2, 2))
    if k.rng.random() < 0.7:
        q, key = turned(k, q, key, start)
    caches = [k.state(1, POSITIONS, 2, dim) for _ in range(2)]
    for c, new in zip(caches, (key, value), strict=True):
        keep(k, new, c, start)
        if k.rng.random() < 0.1:
            look(k, c)
    args = (q.tensor, caches[0].tensor, caches[1].tensor, start, None, 0.0, True, None)
    compute = lambda e: attention(e[q], e[caches[0]], e[caches[1]], start, causal=True)
    y = k.apply("llama.custom_sdpa.default", args, q.dims, compute)
    if k.rng.random() < 0.1:
        unary(k, k.rng.choice([q, key, y]))
    flat = k.apply(
        "aten.view_copy.default",
        (y.tensor, (1, -1, 4 * dim)),
        (*y.dims[:2], str(4 * dim)),
        lambda e: e[y].reshape(1, -1, 4 * dim),
    )
    w = linear(k, flat, kind=kind)
    if k.rng.random() < 0.5:
        binary(k, w)


def look(k: Decoder, c: Value) -> Value:
    """Read a cache: its rows, a product of them, or an operator on the cache itself."""
    way = k.rng.randrange(4)
    if way == 0:
        return unary(k, c)
    if way == 1:
        return linear(k, c)
    width = int(c.dims[2]) * int(c.dims[3])
    shape = (POSITIONS, width)
    v = k.apply(
        "aten.view_copy.default", (c.tensor, shape), tuple(map(str, shape)), lambda e: e[c].reshape(shape).clone()
    )
    return v if way == 2 else linear(k, v)


def around(k: Decoder, v: Value) -> None:
    """Continue, after a write, a value that read the cache before it."""
    c = cache(k)
    kind = k.rng.choice(["q4", "c4", "plain"])
    if k.rng.random() < 0.5:
        linear(k, c, kind=kind)
    first = k.rng.choice([linear, unary, norm])(k, c) or k.values[-1]
    change(k, v, c)
    if k.rng.random() < 0.5:
        linear(k, c, kind=kind)
    k.rng.choice([linear, unary, binary, several, gated])(k, first)


def remember(k: Decoder, v: Value) -> None:
    """Add a state that gets a new value after the run."""
    if not all(d.isdigit() for d in v.dims):
        weights = [w for w in k.values if all(d.isdigit() for d in w.dims) and len(w.dims) > 1 and w.compute]
        if not weights:
            return
        v = k.rng.choice(weights)
    if v.compute is None or any(new is v for _, new in k.written):
        return
    state = k.state(*map(int, v.dims))
    k.written.append((state, v))
    w = binary(k, state, v)
    if k.rng.random() < 0.5:
        linear(k, w)


STEPS = [linear, matrices, chain, chain, shrunk, broadcast, several, gated, gated, residual, residual, norm, normed]
STEPS += [normed] * 5 + [change, around, around, remember, attend, attend, attend]


def build(seed: int) -> Decoder:
    k = Decoder(Random(seed))
    k.input((*k.rng.choice(ROWS), str(k.rng.choice(WIDTHS))))
    if k.rng.random() < 0.5:
        k.input((*k.values[0].dims[:-1], str(k.rng.choice(WIDTHS))))
    for _ in range(k.rng.randint(2, 6)):
        v = k.pick(lambda v: len(v.dims) > 1 and v.dims[-1] in map(str, WIDTHS))
        assert v is not None
        k.rng.choice(STEPS)(k, v)
    mutated = {t for n in k.graph.nodes for t in n.mutates}
    computed = [v for v in k.values if v.compute is not None and v.dims]
    outputs = dict.fromkeys([*computed[-2:], *(v for v in computed if k.rng.random() < 0.1)])
    k.outputs = [copied(k, v) if v.tensor in mutated else v for v in outputs]
    k.written = [(s, v) for s, v in k.written if v.tensor not in mutated]
    k.graph.outputs = [v.tensor for v in k.outputs]
    k.graph.writebacks = [(s.tensor, v.tensor) for s, v in k.written]
    return k


def live_sizes(rng: Random) -> list[dict[str, int]]:
    """Return four sizes in random order: one row, the maximum, and two others, which may have no rows."""
    every = [{"b": b, "t": t} for b, t in product(range(1, MAXIMUM["b"] + 1), range(MAXIMUM["t"] + 1))]
    chosen = [{"b": 1, "t": 1}, every[-1], *rng.sample(every, 2)]
    rng.shuffle(chosen)
    return chosen


class Reference:
    """PyTorch's results of successive calls, with their states."""

    def __init__(self, k: Decoder) -> None:
        self.k, self.states = k, {s: t.clone() for s, t in k.states.items()}

    def __call__(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        results, left = dict(self.states), iter(inputs)
        for v in self.k.values:
            if v.compute is not None:
                results[v] = v.compute(results)
            elif v not in self.states:
                results[v] = torch.from_numpy(next(left))
        new = {s: results[v] for s, v in self.k.written}
        self.states = {s: new.get(s, results[s]) for s in self.states}
        return [results[v].numpy() for v in self.k.outputs]


def check(seed: int, joined: bool, device: Device) -> None:
    k = build(seed)
    described = repr(k.graph)
    if joined:
        fuse_elementwise(k.graph)
        fuse_siblings(k.graph)
        fuse_norms(k.graph)
        fuse_attention(k.graph)
    rng = np.random.default_rng(seed)
    reference = Reference(k)
    engine = engine_of(k.graph, device, cover=False)
    try:
        for size in live_sizes(k.rng):
            inputs = [v for v in k.values if v.tensor.kind == "input"]
            arrays = [rng.uniform(-2, 2, sizes(v.dims, size)).astype(np.float32) for v in inputs]
            got = engine.run(arrays, range(len(k.graph.outputs)))
            for g, w in zip(got, reference(arrays), strict=True):
                assert isinstance(g, np.ndarray)
                assert g.shape == w.shape, described
                compare(g, w, 1e-4, f"{described}\n{k.graph}")
    finally:
        engine.close()


@pytest.mark.parametrize("seed", range(30))
def test_decoders_agree_with_pytorch(seed: int) -> None:
    """Odd seeds plan as for a discrete GPU, whatever the device; every third seed also runs without the passes."""
    device = open_device()
    kind = CLASSES["discrete" if seed % 2 else device.info.type]
    with patch.object(device, "target", replace(device.target, device_class=kind)):
        for joined in (False, True)[seed % 3 > 0 :]:
            check(seed, joined, device)
