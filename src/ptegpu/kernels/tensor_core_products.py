"""Products on matrix units: y = alpha · a · bᵀ + …, of blocks of f16 (`tensor_core_blocks.py`), summed in f32.

Subgroups multiply matrices of 16 × 16 that they load from workgroup memory. A subgroup moves a block as one matrix from
storage into workgroup memory, with loads and stores of whole words that meet no bank twice. While one step along K is
computed, the loads of the next are under way.

Where f32 is wanted, three of the four products of an element's two parts count: nearest · rest both ways, and nearest ·
nearest. Matrix units cut off what does not fit a sum, at each step of K: the small ones come first, and sums are over
part of K.
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
LINE = DEPTH + 8  # and of a row in workgroup memory: eight rows after each other meet different banks


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
        body,
        target=target,
        reads={"a": Storage(DType.F16), "b": Storage(DType.F16)},
        writes={"y": Storage(DType.F32)},
        params=u32s(*counts),
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
def finish(form: GemmForm, scaled: tuple[bool, bool], target: Target, aligned: bool = True) -> KernelSpec:
    """y from sums over parts, which are its `a`: four columns an invocation. `scaled`: which operands' rows were.

    They may be columns of sums for several products, from `first` on; what another has beside them begins at `other`.
    The sums of each of a batch begin `z_step` after those of the one before: at a multiple of four, if `aligned`.
    """
    reads, total = _total(scaled, aligned)
    beside = form.epilogue is not None and None in form.epilogue.operands
    body = [*_EACH, *(["besides = total(z, row, column, P.other);"] if beside else [])]
    return module(
        "matrix_finish",
        [*body, "put4(z, row, column, total(z, row, column, P.first));"],
        form,
        target,
        reads=reads,
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
        body,
        target=target,
        reads=reads,
        writes={f"y{k}": Storage(y, 4) for k, y in enumerate(ys)},
        params=[(n, "u32") for n in ("batch", "sets", "m", "n", *_SUMS, *(f"n{k}" for k in range(len(ys))))],
        helpers=total,
    )
