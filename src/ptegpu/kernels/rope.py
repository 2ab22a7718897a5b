"""Rotary position embeddings: one or two tensors x [B, S, H, D] turned by an angle per position, in one dispatch.

An invocation computes four neighbouring elements of an output. The style defines the pairs of elements and their angle:

- "pairs": (x[2i], x[2i+1]) by cos[s, h, i], sin[s, h, i], where the tables may lack h;
- "complex": (x[2i], x[2i+1]) by a table of (cos, sin) pairs;
- "halves": (x[i], x[i + R/2]) by cos[p, i], sin[p, i] for i < R at p = start + s; elements from R on do not change. x
  may be [B, H, S, D], with 1 as the number of `heads` within a position, and tables may have the dimension b.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .wgsl import I32, KernelSpec, Storage, build, u32s

RopeStart = Literal["given", "symbolic", "rows"]  # rows: each has a position of its own

_COS_SIN = {
    "pairs": "let t = s * P.table_row + h * P.table_head + i; return vec2<f32>(cos_at(t), sin_at(t));",
    "complex": "let t = s * P.table_row + 2u * i; return vec2<f32>(cos_at(t), cos_at(t + 1u));",
}

_PAIR = """
fn angle(s: u32, h: u32, i: u32) -> vec2<f32> {{ {angle} }}
fn turn(v: vec2<f32>, pair: u32, heads: u32) -> vec2<f32> {{
  let half = P.dim / 2u;
  let row = pair / half;
  let a = angle(row / heads % P.seq, row % heads, pair % half);
  return vec2<f32>(v.x * a.x - v.y * a.y, v.x * a.y + v.y * a.x);
}}
"""

_HALF = """
fn {name}_turn(e: u32) -> f32 {{
  let d = e % P.dim;
  let x = {name}_at(e);
  if (d >= P.table_row) {{ return x; }}
  let half = P.table_row / 2u;
  let s = i32(e / P.dim / P.{name}_heads % P.seq);
  let row = u32(clamp({position}, 0, P.table_rows - 1)) * P.table_row;
  let t = e / P.{name}_batch * P.table_batch + row + d;
  if (d < half) {{ return x * cos_at(t) - {name}_at(e + half) * sin_at(t); }}
  return x * cos_at(t) + {name}_at(e - half) * sin_at(t);
}}
"""


@cached(64)
def rope(style: str, xs: tuple[DType, ...], tables: tuple[DType, ...], start: RopeStart, target: Target) -> KernelSpec:
    """Turn tensors of dtypes `xs` by tables of cos and sin; those of "halves" begin at `start` or with each row."""
    names = ["xq", "xk"][: len(xs)]
    params = u32s("dim", "seq", "table_row")
    if style == "halves":
        positions = {"given": "P.start + s", "symbolic": "sym(P.start) + s", "rows": "rows_at(2u * u32(s) + 1u)"}
        params += [("table_rows", "i32"), ("table_batch", "u32")]
        params += [] if start == "rows" else [("start", "sym" if start == "symbolic" else "i32")]
        helpers = "".join(_HALF.format(name=n, position=positions[start]) for n in names)
    else:
        params += u32s("table_head") if style == "pairs" else []
        helpers = _PAIR.format(angle=_COS_SIN[style])
    lines = ["  var i = group * WG + lid;"]
    for n in names:
        params += u32s(f"{n}_quads", f"{n}_heads")
        if style == "halves":
            lanes = ", ".join(f"{n}_turn(min(i * 4u + {j}u, P.{n}_last))" for j in range(4))
            params += u32s(f"{n}_last", f"{n}_batch")
            value = f"vec4<f32>({lanes})"
        else:
            value = f"vec4<f32>(turn(v.xy, i * 2u, P.{n}_heads), turn(v.zw, i * 2u + 1u, P.{n}_heads))"
        load = f"let v = {n}_at4(i); " if style != "halves" else ""
        lines.append(f"  if (i < P.{n}_quads) {{ {load}{n}_out_put4(i, {value}); return; }}")
        lines.append(f"  i -= P.{n}_quads;")
    reads = {n: Storage(d, 1 if style == "halves" else 4) for n, d in zip(names, xs, strict=True)} | {
        n: Storage(d) for n, d in zip(("cos", "sin"), tables, strict=False)
    }
    reads |= {"rows": I32} if start == "rows" else {}
    writes = {f"{n}_out": Storage(d, 4) for n, d in zip(names, xs, strict=True)}
    return build(
        f"rope_{style}", "\n".join(lines), target=target, reads=reads, writes=writes, params=params, helpers=helpers
    )
