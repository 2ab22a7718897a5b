"""Reductions and scans over strided rows.

A row is what ends in one output: its elements are walked through the collapsed reduced dimensions, and its place is
found through the collapsed kept ones. `P.split` workgroups may share a row; each writes a partial result, and a second
kernel (`loads=False`) reduces those. Sums of halves are f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..dtypes import DType
from ..plan.target import Target
from .elementwise import convert
from .lanes import Agreement, Lanes
from .wgsl import COMPUTE, KernelSpec, Storage, build

ACCUMULATOR = {"f32": DType.F32, "i32": DType.I32}
IS_NAN = "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }"


@dataclass(frozen=True, slots=True)
class Fold:
    """How elements `x` become an accumulator `a`, two of those one, and the last one the result."""

    combine: Agreement
    load: str = "x"
    finish: str = "a"
    params: tuple[tuple[str, str], ...] = ()
    centred: bool = False  # reads `centre`, a number per row


_ADD = Agreement("{a} + {b}", "subgroupAdd")
_DIVISOR = (("divisor", "f32"),)
_SQUARES = "(x - centre) * (x - centre)"

FOLDS = {
    "sum": Fold(_ADD),
    "mean": Fold(_ADD, finish="a / P.divisor", params=_DIVISOR),
    "var": Fold(_ADD, load=_SQUARES, finish="a / P.divisor", params=_DIVISOR, centred=True),
    "std": Fold(_ADD, load=_SQUARES, finish="sqrt(a / P.divisor)", params=_DIVISOR, centred=True),
    "prod": Fold(Agreement("{a} * {b}", "subgroupMul")),
    "any": Fold(Agreement("{a} | {b}", "subgroupOr"), load="select(0, 1, x)"),
    "all": Fold(Agreement("{a} & {b}", "subgroupAnd"), load="select(0, 1, x)"),
    "amax": Fold(Agreement("larger({a}, {b})")),
    "amin": Fold(Agreement("smaller({a}, {b})")),
}
# NaN wins over every number.
_EXTREMES = {
    "f32": (
        f"{IS_NAN}\n"
        "fn larger(a: f32, b: f32) -> f32 { return select(a, b, b > a || is_nan(b)); }\n"
        "fn smaller(a: f32, b: f32) -> f32 { return select(a, b, b < a || is_nan(b)); }"
    ),
    "i32": (
        "fn larger(a: i32, b: i32) -> i32 { return max(a, b); }\n"
        "fn smaller(a: i32, b: i32) -> i32 { return min(a, b); }"
    ),
}
# Whether (b, at j) comes before (a, at i): NaN first, then the extreme, then the lower index.
_BEFORE = {
    "f32": (
        f"{IS_NAN}\n"
        "fn before(b: f32, j: u32, a: f32, i: u32) -> bool {\n"
        "  if (is_nan(a) != is_nan(b)) { return is_nan(b); }\n"
        "  if (a != b && !is_nan(a)) { return b SIGN a; }\n"
        "  return j < i;\n}"
    ),
    "i32": (
        "fn before(b: i32, j: u32, a: i32, i: u32) -> bool {\n  if (a != b) { return b SIGN a; }\n  return j < i;\n}"
    ),
}


def _index(prefix: str, index: str, rank: int) -> str:
    """Σ coordinate · stride of a row-major index over the sizes and strides `P.<prefix>_d*`, `P.<prefix>_s*`."""
    terms = []
    for k in reversed(range(rank)):
        coordinate = f"{index} % P.{prefix}_d{k}" if k else index
        terms.append(f"({coordinate}) * P.{prefix}_s{k}")
        index = f"({index}) / P.{prefix}_d{k}"
    return " + ".join(terms) or "0u"


def _walk(kept: int, reduced: int, lanes: Lanes, quads: bool, accumulator: str, body: str) -> str:
    """`body` for every element of this workgroup's part of the row: its number `r` and value `x_raw`."""
    at = f"base + {_index('r', 'l', reduced)}"
    if quads:
        each = [f"    let loaded = x_at4({at});"]
        each += [f"    {{ let r = l * 4u + {k}u; let x_raw = loaded.{'xyzw'[k]}; {body} }}" for k in range(4)]
    else:
        each = [f"    let r = l; let x_raw = x_at({at}); {body}"]
    return "\n".join(
        [
            "  let part = group % P.split;",
            lanes.place("(group / P.split)"),
            f"  let base = {_index('k', 'row', kept)};",
            "  let end = min((part + 1u) * P.span, P.length);",
            accumulator,
            f"  for (var l = part * P.span + lane; l < end; l += {lanes.count}u) {{",
            *each,
            "  }",
        ]
    )


