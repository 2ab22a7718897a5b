"""Rows of a table by index. Kernels clamp indices into the table, so they never read beyond it."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import convert
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s

Q4_PARAMS = ("n", "width", "total", "first", "rows", "w_first", "s_first", "group", "scale_row", "scale_group")


@cached(64)
def embedding(weight: DType, indices: DType, out: DType, lanes: int, target: Target) -> KernelSpec:
    """Copy rows, with an invocation for `lanes` (1 or 4) neighbouring elements, if they lie in this part of the table.

    The part has rows `first` … `first + rows` of a table of `total`; `width` counts lanes.
    """
    suffix = "4" if lanes == 4 else ""
    kind, to = COMPUTE[weight], COMPUTE[out]
    value = f"w_at{suffix}((row - P.first) * P.width + i % P.width)"
    body = f"""
  let i = group * WG + lid;
  if (i >= P.n) {{ return; }}
  let row = u32(clamp(index_at(i / P.width), 0, i32(P.total) - 1));
  if (row < P.first || row - P.first >= P.rows) {{ return; }}
  y_put{suffix}(i, {value if lanes == 4 else convert(value, kind, to)});"""
    reads = {"w": Storage(weight, lanes), "index": Storage(indices)}
    writes = {"y": Storage(out, lanes)}
    params = u32s("n", "width", "total", "first", "rows")
    return build("embedding", body, target=target, reads=reads, writes=writes, params=params)


@cached(64)
def embedding_q4(
    weight: DType,
    scales: DType,
    zeros: DType | None,
    indices: DType,
    out: DType,
    lanes: int,
    high_first: bool,
    target: Target,
) -> KernelSpec:
    """Dequantise rows of 4-bit ints, offset by 8: each element becomes (w − zero) · scale of its group.

    An invocation computes `lanes` (1 or 4) neighbouring elements if their row is among the `rows` from `first` on. The
    part of the weight begins at row `w_first` of a table of `total`, the part of scales and zeros at row `s_first`. `n`
    and `width` count elements.
    """
    zero = f" - {convert('zeros_at(scale)', COMPUTE[zeros], 'f32')}" if zeros else ""
    values = []
    for j in range(lanes):
        shift = f"{(j ^ high_first) * 4}u" if lanes == 4 else f"((column & 1u) ^ {int(high_first)}u) * 4u"
        nibble = f"(halves >> ({shift})) & 15u"
        scale = f"base + (column + {j}u) / P.group * P.scale_group"
        values.append(f"element({nibble}, {scale})")
    result = values[0] if lanes == 1 else f"vec4<f32>({', '.join(values)})"
    body = f"""
  let i = (group * WG + lid) * {lanes}u;
  if (i >= P.n) {{ return; }}
  let row = u32(clamp(index_at(i / P.width), 0, i32(P.total) - 1));
  if (row < P.first || row - P.first >= P.rows) {{ return; }}
  let column = i % P.width;
  let at = (row - P.w_first) * (P.width >> 1u) + (column >> 1u);
  let halves = w[at >> 2u] >> ((at & 3u) * 8u);
  let base = (row - P.s_first) * P.scale_row;
  y_put{"4" if lanes == 4 else ""}(i / {lanes}u, {result});"""
    element = f"fn element(w: u32, scale: u32) -> f32 {{ return (f32(w) - 8.0{zero}) * scales_at(scale); }}"
    reads = {"w": Storage(weight, raw="u32"), "scales": Storage(scales), "index": Storage(indices)}
    return build(
        "embedding_q4",
        body,
        target=target,
        reads=reads | ({"zeros": Storage(zeros)} if zeros else {}),
        writes={"y": Storage(out, lanes)},
        params=u32s(*Q4_PARAMS),
        helpers=element,
    )
