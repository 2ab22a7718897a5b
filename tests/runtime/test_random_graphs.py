"""Random small graphs of the registry's operators, with two dynamic dimensions, at every live size against PyTorch.

Half of them go through the pass that joins elementwise operators. A dimension is a Python expression over the dynamic
sizes `b` and `t`; a step of a graph is an operator with its arguments, the same computation in PyTorch, and the shape
of the result. The graph is made once at the maximum.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import compare
from tests.graphs import engine_of

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.dtypes import DType
from ptegpu.gpu import open_device
from ptegpu.graph.graph import Arg, Graph, Node, Sym, Tensor
from ptegpu.ops import REGISTRY
from ptegpu.passes.fuse import fuse_elementwise

MAXIMUM = {"b": 3, "t": 5}

Dims = tuple[str, ...]


def sizes(dims: Dims, live: dict[str, int]) -> tuple[int, ...]:
    return tuple(eval(d, {}, live) for d in dims)  # our own expressions


@dataclass(eq=False)
class Value:
    dims: Dims
    tensor: Tensor
    compute: Callable[[dict[Value, torch.Tensor]], torch.Tensor] | None = None  # None: an input


@dataclass
class Builder:
    rng: random.Random
    graph: Graph = field(default_factory=lambda: Graph("random"))
    values: list[Value] = field(default_factory=list)

    def input(self, dims: Dims) -> Value:
        tensor = Tensor(f"x{len(self.values)}", DType.F32, sizes(dims, MAXIMUM), "input")
        self.graph.inputs.append(tensor)
        return self._keep(Value(dims, tensor))

    def constant(self, *shape: int) -> tuple[Tensor, torch.Tensor]:
        data = np.random.default_rng(self.rng.randrange(1 << 30)).uniform(-1, 1, shape).astype(np.float32)
        return Tensor(f"c{len(self.graph.nodes)}", DType.F32, shape, "constant", data), torch.from_numpy(data)

    def apply(self, op: str, args: tuple[Arg, ...], dims: Dims, compute: Any) -> Value:
        out = Tensor(f"v{len(self.graph.nodes)}", DType.F32, sizes(dims, MAXIMUM))
        self.graph.nodes.append(Node(REGISTRY[op], args, (out,), f"{op} #{len(self.graph.nodes)}"))
        return self._keep(Value(dims, out, compute))

    def symbol(self, op: str, *args: Arg) -> Sym:
        out = Sym(f"s{len(self.graph.nodes)}")
        self.graph.nodes.append(Node(REGISTRY[op], args, (out,), op))
        return out

    def size(self, v: Value, dim: int) -> Arg:
        return int(v.dims[dim]) if v.dims[dim].isdigit() else self.symbol("sym_size.int", v.tensor, dim)

    def _keep(self, v: Value) -> Value:
        self.values.append(v)
        return v

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value | None:
        matches = [v for v in self.values if fits(v)]
        return self.rng.choice(matches[-4:]) if matches else None


def aten(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def unary(k: Builder, v: Value) -> None:
    name = k.rng.choice(["abs", "neg", "relu", "sigmoid", "tanh", "sin", "gelu"]) + ".default"
    k.apply(f"aten.{name}", (v.tensor,), v.dims, lambda e: aten(name)(e[v]))


def binary(k: Builder, v: Value) -> None:
    w = k.pick(lambda w: w.dims == v.dims)
    assert w is not None
    name = k.rng.choice(["add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "minimum.default"])
    k.apply(f"aten.{name}", (v.tensor, w.tensor), v.dims, lambda e: aten(name)(e[v], e[w]))


def broadcast(k: Builder, v: Value) -> None:
    row, data = k.constant(int(v.dims[-1])) if v.dims and v.dims[-1].isdigit() else k.constant(1)
    k.apply("aten.mul.Tensor", (v.tensor, row), v.dims, lambda e: e[v] * data)


def where(k: Builder, v: Value) -> None:
    mask = Tensor(f"m{len(k.graph.nodes)}", DType.BOOL, sizes(v.dims, MAXIMUM))
    k.graph.nodes.append(Node(REGISTRY["aten.gt.Scalar"], (v.tensor, 0), (mask,), "aten.gt.Scalar"))
    zero, _ = k.constant(1)
    data = torch.from_numpy(zero.data)
    k.apply("aten.where.self", (mask, v.tensor, zero), v.dims, lambda e: torch.where(e[v] > 0, e[v], data))


def permute(k: Builder, v: Value) -> None:
    order = list(range(len(v.dims)))
    k.rng.shuffle(order)
    dims = tuple(v.dims[d] for d in order)
    k.apply("aten.permute_copy.default", (v.tensor, tuple(order)), dims, lambda e: e[v].permute(order))


def merge(k: Builder, v: Value) -> None:
    if len(v.dims) < 2:
        return
    symbolic: Arg = k.symbol("mul", k.size(v, 0), k.size(v, 1)) if k.rng.random() < 0.5 else -1
    rest = tuple(k.size(v, d) for d in range(2, len(v.dims)))
    if symbolic == -1 and any(isinstance(r, Sym) for r in rest):
        symbolic = k.symbol("mul", k.size(v, 0), k.size(v, 1))
    dims = (f"({v.dims[0]}*{v.dims[1]})", *v.dims[2:])
    k.apply("aten.view_copy.default", (v.tensor, (symbolic, *rest)), dims, lambda e: e[v].flatten(0, 1))


def unsqueeze(k: Builder, v: Value) -> None:
    if len(v.dims) > 4:
        return
    d = k.rng.randint(0, len(v.dims))
    k.apply("aten.unsqueeze_copy.default", (v.tensor, d), (*v.dims[:d], "1", *v.dims[d:]), lambda e: e[v].unsqueeze(d))


def reduce(k: Builder, v: Value) -> None:
    name = k.rng.choice(["sum.dim_IntList", "mean.dim", "amax.default"])
    d, keep = k.rng.randrange(len(v.dims)), k.rng.random() < 0.5
    dims = (*v.dims[:d], *(["1"] if keep else []), *v.dims[d + 1 :])
    k.apply(f"aten.{name}", (v.tensor, (d,), keep), dims, lambda e: aten(name)(e[v], [d], keep))


def softmax(k: Builder, v: Value) -> None:
    d = k.rng.randrange(len(v.dims))
    name = k.rng.choice(["_softmax.default", "_log_softmax.default"])
    k.apply(f"aten.{name}", (v.tensor, d, False), v.dims, lambda e: aten(name)(e[v], d, False))


def cumsum(k: Builder, v: Value) -> None:
    d = k.rng.randrange(len(v.dims))
    k.apply("aten.cumsum.default", (v.tensor, d), v.dims, lambda e: e[v].cumsum(d))


def linear(k: Builder, v: Value) -> None:
    if not v.dims[-1].isdigit():
        return
    n = k.rng.randint(1, 6)
    (w, wt), (b, bt) = k.constant(n, int(v.dims[-1])), k.constant(n)
    compute = lambda e: torch.nn.functional.linear(e[v], wt, bt)
    k.apply("aten.linear.default", (v.tensor, w, b), (*v.dims[:-1], str(n)), compute)


def norm(k: Builder, v: Value) -> None:
    if not v.dims[-1].isdigit():
        return
    n = int(v.dims[-1])
    w, wt = k.constant(n)
    rms = lambda e: torch.nn.functional.rms_norm(e[v], [n], wt, 1e-5)
    k.apply("et_vk.rms_norm.default", (v.tensor, w, 1e-5), v.dims, rms)


def cat(k: Builder, v: Value) -> None:
    d = k.rng.randrange(len(v.dims))
    if "b" in v.dims[d] and "t" in v.dims[d]:
        return
    dims = (*v.dims[:d], str(2 * int(v.dims[d])) if v.dims[d].isdigit() else f"(2*{v.dims[d]})", *v.dims[d + 1 :])
    k.apply("aten.cat.default", ((v.tensor, v.tensor), d), dims, lambda e: torch.cat([e[v], e[v]], d))


def slice_(k: Builder, v: Value) -> None:
    candidates = [d for d, n in enumerate(v.dims) if n == "t"]
    if not candidates:
        return
    d = k.rng.choice(candidates)
    end = k.size(v, d)
    dims = (*v.dims[:d], "(t-1)", *v.dims[d + 1 :])
    k.apply("aten.slice_copy.Tensor", (v.tensor, d, 1, end, 1), dims, lambda e: e[v].narrow(d, 1, e[v].shape[d] - 1))


def flip(k: Builder, v: Value) -> None:
    d = k.rng.randrange(len(v.dims))
    k.apply("aten.flip.default", (v.tensor, (d,)), v.dims, lambda e: e[v].flip(d))


def pad(k: Builder, v: Value) -> None:
    n = v.dims[-1]
    dims = (*v.dims[:-1], str(int(n) + 3) if n.isdigit() else f"({n}+3)")
    compute = lambda e: torch.nn.functional.pad(e[v], (1, 2), value=0.5)
    k.apply("aten.constant_pad_nd.default", (v.tensor, (1, 2), 0.5), dims, compute)


def expand(k: Builder, v: Value) -> None:
    ones = [d for d, n in enumerate(v.dims) if n == "1"]
    source = k.values[0]
    if not ones:
        return
    d = k.rng.choice(ones)
    size = tuple(k.size(source, 0) if j == d else -1 for j in range(len(v.dims)))
    dims = tuple(source.dims[0] if j == d else n for j, n in enumerate(v.dims))
    compute = lambda e: e[v].expand([e[source].shape[0] if j == d else -1 for j in range(len(v.dims))])
    k.apply("aten.expand_copy.default", (v.tensor, size), dims, compute)


STEPS = [unary, unary, binary, broadcast, where, permute, merge, unsqueeze, reduce, softmax, cumsum, linear, linear]
STEPS += [norm, cat, slice_, flip, pad, expand]


def build(seed: int) -> Builder:
    k = Builder(random.Random(seed))
    k.input(("b", "t", "4"))
    k.input(("t", "b") if k.rng.random() < 0.5 else ("b", "t", "4"))
    for _ in range(k.rng.randint(3, 9)):
        v = k.pick(lambda v: bool(v.dims) and np.prod(sizes(v.dims, MAXIMUM)) < 600)
        if v is not None:
            k.rng.choice(STEPS)(k, v)
    computed = [v for v in k.values if v.compute is not None]
    k.graph.outputs = [v.tensor for v in computed[-2:]]
    return k


def expected(k: Builder, inputs: list[np.ndarray]) -> list[np.ndarray]:
    results: dict[Value, torch.Tensor] = {}
    arguments = iter(inputs)
    for v in k.values:
        results[v] = torch.from_numpy(next(arguments)) if v.compute is None else v.compute(results)
    return [results[v].numpy() for v in k.values if v.compute is not None][-2:]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_every_live_size_agrees_with_pytorch(seed: int) -> None:
    k = build(seed)
    if not k.graph.outputs:
        return
    if seed % 2:
        fuse_elementwise(k.graph)
    rng = np.random.default_rng(seed)
    engine = engine_of(k.graph, open_device())
    try:
        live = [{"b": b, "t": t} for b in range(1, MAXIMUM["b"] + 1) for t in range(2, MAXIMUM["t"] + 1)]
        k.rng.shuffle(live)
        for size in live:
            inputs = [v for v in k.values if v.compute is None]
            arrays = [rng.uniform(-2, 2, sizes(v.dims, size)).astype(np.float32) for v in inputs]
            got = engine.run(arrays, range(len(k.graph.outputs)))
            for g, w in zip(got, expected(k, arrays), strict=True):
                assert isinstance(g, np.ndarray)
                assert g.shape == w.shape, k.graph
                compare(g, w, 1e-4, repr(k.graph))
    finally:
        engine.close()