def _params(kept: int, reduced: int, start: str) -> list[tuple[str, str]]:
    names = ["rows", "length", "split", "span"]
    names += [f"k_{c}{k}" for k in range(kept) for c in "ds"] + [f"r_{c}{k}" for k in range(reduced) for c in "ds"]
    return [*((n, "u32") for n in names), ("start", start)]


@lru_cache(maxsize=1024)
def reduction(
    fold: str,
    x: DType,
    out: DType,
    kind: str,  # the accumulator: "f32" or "i32"
    kept: int,  # dimensions after collapsing
    reduced: int,
    quads: bool,
    loads: bool,  # from elements; otherwise from partial results
    finishes: bool,  # into outputs; otherwise into partial results
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    how = FOLDS[fold]
    lanes = lanes if how.combine.subgroup else lanes.without_subgroups()
    centred = how.centred and loads
    logical = fold in ("any", "all")
    element = convert("x_raw", COMPUTE[x], "bool" if logical and loads else kind)
    merged = how.combine.merge.format(a="a", b=f"({how.load if loads else 'x'})")
    accumulator = "  let centre = centre_at(row); var a = P.start;" if centred else "  var a = P.start;"
    body = [
        _walk(kept, reduced, lanes, quads, accumulator, f"let x = {element}; a = {merged};"),
        lanes.agree("all_of_row", "a", how.combine, "partial"),
        "  if (live && lane == 0u) {",
        "    a = all_of_row;",
        f"    y_put(row * P.split + part, {how.finish if finishes else 'a'});",
        "  }",
    ]
    reads = {"x": Storage(x, 4 if quads else 1)}
    if centred:
        reads["centre"] = Storage(DType.F32)
    return build(
        f"reduce_{fold}",
        "\n".join(body),
        target=target,
        reads=reads,
        writes={"y": Storage(out)},
        params=[*_params(kept, reduced, kind), *(how.params if finishes else ())],
        workgroup=lanes.workgroup,
        shared=lanes.shared(kind, "partial"),
        helpers=_EXTREMES[kind] if fold in ("amax", "amin") else "",
        subgroups=lanes.by_subgroup,
    )


@lru_cache(maxsize=1024)
def extremum(
    sign: str,  # ">" for the largest, "<" for the smallest
    x: DType,
    values: DType | None,  # what the extremes are written as, if at all
    kind: str,
    kept: int,
    reduced: int,
    quads: bool,
    loads: bool,  # from elements, which are numbered; otherwise from partial results with their numbers
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    """The extreme of each row and the number of its first occurrence."""
    lanes = lanes.without_subgroups()
    number = "r" if loads else f"u32(number_at(base + {_index('r', 'l', reduced)}))"
    element = convert("x_raw", COMPUTE[x], kind)
    accumulator = "  var a = P.start; var i = 0x7fffffffu;"
    body = f"let x = {element}; let n = {number}; if (before(x, n, a, i)) {{ a = x; i = n; }}"
    lines = [_walk(kept, reduced, lanes, quads, accumulator, body)]
    if lanes.count > 1:
        merge = (
            "if (before(best[there], best_at[there], best[lid], best_at[lid])) "
            "{ best[lid] = best[there]; best_at[lid] = best_at[there]; }"
        )
        lines.append(lanes.tree("best[lid] = a; best_at[lid] = i;", merge))
        lines.append(f"  a = best[{lanes.first}]; i = best_at[{lanes.first}];")
    put = "extreme_put(row * P.split + part, a); " if values else ""
    lines.append(f"  if (live && lane == 0u) {{ {put}y_put(row * P.split + part, i32(i)); }}")
    reads = {"x": Storage(x, 4 if quads else 1)}
    if not loads:
        reads["number"] = Storage(DType.I32)
    writes = {"extreme": Storage(values)} if values else {}
    return build(
        "reduce_argmax" if sign == ">" else "reduce_argmin",
        "\n".join(lines),
        target=target,
        reads=reads,
        writes={**writes, "y": Storage(DType.I32)},
        params=_params(kept, reduced, kind),
        workgroup=lanes.workgroup,
        shared={**lanes.shared(kind, "best"), **lanes.shared("u32", "best_at")},
        helpers=_BEFORE[kind].replace("SIGN", sign),
    )


SCAN_EACH = 4  # consecutive elements per invocation and round


@lru_cache(maxsize=256)
def scan(name: str, operator: str, x: DType, out: DType, serial: bool, target: Target) -> KernelSpec:
    """Running totals along lines of `P.length` elements that are `P.inner` apart.

    Serial: an invocation per line. Otherwise a workgroup per line, in rounds of `workgroup * SCAN_EACH` elements.
    """
    kind = COMPUTE[out]
    zero = {"+": f"{kind}(0)", "*": f"{kind}(1)"}[operator]
    workgroup = target.workgroup(256)
    value = convert("x_at(at)", COMPUTE[x], kind)
    first = "  let base = (line / P.inner) * P.length * P.inner + line % P.inner;"
    if serial:
        lines = [
            "  let line = group * WG + lid;",
            "  if (line >= P.lines) { return; }",
            first,
            f"  var total = {zero};",
            "  for (var j = 0u; j < P.length; j++) {",
            f"    let at = base + j * P.inner; total = total {operator} {value}; y_put(at, total);",
            "  }",
        ]
    else:
        lines = ["  let line = group;", first, f"  var carry = {zero};"]
        lines.append(f"  for (var round = 0u; round < P.length; round += WG * {SCAN_EACH}u) {{")
        lines.append(f"    let j = round + lid * {SCAN_EACH}u;")
        for k in range(SCAN_EACH):
            previous = f"t{k - 1} {operator} " if k else ""
            lines.append(f"    var v{k} = {zero};")
            lines.append(f"    if (j + {k}u < P.length) {{ let at = base + (j + {k}u) * P.inner; v{k} = {value}; }}")
            lines.append(f"    let t{k} = {previous}v{k};")
        lines += [f"    var sum = t{SCAN_EACH - 1};", "    totals[lid] = sum;", "    workgroupBarrier();"]
        step = 1
        while step < workgroup:
            lines += [
                f"    if (lid >= {step}u) {{ sum = totals[lid - {step}u] {operator} sum; }}",
                "    workgroupBarrier();",
                "    totals[lid] = sum;",
                "    workgroupBarrier();",
            ]
            step *= 2
        lines += ["    var before = carry;", f"    if (lid > 0u) {{ before = carry {operator} totals[lid - 1u]; }}"]
        for k in range(SCAN_EACH):
            lines.append(
                f"    if (j + {k}u < P.length) {{ y_put(base + (j + {k}u) * P.inner, before {operator} t{k}); }}"
            )
        lines += [f"    carry = carry {operator} totals[WG - 1u];", "    workgroupBarrier();", "  }"]
    return build(
        name,
        "\n".join(lines),
        target=target,
        reads={"x": Storage(x)},
        writes={"y": Storage(out)},
        params=[("lines", "u32"), ("length", "u32"), ("inner", "u32")],
        workgroup=workgroup,
        shared={} if serial else {"totals": (kind, workgroup)},
    )
