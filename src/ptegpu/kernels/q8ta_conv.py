"""Convolutions of int8 images (batch, channels, H, W) over two axes, summed in integers.

- `window` turns `linear_q8.gemm` into a convolution: rows are positions of the output, columns its channels, and a word
  has four taps or channels of the input, in the order (y, x, channel) of the weights;
- `depthwise` computes four neighbouring outputs of a channel per invocation.

The padding is zero, which is the zero point among int8 values.
"""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .linear_q8 import RowGather
from .wgsl import KernelSpec, Storage, build

# By axis 0 and 1: sizes of input, output and kernel, stride, padding, dilation.
AXES = tuple((f"{n}{k}", "i32") for n in "iokspd" for k in (0, 1))


def _coordinate(axis: int, transposed: bool) -> str:
    """Return `along<axis>(o, t)`: the position in the input of tap t of output o, or -1."""
    k = axis
    if transposed:
        position = f"let spread = o + P.p{k} - t * P.d{k}; let at = spread / P.s{k};"
        inside = f"spread >= 0 && spread % P.s{k} == 0 && at < P.i{k}"
    else:
        position = f"let at = o * P.s{k} - P.p{k} + t * P.d{k};"
        inside = f"at >= 0 && at < P.i{k}"
    return f"fn along{k}(o: i32, t: i32) -> i32 {{ {position} return select(-1, at, {inside}); }}"


@cached(64)
def window(transposed: bool, depth_quads: bool, shared_scales: bool) -> RowGather:
    """Return the source of words; with `depth_quads`, `P.depth` is a multiple of four, so that a word has one tap."""
    lines = [
        _coordinate(0, transposed),
        _coordinate(1, transposed),
        "fn pixel(o: vec2<i32>, k: i32) -> i32 {",  # the index in the input of channel and tap k, or -1
        "  let tap = k / P.depth; let channel = i32(product) * P.depth + k % P.depth;",
        "  let y = along0(o.x, tap / P.k1); let x = along1(o.y, tap % P.k1);",
        "  return select((channel * P.i0 + y) * P.i1 + x, -1, y < 0 || x < 0);",
        "}",
        "fn value(at: i32) -> i32 { return select(x_at(u32(max(at, 0))), P.x_zero, at < 0); }",
        "fn x_word(row: u32, word: u32, inside: bool) -> u32 {",
        "  let position = i32(min(row, P.m - 1u)); let o = vec2<i32>(position / P.o1, position % P.o1);",
        "  let k = i32(word) * 4;",
    ]
    if depth_quads:
        values = ", ".join(f"value(at + {j} * step)" for j in range(4))
        lines += [
            "  let at = pixel(o, k); let step = select(P.i0 * P.i1, 0, at < 0);",
            f"  return select(0u, pack4xI8(vec4<i32>({values})), inside);",
        ]
    else:
        lines += [
            "  let count = select(0, min(4, P.k0 * P.k1 * P.depth - k), inside);",
            "  var packed = 0u;",
            "  for (var j = 0; j < count; j++) {",
            "    packed |= (bitcast<u32>(value(pixel(o, k + j))) & 255u) << u32(8 * j);",
            "  }",
            "  return packed;",
        ]
    lines.append("}")
    return RowGather("\n".join(lines), (("sets", "u32"), ("depth", "i32"), *AXES), shared_scales)


@cached(64)
def depthwise(weight: DType, scales: DType, bias: DType | None, relu: bool, target: Target) -> KernelSpec:
    """Convolve depthwise with a weight (kernel H, kernel W, channels)."""
    value = "f32(sum) * (P.x_scale * scales_at(u32(channel)))" + (" + bias_at(u32(channel))" if bias else "")
    value = f"max({value}, 0.0)" if relu else value
    helpers = [
        _coordinate(0, False),
        _coordinate(1, False),
        "fn output(i: u32) -> i32 {",
        "  let o1 = i32(i) % P.o1; let rest = i32(i) / P.o1; let o0 = rest % P.o0; let plane = rest / P.o0;",
        "  let channel = plane % P.channels;",
        "  var sum = 0;",
        "  for (var t0 = 0; t0 < P.k0; t0++) {",
        "    let y = along0(o0, t0);",
        "    for (var t1 = 0; t1 < P.k1; t1++) {",
        "      let x = along1(o1, t1);",
        "      if (y >= 0 && x >= 0) {",
        "        let w = w_at(u32((t0 * P.k1 + t1) * P.channels + channel));",
        "        sum += (x_at(u32((plane * P.i0 + y) * P.i1 + x)) - P.x_zero) * w;",
        "      }",
        "    }",
        "  }",
        f"  let v = {value};",
        "  return i32(clamp(round(v * P.y_inverse) + P.y_zero, -128.0, 127.0));",
        "}",
    ]
    body = """
  let q = group * WG + lid;
  if (q * 4u >= P.count) { return; }
  let last = P.count - 1u; let i = q * 4u;
  y_put4(q, vec4<i32>(output(i), output(min(i + 1u, last)), output(min(i + 2u, last)), output(min(i + 3u, last))));"""
    reads = {"x": Storage(DType.I8), "w": Storage(weight), "scales": Storage(scales)}
    numbers = [("x_scale", "f32"), ("x_zero", "i32"), ("y_inverse", "f32"), ("y_zero", "f32")]
    return build(
        "q8ta_conv_depthwise",
        body,
        target=target,
        reads=reads | ({"bias": Storage(bias)} if bias else {}),
        writes={"y": Storage(DType.I8, 4)},
        params=[("count", "u32"), ("channels", "i32"), *AXES, *numbers],
        helpers="\n".join(helpers),
    )
