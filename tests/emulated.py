"""Kernels with matrices, run on an adapter that has none.

`adapter(gpu)` makes a device pretend to have matrices; `emulate(wgsl)` is what its kernels become. Subgroups are 32
invocations after each other. A matrix is one of two things:

- an operand of a product is a *view* of the array that it was loaded from: first element, stride of its rows, stride
  of its columns. That is right as long as nobody writes there between load and product: `emulate` refuses a kernel in
  which a barrier, or a store to that array, lies between them;
- all others are *spread*: invocation i has a part of row i / 2, the left half if i is even.

What is loaded from outside an array is NaN. Anything that is not understood is a ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from ptegpu.gpu.device import Device
from ptegpu.kernels.matrices import LANES, NEEDS
from ptegpu.plan import dialect
from ptegpu.plan.plan import Kernel

SPREAD = {(16, 16): "mat2x4<f32>", (8, 16): "vec4<f32>"}  # (columns, rows) of a matrix: an invocation's part
_WIDTHS = {"mat2x4<f32>": (8, "[i / 4u][i % 4u]"), "vec4<f32>": (4, "[i]")}  # elements, and number i of them
VIEW = "vec3<u32>"
_TYPE = re.compile(r"subgroup_matrix_(left|right|result)<(f16|f32), (\d+), (\d+)>")
_ARRAY = re.compile(r"var<(?:workgroup|storage, read|storage, read_write)> (\w+): array<(f16|f32)[,>]")
_DECLARED = re.compile(rf"var (\w+)(?:: {_TYPE.pattern};| = {_TYPE.pattern}\(\);)")
_EVENT = re.compile(  # all that matters to a view, and all that has to be rewritten
    r"(?P<open>\{)|(?P<close>\})|(?P<barrier>workgroupBarrier\(\))|(?P<loop>\bfor \()"
    r"|(?P<write>\b(?P<written>\w+)\[[^;={}]*\] [-+*/|&^]?= )"
    r"|(?P<call>(?:(?P<let>let |var )?(?P<result>\w+(?:\[\w+\])*) = )?subgroupMatrix(?P<name>\w+)(?:<(?P<type>.*?>?)>)?\()"
)


@contextmanager
def adapter(gpu: Device) -> Iterator[Device]:
    """The device, with a target that has matrices, while the context lasts."""
    real, source = gpu.target, dialect.source

    def emulated(kernel: Kernel, spoken: dialect.Dialect) -> str:
        if "matrices" not in kernel.needs or spoken == "tint":
            return source(kernel, spoken)
        return "enable f16;\n" + emulate(kernel.wgsl)

    target = replace(real, matrices=NEEDS, subgroup_size=LANES)
    with patch.object(gpu, "target", target), patch.object(dialect, "source", emulated):
        yield gpu


def emulate(wgsl: str) -> str:
    """The same module without matrices."""
    return _Module(wgsl).text()


@dataclass(slots=True)
class _View:
    array: str
    depth: int  # of the loops around its load
    stale: str = ""  # what has made it so


class _Module:
    def __init__(self, wgsl: str) -> None:
        self.wgsl = wgsl
        self.arrays = dict(_ARRAY.findall(wgsl))
        self.functions: dict[str, str] = {}
        self.operands: set[str] = set()
        self.stored: set[str] = set()
        self.kinds: dict[str, tuple[str, tuple[int, int]]] = {}  # of variables: left, right or result; columns and rows
        self.places: dict[str, str] = {}  # of variables, in arrays
        self.scopes: list[dict[str, _View]] = [{}]
        self.loops: list[int] = []  # the scopes that are bodies of loops
        for _, call, args, _ in self._calls():
            if call["name"].startswith("Multiply"):
                self.operands |= {args[0], args[1]}
            elif call["name"] == "Store":
                self.stored.add(_base(args[2]))
        if both := self.operands & self.stored:
            raise ValueError(f"both operand of a product and stored: {sorted(both)}")

    def _calls(self) -> Iterator[tuple[int, re.Match[str], list[str], int]]:
        """Where each call begins, its match, its arguments, where it ends."""
        for m in _EVENT.finditer(self.wgsl):
            if m["call"]:
                args, end = _arguments(self.wgsl, m.end())
                yield m.start(), m, args, end

    def text(self) -> str:
        for m in _DECLARED.finditer(self.wgsl):
            found = [g for g in m.groups()[1:] if g is not None]
            self._declare(m[1], found)
        parts, at, looping = [], 0, False
        for m in _EVENT.finditer(self.wgsl):
            if m.start() < at:
                raise ValueError(f"a call within a call: {m[0]}")
            if m["call"]:
                args, end = _arguments(self.wgsl, m.end())
                parts += [self.wgsl[at : m.start()], self._call(m, args)]
                at = end
            elif m["loop"]:
                looping = True
            elif m["open"]:
                self.scopes.append({})
                if looping:
                    self.loops.append(len(self.scopes))
                looping = False
            elif m["close"]:
                if self.loops and self.loops[-1] == len(self.scopes):
                    self.loops.pop()
                self.scopes.pop()
            else:
                self._spoil(m["written"])
        text = "".join(parts) + self.wgsl[at:]
        text = _DECLARED.sub(self._declaration, text)
        state = self._settle()
        text = re.sub(rf"(?:let |var )?\b({'|'.join(self.places)})\b", lambda m: self.places[m[1]], text)
        text, count = re.subn(r", @builtin\(subgroup_id\) sg: u32", "", text)
        start = "let group = wid.x + wid.y * nwg.x;"
        if count != 1 or text.count(start) != 1 or re.search("subgroup|@builtin.*sg_", text):
            raise ValueError(f"not understood:\n{text}")
        ours = f"let sg = lid / {LANES}u; em_lane = lid % {LANES}u; em_one = min(P.groups, 1u);"
        before, after = text.replace(start, f"{start} {ours}").split("@compute", 1)
        # A loop whose length is not known to the compiler stays a loop.
        after = re.sub(r"for \(var (\w+) = 0u; \1 < (\d+)u; \1\+\+\)", r"for (var \1 = 0u; \1 < \2u; \1 += em_one)", after)
        lines = rolled(rolled(after.splitlines(), "em_i", 1), "em_j", 32)
        return "\n".join([before, state, *self.functions.values(), "@compute", *lines, ""])

    def _declare(self, name: str, found: list[str]) -> None:
        kind, element, columns, rows = found
        if element != ("f32" if kind == "result" else "f16"):
            raise ValueError(f"{name}: a {kind} of {element}")
        given = kind, (int(columns), int(rows))
        if self.kinds.setdefault(name, given) != given:
            raise ValueError(f"{name} is {self.kinds[name]} and {given}")

    def _declaration(self, m: re.Match[str]) -> str:
        return f"{m[1]} = {self._part(m[1])}();"

    def _part(self, name: str) -> str:
        kind, (columns, rows) = self.kinds[name]
        return VIEW if name in self.operands else _spread(name, columns, rows)

    def _settle(self) -> str:
        """Gives each matrix a place in an array of its type; the declarations of these arrays, and of other state."""
        state = ["var<private> em_lane: u32;", "var<private> em_one: u32;"]
        for part in (VIEW, *SPREAD.values()):
            array = "em_" + part.split("<")[0]
            names = [name for name in self.kinds if self._part(name) == part]
            self.places |= {name: f"{array}[{i}u]" for i, name in enumerate(names)}
            state += [f"var<private> {array}: array<{part}, {len(names)}>;"] if names else []
        return "\n".join(state)

    def _spoil(self, array: str | None) -> None:
        """Views of an array that is written, or of all that may be after a barrier, hold no longer."""
        for scope in self.scopes:
            for view in scope.values():
                if array is None or view.array == array:
                    view.stale = f"a store to {array}" if array else "a barrier"

    def _call(self, m: re.Match[str], args: list[str]) -> str:
        name, result = m["name"], m["result"]
        head = f"{m['let'] or ''}{result} = " if result else ""
        if name == "Load" and result and len(args) == 4:
            array, first, turned, stride = args
            array = self._array(array)
            found = _TYPE.fullmatch(m["type"] or "")
            if not found:
                raise ValueError(f"not understood: {m[0]}")
            self._declare(_base(result), list(found.groups()))
            steps = _steps(turned, stride)
            if result in self.operands:
                self._see(result, array, bool(m["let"]))
                return f"{head}{VIEW}({first}, {steps})"
            part = _spread(found[0], int(found[3]), int(found[4]))
            return f"{head}{self._load(array, part)}({first}, {steps})"
        if name == "Store" and not result and len(args) == 5:
            array, first, value, turned, stride = args
            array = self._array(array)
            kind, (columns, rows) = self._kind(value)
            if self.arrays[array] != ("f32" if kind == "result" else "f16"):
                raise ValueError(f"a {kind} stored to {array} of {self.arrays[array]}")
            self._spoil(array)
            return f"{self._store(array, _spread(value, columns, rows))}({first}, {_steps(turned, stride)}, {value})"
        if name in ("Multiply", "MultiplyAccumulate") and result and len(args) == 2 + (name != "Multiply"):
            for operand, kind in zip(args, ("left", "right", "result"), strict=False):
                if self._kind(operand) != (kind, (16, 16)):
                    raise ValueError(f"{operand} is {self._kind(operand)}, no {kind} of 16 x 16")
            if name == "Multiply":
                self._declare(_base(result), ["result", "f32", "16", "16"])
                args.append("mat2x4<f32>()")
            return f"{head}{self._multiply(self._view(args[0]), self._view(args[1]))}({', '.join(args)})"
        raise ValueError(f"not understood: {m[0]}{', '.join(args)})")

    def _array(self, pointer: str) -> str:
        name = pointer.removeprefix("&")
        if pointer == name or name not in self.arrays:
            raise ValueError(f"no array of f16 or f32: {pointer}")
        return name

    def _kind(self, value: str) -> tuple[str, tuple[int, int]]:
        if _base(value) not in self.kinds:
            raise ValueError(f"no matrix is known as {value}")
        return self.kinds[_base(value)]

    def _see(self, name: str, array: str, declared: bool) -> None:
        known = [scope for scope in self.scopes if name in scope]
        scope = self.scopes[-1] if declared or not known else known[-1]
        if not declared and name in scope and scope[name].array != array:
            raise ValueError(f"{name} is a view of {scope[name].array} and of {array}")
        scope[name] = _View(array, len(self.loops))

    def _view(self, name: str) -> str:
        view = next((scope[name] for scope in reversed(self.scopes) if name in scope), None)
        if view is None:
            raise ValueError(f"{name} is not loaded before it is multiplied, or in another block")
        if view.stale or view.depth != len(self.loops):
            raise ValueError(f"{name} is loaded before {view.stale or 'a loop'}, and multiplied after it")
        return view.array

    def _load(self, array: str, part: str) -> str:
        width, at = _WIDTHS[part]
        bound = f"arrayLength(&{array})" if f" {array}: array<{self.arrays[array]}>" in self.wgsl else self._length(array)
        return self._function(
            f"em_load{width}_{array}",
            f"(first: u32, down: u32, along: u32) -> {part} {{\n  var v: {part}; {_place(width)}\n"
            f"  for (var i = 0u; i < {width}u; i += em_one) {{\n"
            f"    if (at < {bound}) {{ v{at} = f32({array}[at]); }} else {{ v{at} = bitcast<f32>(em_one * 0x7fc00000u); }}\n"
            "    at += along;\n  }\n  return v;\n}",
        )

    def _length(self, array: str) -> str:
        found = re.search(rf" {array}: array<f(?:16|32), (\d+)>", self.wgsl)
        if not found:
            raise ValueError(f"an array of unknown length: {array}")
        return f"{found[1]}u"

    def _store(self, array: str, part: str) -> str:
        width, at = _WIDTHS[part]
        return self._function(
            f"em_store{width}_{array}",
            f"(first: u32, down: u32, along: u32, given: {part}) {{\n  var v = given; {_place(width)}\n"
            f"  for (var i = 0u; i < {width}u; i += em_one) {{ {array}[at] = {self.arrays[array]}(v{at}); at += along; }}\n}}",
        )

    def _multiply(self, left: str, right: str) -> str:
        values = [f"f32({right}[r + {i}u * right.z])" for i in range(8)]
        return self._function(
            f"em_multiply_{left}_{right}",
            f"(left: {VIEW}, right: {VIEW}, sums: mat2x4<f32>) -> mat2x4<f32> {{\n"
            "  var found = sums; var l = left.x + em_lane / 2u * left.y; var r = right.x + em_lane % 2u * 8u * right.z;\n"
            "  for (var k = 0u; k < 16u; k += em_one) {\n"
            f"    let x = f32({left}[l]);\n"
            f"    found += mat2x4<f32>(x * vec4<f32>({', '.join(values[:4])}), x * vec4<f32>({', '.join(values[4:])}));\n"
            "    l += left.z; r += right.y;\n"
            "  }\n"
            "  return found;\n}",
        )

    def _function(self, name: str, rest: str) -> str:
        self.functions[name] = f"fn {name}{rest}"
        return name


_NUMBER = re.compile(r"(?<![\w.])(\d+)u\b")


def rolled(lines: list[str], name: str, most: int) -> list[str]:
    """The lines with loops for those that repeat but for their numbers, `most` at a time: Mesa is slow with long text."""
    shapes = [_NUMBER.sub("#", line) for line in lines]
    found, at = [], 0
    while at < len(lines):
        best = 0, 0
        for period in range(1, most + 1):
            if _closed(lines[at : at + period]):
                count = 1
                while shapes[at : at + period] == shapes[at + count * period : at + (count + 1) * period]:
                    count += 1
                best = max(best, (period * (count - 1), period)) if count > 2 or period > 1 < count else best
        saved, period = best
        if not saved:
            found.append(lines[at])
            at += 1
            continue
        count = saved // period + 1
        body = "\n".join(lines[at : at + period])
        values = [_NUMBER.findall("\n".join(lines[at + c * period : at + (c + 1) * period])) for c in range(count)]
        columns = iter([_series([int(v) for v in column], name) for column in zip(*values, strict=True)])
        found.append(f"for (var {name} = 0u; {name} < {count}u; {name} += em_one) {{")
        found += [*_NUMBER.sub(lambda _: next(columns), body).splitlines(), "}"]
        at += count * period
    return found


def _closed(lines: list[str]) -> bool:
    """Whether they can be the body of a loop."""
    depth = 0
    for line in lines:
        if re.search(r"\b(return|break|continue)\b", line) or (not depth and re.match(r" *(let|var) ", line)):
            return False
        depth += line.count("{") - line.count("}")
        if depth < 0:
            return False
    return depth == 0


def _series(values: list[int], name: str) -> str:
    """These numbers, one for each turn of a loop."""
    step = values[1] - values[0]
    if not any(b - a != step for a, b in zip(values, values[1:], strict=False)) and step >= 0:
        return f"({values[0]}u + {name} * {step}u)" if step else f"{values[0]}u"
    return f"array<u32, {len(values)}>({', '.join(f'{v}u' for v in values)})[{name}]"


def _base(value: str) -> str:
    """The variable of an element of it."""
    return value.split("[")[0]


def _spread(what: str, columns: int, rows: int) -> str:
    if (columns, rows) not in SPREAD:
        raise ValueError(f"{what} is {rows} x {columns}")
    return SPREAD[columns, rows]


def _steps(turned: str, stride: str) -> str:
    """From a row to the next, and from a column to the next."""
    if turned not in ("true", "false"):
        raise ValueError(f"turned or not? {turned}")
    return f"1u, {stride}" if turned == "true" else f"{stride}, 1u"


def _place(width: int) -> str:
    return f"var at = first + em_lane / 2u * down + em_lane % 2u * {width}u * along;"


def _arguments(text: str, at: int) -> tuple[list[str], int]:
    """The arguments of a call from behind its opening parenthesis on, and where it ends."""
    depth, found, begin = 0, [], at
    for i in range(at, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}" and depth:
            depth -= 1
        elif not depth and text[i] in ",)":
            found.append(text[begin:i].strip())
            begin = i + 1
            if text[i] == ")":
                return found, i + 1
    raise ValueError(f"a call without an end: {text[at : at + 60]}")
