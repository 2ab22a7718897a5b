"""Guards as text: the sizes that share a family of plans or a choice of kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..plan import CompiledMethod, Family, Input, Plan, RowValues, with_operands
from ..portable import PORTABLE

MAX_POINTS = 1 << 16  # upper bound on the sizes at which guards are compared; beyond it, all guards are shown
EXACT = 2**53  # larger constants in guards are not compared
LONGEST = 80  # characters of an expression inside another one; a longer one is named by its row
_INFIX = {
    "lt": ("<", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1), "add": ("+", 2), "sub": ("-", 2),
    "mul": ("*", 3), "floordiv": ("//", 3), "mod": ("%", 3), "div": ("/", 3),
}  # fmt: skip
_TURNED = {"lt": ">", "ge": "<=", "eq": "==", "ne": "!="}  # the operator after swapping a constant to the right
_ATOM = 9  # binds closer than any operator


class GuardText:
    """The rows of a plan as text: `input 0[1] < 9`, `ceil(input 0[1] / 4)`, `item 0 of input 1`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._texts: dict[int, tuple[str, int]] = {}

    def __call__(self, row: int) -> str:
        if row not in self._texts:
            for k in with_operands(self.plan.rows, [row]):
                self._texts.setdefault(k, self._format(k))
        return self._texts[row][0]

    def _format(self, row: int) -> tuple[str, int]:
        """Return the text and the precedence of its outermost operator."""
        op, a, b = self.plan.rows[row]
        names = self.plan.inputs
        if op == "const":
            return f"{a:g}" if isinstance(a, float) else str(a), _ATOM if a >= 0 else 3
        if op == "size":
            return f"{names[int(a)].name}[{int(b)}]", _ATOM
        if op == "int":
            return names[int(a)].name, _ATOM
        if op == "item":
            return f"item {self._within(int(a), _ATOM)} of {names[int(b)].name}", _ATOM
        if op not in _INFIX:  # ceil and floor have one operand, twice
            operands = [int(a)] if op in ("ceil", "floor") else [int(a), int(b)]
            return f"{op}({', '.join(self._within(k, 0) for k in operands)})", _ATOM
        if (over := self._rounded_up(row)) is not None:
            return f"ceil({self._within(over[0], 3)} / {self._within(over[1], 4)})", _ATOM
        sign, binds = _INFIX[op]
        if op in _TURNED and self._is_const(int(a)):
            a, b, sign = b, a, _TURNED[op]
        if op == "sub" and self._is_zero(int(a)):
            twice = self.plan.rows[int(b)]
            if twice[0] == "sub" and self._is_zero(int(twice[1])):
                return self._texts[int(twice[2])]
            return f"-{self._within(int(b), 3)}", 2
        return f"{self._within(int(a), binds)} {sign} {self._within(int(b), binds + 1)}", binds

    def _within(self, row: int, least: int) -> str:
        text, binds = self._texts[row]
        if len(text) > LONGEST:
            return f"row {row}"
        return text if binds >= least else f"({text})"

    def _rounded_up(self, row: int) -> tuple[int, int] | None:
        """Return a and b if the row is -(-a // b)."""
        rows = self.plan.rows
        op, zero, inner = rows[row]
        if op != "sub" or not self._is_zero(int(zero)) or rows[int(inner)][0] != "floordiv":
            return None
        _, negative, b = rows[int(inner)]
        op, zero, a = rows[int(negative)]
        return (int(a), int(b)) if op == "sub" and self._is_zero(int(zero)) else None

    def _is_const(self, row: int) -> bool:
        return self.plan.rows[row][0] == "const"

    def _is_zero(self, row: int) -> bool:
        return self._is_const(row) and self.plan.rows[row][1] == 0


