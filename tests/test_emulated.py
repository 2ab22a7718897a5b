"""The emulation of matrices: a kernel that uses all of it, and kernels it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ptegpu.dtypes import DType
from ptegpu.gpu import open_device
from ptegpu.graph.graph import Tensor
from ptegpu.graph.schema import Parameter
from ptegpu.kernels.wgsl import KernelSpec, Storage, build
from ptegpu.ops.registry import Dispatch, OpDef, Out, Steps
from ptegpu.plan.target import Target
from tests.emulated import adapter, emulate, rolled
from tests.graphs import Sketch, engine_of

LEFT, RIGHT = "subgroup_matrix_left<f16, 16, 16>", "subgroup_matrix_right<f16, 16, 16>"
RESULT, BLOCK = "subgroup_matrix_result<f32, 16, 16>", "subgroup_matrix_left<f16, 8, 16>"

# Two subgroups. s = c + a · bᵀ goes through f32 to f16, where a was; then y = s · b + 2 · a · b.
BODY = f"""
  var left: {BLOCK}; var right: {BLOCK};
  left = subgroupMatrixLoad<{BLOCK}>(&a, sg * 256u, false, 16u);
  right = subgroupMatrixLoad<{BLOCK}>(&a, sg * 256u + 8u, false, 16u);
  subgroupMatrixStore(&tile, max(sg * 256u, 0u), left, false, 16u);
  subgroupMatrixStore(&tile, sg * 256u + min(8u, 9u), right, false, 16u);
  for (var i = lid; i < 256u; i += WG) {{ matrix[i] = b[i]; }}
  for (var i = lid; i < 512u; i += WG) {{ sums[i] = c[i]; }}
  workgroupBarrier();
  let query = subgroupMatrixLoad<{LEFT}>(&tile, sg * 256u, false, 16u);
  var s = subgroupMatrixLoad<{RESULT}>(&sums, sg * 256u, false, 16u);
  {{
    let r = subgroupMatrixLoad<{RIGHT}>(&matrix, 0u, true, 16u);
    s = subgroupMatrixMultiplyAccumulate(query, r, s);
  }}
  workgroupBarrier();
  subgroupMatrixStore(&sums, sg * 256u, s, true, 16u);
  workgroupBarrier();
  for (var i = lid; i < 512u; i += WG) {{ tile[i] = f16(sums[i / 256u * 256u + i % 16u * 16u + i % 256u / 16u]); }}
  workgroupBarrier();
  var total = {RESULT}();
  for (var step = 0u; step < 2u; step++) {{
    let r = subgroupMatrixLoad<{RIGHT}>(&matrix, 0u, false, 16u);
    total = subgroupMatrixMultiplyAccumulate(query, r, total);
    workgroupBarrier();
  }}
  let p = subgroupMatrixLoad<{LEFT}>(&tile, sg * 256u, false, 16u);
  let r = subgroupMatrixLoad<{RIGHT}>(&matrix, 0u, false, 16u);
  total = subgroupMatrixMultiplyAccumulate(p, r, total);
  subgroupMatrixStore(&y, sg * 256u, total, false, 16u);
