"""The latest token of each sequence, which a run leaves for the next one. Rows are (sequence, position)."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .wgsl import I32, KernelSpec, Storage, build, u32s


@cached(8)
def fill(tokens: DType, target: Target) -> KernelSpec:
    """Replace tokens below 0 by the latest token of the row's sequence, or by 0 if the row has no sequence."""
    body = """
  let i = group * WG + lid;
  if (i >= P.rows) { return; }
  let token = tokens_at(i); let sequence = rows_at(2u * i);
  let known = sequence >= 0 && u32(sequence) < P.sequences;
  y_put(i, select(token, select(0, latest_at(u32(max(0, min(sequence, i32(P.sequences) - 1)))), known), token < 0));"""
    return build(
        "latest_fill",
        body,
        target=target,
        reads={"tokens": Storage(tokens), "rows": I32, "latest": I32},
        writes={"y": Storage(tokens)},
        params=u32s("rows", "sequences"),
        workgroup=target.workgroup(64),
    )