class Space:
    """All combinations of the values of some sizes of a plan, at which guards are evaluated."""

    def __init__(self, plan: Plan, names: Mapping[int, str], columns: Mapping[int, np.ndarray], count: int) -> None:
        self.names, self.count = names, count  # of the sizes that vary, by their rows
        self.rows = RowValues(plan.rows, columns)

    def mask(self, guards: Iterable[int]) -> np.ndarray:
        """Return where all of the guards hold."""
        mask = np.ones(self.count, bool)
        for g in guards:
            mask &= np.asarray(self.rows[g], bool)
        return mask

    def telling(self, guards: Sequence[int], inside: np.ndarray, length: Callable[[int], int]) -> list[int]:
        """Drop the guards that follow from the others, long ones first."""
        remaining, full = list(guards), inside & self.mask(guards)
        for g in sorted(guards, key=lambda g: -length(g)):
            rest = [k for k in remaining if k != g]
            if np.array_equal(inside & self.mask(rest), full):
                remaining = rest
        return remaining

    def box(self, guards: Sequence[int], inside: np.ndarray) -> list[str] | None:
        """Return the guards as a range of each size, or as a size without one value; None if they are neither."""
        full = inside & self.mask(guards)
        if not full.any():
            return None
        sides = []  # (size, operator, limit)
        for row in self.names:
            values = self.rows[row][full]
            sides += [(row, ">=", int(values.min())), (row, "<=", int(values.max()))]
        needed_sides, within = list(sides), inside & self._within(sides)
        if not np.array_equal(within, full):
            return self._except(full, inside)
        for side in sides:
            rest = [k for k in needed_sides if k is not side]
            if np.array_equal(inside & self._within(rest), within):
                needed_sides = rest
        texts = []
        for low, high in zip(sides[::2], sides[1::2], strict=True):
            name, is_point = self.names[low[0]], low[2] == high[2]
            if low in needed_sides and high in needed_sides and not is_point:
                texts.append(f"{low[2]} <= {name} <= {high[2]}")
            elif low in needed_sides or high in needed_sides:
                _, sign, limit = low if low in needed_sides else high
                texts.append(f"{name} {'==' if is_point else sign} {limit}")
        return texts

    def _except(self, full: np.ndarray, inside: np.ndarray) -> list[str] | None:
        for row, name in self.names.items():
            without = np.unique(self.rows[row][inside & ~full])
            if len(without) == 1 and np.array_equal(full, inside & (self.rows[row] != without[0])):
                return [f"{name} != {without[0]}"]
        return None

    def _within(self, sides: Iterable[tuple[int, str, int]]) -> np.ndarray:
        mask = np.ones(self.count, bool)
        for row, sign, limit in sides:
            mask &= self.rows[row] >= limit if sign == ">=" else self.rows[row] <= limit
        return mask


class Guards:
    """The guards of a family and of its choices, without those that follow from others.

    Guards about the same sizes are evaluated at all values that these sizes can have.
    """

    def __init__(self, plan: Plan, text: GuardText, family: Family) -> None:
        self.plan, self.text, self.family = plan, text, family
        self.same, self.values, self.direct = equal_sizes(plan, family.guards)
        self._about: dict[int, frozenset[int] | None] = {}
        self._spaces: dict[frozenset[int], Space] = {}
        self.of_family = self._record(family.guards, (), family.refusal)

    def of_choice(self, guards: Sequence[int], refusal: str) -> dict[str, Any]:
        return self._record([g for g in guards if g not in self.family.guards], self.family.guards, refusal)

    def _record(self, guards: Sequence[int], assumed: Sequence[int], refusal: str) -> dict[str, Any]:
        """Return the guards that do not follow from `assumed`, and where they hold, simplified if possible."""
        remaining = [g for g in guards if g in self.direct]
        where = [self.text(g) for g in remaining]
        groups: dict[frozenset[int] | None, list[int]] = {}
        for g in guards:
            if g not in self.direct:
                groups.setdefault(self.about(g), []).append(g)
        for about, same in sorted(groups.items(), key=lambda item: MAX_POINTS if item[0] is None else len(item[0])):
            if about is None or not 0 < math.prod(len(self.values[key]) for key in about) <= MAX_POINTS:
                remaining += same
                where += map(self.text, same)
                continue
            space = self._space(about)
            inside = space.mask(
                [k for k in assumed if _is_within(self.about(k), about)]
                + [k for k in guards if k not in same and _is_within(self.about(k), about)]
            )
            telling = space.telling(same, inside, lambda g: len(self.text(g)))
            box = space.box(telling, inside) if telling else []
            remaining += telling
            where += [self.text(g) for g in telling] if box is None else box
        texts = [self.text(g) for g in guards if g in remaining]
        return {"where": where, "guards": texts, "refusal": refusal}

    def about(self, guard: int) -> frozenset[int] | None:
        """Return the dynamic sizes that a guard depends on; None if it also depends on ints or data."""
        if guard not in self._about:
            operands = {k: self.plan.rows[k] for k in with_operands(self.plan.rows, [guard])}
            more = any(op in ("int", "item") or (op == "const" and abs(a) > EXACT) for op, a, _ in operands.values())
            keys = frozenset(self.same[k] for k in operands if k in self.same)
            self._about[guard] = None if more else frozenset(key for key in keys if len(self.values[key]) != 1)
        return self._about[guard]

    def _space(self, about: frozenset[int]) -> Space:
        if about not in self._spaces:
            axes = sorted(about)
            grid = np.meshgrid(*(self.values[key] for key in axes), indexing="ij")
            columns = {key: points.ravel() for key, points in zip(axes, grid, strict=True)}
            count = math.prod(len(self.values[key]) for key in axes)
            of = {row: columns[key] for row, key in self.same.items() if key in columns}
            of |= {row: np.array(self.values[key]) for row, key in self.same.items() if len(self.values[key]) == 1}
            self._spaces[about] = Space(self.plan, {key: self.text(key) for key in axes}, of, count)
        return self._spaces[about]


