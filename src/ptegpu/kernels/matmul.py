"""Matrix products: y[z, row, column] = alpha · Σₖ a[z, row, k] · b[z, k, column] + beta · bias, summed in f32.

Ints, which only `outer` takes, are summed in i32 and wrap.

There may be fewer matrices of `a` and of the bias than of `b`: matrix z is then number z modulo `P.sets`.

Five kernels, two of them in `gemv.py`, share one `Form` (what is constant per graph) and one block of parameters (what
is live):

- `outer`: an invocation per element, for a K so short that nothing is worth sharing, and for ints;
- `gemv_rows`: one to eight rows of `a` against b stored [N, K]: a workgroup walks K together for a few rows of `b`;
- `gemv_columns`: the same against b stored [K, N]: lanes over columns, slices of the workgroup over K;
- `gemm`: tiles in workgroup memory, a small block of accumulators in registers;
- `blocks`: such a block alone, for processors that compute as a GPU does, where workgroup memory and barriers are dear.

All are unrolled here, because naga emits plain loops: every accumulator has a name. Loads are clamped into the matrix
rather than guarded, what lies beyond K is set to zero on its way into the tile, and what lies beyond M or N is never
stored. `gemv_columns`, `gemm` and `blocks` store quads if the form says so, and can take a `b` that is no stored matrix
(`Gather`); the others store single elements. The first two can leave partial sums over parts of K to `add_parts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .functions import functions
from .wgsl import COMPUTE, ZERO, KernelSpec, Storage, build

DEPTH = 16  # elements of K in a tile

SIZES = [("batch", "u32"), ("sets", "u32"), ("m", "u32"), ("n", "u32"), ("k", "u32")]
PLACES = [("y_batch", "u32"), ("y_row", "u32"), ("y_column", "u32"), ("y_first", "u32")]  # strides of y, its start
CLAMP = [("low", "f32"), ("high", "f32")]
BIAS = [("bias_batch", "u32"), ("bias_row", "u32"), ("bias_column", "u32"), ("bias_first", "u32")]


@dataclass(frozen=True, slots=True)
class Gather:
    """WGSL that finds the elements of `b` with `b_at`, where it is no stored matrix.

    `b_place(column) -> Place` is all that loads of four columns from there on have in common, `b_quad(row, Place)` is
    one such load; rows count through all matrices of `b`.
    """

    wgsl: str
    params: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Arithmetic on each element before it is stored: `apply(i, v, …)` gets its place in y, its value, the elements at
    that place in further tensors, and numbers."""

    wgsl: str  # defines `apply`
    operands: tuple[DType | None, ...]  # None: no tensor, but what the kernel has as `beside`
    numbers: tuple[str, ...]
    repeated: tuple[int, ...] = ()  # of the operands, those that begin again and again, every `P.e…_size` elements
    beside: str = "beside"

    @property
    def reads(self) -> dict[str, Storage]:
        return {f"e{k}": Storage(dtype) for k, dtype in enumerate(self.operands) if dtype}

    @property
    def params(self) -> list[tuple[str, str]]:
        return [*((n, "f32") for n in self.numbers), *((f"e{k}_size", "u32") for k in self.repeated)]

    @property
    def call(self) -> str:
        at = [f"i % P.e{k}_size" if k in self.repeated else "i" for k in range(len(self.operands))]
        given = [f"e{k}_at({at[k]})" if dtype else self.beside for k, dtype in enumerate(self.operands)]
        return f"apply({', '.join(['i', 'v', *given, *(f'P.{n}' for n in self.numbers)])})"


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel is generated for. Quads: whether rows as stored can be loaded or stored four elements at a time."""

    a: DType
    b: DType
    y: DType
    bias: DType | None
    transposed: bool  # b is stored [N, K]
    a_quads: bool
    b_quads: bool
    y_quads: bool
    clamped: bool = False  # y is kept within P.low and P.high
    gather: Gather | None = None
    finish: Finish | None = None

    @property
    def kind(self) -> str:
        """The type of sums."""
        return COMPUTE[self.a]


@dataclass(frozen=True, slots=True)
class Tile:
    """A workgroup's part of y, and each invocation's part of that. Each invocation stages one 4 × 4 block per step.

    With slices, so many teams of invocations take turns along K, each for the whole part, and add up what they have.
    """

    size: int  # rows, and columns
    rows: int  # of one invocation
    columns: int
    slices: int = 1

    @property
    def team(self) -> int:
        return self.size // self.rows * (self.size // self.columns)

    @property
    def threads(self) -> int:
        return self.team * self.slices


@dataclass(frozen=True, slots=True)
class Loader:
    """A `b` stored [N, K] in some other form: what it reads, and `b_quad(row, k)`, four elements of a row from k on.

    k is a multiple of four and may lie beyond K, where the elements do not matter.
    """

    reads: tuple[tuple[str, Storage], ...]
    params: tuple[tuple[str, str], ...]
    quad: str  # WGSL


BLOCKS = 32  # invocations of a workgroup that has no memory
LARGE, MEDIUM, SMALL, SLICED = Tile(128, 8, 8), Tile(64, 8, 4), Tile(32, 4, 4), Tile(32, 4, 4, slices=4)


def module(
    name: str,
    body: list[str],
    form: Form,
    target: Target,
    *,
    reads: dict[str, Storage],
    workgroup: int,
    helpers: list[str],
    params: list[tuple[str, str]],
    shared: dict[str, tuple[str, int]] | None = None,
    subgroups: bool = False,
    matrices: bool = False,
    writes: dict[str, Storage] | None = None,
) -> KernelSpec:
    """A kernel with the epilogue that all share: `finish` scales, adds the bias and more; `put` or `put4` store.

    `reads` and `writes` are what it binds beside what the form says.
    """
    added = {"bias": Storage(form.bias)} if form.bias else {}
    if form.finish:
        added |= form.finish.reads
    text = "\n".join(f"  {line}" for line in body)
    return build(
        name,
        text,
        target=target,
        reads=reads | added,
        writes={"y": Storage(form.y, 4 if form.y_quads else 1), **(writes or {})},
        params=[
            *SIZES,
            *PLACES,
            ("alpha", form.kind),
            *([("beta", form.kind), *BIAS] if form.bias else []),
            *(CLAMP if form.clamped else []),
            *(form.finish.params if form.finish else ()),
            *params,
        ],
        workgroup=workgroup,
        shared=shared,
        helpers="\n".join([*helpers, _epilogue(form)]),
        subgroups=subgroups,
        matrices=matrices,
    )


def _epilogue(form: Form) -> str:
    bias = ""
    if form.bias:
        place = "P.bias_first + z % P.sets * P.bias_batch + row * P.bias_row + column * P.bias_column"
        bias = f" + P.beta * bias_at({place})"
    result = f"within(P.alpha * v{bias}, P.low, P.high)" if form.clamped else f"P.alpha * v{bias}"
    kind = form.kind
    place = "P.y_first + z * P.y_batch + row * P.y_row"
    library, last = result, result
    if form.finish:
        library, last = result + form.finish.wgsl, f"finished({place} + column * P.y_column, {result})"
    finish = f"{functions(library)}\n"
    if form.finish:
        finish += f"{form.finish.wgsl}\nfn finished(i: u32, v: f32) -> f32 {{ return {form.finish.call}; }}\n"
    finish += f"fn finish(z: u32, row: u32, column: u32, v: {kind}) -> {kind} {{ return {last}; }}\n"
    if form.y_quads:
        lanes = ", ".join(f"finish(z, row, column + {j}u, v.{c})" for j, c in enumerate("xyzw"))
        return finish + (
            "fn put4(z: u32, row: u32, column: u32, v: vec4<f32>) {\n"
            f"  if (column < P.n) {{ y_put4(({place} + column) >> 2u, vec4<f32>({lanes})); }}\n}}"
        )
    return finish + (
        f"fn put(z: u32, row: u32, column: u32, v: {kind}) {{\n"
        f"  if (column < P.n) {{ y_put({place} + column * P.y_column, finish(z, row, column, v)); }}\n}}\n"
        f"fn put4(z: u32, row: u32, column: u32, v: vec4<{kind}>) {{\n"
        + "".join(f"  put(z, row, column + {j}u, v.{c});\n" for j, c in enumerate("xyzw"))
        + "}"
    )


def row_quad(name: str, width: str, quads: bool) -> str:
    """`name_quad(row, i)`: four elements of a row of `width` from element i on, repeating the last beyond its end."""
    if quads:
        load = f"{name}_at4((row * {width} + min(i, {width} - 4u)) >> 2u)"
    else:
        lanes = ", ".join(f"{name}_at(row * {width} + min(i + {j}u, {width} - 1u))" for j in range(4))
        load = f"vec4<f32>({lanes})"
    return f"fn {name}_quad(row: u32, i: u32) -> vec4<f32> {{ return {load}; }}"


def b_source(form: Form) -> tuple[Storage, str, str]:
    """How `b` is bound, the helpers that define `b_quad`, and what that wants to know of a `column`."""
    if form.gather:
        return Storage(form.b), form.gather.wgsl, "b_place({column})"
    width = "P.k" if form.transposed else "P.n"
    return Storage(form.b, 4 if form.b_quads else 1), row_quad("b", width, form.b_quads), "{column}"


@cached(256)
def outer(form: Form, target: Target) -> KernelSpec:
    """An invocation per element of y."""
    b = "(z * P.n + column) * P.k + k" if form.transposed else "(z * P.k + k) * P.n + column"
    body = [
        "let i = group * WG + lid;",
        "if (i >= P.batch * P.m * P.n) { return; }",
        "let column = i % P.n; let zr = i / P.n; let row = zr % P.m; let z = zr / P.m;",
        "let first = (z % P.sets * P.m + row) * P.k;",
        f"var sum = {ZERO[form.kind]};",
        f"for (var k = 0u; k < P.k; k++) {{ sum += a_at(first + k) * b_at({b}); }}",
        "put(z, row, column, sum);",
    ]
    return module(
        "matmul_outer",
        body,
        form,
        target,
        reads={"a": Storage(form.a), "b": Storage(form.b)},
        workgroup=target.workgroup(256),
        helpers=[],
        params=[],
    )


@cached(256)
def gemm(form: Form, tile: Tile, target: Target, loader: Loader | None = None) -> KernelSpec:
    """A tile of y per workgroup; `b` is a matrix as the form says, or what `loader` makes of other storage.

    Both tiles lie in workgroup memory as [k][quad of rows or columns], so that an invocation reads vec4s. Quad q of
    step k is kept at q ^ (k / 4 · 2), which spreads the stores of neighbouring invocations over the banks. While one
    step is computed, the loads of the next are under way. Invocation (x, y) has row quads y, y + down, … and column
    quads x, x + across, …: neighbours read, and store, neighbouring quads.
    """
    quads, across, down = tile.size // 4, tile.size // tile.columns, tile.size // tile.rows
    row_quads, column_quads = tile.rows // 4, tile.columns // 4
    blocks = quads * DEPTH // 4  # 4 × 4 blocks in each of the two tiles; the first half of the invocations stages a
    assert tile.team == 2 * blocks and min(across, down) >= 8
    room, step = (
        2 * DEPTH * quads,
        DEPTH * tile.slices,
    )  # quads of workgroup memory of a slice; of K, what all slices take
    own, base = ("lid", "") if tile.slices == 1 else ("own", f"slice * {room}u + ")
    sums = [(i, j) for i in range(tile.rows) for j in range(column_quads)]
    along_k = f"(block % {DEPTH // 4}u) * 4u", f"block / {DEPTH // 4}u"  # (k, quad) of a block of four rows along K
    along_n = f"(block / {quads}u) * 4u", f"block % {quads}u"
    b_k, b_quad = along_k if form.transposed else along_n
    storage, b_helpers, place = b_source(form)
    b_reads, b_params = {"b": storage}, form.gather.params if form.gather else ()
    if loader:
        b_reads, b_helpers, b_params = dict(loader.reads), loader.quad, loader.params

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
        a = [f"tiles[{base}{d * quads + down * i}u + (y_ ^ {flip}u)]" for i in range(row_quads)]
        b = [f"tiles[{base}{(DEPTH + d) * quads + across * j}u + (x ^ {flip}u)]" for j in range(column_quads)]
        body.append("  {")
        body += [f"    let a{i} = {v};" for i, v in enumerate(a)]
        body += [f"    let b{j} = {v};" for j, v in enumerate(b)]
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
        reads={"a": Storage(form.a, 4 if form.a_quads else 1), **b_reads},
        workgroup=tile.threads,
        helpers=[row_quad("a", "P.k", form.a_quads), b_helpers],
        params=[("row_tiles", "u32"), ("column_tiles", "u32"), ("k_part", "u32"), *b_params],
        shared={"tiles": ("vec4<f32>", room * tile.slices)},
    )


@cached(256)
def blocks(form: Form, rows: int, target: Target, loader: Loader | None = None) -> KernelSpec:
    """An invocation for so many rows and four columns of y, neighbours for neighbouring columns; `b` as in `gemm`."""
    storage, b_helpers, place = b_source(form)
    b_reads, b_params = {"b": storage}, form.gather.params if form.gather else ()
    if loader:
        b_reads, b_helpers, b_params = dict(loader.reads), loader.quad, loader.params
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
        reads={"a": Storage(form.a, 4 if form.a_quads else 1), **b_reads},
        workgroup=target.workgroup(BLOCKS),
        helpers=[row_quad("a", "P.k", form.a_quads), b_helpers],
        params=[*b_params],
    )


@cached(64)
def add_parts(form: Form, target: Target) -> KernelSpec:
    """y from partial sums [parts, batch, M, N], which it reads as `a`."""
    body = [
        "let i = group * WG + lid;",
        "let size = P.batch * P.m * P.n;",
        "if (i >= size) { return; }",
        "var sum = 0.0;",
        "for (var part = 0u; part < P.parts; part++) { sum += a_at(part * size + i); }",
        "put(i / (P.m * P.n), i / P.n % P.m, i % P.n, sum);",
    ]
    return module(
        "matmul_add_parts",
        body,
        form,
        target,
        reads={"a": Storage(DType.F32)},
        workgroup=target.workgroup(256),
        helpers=[],
        params=[("parts", "u32")],
    )
