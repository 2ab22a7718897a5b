"""Attention on matrix units: both products of f16 elements, summed in f32, with softmaxes in f32 between them.

Queries, keys and values are `blocks` (see `tensor_core_blocks.py`), scaled row by row if they are f32. A subgroup has
16 of the 64 rows of a workgroup, and keeps their queries and results in its registers. Work on single elements takes
place in workgroup memory, with two invocations per row: scores are stored there, and exponentials are read back as f16.

A running softmax subtracts a base from the scores before `exp2`. The base is only raised, and the results scaled down,
where exponentials would exceed 2^HEADROOM otherwise, because scaling results takes a round trip through workgroup
memory. The scaling of values is part of the exponentials that multiply them, which have their own base: the largest
term of a result determines it, even if its value is small.

The loads of the next keys and values overlap with the products and the softmax of a step. The phases of a step, with
barriers between, are: products with keys, store scores | softmax, stage the next keys and these values | products with
values.
"""

from __future__ import annotations

import math

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .attention import FACTORS, SIZES, AttentionForm, leave, length, sight, strides, workgroup_range
from .tensor_core_blocks import BLOCK, LANES, ROWS, SPAN, BlockSource
from .tensor_core_products import LEFT, RIGHT, SUMS
from .wgsl import ELEMENT_BYTES, LOWEST, KernelSpec, Storage, build, u32s

TILE_ROWS, SUBGROUPS = 64, 4
THREADS = LANES * SUBGROUPS
DIM = 128  # maximum elements of a vector
PAD = 8  # elements of padding per row in workgroup memory, which put successive rows into different banks
HEADROOM = 12  # maximum exponent of exponentials; the range of f16 ends at 2^16
UNROLLED = 8
LOG2_E = math.log2(math.e)


def tile_keys(dim: int, value_dim: int, target: Target) -> int:
    """Return the maximum keys of a step for the size of workgroup memory; 0 if it is too small."""
    for keys in (64, 32):
        arrays = _shared(dim, value_dim, keys).values()
        if sum(ELEMENT_BYTES[element] * count for element, count in arrays) <= target.max_shared_bytes:
            return keys
    return 0


def _shared(dim: int, value_dim: int, keys: int) -> dict[str, tuple[str, int]]:
    k_line, v_line, line = dim + PAD, value_dim + PAD, keys + PAD
    return {
        "tile": ("f16", max(TILE_ROWS * k_line, keys * (k_line + v_line))),  # queries, then keys and values
        "weights": ("f16", TILE_ROWS * line),
        "scores": ("f32", TILE_ROWS * line),
        "factors": ("vec2<f32>", 2 * keys),  # undo the scaling of keys and values, for this step and the next
        "highest": ("f32", THREADS),
        "heaviest": ("f32", THREADS),
        "raised": ("u32", 4),  # [0]: the last step that raised bases, from one; a multiple of 16 bytes for matrices
    }


def vectors(dtype: DType, cached: bool) -> BlockSource:
    """Return the queries, keys or values of a key-value head as a source; of a cache only the visible positions."""
    eight = (
        "fn eight(row: u32, i: u32) -> Eight {\n"
        "  let z = row / P.m; let r = row % P.m; let head = z % P.heads * P.sharing + r % P.sharing;\n"
        "  let place = P.x_first + z / P.heads * P.x_batch + head * P.x_head + r / P.sharing * P.x_row;\n"
        "  return Eight(x_at4((place >> 2u) + 2u * i), x_at4((place >> 2u) + 2u * i + 1u));\n}"
    )
    params = [*u32s("heads", "sharing"), *strides("x")]
    if cached:
        params += [*u32s("keys", "queries"), ("start", "sym")]
        eight += f"\n{length(True)}"
    reads, scaled = (("x", Storage(dtype, 4)),), dtype is not DType.F16
    return BlockSource(reads, tuple(params), eight, scaled=scaled, live="length()" if cached else "")


