"""Matrix products by themselves: GPU time of one-node programs, beside cuBLAS."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.compiler.planner import Planner
from ptegpu.dtypes import DType
from ptegpu.graph.graph import Graph, Node, Tensor
from ptegpu.ops.registry import REGISTRY

from .harness import EAGER, Bench, Row, Way, difference

GROUP = 32
AT_ONCE = 256 << 20  # bytes of weights in a pass, more than any cache
MOST_LAYERS = 64
CHECKED = 256  # rows at each end of a GEMV's result


def gemm(bench: Bench) -> Iterator[Row]:
    """A product of two square matrices in f32 and in f16, GPU time; the peer is cuBLAS (f32 without TF32)."""
    n = 128 if bench.quick else 4096
    for dtype in (DType.F16, DType.F32):
        case = f"{dtype.value} {n}³"
        if not bench.wants(case):
            continue
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal((n, n), np.float32).astype(dtype.numpy) for _ in range(2))
        want = multiplied(bench, a, b)
        if bench.cuda:
            yield bench.row("gemm", case, EAGER, cublas, bench, a, b)
        for way in bench.ways:
            yield bench.row("gemm", case, way, our_gemm, bench, way, a, b, want)


def multiplied(bench: Bench, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product in float32, which multiplies halves exactly."""
    if bench.torch is None:
        return a.astype(np.float32) @ b.astype(np.float32)
    left, right = (bench.torch.from_numpy(x).to(bench.where).float() for x in (a, b))
    return (left @ right).cpu().numpy()


def cublas(bench: Bench, a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    left, right = (bench.cuda.from_numpy(x).to(bench.where) for x in (a, b))
    seconds = bench.cuda_seconds(lambda: left @ right, 20)
    return {"value": 2 * len(a) ** 3 / seconds / 1e12, "unit": "TFLOP/s", "gpu": seconds, "note": "cuBLAS"}


def our_gemm(bench: Bench, way: Way, a: np.ndarray, b: np.ndarray, want: np.ndarray) -> dict[str, Any]:
    dtype = DType.of(a.dtype)
    left, right = Tensor("a", dtype, a.shape, "input"), Tensor("b", dtype, b.shape, "input")
    out = Tensor("y", dtype, want.shape)
    node = Node(REGISTRY["aten.mm.default"], (left, right), (out,), "gemm")
    graph = Graph("gemm", inputs=[left, right], nodes=[node], outputs=[out])
    plan = Planner(graph, bench.target(way)).cover().plan()
    seconds, (got,) = bench.timed(bench.device(way.engine), plan, [a, b])
    flops = 2 * len(a) ** 3
    return {
        "value": flops / seconds / 1e12,
        "unit": "TFLOP/s",
        "gpu": seconds,
        "flops": flops,
        "nbytes": a.nbytes + b.nbytes + got.nbytes,
        "dispatches": len(plan.dispatches),
        "error": difference(got, want),
        "note": ", ".join(plan.kernels[d.kernel].name for d in plan.dispatches),
    }


def gemv(bench: Bench) -> Iterator[Row]:
    """A 4-bit matrix by a vector, GPU time of one of many: with more weights than a cache holds, and with one."""
    for n, k in ((64, 64), (96, 64)) if bench.quick else ((128256, 2048), (8192, 2048)):
        for rotated in (True, False):
            case = f"{n} × {k}, {'weights in turn' if rotated else 'the same weights'}"
            if not bench.wants(case):
                continue
            if rotated and bench.cuda:
                yield bench.row("gemv", case, EAGER, torch_gemv, bench, n, k)
            layers = Layers(n, k, rotated)
            for way in bench.ways:
                yield bench.row("gemv", case, way, our_gemv, bench, way, layers)


class Layers:
    """Linear layers that read the same input and write the same buffer, so that each waits for the previous one."""

    def __init__(self, n: int, k: int, rotated: bool = True, rows: int = 1) -> None:
        rng = np.random.default_rng(0)
        self.n, self.k, self.rows = n, k, rows
        self.count = max(2, min(MOST_LAYERS, AT_ONCE // (n * k // 2)))
        self.weights = [
            (rng.integers(0, 256, (n, k // 2), np.uint8), rng.random((k // GROUP, n), np.float32) / 100)
            for _ in range(self.count if rotated else 1)
        ]
        self.x = rng.standard_normal((rows, k), np.float32)

    @property
    def nbytes(self) -> int:
        """Return the bytes that one layer accesses."""
        return sum(array.nbytes for array in self.weights[0]) + 4 * self.rows * (self.n + self.k)

    def graph(self) -> Graph:
        graph = Graph(f"{self.n}x{self.k}")
        x = Tensor("x", DType.F32, self.x.shape, "input")
        graph.inputs.append(x)
        constants = [
            (
                Tensor(f"weight{i}", DType.U8, weight.shape, "constant", weight),
                Tensor(f"scales{i}", DType.F32, scales.shape, "constant", scales),
            )
            for i, (weight, scales) in enumerate(self.weights)
        ]
        for i, (weight, scales) in zip(range(self.count), itertools.cycle(constants)):
            out = Tensor(f"y{i}", DType.F32, (self.rows, self.n))
            args = (x, weight, scales, GROUP, None)
            graph.nodes.append(Node(REGISTRY["et_vk.linear_q4gsw.default"], args, (out,), f"layer {i}"))
        graph.outputs = [graph.nodes[-1].outs[0]]
        return graph

    def error(self, got: np.ndarray) -> float:
        """Return the error of the first and last elements of the last layer."""
        weight, scales = self.weights[(self.count - 1) % len(self.weights)]
        ends = np.r_[: min(CHECKED, self.n), max(0, self.n - CHECKED) : self.n]
        packed = weight[ends].astype(np.int64)
        values = np.stack([packed & 15, packed >> 4], -1).reshape(len(ends), -1) - 8
        dequantized = values * np.repeat(scales[:, ends].T.astype(np.float64), GROUP, 1)
        return difference(got[:, ends], self.x @ dequantized.T)


def our_gemv(bench: Bench, way: Way, layers: Layers) -> dict[str, Any]:
    plan = Planner(layers.graph(), bench.target(way)).cover().plan()
    seconds, (got,) = bench.timed(bench.device(way.engine), plan, [layers.x])
    each = seconds / layers.count
    return {
        "value": each * 1e6,
        "unit": "µs",
        "gpu": each,
        "nbytes": layers.nbytes,
        "error": layers.error(got),
        "dispatches": len(plan.dispatches) // layers.count,
        "note": f"{layers.count} layers in a pass, sets of weights: {len(layers.weights)}",
    }


def torch_gemv(bench: Bench, n: int, k: int) -> dict[str, Any]:
    torch = bench.cuda
    count = max(2, min(MOST_LAYERS, AT_ONCE // (2 * n * k)))
    weights = [torch.randn((n, k), device=bench.where, dtype=torch.float16) for _ in range(count)]
    x = torch.randn((1, k), device=bench.where, dtype=torch.float16)
    turns = itertools.cycle(weights)
    seconds = bench.cuda_seconds(lambda: torch.nn.functional.linear(x, next(turns)), 4 * count)
    return {"value": seconds * 1e6, "unit": "µs", "gpu": seconds, "note": "weights in f16: four times the bytes"}
