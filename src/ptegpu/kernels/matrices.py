"""Products on matrix units: y = alpha · a · bᵀ + …, of f16 elements, summed in f32.

Subgroups multiply matrices of 16 × 16 that they load from workgroup memory, which only takes f16. What comes from
storage gets there in one of two ways:

- as `blocks`: rows that `prepare` has made f16 and laid out so that 16 rows of 8 elements lie together. A subgroup
  moves such a block as one matrix, with loads and stores of whole words that meet no bank twice;
- packed: ints of 4 or 8 bits become f16 on their way. Invocations with rows that share banks begin at another pair of
  elements each, so that their stores do not meet either.

While one step along K is computed, the loads of the next are under way. Results go through workgroup memory once more
to reach the epilogue that all products share.

f16 ends at 65,504, so rows are scaled by a power of two on their way to f16, each so that its largest element lies
just below 2¹⁴, and packed weights by one that the host finds; results are scaled back.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .linear_q4 import PARAMS, RAW, WHOLE, Packing
from .matmul import Form, module, row_quad
from .wgsl import KernelSpec, Storage, build

NEEDS = ("f16 f32 16x16x16", "f16 f32 16x8x8")  # of `Target.matrices`
ROWS, SPAN = 16, 8  # of a block
DEPTH = 32  # elements of K in a step
LINE = DEPTH + 8  # and of a row in workgroup memory: eight rows after each other meet different banks
LANES = 32  # of a subgroup
OUT = LANES + 4  # elements of a row of results in workgroup memory
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
        return 2 * LINE * (self.rows + self.columns) + 4 * self.subgroups * ROWS * OUT


LARGE, SMALL = MatrixTile(128, 128, 64, 64), MatrixTile(64, 64, 32, 32)

_LEFT = "subgroup_matrix_left<f16, 16, 16>"
_RIGHT = "subgroup_matrix_right<f16, 16, 16>"
_SUMS = "subgroup_matrix_result<f32, 16, 16>"
_BLOCK = "subgroup_matrix_left<f16, 8, 16>"


@cached(64)
def prepare(dtype: DType, quads: bool, target: Target) -> KernelSpec:
    """Rows [sets · M, K] as f16 blocks [sets, M / 16, K / 8, 16, 8], zero beyond K; a workgroup has a row.

    Rows of f32 are scaled; what undoes that is stored for each.
    """
    scaled = dtype is not DType.F16
    workgroup = target.workgroup(128)
    words = [f"pack2x16float({v}.{c} * lift)" for v in ("low", "high") for c in ("xy", "zw")]
    loads = [
        "  let low = select(vec4<f32>(), a_quad(group, 8u * i), vec4<u32>(8u * i) + next < vec4<u32>(P.k));",
        "  let high = select(vec4<f32>(), a_quad(group, 8u * i + 4u), vec4<u32>(8u * i + 4u) + next < vec4<u32>(P.k));",
    ]
    body = ["let next = vec4<u32>(0u, 1u, 2u, 3u);", "var lift = 1.0;"]
    if scaled:
        body += [
            "var most = vec4<f32>();",
            "for (var i = lid; 8u * i < P.k; i += WG) {",
            *loads,
            "  most = max(most, max(abs(low), abs(high)));",
            "}",
            "top[lid] = max(max(most.x, most.y), max(most.z, most.w));",
            "workgroupBarrier();",
            "for (var half = WG / 2u; half > 0u; half /= 2u) {",
            "  if (lid < half) { top[lid] = max(top[lid], top[lid + half]); }",
            "  workgroupBarrier();",
            "}",
            "let exponent = (bitcast<u32>(top[0]) >> 23u) & 255u;",
            f"let power = select(127u, clamp({254 + TOP}u - exponent, 1u, 253u), exponent > 0u);",
            "lift = bitcast<f32>(power << 23u);",
            "if (lid == 0u) { scales_put(group, bitcast<f32>((254u - power) << 23u)); }",
        ]
    body += [
        "let z = group / P.m; let row = group % P.m;",
        f"let first = (z * P.row_blocks + row / {ROWS}u) * P.k_blocks;",
        "for (var i = lid; i < P.k_blocks; i += WG) {",
        *loads,
        f"  y[(first + i) * {ROWS}u + row % {ROWS}u] = vec4<u32>({', '.join(words)});",
        "}",
    ]
    return build(
        "matrix_blocks",
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads={"a": Storage(dtype, 4 if quads else 1)},
        writes={"y": Storage(DType.F16, raw="vec4<u32>")} | ({"scales": Storage(DType.F32)} if scaled else {}),
        params=[("m", "u32"), ("k", "u32"), ("row_blocks", "u32"), ("k_blocks", "u32")],
        workgroup=workgroup,
        shared={"top": ("f32", workgroup)} if scaled else {},
        helpers=row_quad("a", "P.k", quads),
    )


def _staged_blocks(name: str, array: str, base: str, limit: str, size: int, tile: MatrixTile) -> tuple[str, str, str]:
    """Blocks of `size` rows of an operand: the declarations, loads at `k`, and stores into workgroup memory."""
    spans, count = DEPTH // SPAN, tile.subgroups
    declare = load = store = ""
    for r in range(size // ROWS * spans // count):
        at = f"(sg + {r * count}u)"
        block = f"({base} + min({at} / {spans}u, {limit}))"
        declare += f"var {name}{r}: {_BLOCK};\n"
        load += (
            f"{name}{r} = subgroupMatrixLoad<{_BLOCK}>"
            f"(&{name}, ({block} * P.k_blocks + k / {SPAN}u + {at} % {spans}u) * {ROWS * SPAN}u, false, {SPAN}u);\n"
        )
        place = f"{at} / {spans}u * {ROWS * LINE}u + {at} % {spans}u * {SPAN}u"
        store += f"subgroupMatrixStore(&{array}, {place}, {name}{r}, false, {LINE}u);\n"
    return declare, load, store


def _staged_packed(packing: Packing, tile: MatrixTile) -> tuple[str, str, str]:
    """The same for packed rows of b: an invocation has a part of a row of the tile, its neighbours those of others."""
    per_row = DEPTH // packing.elements  # words
    mine = tile.columns * per_row // tile.threads
    width = min(4, mine)
    along = per_row // mine  # invocations that share a row
    declare = f"let b_row = lid % {tile.columns}u; let b_part = lid / {tile.columns}u * {mine}u;\n"
    declare += "let b_column = min(first_column + b_row, P.n - 1u);\n"
    declare += f"let turn = (lid / 8u) & 3u; let b_line = b_row * {LINE}u;\n"
    assert along * tile.columns == tile.threads
    load = ""
    for r in range(mine // width):
        declare += f"var raw{r}: {RAW[width]};\n"
        word = f"k / {packing.elements}u + b_part + {r * width}u"
        load += f"raw{r} = b[(z * P.n + b_column) * (P.row_bytes / {4 * width}u) + ({word}) / {width}u];\n"
    declare += "var scale = 0.0;\n"
    group = "0u" if packing.run == WHOLE else "k / P.group"
    load += f"scale = P.lift * scales_at(P.scale_first + {group} * P.scale_stride + b_column);\n"
    words = [f"raw{i // width}" + (f".{'xyzw'[i % width]}" if width > 1 else "") for i in range(mine)]
    store = ""
    each = 8 // packing.elements  # words of eight elements
    for c in range(mine // each):
        for q in range(4):
            store += "{ " + f"let pair = ({q}u + turn) & 3u; "
            if packing.bits == 4:
                store += f"let both = {words[c]} >> (8u * pair); "
                low, high = "f32(both & 15u) - 8.0", "f32((both >> 4u) & 15u) - 8.0"
            else:
                store += f"let both = bitcast<i32>(select({words[2 * c]}, {words[2 * c + 1]}, pair > 1u)"
                store += " >> (16u * (pair & 1u))); "
                low, high = "f32(extractBits(both, 0u, 8u))", "f32(extractBits(both, 8u, 8u))"
            if packing.high_first:
                low, high = high, low
            store += f"let at = b_line + b_part * {packing.elements}u + {8 * c}u + 2u * pair; "
            store += f"b_tile[at] = f16(scale * ({low})); b_tile[at + 1u] = f16(scale * ({high})); " + "}\n"
    return declare, load, store


@cached(64)
def multiply(
    form: Form, tile: MatrixTile, packing: Packing | None, scaled: tuple[bool, bool], target: Target
) -> KernelSpec:
    """A tile of y per workgroup, of blocks of `a` and of blocks or packed rows of `b`. `scaled`: which blocks were."""
    down, across = tile.sub_rows // 16, tile.sub_columns // 16
    sets = "(z % P.sets) * P.row_blocks", "z * P.column_blocks"
    first = f"first_row / {ROWS}u", f"first_column / {ROWS}u"
    a = _staged_blocks("a", "a_tile", f"{sets[0]} + {first[0]}", f"P.row_blocks - 1u - {first[0]}", tile.rows, tile)
    if packing:
        b = _staged_packed(packing, tile)
    else:
        b = _staged_blocks(
            "b", "b_tile", f"{sets[1]} + {first[1]}", f"P.column_blocks - 1u - {first[1]}", tile.columns, tile
        )
    compute = []
    for k in range(0, DEPTH, 16):
        compute.append("{")
        for i in range(down):
            at = f"(sub_row + {16 * i}u) * {LINE}u + {k}u"
            compute.append(f"let l{i} = subgroupMatrixLoad<{_LEFT}>(&a_tile, {at}, false, {LINE}u);")
        for j in range(across):
            at = f"(sub_column + {16 * j}u) * {LINE}u + {k}u"
            compute.append(f"let r{j} = subgroupMatrixLoad<{_RIGHT}>(&b_tile, {at}, true, {LINE}u);")
        for i in range(down):
            for j in range(across):
                compute.append(f"sum{i}_{j} = subgroupMatrixMultiplyAccumulate(l{i}, r{j}, sum{i}_{j});")
        compute.append("}")
    side = tile.columns // tile.sub_columns
    body = [
        "let tile = group % (P.row_tiles * P.column_tiles);",
        "let zs = group / (P.row_tiles * P.column_tiles); let z = zs % P.batch; let part = zs / P.batch;",
        f"let first_row = tile % P.row_tiles * {tile.rows}u;",
        f"let first_column = tile / P.row_tiles * {tile.columns}u;",
        f"let sub_row = sg / {side}u * {tile.sub_rows}u; let sub_column = sg % {side}u * {tile.sub_columns}u;",
        f"let begin = part * P.k_part; let end = min(P.k_blocks * {SPAN}u, begin + P.k_part);",
        *(f"var sum{i}_{j} = {_SUMS}();" for i in range(down) for j in range(across)),
        *a[0].splitlines(),
        *b[0].splitlines(),
        "{ let k = begin;",
        *a[1].splitlines(),
        *b[1].splitlines(),
        "}",
        f"for (var k0 = begin; k0 < end; k0 += {DEPTH}u) {{",
        *a[2].splitlines(),
        *b[2].splitlines(),
        "workgroupBarrier();",
        f"{{ let k = min(k0 + {DEPTH}u, end - {DEPTH}u);",
        *a[1].splitlines(),
        *b[1].splitlines(),
        "}",
        *compute,
        "workgroupBarrier();",
        "}",
        f"let own = lid / {LANES}u; let lane = lid % {LANES}u;",
        f"let own_row = first_row + own / {side}u * {tile.sub_rows}u;",
        f"let own_column = first_column + own % {side}u * {tile.sub_columns}u + lane;",
    ]
    for i in range(down):
        for c in range(0, tile.sub_columns, LANES):
            for j in (0, 1):
                sums = f"sum{i}_{c // 16 + j}"
                body.append(f"subgroupMatrixStore(&out, sg * {ROWS * OUT}u + {16 * j}u, {sums}, false, {OUT}u);")
            value = f"out[(own * {ROWS}u + r) * {OUT}u + lane]"
            if scaled[0]:
                value += " * a_scales_at((z % P.sets) * P.m + row)"
            if scaled[1]:
                value += f" * b_scales_at(z * P.n + min(own_column + {c}u, P.n - 1u))"
            body += [
                "workgroupBarrier();",
                f"for (var r = 0u; r < {ROWS}u; r++) {{",
                f"let row = own_row + {16 * i}u + r;",
                f"if (row < P.m) {{ put(zs, row, own_column + {c}u, {value}); }}",
                "}",
                "workgroupBarrier();",
            ]
    reads = {"a": Storage(DType.F16)} | ({"a_scales": Storage(DType.F32)} if scaled[0] else {})
    if packing:
        per = DEPTH // packing.elements
        width = min(4, tile.columns * per // tile.threads)
        reads |= {"b": Storage(packing.dtype, raw=RAW[width]), "scales": Storage(packing.scales)}
    else:
        reads |= {"b": Storage(DType.F16)} | ({"b_scales": Storage(DType.F32)} if scaled[1] else {})
    counts = ["row_tiles", "column_tiles", "k_part", "row_blocks", "k_blocks", *([] if packing else ["column_blocks"])]
    return module(
        f"matrix_gemm{tile.rows}",
        body,
        form,
        target,
        reads=reads,
        workgroup=tile.threads,
        helpers=[],
        params=[*((n, "u32") for n in counts), *([*PARAMS, ("lift", "f32")] if packing else [])],
        shared={
            "a_tile": ("f16", tile.rows * LINE),
            "b_tile": ("f16", tile.columns * LINE),
            "out": ("f32", tile.subgroups * ROWS * OUT),
        },
        matrices=True,
    )