class _Transfer:
    """The copy of rows from storage to `tile`, from element `to` on; each subgroup copies a block of rows."""

    def __init__(self, name: str, dim: int, rows: int, to: int = 0) -> None:
        per = SUBGROUPS * ROWS // rows  # subgroups of a block of rows
        self.name, self.spans, self.count = name, dim // SPAN, dim // SPAN // per
        self.block, self.span, line = f"sg / {per}u", f"sg % {per}u * {self.count}u", dim + PAD
        at = f"{to}u + {self.block} * {ROWS * line}u + ({self.span}) * {SPAN}u"
        names = [f"{name}_block{r}" for r in range(self.count)]
        self.declare = [f"var {n}: {BLOCK};" for n in names]
        self.store = [
            f"subgroupMatrixStore(&tile, {at} + {r * SPAN}u, {n}, false, {line}u);" for r, n in enumerate(names)
        ]

    def load(self, first: str, last: str, set_: str) -> list[str]:
        """Return loads from block `first` on, which repeat block `last` beyond it."""
        row = f"({set_} + min({first} + {self.block}, {last}))"
        return [
            f"{{ let from_block = ({row} * {self.spans}u + {self.span}) * {ROWS * SPAN}u;",
            *(
                f"{self.name}_block{r} = subgroupMatrixLoad<{BLOCK}>"
                f"(&x{self.name}, from_block + {r * ROWS * SPAN}u, false, {SPAN}u);"
                for r in range(self.count)
            ),
            "}",
        ]


