"""Products with packed weights: y[row, column] = Σₖ a[row, k] · scale[k / group, column] · w[column, k], summed in f32.

Elements of weights become 1 + u / 2ᵇ (`packing.py`), and Σ w·x = 2ᵇ · (Σ (1 + u / 2ᵇ)·x − 1.5 · Σ x). The second sum is
the same for all columns.

`gemv` multiplies a few rows of `a`: sets of lanes walk along K for a few rows of one weight or several. It can also
compute the RMS norm that makes `a`, as Σ w·(x·g·r) = r · Σ w·(x·g), with one more sum Σ x² per row for
r = 1 / √(mean of x² + eps), or merge the parts of an attention into `a`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .attention import Merge
from .gemv import Gemv, by_subgroups, reduce_lanes
from .linear_q4_rows import DIGITS, STAGED_HEAD, InputRows, along_k, merged
from .matmul import GemmForm, module
from .packing import PARAMS, RAW, WHOLE, Packing, four_of, scale_at, unsigned, word_loader
from .wgsl import I32, KernelSpec, Storage, u32s

AHEAD = 1  # blocks of each row that a lane loads before the first barrier


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a weight that a set of lanes works on."""

    number: int  # among the rows of the set
    weight: str  # suffix of the weight
    column: int  # from `first` on

    @property
    def at(self) -> str:
        return f"column{self.column}"


@cached(256)
def gemv(
    form: GemmForm,
    packing: Packing,
    layout: Gemv,
    count: int,
    masked: bool,
    tail: bool,
    blocks: int,
    scale_quads: bool,
    target: Target,
    further: tuple[DType | None, ...] = (),
    norm: DType | None = None,
    merge: Merge | None = None,
) -> KernelSpec:
    """Multiply `count` rows of a, or fewer if `masked`, by a weight.

    A block is one load of a row of the weight; a part of K has `blocks`. `tail` means that K is not a multiple of a
    block's elements, `scale_quads` that the scales of four columns can be loaded together.

    `further` are the biases of further weights `b_1`, `b_2`, …, for which K is one part. Each has workgroups of its
    own, after those of the weights before it, and a result `y_1`, …. If the epilogue takes the variable `beside`, there
    is one further weight with as many rows; each set of lanes has the same rows of both, and `beside` is its result,
    which is not stored.

    `norm` is the type of the weight g [K] of an RMS norm of the rows; K is one part then. With `merge`, `a` are the
    parts of an attention [B, S, H, D], whose rows have all heads.
    """
    suffixes = [f"_{w}" for w in range(1, len(further) + 1)]
    paired = form.epilogue is not None and None in form.epilogue.operands
    weights = [["", *suffixes]] if paired else [[""], *([s] for s in suffixes)]
    normed = norm is not None
    a = InputRows(layout, packing, count, blocks, masked, normed)
    walks = [_walk(w, further, a, scale_quads, target) for w in weights]
    partial = walks[0][1]
    if len(walks) == 1:
        body = ["let part = group / P.blocks; let block = group % P.blocks;", *walks[0][0]]
    else:
        body, before = ["let part = 0u;"], "0u"
        for s, (lines, _) in zip(["", *suffixes], walks, strict=True):
            body += [f"if (group >= {before} && group < {before} + P.blocks{s}) {{", f"let block = group - ({before});"]
            body += [*lines, "}"]
            before += f" + P.blocks{s}"
    shared = {"partial": ("f32", partial)} if partial else {}
    if layout.staged:
        shared |= a.memory()
        shared |= {"squares": ("f32", count * layout.lanes * layout.slots)} if normed else {}
    reads = {"a": Storage(DType.F32, 4) if merge else Storage(form.a, 4 if form.a_quads else 1)}
    reads |= {"rows": I32} if merge and merge.paged else {}
    reads |= {"g": Storage(norm, 4 if form.a_quads else 1)} if norm else {}
    for s, bias in zip(["", *suffixes], (None, *further), strict=True):
        reads[f"b{s}"] = Storage(packing.dtype, raw=RAW[layout.words])
        reads[f"scales{s}"] = Storage(packing.scales, 4 if scale_quads else 1)
        reads |= {f"bias{s}": Storage(bias)} if bias else {}
    stored = [] if paired else list(zip(suffixes, further, strict=True))
    return module(
        "linear_q4_gemv",
        body,
        form,
        target,
        reads=reads,
        writes={f"y{s}": Storage(form.y) for s, _ in stored},
        workgroup=layout.lanes * layout.slots,
        helpers=[
            *(word_loader(packing.aligned, s) for s in ("", *suffixes) if layout.words == 1),
            a.units() if layout.digits else "",
            merged(merge, tail) if merge else along_k("x", "a", form.a_quads, tail, "P.a_first + row * P.k"),
            along_k("g", "g", form.a_quads, tail) if normed else "",
            "var<private> beside: f32;" if paired else "",
            *(_store(s, bias is not None) for s, bias in stored),
        ],
        params=[
            *PARAMS,
            *u32s("blocks", "row_blocks", "a_first", *(f"scale_stride{s}" for s in suffixes)),
            *u32s(*(f"{name}{s}" for s, _ in stored for name in ("n", "blocks"))),
            *([("eps", "f32")] if normed else []),
            *(merge.params if merge else []),
        ],
        shared=shared,
        subgroups=by_subgroups(layout, target),
    )


