"""Matrix products by tiles in workgroup memory, or by blocks of registers only; see `matmul.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.target import Target
from ..sizes import cached
from .matmul import GemmForm, Loader, b_source, module, row_quad
from .wgsl import KernelSpec, Storage, u32s

DEPTH = 16  # elements of K in a tile


@dataclass(frozen=True, slots=True)
class Tile:
    """A workgroup's part of y, and each invocation's part of that. Each invocation stages one 4 × 4 block per step.

    Slices are teams of invocations that take turns along K and add up their sums of the same part of y.
    """

    size: int  # rows and columns of the workgroup
    rows: int  # of an invocation
    columns: int
    slices: int = 1

    @property
    def team(self) -> int:
        return self.size // self.rows * (self.size // self.columns)

    @property
    def threads(self) -> int:
        return self.team * self.slices


BLOCKS = 32  # invocations of a workgroup without shared memory
LARGE, MEDIUM, SMALL, SLICED = Tile(128, 8, 8), Tile(64, 8, 4), Tile(32, 4, 4), Tile(32, 4, 4, slices=4)


@cached(256)
def gemm(form: GemmForm, tile: Tile, target: Target, loader: Loader | None = None) -> KernelSpec:
    """Compute a tile of y per workgroup; `loader` replaces the form's storage of `b`.

    Tiles of a and b are in workgroup memory as [k][quad of rows or columns], so that an invocation reads vec4s. Quad q
    of step k is stored at q ^ (k / 4 · 2), which spreads the stores of neighbouring invocations over the banks. The
    loads of the next step overlap with the arithmetic of this one. Invocation (x, y) has row quads y, y + down, … and
    column quads x, x + across, …, so that neighbours read and store neighbouring quads.
    """
    quads, across, down = tile.size // 4, tile.size // tile.columns, tile.size // tile.rows
    row_quads, column_quads = tile.rows // 4, tile.columns // 4
    blocks = quads * DEPTH // 4  # 4 × 4 blocks in each of the two tiles; the first half of the invocations stages a
    assert tile.team == 2 * blocks and min(across, down) >= 8
    room = 2 * DEPTH * quads  # quads of workgroup memory of a slice
    step = DEPTH * tile.slices  # elements of K in a step of all slices
    own, base = ("lid", "") if tile.slices == 1 else ("own", f"slice * {room}u + ")
    sums = [(i, j) for i in range(tile.rows) for j in range(column_quads)]
    along_k = f"(block % {DEPTH // 4}u) * 4u", f"block / {DEPTH // 4}u"  # (k, quad) of a block of four rows along K
    along_n = f"(block / {quads}u) * 4u", f"block % {quads}u"
    b_k, b_quad = along_k if form.transposed else along_n
    b, place = b_source(form, loader)

    load = [f"if ({own} < {blocks}u) {{"]
    load += [f"  s{i} = a_quad(a_set * P.m + min(line + {i}u, P.m - 1u), k);" for i in range(4)]
    load.append("} else {")
    if form.transposed:
        load += [f"  s{i} = b_quad(z * P.n + min(line + {i}u, P.n - 1u), k);" for i in range(4)]
    else:
        load += [f"  s{i} = b_quad(z * P.k + min(k + {i}u, P.k - 1u), place);" for i in range(4)]
    load.append("}")
    turned = [f"vec4<f32>(s0.{c}, s1.{c}, s2.{c}, s3.{c})" for c in "xyzw"]

    def store(values: list[str]) -> list[str]:
        return [f"tiles[at + {i * quads}u] = select(vec4<f32>(), {v}, k + {i}u < end);" for i, v in enumerate(values)]

    stage = store(turned)
    if not form.transposed:
        straight = store([f"s{i}" for i in range(4)])
        stage = [f"if ({own} < {blocks}u) {{", *stage, "} else {", *straight, "}"]

    body = [
        "let tile = group % (P.row_tiles * P.column_tiles);",
        "let zs = group / (P.row_tiles * P.column_tiles); let z = zs % P.batch; let part = zs / P.batch;",
        "let a_set = z % P.sets;",
        f"let first_row = tile % P.row_tiles * {tile.size}u;",
        f"let first_column = tile / P.row_tiles * {tile.size}u;",
        *([f"let own = lid % {tile.team}u; let slice = lid / {tile.team}u;"] if tile.slices > 1 else []),
        f"let x = {own} % {across}u; let y_ = {own} / {across}u;",
        f"let stages_b = {own} >= {blocks}u;",
        f"let block = {own} % {blocks}u;",
        f"let block_k = select({along_k[0]}, {b_k}, stages_b);",
        f"let quad = select({along_k[1]}, {b_quad}, stages_b);",
        "let line = select(first_row, first_column, stages_b) + quad * 4u;",
        f"let place = {place.format(column='line')};",
        f"let at = {base}select(0u, {DEPTH * quads}u, stages_b) + block_k * {quads}u + (quad ^ (block_k >> 1u));",
        "let begin = part * P.k_part; let end = min(P.k, begin + P.k_part);",
        *(f"var sum{i}_{j} = vec4<f32>();" for i, j in sums),
        *(f"var s{i}: vec4<f32>;" for i in range(4)),
        "var k = begin + block_k;" if tile.slices == 1 else f"var k = begin + slice * {DEPTH}u + block_k;",
        *load,
        f"for (var k0 = begin; k0 < end; k0 += {step}u) {{",
        *(f"  {line}" for line in stage),
        "  workgroupBarrier();",
        f"  k += {step}u;",
        *(f"  {line}" for line in load),
    ]
    for d in range(DEPTH):
        flip = d // 4 * 2
        left = [f"tiles[{base}{d * quads + down * i}u + (y_ ^ {flip}u)]" for i in range(row_quads)]
        right = [f"tiles[{base}{(DEPTH + d) * quads + across * j}u + (x ^ {flip}u)]" for j in range(column_quads)]
        body.append("  {")
        body += [f"    let a{i} = {v};" for i, v in enumerate(left)]
        body += [f"    let b{j} = {v};" for j, v in enumerate(right)]
        body += [f"    sum{i}_{j} = fma(vec4<f32>(a{i // 4}.{'xyzw'[i % 4]}), b{j}, sum{i}_{j});" for i, j in sums]
        body.append("  }")
    body += ["  workgroupBarrier();", "}"]
    places = {(i, j): f"{n * tile.team}u + own" for n, (i, j) in enumerate(sums)}
    if tile.slices > 1:
        assert len(sums) * tile.team <= room
        body += [f"tiles[{base}{place}] = sum{i}_{j};" for (i, j), place in places.items()]
        body.append("workgroupBarrier();")
    for i in range(tile.rows):
        body.append(f"let row{i} = first_row + (y_ + {i // 4 * down}u) * 4u + {i % 4}u;")
        body.append(f"if (row{i} < P.m{f' && slice == {i % tile.slices}u' if tile.slices > 1 else ''}) {{")
        for j in range(column_quads):
            total = " + ".join(f"tiles[{s * room}u + {places[i, j]}]" for s in range(tile.slices))
            value = f"sum{i}_{j}" if tile.slices == 1 else total
            body.append(f"  put4(zs, row{i}, first_column + (x + {j * across}u) * 4u, {value});")
        body.append("}")
    return module(
        f"matmul_gemm{tile.size}{'_sliced' if tile.slices > 1 else ''}",
        body,
        form,
        target,
        reads={"a": Storage(form.a, 4 if form.a_quads else 1), **dict(b.reads)},
        workgroup=tile.threads,
        helpers=[row_quad("a", "P.k", form.a_quads), b.quad],
        params=[*u32s("row_tiles", "column_tiles", "k_part"), *b.params],
        shared={"tiles": ("vec4<f32>", room * tile.slices)},
    )


@cached(256)
def blocks(form: GemmForm, rows: int, target: Target, loader: Loader | None = None) -> KernelSpec:
    """Compute `rows` rows and four columns of y per invocation, with neighbours along the columns; `b` as in `gemm`."""
    b, place = b_source(form, loader)
    body = [
        f"let i = group * WG + lid; let across = (P.n + 3u) / 4u; let down = (P.m + {rows - 1}u) / {rows}u;",
        "if (i >= across * down * P.batch) { return; }",
        f"let column = i % across * 4u; let row = i / across % down * {rows}u; let z = i / across / down;",
        "let first = z % P.sets * P.m;",
        f"let place = {place.format(column='column')};",
        *(f"let row{i} = first + min(row + {i}u, P.m - 1u);" for i in range(rows)),
        *(f"var sum{i} = vec4<f32>();" for i in range(rows)),
        "for (var k = 0u; k < P.k; k += 4u) {",
    ]
    within = "vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(P.k)"

    def loaded(name: str, load: str, inside: str) -> str:
        return f"  let {name} = {load if form.a_quads else f'select(vec4<f32>(), {load}, {inside})'};"

    for j in range(4):
        if form.transposed:
            body.append(loaded(f"b{j}", f"b_quad(z * P.n + min(column + {j}u, P.n - 1u), k)", within))
        else:
            body.append(loaded(f"b{j}", f"b_quad(z * P.k + min(k + {j}u, P.k - 1u), place)", f"k + {j}u < P.k"))
    for i in range(rows):
        body.append(loaded(f"a{i}", f"a_quad(row{i}, k)", within))
        if form.transposed:
            body.append(f"  sum{i} += vec4<f32>({', '.join(f'dot(a{i}, b{j})' for j in range(4))});")
        else:
            body += [f"  sum{i} = fma(vec4<f32>(a{i}.{c}), b{j}, sum{i});" for j, c in enumerate("xyzw")]
    body.append("}")
    body += [f"if (row + {i}u < P.m) {{ put4(z, row + {i}u, column, sum{i}); }}" for i in range(rows)]
    return module(
        "matmul_blocks",
        body,
        form,
        target,
        reads={"a": Storage(form.a, 4 if form.a_quads else 1), **dict(b.reads)},
        workgroup=target.workgroup(BLOCKS),
        helpers=[row_quad("a", "P.k", form.a_quads), b.quad],
        params=[*b.params],
    )
