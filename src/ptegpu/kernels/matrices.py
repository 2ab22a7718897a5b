"""Products on matrix units: y = alpha · a · bᵀ + …, of f16 elements, summed in f32.

Subgroups multiply matrices of 16 × 16 that they load from workgroup memory, which only takes f16, one by one. So both
operands first become `blocks`: rows that `prepare` has made f16, whatever they were, and laid out so that 16 rows of 8
elements lie together. A subgroup moves such a block as one matrix from storage into workgroup memory, with loads and
stores of whole words that meet no bank twice. While one step along K is computed, the loads of the next are under way.

f16 ends at 65,504, so rows are scaled by a power of two on their way to f16, each so that its largest element lies
just below 2¹⁴; results are scaled back.

Where f32 is wanted, an element is two of f16, which together have its 24 bits but for two or so: the nearest one, and
the rest. Of the four products of their parts three count: nearest · rest both ways, and nearest · nearest. Matrix
units cut off what does not fit a sum, at each step of K: the small ones come first, and sums are over part of K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .convolution import flat, window
from .matmul import Form, module, row_quad
from .packing import Packing, bound_of, eight_of, loader
from .wgsl import KernelSpec, Storage, build

NEEDS = ("f16 f32 16x16x16", "f16 f32 16x8x8")  # of `Target.matrices`
ROWS, SPAN = 16, 8  # of a block
SHARE = 4  # rows that a workgroup prepares: 64 bytes beside each other
DEPTH = 32  # elements of K in a step
LINE = DEPTH + 8  # and of a row in workgroup memory: eight rows after each other meet different banks
LANES = 32  # of a subgroup
# Rounded to what f16 holds; infinity is left. Not unpacked from what is packed: drivers take that for the same number.
NEAR = """fn near(v: vec2<f32>) -> vec2<f32> {
  let cut = bitcast<vec2<f32>>((bitcast<vec2<u32>>(v) + 0x1000u) & vec2<u32>(0xffffe000u));
  return clamp(cut, vec2<f32>(-65504.0), vec2<f32>(65504.0));
}"""
TOP = 13  # rows are scaled so that their largest element is at least 2^TOP, and less than twice that


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """A workgroup's part of y, and each subgroup's part of that."""

    rows: int
    columns: int
    sub_rows: int
    sub_columns: int

    @property
    def subgroups(self) -> int:
        return self.rows // self.sub_rows * (self.columns // self.sub_columns)

    @property
    def threads(self) -> int:
        return LANES * self.subgroups

    @property
    def shared_bytes(self) -> int:
        return 2 * LINE * (self.rows + self.columns)


LARGE = MatrixTile(128, 128, 64, 64)
TILES = (MatrixTile(16, 128, 16, 32), MatrixTile(32, 64, 16, 32), MatrixTile(64, 64, 32, 32), LARGE)  # by rows

LEFT = "subgroup_matrix_left<f16, 16, 16>"
RIGHT = "subgroup_matrix_right<f16, 16, 16>"
SUMS = "subgroup_matrix_result<f32, 16, 16>"
BLOCK = "subgroup_matrix_left<f16, 8, 16>"


@dataclass(frozen=True, slots=True)
class Rows:
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
def prepare(source: Rows, target: Target, across: int = 0, twice: bool = False) -> KernelSpec:
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
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads=dict(source.reads),
        writes={"y": Storage(DType.F16, raw="vec4<u32>")} | ({"factors": Storage(DType.F32)} if source.scaled else {}),
        params=[*((n, "u32") for n in ("m", "k", "parts", "first_row", "row_blocks", "k_blocks")), *source.params],
        workgroup=across * share,
        shared={"top": ("f32", across * share)} if source.scaled else {},
        helpers=f"struct Eight {{ low: vec4<f32>, high: vec4<f32> }}\n{source.eight}\n{NEAR if twice else ''}",
    )


def _masked(low: str, high: str) -> str:
    """The end of `eight`, with zeros beyond K."""
    places = (f"vec4<u32>({', '.join(f'8u * i + {j}u' for j in range(n, n + 4))})" for n in (0, 4))
    parts = (f"select(vec4<f32>(), {v}, {at} < vec4<u32>(P.k))" for v, at in zip((low, high), places, strict=True))
    return f"return Eight({', '.join(parts)});"


def rows(dtype: DType, quads: bool, norm: DType | None = None) -> Rows:
    """Rows stored one after the other, or RMS norms of them, by a weight of type `norm`."""
    end = _masked("b_quad(row, 8u * i)", "b_quad(row, 8u * i + 4u)")
    name = "plain" if norm else "eight"
    eight = f"{row_quad('b', 'P.k', quads)}\nfn {name}(row: u32, i: u32) -> Eight {{ {end} }}"
    reads = {"b": Storage(dtype, 4 if quads else 1)}
    if norm is None:
        return Rows(tuple(reads.items()), (), eight, scaled=dtype is not DType.F16)
    reads["w"] = Storage(norm, 4 if quads else 1)
    low, high = ("w_quad(0u, 8u * i)", "w_quad(0u, 8u * i + 4u)")
    eight += (
        f"\n{row_quad('w', 'P.k', quads)}\nvar<private> inverse: f32;\nfn eight(row: u32, i: u32) -> Eight {{\n"
        f"  let v = plain(row, i); return Eight(v.low * inverse * {low}, v.high * inverse * {high});\n}}"
    )
    return Rows(tuple(reads.items()), (("eps", "f32"),), eight, normed=True)


def columns(dtype: DType) -> Rows:
    """Rows that are the columns of matrices [K, M]."""
    at = [f"b_at((row / P.m * P.k + min(8u * i + {j}u, P.k - 1u)) * P.m + row % P.m)" for j in range(8)]
    end = _masked(f"vec4<f32>({', '.join(at[:4])})", f"vec4<f32>({', '.join(at[4:])})")
    eight = f"fn eight(row: u32, i: u32) -> Eight {{ {end} }}"
    return Rows((("b", Storage(dtype)),), (), eight, scaled=dtype is not DType.F16)


def packed(packing: Packing) -> Rows:
    """Rows of a packed weight."""
    source = loader(packing)
    if not (packing.shares(8) and packing.aligned):
        end = _masked("b_quad(row, 8u * i)", "b_quad(row, 8u * i + 4u)")
        return Rows(source.reads, source.params, f"{source.quad}\nfn eight(row: u32, i: u32) -> Eight {{ {end} }}")
    lines = f"{eight_of(packing)}\n  {_masked('low * scale', 'high * scale')}"
    look = f"for (var i = first; i * P.group < P.k; i += ACROSS) {{ most = max(most, {bound_of(packing)}); }}"
    return Rows(source.reads, source.params, f"fn eight(row: u32, i: u32) -> Eight {{\n  {lines}\n}}", look)


def windows(dtype: DType, kernel: tuple[int, ...]) -> Rows:
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
    return Rows(reads, params, f"fn eight(row: u32, i: u32) -> Eight {{\n{body}\n}}", look, scaled)


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
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads={"b": Storage(dtype)},
        writes={"y": Storage(DType.F32)},
        params=[(n, "u32") for n in ("slices", "each", "image")],
        workgroup=wg,
        shared={"top": ("f32", wg)},
    )


def _staged_blocks(name: str, array: str, base: str, limit: str, size: int, tile: MatrixTile) -> tuple[str, str, str]:
    """Blocks of `size` rows of an operand: the declarations, loads at `k`, and stores into workgroup memory."""
    spans, count = DEPTH // SPAN, tile.subgroups
    declare = load = store = ""
    for r in range(size // ROWS * spans // count):
        at = f"(sg + {r * count}u)"
        block = f"({base} + min({at} / {spans}u, {limit}))"
        declare += f"var {name}{r}: {BLOCK};\n"
        load += (
            f"{name}{r} = subgroupMatrixLoad<{BLOCK}>"
            f"(&{name}, ({block} * stride + {name}_k / {SPAN}u + {at} % {spans}u) * {ROWS * SPAN}u, false, {SPAN}u);\n"
        )
        place = f"{at} / {spans}u * {ROWS * LINE}u + {at} % {spans}u * {SPAN}u"
        store += f"subgroupMatrixStore(&{array}, {place}, {name}{r}, false, {LINE}u);\n"
    return declare, load, store


@cached(64)
def multiply(tile: MatrixTile, target: Target, twice: bool = False) -> KernelSpec:
    """Bare sums over parts of K, [parts · batch, M, N] of whole tiles, of blocks of `a` and `b`: a tile per workgroup.
    `twice`: both have blocks of what is left, too.

    What is done to results would take a subgroup as long as the product does: it cannot see its elements but through
    workgroup memory. So `finish` does it.
    """
    down, across = tile.sub_rows // 16, tile.sub_columns // 16
    sets = "(z % P.sets) * P.row_blocks", "z * P.column_blocks"
    first = f"first_row / {ROWS}u", f"first_column / {ROWS}u"
    a = _staged_blocks("a", "a_tile", f"{sets[0]} + {first[0]}", f"P.row_blocks - 1u - {first[0]}", tile.rows, tile)
    b = _staged_blocks(
        "b", "b_tile", f"{sets[1]} + {first[1]}", f"P.column_blocks - 1u - {first[1]}", tile.columns, tile
    )
    compute = []
    for k in range(0, DEPTH, 16):
        compute.append("{")
        for i in range(down):
            at = f"(sub_row + {16 * i}u) * {LINE}u + {k}u"
            compute.append(f"let l{i} = subgroupMatrixLoad<{LEFT}>(&a_tile, {at}, false, {LINE}u);")
        for j in range(across):
            at = f"(sub_column + {16 * j}u) * {LINE}u + {k}u"
            compute.append(f"let r{j} = subgroupMatrixLoad<{RIGHT}>(&b_tile, {at}, true, {LINE}u);")
        for i in range(down):
            for j in range(across):
                compute.append(f"sum{i}_{j} = subgroupMatrixMultiplyAccumulate(l{i}, r{j}, sum{i}_{j});")
        compute.append("}")
    side = tile.columns // tile.sub_columns
    where = [f"let a_k = begin + step * {DEPTH}u; let b_k = a_k;"]
    if twice:  # a · what is left of b, what is left of a · b, a · b
        where = [
            f"let turn = step / steps; let k = begin + step % steps * {DEPTH}u; let rest = P.k_blocks * {SPAN}u;",
            "let a_k = k + select(0u, rest, turn == 1u); let b_k = k + select(0u, rest, turn == 0u);",
        ]
    load = [*where, *a[1].splitlines(), *b[1].splitlines()]
    body = [
        "let tile = group % (P.row_tiles * P.column_tiles);",
        "let zs = group / (P.row_tiles * P.column_tiles); let z = zs % P.batch; let part = zs / P.batch;",
        f"let first_row = tile % P.row_tiles * {tile.rows}u;",
        f"let first_column = tile / P.row_tiles * {tile.columns}u;",
        f"let sub_row = sg / {side}u * {tile.sub_rows}u; let sub_column = sg % {side}u * {tile.sub_columns}u;",
        f"let begin = part * P.k_part; let end = min(P.k_blocks * {SPAN}u, begin + P.k_part);",
        f"let steps = (end - begin) / {DEPTH}u; let last = {'3u * ' if twice else ''}steps - 1u;",
        f"let stride = {'2u * ' if twice else ''}P.k_blocks;",
        *(f"var sum{i}_{j} = {SUMS}();" for i in range(down) for j in range(across)),
        *a[0].splitlines(),
        *b[0].splitlines(),
        "{ let step = 0u;",
        *load,
        "}",
        "for (var now = 0u; now <= last; now++) {",
        *a[2].splitlines(),
        *b[2].splitlines(),
        "workgroupBarrier();",
        "{ let step = min(now + 1u, last);",
        *load,
        "}",
        *compute,
        "workgroupBarrier();",
        "}",
        f"let width = P.column_tiles * {tile.columns}u;",
        f"let corner = (zs * P.row_tiles * {tile.rows}u + first_row + sub_row) * width + first_column + sub_column;",
    ]
    for i in range(down):
        for j in range(across):
            body.append(f"subgroupMatrixStore(&y, corner + {16 * i}u * width + {16 * j}u, sum{i}_{j}, false, width);")
    counts = ("row_tiles", "column_tiles", "batch", "sets", "k_part", "row_blocks", "column_blocks", "k_blocks")
    return build(
        f"matrix_gemm{tile.rows}{'_exact' if twice else ''}",
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads={"a": Storage(DType.F16), "b": Storage(DType.F16)},
        writes={"y": Storage(DType.F32)},
        params=[(n, "u32") for n in counts],
        workgroup=tile.threads,
        shared={"a_tile": ("f16", tile.rows * LINE), "b_tile": ("f16", tile.columns * LINE)},
        matrices=True,
    )


def _total(scaled: tuple[bool, bool], aligned: bool) -> tuple[dict[str, Storage], str]:
    """What is read, and `total`: four sums over all parts, scaled back. `scaled`: which operands' rows were."""
    at = "part * P.part_step + z * P.z_step + row * P.width + first + column"
    each = f"a_at4(({at}) / 4u)" if aligned else f"vec4<f32>({', '.join(f'a_at({at} + {j}u)' for j in range(4))})"
    lines = ["var sum = vec4<f32>();", f"for (var part = 0u; part < P.parts; part++) {{ sum += {each}; }}"]
    reads, scales = {"a": Storage(DType.F32, 4 if aligned else 1)}, []
    if scaled[0]:
        scales.append("vec4<f32>(a_scales_at((z % P.sets) * P.m + row))")
        reads["a_scales"] = Storage(DType.F32)
    if scaled[1]:
        found = (f"b_scales_at(first + z * P.n + min(column + {j}u, P.n - 1u))" for j in range(4))
        scales.append(f"vec4<f32>({', '.join(found)})")
        reads["b_scales"] = Storage(DType.F32)
    if len(scales) == 2:  # the lower one first: the higher one alone may lead beyond f32
        lines.append(f"let up = {scales[0]}; let down = {scales[1]};")
        scales = ["min(up, down)", "max(up, down)"]
    lines += [f"sum *= {scale};" for scale in scales]
    body = "\n".join(f"  {line}" for line in (*lines, "return sum;"))
    return reads, f"fn total(z: u32, row: u32, column: u32, first: u32) -> vec4<f32> {{\n{body}\n}}"


