"""Products on matrix units: y = alpha · a · bᵀ + …, of blocks of f16 (`tensor_core_blocks.py`), summed in f32.

Subgroups multiply matrices of 16 × 16 that they load from workgroup memory. A subgroup copies a block as one matrix
from storage to workgroup memory, by loads and stores of whole words without bank conflicts. The loads of the next step
along K overlap with the arithmetic of this one.

For the accuracy of f32, elements are split in two f16, the nearest one and the rest, and three of their four products
are computed: nearest · rest both ways, and nearest · nearest. Matrix units truncate sums at each step of K, so the
small products come first, and sums are over parts of K.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .matmul import GemmForm, module
from .tensor_core_blocks import BLOCK, LANES, ROWS, SPAN
from .wgsl import KernelSpec, Storage, build, u32s

DEPTH = 32  # elements of K in a step
LINE = DEPTH + 8  # elements of a row in workgroup memory: eight successive rows are in different banks


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


def _staged_blocks(name: str, array: str, base: str, limit: str, size: int, tile: MatrixTile) -> tuple[str, str, str]:
    """Return declarations of blocks of `size` rows, their loads at `k`, and their stores to workgroup memory."""
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
def multiply(tile: MatrixTile, target: Target, exact: bool = False) -> KernelSpec:
    """Multiply blocks of `a` and `b` to sums over parts of K, [parts · batch, M, N], with a tile per workgroup.

    If `exact`, both operands also have blocks of the rest. An epilogue here would take as long as the product, because
    subgroups access single elements only through workgroup memory. So `finish` computes it.
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
    if exact:  # a · rest of b, rest of a · b, a · b
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
        f"let steps = (end - begin) / {DEPTH}u; let last = {'3u * ' if exact else ''}steps - 1u;",
        f"let stride = {'2u * ' if exact else ''}P.k_blocks;",
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
        f"matrix_gemm{tile.rows}{'_exact' if exact else ''}",
        body,
        target=target,
        reads={"a": Storage(DType.F16), "b": Storage(DType.F16)},
        writes={"y": Storage(DType.F32)},
        params=u32s(*counts),
        workgroup=tile.threads,
        shared={"a_tile": ("f16", tile.rows * LINE), "b_tile": ("f16", tile.columns * LINE)},
        matrices=True,
    )


def total(scaled: tuple[bool, bool], aligned: bool) -> tuple[dict[str, Storage], str]:
    """Return the bindings and WGSL of `total`: four sums over all parts, scaled back for the `scaled` operands."""
    at = "part * P.part_step + z * P.z_step + row * P.width + first + column"
    each = f"a_at4(({at}) / 4u)" if aligned else f"vec4<f32>({', '.join(f'a_at({at} + {j}u)' for j in range(4))})"
    lines = ["var sum = vec4<f32>();", f"for (var part = 0u; part < P.parts; part++) {{ sum += {each}; }}"]
    reads, scales = {"a": Storage(DType.F32, 4 if aligned else 1)}, []
    if scaled[0]:
        scales.append("vec4<f32>(a_scales_at((z % P.sets) * P.m + row))")
        reads["a_scales"] = Storage(DType.F32)
    if scaled[1]:
        lanes = (f"b_scales_at(first + z * P.n + min(column + {j}u, P.n - 1u))" for j in range(4))
        scales.append(f"vec4<f32>({', '.join(lanes)})")
        reads["b_scales"] = Storage(DType.F32)
    if len(scales) == 2:  # the lower scale first: multiplying by the higher one first may overflow f32
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
SUM_PARAMS = ("parts", "part_step", "z_step", "width")


@cached(64)
def finish(form: GemmForm, scaled: tuple[bool, bool], target: Target, aligned: bool = True) -> KernelSpec:
    """Compute y from sums over parts, `a`, four columns per invocation; `scaled` are the operands with scaled rows.

    The sums of several products may be side by side: those of y begin at column `first`, those of its sibling at
    `other`. Sums of successive products of a batch are `z_step` apart, a multiple of four if `aligned`.
    """
    reads, sums = total(scaled, aligned)
    beside = form.epilogue is not None and None in form.epilogue.operands
    body = [*_EACH, *(["besides = total(z, row, column, P.other);"] if beside else [])]
    return module(
        "matrix_finish",
        [*body, "put4(z, row, column, total(z, row, column, P.first));"],
        form,
        target,
        reads=reads,
        helpers=[sums, *(["var<private> besides: vec4<f32>;"] if beside else [])],
        params=[(n, "u32") for n in (*SUM_PARAMS, "first", *(["other"] if beside else []))],
    )


@cached(64)
def spread(ys: tuple[DType, ...], scaled: tuple[bool, bool], target: Target) -> KernelSpec:
    """Store the sums of several products, which are side by side with a multiple of four columns each."""
    reads, sums = total(scaled, aligned=True)
    body = [*_EACH, "let v = total(z, row, column, 0u); var at = column;"]
    for k in range(len(ys)):
        body.append(f"if (at < P.n{k}) {{ y{k}_put4((row * P.n{k} + at) / 4u, v); return; }} at -= P.n{k};")
    writes = {f"y{k}": Storage(y, 4) for k, y in enumerate(ys)}
    params = [(n, "u32") for n in ("batch", "sets", "m", "n", *SUM_PARAMS, *(f"n{k}" for k in range(len(ys))))]
    return build("matrix_finish", body, target=target, reads=reads, writes=writes, params=params, helpers=sums)
