"""Reductions and scans over strided rows.

A row holds the elements of one output. The collapsed reduced dimensions address its elements, the collapsed kept ones
its beginning. A load is one element, four neighbours of a row ("along"), or the same element of four neighbouring rows
("abreast"), which form one row of vectors. `P.split` workgroups may share a row; each writes a partial result, and a
second kernel (`loads=False`) reduces these. Sums of halves are f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import convert
from .lanes import Agreement, Lanes
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s

Quads = Literal["", "along", "abreast"]
Ranks: TypeAlias = tuple[int, int]  # numbers of kept and of reduced dimensions, after collapsing

IN_FLIGHT = 4  # loads of a lane that are issued before the first is used
ACCUMULATOR = {"f32": DType.F32, "i32": DType.I32}


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction: how an element `x` becomes an accumulator `a` of type `T`, how two combine, how one finishes."""

    combine: Agreement
    load: str = "x"
    finish: str = "a"
    params: tuple[tuple[str, str], ...] = ()
    centred: bool = False  # reads `centre`, a number per row


_ADD = Agreement("{a} + {b}")
_DIVISOR = (("divisor", "f32"),)
_SQUARES = "(x - centre) * (x - centre)"

FOLDS = {
    "sum": Fold(_ADD),
    "mean": Fold(_ADD, finish="a / P.divisor", params=_DIVISOR),
    "var": Fold(_ADD, load=_SQUARES, finish="a / P.divisor", params=_DIVISOR, centred=True),
    "std": Fold(_ADD, load=_SQUARES, finish="sqrt(a / P.divisor)", params=_DIVISOR, centred=True),
    "prod": Fold(Agreement("{a} * {b}")),
    "any": Fold(Agreement("{a} | {b}"), load="select(T(0), T(1), x)"),
    "all": Fold(Agreement("{a} & {b}"), load="select(T(0), T(1), x)"),
    "amax": Fold(Agreement("larger({a}, {b})")),
    "amin": Fold(Agreement("smaller({a}, {b})")),
}
_IS_NAN = "fn is_nan(x: T) -> B { return (bitcast<U>(x) & U(0x7fffffffu)) > U(0x7f800000u); }"
# NaN wins over every number.
_EXTREMES = {
    "f32": (
        f"{_IS_NAN}\n"
        "fn larger(a: T, b: T) -> T { return select(a, b, (b > a) | is_nan(b)); }\n"
        "fn smaller(a: T, b: T) -> T { return select(a, b, (b < a) | is_nan(b)); }"
    ),
    "i32": "fn larger(a: T, b: T) -> T { return max(a, b); }\nfn smaller(a: T, b: T) -> T { return min(a, b); }",
}
# Whether (b, at j) comes before (a, at i): NaN first, then the extreme, then the lower index.
_BEFORE = {
    "f32": (
        f"{_IS_NAN}\n"
        "fn before(b: T, j: U, a: T, i: U) -> B {\n"
        "  let a_nan = is_nan(a); let b_nan = is_nan(b);\n"
        "  return (b SIGN a) | (b_nan & !a_nan) | (((a == b) | (a_nan & b_nan)) & (j < i));\n}"
    ),
    "i32": "fn before(b: T, j: U, a: T, i: U) -> B { return (b SIGN a) | ((a == b) & (j < i)); }",
}


def _types(kind: str, quads: Quads) -> dict[str, str]:
    """Return the types of accumulators `T`, of numbers `U` and of conditions `B`."""
    if quads == "abreast":
        return {"T": f"vec4<{kind}>", "U": "vec4<u32>", "B": "vec4<bool>"}
    return {"T": kind, "U": "u32", "B": "bool"}


def _aliases(types: dict[str, str]) -> str:
    return "".join(f"alias {name} = {t};\n" for name, t in types.items())


def _index(prefix: str, index: str, rank: int) -> str:
    """Return Σ coordinate · stride of a row-major index over `P.<prefix>_d*` (sizes) and `P.<prefix>_s*` (strides)."""
    terms = []
    for k in reversed(range(rank)):
        coordinate = f"{index} % P.{prefix}_d{k}" if k else index
        terms.append(f"({coordinate}) * P.{prefix}_s{k}")
        index = f"({index}) / P.{prefix}_d{k}"
    return " + ".join(terms) or "0u"