def _store(weight: str, bias: bool) -> str:
    """Return `put` for a further weight, whose result [M, N] is contiguous."""
    added = f" + bias{weight}_at(column)" if bias else ""
    return (
        f"fn put{weight}(part: u32, row: u32, column: u32, v: f32) {{\n"
        f"  if (column < P.n{weight}) {{ y{weight}_put(row * P.n{weight} + column, P.alpha * v{added}); }}\n}}"
    )


def _walk(
    weights: Sequence[str], further: tuple[DType | None, ...], a: InputRows, scale_quads: bool, target: Target
) -> tuple[list[str], int]:
    """Return lines that compute and put a workgroup's `block` of columns over a `part` of K, and the words of memory.

    `weights` are suffixes. A set of lanes has the same columns of all of them. It puts the results of the first one;
    those of a second one, with bias `further`, become `beside`.
    """
    layout, packing, count, blocks, elements = a.layout, a.packing, a.count, a.blocks, a.elements
    rows = [_Row(w * layout.rows + r, s, r) for w, s in enumerate(weights) for r in range(layout.rows)]
    lanes, own = layout.lanes, weights[0]
    quads = elements // 4
    sums = [(m, row.number) for m in range(count) for row in rows]
    by_quads = count == 1 and not layout.digits
    body = [
        f"let first = (block * {layout.slots}u + lid / {lanes}u) * {layout.rows}u;",
        *(f"let column{r} = min(first + {r}u, P.n{own} - 1u);" for r in range(layout.rows)),
        *(f"var sum{m}_{r} = {'vec4<f32>()' if by_quads else '0.0'};" for m, r in sums),
    ]

    def words(row: _Row, loaded: str) -> list[str]:
        each = [f"{loaded}.{c}" for c in "xyzw"[: layout.words]] if layout.words > 1 else [loaded]
        return [f"let w{row.number}_{i} = {w if layout.digits else unsigned(w, packing)};" for i, w in enumerate(each)]

    staged = a.lines()
    if layout.digits:  # loads that do not need the row of `a` overlap with its staging
        head = staged[:STAGED_HEAD]
        rounds = range(-(-blocks // lanes))
        fetch = []
        for c in rounds:
            lines = [f"let t{c} = min(begin + lane + {c * lanes}u, end - 1u);"]
            lines += [f"let loaded{row.number}_{c} = {layout.load(row.at, f't{c}', row.weight)};" for row in rows]
            if packing.run != WHOLE:
                lines += _scales(f"min(t{c} * {elements}u, P.k - 1u)", c, rows, scale_quads)
            fetch.append(lines)
        body += [*head, *(line for lines in fetch[:AHEAD] for line in lines), *staged[len(head) :]]
        for c in rounds:
            body += fetch[c] if c >= AHEAD else []
            body.append("{" if (c + 1) * lanes <= blocks else f"if (begin + lane + {c * lanes}u < end) {{")
            body += [f"  {line}" for row in rows for line in words(row, f"loaded{row.number}_{c}")]
            body += [f"  {line}" for line in _accumulate_digits(packing, rows, layout.words, blocks, c)]
            body.append("}")
    else:
        body += [*staged, f"for (var t = begin + lane; t < end; t += {lanes}u) {{", f"  let k = t * {elements}u;"]
        body += [f"  let loaded{row.number} = {layout.load(row.at, 't', row.weight)};" for row in rows]
        body += [f"  {line}" for row in rows for line in words(row, f"loaded{row.number}")]
        for q in range(quads):
            if a.normed and not layout.staged:
                body.append(f"  let g_{q} = g_quad(0u, k + {4 * q}u);")
            for m in range(count):
                if layout.staged:
                    body.append(f"  let x{m}_{q} = xs[{(m * quads + q) * blocks}u + t - begin];")
                else:
                    body += [f"  {line}" for line in a.quad(f"x{m}_{q}", m, f"k + {4 * q}u", f"g_{q}")]
        body += [f"  {line}" for line in _accumulate(packing, count, rows, quads, scale_quads)]
        body.append("}")
    added = [f"dot(sum{m}_{r}, vec4<f32>(1.0))" if by_quads else f"sum{m}_{r}" for m, r in sums]
    added += [f"square{m}" for m in range(count) if a.normed]
    reduced, totals, partial = reduce_lanes(added, layout, target)
    body += reduced
    for m, total in enumerate(totals[len(sums) :]):
        body.append(f"let root{m} = inverseSqrt({total} / f32(P.k) + P.eps);")
    for m in range(count):
        for r in range(layout.rows):
            scaled = [totals[m * len(rows) + w * layout.rows + r] for w in range(len(weights))]
            if packing.run == WHOLE:
                scaled = [f"{v} * {scale_at('0u', f'column{r}', s)}" for v, s in zip(scaled, weights, strict=True)]
            if a.normed:
                scaled = [f"{v} * root{m}" for v in scaled]
            other = ""
            for s, v, bias in zip(weights[1:], scaled[1:], further, strict=False):
                other = f"beside = P.alpha * {v}{f' + bias{s}_at(column{r})' if bias else ''}; "
            put = f"{other}put{own}(part, {m}u, first + {r}u, {scaled[0]});"
            live = f" && {m}u < P.m" if m and a.masked else ""
            body.append(f"if (lane == {(m * layout.rows + r) % lanes}u{live}) {{ {put} }}")
    return body, partial


def _accumulate_digits(packing: Packing, rows: Sequence[_Row], words: int, blocks: int, c: int) -> list[str]:
    """Return lines that add a lane's block c of each of `rows` times the digits of its elements to the sums."""
    lines = [f"let t = t{c} - begin; let unit = unit(t);"]
    lines += [f"var d{d}_{row.number} = 0;" for row in rows for d in range(DIGITS)]
    for i in range(words * packing.elements // 8):
        lines.append(f"let x{i} = xs[{i * blocks}u + t]; let low{i} = lows[{i * blocks}u + t];")
        for row in rows:
            r = row.number
            first, second = f"w{r}_{2 * i}", f"w{r}_{2 * i + 1}"
            if packing.bits == 4:
                first, second = f"(w{r}_{i} & 0x0f0f0f0fu)", f"((w{r}_{i} >> 4u) & 0x0f0f0f0fu)"
            lines.append(f"let one{r}_{i} = {first}; let two{r}_{i} = {second};")
            for d, (x, y) in enumerate(((f"x{i}.x", f"x{i}.y"), (f"x{i}.z", f"x{i}.w"), (f"low{i}.x", f"low{i}.y"))):
                lines.append(f"d{d}_{r} += dot4I8Packed(one{r}_{i}, {x}) + dot4I8Packed(two{r}_{i}, {y});")
    for row in rows:
        r = row.number
        value = f"f32((d0_{r} * 128 + d1_{r}) * 128 + d2_{r})"
        if packing.bits == 8:  # the sum of all digits may overflow
            value = f"fma(f32(d0_{r}), 16384.0, f32(d1_{r} * 128 + d2_{r}))"
        scale = "" if packing.run == WHOLE else f"scale{c}_{r} * "
        lines.append(f"sum0_{r} += {scale}fma({value}, unit.x, unit.y);")
    return lines


def _accumulate(packing: Packing, count: int, rows: Sequence[_Row], quads: int, scale_quads: bool) -> list[str]:
    """Return lines that add a block of each of `rows` times its elements of `count` rows of a to the sums.

    The sums of a single row of a are quads, which are added up at the end; those of several rows would not fit into
    registers.
    """
    ones = "vec4<f32>(1.0)"

    def fractions(r: int, q: int) -> str:
        per_word = packing.elements // 4
        return four_of(f"w{r}_{q // per_word}", q % per_word * 4, packing)

    def add(to: str, d: str, x: str) -> str:
        return f"{to} = fma({d}, {x}, {to});" if count == 1 else f"{to} += dot({d}, {x});"

    lines: list[str] = []
    if packing.run in (1, 2):  # a scale for every element
        for row in rows:
            r = row.number
            for q in range(quads):
                ks = (f"min(k + {4 * q + j}u, P.k - 1u)" for j in range(4))
                scale = f"vec4<f32>({', '.join(scale_at(k, row.at, row.weight) for k in ks)})"
                lines.append(f"let d{r}_{q} = ({fractions(r, q)} - vec4<f32>(1.5)) * {scale};")
                lines += [add(f"sum{m}_{r}", f"d{r}_{q}", f"x{m}_{q}") for m in range(count)]
        return lines
    chunk = quads if packing.run == WHOLE else min(packing.run // 4, quads)
    for c in range(0, quads, chunk):
        inside = range(c, c + chunk)
        for m in range(count):
            total = f"({' + '.join(f'x{m}_{q}' for q in inside)})"
            lines.append(f"let lift{m}_{c} = -1.5 * {total if count == 1 else f'dot({total}, {ones})'};")
        if packing.run != WHOLE:
            lines += _scales(f"min(k + {4 * c}u, P.k - 1u)", c, rows, scale_quads)
        for r in range(len(rows)):
            lines += [f"var p{m}_{r}_{c} = lift{m}_{c};" for m in range(count)]
            for q in inside:
                lines.append(f"let d{r}_{q} = {fractions(r, q)};")
                lines += [add(f"p{m}_{r}_{c}", f"d{r}_{q}", f"x{m}_{q}") for m in range(count)]
            scale = "" if packing.run == WHOLE else f"scale{c}_{r} * "
            lines += [f"sum{m}_{r} += {scale}p{m}_{r}_{c};" for m in range(count)]
    return lines


def _scales(k: str, c: int, rows: Sequence[_Row], scale_quads: bool) -> list[str]:
    """Return lines that declare `scale<c>_<r>`, the scale of element k in each row."""
    if not scale_quads:
        return [f"let scale{c}_{row.number} = {scale_at(k, row.at, row.weight)};" for row in rows]
    lines = []
    for row in rows[::4]:
        r, stride = row.number, f"P.scale_stride{row.weight}"
        column = f"min(P.scale_first + first + {row.column}u, {stride} - 4u)"
        lines.append(f"let quad{c}_{r} = scales{row.weight}_at4(({k} / P.group * {stride} + {column}) >> 2u);")
        lines += [f"let scale{c}_{r + j} = quad{c}_{r}.{'xyzw'[j]};" for j in range(4)]
    return lines
