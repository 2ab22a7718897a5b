"""Attention of a few rows, and the merging of parts: a workgroup as slices that each keep softmaxes of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ..dtypes import DType
from ..plan.target import Target
from .attention import LOWEST, Form, leave, module, strides, workgroup_range
from .wgsl import KernelSpec, Storage, build

MOST_ROWS = 8  # of one workgroup
MOST_QUERY_QUADS = 256  # that it keeps of them; longer ones are loaded again for every key
MOST_SLICES = 16
KEY_LANES = 4  # invocations that share a key
UNROLLED = 16  # loads in a row that are written out; more are a loop


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


@dataclass(frozen=True, slots=True)
class Slices:
    """A workgroup cut into slices that each hold whole values: a lane has quads lane, lane + lanes, …"""

    workgroup: int
    lanes: int
    held: int  # quads of a lane
    count: int  # slices, a power of two; invocations beyond them idle

    @staticmethod
    def of(quads: int, workgroup: int, most: int) -> Slices:
        lanes = min(quads, workgroup)
        count = 1 << (min(most, workgroup // lanes).bit_length() - 1)
        return Slices(workgroup, lanes, -(-quads // lanes), count)

    def place(self) -> str:
        return f"let lane = lid % {self.lanes}u; let slice = lid / {self.lanes}u;"

    def start(self, rows: int) -> list[str]:
        """The running softmaxes of `rows` rows."""
        lines = [f"var top{r} = {LOWEST}; var sum{r} = 0.0;" for r in range(rows)]
        return lines + [f"var acc{r}_{j} = vec4<f32>();" for r in range(rows) for j in range(self.held)]

    def shared(self, rows: int) -> dict[str, tuple[str, int]]:
        return {"tops": ("f32", rows * self.count), "sums": ("f32", rows * self.count)}

    def finish(self, rows: int, quads: int, row: str) -> list[str]:
        """Joins the slices' softmaxes through `spare` (8 · workgroup floats) and leaves each row's result."""
        lines = [f"if (lane == 0u && slice < {self.count}u) {{"]
        for r in range(rows):
            at = f"[{r * self.count}u + slice]"
            lines.append(f"  tops{at} = top{r}; sums{at} = sum{r};")
        lines += [
            "}",
            "workgroupBarrier();",
            f"if (lid < {rows}u) {{",
            f"  let begin = lid * {self.count}u;",
            "  var high = tops[begin]; var all_ = 0.0;",
            f"  for (var i = begin + 1u; i < begin + {self.count}u; i++) {{ high = max(high, tops[i]); }}",
            f"  for (var i = begin; i < begin + {self.count}u; i++) {{ all_ += sums[i] * exp(tops[i] - high); }}",
            "  tops[begin] = high; sums[begin] = all_;",
            "}",
            "workgroupBarrier();",
            *(f"let high{r} = tops[{r * self.count}]; let all{r} = sums[{r * self.count}];" for r in range(rows)),
        ]
        half = 0  # of the spare memory: while one is read, the other is written
        for r in range(rows):
            for j in range(self.held):
                at = [f"[{(4 * half + c) * self.workgroup}u + lid]" for c in range(4)]
                there = ", ".join(f"spare[{(4 * half + c) * self.workgroup}u + i]" for c in range(4))
                lines += [
                    f"let own{r}_{j} = acc{r}_{j} * exp(top{r} - high{r});",
                    *(f"spare{a} = own{r}_{j}.{c};" for a, c in zip(at, "xyzw", strict=True)),
                    "workgroupBarrier();",
                    f"if (slice == 0u && {row.format(r=r)} <= last && lane + {j * self.lanes}u < {quads}u) {{",
                    f"  var v = own{r}_{j};",
                    f"  for (var i = lid + {self.lanes}u; i < {self.count * self.lanes}u; i += {self.lanes}u) {{",
                    f"    v += vec4<f32>({there});",
                    "  }",
                    f"  leave(z, head, {row.format(r=r)}, split, lane + {j * self.lanes}u, v, high{r}, all{r});",
                    "}",
                ]
                half = 1 - half
        return lines


def most_rows(dim: int) -> int:
    """How many rows of `dim` elements one workgroup takes."""
    return max(1, min(MOST_ROWS, MOST_QUERY_QUADS // -(-dim // 4)))


@lru_cache(maxsize=256)
def rows(form: Form, count: int, target: Target) -> KernelSpec:
    """`count` rows per workgroup.

    Of each step's keys, four invocations each multiply parts of a key with all rows; then a slice of the workgroup
    adds every so manieth value to the rows' softmaxes. Its loads of values are under way while scores are summed.
    """
    workgroup, n = target.workgroup(256), form.key_quads
    keys = workgroup // KEY_LANES
    slices = Slices.of(form.value_quads, workgroup, min(keys, MOST_SLICES))
    early = keys // slices.count * slices.held <= UNROLLED
    kept = n <= MOST_QUERY_QUADS
    shared = {"spare": ("f32", 8 * workgroup), "scores": ("f32", count * keys)} | slices.shared(count)
    body = workgroup_range(count, keys, form.split, "group % P.blocks")
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
        return [f"let k4 = k_quad(k_row, {d});", *(f"dot{r} = fma(k4, {q[r]}, dot{r});" for r in range(count))]

    body += [
        f"let key = lid / {KEY_LANES}u; let part = lid % {KEY_LANES}u;",
        slices.place(),
        *slices.start(count),
        "for (var step = from_; step < to; step++) {",
        f"let base = step * {keys}u;",
        "let k_row = k_place(z, head, min(base + key, end - 1u));",
        *(f"var dot{r} = vec4<f32>();" for r in range(count)),
        *_each(-(-n // KEY_LANES), "part", KEY_LANES, n, multiply),
        *(f"spare[{r * workgroup}u + lid] = across(dot{r});" for r in range(count)),
        *(_values(slices, keys, form.value_quads) if early else []),
        "workgroupBarrier();",
        f"for (var i = lid; i < {count * keys}u; i += WG) {{",
        f"  let t = base + i % {keys}u; let row = min(first + i / {keys}u, last);",
        f"  let at = i / {keys}u * WG + i % {keys}u * {KEY_LANES}u;",
        f"  let score = ({' + '.join(f'spare[at + {j}u]' for j in range(KEY_LANES))}) * P.scale;",
        f"  scores[i] = select(P.hidden, score{' + mask_of(z, head, row, t)' if form.mask else ''}, t < seen(row));",
        "}",
        "workgroupBarrier();",
        f"if (slice < {slices.count}u) {{",
        *(
            line
            for r in range(count)
            for line in (_weigh(r, slices, keys) if early else _weigh_one_by_one(r, slices, keys, form.value_quads))
        ),
        "}",
        "}",
        *slices.finish(count, form.value_quads, "(first + {r}u)"),
    ]
    return module("attention_rows", body, form, target, workgroup, shared)


def _value(slices: Slices, quads: int, i: str, j: int) -> str:
    """The j-th quad that a lane has of the i-th value of its slice."""
    d = f"lane + {j * slices.lanes}u"
    d = f"min({d}, {quads - 1}u)" if quads % slices.lanes else d
    return f"v_quad(v_place(z, head, min(base + slice + {i} * {slices.count}u, end - 1u)), {d})"


def _values(slices: Slices, keys: int, quads: int) -> list[str]:
    each = range(keys // slices.count)
    return [f"let v{i}_{j} = {_value(slices, quads, f'{i}u', j)};" for i in each for j in range(slices.held)]


def _weigh(r: int, slices: Slices, keys: int) -> list[str]:
    """Adds the values that a slice holds to its softmax of row r."""
    each = range(keys // slices.count)
    lines = ["{", f"var high = top{r};"]
    for i in each:
        lines.append(f"let s{i} = scores[{r * keys + i * slices.count}u + slice]; high = max(high, s{i});")
    lines.append(f"let fade = exp(top{r} - high); top{r} = high; sum{r} *= fade;")
    lines += [f"acc{r}_{j} *= fade;" for j in range(slices.held)]
    for i in each:
        lines.append(f"let p{i} = exp(s{i} - high); sum{r} += p{i};")
        lines += [f"acc{r}_{j} = fma(vec4<f32>(p{i}), v{i}_{j}, acc{r}_{j});" for j in range(slices.held)]
    return [*lines, "}"]


def _weigh_one_by_one(r: int, slices: Slices, keys: int, quads: int) -> list[str]:
    """The same with values that are loaded when they are needed."""
    return [
        f"for (var i = 0u; i < {keys // slices.count}u; i++) {{",
        f"let s = scores[{r * keys}u + i * {slices.count}u + slice]; let high = max(top{r}, s);",
        f"let fade = exp(top{r} - high); let p = exp(s - high); top{r} = high; sum{r} = sum{r} * fade + p;",
        *(f"acc{r}_{j} = acc{r}_{j} * fade + p * {_value(slices, quads, 'i', j)};" for j in range(slices.held)),
        "}",
    ]


@lru_cache(maxsize=64)
def merge(form: Form, target: Target) -> KernelSpec:
    """A workgroup per row: its slices share the splits."""
    workgroup, m = target.workgroup(256), form.value_quads
    slices = Slices.of(m, workgroup, MOST_SLICES)
    part = f"((i * (P.groups / P.rows) + zh) * P.rows + row) * {m + 1}u"
    body = [
        "let zh = group / P.rows; let z = zh / P.heads; let head = zh % P.heads;",
        "let row = group % P.rows; let last = row; let split = 0u;",
        slices.place(),
        *slices.start(1),
        f"for (var i = slice; i < P.splits; i += {slices.count}u) {{",
        f"  let place = {part};",
        f"  let state = parts_at4(place + {m}u);",
        "  if (state.y != 0.0) {",
        "    let high = max(top0, state.x);",
        "    let fade = exp(top0 - high); let grow = exp(state.x - high);",
        "    top0 = high; sum0 = sum0 * fade + state.y * grow;",
    ]
    for j in range(slices.held):
        quad = f"parts_at4(place + min(lane + {j * slices.lanes}u, {m - 1}u))"
        body.append(f"    acc0_{j} = acc0_{j} * fade + grow * {quad};")
    body += ["  }", "}", *slices.finish(1, m, "row")]
    return build(
        "attention_merge",
        "\n".join(f"  {line}" for line in body),
        target=target,
        reads={"parts": Storage(DType.F32, 4)},
        writes={"y": Storage(form.y, 4 if form.quads else 1)},
        params=[("rows", "u32"), ("sharing", "u32"), ("heads", "u32"), ("splits", "u32"), ("empty", "f32")]
        + strides("y"),
        workgroup=workgroup,
        shared={"spare": ("f32", 8 * workgroup)} | slices.shared(1),
        helpers=leave(form),
    )
