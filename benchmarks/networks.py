"""Whole networks in float32, from host array to host array, beside PyTorch with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import ptegpu

from . import programs
from .harness import Bench, Row, Way, difference

Inputs = tuple[np.ndarray, ...]


def workload(name: str, words: str) -> Callable[[Bench], Iterator[Row]]:
    def measure(bench: Bench) -> Iterator[Row]:
        bench.need_torch()
        from . import models

        network = models.network(name, bench.quick)
        module = models.filled(network.module())
        contents = programs.weights(module)
        module.to(bench.where)
        for batch in network.batches:
            case, inputs = f"{name}, batch {batch}", network.inputs(batch)
            if not bench.wants(case):
                continue
            want = called(bench, module, inputs)
            for peer, make in bench.peers().items():
                yield bench.row(name, case, peer, theirs, bench, make, module, inputs, want)
            for way in bench.ways:
                yield bench.row(name, case, way, ours, bench, way, name, batch, contents, inputs, want)

    measure.__doc__ = f"{words}, float32, host array in to host array out."
    return measure


resnet18 = workload("resnet18", "ResNet-18 on 224 × 224 images")
mobilenetv2 = workload("mobilenetv2", "MobileNetV2 on 224 × 224 images")
minilm = workload("minilm", "An encoder of MiniLM's shape on 128 tokens")


def called(bench: Bench, module: Any, inputs: Inputs) -> np.ndarray:
    """Return PyTorch's result as an array of the host."""
    return module(*(bench.torch.from_numpy(array).to(bench.where) for array in inputs)).cpu().numpy()


def theirs(bench: Bench, make: Callable[[Any], Any], module: Any, inputs: Inputs, want: np.ndarray) -> dict[str, Any]:
    bench.cuda_memory()
    peer = make(module)
    error = difference(called(bench, peer, inputs), want)
    seconds = bench.wall(lambda: called(bench, peer, inputs))
    return {"value": seconds * 1e3, "unit": "ms", "error": error, "memory": bench.cuda_memory(), "note": "float32"}


def ours(
    bench: Bench, way: Way, name: str, batch: int, contents: Mapping[str, bytes], inputs: Inputs, want: np.ndarray
) -> dict[str, Any]:
    with ptegpu.load(programs.network_program(bench, name, batch, contents), **bench.options(way)) as program:
        got = np.asarray(program(*inputs))
        seconds = bench.wall(lambda: program(*inputs))
        profiled = bench.profiled(program.method("forward"), inputs)
    figures = {"value": seconds * 1e3, "unit": "ms", "host": seconds - profiled["gpu"], "error": difference(got, want)}
    return profiled | figures
