"""Products of int8 rows with packed weights, summed in integers four elements at a time.

    y[row, column] = x_scale[row] · Σ_groups scale[group, column] · Σₖ (x[row, k] − x_zero[row]) · w[column, k] + bias

The inner sum is exact. x consists of words of four elements, zero beyond K. For 4-bit weights, word 2i has the elements
8i + 0, 2, 4, 6, and word 2i + 1 has the others, in the order that one mask extracts from a word of the weight.
`pack_rows` puts float or int8 rows into that order. Results are float, or int8 with a scale and a zero point.

- `gemv`: a few rows of x: sets of lanes walk along K for a few rows of the weight;
- `gemm`: tiles of both in workgroup memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .gemm import Tile
from .gemv import Gemv, by_subgroups, reduce_lanes
from .packing import RAW, WHOLE, word_loader
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s

DEPTH = 8  # words of K in a tile
ONES = "0x01010101u"


@dataclass(frozen=True, slots=True)
class RowGather:
    """WGSL of `x_word(row, word, inside)` for rows that are not stored as words, used by `gemm` only.

    There are several products with `P.sets` different weights. The index of the current one is `product`, and its
    weights begin at row `base`. y is stored [product][column][row]. With `shared_scales`, all weights have the same
    scales.
    """

    wgsl: str
    params: tuple[tuple[str, str], ...]
    shared_scales: bool


@dataclass(frozen=True, slots=True)
class Int8Form:
    """The constants of a kernel."""

    bits: int  # of the weight: 4, offset by 8, or 8, two's complement
    run: int  # elements, a power of two from 8 on, that share a scale; or WHOLE
    weight: DType
    scales: DType
    bias: DType | None
    y: DType  # float, or int8, whose single elements are written as int32
    relu: bool
    x_scale: DType | None  # one for each row; or, if None, a parameter for all
    x_zero: DType | None
    y_quads: bool  # y is stored four elements at a time
    aligned: bool = True  # rows of the weight are whole words
    gather: RowGather | None = None

    @property
    def elements(self) -> int:
        """Elements of a word of the weight."""
        return 32 // self.bits

    @property
    def requantises(self) -> bool:
        return not self.y.is_float


PARAMS = ("m", "n", "x_words", "row_bytes", "group", "scale_stride", "scale_groups", "first", "y_row", "y_first")


def _kernel(
    name: str,
    body: list[str],
    form: Int8Form,
    target: Target,
    *,
    words: tuple[str, str],  # element types of x and b
    sums: bool,
    workgroup: int,
    shared: dict[str, tuple[str, int]],
    helpers: str,
    params: tuple[str, ...],
    subgroups: bool = False,
) -> KernelSpec:
    """Return a kernel with the shared end: `put4` of sums in units of the weight's scales."""
    x = Storage(DType.I8) if form.gather else Storage(DType.I8, raw=words[0])
    reads = {"x": x, "b": Storage(form.weight, raw=words[1])}
    reads["scales"] = Storage(form.scales)
    optional = {
        "sums": DType.I32 if sums else None,
        "bias": form.bias,
        "x_scales": form.x_scale,
        "x_zeros": form.x_zero,
    }
    reads |= {n: Storage(d) for n, d in optional.items() if d}
    names = u32s(*PARAMS, *params)
    names += form.gather.params if form.gather else ()
    names += [] if form.x_scale else [("x_scale", "f32")]
    names += [] if form.x_zero else [("x_zero", "i32")]
    names += [("y_inverse", "f32"), ("y_zero", "f32")] if form.requantises else []
    return build(
        name,
        body,
        target=target,
        reads=reads,
        writes={"y": Storage(form.y, 4 if form.y_quads else 1)},
        params=names,
        workgroup=workgroup,
        shared=shared,
        helpers=f"{helpers}\n{_epilogue(form)}",
        subgroups=subgroups,
    )


