"""Kernels of training on the device: new 4-bit codes of a weight, cross entropy with its gradient, a step of AdamW."""

from __future__ import annotations

from functools import lru_cache

from ..dtypes import DType
from ..plan.target import Target
from .functions import functions
from .wgsl import KernelSpec, Storage, build

_CODE = """\
fn code(v: f32, row: u32, column: u32) -> i32 {
  let scale = scales_at(column / P.group * P.scale_stride + row);
  if (scale == 0.0) { return 8; }
  let q = round(v / scale);
  return select(i32(within(q, -8.0, 7.0)) + 8, 8, is_nan(q));
}"""


@lru_cache(maxsize=16)
def requantise(latent: DType, scales: DType, quads: bool, target: Target) -> KernelSpec:
    """Four bytes of two codes per invocation. With `quads` rows are whole words, so all eight codes are of one row."""
    if quads:
        lines = [
            "  let row = q * 4u / P.row_bytes; let column = (q * 4u - row * P.row_bytes) * 2u;",
            "  let low = latent_at4(q * 2u); let high = latent_at4(q * 2u + 1u);",
        ]
        values = [f"{part}.{c}" for part in ("low", "high") for c in "xyzw"]
        codes = [f"code({v}, row, column + {j}u)" for j, v in enumerate(values)]
        results = [f"{codes[j]} | ({codes[j + 1]} << 4u)" for j in range(0, 8, 2)]
    else:
        lines = []
        results = [f"pair(min(q * 4u + {j}u, P.n - 1u))" for j in range(4)]
    body = [
        "  let q = group * WG + lid;",
        "  if (q * 4u >= P.n) { return; }",
        *lines,
        f"  y_put4(q, vec4<i32>({', '.join(results)}));",
    ]
    pair = """\
fn pair(byte: u32) -> i32 {
  let row = byte / P.row_bytes; let column = byte % P.row_bytes * 2u; let at = row * P.width + column;
  let low = code(latent_at(at), row, column);
  if (column + 1u >= P.width) { return low; }
  return low | (code(latent_at(at + 1u), row, column + 1u) << 4u);
}"""
    return build(
        "requantise",
        "\n".join(body),
        target=target,
        reads={"latent": Storage(latent, 4 if quads else 1), "scales": Storage(scales)},
        writes={"y": Storage(DType.U8, 4)},
        params=[(p, "u32") for p in ("n", "width", "row_bytes", "group", "scale_stride")],
        workgroup=target.workgroup(256),
        helpers="\n".join([functions(_CODE), _CODE, *([] if quads else [pair])]),
    )
