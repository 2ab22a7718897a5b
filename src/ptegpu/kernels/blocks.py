"""Blocks of 32 elements that share a scale: an f32, then a byte for each element, which make nine words.

A byte b stands for (b - 128) / 256 times the scale, so zeros mean zeros, and the largest magnitude of a block is stored
as 1 or 255. As in `packing.py`, the bits of a byte become the top of the mantissa of a number f between 1 and 2, so an
element is f · scale - 1.5 · scale. Scales are rounded up to 15 significant bits, so both products are exact on every
adapter.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import BLOCK, BLOCK_BYTES

WORDS = BLOCK_BYTES // 4  # of a block
QUADS = BLOCK // 4  # of elements
DROPPED = 0x1FF  # bits of a scale's mantissa
INFINITY = 0x7F800000  # the scale of a block with NaN or infinity, whose elements are all read as NaN
LOWEST_TOP = 1e-30  # a block whose elements are all smaller is stored as zeros

READING = """fn block_quad(word: u32, unit: u32) -> vec4<f32> {
  let bits = vec4<u32>(word << 15u, word << 7u, word >> 1u, word >> 9u) & vec4<u32>(0x7f8000u);
  let scale = bitcast<f32>(unit);
  return fma(bitcast<vec4<f32>>(bits | vec4<u32>(0x3f800000u)), vec4<f32>(scale), vec4<f32>(-1.5 * scale));
}"""

# The largest magnitude of a block, its scale as stored, the inverse of a step, and a word of four elements.
WRITING = f"""fn block_top({", ".join(f"v{j}: vec4<f32>" for j in range(QUADS))}) -> f32 {{
  var high = abs(v0); var all_ = high;
{"".join(f"  high = max(high, abs(v{j})); all_ += abs(v{j});{chr(10)}" for j in range(1, QUADS))}\
  let top = max(max(high.x, high.y), max(high.z, high.w));
  let infinite = bitcast<u32>((all_.x + all_.y) + (all_.z + all_.w)) & {INFINITY:#x}u; // max may drop NaN
  return select(top, bitcast<f32>(infinite), infinite == {INFINITY:#x}u);
}}
fn block_unit(top: f32) -> u32 {{
  return select(0u, (bitcast<u32>(top * {256 / 127}) + {DROPPED}u) & ~{DROPPED}u, top > {LOWEST_TOP});
}}
fn block_lift(unit: u32) -> f32 {{ return select(0.0, 256.0 / bitcast<f32>(unit), unit > 0u); }}
fn block_word(v: vec4<f32>, lift: f32) -> u32 {{
  let u = vec4<u32>(round(v * lift) + vec4<f32>(128.0)) << vec4<u32>(0u, 8u, 16u, 24u);
  return u.x | u.y | u.z | u.w;
}}"""


def accessors(name: str, lanes: int, *, write: bool) -> list[str]:
    """Return functions of a binding: `x_at4(quad)` or `x_at(element)`, and `x_put_block(block, eight quads)`.

    `x_quad_from(block, quad)` counts quads from a block on: the compiler sees which of them share a scale.
    """
    lines = [
        f"fn {name}_quad_from(block: u32, q: u32) -> vec4<f32> {{ let b = (block + (q >> 3u)) * {WORDS}u; "
        f"return block_quad({name}[b + 1u + (q & 7u)], {name}[b]); }}"
    ]
    if lanes == 4:
        lines.append(f"fn {name}_at4(q: u32) -> vec4<f32> {{ return {name}_quad_from(q >> 3u, q & 7u); }}")
    else:
        quad = f"{name}_quad_from(i >> 5u, (i >> 2u) & 7u)"
        lines.append(f"fn {name}_at(i: u32) -> f32 {{ return {quad}[i & 3u]; }}")
    if write:
        quads = [f"v{j}" for j in range(QUADS)]
        lines += [
            f"fn {name}_put_block(b: u32, {', '.join(f'{v}: vec4<f32>' for v in quads)}) {{",
            f"  let unit = block_unit(block_top({', '.join(quads)})); let lift = block_lift(unit);",
            f"  {name}[b * {WORDS}u] = unit;",
            *(f"  {name}[b * {WORDS}u + {j + 1}u] = block_word({v}, lift);" for j, v in enumerate(quads)),
            "}",
        ]
    return lines


def blocks_of(values: np.ndarray) -> np.ndarray:
    """Return float32 values as blocks, uint32 [count / 32, 9]."""
    rows = values.reshape(-1, BLOCK).astype(np.float32)
    top = np.abs(rows).max(1, keepdims=True)
    top[~np.isfinite(top)] = np.inf
    top[top <= LOWEST_TOP] = 0
    units = ((top * np.float32(256 / 127)).view(np.uint32) + np.uint32(DROPPED)) & np.uint32(~DROPPED & 0xFFFFFFFF)
    lift = np.divide(np.float32(256), units.view(np.float32), out=np.zeros_like(top), where=units > 0)
    elements = (np.rint(np.where(np.isfinite(top), rows, 0) * lift) + 128).astype(np.uint8)
    return np.concatenate((units, elements.view("<u4")), 1)