_EACH = [
    "let i = group * WG + lid; let quads = (P.n + 3u) / 4u;",
    "if (i >= P.batch * P.m * quads) { return; }",
    "let column = i % quads * 4u; let row = i / quads % P.m; let z = i / (quads * P.m);",
]
_SUMS = ("parts", "part_step", "z_step", "width")


@cached(64)
def finish(form: Form, scaled: tuple[bool, bool], target: Target, aligned: bool = True) -> KernelSpec:
    """y from sums over parts, which are its `a`: four columns an invocation. `scaled`: which operands' rows were.

    They may be columns of sums for several products, from `first` on; what another has beside them begins at `other`.
    The sums of each of a batch begin `z_step` after those of the one before: at a multiple of four, if `aligned`.
    """
    reads, total = _total(scaled, aligned)
    beside = form.finish is not None and None in form.finish.operands
    body = [*_EACH, *(["besides = total(z, row, column, P.other);"] if beside else [])]
    return module(
        "matrix_finish",
        [*body, "put4(z, row, column, total(z, row, column, P.first));"],
        form,
        target,
        reads=reads,
        workgroup=target.workgroup(256),
        helpers=[total, *(["var<private> besides: vec4<f32>;"] if beside else [])],
        params=[(n, "u32") for n in (*_SUMS, "first", *(["other"] if beside else []))],
    )


@cached(64)
def spread(ys: tuple[DType, ...], scaled: tuple[bool, bool], target: Target) -> KernelSpec:
    """Several results from their sums side by side, as they are; each has a multiple of four columns."""
    reads, total = _total(scaled, aligned=True)
    body = [*_EACH, "let v = total(z, row, column, 0u); var at = column;"]
    for k in range(len(ys)):
        body.append(f"if (at < P.n{k}) {{ y{k}_put4((row * P.n{k} + at) / 4u, v); return; }} at -= P.n{k};")
    return build(
        "matrix_finish",
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads=reads,
        writes={f"y{k}": Storage(y, 4) for k, y in enumerate(ys)},
        params=[(n, "u32") for n in ("batch", "sets", "m", "n", *_SUMS, *(f"n{k}" for k in range(len(ys))))],
        workgroup=target.workgroup(256),
        helpers=total,
    )
