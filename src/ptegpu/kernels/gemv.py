"""Products of a few rows with matrices stored along K or along N; their forms are those of `matmul`.

A kernel is for one row, or for at most so many: of `P.m` rows, the last is computed again where others are missing.
"""

from __future__ import annotations

from ..plan.target import Target
from ..sizes import cached
from .lane_sets import halved
from .matmul import Form, b_source, module
from .wgsl import KernelSpec, Storage, u32s

MIN_SUBGROUP = 4  # the smallest size WebGPU allows


@cached(256)
def gemv_rows(form: Form, rows: int, columns: int, workgroup: int, target: Target) -> KernelSpec:
    """At most `rows` rows of a [M, K] against `columns` rows of b [N, K]: a workgroup walks K together."""
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
    """Where row i of `rows` of a matrix begins, in rows."""
    return "(z % P.sets * 1u + 0u)" if rows == 1 else f"(z % P.sets * P.m + min({i}u, P.m - 1u))"


def reduced(values: list[str], workgroup: int, target: Target) -> tuple[list[str], int]:
    """Lines that sum value i over the workgroup into `total` of invocation i, and how many f32 `partial` has."""
    return _reduce_subgroups(values, workgroup) if target.subgroups else _reduce_tree(values, workgroup)


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


def _reduce_tree(values: list[str], workgroup: int) -> tuple[list[str], int]:
    """Return the same by halves in workgroup memory."""
    count = len(values)
    lines = halved(values, workgroup, workgroup)
    lines += ["workgroupBarrier();", f"let total = partial[min(lid, {count - 1}u) * {workgroup}u];"]
    return lines, workgroup * count


@cached(256)
def gemv_columns(form: Form, rows: int, lanes: int, target: Target) -> KernelSpec:
    """At most `rows` rows of a [M, K] against b [K, N]: a lane has four columns, a slice every so manieth k."""
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
