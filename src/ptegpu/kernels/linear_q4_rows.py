"""The rows of `a` in products with packed weights, in registers or in workgroup memory, where they may become ints.

A single row can become ints, which GPUs multiply four at a time: each block of elements becomes v · s with ints
v < 2²¹, which are written as three digits of 7 bits, v = (d₀ · 128 + d₁) · 128 + d₂. That is as accurate as f32,
relative to the largest element of the block, and takes a third of the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from .attention import OWN, Merge, owned
from .gemv import Gemv
from .packing import Packing
from .wgsl import ELEMENT_BYTES

DIGITS = 3  # of 7 bits
MAX_VALUE = 2**21 - 1  # of three digits, of which only the first has a sign
LOW = ("", " & 0x7f7f7f7fu", " & 0x7f7f7f7fu")
STAGED_HEAD = 2  # the first lines of `InputRows.lines`, which declare the lane's part of K


@dataclass(frozen=True, slots=True)
class InputRows:
    """`count` rows of `a`, or fewer if `masked`, for a workgroup whose part of K has `blocks` loads of the weight."""

    layout: Gemv
    packing: Packing
    count: int
    blocks: int
    masked: bool = False
    normed: bool = False  # sums their squares

    @property
    def elements(self) -> int:
        return self.layout.words * self.packing.elements

    def memory(self) -> dict[str, tuple[str, int]]:
        """Return the workgroup arrays of rows that are staged."""
        if not self.layout.digits:
            return {"xs": ("vec4<f32>", self.count * self.elements // 4 * self.blocks)}
        items = self.elements // 8 * self.blocks
        return {"xs": ("vec4<u32>", items), "lows": ("vec2<u32>", items), "tops": ("vec2<f32>", items)}

    def staged_bytes(self) -> int:
        return sum(ELEMENT_BYTES[element] * n for element, n in self.memory().values())

    def lines(self) -> list[str]:
        """Return lines that declare the lane, its part of K and its rows, and stage these if the layout says so."""
        lines = [
            f"let lane = lid % {self.layout.lanes}u;",
            f"let begin = part * {self.blocks}u; let end = min(begin + {self.blocks}u, P.row_blocks);",
        ]
        lines += [f"var square{m} = 0.0;" for m in range(self.count) if self.normed]
        lines += [f"let row{m} = {f'min({m}u, P.m - 1u)' if self.masked else f'{m}u'};" for m in range(1, self.count)]
        return lines + (self._digits() if self.layout.digits else self._floats() if self.layout.staged else [])

    def quad(self, name: str, m: int, k: str, g: str = "") -> list[str]:
        """Return lines that declare four elements of row m; normed ones are multiplied by `g` or the weight at k."""
        row = f"row{m}" if m else "0u"
        if not self.normed:
            return [f"let {name} = x_quad({row}, {k});"]
        plain = f"{name}_plain"
        squares = f"square{m} += dot({plain}, {plain});"
        return [f"let {plain} = x_quad({row}, {k});", squares, f"let {name} = {plain} * {g or f'g_quad(0u, {k})'};"]

    def _square(self, m: int, first: str) -> str:
        """Return the lane's share of row m's sum of squares, of those in workgroup memory from `first` on."""
        shares = (f"squares[{first}{s * self.layout.lanes}u + lane]" for s in range(self.layout.slots))
        return f"square{m} = {' + '.join(shares)};"

    def _floats(self) -> list[str]:
        """Return lines that copy rows to workgroup memory, and sums of squares to the lanes."""
        quads, blocks, lines = self.elements // 4, self.blocks, list[str]()
        for m in range(self.count):
            lines += [f"for (var i = lid; i < {quads * blocks}u; i += WG) {{"]
            lines += [f"  {line}" for line in self.quad("v", m, f"begin * {4 * quads}u + i * 4u")]
            lines += [f"  xs[({m * quads}u + i % {quads}u) * {blocks}u + i / {quads}u] = v;", "}"]
            lines += [f"squares[{m}u * WG + lid] = square{m};"] if self.normed else []
        lines.append("workgroupBarrier();")
        return lines + [self._square(m, f"{m}u * WG + ") for m in range(self.count) if self.normed]

    def _digits(self) -> list[str]:
        """Return lines that copy the only row to workgroup memory as digits.

        A part of a block has eight elements, with two words of four elements per digit: `xs` holds the upper two
        digits, `lows` the last one. `tops` holds the largest magnitude of the elements and their sum.
        """
        elements, threads = self.elements, self.layout.lanes * self.layout.slots
        parts, packing, blocks = elements // 8, self.packing, self.blocks
        items = parts * blocks
        rounds = range(-(-items // threads))
        lines: list[str] = []
        for r in rounds:
            k = f"(begin * {elements}u + item{r} * 8u)"
            lines += [f"let item{r} = lid + {r * threads}u; var v{r}_0 = vec4<f32>(); var v{r}_1 = vec4<f32>();"]
            lines.append(f"if (item{r} < {items}u) {{")
            for h in (0, 1):
                at = f"{k} + {4 * h}u"
                lines += [f"  {line}" for line in self.quad(f"v{h}", 0, at)]
                lines.append(f"  v{r}_{h} = v{h};")
            lines += [
                "  let a = max(abs(v0), abs(v1)); let most = max(max(a.x, a.y), max(a.z, a.w));",
                f"  tops[item{r}] = vec2<f32>(most, dot(v0 + v1, vec4<f32>(1.0)));",
                "}",
            ]
        lines += ["squares[lid] = square0;"] if self.normed else []
        lines.append("workgroupBarrier();")
        lines += [self._square(0, "")] if self.normed else []
        for r in rounds:
            lines += [f"if (item{r} < {items}u) {{", f"  let inverse = inverse_unit(item{r} / {parts}u);"]
            rounded, packed = digits_of(f"v{r}_0", f"v{r}_1", packing, DIGITS)
            lines += rounded
            lines += [
                f"  let at = item{r} % {parts}u * {blocks}u + item{r} / {parts}u;",
                f"  xs[at] = vec4<u32>({', '.join(packed[0] + packed[1])});"
                f" lows[at] = vec2<u32>({', '.join(packed[2])});",
                "}",
            ]
        return [*lines, "workgroupBarrier();"]

    def units(self) -> str:
        """Return WGSL functions of a block: the inverse unit of its digits, and (their unit, the offset times Σ x)."""
        parts = self.elements // 8
        most, total = "tops[block * {n}u].x", "tops[block * {n}u].y"
        for j in range(1, parts):
            most = f"max({most}, tops[block * {parts}u + {j}u].x)"
            total += f" + tops[block * {parts}u + {j}u].y"
        most, total = most.format(n=parts), total.format(n=parts)
        offset = "-8.0" if self.packing.bits == 4 else "0.0"
        return (
            "fn inverse_unit(block: u32) -> f32 {\n"
            f"  let most = {most};\n  return select(0.0, {float(MAX_VALUE)} / most, most > 0.0);\n}}\n"
            "fn unit(block: u32) -> vec2<f32> {\n"
            f"  return vec2<f32>({most} / {float(MAX_VALUE)}, {offset} * ({total}));\n}}"
        )


def digits_of(first: str, second: str, packing: Packing, digits: int) -> tuple[list[str], list[list[str]]]:
    """Return lines that round two quads, multiplied by `inverse`, to ints, and the two words of each digit.

    With 4 bits, the first word has the even elements. Adding 1.5 · 2²³ rounds a number to an int in its lowest bits.
    """
    if packing.bits == 4:
        even, odd = ("yw", "xz") if packing.high_first else ("xz", "yw")
        first, second = (f"vec4<f32>({first}.{c}, {second}.{c})" for c in (even, odd))
    lines = []
    for h, v in enumerate((first, second)):
        rounded = f"bitcast<vec4<i32>>({v} * inverse + vec4<f32>(12582912.0))"
        lines.append(f"  let i{h} = bitcast<vec4<u32>>({rounded} - vec4<i32>(0x4b400000));")
    shifts = [(7 * (digits - 1 - d), LOW[d]) for d in range(digits)]
    return lines, [[f"pack4xU8(i{h} >> vec4<u32>({shift}u)){low}" for h in (0, 1)] for shift, low in shifts]


def along_k(name: str, binding: str, quads: bool, tail: bool, row: str = "0u") -> str:
    """Return `name_quad(row, k)`: four elements of a row of the binding, which begins at `row`, zero beyond K."""
    if not quads:
        lanes = (f"select(0.0, {binding}_at({row} + min(k + {j}u, P.k - 1u)), k + {j}u < P.k)" for j in range(4))
        value = f"vec4<f32>({', '.join(lanes)})"
    elif tail:
        value = f"select(vec4<f32>(), {binding}_at4(({row} + min(k, P.k - 4u)) >> 2u), k < P.k)"
    else:
        value = f"{binding}_at4(({row} + k) >> 2u)"
    return f"fn {name}_quad(row: u32, k: u32) -> vec4<f32> {{ return {value}; }}"


def merged(merge: Merge, tail: bool) -> str:
    """Return `x_quad(row, k)`: four elements of a row, merged from parts of an attention, zero beyond K."""
    value = f"merged(((z * P.heads + h / P.sharing) * rows + row_) * {merge.quads + 1}u, quad % {merge.quads}u)"
    own = OWN.format(z="z") if merge.paged else ""
    text = (
        f"{merge.helpers('a')}\n"
        "fn x_quad(row: u32, k: u32) -> vec4<f32> {\n"
        f"  let quad = min(k, P.k - 4u) >> 2u; let h = quad / {merge.quads}u; let rows = P.queries * P.sharing;\n"
        f"  let z = row / P.queries; let row_ = row % P.queries * P.sharing + h % P.sharing; {own}\n"
        f"  return {f'select(vec4<f32>(), {value}, k < P.k)' if tail else value};\n}}"
    )
    return owned(text, merge.paged)