def _walk(
    ranks: Ranks, lanes: Lanes, quads: Quads, loads: dict[str, str], start: str, body: str, centre: str = ""
) -> str:
    """Return a loop that runs `body` for each element of this workgroup's part of the row: its number `r`, and
    `<name>_raw` of each load.

    `start` and `body` are repeated for independent accumulators, whose number replaces `#`.
    """
    lines = [
        "  let part = group % P.split;",
        lanes.place("(group / P.split)"),
        f"  let base = {_index('k', 'row', ranks[0])};",
        "  let end = min((part + 1u) * P.span, P.length);",
        *([f"  let centre = {centre};"] if centre else []),
        *(f"  {start.replace('#', str(k))}" for k in range(IN_FLIGHT)),
        f"  for (var l = part * P.span + lane; l < end; l += {IN_FLIGHT * lanes.count}u) {{",
    ]
    for k in range(IN_FLIGHT):
        lines.append(f"    let l{k} = l + {k * lanes.count}u; let at{k} = min(l{k}, end - 1u);")
        for name, load in loads.items():
            lines.append(f"    let {name}_{k} = {load}(base + {_index('r', f'at{k}', ranks[1])});")
    for k in range(IN_FLIGHT):
        lines.append(f"    if (l{k} < end) {{")
        if quads == "along":
            for c, component in enumerate("xyzw"):
                raw = " ".join(f"let {name}_raw = {name}_{k}.{component};" for name in loads)
                lines.append(f"      {{ let r = l{k} * 4u + {c}u; {raw} {body.replace('#', str(c))} }}")
        else:
            raw = " ".join(f"let {name}_raw = {name}_{k};" for name in loads)
            lines.append(f"      let r = l{k}; {raw} {body.replace('#', str(k))}")
        lines.append("    }")
    return "\n".join([*lines, "  }"])


def _params(ranks: Ranks, start: str) -> list[tuple[str, str]]:
    walks = [f"{name}_{c}{k}" for name, rank in zip("kr", ranks) for k in range(rank) for c in "ds"]
    return [*u32s("rows", "length", "split", "span", *walks), ("start", start)]


def _put(name: str, out: DType, value: str, kind: str, quads: Quads) -> str:
    """Return a statement that writes a row's result: part by part for rows abreast, otherwise row by row."""
    if quads == "abreast":
        return f"{name}_put4(part * P.rows + row, {_vector(value, kind, COMPUTE[out])});"
    return f"{name}_put(row * P.split + part, {value});"


def _vector(value: str, source: str, to: str) -> str:
    """Return an expression that converts a vector of compute type `source` to `to`."""
    if source == to:
        return value
    return f"!({value} == vec4<{source}>(0))" if to == "bool" else f"vec4<{to}>({value})"


