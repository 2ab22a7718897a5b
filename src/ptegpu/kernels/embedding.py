"""Rows of a table by index. Indices outside the table are clamped into it, so that nothing else is ever read."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import convert
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s


@cached(64)
def embedding(weight: DType, indices: DType, out: DType, lanes: int, target: Target) -> KernelSpec:
    """An invocation copies `lanes` (1 or 4) neighbouring elements of a row if that row lies in this piece of the table.

    The piece has rows `first` … `first + rows` of a table of `total`; `width` counts lanes.
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
    return build(
        "embedding",
        body,
        target=target,
        reads={"w": Storage(weight, lanes), "index": Storage(indices)},
        writes={"y": Storage(out, lanes)},
        params=u32s("n", "width", "total", "first", "rows"),
    )
