"""Attention: y[row] = Σₜ softmaxₜ(scale · q[row] · k[t] + mask[row, t]) · v[t], with scores that never leave the chip.

A *row* is one query of one of the `sharing` query heads that share a key-value head: row = query · sharing + head.
A kernel computes all rows of a key-value head, so that its keys and values are read once.

- `attention_tiles.tiles`: 64 rows by 32 keys at a time, both products from workgroup memory;
- `attention_matrices.tiles`: 64 rows by up to 64 keys at a time, on matrix units;
- `attention_rows.rows`: a few rows, where slices of a workgroup have values and softmaxes of their own;
- `merge`: merges the parts of rows whose keys are split over workgroups (flash decoding).

The GPU reads positions. The symbolic start determines how many keys a row sees, over how many parts they are split, and
the bounds of all loops, but nothing about the dispatch. Keys beyond are not loaded: addresses are clamped to the last
visible key, and workgroups without keys return at once.
If rows belong to many sequences, `z` counts rows: each has its own sequence and position, and keys and values are in
pages, which each sequence lists in a table.
A running softmax is (top, sum, Σ): the highest score, the sum of exponentials relative to it, and the weighted values.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import BLOCK, DType
from ..plan.target import Target
from ..sizes import cached
from .wgsl import ACROSS, I32, LARGEST, LOWEST, KernelSpec, Storage, build, u32s

PAGE = 16  # positions
AT_ONCE = 4  # parts that a merge loads at the same time
SIZES = u32s("rows", "keys", "sharing", "heads", "blocks", "splits")
SIZES += u32s("part", "queries")  # part: minimum keys of a part, of which there are at most `splits`
FACTORS = [("scale", "f32"), ("hidden", "f32"), ("empty", "f32")]  # hidden: -inf; empty: the result without keys


def strides(name: str) -> list[tuple[str, str]]:
    return [(f"{name}_{by}", "u32") for by in ("batch", "head", "row", "first")]


@dataclass(frozen=True, slots=True)
class Masked:
    """A mask of numbers that are added to scores, or of bools: `P.fill` is added to hidden scores or replaces them."""

    dtype: DType
    replaces: bool = False
    hides: bool = False  # hides scores where it is true, instead of where it is false


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotation of queries and new keys by their positions, in a style of `rope.py`: "pairs" or "halves"."""

    style: str
    quads: int  # of a vector, that are rotated
    cos: DType
    sin: DType
    paged: bool = False  # at the positions of rows that belong to many sequences

    @property
    def reads(self) -> dict[str, Storage]:
        lanes = 4 if self.style == "halves" else 1
        return {"cos": Storage(self.cos, lanes), "sin": Storage(self.sin, lanes)}

    @property
    def params(self) -> list[tuple[str, str]]:
        return [("table_rows", "i32"), *([] if self.paged else [("table_start", "sym")])]


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """The constants of a kernel."""

    q: DType
    k: DType
    v: DType
    y: DType
    mask: Masked | None
    dim: int  # elements of a query and of a key
    value_dim: int  # elements of a value
    quads: bool  # vectors are loaded and stored four elements at a time
    cached: bool  # keys end where the queries do, at a symbolic start + queries
    causal: bool  # a query sees keys up to its own position
    split: bool  # leaves parts to `merge`
    new: DType | None = None  # dtype of new keys and values, which the kernel writes into the caches from the start on
    turn: Turn | None = None
    paged: bool = False  # rows belong to many sequences

    @property
    def key_quads(self) -> int:
        return -(-self.dim // 4)

    @property
    def value_quads(self) -> int:
        return -(-self.value_dim // 4)


def module(
    name: str, body: list[str], form: AttentionForm, target: Target, workgroup: int, shared: dict[str, tuple[str, int]]
) -> KernelSpec:
    """Return a kernel with the shared functions for visible keys, the places of vectors, and the results."""
    lanes = 4 if form.quads else 1
    caches = {"xk": Storage(form.k, lanes), "xv": Storage(form.v, lanes)}
    new = {"nk": Storage(form.new, lanes), "nv": Storage(form.new, lanes)} if form.new else {}
    reads = {"xq": Storage(form.q, lanes), **(new or caches), **(form.turn.reads if form.turn else {})}
    writes = {**(caches if form.new else {}), "y": Storage(form.y, lanes)}
    if form.split:
        writes["parts"] = Storage(DType.F32, 4)
        del writes["y"]
    params = [*SIZES, *FACTORS, *strides("q"), *strides("k"), *strides("v")]
    if form.mask:
        reads["mask"] = Storage(form.mask.dtype)
        params += [*strides("mask"), ("mask_key", "u32"), ("fill", "f32")]
    if not form.split:
        params += strides("y")
    if form.cached and not form.paged:
        params.append(("start", "sym"))
    if form.new:
        params.append(("new_batch", "u32"))
    params += form.turn.params if form.turn else []
    if form.paged:
        reads |= {"rows": I32, "tables": I32}
        params += PAGES
    helpers = [
        PAGED if form.paged else "",
        sight(form),
        _row_place("q"),
        f"fn q_quad(place: u32, d: u32) -> vec4<f32> {{ return {_quad('xq', form.dim, form.quads)}; }}",
        f"fn n_quad(place: u32, d: u32) -> vec4<f32> {{ return {_quad('nk', form.dim, form.quads)}; }}" if new else "",
        *((_turned(n, form.turn) for n in ("q", "n")) if form.turn else ()),
        _key_quad("k", form.dim, form),
        _key_quad("v", form.value_dim, form),
        LARGEST["vec4<f32>"],
        ACROSS["vec4<f32>"],
        _mask(form.mask) if form.mask else "",
        leave(form),
    ]
    return build(
        name,
        owned("\n".join(f"  {line}" for line in body), form.paged),
        target=target,
        reads=reads,
        writes=writes,
        params=params,
        workgroup=workgroup,
        shared=shared,
        helpers=owned("\n".join(h for h in helpers if h), form.paged),
    )


PAGES = u32s("table_width", "sequences", "pages")
OWN = "let own = vec2<i32>(rows_at(2u * ({z})), rows_at(2u * ({z}) + 1u));"  # sequence and position


def owned(text: str, paged: bool) -> str:
    """Pass the row's sequence and position to functions of positions, if rows belong to many sequences.

    They are an argument, so that compilers see that they are uniform in a workgroup.
    """
    if not paged:
        return text
    for name in ("start", "length", "used", "new_row"):
        text = text.replace(f"{name}()", f"{name}(own)").replace(f"fn {name}(own)", f"fn {name}(own: vec2<i32>)")
    passed = [("seen", ""), ("row_of", ""), ("merged", ""), ("q_turned", ""), ("n_turned", "")]
    for name, first in (*passed, ("k_quad", "z, "), ("v_quad", "z, ")):
        text = text.replace(f"{name}({first}", f"{name}(own, ")
        text = text.replace(f"fn {name}(own, ", f"fn {name}(own: vec2<i32>, ")
    for name in "kv":
        text = text.replace(f"fn {name}_quad(z: u32,", f"fn {name}_quad(own: vec2<i32>,")
    return text


PAGED = f"""fn row_of(t: u32) -> u32 {{ // where position t of the sequence is
  let table = min(u32(max(own.x, 0)), P.sequences - 1u) * P.table_width;
  let page = tables_at(table + min(t / {PAGE}u, P.table_width - 1u));
  return min(u32(max(page, 0)), P.pages - 1u) * {PAGE}u + t % {PAGE}u;
}}
fn new_row() -> i32 {{ // where the row's own key and value belong; -1 if they have no place
  if (u32(own.x) >= P.sequences || u32(own.y) >= P.keys) {{ return -1; }}
  let page = tables_at(u32(own.x) * P.table_width + u32(own.y) / {PAGE}u);
  return select(-1, page * {PAGE} + own.y % {PAGE}, u32(page) < P.pages);
}}"""


def length(cached: bool, paged: bool = False) -> str:
    """Return `start` of the queries, and `length` of the keys that any of them sees."""
    start = "own.y" if paged else "sym(P.start)"
    return (
        f"fn start() -> u32 {{ return {f'min(u32(max({start}, 0)), P.keys)' if cached else '0u'}; }}\n"
        f"fn length() -> u32 {{ return {'min(start() + P.queries, P.keys)' if cached else 'P.keys'}; }}"
    )


def used(cached: bool, paged: bool = False) -> str:
    """Return `start`, `length`, and the number of parts that are `used`."""
    count = "clamp((length() + P.part - 1u) / P.part, 1u, P.splits)"
    return f"{length(cached, paged)}\nfn used() -> u32 {{ return {count}; }}"


def sight(form: AttentionForm) -> str:
    """Return `start`, `length`, `used`, and the number of keys `seen` by a row."""
    visible = "min(start() + row / P.sharing + 1u, length())" if form.causal else "length()"
    return f"{used(form.cached, form.paged)}\nfn seen(row: u32) -> u32 {{ return {visible}; }}"


def _turned(name: str, turn: Turn) -> str:
    """Return `q_turned` or `n_turned`: quad d of the rotated vector at `place`, which belongs to query s."""
    row = f"u32(clamp({'own.y' if turn.paged else 'sym(P.table_start) + i32(s)'}, 0, P.table_rows - 1))"
    if turn.style == "pairs":
        value = (
            f"let t = {row} * {2 * turn.quads}u + 2u * d;\n"
            "  let c = vec2<f32>(cos_at(t), cos_at(t + 1u)); let a = vec2<f32>(sin_at(t), sin_at(t + 1u));\n"
            "  return x * c.xxyy + x.yxwz * vec4<f32>(-a.x, a.x, -a.y, a.y);"
        )
    else:
        half = turn.quads // 2
        value = (
            f"if (d >= {turn.quads}u) {{ return x; }}\n"
            f"  let t = {row} * {turn.quads}u + d; let low = d < {half}u;\n"
            f"  let other = {name}_quad(place, select(d - {half}u, d + {half}u, low));\n"
            "  return x * cos_at4(t) + select(other, -other, low) * sin_at4(t);"
        )
    signature = f"fn {name}_turned(place: u32, d: u32, s: u32) -> vec4<f32>"
    return f"{signature} {{\n  let x = {name}_quad(place, d);\n  {value}\n}}"


def _row_place(name: str) -> str:
    return (
        f"fn {name}_place(z: u32, head: u32, row: u32) -> u32 {{\n"
        f"  let h = head * P.sharing + row % P.sharing;\n"
        f"  return P.{name}_first + z * P.{name}_batch + h * P.{name}_head + row / P.sharing * P.{name}_row;\n}}"
    )


def _quad(array: str, dim: int, quads: bool) -> str:
    """Return elements 4d … 4d+3 of the vector at `place`, zero beyond its end."""
    if quads:
        return f"{array}_at4((place >> 2u) + d)"
    i = [f"4u * d + {j}u" for j in range(4)]
    return f"vec4<f32>({', '.join(f'select(0.0, {array}_at(place + min({e}, {dim - 1}u)), {e} < {dim}u)' for e in i)})"


def _key_quad(name: str, dim: int, form: AttentionForm) -> str:
    """Return `k_quad` or `v_quad`: quad d of key or value t."""
    batch, row = ("", "row_of(t)") if form.paged else (f" + z * P.{name}_batch", "t")
    in_blocks = form.quads and dim % BLOCK == 0 and (form.k if name == "k" else form.v) is DType.Q8
    quad = f"x{name}_quad_from(place / {BLOCK}u, d)" if in_blocks else _quad(f"x{name}", dim, form.quads)
    return (
        f"fn {name}_quad(z: u32, head: u32, t: u32, d: u32) -> vec4<f32> {{\n"
        f"  let place = P.{name}_first{batch} + head * P.{name}_head + {row} * P.{name}_row;\n"
        f"  return {quad};\n}}"
    )


def _mask(mask: Masked) -> str:
    hidden = f"{'' if mask.hides else '!'}mask_at(at)"
    value = "score + f32(mask_at(at))"
    if mask.dtype is DType.BOOL:
        value = f"select(score, P.fill, {hidden})" if mask.replaces else f"score + select(0.0, P.fill, {hidden})"
    return (
        "fn masked(z: u32, head: u32, row: u32, t: u32, score: f32) -> f32 {\n"
        "  let h = head * P.sharing + row % P.sharing; let key = min(t, P.keys - 1u);\n"
        "  let at = P.mask_first + z * P.mask_batch + h * P.mask_head + row / P.sharing * P.mask_row"
        " + key * P.mask_key;\n"
        f"  return {value};\n}}"
    )


def leave(form: AttentionForm) -> str:
    """Return `leave`, which stores quad d of a row's result from its running softmax, or of a part of it."""
    if form.split:
        return _leave_part(form)
    return (
        put(form) + "\n"
        "fn leave(z: u32, head: u32, row: u32, split: u32, d: u32, weighted: vec4<f32>, top: f32, sum: f32) {\n"
        "  put(z, head, row, d, select(weighted / sum, vec4<f32>(P.empty), sum == 0.0));\n}"
    )


def put(form: AttentionForm) -> str:
    """Return `put`, which stores quad d of a row's result."""
    if form.quads:
        store = "y_put4((place >> 2u) + d, v);"
    else:
        store = "".join(
            f"\n  if (4u * d + {j}u < {form.value_dim}u) {{ y_put(place + 4u * d + {j}u, v.{c}); }}"
            for j, c in enumerate("xyzw")
        )
    return (
        _row_place("y") + "\n"
        "fn put(z: u32, head: u32, row: u32, d: u32, v: vec4<f32>) {\n"
        f"  let place = y_place(z, head, row);\n  {store}\n}}"
    )


def _leave_part(form: AttentionForm) -> str:
    """Return `leave` and `leave_nothing` for parts [split, batch, head, row] of value quads and (top, sum, 0, 0)."""
    width = form.value_quads + 1
    return (
        "fn part_place(z: u32, head: u32, row: u32, split: u32) -> u32 {\n"
        "  let heads = P.groups / (P.blocks * P.splits);\n"
        f"  return ((split * heads + z * P.heads + head) * P.rows + row) * {width}u;\n}}\n"
        "fn leave_nothing(z: u32, head: u32, row: u32, split: u32) {\n"
        f"  parts_put4(part_place(z, head, row, split) + {width - 1}u, vec4<f32>({LOWEST}, 0.0, 0.0, 0.0));\n}}\n"
        "fn leave(z: u32, head: u32, row: u32, split: u32, d: u32, weighted: vec4<f32>, top: f32, sum: f32) {\n"
        "  let place = part_place(z, head, row, split);\n"
        "  parts_put4(place + d, weighted);\n"
        f"  if (d == 0u) {{ parts_put4(place + {width - 1}u, vec4<f32>(top, sum, 0.0, 0.0)); }}\n}}"
    )


def workgroup_range(rows: int, keys: int, split: bool, block: str, paged: bool = False) -> list[str]:
    """Return lines that declare a workgroup's rows from `first` on and its steps `from_` … `to` up to key `end`."""
    lines = [
        "let zh = group / (P.blocks * P.splits); let z = zh / P.heads; let head = zh % P.heads;",
        OWN.format(z="z") if paged else "",
        f"let block = {block}; let split = group / P.blocks % P.splits; let count = used();",
        "if (split >= count) { return; }" if split else "",
        f"let first = block * {rows}u; let last = P.rows - 1u;",
        f"let end = seen(min(first + {rows - 1}u, last));",
        f"let steps = (end + {keys - 1}u) / {keys}u; let each = (steps + count - 1u) / count;",
        "let from_ = split * each; let to = min(steps, from_ + each);",
    ]
    if split:
        lines += [
            "if (from_ >= to) {",
            f"  if (lid < {rows}u && first + lid <= last) {{ leave_nothing(z, head, first + lid, split); }}",
            "  return;",
            "}",
        ]
    return [line for line in lines if line]


@dataclass(frozen=True, slots=True)
class Merge:
    """The constants of a kernel that merges parts."""

    quads: int  # of a value
    cached: bool
    paged: bool = False

    @property
    def params(self) -> list[tuple[str, str]]:
        names = ("keys", "splits", "part", "queries", "sharing", "heads", "apart")  # apart: quads from part to part
        start = [("start", "sym")] if self.cached and not self.paged else []
        return [*u32s(*names), ("empty", "f32"), *start]

    def helpers(self, parts: str) -> str:
        """Return `merged(place, d)`: quad d of the row whose first part is at `place` of the binding `parts`."""
        each = range(AT_ONCE)
        lines = [f"let at{k} = place + min(i + {k}u, count - 1u) * P.apart;" for k in each]
        lines += [f"let s{k} = {parts}_at4(at{k} + {self.quads}u).xy;" for k in each]
        lines += [f"let v{k} = {parts}_at4(at{k} + d);" for k in each]
        lines.append(f"var high = top;{''.join(f' high = max(high, s{k}.x);' for k in each)}")
        lines.append("let fade = exp(top - high); top = high; sum *= fade; acc *= fade;")
        for k in each:  # values without a sum are undefined
            lines.append(f"if (i + {k}u < count && !(s{k}.y == 0.0)) {{")
            lines.append(
                f"  let p = exp(s{k}.x - high); sum = fma(p, s{k}.y, sum); acc = fma(vec4<f32>(p), v{k}, acc);"
            )
            lines.append("}")
        return (
            f"{used(self.cached, self.paged)}\n"
            "fn merged(place: u32, d: u32) -> vec4<f32> {\n"
            f"  let count = used(); var top = {LOWEST}; var sum = 0.0; var acc = vec4<f32>();\n"
            f"  for (var i = 0u; i < count; i += {AT_ONCE}u) {{\n    "
            + "\n    ".join(lines)
            + "\n  }\n  return select(acc / sum, vec4<f32>(P.empty), sum == 0.0);\n}"
        )


@cached(64)
def merge(form: AttentionForm, target: Target) -> KernelSpec:
    """Merge with an invocation per quad of the result."""
    m, parts = form.value_quads, Merge(form.value_quads, form.cached, form.paged)
    body = [
        f"let i = group * WG + lid; let d = i % {m}u; let at = i / {m}u;",
        "let rows = P.queries * P.sharing; let zh = at / rows;",
        f"if (i < P.apart / {m + 1}u * {m}u) {{",
        f"  {OWN.format(z='zh / P.heads')}" if form.paged else "",
        f"  put(zh / P.heads, zh % P.heads, at % rows, d, merged(at * {m + 1}u, d));",
        "}",
    ]
    return build(
        "attention_merge",
        owned("\n".join(f"  {line}" for line in body if line), form.paged),
        target=target,
        reads={"parts": Storage(DType.F32, 4), **({"rows": I32} if form.paged else {})},
        writes={"y": Storage(form.y, 4 if form.quads else 1)},
        params=[*parts.params, *strides("y")],
        workgroup=target.workgroup(128),
        helpers=owned(f"{parts.helpers('parts')}\n{put(form)}", form.paged),
    )
