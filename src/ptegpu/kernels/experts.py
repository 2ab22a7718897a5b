"""Products of rows with one of several matrices each: y[slot, n] = Σₖ x[row, k] · w[expert of the slot, n, k].

A workgroup walks along K for one slot and a few columns. So a token reads only the weights of its experts. Experts are
clamped into the table, so that kernels never read beyond it.

Weights are floats, or integers of 8 bits with a scale per row, or of 4 bits, offset by 8 with even elements in the low
half of a byte, with a scale per group.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .gemv import reduced
from .wgsl import I32, KernelSpec, Storage, build

COLUMNS = 4  # of a workgroup
WeightKind = Literal["float", "bytes", "halves"]  # of weights
PARAMS = ("n", "k", "blocks", "count", "share", "first", "rows")

# The addition of step k to the sum of column j, whose row begins at `b`.
_STEP = {
    "one": "sum{j} = fma(x_at(a + k), w_at(b{j} + k), sum{j});",
    "float": "sum{j} += dot(x_at4(a + k), w_at4(b{j} + k));",
    "bytes": "sum{j} += dot(x_at4(a + k), vec4<f32>(w_at4(b{j} + k)));",
    "halves": "sum{j} += scales_at(k * 8u / P.group * P.stride + row{j}) * eight(w_at4(b{j} + k), even, odd);",
}
_EIGHT = """
fn eight(w: vec4<i32>, even: vec4<f32>, odd: vec4<f32>) -> f32 {
  let low = vec4<f32>((w & vec4<i32>(15)) - 8);
  let high = vec4<f32>(((w >> vec4<u32>(4u)) & vec4<i32>(15)) - 8);
  return dot(low, even) + dot(high, odd);
}
"""


@cached(64)
def experts(
    form: WeightKind, x: DType, weight: DType, scales: DType | None, y: DType, quads: bool, target: Target
) -> KernelSpec:
    """Multiply by `rows` rows of the weight [`count` · `n`, K] from `first` on; `share` slots have the same row of x.

    With `quads`, K is a multiple of four, which it always is for ints.
    """
    workgroup = target.workgroup(64)
    step = form if quads else "one"
    length = {"one": "P.k", "float": "(P.k >> 2u)", "bytes": "(P.k >> 2u)", "halves": "(P.k >> 3u)"}[step]
    columns = range(COLUMNS)
    body = [
        "let slot = group / P.blocks;",
        f"let column = group % P.blocks * {COLUMNS}u;",
        "let expert = u32(clamp(experts_at(slot), 0, i32(P.count) - 1));",
        f"let a = slot / P.share * {length if form != 'halves' else '(P.k >> 2u)'};",
    ]
    for j in columns:
        body += [
            f"let row{j} = expert * P.n + min(column + {j}u, P.n - 1u);",
            f"let b{j} = (clamp(row{j}, P.first, P.first + P.rows - 1u) - P.first) * {length};",
            f"var sum{j} = 0.0;",
        ]
    body.append(f"for (var k = lid; k < {length}; k += WG) {{")
    if form == "halves":
        body += [
            "  let u = x_at4(a + 2u * k); let v = x_at4(a + 2u * k + 1u);",
            "  let even = vec4<f32>(u.xz, v.xz); let odd = vec4<f32>(u.yw, v.yw);",
        ]
    body += [*(f"  {_STEP[step].format(j=j)}" for j in columns), "}"]
    scaled = " * scales_at({row})" if form == "bytes" else ""
    lines, size = reduced([f"sum{j}{scaled.format(row=f'row{j}')}" for j in columns], workgroup, target)
    body += [
        *lines,
        "let own = expert * P.n + column + lid;",
        f"if (lid < {COLUMNS}u && column + lid < P.n && own >= P.first && own - P.first < P.rows) {{",
        "  y_put(slot * P.n + column + lid, total);",
        "}",
    ]
    lanes = 4 if quads else 1
    reads = {"x": Storage(x, lanes), "w": Storage(weight, lanes), "experts": I32}
    return build(
        f"experts_{form}",
        "\n".join(body),
        target=target,
        reads=reads | ({"scales": Storage(scales)} if scales else {}),
        writes={"y": Storage(y)},
        params=[(p, "u32") for p in (*PARAMS, *(("group", "stride") if form == "halves" else ()))],
        workgroup=workgroup,
        shared={"partial": ("f32", size)},
        helpers=_EIGHT if form == "halves" else "",
        subgroups=target.subgroups,
    )
