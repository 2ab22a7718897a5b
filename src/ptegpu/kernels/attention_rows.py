"""Attention of a few rows, and the merging of parts: a workgroup as slices that each keep softmaxes of their own.

Scores, tops and sums of up to four rows are one vector, so that an exponential or an access serves four rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .attention import LOWEST, Form, leave, module, strides, workgroup_range
from .wgsl import KernelSpec, Storage, build

MOST_ROWS = 8  # of one workgroup
MOST_QUERY_QUADS = 256  # that it keeps of them; longer ones are loaded again for every key
MOST_SLICES = 16
KEY_LANES = 4  # invocations that share a key
SPARE = 512  # quads through which slices are joined
UNROLLED = 16  # loads in a row that are written out; more are a loop
VECTORS = {1: "f32", 2: "vec2<f32>", 4: "vec4<f32>"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in vectors: their number is a power of two."""

    count: int

    @property
    def width(self) -> int:
        return min(self.count, 4)

    @property
    def vectors(self) -> range:
        return range(self.count // self.width)

    @property
    def type(self) -> str:
        return VECTORS[self.width]

    def of(self, vector: str, r: int) -> str:
        """Row r's element of the vectors that are called `vector` and a number."""
        return f"{vector}{r // self.width}{'' if self.width == 1 else '.' + 'xyzw'[r % self.width]}"

    def vector(self, v: int, element: Callable[[int], str]) -> str:
        """Vector v of what `element` says for each row."""
        return f"{self.type}({', '.join(element(v * self.width + c) for c in range(self.width))})"


def rows_of_block(most: int, rows: int) -> int:
    """A power of two, at most `most`, that covers the rows in as few blocks."""
    blocks = -(-rows // most)
    return 1 << (-(-rows // blocks) - 1).bit_length()


def most_rows(dim: int) -> int:
    """How many rows of `dim` elements one workgroup takes: a power of two."""
    return 1 << (max(1, min(MOST_ROWS, MOST_QUERY_QUADS // -(-dim // 4))).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Slices:
    """A workgroup cut into slices that each hold whole values: a lane has quads lane, lane + lanes, …"""

    rows: Rows
    quads: int  # of a value
    lanes: int
    count: int  # slices, a power of two; invocations beyond them idle

    @staticmethod
    def of(rows: Rows, quads: int, workgroup: int, most: int = MOST_SLICES) -> Slices:
        lanes = min(quads, workgroup)
        return Slices(rows, quads, lanes, 1 << (min(most, workgroup // lanes).bit_length() - 1))

    @property
    def held(self) -> int:
        """Quads of a lane."""
        return -(-self.quads // self.lanes)

    def quad(self, j: int) -> str:
        """The j-th quad that a lane has, the last one instead of those beyond the end."""
        d = f"lane + {j * self.lanes}u"
        return f"min({d}, {self.quads - 1}u)" if self.quads % self.lanes else d

    def start(self) -> list[str]:
        """Declares `lane`, `slice`, and the rows' running softmaxes."""
        kind = self.rows.type
        lines = [f"let lane = lid % {self.lanes}u; let slice = lid / {self.lanes}u;"]
        lines += [f"var top{v} = {kind}({LOWEST}); var sum{v} = {kind}();" for v in self.rows.vectors]
        return lines + [f"var acc{r}_{j} = vec4<f32>();" for r, j in self._cells()]

    def shared(self) -> dict[str, tuple[str, int]]:
        size = len(self.rows.vectors) * self.count
        parts = self.rows.count * self.held * self.lanes * max(1, self.count // 2)
        return {
            "tops": (self.rows.type, size),
            "sums": (self.rows.type, size),
            "spare": ("vec4<f32>", min(SPARE, parts)),
        }

    def finish(self, row: str) -> list[str]:
        """Joins the slices' softmaxes and leaves the result of each row, whose number is `row` + r."""
        lines = self._join() if self.count > 1 else []
        lines.append("if (slice == 0u) {")
        for r in range(self.rows.count):
            lines.append(f"  if ({row} + {r}u <= last) {{")
            for j in range(self.held):
                d = f"lane + {j * self.lanes}u"
                top, sum_ = self.rows.of("top", r), self.rows.of("sum", r)
                put = f"leave(z, head, {row} + {r}u, split, {d}, acc{r}_{j}, {top}, {sum_});"
                lines.append(f"    if ({d} < {self.quads}u) {{ {put} }}")
            lines.append("  }")
        return [*lines, "}"]

    def _cells(self) -> list[tuple[int, int]]:
        return [(r, j) for r in range(self.rows.count) for j in range(self.held)]

    def _join(self) -> list[str]:
        """First the highest tops, then sums, then, half of the slices at a time, the weighted values."""
        at = [f"{v * self.count}u + slice" for v in self.rows.vectors]
        first = [f"if (lane == 0u && slice < {self.count}u) {{", "}", "workgroupBarrier();"]
        lines = [first[0], *(f"  tops[{at[v]}] = top{v};" for v in self.rows.vectors), *first[1:]]
        for v in self.rows.vectors:
            lines.append(f"let own{v} = top{v};")
            lines += [f"top{v} = max(top{v}, tops[{v * self.count + i}]);" for i in range(self.count)]
            lines.append(f"let fade{v} = exp(own{v} - top{v}); sum{v} *= fade{v};")
        lines += [f"acc{r}_{j} *= {self.rows.of('fade', r)};" for r, j in self._cells()]
        lines += [first[0], *(f"  sums[{at[v]}] = sum{v};" for v in self.rows.vectors), *first[1:]]
        for v in self.rows.vectors:
            lines.append(f"sum{v} = {' + '.join(f'sums[{v * self.count + i}]' for i in range(self.count))};")
        half = self.count // 2
        while half:
            width = half * self.lanes
            step = self.shared()["spare"][1] // width
            for k in range(0, len(self._cells()), step):
                part = list(enumerate(self._cells()[k : k + step]))
                lines += [
                    f"if (slice >= {half}u && slice < {2 * half}u) {{",
                    *(f"  spare[{n * width}u + lid - {width}u] = acc{r}_{j};" for n, (r, j) in part),
                    "}",
                    "workgroupBarrier();",
                    f"if (slice < {half}u) {{",
                    *(f"  acc{r}_{j} += spare[{n * width}u + lid];" for n, (r, j) in part),
                    "}",
                    "workgroupBarrier();",
                ]
            half //= 2
        return lines


def _each(count: int, start: str, step: int, limit: int, body: Callable[[str], list[str]]) -> list[str]:
    """`body(index)` for index = start, start + step, … (`count` of them, below `limit`), written out if few."""
    if count > UNROLLED:
        return [f"for (var at = {start}; at < {limit}u; at += {step}u) {{", *body("at"), "}"]
    lines = []
    for j in range(count):
        index = f"{start} + {j * step}u"
        beyond = j == count - 1 and limit % step
        lines += [f"if ({index} < {limit}u) {{" if beyond else "{", *body(f"({index})"), "}"]
    return lines


@cached(256)
def rows(form: Form, count: int, target: Target) -> KernelSpec:
    """`count` rows per workgroup, a power of two.

    Of each step's keys, four invocations each multiply parts of a key with all rows; then a slice of the workgroup
    adds every so manieth value to the rows' softmaxes. Its loads of values are under way while scores are summed.
    """
    workgroup, n, all_rows = target.workgroup(256), form.key_quads, Rows(count)
    keys = workgroup // KEY_LANES
    slices = Slices.of(all_rows, form.value_quads, workgroup, min(keys, MOST_SLICES))
    early = keys // slices.count * slices.held <= UNROLLED
    kept = n <= MOST_QUERY_QUADS
    vectors, kind = all_rows.vectors, all_rows.type
    shared = slices.shared() | {"scores": (kind, len(vectors) * keys)}
    dots = "spare" if all_rows.width == 4 else "dots"  # one array for both uses where the types agree
    shared[dots] = (kind, max(shared.get(dots, ("", 0))[1], len(vectors) * workgroup))
    body = workgroup_range(count, keys, form.split, "group % P.blocks")
    if form.new:
        own = f"from_ * {keys}u, min(end, to * {keys}u)"  # no other workgroup reads these
        body += [f"keep_new(z, head, {own}, lid);", "storageBarrier();"]
    if kept:
        shared["queries"] = ("vec4<f32>", count * n)
        body += [
            f"for (var i = lid; i < {count * n}u; i += WG) {{",
            f"  queries[i] = q_quad(q_place(z, head, min(first + i / {n}u, last)), i % {n}u);",
            "}",
            "workgroupBarrier();",
        ]
    else:
        body += [f"let q_row{r} = q_place(z, head, min(first + {r}u, last));" for r in range(count)]

    def multiply(d: str) -> list[str]:
        q = [f"queries[{r * n}u + {d}]" if kept else f"q_quad(q_row{r}, {d})" for r in range(count)]
        load = f"let k4 = k_quad(z, head, min(base + key, end - 1u), {d});"
        return [load, *(f"dot{r} = fma(k4, {q[r]}, dot{r});" for r in range(count))]

    judged = all_rows.vector(0, lambda r: f"score(z, head, row + {r}u, t, {all_rows.of('dot', r)})")
    body += [
        f"let key = lid / {KEY_LANES}u; let part = lid % {KEY_LANES}u;",
        *slices.start(),
        "for (var step = from_; step < to; step++) {",
        f"let base = step * {keys}u;",
        *(f"var dot{r} = vec4<f32>();" for r in range(count)),
        *_each(-(-n // KEY_LANES), "part", KEY_LANES, n, multiply),
        *(f"{dots}[{v * workgroup}u + lid] = {all_rows.vector(v, lambda r: f'across(dot{r})')};" for v in vectors),
        *(_values(slices, keys) if early else []),
        "workgroupBarrier();",
        f"for (var i = lid; i < {len(vectors) * keys}u; i += WG) {{",
        f"  let t = base + i % {keys}u; let row = first + i / {keys}u * {all_rows.width}u;",
        f"  let at = i / {keys}u * WG + i % {keys}u * {KEY_LANES}u;",
        f"  let dot0 = {' + '.join(f'{dots}[at + {j}u]' for j in range(KEY_LANES))};",
        f"  scores[i] = {judged};",
        "}",
        "workgroupBarrier();",
        f"if (slice < {slices.count}u) {{",
        *(line for v in vectors for line in (_weigh if early else _weigh_one_by_one)(v, slices, keys)),
        "}",
        "}",
        *slices.finish("first"),
    ]
    return module("attention_rows", body, form, target, workgroup, shared)


def _value(slices: Slices, i: str, j: int) -> str:
    """The j-th quad that a lane has of the i-th value of its slice."""
    return f"v_quad(z, head, min(base + slice + {i} * {slices.count}u, end - 1u), {slices.quad(j)})"


def _values(slices: Slices, keys: int) -> list[str]:
    each = range(keys // slices.count)
    return [f"let v{i}_{j} = {_value(slices, f'{i}u', j)};" for i in each for j in range(slices.held)]


def _weigh(v: int, slices: Slices, keys: int) -> list[str]:
    """Adds the values that a slice has loaded to its softmaxes of one vector of rows."""
    each, rows_ = range(keys // slices.count), slices.rows
    cells = [(r, j) for r in range(v * rows_.width, (v + 1) * rows_.width) for j in range(slices.held)]
    lines = ["{", f"var high{v} = top{v};"]
    for i in each:
        lines.append(f"let s{i} = scores[{v * keys + i * slices.count}u + slice]; high{v} = max(high{v}, s{i});")
    lines.append(f"let fade{v} = exp(top{v} - high{v}); top{v} = high{v}; sum{v} *= fade{v};")
    lines += [f"acc{r}_{j} *= {rows_.of('fade', r)};" for r, j in cells]
    for i in each:
        lines.append(f"{{ let p{v} = exp(s{i} - high{v}); sum{v} += p{v};")
        lines += [f"acc{r}_{j} = fma(vec4<f32>({rows_.of('p', r)}), v{i}_{j}, acc{r}_{j});" for r, j in cells]
        lines.append("}")
    return [*lines, "}"]


def _weigh_one_by_one(v: int, slices: Slices, keys: int) -> list[str]:
    """The same with values that are loaded when they are needed."""
    rows_ = slices.rows
    lines = [
        f"for (var i = 0u; i < {keys // slices.count}u; i++) {{",
        f"let s{v} = scores[{v * keys}u + i * {slices.count}u + slice]; let high{v} = max(top{v}, s{v});",
        f"let fade{v} = exp(top{v} - high{v}); let p{v} = exp(s{v} - high{v});",
        f"top{v} = high{v}; sum{v} = sum{v} * fade{v} + p{v};",
    ]
    for j in range(slices.held):
        lines.append(f"let v{j} = {_value(slices, 'i', j)};")
        for r in range(v * rows_.width, (v + 1) * rows_.width):
            lines.append(f"acc{r}_{j} = acc{r}_{j} * {rows_.of('fade', r)} + {rows_.of('p', r)} * v{j};")
    return [*lines, "}"]


@cached(64)
def merge(form: Form, target: Target) -> KernelSpec:
    """A workgroup per row: its slices share the splits."""
    workgroup, m = target.workgroup(256), form.value_quads
    slices = Slices.of(Rows(1), m, workgroup)
    body = [
        "let zh = group / P.rows; let z = zh / P.heads; let head = zh % P.heads;",
        "let row = group % P.rows; let last = row; let split = 0u;",
        *slices.start(),
        f"if (slice < {slices.count}u) {{",
        f"for (var i = slice; i < P.splits; i += {slices.count}u) {{",
        f"  let place = ((i * (P.groups / P.rows) + zh) * P.rows + row) * {m + 1}u;",
        f"  let state = parts_at4(place + {m}u);",
        "  if (state.y != 0.0) {",
        "    let high = max(top0, state.x);",
        "    let fade = exp(top0 - high); let grow = exp(state.x - high);",
        "    top0 = high; sum0 = sum0 * fade + state.y * grow;",
        *(f"    acc0_{j} = acc0_{j} * fade + grow * parts_at4(place + {slices.quad(j)});" for j in range(slices.held)),
        "  }",
        "}",
        "}",
        *slices.finish("row"),
    ]
    params = [("rows", "u32"), ("sharing", "u32"), ("heads", "u32"), ("splits", "u32"), ("empty", "f32")]
    return build(
        "attention_merge",
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads={"parts": Storage(DType.F32, 4)},
        writes={"y": Storage(form.y, 4 if form.quads else 1)},
        params=[*params, *strides("y")],
        workgroup=workgroup,
        shared=slices.shared(),
        helpers=leave(form),
    )
