"""Emulation of subgroup matrices on an adapter without them.

`adapter(gpu)` makes a device pretend to have matrices; `emulate(wgsl)` rewrites its kernels. A subgroup is 32
consecutive invocations. A matrix is one of three things:

- *spread*, if it is a result or is stored: invocation i has half of row i / 2, the left half if i is even;
- a *view*, if it is an operand of products: the first element, row stride and column stride in the array that it was
  loaded from. The array must not change before the product;
- a *copy*, if it is a left operand whose array may have changed: after a store to that array, a barrier, or the
  beginning of a loop. Invocation i has all of row i / 2. A right operand must not be used there.

An invocation that loads out of bounds, which no GPU has to tolerate, stores only NaN from then on. Unknown syntax
raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from unittest.mock import patch

from ptegpu.gpu.device import Device
from ptegpu.kernels.tensor_core_blocks import LANES, NEEDS
from ptegpu.plan import directives
from ptegpu.plan.plan import Kernel
from ptegpu.plan.target import CLASSES

VIEW, COPY, HALF, QUAD = "vec3<u32>", "mat4x4<f32>", "mat2x4<f32>", "vec4<f32>"
_SPREAD: dict[tuple[str, ...], str] = {("16", "16"): HALF, ("8", "16"): QUAD}  # by columns and rows
_ELEMENTS = {COPY: (16, "[i / 4u][i % 4u]"), HALF: (8, "[i / 4u][i % 4u]"), QUAD: (4, "[i]")}  # count, element i
_TYPE = re.compile(r"subgroup_matrix_(left|right|result)<(f16|f32), (\d+), (\d+)>")
_ARRAY = re.compile(r"var<(?:workgroup|storage, read|storage, read_write)> (\w+): array<(f16|f32)(?:, (\d+))?>")
_DECLARED = re.compile(rf"var (\w+)(?:: ({_TYPE.pattern});| = ({_TYPE.pattern})\(\);)")
_CALL = r"(?:(?P<let>let |var )?(?P<result>\w+) = )?subgroupMatrix(?P<name>\w+)(?:<(?P<type>\w+(?:<[^<>]*>)?)>)?\("
_EVENT = re.compile(  # everything that may invalidate a view or must be rewritten
    r"(?P<open>\{)|(?P<close>\})|(?P<barrier>\w+Barrier\(\)|workgroupUniformLoad\()|(?P<loop>\b(?:for|while|loop)\b)"
    rf"|(?P<write>\b(?P<written>\w+)\[[^;={{}}]*\] [-+*/|&^]?= )|(?P<call>{_CALL})"
)
_NUMBER = re.compile(r"(?<![\w.])(\d+)u\b")


@contextmanager
def adapter(gpu: Device) -> Iterator[Device]:
    """Give the device a target with matrices for the duration of the context."""
    real, source = gpu.target, directives.source

    def emulated(kernel: Kernel, spoken: directives.Dialect) -> str:
        if "matrices" not in kernel.needs or spoken == "tint":
            return source(kernel, spoken)
        return "enable f16;\n" + emulate(kernel.wgsl)

    target = replace(real, matrices=NEEDS, subgroup_size=LANES, device_class=CLASSES["discrete"])
    with patch.object(gpu, "target", target), patch.object(directives, "source", emulated):
        yield gpu


def emulate(wgsl: str) -> str:
    """Return the module rewritten without matrices."""
    copied: frozenset[str] = frozenset()
    while True:
        try:
            return _Module(wgsl, copied).text()
        except _Late as late:
            copied |= {late.name}


class _Late(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(slots=True)
class _Loaded:
    """An operand: its array, the loops around its load, and whether the array may have changed since."""

    array: str
    loops: int
    stale: bool = False


class _Module:
    def __init__(self, wgsl: str, copied: frozenset[str]) -> None:
        self.wgsl, self.copied = wgsl, copied
        self.arrays = {name: (element, length) for name, element, length in _ARRAY.findall(wgsl)}
        self.functions: dict[str, str] = {}
        self.types: dict[str, tuple[str, ...]] = {}  # by variable: left, right or result; element; columns; rows
        self.scopes: list[dict[str, _Loaded | None]] = [{}]  # operands and other matrices declared with `let`
        self.loops: list[int] = []  # scopes that are loop bodies
        calls = [(m["name"], _arguments(wgsl, m.end())[0]) for m in _EVENT.finditer(wgsl) if m["call"]]
        self.operands = {x for name, args in calls if name.startswith("Multiply") for x in args[:2]}
        if both := self.operands & {args[2] for name, args in calls if name == "Store"}:
            raise ValueError(f"both operands of products and stored: {sorted(both)}")

    def text(self) -> str:
        for m in _DECLARED.finditer(self.wgsl):
            if m[1] in self.types:
                raise ValueError(f"{m[1]} is declared twice")
            self._declare(m[1], m[2] or m[7])
        text = _DECLARED.sub(lambda m: f"{m[1]} = {self._part(m[1])}();", self._events())
        state = self._settle()
        text = re.sub(rf"(?:let |var )?(?<![.\w])({'|'.join(self.places)})\b", lambda m: self.places[m[1]], text)
        text, count = re.subn(r", @builtin\(subgroup_id\) sg: u32", "", text)
        start = "let group = wid.x + wid.y * nwg.x;"
        if count != 1 or text.count(start) != 1 or re.search("subgroup|@builtin.* sg", text):
            raise ValueError(f"unsupported module:\n{text}")
        # Mesa unrolls loops whose length it knows or finds in the parameters, so it must not see that this is 1.
        ours = f"let sg = lid / {LANES}u; em_lane = lid % {LANES}u; em_one = min(nwg.x, 1u);"
        before, after = text.replace(start, f"{start} {ours}").split("@compute", 1)
        after = re.sub(r"(for \(var (\w+) = 0u; \2 < \d+u; \2)\+\+\)", r"\1 += em_one)", after)
        lines = rolled(rolled(after.splitlines(), "em_i", 1), "em_j", 32)
        return "\n".join([before, *state, *self.functions.values(), "@compute", *lines, ""])

    def _events(self) -> str:
        """Return the text with its calls rewritten."""
        parts, at, looping, variables = [], 0, False, set(self.types)
        for m in _EVENT.finditer(self.wgsl):
            if m.start() < at:
                raise ValueError(f"unsupported within a call: {m[0]}")
            if m["call"]:
                args, end = _arguments(self.wgsl, m.end())
                if m["let"]:
                    if m["result"] in variables or any(m["result"] in scope for scope in self.scopes):
                        raise ValueError(f"{m['result']} is declared twice")
                    self.scopes[-1][m["result"]] = None
                parts += [self.wgsl[at : m.start()], self._call(m, args)]
                at = end
            elif m["loop"]:
                looping = True
            elif m["open"]:
                self.scopes.append({})
                self.loops += [len(self.scopes)] if looping else []
                looping = False
            elif m["close"]:
                self.loops = [scope for scope in self.loops if scope < len(self.scopes)]
                self.scopes.pop()
            else:
                self._spoil(m["written"])
        return "".join(parts) + self.wgsl[at:]

    def _spoil(self, array: str | None) -> None:
        """Mark operands of a written array as stale; a barrier (None) may mean writes to any array."""
        for loaded in (x for scope in self.scopes for x in scope.values() if x):
            loaded.stale |= array in (None, loaded.array)

    def _declare(self, name: str, type_text: str) -> None:
        match = _TYPE.fullmatch(type_text)
        if not match or match[2] != ("f32" if match[1] == "result" else "f16") or match.groups()[2:] not in _SPREAD:
            raise ValueError(f"{name}: {type_text}")
        if self.types.setdefault(name, match.groups()) != match.groups():
            raise ValueError(f"{name} is {self.types[name]} and {type_text}")

    def _type(self, name: str) -> tuple[str, ...]:
        if name not in self.types:
            raise ValueError(f"unknown matrix {name}")
        return self.types[name]

    def _part(self, name: str) -> str:
        """Return the type of an invocation's part of a matrix."""
        return COPY if name in self.copied else VIEW if name in self.operands else _SPREAD[self._type(name)[2:]]

    def _settle(self) -> list[str]:
        """Assign each matrix an element of an array of its type; return the declarations of all state."""
        state, self.places = [f"var<private> em_{name}: u32;" for name in ("lane", "one", "outside")], dict[str, str]()
        for part in (VIEW, COPY, HALF, QUAD):
            names = [name for name in self.types if self._part(name) == part]
            array = f"em_{part.split('<')[0]}"
            self.places |= {name: f"{array}[{i}u]" for i, name in enumerate(names)}
            state += [f"var<private> {array}: array<{part}, {len(names)}>;"] if names else []
        return state

    def _call(self, m: re.Match[str], args: list[str]) -> str:
        name, result = m["name"], m["result"]
        head = f"{m['let'] or ''}{result} = "
        if name == "Load" and result and len(args) == 4:
            pointer, first, column_major, stride = args
            array = self._array(pointer)
            self._declare(result, m["type"] or "")
            if result in self.operands:
                self.scopes[-1][result] = _Loaded(array, len(self.loops))
            part, steps = self._part(result), _steps(column_major, stride)
            return f"{head}{VIEW if part == VIEW else self._load(array, part)}({first}, {steps})"
        if name == "Store" and not result and len(args) == 5:
            pointer, first, value, column_major, stride = args
            array = self._array(pointer)
            if self._type(value)[1] != self.arrays[array][0]:
                raise ValueError(f"{value} is {self._type(value)}, but {array} has elements of {self.arrays[array][0]}")
            self._spoil(array)
            return f"{self._store(array, self._part(value))}({first}, {_steps(column_major, stride)}, {value})"
        if name in ("Multiply", "MultiplyAccumulate") and result and len(args) == (2 if name == "Multiply" else 3):
            if name == "Multiply":
                self._declare(result, "subgroup_matrix_result<f32, 16, 16>")
            for operand, kind in zip([*args, result], ("left", "right", "result"), strict=False):
                if (self._type(operand)[0], *self._type(operand)[2:]) != (kind, "16", "16"):
                    raise ValueError(f"{operand} is {self._type(operand)}, expected {kind} of 16 x 16")
            left, right = self._operand(args[0], "left"), self._operand(args[1], "right")
            operands = [*args[:2], args[2] if len(args) == 3 else f"{HALF}()"]
            return f"{head}{self._multiply('' if args[0] in self.copied else left, right)}({', '.join(operands)})"
        raise ValueError(f"unsupported call: {m[0]}{', '.join(args)})")

    def _array(self, pointer: str) -> str:
        name = pointer.removeprefix("&")
        if pointer == name or name not in self.arrays:
            raise ValueError(f"unknown array {pointer}: expected one of f16 or f32")
        return name

    def _operand(self, name: str, kind: str) -> str:
        """Return the array that an operand was loaded from."""
        loaded = next((scope[name] for scope in reversed(self.scopes) if scope.get(name)), None)
        if loaded is None:
            raise ValueError(f"{name} is multiplied, but not loaded in the same or an enclosing block")
        if (loaded.stale or loaded.loops != len(self.loops)) and name not in self.copied:
            if kind == "right":
                raise ValueError(f"{name} is multiplied when {loaded.array} may have changed")
            raise _Late(name)
        return loaded.array

    def _load(self, array: str, part: str) -> str:
        count, at = _ELEMENTS[part]
        length = self.arrays[array][1]
        return self._function(
            f"em_load{count}_{array}",
            f"(first: u32, down: u32, along: u32) -> {part} {{\n  var v: {part}; {_place(part)}\n"
            f"  for (var i = 0u; i < {count}u; i += em_one) {{\n"
            f"    if (at >= {f'{length}u' if length else f'arrayLength(&{array})'}) {{ em_outside = 0x7fc00000u; }}\n"
            f"    v{at} = f32({array}[at]);\n"
            "    at += along;\n  }\n  return v;\n}",
        )

    def _store(self, array: str, part: str) -> str:
        count, at = _ELEMENTS[part]
        return self._function(
            f"em_store{count}_{array}",
            f"(first: u32, down: u32, along: u32, given: {part}) {{\n  var v = given; {_place(part)}\n"
            f"  for (var i = 0u; i < {count}u; i += em_one) {{\n"
            f"    {array}[at] = {self.arrays[array][0]}(bitcast<f32>(bitcast<u32>(v{at}) | em_outside));\n"
            "    at += along;\n  }\n}",
        )

    def _multiply(self, left: str, right: str) -> str:
        """Define the function that multiplies a view of `left`, or a copy if it is empty, by a view of `right`."""
        b = [f"f32({right}[r + {i}u * right.z])" for i in range(8)]
        return self._function(
            f"em_multiply_{left}_{right}",
            f"(left: {VIEW if left else COPY}, right: {VIEW}, sums: {HALF}) -> {HALF} {{\n  var found = sums;\n"
            + ("  let first = left.x + em_lane / 2u * left.y;\n" if left else "  var row = left;\n")
            + "  var r = right.x + em_lane % 2u * 8u * right.z;\n"
            "  for (var k = 0u; k < 16u; k += em_one) {\n"
            f"    let a = {f'f32({left}[first + k * left.z])' if left else 'row[k / 4u][k % 4u]'};\n"
            f"    found[0] += a * vec4<f32>({', '.join(b[:4])});\n"
            f"    found[1] += a * vec4<f32>({', '.join(b[4:])});\n"
            "    r += right.y;\n  }\n  return found;\n}",
        )

    def _function(self, name: str, rest: str) -> str:
        self.functions[name] = f"fn {name}{rest}"
        return name


