"""Dawn's bounds checks are off: no index may take a kernel out of its buffers, whatever it is.

Each operator that indexes is given the wildest indices. The results must be those of wgpu-native, which checks every
access: a kernel that relied on the engine would read or write something else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cases import Problem, device, given, graph_of, grows, plan_of, run_plan
from tests.graphs import settle
from tests.saved import read

from ptegpu.dtypes import DType
from ptegpu.gpu import open_device
from ptegpu.ops import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
WILD = np.array([0, 1, -1, 7, 1 << 20, -(1 << 20), 2**31 - 1, -(2**31), 1 << 30, -2], np.int32)
PROBLEMS, _ = read(ROOT / "tests" / "data" / "few.zip")
INDEXED = [name for name, p in PROBLEMS.items() if REGISTRY[p.case.op].indexes is not None]


def wild(problem: Problem) -> Problem:
    """Return the case with other values in its int32 tensors."""
    ints = {key for key, a in problem.arrays.items() if a.dtype == DType.I32.numpy}
    arrays = {key: np.resize(WILD, a.shape) if key in ints else a for key, a in problem.arrays.items()}
    return replace(problem, arrays=arrays)


@pytest.mark.parametrize("name", INDEXED, ids=[name[:80] for name in INDEXED])
def test_wild_indices_stay_within(name: str) -> None:
    gpu, checked = device(), open_device(engine="wgpu")
    assert ("dawn", "wgpu") == (gpu.info.engine, checked.info.engine)
    problem = wild(PROBLEMS[name])
    results = []
    for opened in (gpu, checked):
        graph, arrays = graph_of(problem.case, problem.arrays, problem.eager)
        inputs = given(graph, problem.case, arrays)
        settle(graph)
        results.append(run_plan(plan_of(graph, gpu.target, inputs, grows(problem.case.args)), inputs, opened))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


TOGGLES = """
from ptegpu.gpu import open_device
api = open_device().api
names = api.ffi.new("char const *[100]")
count = api.lib.wgpu_dawn_device_toggles(api.handle, names, 100)
toggles = {api.ffi.string(names[k]).decode() for k in range(count)}
print(*sorted(toggles & {"disable_robustness", "disable_workgroup_init", "timestamp_quantization"}))
"""


@pytest.mark.parametrize(
    ("robust", "expected"), [("", "disable_robustness disable_workgroup_init\n"), ("0", None), ("1", "\n")]
)
def test_the_toggles_of_a_device(robust: str, expected: str | None) -> None:
    environ = os.environ | {"PTEGPU_ROBUST": robust, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", TOGGLES], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == (expected or "disable_robustness disable_workgroup_init\n")
