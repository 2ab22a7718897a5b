"""The end of a product on matrix units whose result is the rows of the next one: y, and y as blocks of f16.

It does what `tensor_core_products.finish` and `tensor_core_blocks.prepare` do one after the other, for a few rows.
"""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .matmul import GemmForm, module
from .tensor_core_blocks import ROWS, lifted
from .tensor_core_products import SUM_PARAMS, total
from .wgsl import KernelSpec, Storage, u32s

MOST_EIGHTS = 4  # maximum eights of elements in the registers of an invocation


@cached(64)
def finish_rows(
    form: GemmForm, scaled: tuple[bool, bool], norm: DType | None, threads: int, rounds: int, target: Target
) -> KernelSpec:
    """Compute a row of y per workgroup of `threads`, and store it, and its RMS norm or itself as blocks [M / 16, …].

    An invocation has `rounds` times eight elements of the row. `norm` is the type of the norm's weight [N]. The last
    row repeats up to a multiple of 16.
    """
    reads, sums = total(scaled, aligned=True)
    beside = form.epilogue is not None and None in form.epilogue.operands
    lanes = ", ".join(f"finish(0u, row, column + {j}u, v.{c})" for j, c in enumerate("xyzw"))
    ready = [
        "fn ready(row: u32, column: u32) -> vec4<f32> {",
        "  besides = total(0u, row, column, P.other);" if beside else "",
        f"  let v = total(0u, row, column, P.first); return vec4<f32>({lanes});",
        "}",
    ]
    each = range(rounds)
    body = [
        "let row = min(group, P.m - 1u); let eights = P.n / 8u; let at = (P.y_first + row * P.y_row) / 4u;",
        "var squares = 0.0; var most = 0.0;",
    ]
    for r in each:
        body += [
            f"let i{r} = lid + {r * threads}u; var low{r} = vec4<f32>(); var high{r} = vec4<f32>();",
            f"if (i{r} < eights) {{",
            f"  low{r} = ready(row, 8u * i{r}); high{r} = ready(row, 8u * i{r} + 4u);",
            f"  if (group < P.m) {{ y_put4(at + 2u * i{r}, low{r}); y_put4(at + 2u * i{r} + 1u, high{r}); }}",
            f"  squares += dot(low{r}, low{r}) + dot(high{r}, high{r});",
            "}",
        ]
    if norm:
        body += [
            "top[lid] = squares;",
            *_agree(threads, "top[lid] + other"),
            "let inverse = inverseSqrt(top[0] / f32(P.n) + P.eps);",
            "workgroupBarrier();",
        ]
        for r in each:
            weight = [f"w_at4(min(2u * i{r} + {h}u, P.n / 4u - 1u))" for h in (0, 1)]
            body.append(f"low{r} = low{r} * inverse * {weight[0]}; high{r} = high{r} * inverse * {weight[1]};")
    for r in each:
        body.append(f"let big{r} = max(abs(low{r}), abs(high{r}));")
        body.append(f"most = max(most, max(max(big{r}.x, big{r}.y), max(big{r}.z, big{r}.w)));")
    body += [
        "top[lid] = most;",
        *_agree(threads, "max(top[lid], other)"),
        *lifted("top[0]"),
        "let lift = bitcast<f32>(power << 23u);",
        "if (lid == 0u && group < P.m) { factors_put(row, bitcast<f32>((254u - power) << 23u)); }",
    ]
    for r in each:
        words = [f"pack2x16float({half}{r}.{c} * lift)" for half in ("low", "high") for c in ("xy", "zw")]
        place = f"(group / {ROWS}u * eights + i{r}) * {ROWS}u + group % {ROWS}u"
        body.append(f"if (i{r} < eights) {{ blocks[{place}] = vec4<u32>({', '.join(words)}); }}")
    return module(
        "matrix_finish_rows",
        body,
        form,
        target,
        reads=reads | ({"w": Storage(norm, 4)} if norm else {}),
        writes={"blocks": Storage(DType.F16, raw="vec4<u32>"), "factors": Storage(DType.F32)},
        helpers=[sums, *(["var<private> besides: vec4<f32>;"] if beside else []), *ready],
        params=[*u32s(*SUM_PARAMS, "first", *(["other"] if beside else [])), *([("eps", "f32")] if norm else [])],
        workgroup=threads,
        shared={"top": ("f32", threads)},
    )


def _agree(threads: int, both: str) -> list[str]:
    """Return lines in which all invocations combine their values in `top`."""
    return [
        "workgroupBarrier();",
        f"for (var half = {threads // 2}u; half > 0u; half /= 2u) {{",
        f"  if (lid < half) {{ let other = top[lid + half]; top[lid] = {both}; }}",
        "  workgroupBarrier();",
        "}",
    ]