def _is_within(about: frozenset[int] | None, sizes: frozenset[int]) -> bool:
    return about is not None and about <= sizes


def equal_sizes(plan: Plan, guards: Sequence[int]) -> tuple[dict[int, int], dict[int, range], set[int]]:
    """Return a representative for each size, the values of representatives, and the guards that equate sizes."""
    sizes = {k: plan.inputs[int(a)].shape[int(b)] for k, (op, a, b) in enumerate(plan.rows) if op == "size"}
    same = {row: row for row in sizes}
    values = {row: range(most + 1) for row, most in sizes.items()}
    direct: set[int] = set()
    for g in guards:
        op, a, b = plan.rows[g]
        if op != "eq" or a not in sizes or (b not in sizes and plan.rows[int(b)][0] != "const"):
            continue
        direct.add(g)
        key = same[int(a)]
        if b in sizes:
            new = same[int(b)]
            values[new] = range(max(values[key].start, values[new].start), min(values[key].stop, values[new].stop))
            same = {row: new if of == key else of for row, of in same.items()}
        else:
            only = int(plan.rows[int(b)][1])
            values[key] = range(only, only + (only in values[key]))
    return same, values, direct


def plan_report(plan: Plan) -> dict[str, Any]:
    """Return the parts of a plan. Guards that follow from others, or from the family's, are left out."""
    text = GuardText(plan)
    families = []
    for family in plan.families:
        guards = Guards(plan, text, family)
        alike = Counter(tuple((c.guards, c.refusal) for c in choices) for choices in family.steps)
        steps = [
            {"nodes": count, "choices": [guards.of_choice(*choice) for choice in choices]}
            for choices, count in alike.most_common()
        ]
        families.append(guards.of_family | {"steps": steps})
    return {
        "name": plan.name,
        "nodes": max((len(f.steps) for f in plan.families), default=0),
        "sizes": {name: most for i in plan.inputs for name, most in sizes_of(i).items()},
        "families": families,
        "choices": sum(len(choices) for f in plan.families for choices in f.steps),
        "expressions": len(plan.rows),
        "kernels": len(plan.kernels),
    }


def sizes_of(i: Input) -> dict[str, int | None]:
    """Return the dynamic sizes of an input with their upper bounds; the name of an int has none."""
    if i.dtype is None:
        return {i.name: None}
    return {f"{i.name}[{d}]": n for d, n in enumerate(i.shape)} if i.dynamic else {}


def numpy_calls(outer: CompiledMethod) -> Counter[str]:
    """Count the calls that need a NumPy kernel, by operator."""
    return Counter(op for op in outer.on_host if op in PORTABLE)
