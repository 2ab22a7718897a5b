"""Products of one row with packed weights, by workgroups that stay: each makes digits of the row once.

The lanes of a workgroup form sets. A set computes four columns at a time, then continues with later ones, whose loads
are in flight meanwhile. Its first loads need nothing but the weights, so they come before `INDEPENDENT`.

A block of the row, which is one load of a column, becomes v · s with ints v, which are written as digits of 7 bits:
three for f32's accuracy, two for f16's. Lanes exchange the largest magnitude of a block by shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.plan import INDEPENDENT
from ..plan.target import Target
from ..sizes import cached
from .attention import Merge
from .gemv import Gemv
from .linear_q4_rows import along_k, digits_of, merged
from .matmul import GemmForm, module
from .packing import RAW, Packing
from .wgsl import I32, KernelSpec, Storage, build, u32s

COLUMNS = 4  # of a set at a time
SMALLEST_SUBGROUP = 4  # lanes among which four sums are distributed


@dataclass(frozen=True, slots=True)
class WalkForm:
    """The constants of a kernel. `blocks` is the number of loads of a column."""

    layout: Gemv
    packing: Packing
    blocks: int
    tail: bool  # K is not a multiple of a block's elements
    digits: int  # 2 or 3
    subgroup: int

    @property
    def elements(self) -> int:
        return self.layout.words * self.packing.elements

    @property
    def parts(self) -> int:
        """The lanes that make the digits of a block: each has eight elements."""
        return self.elements // 8

    @property
    def threads(self) -> int:
        return self.layout.lanes * self.layout.slots

    @property
    def across(self) -> int:
        """The subgroups of a set."""
        return self.layout.lanes // self.subgroup

    @property
    def rounds(self) -> range:
        """The loads of a column by a lane."""
        return range(-(-self.blocks // self.layout.lanes))

    def memory(self, weights: int, normed: bool) -> dict[str, tuple[str, int]]:
        """Return the workgroup arrays; `weights` is 2 for a pair."""
        items = self.parts * self.blocks
        arrays = {"xs": ("vec4<u32>", items), "units": ("vec2<f32>", self.blocks)}
        if self.digits == 3:
            arrays["lows"] = ("vec2<u32>", items)
        if normed:
            arrays["squares"] = ("f32", self.threads // self.subgroup)
        if self.across > 1:
            arrays["partial"] = ("f32", 2 * weights * self.threads // self.subgroup * COLUMNS)
        return arrays


@cached(256)
def walks(
    form: GemmForm,
    walk: WalkForm,
    target: Target,
    further: tuple[DType | None, ...] = (),
    norm: DType | None = None,
    merge: Merge | None = None,
) -> KernelSpec:
    """Multiply one row of a by a weight, and by further weights with these biases; see `linear_q4.gemv`.

    `scales` of a weight are quads of four columns: those of set s and group i are at `scale_first` + s · `scale_set` +
    i · `scale_step`.
    """
    suffixes = ["", *(f"_{w}" for w in range(1, len(further) + 1))]
    biases = dict(zip(suffixes, (None, *further), strict=True))
    pair = form.epilogue is not None and None in form.epilogue.operands
    packing, layout = walk.packing, walk.layout
    lanes = 4 if form.a_quads else 1
    reads = {"a": Storage(DType.F32, 4) if merge else Storage(form.a, lanes)}
    reads |= {"rows": I32} if merge and merge.paged else {}
    reads |= {"g": Storage(norm, lanes)} if norm else {}
    for s in suffixes:
        reads |= {f"b{s}": Storage(packing.dtype, raw=RAW[layout.words]), f"scales{s}": Storage(packing.scales, 4)}
        reads |= {f"bias{s}": Storage(dtype) for dtype in [biases[s]] if dtype}
    stored = [] if pair else suffixes[1:]
    weights = suffixes if pair else [""]
    return module(
        "linear_q4_walks",
        _body(walk, weights, suffixes, biases, norm is not None),
        form,
        target,
        reads=reads,
        writes={f"y{s}": Storage(form.y) for s in stored},
        workgroup=walk.threads,
        helpers=[
            *_loaders(walk, suffixes, pair),
            merged(merge, walk.tail) if merge else along_k("x", "a", form.a_quads, walk.tail, "P.a_first + row * P.k"),
            along_k("g", "g", form.a_quads, walk.tail) if norm else "",
            "var<private> beside: f32;" if pair else "",
            *(_store(s, biases[s] is not None) for s in stored),
            "" if pair else _put_sets(suffixes),
        ],
        params=[
            *u32s("row_bytes", "group", "rounds", "a_first", *(f"scale_first{s}" for s in suffixes)),
            *u32s(*(f"{name}{s}" for s in suffixes for name in ("scale_set", "scale_step"))),
            *u32s("quads", *(f"{name}{s}" for s in stored for name in ("n", "quads"))),
            *([("eps", "f32")] if norm else []),
            *(merge.params if merge else []),
        ],
        shared=walk.memory(len(weights), norm is not None),
        subgroups=True,
    )


def _store(weight: str, bias: bool) -> str:
    """Return `put` for a further weight, whose result [1, N] is contiguous."""
    added = f" + bias{weight}_at(column)" if bias else ""
    return (
        f"fn put{weight}(part: u32, row: u32, column: u32, v: f32) {{\n"
        f"  if (column < P.n{weight}) {{ y{weight}_put(column, P.alpha * v{added}); }}\n}}"
    )


def _by_weight(suffixes: Sequence[str], lines: Callable[[str, str], str]) -> str:
    """Return WGSL that runs `lines(suffix, set within the weight)` for the weight that has set `s`."""
    last = len(suffixes) - 1
    text, at = lines(suffixes[last], f"s{last}"), [f"s{k}" if k else "s" for k in range(last)]
    for k in range(last - 1, -1, -1):
        rest = f"let s{k + 1} = {at[k]} - P.quads{suffixes[k]}; {text}"
        text = f"if ({at[k]} < P.quads{suffixes[k]}) {{ {lines(suffixes[k], at[k])} }} else {{ {rest} }}"
    return text


def _put_sets(suffixes: Sequence[str]) -> str:
    """Return `put_set(s, c, v)`, which stores column c of a set."""
    if len(suffixes) == 1:
        return f"fn put_set(s: u32, c: u32, v: f32) {{ put(0u, 0u, s * {COLUMNS}u + c, v); }}"
    puts = _by_weight(suffixes, lambda suffix, at: f"put{suffix}(0u, 0u, {at} * {COLUMNS}u + c, v);")
    return f"fn put_set(s: u32, c: u32, v: f32) {{\n  {puts}\n}}"


def _loaders(walk: WalkForm, suffixes: Sequence[str], pair: bool) -> list[str]:
    """Return `words(s, c, t)`, load t of column c of set s, and `quad(s, t)`, its scales; one each for every weight."""
    each, width = walk.layout.words * 4, RAW[walk.layout.words]
    functions = []
    for s in suffixes:
        n = "" if pair else s  # both weights of a pair have P.n columns
        functions += [
            f"fn words{s}(s: u32, c: u32, t: u32) -> {width} {{\n"
            f"  return b{s}[min(s * {COLUMNS}u + c, P.n{n} - 1u) * (P.row_bytes / {each}u) + t];\n}}",
            f"fn quad{s}(s: u32, t: u32) -> vec4<f32> {{\n"
            f"  let i = min(t * {walk.elements}u, P.k - 1u) / P.group;\n"
            f"  return scales{s}_at4(P.scale_first{s} + s * P.scale_set{s} + i * P.scale_step{s});\n}}",
        ]
    return functions


def _body(
    walk: WalkForm,
    weights: Sequence[str],
    suffixes: Sequence[str],
    biases: dict[str, DType | None],
    normed: bool,
) -> list[str]:
    lanes, slots = walk.layout.lanes, walk.layout.slots
    width, rounds = RAW[walk.layout.words], walk.rounds
    cells = [(c, r) for c in range(COLUMNS) for r in rounds]
    total = "P.quads" if len(weights) > 1 else " + ".join(f"P.quads{s}" for s in suffixes)

    def load(w: int, at: str) -> list[str]:
        def of(weight: str, s: str) -> str:
            loads = [f"next{c}_{r} = words{weight}({s}, {c}u, t{r});" for c, r in cells]
            return " ".join(loads + [f"scales{r} = quad{weight}({s}, t{r});" for r in rounds])

        if len(weights) > 1 or len(suffixes) == 1:
            return [of(weights[w], at)]
        return ["{", f"let s = {at};", _by_weight(suffixes, of), "}"]

    body = [
        f"let lane = lid % {lanes}u; let all_sets = {total}; let ahead = P.groups * {slots}u;",
        f"var own = group * {slots}u + lid / {lanes}u;",
        *(f"let t{r} = min(lane + {r * lanes}u, {walk.blocks - 1}u);" for r in rounds),
        *(f"var next{c}_{r} = {width}();" for c, r in cells),
        *(f"var scales{r} = vec4<f32>();" for r in rounds),
        *load(0, "min(own, all_sets - 1u)"),
        *_staged(walk, normed),
        "for (var round = 0u; round < P.rounds; round++) {",
        "let current = own; own += ahead;",
    ]
    for w in range(len(weights)):  # the loads of one weight are in flight while the other one is multiplied
        body += [f"var sum{w}_{c} = 0.0;" for c in range(COLUMNS)]
        body += ["{", *(f"let loaded{c}_{r} = next{c}_{r};" for c, r in cells)]
        body += [f"let scale{r} = scales{r};" for r in rounds]
        if w + 1 < len(weights):
            body += ["if (current < all_sets) {", *load(w + 1, "current"), "}"]
        else:
            body += ["if (own < all_sets) {", *load(0, "own"), "}"]
        for r in rounds:
            body.append("{" if (r + 1) * lanes <= walk.blocks else f"if (lane + {r * lanes}u < {walk.blocks}u) {{")
            body += [*_multiplied(walk, w, r), "}"]
        body.append("}")
        body += _distributed(walk, w)
    return [*body, *_left(walk, weights, biases, normed), "}"]


def _staged(walk: WalkForm, normed: bool) -> list[str]:
    """Return lines that write the row to workgroup memory as digits, from `INDEPENDENT` on.

    A part of a block has eight elements, with two words of four elements per digit: `xs` holds the upper two digits,
    `lows` the third one. `units` holds the unit of a block's digits, and the offset of the weight's ints times Σ x.
    """
    packing, blocks, parts, digits = walk.packing, walk.blocks, walk.parts, walk.digits
    items, threads, most = blocks * parts, walk.threads, float((1 << 7 * digits) - 1)
    rounds = range(-(-items // threads))
    full = [(r + 1) * threads <= items for r in rounds]
    lines = [f"let item{r} = lid + {r * threads}u;" for r in rounds]
    at = [f"{f'item{r}' if full[r] else f'min(item{r}, {items - 1}u)'} * 8u" for r in rounds]
    if normed:
        lines += [f"let g{r}_{h} = g_quad(0u, {at[r]} + {4 * h}u);" for r in rounds for h in (0, 1)]
    lines += [INDEPENDENT, *(["var square = 0.0;"] if normed else [])]
    lines += [f"var v{r}_{h} = x_quad(0u, {at[r]} + {4 * h}u);" for r in rounds for h in (0, 1)]
    for r in rounds:
        live = "" if full[r] else f"if (item{r} < {items}u) "
        v = (f"v{r}_0", f"v{r}_1")
        if normed:
            lines.append(f"{live}{{ square += dot({v[0]}, {v[0]}) + dot({v[1]}, {v[1]}); }}")
            lines.append(f"{v[0]} *= g{r}_0; {v[1]} *= g{r}_1;")
        lines += [
            f"let a{r} = max(abs({v[0]}), abs({v[1]})); var most{r} = max(max(a{r}.x, a{r}.y), max(a{r}.z, a{r}.w));",
            f"var total{r} = dot({v[0]} + {v[1]}, vec4<f32>(1.0));",
        ]
        distance = 1
        while distance < parts:
            lines.append(f"most{r} = max(most{r}, subgroupShuffleXor(most{r}, {distance}u));")
            lines.append(f"total{r} += subgroupShuffleXor(total{r}, {distance}u);")
            distance *= 2
        lines += [f"{live}{{", f"  let inverse = select(0.0, {most} / most{r}, most{r} > 0.0);"]
        offset = "-8.0" if packing.bits == 4 else "0.0"
        unit = f"units[item{r} / {parts}u] = vec2<f32>(most{r} / {most}, {offset} * total{r});"
        lines.append(f"  if (item{r} % {parts}u == 0u) {{ {unit} }}")
        rounded, packed = digits_of(*v, packing, digits)
        lines += rounded
        lines.append(f"  let to = item{r} % {parts}u * {blocks}u + item{r} / {parts}u;")
        lines.append(f"  xs[to] = vec4<u32>({', '.join(packed[0] + packed[1])});")
        lines += [f"  lows[to] = vec2<u32>({', '.join(packed[2])});"] if digits == 3 else []
        lines.append("}")
    if normed:
        lines += ["let squared = subgroupAdd(square);", "if (sg_lane == 0u) { squares[lid / sg_size] = squared; }"]
    lines.append("workgroupBarrier();")
    if normed:
        shares = " + ".join(f"squares[{i}]" for i in range(threads // walk.subgroup))
        lines.append(f"let root = inverseSqrt(({shares}) / f32(P.k) + P.eps);")
    return lines


def _multiplied(walk: WalkForm, w: int, r: int) -> list[str]:
    """Return lines that add a lane's block r of columns of weight w times the digits of its elements to the sums.

    One column follows the other, so that few registers are in use.
    """
    packing, digits, blocks = walk.packing, walk.digits, walk.blocks
    names = "xyzw"[: walk.layout.words] if walk.layout.words > 1 else ""
    lines = [f"let unit = units[t{r}];"]
    for i in range(walk.parts):
        lines.append(f"let x{i} = xs[{i * blocks}u + t{r}];")
        lines += [f"let low{i} = lows[{i * blocks}u + t{r}];"] if digits == 3 else []
    for c in range(COLUMNS):
        loaded = f"loaded{c}_{r}"
        words = [f"{loaded}.{n}" for n in names] or [loaded]
        lines += ["{", *(f"  var d{d} = 0;" for d in range(digits))]
        for i in range(walk.parts):
            if packing.bits == 4:
                first, second = f"{words[i]} & 0x0f0f0f0fu", f"({words[i]} >> 4u) & 0x0f0f0f0fu"
            else:
                first, second = words[2 * i], words[2 * i + 1]
            lines.append(f"  let one{i} = {first}; let two{i} = {second};")
            for d, pair in enumerate((("x", "y"), ("z", "w"), ("x", "y"))[:digits]):
                x, y = (f"{'low' if d == 2 else 'x'}{i}.{n}" for n in pair)
                lines.append(f"  d{d} += dot4I8Packed(one{i}, {x}) + dot4I8Packed(two{i}, {y});")
        value = "d0 * 128 + d1"
        if packing.bits == 4:
            value = f"f32(({value}) * 128 + d2)" if digits == 3 else f"f32({value})"
        else:  # the sum of all digits may overflow
            value = "fma(f32(d0), 16384.0, f32(d1 * 128 + d2))" if digits == 3 else "fma(f32(d0), 128.0, f32(d1))"
        lines += [f"  sum{w}_{c} += scale{r}.{'xyzw'[c]} * fma({value}, unit.x, unit.y);", "}"]
    return lines


def _distributed(walk: WalkForm, w: int) -> list[str]:
    """Return lines that add up four sums over a subgroup: `result<w>` of column `sg_lane / (size / 4)`."""
    half, quarter = walk.subgroup // 2, walk.subgroup // 4
    a, b = f"vec2<f32>(sum{w}_0, sum{w}_1)", f"vec2<f32>(sum{w}_2, sum{w}_3)"
    lines = [
        f"let upper{w} = (sg_lane & {half}u) != 0u; let odd{w} = (sg_lane & {quarter}u) != 0u;",
        f"let two_{w} = select({a}, {b}, upper{w}) + subgroupShuffleXor(select({b}, {a}, upper{w}), {half}u);",
        f"var result{w} = select(two_{w}.x, two_{w}.y, odd{w})"
        f" + subgroupShuffleXor(select(two_{w}.y, two_{w}.x, odd{w}), {quarter}u);",
    ]
    distance = quarter // 2
    while distance:
        lines.append(f"result{w} += subgroupShuffleXor(result{w}, {distance}u);")
        distance //= 2
    return lines


def _left(walk: WalkForm, weights: Sequence[str], biases: dict[str, DType | None], normed: bool) -> list[str]:
    """Return lines that store the results of a set."""
    root, quarter = " * root" if normed else "", walk.subgroup // 4
    column, leads = f"sg_lane / {quarter}u", f"sg_lane % {quarter}u == 0u"
    values = [f"result{w}{root}" for w in range(len(weights))]
    lines = []
    if walk.across > 1:
        size = walk.threads // walk.subgroup * COLUMNS
        places = [f"((round & 1u) * {len(weights)}u + {w}u) * {size}u" for w in range(len(weights))]
        lines.append(f"if ({leads}) {{")
        for w, place in enumerate(places):
            lines.append(f"  partial[{place} + lid / {walk.subgroup}u * {COLUMNS}u + {column}] = result{w};")
        lines += ["}", "workgroupBarrier();"]
        own = f"lid / {walk.layout.lanes}u * {walk.across}u"
        for w, place in enumerate(places):
            shares = (f"partial[{place} + ({own} + {e}u) * {COLUMNS}u + lane % {COLUMNS}u]" for e in range(walk.across))
            values[w] = f"({' + '.join(shares)}){root}"
        column, leads = "lane", f"lane < {COLUMNS}u"
    if len(weights) == 1:
        return [*lines, f"if ({leads} && current < all_sets) {{ put_set(current, {column}, {values[0]}); }}"]
    at = f"current * {COLUMNS}u + {column}"
    bias = f" + bias{weights[1]}_at({at})" if biases[weights[1]] else ""
    return [
        *lines,
        f"if ({leads} && current < all_sets && {at} < P.n) {{",
        f"  beside = P.alpha * {values[1]}{bias}; put(0u, 0u, {at}, {values[0]});",
        "}",
    ]


@cached(16)
def by_sets(dtype: DType, target: Target) -> KernelSpec:
    """Store scales (groups, stride) as quads (sets, groups, 4), so that the lanes of a set read neighbours."""
    body = [
        "let i = group * WG + lid;",
        "if (i >= P.sets * P.scale_groups) { return; }",
        "let at = P.scale_first + i % P.scale_groups * P.scale_stride + i / P.scale_groups * 4u;",
        "let last = P.scale_first + i % P.scale_groups * P.scale_stride + P.n - 1u;",
        "to_put4(i, vec4<f32>(" + ", ".join(f"scales_at(min(at + {j}u, last))" for j in range(COLUMNS)) + "));",
    ]
    return build(
        "linear_q4_scales",
        body,
        target=target,
        reads={"scales": Storage(dtype)},
        writes={"to": Storage(dtype, 4)},
        params=u32s("sets", "scale_groups", "scale_first", "scale_stride", "n"),
    )
