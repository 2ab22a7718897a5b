"""Operands of matrix units: rows as blocks of f16, whatever they were.

Matrix units load from workgroup memory, which only takes f16. So both operands first become `blocks`: rows that
`prepare` has made f16, laid out so that 16 rows of 8 elements lie together.

f16 ends at 65,504, so rows are scaled by a power of two on their way to f16, each so that its largest element lies
just below 2¹⁴; results are scaled back.

Where f32 is wanted, an element is two of f16, which together have its 24 bits but for two or so: the nearest one, and
the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .convolution import flat, window
from .matmul import row_quad
from .packing import Packing, bound_of, eight_of, loader
from .wgsl import KernelSpec, Storage, build, u32s

NEEDS = ("f16 f32 16x16x16", "f16 f32 16x8x8")  # of `Target.matrices`
ROWS, SPAN = 16, 8  # of a block
SHARE = 4  # rows that a workgroup prepares: 64 bytes beside each other
LANES = 32  # of a subgroup
# Rounded to what f16 holds; infinity is left. Not unpacked from what is packed: drivers take that for the same number.
NEAR = """fn near(v: vec2<f32>) -> vec2<f32> {
  let cut = bitcast<vec2<f32>>((bitcast<vec2<u32>>(v) + 0x1000u) & vec2<u32>(0xffffe000u));
  return clamp(cut, vec2<f32>(-65504.0), vec2<f32>(65504.0));
}"""
TOP = 13  # rows are scaled so that their largest element is at least 2^TOP, and less than twice that
BLOCK = "subgroup_matrix_left<f16, 8, 16>"


@dataclass(frozen=True, slots=True)
class BlockSource:
    """What `prepare` lays out: `eight(row, i)`, eight elements from number 8 i on, which may lie beyond K.

    Rows count through all sets. `look` is WGSL that makes `most` a bound of a row's magnitude, where that is quicker
    than to look at all elements. If only some rows of each set are `live`, the blocks after theirs are left alone.
    """

    reads: tuple[tuple[str, Storage], ...]
    params: tuple[tuple[str, str], ...]
    eight: str  # WGSL
    look: str = ""
    scaled: bool = True
    live: str = ""  # WGSL
    normed: bool = False  # RMS norms of rows are laid out: `inverse` is to be what `plain(row, i)` is multiplied by


@cached(64)
def prepare(source: BlockSource, target: Target, across: int = 0, twice: bool = False) -> KernelSpec:
    """Rows [sets · M, K] as f16 blocks [sets, M / 16, K / 8, 16, 8], zero beyond K; `twice`: blocks [sets, M / 16, 2,
    K / 8, 16, 8] of the nearest elements and of what is left.

    A workgroup has four of them, or a block of short ones, with `across` invocations for each: M then counts as a
    multiple of 16, with the last row again and again. If they are scaled, what undoes that is stored for each. A set
    may follow others: it then begins at `first_row`.
    """
    share = ROWS if across else SHARE
    across = across or target.workgroup(256) // share
    live = "live" if source.live else "P.m"
    pairs = [f"v.{half}.{c} * lift" for half in ("low", "high") for c in ("xy", "zw")]
    words = ", ".join(f"pack2x16float(near({pair}))" if twice else f"pack2x16float({pair})" for pair in pairs)
    stride = "2u * P.k_blocks" if twice else "P.k_blocks"
    body = [
        "var lift = 1.0;",
        f"let own = lid % {share}u; let first = lid / {share}u;",
        f"let z = group / P.parts; let part = group % P.parts; let place = part * {share}u + own;",
    ]
    if source.live:
        body.append(f"let live = {source.live}; if (part * {share}u / {ROWS}u * {ROWS}u >= live) {{ return; }}")
    body.append(f"let row = z * P.m + min(place, {live} - 1u);")
    whole = f"for (var i = first; 8u * i < P.k; i += {across}u) {{"

    def agree(both: str) -> list[str]:
        """Invocations of a row combine what is in `top`."""
        return [
            "workgroupBarrier();",
            f"for (var half = {across // 2}u; half > 0u; half /= 2u) {{",
            f"  if (first < half) {{ let other = top[lid + half * {share}u]; top[lid] = {both}; }}",
            "  workgroupBarrier();",
            "}",
        ]

    if source.normed:
        body += [
            "var squares = 0.0;",
            f"{whole} let v = plain(row, i); squares += dot(v.low, v.low) + dot(v.high, v.high); }}",
            "top[lid] = squares;",
            *agree("top[lid] + other"),
            "inverse = inverseSqrt(top[own] / f32(P.k) + P.eps);",
            "workgroupBarrier();",
        ]
    if source.scaled:
        look = [
            whole,
            "  let v = eight(row, i); let each = max(abs(v.low), abs(v.high));",
            "  most = max(most, max(max(each.x, each.y), max(each.z, each.w)));",
            "}",
        ]
        body += [
            "var most = 0.0;",
            *([source.look.replace("ACROSS", f"{across}u")] if source.look else look),
            "top[lid] = most;",
            *agree("max(top[lid], other)"),
            "let exponent = (bitcast<u32>(top[own]) >> 23u) & 255u;",
            f"let power = select(127u, clamp({254 + TOP}u - exponent, 1u, 253u), exponent > 0u);",
            "lift = bitcast<f32>(power << 23u);",
            "if (first == 0u && place < P.m) { factors_put(P.first_row + row, bitcast<f32>((254u - power) << 23u)); }",
        ]
    body += [
        f"let block = (z * P.row_blocks + (P.first_row + place) / {ROWS}u) * {stride};",
        f"for (var i = first; i < P.k_blocks; i += {across}u) {{",
        "  let v = eight(row, i);",
        f"  y[(block + i) * {ROWS}u + place % {ROWS}u] = vec4<u32>({words});",
    ]
    if twice:
        rests = ", ".join(f"pack2x16float({pair} - near({pair}))" for pair in pairs)
        body.append(f"  y[(block + P.k_blocks + i) * {ROWS}u + place % {ROWS}u] = vec4<u32>({rests});")
    body.append("}")
    return build(
        "matrix_blocks",
        body,
        target=target,
        reads=dict(source.reads),
        writes={"y": Storage(DType.F16, raw="vec4<u32>")} | ({"factors": Storage(DType.F32)} if source.scaled else {}),
        params=[*u32s("m", "k", "parts", "first_row", "row_blocks", "k_blocks"), *source.params],
        workgroup=across * share,
        shared={"top": ("f32", across * share)} if source.scaled else {},
        helpers=f"struct Eight {{ low: vec4<f32>, high: vec4<f32> }}\n{source.eight}\n{NEAR if twice else ''}",
    )


def _masked(low: str, high: str) -> str:
    """The end of `eight`, with zeros beyond K."""
    places = (f"vec4<u32>({', '.join(f'8u * i + {j}u' for j in range(n, n + 4))})" for n in (0, 4))
    parts = (f"select(vec4<f32>(), {v}, {at} < vec4<u32>(P.k))" for v, at in zip((low, high), places, strict=True))
    return f"return Eight({', '.join(parts)});"


def rows(dtype: DType, quads: bool, norm: DType | None = None) -> BlockSource:
    """Rows stored one after the other, or RMS norms of them, by a weight of type `norm`."""
    end = _masked("b_quad(row, 8u * i)", "b_quad(row, 8u * i + 4u)")
    name = "plain" if norm else "eight"
    eight = f"{row_quad('b', 'P.k', quads)}\nfn {name}(row: u32, i: u32) -> Eight {{ {end} }}"
    reads = {"b": Storage(dtype, 4 if quads else 1)}
    if norm is None:
        return BlockSource(tuple(reads.items()), (), eight, scaled=dtype is not DType.F16)
    reads["w"] = Storage(norm, 4 if quads else 1)
    low, high = ("w_quad(0u, 8u * i)", "w_quad(0u, 8u * i + 4u)")
    eight += (
        f"\n{row_quad('w', 'P.k', quads)}\nvar<private> inverse: f32;\nfn eight(row: u32, i: u32) -> Eight {{\n"
        f"  let v = plain(row, i); return Eight(v.low * inverse * {low}, v.high * inverse * {high});\n}}"
    )
    return BlockSource(tuple(reads.items()), (("eps", "f32"),), eight, normed=True)


def columns(dtype: DType) -> BlockSource:
    """Rows that are the columns of matrices [K, M]."""
    at = [f"b_at((row / P.m * P.k + min(8u * i + {j}u, P.k - 1u)) * P.m + row % P.m)" for j in range(8)]
    end = _masked(f"vec4<f32>({', '.join(at[:4])})", f"vec4<f32>({', '.join(at[4:])})")
    eight = f"fn eight(row: u32, i: u32) -> Eight {{ {end} }}"
    return BlockSource((("b", Storage(dtype)),), (), eight, scaled=dtype is not DType.F16)


def packed(packing: Packing) -> BlockSource:
    """Rows of a packed weight."""
    source = loader(packing)
    if not (packing.shares(8) and packing.aligned):
        end = _masked("b_quad(row, 8u * i)", "b_quad(row, 8u * i + 4u)")
        return BlockSource(
            source.reads, source.params, f"{source.quad}\nfn eight(row: u32, i: u32) -> Eight {{ {end} }}"
        )
    lines = f"{eight_of(packing)}\n  {_masked('low * scale', 'high * scale')}"
    look = f"for (var i = first; i * P.group < P.k; i += ACROSS) {{ most = max(most, {bound_of(packing)}); }}"
    return BlockSource(source.reads, source.params, f"fn eight(row: u32, i: u32) -> Eight {{\n  {lines}\n}}", look)


def windows(dtype: DType, kernel: tuple[int, ...]) -> BlockSource:
    """Rows that are the windows of images, [channels · taps] each: those of all positions, image after image.

    A row's bound is that of its image, in `slices` parts (`tops`).
    """
    axes, taps = range(len(kernel)), math.prod(kernel)
    lines = ["let z = row / P.columns; var rest = row % P.columns;"]
    for axis in reversed(axes):
        at = f"rest % P.o{axis}" if axis else "rest"
        lines.append(f"let c{axis} = i32({at}) * P.s{axis} - P.p{axis};")
        if axis:
            lines.append(f"rest /= P.o{axis};")
    for j in range(8):
        lines.append(f"var v{j} = 0.0; {{ let k = 8u * i + {j}u; var tap = k % {taps}u;")
        for axis in reversed(axes):
            tap = f"tap % {kernel[axis]}u" if axis else "tap"
            lines.append(f"let t{axis} = c{axis} + i32({tap}) * P.d{axis}; tap /= {kernel[axis]}u;")
        inside = " && ".join(f"u32(t{axis}) < u32(P.i{axis})" for axis in axes)
        at = f"z * P.image + k / {taps}u * u32(P.plane) + u32({flat('t', axes)})"
        lines.append(f"if (k < P.k && {inside}) {{ v{j} = b_at({at}); }} }}")
    lines.append("return Eight(vec4<f32>(v0, v1, v2, v3), vec4<f32>(v4, v5, v6, v7));")
    scaled = dtype is not DType.F16
    reads = (("b", Storage(dtype)), *((("tops", Storage(DType.F32)),) if scaled else ()))
    params = (("columns", "u32"), ("image", "u32"), ("slices", "u32"), *window(kernel).params)
    look = (
        "for (var i = first; i < P.slices; i += ACROSS) { most = max(most, tops_at(row / P.columns * P.slices + i)); }"
    )
    body = "\n".join(f"  {line}" for line in lines)
    return BlockSource(reads, params, f"fn eight(row: u32, i: u32) -> Eight {{\n{body}\n}}", look, scaled)


@cached(16)
def tops(dtype: DType, target: Target) -> KernelSpec:
    """The largest magnitudes in slices of `each` elements of images of `image` elements."""
    wg = target.workgroup(256)
    body = [
        "let start = group % P.slices * P.each; let end = min(start + P.each, P.image);",
        "let first = group / P.slices * P.image;",
        "var most = 0.0;",
        f"for (var i = start + lid; i < end; i += {wg}u) {{ most = max(most, abs(b_at(first + i))); }}",
        "top[lid] = most;",
        "workgroupBarrier();",
        f"for (var half = {wg // 2}u; half > 0u; half /= 2u) {{",
        "  if (lid < half) { top[lid] = max(top[lid], top[lid + half]); }",
        "  workgroupBarrier();",
        "}",
        "if (lid == 0u) { y_put(group, top[0]); }",
    ]
    return build(
        "matrix_tops",
        body,
        target=target,
        reads={"b": Storage(dtype)},
        writes={"y": Storage(DType.F32)},
        params=u32s("slices", "each", "image"),
        workgroup=wg,
        shared={"top": ("f32", wg)},
    )