"""


def kernel(body: str, target: Target) -> KernelSpec:
    return build(
        "test_matrices",
        body,
        target=target,
        reads={"a": Storage(DType.F16), "b": Storage(DType.F16), "c": Storage(DType.F32)},
        writes={"y": Storage(DType.F32)},
        workgroup=64,
        shared={"tile": ("f16", 512), "matrix": ("f16", 256), "sums": ("f32", 512)},
        matrices=True,
    )


def run(body: str, *inputs: np.ndarray) -> np.ndarray:
    def steps(a: Tensor, b: Tensor, c: Tensor, *, target: Target) -> Steps:
        y = yield Out((32, 16))
        yield Dispatch(kernel(body, target), [a, b, c], [y], 1, {})

    s, op = Sketch(), OpDef("test.op", tuple(map(Parameter, "abc")), frozenset({"target"}), steps=steps)
    operands = [s.input(*x.shape, dtype=DType.of(x.dtype)) for x in inputs]
    with adapter(open_device(engine="wgpu")) as gpu:
        engine = engine_of(s.returns(s.tensor(op, *operands, dtype=DType.F32)), gpu)
        return np.asarray(engine.run(list(inputs))[0])


def test_a_kernel_that_does_it_all() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((32, 16), (16, 16)))  # all sums are exact
    c = rng.integers(-99, 99, (32, 16)).astype(np.float32)
    wide, narrow = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_array_equal((c + wide @ narrow.T) @ narrow + 2 * wide @ narrow, run(BODY, a, b, c))


def test_loads_from_outside_an_array_are_seen() -> None:
    """The second subgroup loads past the last two rows, so these invocations store only NaN."""
    body = f"let r = subgroupMatrixLoad<{RESULT}>(&c, 32u + sg * 256u, false, 16u);\n"
    y = run(body + "subgroupMatrixStore(&y, sg * 256u, r, false, 16u);", *(np.zeros((32, 16), d) for d in "eef"))
    assert np.isfinite(y[:30]).all() and np.isnan(y[30:]).all()


LAST = "subgroupMatrixStore(&y, sg * 256u, total, false, 16u);"
AGAIN = f"total = subgroupMatrixMultiplyAccumulate(p, r, total); {LAST}"
OTHER = f"let other = total; {LAST.replace('total', 'other')}"
REFUSED: dict[str, tuple[str, str, str]] = {  # old text, new text, error message
    "an unknown function": ("subgroupMatrixStore(&y", "subgroupMatrixScale(&y", "unsupported call: .*Scale"),
    "an unknown array": ("subgroupMatrixStore(&y", "subgroupMatrixStore(&z", "unknown array &z"),
    "an unknown shape": (f"var total = {RESULT}", "var total = subgroup_matrix_result<f32, 8, 16>", "total is"),
    "sums in f16": (f"var total = {RESULT}", "var total = subgroup_matrix_result<f16, 16, 16>", "total: subgroup_matr"),
    "a result as an operand": ("Accumulate(p, r, total)", "Accumulate(s, r, total)", "operands of products and stored"),
    "an unknown order": ("(&matrix, 0u, true, 16u)", "(&matrix, 0u, turned, 16u)", "invalid order turned"),
    "a right operand after a barrier": (LAST, f"workgroupBarrier(); {AGAIN}", "may have changed"),
    "a right operand after a shared load": (LAST, f"let u = workgroupUniformLoad(&flag); {AGAIN}", "may have changed"),
    "a right operand after a store": (LAST, f"matrix[lid] = 1h; {AGAIN}", "may have changed"),
    "an operand of another block": ("Accumulate(p, r, total)", "Accumulate(p, o, total)", "unknown matrix o"),
    "a name twice": (LAST, f"let p = subgroupMatrixLoad<{LEFT}>(&tile, 0u, false, 16u); {LAST}", "p is declared twice"),
    "a type of the wrong array": (LAST, LAST.replace("total", "left"), "left is"),
    "real subgroup functions": (LAST, f"let most = subgroupMax(lid); {LAST}", "unsupported module"),
    "a matrix by another name": (LAST, OTHER, "unknown matrix other"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    old, new, message = REFUSED[case]
    assert old in BODY
    with pytest.raises(ValueError, match=message):
        emulate(kernel(BODY.replace(old, new), Target(f16=True)).kernel.wgsl)


def test_lines_that_repeat_become_loops() -> None:
    lines = ["f(0u, 5u);", "f(2u, 5u);", "f(4u, 5u);", "g(1u);"]
    loop = ["for (var i = 0u; i < 3u; i += em_one) {", "f((0u + i * 2u), 5u);", "}"]
    assert rolled(lines, "i", 1) == [*loop, "g(1u);"]
    pairs = [line for n in (3, 1, 2) for line in (f"f({n}u);", "{ g(); }")]
    assert rolled(pairs, "i", 4)[1:3] == ["f(array<u32, 3>(3u, 1u, 2u)[i]);", "{ g(); }"]
    for unchanged in (["let x = 1u;", "let x = 2u;", "let x = 3u;"], ["if (1u) {", "if (2u) {", "if (3u) {"]):
        assert rolled(unchanged, "i", 4) == unchanged
