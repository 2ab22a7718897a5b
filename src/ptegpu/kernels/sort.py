"""Sorting of rows: each workgroup sorts a chunk, then sorted runs are merged in pairs. The result is element numbers.

An element becomes a u32 key that orders as in PyTorch: NaN above all, −0 as 0, and reversed if the order descends.
Sorting is stable: a chunk is sorted by (key, number), and a merge takes the left run first. A run may be cut to its
first `P.keep` elements, which is enough for the k largest.

A result is either "runs", the keys and numbers of each row, or "places", only the numbers, in the layout of the result.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .wgsl import COMPUTE, I32, KernelSpec, Storage, build, u32s

# "low": up, but NaN first; "index": by the element of `P.size` that they index, those out of range last
Order = Literal["up", "down", "low", "index"]
Result = Literal["runs", "places"]

CHUNK = 2048  # elements that a workgroup sorts if its memory has room for them, 8 bytes each

_KEYS = {
    "f32": """fn key_of(v: f32) -> u32 {
  let bits = bitcast<u32>(v);
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return NAN_KEY; }
  return select(select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u), 0x80000000u, (bits << 1u) == 0u);
}""",
    "i32": "fn key_of(v: i32) -> u32 { return bitcast<u32>(v) ^ 0x80000000u; }",
    "bool": "fn key_of(v: bool) -> u32 { return select(0u, 1u, v); }",
}
_INDEX = """fn key_of(v: i32) -> u32 {
  let k = select(v, v + P.size, v < 0);
  return select(0xffffffffu, u32(k), k >= 0 && k < P.size);
}"""
_EXCHANGE = """fn exchange(i: u32, j: u32) {
  let a = keys[i]; let b = keys[j]; let m = numbers[i]; let n = numbers[j];
  if (a > b || (a == b && m > n)) { keys[i] = b; keys[j] = a; numbers[i] = n; numbers[j] = m; }
}"""


def chunk(length: int, target: Target) -> int:
    """Return how many elements of a row of this length one workgroup sorts: a power of two."""
    most = 1 << (min(CHUNK, target.max_shared_bytes // 8).bit_length() - 1)
    return min(most, 1 << max(length - 1, 1).bit_length())


def slots(width: int, target: Target) -> int:
    """Return the elements in a workgroup's memory: at least two per invocation, so several chunks if they are small."""
    return max(width, min(2 * target.workgroup(256), chunk(CHUNK, target)))


def _results(result: Result, at: str, key: str, number: str) -> str:
    """Return statements that store element `at` of the row `row`."""
    if result == "runs":
        return f"let o = row * P.room + {at}; y_keys_put(o, bitcast<i32>({key})); y_put(o, i32({number}));"
    return f"y_put((row / P.inner * P.room + {at}) * P.inner + row % P.inner, i32({number}));"


def _writes(result: Result) -> dict[str, Storage]:
    return {"y_keys": I32, "y": I32} if result == "runs" else {"y": I32}


@cached(256)
def chunks(dtype: DType, order: Order, width: int, result: Result, target: Target) -> KernelSpec:
    """Sort each chunk of `width` elements of `P.rows` rows of `P.length`, which are `P.inner` apart, and store the
    first `P.keep` of each, `P.room` per row.
    """
    count = slots(width, target)
    key = "key_of(x_at((row / P.inner * P.length + at) * P.inner + row % P.inner))"
    find = (
        f"let block = group * {count // width}u + s / {width}u; let row = block / P.chunks; "
        f"let first = block % P.chunks * {width}u; let at = first + s % {width}u;"
    )
    body = f"""  for (var s = lid; s < {count}u; s += WG) {{
    {find}
    keys[s] = 0xffffffffu; numbers[s] = at;
    if (row < P.rows && at < P.length) {{ keys[s] = {"~" if order == "down" else ""}{key}; }}
  }}
  for (var k = 2u; k <= {width}u; k = k << 1u) {{
    workgroupBarrier();
    let half = k >> 1u;
    for (var t = lid; t < {count // 2}u; t += WG) {{
      let i = t / half * k + t % half;
      exchange(i, i ^ (k - 1u));
    }}
    for (var j = k >> 2u; j > 0u; j = j >> 1u) {{
      workgroupBarrier();
      for (var t = lid; t < {count // 2}u; t += WG) {{
        let i = t / j * 2u * j + t % j;
        exchange(i, i + j);
      }}
    }}
  }}
  workgroupBarrier();
  for (var s = lid; s < {count}u; s += WG) {{
    {find}
    if (row < P.rows && at < P.length && at - first < P.keep) {{
      let to = first / {width}u * P.keep + at - first;
      {_results(result, "to", "keys[s]", "numbers[s]")}
    }}
  }}"""
    params = u32s("rows", "length", "inner", "chunks", "keep", "room")
    return build(
        "sort_chunks",
        body,
        target=target,
        reads={"x": Storage(dtype)},
        writes=_writes(result),
        params=[*params, *([("size", "i32")] if order == "index" else [])],
        shared={"keys": ("u32", count), "numbers": ("u32", count)},
        helpers="\n".join(
            [
                f"const NAN_KEY = {'0u' if order == 'low' else '0xffffffffu'};",
                _INDEX if order == "index" else _KEYS[COMPUTE[dtype]],
                _EXCHANGE,
            ]
        ),
    )


@cached(8)
def merge(result: Result, target: Target) -> KernelSpec:
    """Merge runs 2i and 2i + 1 of each row into one of at most `P.keep` elements.

    A row has `P.runs` runs of `P.run` elements, of which the last has `P.last`, and room for `P.given`; results have
    room for `P.room`. Each element moves back by the number of elements of the other run that precede it.
    """
    to = "run / 2u * P.keep + to"
    body = f"""  let e = group * WG + lid;
  if (e >= P.rows * P.given) {{ return; }}
  let row = e / P.given; let run = e % P.given / P.run;
  let right = (run & 1u) == 1u; let other = run ^ 1u;
  let base = row * P.given + other * P.run;
  let key = bitcast<u32>(keys_at(e));
  var low = 0u;
  var high = select(select(P.run, P.last, other == P.runs - 1u), 0u, other >= P.runs);
  while (low < high) {{
    let middle = (low + high) / 2u;
    let there = bitcast<u32>(keys_at(base + middle));
    if (there < key || (right && there == key)) {{ low = middle + 1u; }} else {{ high = middle; }}
  }}
  let to = e % P.given % P.run + low;
  if (to < P.keep) {{ {_results(result, to, "key", "x_at(e)")} }}"""
    return build(
        "sort_merge",
        body,
        target=target,
        reads={"keys": I32, "x": I32},
        writes=_writes(result),
        params=u32s("rows", "given", "runs", "run", "last", "inner", "keep", "room"),
    )
