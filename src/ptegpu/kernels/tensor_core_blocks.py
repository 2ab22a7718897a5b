"""Operands of matrix units: rows of any type as blocks of f16.

Matrix units load f16 from workgroup memory. So `prepare` first converts both operands to blocks of f16, in which 16
rows of 8 elements are contiguous.

The range of f16 ends at 65,504, so each row is scaled by a power of two, such that its largest element is just below
2¹⁴. Results are scaled back.

For the accuracy of f32, an element is split in two f16, the nearest one and the rest, which together have all but about
two of its 24 bits.
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

NEEDS = ("f16 f32 16x16x16", "f16 f32 16x8x8")  # entries that `Target.matrices` must have
ROWS, SPAN = 16, 8  # rows and elements per row of a block
SHARE = 4  # rows of a workgroup of `prepare`, which are 64 contiguous bytes; one of few rows
LANES = 32  # invocations of a subgroup
# Round to f16 by bits, and leave out infinity: drivers optimise away an unpacking of packed numbers.
NEAR = """fn near(v: vec2<f32>) -> vec2<f32> {
  let cut = bitcast<vec2<f32>>((bitcast<vec2<u32>>(v) + 0x1000u) & vec2<u32>(0xffffe000u));
  return clamp(cut, vec2<f32>(-65504.0), vec2<f32>(65504.0));
}"""
TOP = 13  # rows are scaled so that their largest element is at least 2^TOP, and less than exact that
BLOCK = "subgroup_matrix_left<f16, 8, 16>"


@dataclass(frozen=True, slots=True)
class BlockSource:
    """The rows that `prepare` converts: `eight(row, i)` loads eight elements from element 8 i on, perhaps beyond K.

    Rows count through all sets. `look` is WGSL that makes `most` an upper bound of a row's magnitude without a search
    through all elements. If only some rows of each set are `live`, blocks after theirs are not written.
    """

    reads: tuple[tuple[str, Storage], ...]
    params: tuple[tuple[str, str], ...]
    eight: str  # WGSL
    look: str = ""
    scaled: bool = True
    live: str = ""  # WGSL
    normed: bool = False  # converts RMS norms of rows: `eight` multiplies `plain(row, i)` by `inverse`


@cached(64)
def prepare(
    source: BlockSource, target: Target, across: int = 0, exact: bool = False, share: int = SHARE
) -> KernelSpec:
    """Convert rows [sets · M, K] to f16 blocks [sets, M / 16, K / 8, 16, 8], zero beyond K.

    If `exact`, the blocks are [sets, M / 16, 2, K / 8, 16, 8], of the nearest f16 and of the rest. A workgroup has
    `share` rows, or, with `across` invocations per row, a block of short rows, in which the last row repeats up to a
    multiple of 16. The factors that undo the scaling of rows are stored. Rows of each set begin at `first_row` of the
    blocks.
    """
    share = ROWS if across else share
    across = across or target.workgroup(256) // share
    live = "live" if source.live else "P.m"
    pairs = [f"v.{half}.{c} * lift" for half in ("low", "high") for c in ("xy", "zw")]
    words = ", ".join(f"pack2x16float(near({pair}))" if exact else f"pack2x16float({pair})" for pair in pairs)
    stride = "2u * P.k_blocks" if exact else "P.k_blocks"
    body = [
        "var lift = 1.0;",
        f"let own = lid % {share}u; let first = lid / {share}u;",
        f"let z = group / P.parts; let part = group % P.parts; let place = part * {share}u + own;",
    ]
    if source.live:
        body.append(f"let live = {source.live}; if (part * {share}u / {ROWS}u * {ROWS}u >= live) {{ return; }}")
    body.append(f"let row = z * P.m + min(place, {live} - 1u);")
    loop = f"for (var i = first; 8u * i < P.k; i += {across}u) {{"

    def agree(both: str) -> list[str]:
        """Return lines in which the invocations of a row combine their values in `top`."""
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
            f"{loop} let v = plain(row, i); squares += dot(v.low, v.low) + dot(v.high, v.high); }}",
            "top[lid] = squares;",
            *agree("top[lid] + other"),
            "inverse = inverseSqrt(top[own] / f32(P.k) + P.eps);",
            "workgroupBarrier();",
        ]
    if source.scaled:
        look = [
            loop,
            "  let v = eight(row, i); let each = max(abs(v.low), abs(v.high));",
            "  most = max(most, max(max(each.x, each.y), max(each.z, each.w)));",
            "}",
        ]
        body += [
            "var most = 0.0;",
            *([source.look.replace("ACROSS", f"{across}u")] if source.look else look),
            "top[lid] = most;",
            *agree("max(top[lid], other)"),
            *lifted("top[own]"),
            "lift = bitcast<f32>(power << 23u);",
            "if (first == 0u && place < P.m) { factors_put(P.first_row + row, bitcast<f32>((254u - power) << 23u)); }",
        ]
    body += [
        f"let block = (z * P.row_blocks + (P.first_row + place) / {ROWS}u) * {stride};",
        f"for (var i = first; i < P.k_blocks; i += {across}u) {{",
        "  let v = eight(row, i);",
        f"  y[(block + i) * {ROWS}u + place % {ROWS}u] = vec4<u32>({words});",
    ]
    if exact:
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
        helpers=f"struct Eight {{ low: vec4<f32>, high: vec4<f32> }}\n{source.eight}\n{NEAR if exact else ''}",
    )


def lifted(most: str) -> list[str]:
    """Return lines that declare `power`, the exponent of the factor by which a row with the bound `most` is scaled."""
    return [
        f"let exponent = (bitcast<u32>({most}) >> 23u) & 255u;",
        f"let power = select(127u, clamp({254 + TOP}u - exponent, 1u, 253u), exponent > 0u);",
    ]


def _masked(low: str, high: str) -> str:
    """Return the end of `eight`, with zeros beyond K."""
    places = (f"vec4<u32>({', '.join(f'8u * i + {j}u' for j in range(n, n + 4))})" for n in (0, 4))
    parts = (f"select(vec4<f32>(), {v}, {at} < vec4<u32>(P.k))" for v, at in zip((low, high), places, strict=True))
    return f"return Eight({', '.join(parts)});"


def rows(dtype: DType, quads: bool, norm: DType | None = None) -> BlockSource:
    """Return contiguous rows as a source, or their RMS norms with a weight of type `norm`."""
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
    """Return the columns of matrices [K, M] as a source."""
    at = [f"b_at((row / P.m * P.k + min(8u * i + {j}u, P.k - 1u)) * P.m + row % P.m)" for j in range(8)]
    end = _masked(f"vec4<f32>({', '.join(at[:4])})", f"vec4<f32>({', '.join(at[4:])})")
    eight = f"fn eight(row: u32, i: u32) -> Eight {{ {end} }}"
    return BlockSource((("b", Storage(dtype)),), (), eight, scaled=dtype is not DType.F16)


def packed(packing: Packing) -> BlockSource:
    """Return the rows of a packed weight as a source."""
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
    """Return the windows of images, [channels · taps] each, as a source: all positions, image after image.

    The bound of a row is that of its image, in `slices` parts (`tops`).
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
    """Find the largest magnitudes in slices of `each` elements of images of `image` elements."""
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