def _epilogue(form: Int8Form) -> str:
    kind = COMPUTE[form.y]
    scale = "x_scales_at(row)" if form.x_scale else "P.x_scale"
    zero = "i32(x_zeros_at(row))" if form.x_zero else "P.x_zero"
    base = "base" if form.gather else "P.first"
    scales = "0u" if form.gather and form.gather.shared_scales else base
    value = f"v * {scale}" + (f" + bias_at({base} + column)" if form.bias else "")
    value = f"max({value}, 0.0)" if form.relu else value
    if form.requantises:
        value = f"i32(clamp(round(({value}) * P.y_inverse) + P.y_zero, -128.0, 127.0))"
    lines = ["var<private> product: u32;", "var<private> base: u32;", form.gather.wgsl] if form.gather else []
    lines += [
        f"fn zero_of(row: u32) -> i32 {{ return {zero}; }}",
        f"fn scale_at(g: u32, column: u32) -> f32 {{ return scales_at(g * P.scale_stride + {scales} + column); }}",
        f"fn finish(row: u32, column: u32, v: f32) -> {kind} {{ return {value}; }}",
    ]
    if form.gather:  # four rows of a column
        place, along, bound, other = "(product * P.n + column) * P.m + row", "row", "P.m", "column < P.n"
        lanes = [f"finish(row + {j}u, column, v.{c})" for j, c in enumerate("xyzw")]
    else:  # four columns of a row
        place, along, bound, other = "P.y_first + row * P.y_row + column", "column", "P.n", "row < P.m"
        lanes = [f"finish(row, column + {j}u, v.{c})" for j, c in enumerate("xyzw")]
    lines += ["fn put4(row: u32, column: u32, v: vec4<f32>) {", f"  if ({other} && {along} < {bound}) {{"]
    if form.y_quads:
        lines.append(f"    y_put4(({place}) >> 2u, vec4<{kind}>({', '.join(lanes)}));")
    else:
        lines += [f"    if ({along} + {j}u < {bound}) {{ y_put({place} + {j}u, {v}); }}" for j, v in enumerate(lanes)]
    return "\n".join([*lines, "  }", "}"])


@cached(64)
def pack_rows(x: DType, scale: DType | None, zero: DType | None, interleaved: bool, target: Target) -> KernelSpec:
    """Pack rows of x [rows, k] into `words` words each: floats are quantised, and int8 elements reordered."""
    if scale and zero:
        factor = "let inverse = 1.0 / x_scales_at(row); let zero = f32(x_zeros_at(row));"
        element = "i32(clamp(round(x_at(at) * inverse) + zero, -128.0, 127.0))"
    elif x.is_float:
        factor = ""
        element = "i32(clamp(round(x_at(at) * P.x_inverse) + P.x_zero, -128.0, 127.0))"
    else:
        factor, element = "", "x_at(at)"
    first = "word / 2u * 8u + word % 2u" if interleaved else "word * 4u"
    step = 2 if interleaved else 1
    body = [
        "  let i = group * WG + lid;",
        "  if (i >= P.rows * P.words) { return; }",
        f"  let row = i / P.words; let word = i % P.words; let first = {first}; {factor}",
        "  var v = vec4<i32>();",
    ]
    for j, c in enumerate("xyzw"):
        k = f"first + {j * step}u"
        body.append(f"  if ({k} < P.k) {{ let at = row * P.k + {k}; v.{c} = {element}; }}")
    body.append("  y_put4(i, v);")
    reads = {"x": Storage(x)}
    if scale and zero:
        reads |= {"x_scales": Storage(scale), "x_zeros": Storage(zero)}
    numbers = [("x_inverse", "f32"), ("x_zero", "f32")] if x.is_float and not scale else []
    writes = {"y": Storage(DType.I8, 4)}
    params = [*u32s("rows", "k", "words"), *numbers]
    return build("linear_q8_pack_rows", "\n".join(body), target=target, reads=reads, writes=writes, params=params)