@cached(64)
def tiles(form: AttentionForm, target: Target) -> KernelSpec:
    """Compute 64 rows per workgroup. Vectors whose type in `form` is f16 are not scaled.

    Invocation lid has every second key of row lid / 2, beginning where rows spread over the banks.
    """
    dim, value_dim, keys = form.dim, form.value_dim, tile_keys(form.dim, form.value_dim, target)
    scaled = {n: d is not DType.F16 for n, d in (("q", form.q), ("k", form.k), ("v", form.v))}
    k_line, line, own = dim + PAD, keys + PAD, keys // 2
    deep, wide, results = dim // 16, keys // 16, value_dim // 16
    q, k, v = _Transfer("q", dim, TILE_ROWS), _Transfer("k", dim, keys), _Transfer("v", value_dim, keys, keys * k_line)
    key_set, key_last, each = "zh * P.key_blocks", "(length() - 1u) / 16u", keys // ROWS
    factor = "factors[at + c]"
    weight = f"p * {factor}.y * lift" if scaled["v"] else "p"
    places = f"let c = (2u * (j + {{}}u) + turn) & {keys - 1}u; let x = score(own, c, at, mine, shown);"

    def factors_of(step: str) -> list[str]:
        """Return lines that load the factors of this invocation's key in a step as `next`."""
        if not (scaled["k"] or scaled["v"]):
            return []
        factors = (f"{n}_scales_at(key)" if scaled[n] else "1.0" for n in "kv")
        return [
            f"{{ let key = zh * P.keys + min({step} * {keys}u + lid % {keys}u, length() - 1u);",
            f"  next = vec2<f32>({', '.join(factors)}); }}",
        ]

    def store_factors(step: str) -> list[str]:
        return [f"if (lid < {keys}u) {{ factors[({step} & 1u) * {keys}u + lid] = next; }}"] if factors_of(step) else []

    def each_key(lines: list[str]) -> list[str]:
        """Return a loop of `lines` over the keys of an invocation, with its place `c` in the step and its score x."""
        body = [f"for (var j = 0u; j < {own}u; j += {UNROLLED}u) {{"]
        for u in range(UNROLLED):
            body += ["{", places.format(u), *lines, "}"]
        return [*body, "}"]

    def rounds() -> list[range]:
        """Return the matrices of results in groups that fit into `scores`."""
        return [range(first, min(first + wide, results)) for first in range(0, results, wide)]

    def place(j: int) -> str:
        return f"sg * {16 * line}u + {16 * j}u"

    def out(which: range) -> list[str]:
        lines = (f"subgroupMatrixStore(&scores, {place(i)}, sum{j}, false, {line}u);" for i, j in enumerate(which))
        return ["workgroupBarrier();", *lines, "workgroupBarrier();"]

    raise_ = ["let higher = max(top, max(highest[lid & ~1u], highest[lid | 1u]));", "sum *= exp2(top - higher);"]
    if scaled["v"]:
        raise_ += [
            f"var heavy = {LOWEST};",
            *each_key([f"heavy = max(heavy, x + log2({factor}.y));"]),
            "heaviest[lid] = heavy;",
            "workgroupBarrier();",
            "heavy = max(base, max(heaviest[lid & ~1u], heaviest[lid | 1u]));",
        ]
    else:
        raise_.append("let heavy = higher;")
    raise_ += [
        "let fade = exp2(base - heavy); top = higher; base = heavy; lift = exp2(top - base); part = 0.0;",
        *each_key([f"let p = exp2(x - top); part += p; weights[own * {line}u + c] = f16({weight});"]),
        "if (step > from_) {",
    ]
    for which in rounds():
        raise_ += [
            *out(which),
            f"for (var j = 0u; j < {8 * len(which)}u; j++) {{ scores[own * {line}u + 2u * j + lid % 2u] *= fade; }}",
            "workgroupBarrier();",
            *(
                f"sum{j} = subgroupMatrixLoad<{SUMS}>(&scores, {place(i)}, false, {line}u);"
                for i, j in enumerate(which)
            ),
        ]
    raise_ += ["}", "workgroupBarrier();"]

    body = [
        *workgroup_range(TILE_ROWS, keys, form.split, "P.blocks - 1u - group % P.blocks"),
        *q.declare,
        *k.declare,
        *v.declare,
        *q.load(f"first / {ROWS}u", "P.row_blocks - 1u", "zh * P.row_blocks"),
        *q.store,
        "if (lid == 0u) { raised[0] = 0u; }",
        "workgroupBarrier();",
        *(
            f"let q{d} = subgroupMatrixLoad<{LEFT}>(&tile, sg * {16 * k_line}u + {16 * d}u, false, {k_line}u);"
            for d in range(deep)
        ),
        *k.load(f"from_ * {each}u", key_last, key_set),
        *v.load(f"from_ * {each}u", key_last, key_set),
        "var next = vec2<f32>(1.0);",
        *factors_of("from_"),
        "workgroupBarrier();",
        *k.store,
        *store_factors("from_"),
        *k.load(f"(from_ + 1u) * {each}u", key_last, key_set),
        "let own = lid / 2u; let row = min(first + own, last); let sees = seen(row);",
        "let turn = lid % 2u + own / 4u % 4u * 2u;",
        f"let mine = P.scale * {LOG2_E}{' * q_scales_at(zh * P.rows + row)' if scaled['q'] else ''};",
        f"var top = {LOWEST}; var base = {LOWEST}; var lift = 1.0; var sum = 0.0;",
        *(f"var sum{j} = {SUMS}();" for j in range(results)),
        "workgroupBarrier();",
        "for (var step = from_; step < to; step++) {",
        *factors_of("(step + 1u)"),
        *(f"var score{j} = {SUMS}();" for j in range(wide)),
    ]
    for d in range(deep):
        body.append("{")
        for j in range(wide):
            at = f"{16 * j * k_line + 16 * d}u"
            body.append(f"let k{j} = subgroupMatrixLoad<{RIGHT}>(&tile, {at}, true, {k_line}u);")
        body += [f"score{j} = subgroupMatrixMultiplyAccumulate(q{d}, k{j}, score{j});" for j in range(wide)]
        body.append("}")
    body += [
        *(f"subgroupMatrixStore(&scores, {place(j)}, score{j}, false, {line}u);" for j in range(wide)),
        "workgroupBarrier();",
        *k.store,
        *v.store,
        f"let begin = step * {keys}u; let shown = max(sees, begin) - begin; let at = (step & 1u) * {keys}u;",
        f"var high = {LOWEST}; var large = 0.0; var part = 0.0;",
        *each_key(
            [
                "let p = exp2(x - top); part += p; high = max(high, x);",
                f"let w = {weight}; weights[own * {line}u + c] = f16(w);",
                *(["large = max(large, w);"] if scaled["v"] else []),
            ]
        ),
        "highest[lid] = high;",
        *store_factors("(step + 1u)"),
        f"if (high > top + {HEADROOM}.0 || large > {2**HEADROOM}.0) {{ raised[0] = step + 1u; }}",
        "let all_raised = workgroupUniformLoad(&raised[0]);",
        *k.load(f"(step + 2u) * {each}u", key_last, key_set),
        *v.load(f"(step + 1u) * {each}u", key_last, key_set),
        "if (all_raised == step + 1u) {",
        *raise_,
        "}",
        "sum += part;",
    ]
    for d in range(wide):
        body.append("{")
        body.append(f"let left = subgroupMatrixLoad<{LEFT}>(&weights, sg * {16 * line}u + {16 * d}u, false, {line}u);")
        for j in range(results):
            at = f"{keys * k_line + 16 * d * (value_dim + PAD) + 16 * j}u"
            body.append(f"let v{j} = subgroupMatrixLoad<{RIGHT}>(&tile, {at}, false, {value_dim + PAD}u);")
        body += [f"sum{j} = subgroupMatrixMultiplyAccumulate(left, v{j}, sum{j});" for j in range(results)]
        body.append("}")
    body += ["}", "highest[lid] = sum; heaviest[lid] = select(top, base, lid % 2u == 1u);"]
    for which in rounds():
        quads = 4 * len(which)
        body += [
            *out(which),
            f"for (var i = lid; i < {TILE_ROWS * quads}u; i += WG) {{",
            f"  let r = i / {quads}u; let d = i % {quads}u; let s = r * {line}u + 4u * d;",
            "  if (first + r <= last) {",
            "    let high = heaviest[2u * r]; let all_ = highest[2u * r] + highest[2u * r + 1u];",
            "    let down = exp2(heaviest[2u * r + 1u] - high);",
            "    let found = vec4<f32>(scores[s], scores[s + 1u], scores[s + 2u], scores[s + 3u]) * down;",
            f"    leave(z, head, first + r, split, d + {4 * which[0]}u, found, high / {LOG2_E}, all_);",
            "  }",
            "}",
        ]
    undone = " * factors[at + c].x" if scaled["k"] else ""
    reads = {f"x{n}": Storage(DType.F16) for n in "qkv"}
    reads |= {f"{n}_scales": Storage(DType.F32) for n in "qkv" if scaled[n]}
    params = [*SIZES, *FACTORS, ("row_blocks", "u32"), ("key_blocks", "u32")]
    params += [] if form.split else strides("y")
    params += [("start", "sym")] if form.cached else []
    shared = _shared(dim, value_dim, keys)
    if not factors_of("step"):
        del shared["factors"]
    helpers = [
        sight(form),
        leave(form),
        "fn score(row: u32, c: u32, at: u32, mine: f32, shown: u32) -> f32 {\n"
        f"  return select(P.hidden, scores[row * {line}u + c] * mine{undone}, c < shown);\n}}",
    ]
    return build(
        "attention_matrices",
        body,
        target=target,
        reads=reads,
        writes={"parts": Storage(DType.F32, 4)} if form.split else {"y": Storage(form.y, 4)},
        params=params,
        workgroup=THREADS,
        shared=shared,
        helpers="\n".join(helpers),
        matrices=True,
    )
