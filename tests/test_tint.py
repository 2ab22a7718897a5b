"""The Tint helper itself: it accepts, it refuses with line and column, and it reads text beyond ASCII to its end."""

from __future__ import annotations

from dataclasses import replace

from ptegpu.plan.directives import source
from ptegpu.plan.plan import Kernel
from tests import tint

BODY = """
@group(0) @binding(0) var<storage, read_write> x: array<f16>;
@compute @workgroup_size(64)
fn main(@builtin(subgroup_size) size: u32) {
    x[0] = f16(subgroupAdd(f32(size)));
}
"""


def test_f16_and_subgroups_compile_with_the_prelude():
    kernel = Kernel("both", BODY, ("write",), 64, needs=("f16", "subgroups"))
    assert tint.check([source(kernel, "tint")]) == []


def test_matrices_compile_with_the_prelude():
    body = """
@group(0) @binding(0) var<storage, read_write> x: array<f16>;
@compute @workgroup_size(32)
fn main() {
    let a = subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>>(&x, 0u, false, 16u);
    let b = subgroupMatrixLoad<subgroup_matrix_right<f16, 16, 16>>(&x, 256u, false, 16u);
    var sums = subgroup_matrix_result<f16, 16, 16>();
    sums = subgroupMatrixMultiplyAccumulate(a, b, sums);
    subgroupMatrixStore(&x, 512u, sums, false, 16u);
}
"""
    kernel = Kernel("product", body, ("write",), 32, needs=("f16", "subgroups", "matrices"))
    assert tint.check([source(kernel, "tint")]) == []
    (message,) = tint.check([source(replace(kernel, needs=("f16", "subgroups")), "tint")])
    assert "chromium_experimental_subgroup_matrix" in message


def test_the_prelude_of_naga_is_not_enough_for_subgroups():
    kernel = Kernel("both", BODY, ("write",), 64, needs=("f16", "subgroups"))
    (message,) = tint.check([source(kernel, "naga")])
    first = message.splitlines()[0]
    assert first == "source 0: :6:16 error: cannot call built-in function 'subgroupAdd' without extension 'subgroups'"


def test_every_refused_source_is_reported():
    good, bad = "fn f() {}", "fn f() { let x = nothing; }"
    assert [message.split(":")[0] for message in tint.check([good, bad, bad])] == ["source 1", "source 2"]


def test_text_beyond_ascii_is_read_to_its_end():
    (message,) = tint.check(["// 3 × 4 × 5 × 6 × 7\nfn f() {}\nfn g() { let x = nothing; }"])
    assert message.splitlines()[0] == "source 0: :3:18 error: unresolved value 'nothing'"