@cached(1024)
def reduction(
    fold: str,
    x: DType,
    out: DType,
    kind: str,  # the accumulator: "f32" or "i32"
    ranks: Ranks,
    quads: Quads,
    loads: bool,  # from elements; otherwise from partial results
    finishes: bool,  # into outputs; otherwise into partial results
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    rule = FOLDS[fold]
    centred = rule.centred and loads
    to = "bool" if fold in ("any", "all") and loads else kind
    four = "4" if quads == "abreast" else ""
    element = _vector("x_raw", COMPUTE[x], to) if four else convert("x_raw", COMPUTE[x], to)

    merge = rule.combine.merge.format
    added = rule.load if loads else "x"
    each = f"let x = {element}; a# = {merge(a='a#', b=f'({added})')};"
    load = {"x": "x_at4" if quads else "x_at"}
    centre = f"centre_at{four}(row)" if centred else ""
    halves = (f"({merge(a='a0', b='a1')})", f"({merge(a='a2', b='a3')})")
    body = [
        _walk(ranks, lanes, quads, load, "var a# = T(P.start);", each, centre),
        f"  var a = {merge(a=halves[0], b=halves[1])};",
        lanes.fold({"a": "partial"}, f"a = {merge(a='a', b='there_a')};"),
        f"  if (live && lane == 0u) {{ {_put('y', out, rule.finish if finishes else 'a', kind, quads)} }}",
    ]
    reads = {"x": Storage(x, 4 if quads else 1)}
    if centred:
        reads["centre"] = Storage(DType.F32, 4 if four else 1)
    types = _types(kind, quads)
    return build(
        f"reduce_{fold}",
        "\n".join(body),
        target=target,
        reads=reads,
        writes={"y": Storage(out, 4 if four else 1)},
        params=[*_params(ranks, kind), *(rule.params if finishes else ())],
        workgroup=lanes.workgroup,
        shared=lanes.shared(types["T"], "partial"),
        helpers=_aliases(types) + (_EXTREMES[kind] if fold in ("amax", "amin") else ""),
        subgroups=lanes.by_subgroup,
    )


@cached(1024)
def extremum(
    sign: str,  # ">" for the largest, "<" for the smallest
    x: DType,
    values: DType | None,  # what the extremes are written as, if at all
    kind: str,
    ranks: Ranks,
    quads: Quads,
    loads: bool,  # from elements, which are numbered; otherwise from partial results with their numbers
    lanes: Lanes,
    target: Target,
) -> KernelSpec:
    """Find the extreme of each row and the number of its first occurrence."""
    width = 4 if quads else 1
    abreast = quads == "abreast"
    load = "_at4" if quads else "_at"
    element = _vector("x_raw", COMPUTE[x], kind) if abreast else convert("x_raw", COMPUTE[x], kind)
    sources = {"x": f"x{load}"} if loads else {"x": f"x{load}", "number": f"number{load}"}
    number = "U(r)" if loads else "U(number_raw)"

    def better(a: str, i: str, b: str, j: str) -> str:
        return f"{{ let won = before({b}, {j}, {a}, {i}); {a} = select({a}, {b}, won); {i} = select({i}, {j}, won); }}"

    start = "var a# = T(P.start); var i# = U(0x7fffffffu);"
    each = f"let x = {element}; let n = {number}; {better('a#', 'i#', 'x', 'n')}"
    put = f"{_put('extreme', values, 'a', kind, quads)} " if values else ""
    numbers = "vec4<i32>(i)" if abreast else "i32(i)"
    lines = [
        _walk(ranks, lanes, quads, sources, start, each),
        *(f"  {better(f'a{a}', f'i{a}', f'a{b}', f'i{b}')}" for a, b in ((0, 1), (2, 3), (0, 2))),
        "  var a = a0; var i = i0;",
        lanes.fold({"a": "best", "i": "best_at"}, better("a", "i", "there_a", "there_i")),
        f"  if (live && lane == 0u) {{ {put}{_put('y', DType.I32, numbers, 'i32', quads)} }}",
    ]
    reads = {name: Storage(x if name == "x" else DType.I32, width) for name in sources}
    write_lanes = 4 if abreast else 1
    writes = {"extreme": Storage(values, write_lanes)} if values else {}
    types = _types(kind, quads)
    return build(
        "reduce_argmax" if sign == ">" else "reduce_argmin",
        "\n".join(lines),
        target=target,
        reads=reads,
        writes={**writes, "y": Storage(DType.I32, write_lanes)},
        params=_params(ranks, kind),
        workgroup=lanes.workgroup,
        shared={**lanes.shared(types["T"], "best"), **lanes.shared(types["U"], "best_at")},
        helpers=_aliases(types) + _BEFORE[kind].replace("SIGN", sign),
        subgroups=lanes.by_subgroup,
    )


@cached(256)
def scan(name: str, operator: str, x: DType, out: DType, quads: bool, lanes: Lanes, target: Target) -> KernelSpec:
    """Compute running totals along rows of `P.length` loads, `P.inner` apart, in rounds of four loads per lane.

    A lane's totals of its four loads form one vector, so the lanes scan once per round.
    """
    kind = COMPUTE[out]
    neutral = f"{kind}({0 if operator == '+' else 1})"
    element, four = (f"vec4<{kind}>", "4") if quads else (kind, "")
    source = f"x_at{four}(base + min(j#, P.length - 1u) * P.inner)"
    value = _vector(source, COMPUTE[x], kind) if quads else convert(source, COMPUTE[x], kind)
    lines = [
        lanes.place(),
        "  let base = (row / P.inner) * P.length * P.inner + row % P.inner;",
        f"  var carry = {neutral};",
        f"  for (var round = 0u; round < P.length; round += {4 * lanes.count}u) {{",
    ]
    for k in range(4):
        lines.append(f"  let j{k} = round + lane + {k * lanes.count}u; let x{k} = {value.replace('#', str(k))};")
    for k in range(4):
        lines.append(f"  let p{k} = running(select({element}({neutral}), x{k}, j{k} < P.length));")
    last = ".w" if quads else ""
    lines += [
        f"  let totals = vec4<{kind}>({', '.join(f'p{k}{last}' for k in range(4))});",
        lanes.scan("totals", operator, f"vec4<{kind}>({neutral})", "scanned"),
    ]
    for k in range(4):
        lines.append(f"  if (live && j{k} < P.length) {{")
        lines.append(f"    y_put{four}(base + j{k} * P.inner, (carry {operator} before.{'xyzw'[k]}) {operator} p{k});")
        lines.append("  }")
        lines.append(f"  carry = carry {operator} whole.{'xyzw'[k]};")
    shared = lanes.shared(f"vec4<{kind}>", "scanned")
    lines += ["  workgroupBarrier();"] if shared else []
    running = f"fn running(v: {element}) -> {element} {{ return v; }}"
    if quads:
        running = (
            f"fn running(v: {element}) -> {element} {{\n"
            f"  let pairs = vec4<{kind}>(v.x, v.x {operator} v.y, v.z, v.z {operator} v.w);\n"
            f"  return vec4<{kind}>(pairs.xy, pairs.y {operator} pairs.z, pairs.y {operator} pairs.w);\n}}"
        )
    return build(
        name,
        "\n".join([*lines, "  }"]),
        target=target,
        reads={"x": Storage(x, 4 if quads else 1)},
        writes={"y": Storage(out, 4 if quads else 1)},
        params=u32s("rows", "length", "inner"),
        workgroup=lanes.workgroup,
        shared=shared,
        helpers=running,
        subgroups=lanes.by_subgroup,
    )
