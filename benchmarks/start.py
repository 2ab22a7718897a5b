"""Start times of fresh processes, with the driver's cache of compiled shaders empty or just filled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ptegpu

from . import programs
from .harness import EAGER, Bench, Row, Way, difference
from .host import DEMO

CACHES = ("__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR", "CUDA_CACHE_PATH")
PROMPT = [5, 9, 2]
NETWORK = """
import json, sys, time
began = time.perf_counter()
import numpy as np, ptegpu
imported = time.perf_counter()
folder, how = sys.argv[1], json.loads(sys.argv[2])
inputs = list(np.load(folder + "/inputs.npz").values())
start = time.perf_counter()
program = ptegpu.load(folder + "/program.pte", **how)
loaded = time.perf_counter()
result = program(*inputs)
done = time.perf_counter()
np.save(folder + "/result.npy", result)
print(imported - began, loaded - start, done - loaded)
"""
TORCH_NETWORK = """
import sys, time
began = time.perf_counter()
import numpy as np, torch
from benchmarks import models
imported = time.perf_counter()
folder = sys.argv[1]
inputs = [torch.from_numpy(x) for x in np.load(folder + "/inputs.npz").values()]
module = models.filled(models.network("mobilenetv2", sys.argv[2] == "1").module())
start = time.perf_counter()
module.to(sys.argv[3])
loaded = time.perf_counter()
with torch.no_grad():
    result = module(*(x.to(sys.argv[3]) for x in inputs)).cpu().numpy()
done = time.perf_counter()
np.save(folder + "/result.npy", result)
print(imported - began, loaded - start, done - loaded)
"""
LANGUAGE_MODEL = """
import json, sys, time
began = time.perf_counter()
import ptegpu
from ptegpu.models.text import LanguageModel
imported = time.perf_counter()
model = LanguageModel(sys.argv[1], **json.loads(sys.argv[2]))
loaded = time.perf_counter()
(token,) = model.generate({prompt}, max_tokens=1, temperature=0).tokens
print(imported - began, loaded - imported, time.perf_counter() - loaded, token)
"""


def start(bench: Bench) -> Iterator[Row]:
    """Seconds from `load` to the first result, in fresh processes: driver's cache empty (cold) and filled (warm)."""
    for case in filter(bench.wants, ("mobilenetv2, cold", "mobilenetv2, warm")):
        if bench.cuda:
            yield bench.row("start", case, EAGER, network, bench, case, None)
        for way in bench.ways:
            yield bench.row("start", case, way, network, bench, case, way)
    for case in filter(bench.wants, ("bundled model, .pte", "bundled model, bundle")):
        for way in bench.engines:
            yield bench.row("start", case, way, demo, bench, case, way)


def network(bench: Bench, case: str, way: Way | None) -> dict[str, Any]:
    """Measure MobileNetV2 in PyTorch, or in ptegpu if there is a way."""
    bench.need_torch()
    from . import models

    module = models.filled(models.network("mobilenetv2", bench.quick).module())
    inputs = models.network("mobilenetv2", bench.quick).inputs(1)
    want = module(*(bench.torch.from_numpy(x) for x in inputs)).numpy()
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "inputs.npz", *inputs)
        arguments = [TORCH_NETWORK, folder, str(int(bench.quick)), bench.where]
        if way is not None:
            arguments = [NETWORK, folder, json.dumps(bench.options(way))]
            program = programs.network_program(bench, "mobilenetv2", 1, programs.weights(module))
            (Path(folder) / "program.pte").write_bytes(program)

        def run(cache: str) -> list[float]:
            times = child(arguments, cache)
            return [*times, difference(np.load(Path(folder) / "result.npy"), want)]

        return figures(repeated(bench, case.endswith("cold"), run))


def demo(bench: Bench, case: str, way: Way) -> dict[str, Any]:
    """Measure the bundled language model until its first token, from its `.pte` or a bundle for the adapter, warm."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(str(DEMO))
        if case.endswith("bundle"):
            path = Path(folder) / "tales.bundle"
            ptegpu.compile(Path(str(DEMO)), targets=bench.target(way)).save(path)
        arguments = [LANGUAGE_MODEL.format(prompt=PROMPT), str(path), json.dumps(bench.options(way))]
        return figures([times[:3] for times in repeated(bench, False, lambda cache: child(arguments, cache))])


def repeated(bench: Bench, cold: bool, run: Callable[[str], list[float]]) -> list[list[float]]:
    """Run several times, each with an empty cache, or with a cache that an earlier run filled."""
    rounds = 1 if bench.quick else 3
    results = []
    if cold:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                results.append(run(cache))
        return results
    with tempfile.TemporaryDirectory() as cache:
        return [run(cache) for _ in range(rounds + 1)][1:]


def child(arguments: list[str], cache: str) -> list[float]:
    """Return the figures that a new process prints: seconds of import, load and first result, and more."""
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(str(p) for p in (root / "src", root, *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = os.environ | dict.fromkeys(CACHES, cache) | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the process failed: {done.stderr.strip()[-300:]}")
    return [float(word) for word in done.stdout.split()]


def figures(rounds: list[list[float]]) -> dict[str, Any]:
    imported, loaded, first, *error = (median(column) for column in zip(*rounds))
    note = f"import {imported:.2f}, load {loaded:.2f}, first result {first:.2f} s"
    return {"value": loaded + first, "unit": "s", "note": note, "error": error[0] if error else None}
