"""Values folded into the elements that indices name. WGSL has no atomic floats, so indices are sorted first, and each
element of the result looks up its values. It folds them in their order, so every run gives the same sum.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import convert, decode, place, sizes
from .functions import functions
from .index import from_end, own_params
from .wgsl import COMPUTE, I32, KernelSpec, Storage, build, u32s

Fold = Literal["sum", "prod", "mean", "amax", "amin"]

_FOLDS: dict[Fold, dict[str, str]] = {
    "sum": {"f32": "total + v", "i32": "total + v"},
    "mean": {"f32": "total + v", "i32": "total + v"},
    "prod": {"f32": "total * v", "i32": "total * v"},
    "amax": {"f32": "greater(total, v)", "i32": "max(total, v)"},
    "amin": {"f32": "lesser(total, v)", "i32": "min(total, v)"},
}
_MEAN = {"f32": "total / f32(max(count, 1u))", "i32": "whole_floor_quotient(total, i32(max(count, 1u)))"}


@cached(256)
def fold(by: Fold, x: DType, values: DType, out: DType, rank: int, bounded: bool, target: Target) -> KernelSpec:
    """Fold into element c of `x` the values that a row of sorted indices sends there.

    The kernel searches row Σ c·row_s of `P.length` indices for Σ c·key_s; index number j of a row sends value
    Σ c·v_s + j·`P.step`. With `P.own` 0, an element that gets values does not count itself. If `bounded`, only elements
    below `P.limit` in each dimension get any.
    """
    kind = COMPUTE[x]
    text = f"{_FOLDS[by][kind]} {_MEAN[kind] if by == 'mean' else ''}"
    inside = " && ".join(f"c{k} < P.limit{k}" for k in range(rank)) if bounded else "true"
    body = f"""  let e = group * WG + lid;
  if (e >= P.n) {{ return; }}
{chr(10).join(decode("c", "e", rank))}
  var total = x_at(e);
  var count = P.own;
  if ({inside}) {{
    let key = {place("key", rank)};
    let first = u32({place("row", rank)}) * P.length;
    let base = u32({place("v", rank)});
    var low = 0u;
    var high = P.length;
    while (low < high) {{
      let middle = (low + high) / 2u;
      if (bitcast<u32>(keys_at(first + middle)) < u32(key)) {{ low = middle + 1u; }} else {{ high = middle; }}
    }}
    for (var j = first + low; j < first + P.length; j++) {{
      if (keys_at(j) != key) {{ break; }}
      let v = {convert("v_at(base + u32(places_at(j)) * P.step)", COMPUTE[values], kind)};
      if (count == 0u) {{ total = v; }} else {{ total = {_FOLDS[by][kind]}; }}
      count++;
    }}
  }}
  y_put(e, {_MEAN[kind] if by == "mean" else "total"});"""
    params = u32s("n", "own", "length", "step", *(f"d{k}" for k in range(rank)))
    params += [(f"{name}_s{k}", "i32") for name in ("row", "key", "v") for k in range(rank)]
    params += [(f"limit{k}", "i32") for k in range(rank) if bounded]
    return build(
        f"scatter_{by}",
        body,
        target=target,
        reads={"x": Storage(x), "keys": I32, "places": I32, "v": Storage(values)},
        writes={"y": Storage(out)},
        params=params,
        helpers=functions(text),
    )


@cached(64)
def linear(indices: int, rank: int, target: Target) -> KernelSpec:
    """Combine several indices: Σⱼ index j (at Σ c·ij_s) · ij_stride, or 2³¹ - 1 if one is out of range."""
    params = sizes(rank)
    lines = ["  let e = group * WG + lid;", "  if (e >= P.n) { return; }", *decode("c", "e", rank)]
    lines += ["  var at = 0;", "  var inside = true;"]
    for j in range(indices):
        params += own_params(j, rank)
        lines += [
            *from_end(j, rank),
            f"  inside = inside && k{j} >= 0 && k{j} < P.i{j}_size;",
            f"  at += k{j} * P.i{j}_stride;",
        ]
    lines.append("  y_put(e, select(0x7fffffff, at, inside));")
    return build(
        "linear_index",
        "\n".join(lines),
        target=target,
        reads={f"i{j}": I32 for j in range(indices)},
        writes={"y": I32},
        params=params,
    )
