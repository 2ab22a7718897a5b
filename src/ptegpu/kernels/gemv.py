"""Products of a few rows with matrices stored along K or along N, for the forms of `matmul`.

`Gemv` and `reduce_lanes` also serve products with packed weights (`linear_q4.py`, `linear_q8.py`).

A kernel computes a fixed number of rows. If `P.m` is smaller, it computes the last row again in place of missing ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.target import Target
from ..sizes import cached
from .matmul import GemmForm, b_source, module
from .wgsl import KernelSpec, Storage, u32s

MIN_SUBGROUP = 4  # the smallest size WebGPU allows


@dataclass(frozen=True, slots=True)
class Gemv:
    """The work of a workgroup on a packed weight: `slots` sets of `lanes`, each set for `rows` rows of the weight."""

    rows: int
    lanes: int  # over K
    words: int = 4  # per load: 1, 2 or 4
    slots: int = 1
    staged: bool = False  # reads `a` from workgroup memory
    digits: bool = False  # stages `a` as ints

    def load(self, column: str, t: str, weight: str = "") -> str:
        """Return load t of a row of the weight with this suffix."""
        if self.words == 1:
            return f"b_word{weight}({column}, {t})"
        return f"b{weight}[{column} * (P.row_bytes / {4 * self.words}u) + {t}]"


def by_subgroups(layout: Gemv, target: Target) -> bool:
    return target.subgroups and target.subgroup_size > 0 and layout.lanes % target.subgroup_size == 0


def halved(values: list[str], workgroup: int, count: int, lane: str = "lid", last: int = 1) -> list[str]:
    """Return lines that add up each value over `count` lanes in `partial`, until `last` lanes have the sums."""
    places = [i * workgroup for i in range(len(values))]
    lines = [f"partial[{at}u + lid] = {v};" for at, v in zip(places, values, strict=True)]
    stride = count // 2
    while stride >= last:
        lines += [
            "workgroupBarrier();",
            f"if ({lane} < {stride}u) {{",
            *(f"  partial[{at}u + lid] += partial[{at + stride}u + lid];" for at in places),
            "}",
        ]
        stride //= 2
    return lines


def reduce_lanes(values: list[str], layout: Gemv, target: Target) -> tuple[list[str], list[str], int]:
    """Return lines that add up each value over a set of lanes, the totals, and the words of workgroup memory."""
    count, workgroup = len(values), layout.lanes * layout.slots
    if layout.lanes == 1:
        return [], values, 0
    if by_subgroups(layout, target):
        size = target.subgroup_size
        each = layout.lanes // size
        lines = [f"let added{i} = subgroupAdd({v});" for i, v in enumerate(values)]
        if each == 1:
            return lines, [f"added{i}" for i in range(count)], 0
        lines += [f"let subgroup = lid / {size}u;", "if (sg_lane == 0u) {"]
        lines += [f"  partial[subgroup * {count}u + {i}u] = added{i};" for i in range(count)]
        lines += ["}", "workgroupBarrier();", f"let own = lid / {layout.lanes}u * {each * count}u;"]
        totals = [" + ".join(f"partial[own + {j * count + i}u]" for j in range(each)) for i in range(count)]
        return lines, [f"({t})" for t in totals], workgroup // size * count
    lines = [*halved(values, workgroup, layout.lanes, "lane"), "workgroupBarrier();"]
    return lines, [f"partial[{i * workgroup}u + lid - lane]" for i in range(count)], workgroup * count


@cached(256)
def gemv_rows(form: GemmForm, rows: int, columns: int, workgroup: int, target: Target) -> KernelSpec:
    """Multiply up to `rows` rows of a [M, K] by `columns` rows of b [N, K] per workgroup, which walks along K."""
    quads = form.a_quads and form.b_quads
    sums = [(i, j) for i in range(rows) for j in range(columns)]
    kind, zero = ("vec4<f32>", "vec4<f32>()") if quads else ("f32", "0.0")
    at, width = ("at4", "(P.k >> 2u)") if quads else ("at", "P.k")
    body = [
        "let z = group / P.blocks;",
        f"let first = group % P.blocks * {columns}u;",
        *(f"let a{i} = {_row(i, rows)} * {width};" for i in range(rows)),
        *(f"let b{j} = (z * P.n + min(first + {j}u, P.n - 1u)) * {width};" for j in range(columns)),
        *(f"var sum{i}_{j}: {kind} = {zero};" for i, j in sums),
        f"for (var k = lid; k < {width}; k += WG) {{",
        *(f"  let u{i} = a_{at}(a{i} + k);" for i in range(rows)),
        *(f"  let w{j} = b_{at}(b{j} + k);" for j in range(columns)),
        *(f"  sum{i}_{j} = fma(u{i}, w{j}, sum{i}_{j});" for i, j in sums),
        "}",
    ]
    totals = [f"dot(sum{i}_{j}, vec4<f32>(1.0))" if quads else f"sum{i}_{j}" for i, j in sums]
    reduce, size = reduced(totals, workgroup, target)
    body += reduce
    live = f"{columns}u" if rows == 1 else f"P.m * {columns}u"
    body.append(f"if (lid < {live}) {{ put(z, lid / {columns}u, first + lid % {columns}u, total); }}")
    return module(
        "matmul_gemv_rows",
        body,
        form,
        target,
        reads={"a": Storage(form.a, 4 if quads else 1), "b": Storage(form.b, 4 if quads else 1)},
        workgroup=workgroup,
        params=u32s("blocks"),
        shared={"partial": ("f32", size)},
        subgroups=target.subgroups,
    )


def _row(i: int, rows: int) -> str:
    """Return the index of row i of `rows` among the rows of all matrices."""
    return "(z % P.sets * 1u + 0u)" if rows == 1 else f"(z % P.sets * P.m + min({i}u, P.m - 1u))"


def reduced(values: list[str], workgroup: int, target: Target) -> tuple[list[str], int]:
    """Return lines that sum value i over the workgroup into `total` of invocation i, and the size of `partial`."""
    if target.subgroups:
        return _reduce_subgroups(values, workgroup)
    count = len(values)
    lines = halved(values, workgroup, workgroup)
    lines += ["workgroupBarrier();", f"let total = partial[min(lid, {count - 1}u) * {workgroup}u];"]
    return lines, workgroup * count


def _reduce_subgroups(values: list[str], workgroup: int) -> tuple[list[str], int]:
    """Return sums over the workgroup, of value i into `total` of invocation i: by subgroup, then over the subgroups."""
    count = len(values)
    lines = [f"let added{i} = subgroupAdd({v});" for i, v in enumerate(values)]
    lines += [
        "if (sg_lane == 0u) {",
        *(f"  partial[lid / sg_size * {count}u + {i}u] = added{i};" for i in range(count)),
        "}",
        "workgroupBarrier();",
        "var total = 0.0;",
        f"if (lid < {count}u) {{",
        f"  for (var s = 0u; s * sg_size < WG; s++) {{ total += partial[s * {count}u + lid]; }}",
        "}",
    ]
    return lines, -(-workgroup // MIN_SUBGROUP) * count


@cached(256)
def gemv_columns(form: GemmForm, rows: int, lanes: int, target: Target) -> KernelSpec:
    """Multiply up to `rows` rows of a [M, K] by b [K, N], with four columns per lane and slices along K."""
    workgroup = target.workgroup(256)
    slices, unroll = workgroup // lanes, 4
    b, place = b_source(form)
    steps = [f"k + {j * slices}u" for j in range(unroll)]
    puts = [f"put4(zs, {i}u, column, partial[{i * workgroup}u + lid]);" for i in range(rows)]

    def step(j: int, k: str) -> list[str]:
        return [
            f"  let b{j} = b_quad(z * P.k + {k}, place);",
            *(f"  sum{i} = fma(vec4<f32>(a_at(a{i} + {k})), b{j}, sum{i});" for i in range(rows)),
        ]

    body = [
        "let zs = group / P.blocks; let z = zs % P.batch; let part = zs / P.batch;",
        f"let lane = lid % {lanes}u;",
        f"let column = (group % P.blocks * {lanes}u + lane) * 4u;",
        f"let place = {place.format(column='column')};",
        *(f"let a{i} = {_row(i, rows)} * P.k;" for i in range(rows)),
        *(f"var sum{i} = vec4<f32>();" for i in range(rows)),
        "let end = min(P.k, (part + 1u) * P.k_part);",
        f"var k = part * P.k_part + lid / {lanes}u;",
        f"for (; {steps[-1]} < end; k += {slices * unroll}u) {{",
        *(line for j, k in enumerate(steps) for line in step(j, k)),
        "}",
        f"for (; k < end; k += {slices}u) {{",
        *step(0, "k"),
        "}",
        *halved([f"sum{i}" for i in range(rows)], workgroup, workgroup, last=lanes),
    ]
    body += [
        f"if (lid < {lanes}u) {{",
        *(f"  if ({i}u < P.m) {{ {put} }}" if i else f"  {put}" for i, put in enumerate(puts)),
        "}",
    ]
    return module(
        "matmul_gemv_columns",
        body,
        form,
        target,
        reads={"a": Storage(form.a), **dict(b.reads)},
        workgroup=workgroup,
        helpers=[b.quad],
        params=[*u32s("blocks", "k_part"), *b.params],
        shared={"partial": ("vec4<f32>", workgroup * rows)},
    )
