"""Attention of many rows: 64 rows by 32 keys at a time, both products from workgroup memory."""

from __future__ import annotations

from ..plan.target import Target
from ..sizes import cached
from .attention import AttentionForm, module, workgroup_range
from .wgsl import LOWEST, KernelSpec

TILE_ROWS, TILE_KEYS, TILE_THREADS, TILE_DIM = 64, 32, 128, 256  # TILE_DIM: maximum elements of a value
ACROSS = TILE_KEYS // 4  # invocations side by side
DEPTH = 16  # elements of queries and keys in workgroup memory at a time
HALF = 512  # quads of a tile of exponentials, and of the values
HIGHEST = 2 * HALF - ACROSS * TILE_ROWS // 4  # offset of the highest scores
UNROLLED = 8  # values whose products are unrolled


@cached(256)
def tiles(form: AttentionForm, target: Target) -> KernelSpec:
    """Compute 64 rows per workgroup, 32 keys per step; invocation (x, y) has rows 4y … 4y+3.

    It has keys 4x … 4x+3 of the scores, and quads x, x + 8, … of the result. One array holds, in turn: sixteen elements
    of queries and keys as [element][quad of rows or keys], where quad i of element d is at i ^ (d / 4 · 2), which
    spreads stores over the banks; highest scores; exponentials as [key][quad of rows]; values.
    """
    n, m = form.key_quads, form.value_quads
    per_lane = -(-m // ACROSS)  # quads of an invocation
    chunk = 1 << (min(TILE_KEYS, HALF // m).bit_length() - 1)  # values in workgroup memory at a time
    q_quads, k_quads, d_quads = TILE_ROWS // 4, TILE_KEYS // 4, DEPTH // 4
    q_blocks, k_blocks = q_quads * d_quads, k_quads * d_quads  # of 4 × 4 elements, one for an invocation
    cells = [(i, j) for i in range(4) for j in range(per_lane)]
    columns = [f"x + {j * ACROSS}u" for j in range(per_lane)]  # quads of a value, clamped to the last one
    columns[-1] = columns[-1] if per_lane * ACROSS <= m else f"min({columns[-1]}, {m - 1}u)"
    inside = "d" if n % d_quads == 0 else f"min(d, {n - 1}u)"

    def staged(offset: int, quads: int) -> list[str]:
        lines = []
        for c, e in enumerate("xyzw"):
            v = f"vec4<f32>(s0.{e}, s1.{e}, s2.{e}, s3.{e})"
            v = v if n % d_quads == 0 else f"select(vec4<f32>(), {v}, d < {n}u)"
            lines.append(f"tile[{offset + c * quads}u + d_quad * {4 * quads}u + (quad ^ (d_quad * 2u))] = {v};")
        return lines

    body = [
        *workgroup_range(TILE_ROWS, TILE_KEYS, form.split, "P.blocks - 1u - group % P.blocks"),
        f"let x = lid % {ACROSS}u; let y_ = lid / {ACROSS}u;",
        f"let d_quad = lid % {d_quads}u; let quad = lid % {q_blocks}u / {d_quads}u;",
        *(f"let q_row{i} = q_place(z, head, min(first + quad * 4u + {i}u, last));" for i in range(4)),
        *(f"let row{i} = first + y_ * 4u + {i}u; let seen{i} = seen(min(row{i}, last));" for i in range(4)),
        f"var top = vec4<f32>({LOWEST}); var sum = vec4<f32>();",
        *(f"var acc{i}_{j} = vec4<f32>();" for i, j in cells),
        "for (var step = from_; step < to; step++) {",
        f"  let base = step * {TILE_KEYS}u; let t = base + x * 4u;",
        "  let t4 = vec4<u32>(t, t + 1u, t + 2u, t + 3u);",
        *(f"  var score{i} = vec4<f32>();" for i in range(4)),
        f"  for (var d0 = 0u; d0 < {n}u; d0 += {d_quads}u) {{",
        "    let d = d0 + d_quad;",
        f"    if (lid < {q_blocks}u) {{",
        *(f"      let s{i} = q_quad(q_row{i}, {inside});" for i in range(4)),
        *(f"      {line}" for line in staged(0, q_quads)),
        f"    }} else if (lid < {q_blocks + k_blocks}u) {{",
        *(f"      let s{i} = k_quad(z, head, min(base + quad * 4u + {i}u, end - 1u), {inside});" for i in range(4)),
        *(f"      {line}" for line in staged(HALF, k_quads)),
        "    }",
        "    workgroupBarrier();",
    ]
    for d in range(DEPTH):
        flip = d // 4 * 2
        body += [
            "    {",
            f"      let a = tile[{d * q_quads}u + (y_ ^ {flip}u)];",
            f"      let b = tile[{HALF + d * k_quads}u + (x ^ {flip}u)];",
            *(f"      score{i} = fma(vec4<f32>(a.{e}), b, score{i});" for i, e in enumerate("xyzw")),
            "    }",
        ]
    body += ["    workgroupBarrier();", "  }"]
    for i in range(4):
        body.append(f"  score{i} *= P.scale;")
        if form.mask:
            each = (f"masked(z, head, min(row{i}, last), t + {c}u, score{i}.{e})" for c, e in enumerate("xyzw"))
            body.append(f"  score{i} = vec4<f32>({', '.join(each)});")
        body.append(f"  score{i} = select(vec4<f32>(P.hidden), score{i}, t4 < vec4<u32>(seen{i}));")
    body += [
        f"  tile[{HIGHEST}u + x * {q_quads}u + y_] = vec4<f32>({', '.join(f'largest(score{i})' for i in range(4))});",
        "  workgroupBarrier();",
        "  var high = top;",
        *(f"  high = max(high, tile[{HIGHEST + k * q_quads}u + y_]);" for k in range(ACROSS)),
        "  let fade = exp(top - high); top = high;",
        *(f"  let p{i} = exp(score{i} - vec4<f32>(high.{e}));" for i, e in enumerate("xyzw")),
        f"  sum = sum * fade + vec4<f32>({', '.join(f'across(p{i})' for i in range(4))});",
        *(f"  acc{i}_{j} *= fade.{'xyzw'[i]};" for i, j in cells),
        *(
            f"  tile[(x * 4u + {c}u) * {q_quads}u + y_] = vec4<f32>(p0.{e}, p1.{e}, p2.{e}, p3.{e});"
            for c, e in enumerate("xyzw")
        ),
        f"  for (var done = 0u; done < {TILE_KEYS}u; done += {chunk}u) {{",
        "    workgroupBarrier();",
        f"    for (var i = lid; i < {chunk * m}u; i += WG) {{",
        f"      tile[{HALF}u + i] = v_quad(z, head, min(base + done + i / {m}u, end - 1u), i % {m}u);",
        "    }",
        "    workgroupBarrier();",
        f"    for (var i = 0u; i < {chunk}u; i += {UNROLLED}u) {{",
    ]
    for u in range(UNROLLED):
        body += [
            "      {",
            f"        let p = tile[(done + i + {u}u) * {q_quads}u + y_]; let v_row = {HALF}u + (i + {u}u) * {m}u;",
            *(f"        let v{j} = tile[v_row + {column}];" for j, column in enumerate(columns)),
            *(f"        acc{i}_{j} = fma(vec4<f32>(p.{'xyzw'[i]}), v{j}, acc{i}_{j});" for i, j in cells),
            "      }",
        ]
    body += ["    }", "  }", "  workgroupBarrier();", "}"]
    body += [f"tile[x * {q_quads}u + y_] = sum;", "workgroupBarrier();", "var all_ = vec4<f32>();"]
    body += [f"all_ += tile[{k * q_quads}u + y_];" for k in range(ACROSS)]
    for i, e in enumerate("xyzw"):
        body.append(f"if (row{i} <= last) {{")
        for j in range(per_lane):
            put = f"leave(z, head, row{i}, split, x + {j * ACROSS}u, acc{i}_{j}, top.{e}, all_.{e});"
            body.append(f"  {put}" if (j + 1) * ACROSS <= m else f"  if (x + {j * ACROSS}u < {m}u) {{ {put} }}")
        body.append("}")
    return module("attention_tiles", body, form, target, TILE_THREADS, {"tile": ("vec4<f32>", 2 * HALF)})