@cached(256)
def gemv(form: Int8Form, layout: Gemv, count: int, target: Target) -> KernelSpec:
    """Multiply up to `count` rows of x by a weight, with sets of lanes for quads of its rows; a block is one load."""
    assert layout.rows % 4 == 0
    rows, lanes = range(layout.rows), layout.lanes
    per_block = layout.words * form.elements // 4  # words of x
    width = min(per_block, 4)
    row_scale = form.run == WHOLE
    sums = [(m, r) for m in range(count) for r in rows]
    body = [
        f"let first = (group * {layout.slots}u + lid / {lanes}u) * {layout.rows}u;",
        f"let lane = lid % {lanes}u;",
        *(f"let column{r} = min(first + {r}u, P.n - 1u);" for r in rows),
        *(f"let row{m} = min({m}u, P.m - 1u);" for m in range(1, count)),
        *(f"let zero{m} = zero_of({_row(m)});" for m in range(count)),
        *(f"var sum{m}_{r} = {'0' if row_scale else '0.0'};" for m, r in sums),
        f"for (var t = lane; t < P.row_blocks; t += {lanes}u) {{",
    ]
    body += [f"  let loaded{r} = {layout.load(f'column{r}', 't')};" for r in rows]
    for m in range(count):
        for j in range(per_block // width):
            at = f"({_row(m)} * P.x_words + t * {per_block}u) / {width}u + {j}u"
            body.append(f"  let x{m}_{j} = x[{at}];")

    def x(m: int, word: int) -> str:
        return _component(f"x{m}_{word // width}", word % width, width)

    def w(r: int, word: int) -> str:
        return _component(f"loaded{r}", word, layout.words)

    if form.bits == 8:
        for m, r in sums:
            products = " + ".join(f"dot4I8Packed({x(m, i)}, {w(r, i)})" for i in range(layout.words))
            body.append(f"  sum{m}_{r} += {products};")
    else:
        body += [f"  {line}" for line in _nibbles(form, layout, count, x, w)]
    body.append("}")
    reduced, totals, partial = reduce_lanes([f"sum{m}_{r}" for m, r in sums], layout, target)
    body += reduced

    def total(i: int) -> str:
        m, r = sums[i]
        if not row_scale:
            return totals[i]
        exact = f"({totals[i]} - zero{m} * sums_at(P.first + column{r}))" if form.bits == 8 else totals[i]
        return f"f32({exact}) * scale_at(0u, column{r})"

    for m in range(count):
        for r in range(0, layout.rows, 4):
            i = m * layout.rows + r
            quad = ", ".join(total(i + j) for j in range(4))
            body.append(f"if (lane == {i % lanes}u) {{ put4({m}u, first + {r}u, vec4<f32>({quad})); }}")
    return _kernel(
        "linear_q8_gemv",
        body,
        form,
        target,
        words=(RAW[width], RAW[layout.words]),
        sums=form.bits == 8,
        workgroup=lanes * layout.slots,
        shared={"partial": ("i32" if row_scale else "f32", partial)} if partial else {},
        helpers=word_loader(form.aligned) if layout.words == 1 else "",
        params=("row_blocks",),
        subgroups=by_subgroups(layout, target),
    )


def _row(m: int) -> str:
    return f"row{m}" if m else "0u"


def _component(vector: str, i: int, width: int) -> str:
    return f"{vector}.{'xyzw'[i]}" if width > 1 else vector


def _nibbles(
    form: Int8Form, layout: Gemv, count: int, x: Callable[[int, int], str], w: Callable[[int, int], str]
) -> list[str]:
    """Return lines that add a block of 4-bit weights to the sums.

    Σ (n − 8)·(x − zero) = Σ n·x − zero · Σ n − 8 · Σ (x − zero)
    """
    chunk = layout.words if form.run == WHOLE else min(form.run // 8, layout.words)  # words that share a scale
    lines: list[str] = []
    for c in range(0, layout.words, chunk):
        inside = range(c, c + chunk)
        for m in range(count):
            added = " + ".join(f"dot4I8Packed({x(m, 2 * i + h)}, {ONES})" for i in inside for h in (0, 1))
            lines.append(f"let x_sum{m}_{c} = 8 * ({added} - zero{m} * {8 * chunk});")
        if form.run != WHOLE:
            lines.append(f"let group{c} = min((t * {layout.words}u + {c}u) * 8u / P.group, P.scale_groups - 1u);")
        for r in range(layout.rows):
            for i in inside:
                lines.append(f"let even{r}_{i} = {w(r, i)} & 0x0f0f0f0fu;")
                lines.append(f"let odd{r}_{i} = ({w(r, i)} >> 4u) & 0x0f0f0f0fu;")
            all_bytes = " + ".join(f"even{r}_{i} + odd{r}_{i}" for i in inside)  # at most 4 · 30 in each
            lines.append(f"let w_sum{r}_{c} = i32(dot4U8Packed({all_bytes}, {ONES}));")
            for m in range(count):
                products = " + ".join(
                    f"dot4I8Packed({x(m, 2 * i)}, even{r}_{i}) + dot4I8Packed({x(m, 2 * i + 1)}, odd{r}_{i})"
                    for i in inside
                )
                exact = f"{products} - zero{m} * w_sum{r}_{c} - x_sum{m}_{c}"
                if form.run == WHOLE:
                    lines.append(f"sum{m}_{r} += {exact};")
                else:
                    lines.append(f"sum{m}_{r} += f32({exact}) * scale_at(group{c}, column{r});")
    return lines


@cached(256)
def gemm(form: Int8Form, tile: Tile, target: Target) -> KernelSpec:
    """Compute a tile of y per workgroup, one group of K after the other.

    Tiles of x and the weight are in workgroup memory as [word][quad of rows or columns]. Invocation (x, y) has row
    quads y, y + down, … and column quads x, x + across, …
    """
    quads, across, down = tile.size // 4, tile.size // tile.columns, tile.size // tile.rows
    row_quads, column_quads = tile.rows // 4, tile.columns // 4
    depth = DEPTH if form.run == WHOLE else min(DEPTH, form.run // 4)
    staged = depth * quads  # quads of words in each tile
    assert staged <= tile.threads
    sums = [(i, j) for i in range(tile.rows) for j in range(column_quads)]
    base, own = ("base", " + base") if form.gather else ("P.first", "")
    b_word = "b_word(column, word)"
    if form.bits == 4:
        b_word = "signed(b_word(column, word >> 1u) >> ((word & 1u) * 4u))"
    a_word = "select(0u, x[min(row, P.m - 1u) * P.x_words + word], inside)"
    helpers = [
        word_loader(form.aligned),
        # Bytes from 0 to 15 become -8 to 7; no carry leaves its byte.
        "fn signed(word: u32) -> u32 { return ((word & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u; }",
        f"fn w_word(c: u32, word: u32) -> u32 {{ let column = min(c, P.n - 1u){own}; return {b_word}; }}",
    ]
    if not form.gather:
        helpers.append(f"fn x_word(row: u32, word: u32, inside: bool) -> u32 {{ return {a_word}; }}")
    body = [
        "let tile = group % (P.row_tiles * P.column_tiles);",
        f"let first_row = tile % P.row_tiles * {tile.size}u;",
        f"let first_column = tile / P.row_tiles * {tile.size}u;",
        f"let x_ = lid % {across}u; let y_ = lid / {across}u;",
        f"let place = lid % {depth}u; let line = lid / {depth}u * 4u;",
        f"let at = place * {quads}u + lid / {depth}u;",
        *(f"let row{i} = first_row + (y_ + {i // 4 * down}u) * 4u + {i % 4}u;" for i in range(tile.rows)),
        *(f"let zero{i} = zero_of(min(row{i}, P.m - 1u));" for i in range(tile.rows)),
        *(f"let column{j} = first_column + (x_ + {j * across}u) * 4u;" for j in range(column_quads)),
        *(f"var sum{i}_{j} = vec4<f32>();" for i, j in sums),
        "for (var g = 0u; g < P.scale_groups; g++) {",
    ]
    for j in range(column_quads):
        columns = [f"min(column{j} + {c}u, P.n - 1u)" for c in range(4)]
        of_sums = ", ".join(f"sums_at(g * P.sums_stride + {base} + {c})" for c in columns)
        of_scales = ", ".join(f"scale_at(g, {c})" for c in columns)
        body += [f"  let w_sum{j} = vec4<i32>({of_sums});", f"  let scale{j} = vec4<f32>({of_scales});"]
    body += [f"  var exact{i}_{j} = w_sum{j} * -zero{i};" for i, j in sums]
    body += [
        "  let end = min((g + 1u) * P.group_words, P.x_words);",
        f"  for (var word0 = g * P.group_words; word0 < end; word0 += {depth}u) {{",
        f"    if (lid < {staged}u) {{",
        "      let inside = word0 + place < P.x_words; let word = min(word0 + place, P.x_words - 1u);",
    ]
    a_words = ", ".join(f"x_word(first_row + line + {c}u, word, inside)" for c in range(4))
    b_words = ", ".join(f"w_word(first_column + line + {c}u, word)" for c in range(4))
    body += [
        f"      tiles[at] = vec4<u32>({a_words});",
        f"      tiles[{staged}u + at] = vec4<u32>({b_words});",
        "    }",
        "    workgroupBarrier();",
    ]
    for d in range(depth):
        body.append("    {")
        body += [f"      let a{i} = tiles[{d * quads + down * i}u + y_];" for i in range(row_quads)]
        body += [f"      let b{j} = tiles[{staged + d * quads + across * j}u + x_];" for j in range(column_quads)]
        for i, j in sums:
            a = f"a{i // 4}.{'xyzw'[i % 4]}"
            body.append(
                f"      exact{i}_{j} += vec4<i32>({', '.join(f'dot4I8Packed({a}, b{j}.{c})' for c in 'xyzw')});"
            )
        body.append("    }")
    body += ["    workgroupBarrier();", "  }"]
    body += [f"  sum{i}_{j} += scale{j} * vec4<f32>(exact{i}_{j});" for i, j in sums]
    body.append("}")
    if form.gather:
        body[:0] = ["product = group / (P.row_tiles * P.column_tiles);", "base = product % P.sets * P.n;"]
        for i in range(0, tile.rows, 4):
            for j, c in ((j, c) for j in range(column_quads) for c in range(4)):
                four = ", ".join(f"sum{i + r}_{j}.{'xyzw'[c]}" for r in range(4))
                body.append(f"put4(row{i}, column{j} + {c}u, vec4<f32>({four}));")
    else:
        body += [f"put4(row{i}, column{j}, sum{i}_{j});" for i, j in sums]
    return _kernel(
        f"linear_q8_gemm{tile.size}",
        body,
        form,
        target,
        words=("u32", "u32"),
        sums=True,
        workgroup=tile.threads,
        shared={"tiles": ("vec4<u32>", 2 * staged)},
        helpers="\n".join(helpers),
        params=("row_tiles", "column_tiles", "group_words", "sums_stride"),
    )