def _steps(column_major: str, stride: str) -> str:
    """Return the strides of rows and of columns."""
    if column_major not in ("true", "false"):
        raise ValueError(f"invalid order {column_major}: expected true or false")
    return f"1u, {stride}" if column_major == "true" else f"{stride}, 1u"


def _place(part: str) -> str:
    column = "" if part == COPY else f" + em_lane % 2u * {_ELEMENTS[part][0]}u * along"
    return f"var at = first + em_lane / 2u * down{column};"


def _arguments(text: str, at: int) -> tuple[list[str], int]:
    """Return the arguments of a call whose opening parenthesis precedes `at`, and the end of the call."""
    depth, arguments, begin = 0, [], at
    for i in range(at, len(text)):
        if not depth and text[i] in ",)":
            arguments.append(text[begin:i].strip())
            begin = i + 1
            if text[i] == ")":
                return arguments, i + 1
        depth += (text[i] in "([{") - (text[i] in ")]}")
    raise ValueError(f"missing closing parenthesis: {text[at : at + 60]}")


def rolled(lines: list[str], name: str, most: int) -> list[str]:
    """Replace groups of up to `most` lines that repeat with other numbers by loops; Mesa is slow with long texts."""
    shapes = [_NUMBER.sub("#", line) for line in lines]
    result, at = [], 0
    while at < len(lines):
        saved, period = 0, 1
        for size in range(1, most + 1):
            count = 1
            while _closed(lines[at : at + size]) and shapes[at : at + size] == shapes[at + count * size :][:size]:
                count += 1
            if size * (count - 1) > max(saved, 1):
                saved, period = size * (count - 1), size
        count = saved // period + 1
        turns = ["\n".join(lines[at + turn * period :][:period]) for turn in range(count)]
        if count > 1:
            values = zip(*([int(v) for v in _NUMBER.findall(turn)] for turn in turns), strict=True)
            series = [_series(column, name) for column in values]
            pieces = _NUMBER.split(turns[0])[::2]
            body = "".join(a + b for a, b in zip(pieces, [*series, ""], strict=True))
            turns = [f"for (var {name} = 0u; {name} < {count}u; {name} += em_one) {{", body, "}"]
        result += "\n".join(turns).splitlines()
        at += count * period
    return result


def _closed(lines: list[str]) -> bool:
    """Return True if the lines can be the body of a loop."""
    depth = 0
    for line in lines:
        if re.search(r"\b(return|break|continue)\b", line) or (not depth and re.match(r" *(let|var) ", line)):
            return False
        depth += line.count("{") - line.count("}")
        if depth < 0:
            return False
    return depth == 0


def _series(values: tuple[int, ...], name: str) -> str:
    """Return an expression for a loop's numbers, one for each iteration."""
    step = values[1] - values[0]
    if step >= 0 and all(b - a == step for a, b in pairwise(values)):
        return f"({values[0]}u + {name} * {step}u)" if step else f"{values[0]}u"
    return f"array<u32, {len(values)}>({', '.join(f'{v}u' for v in values)})[{name}]"
