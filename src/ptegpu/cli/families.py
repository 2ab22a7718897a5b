"""Plans for readers: which sizes share a family or a choice, in words, and what a run at given sizes costs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import typer

from ..compiler.order import writes
from ..errors import InvalidInput
from ..graph.linear import Jump, Var
from ..plan import Family, Host, Input, Outer, Plan, Port
from ..plan.numbers import Many, needed
from ..plan.resolve import Resolver, chosen, evaluated
from ..portable import PORTABLE

MAX_POINTS = 1 << 16  # sizes at which guards are compared; where there are more, all guards are shown
LARGEST = 2**53  # of numbers in guards that are compared
LONGEST = 80  # characters of an expression inside another one; a longer one is named by its row
_INFIX = {
    "lt": ("<", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1), "add": ("+", 2), "sub": ("-", 2),
    "mul": ("*", 3), "floordiv": ("//", 3), "mod": ("%", 3), "div": ("/", 3),
}  # fmt: skip
_TURNED = {"lt": ">", "ge": "<=", "eq": "==", "ne": "!="}  # with the constant behind
_ATOM = 9  # binds closer than any operator


class Text:
    """The rows of a plan as text: `input 0[1] < 9`, `ceil(input 0[1] / 4)`, `item 0 of input 1`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._known: dict[int, tuple[str, int]] = {}

    def __call__(self, row: int) -> str:
        if row not in self._known:
            for k in needed(self.plan.rows, [row]):
                self._known.setdefault(k, self._made(k))
        return self._known[row][0]

    def _made(self, row: int) -> tuple[str, int]:
        """The text, and how closely its last operator binds."""
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
                return self._known[int(twice[2])]
            return f"-{self._within(int(b), 3)}", 2
        return f"{self._within(int(a), binds)} {sign} {self._within(int(b), binds + 1)}", binds

    def _within(self, row: int, least: int) -> str:
        text, binds = self._known[row]
        if len(text) > LONGEST:
            return f"row {row}"
        return text if binds >= least else f"({text})"

    def _rounded_up(self, row: int) -> tuple[int, int] | None:
        """a and b of -(-a // b)."""
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
    """All values of some sizes of a plan, to find out what guards say about them."""

    def __init__(self, plan: Plan, names: Mapping[int, str], columns: Mapping[int, np.ndarray], count: int) -> None:
        self.names, self.count = names, count  # of the sizes that vary, by their rows
        self.many = Many(plan.rows, columns)

    def mask(self, guards: Iterable[int]) -> np.ndarray:
        found = np.ones(self.count, bool)
        for g in guards:
            found &= np.asarray(self.many[g], bool)
        return found

    def telling(self, guards: Sequence[int], inside: np.ndarray, length: Callable[[int], int]) -> list[int]:
        """The guards without those that follow from the others; long ones go first."""
        kept, full = list(guards), inside & self.mask(guards)
        for g in sorted(guards, key=lambda g: -length(g)):
            rest = [k for k in kept if k != g]
            if np.array_equal(inside & self.mask(rest), full):
                kept = rest
        return kept

    def box(self, guards: Sequence[int], inside: np.ndarray) -> list[str] | None:
        """The guards as a range of each size, or as a size without one value; None where they are no such thing."""
        full = inside & self.mask(guards)
        if not full.any():
            return None
        sides = []  # (size, operator, limit)
        for row in self.names:
            values = self.many[row][full]
            sides += [(row, ">=", int(values.min())), (row, "<=", int(values.max()))]
        kept, within = list(sides), inside & self._within(sides)
        if not np.array_equal(within, full):
            return self._except(full, inside)
        for side in sides:
            rest = [k for k in kept if k is not side]
            if np.array_equal(inside & self._within(rest), within):
                kept = rest
        texts = []
        for low, high in zip(sides[::2], sides[1::2], strict=True):
            name, one = self.names[low[0]], low[2] == high[2]
            if low in kept and high in kept and not one:
                texts.append(f"{low[2]} <= {name} <= {high[2]}")
            elif low in kept or high in kept:
                _, sign, limit = low if low in kept else high
                texts.append(f"{name} {'==' if one else sign} {limit}")
        return texts

    def _except(self, full: np.ndarray, inside: np.ndarray) -> list[str] | None:
        for row, name in self.names.items():
            without = np.unique(self.many[row][inside & ~full])
            if len(without) == 1 and np.array_equal(full, inside & (self.many[row] != without[0])):
                return [f"{name} != {without[0]}"]
        return None

    def _within(self, sides: Iterable[tuple[int, str, int]]) -> np.ndarray:
        found = np.ones(self.count, bool)
        for row, sign, limit in sides:
            found &= self.many[row] >= limit if sign == ">=" else self.many[row] <= limit
        return found


class Guards:
    """The guards of a family and of its choices, without those that follow from others.

    What guards say is found out for each set of sizes that any of them is about, at all values that these can have.
    """

    def __init__(self, plan: Plan, text: Text, family: Family) -> None:
        self.plan, self.text, self.family = plan, text, family
        self.same, self.values, self.direct = _equal(plan, family.guards)
        self._about: dict[int, frozenset[int] | None] = {}
        self._spaces: dict[frozenset[int], Space] = {}
        self.of_family = self._record(family.guards, (), family.refusal)

    def of_choice(self, guards: Sequence[int], refusal: str) -> dict[str, Any]:
        return self._record([g for g in guards if g not in self.family.guards], self.family.guards, refusal)

    def _record(self, guards: Sequence[int], known: Sequence[int], refusal: str) -> dict[str, Any]:
        """Guards as they are in the plan, where `known` hold; and, simpler if that can be, the sizes where they do."""
        kept, where = [g for g in guards if g in self.direct], [self.text(g) for g in guards if g in self.direct]
        groups: dict[frozenset[int] | None, list[int]] = {}
        for g in guards:
            if g not in self.direct:
                groups.setdefault(self.about(g), []).append(g)
        for about, same in sorted(groups.items(), key=lambda item: MAX_POINTS if item[0] is None else len(item[0])):
            if about is None or not 0 < math.prod(len(self.values[key]) for key in about) <= MAX_POINTS:
                kept += same
                where += map(self.text, same)
                continue
            space = self._space(about)
            inside = space.mask(
                [k for k in known if _is_within(self.about(k), about)]
                + [k for k in guards if k not in same and _is_within(self.about(k), about)]
            )
            telling = space.telling(same, inside, lambda g: len(self.text(g)))
            box = space.box(telling, inside) if telling else []
            kept += telling
            where += [self.text(g) for g in telling] if box is None else box
        texts = [self.text(g) for g in guards if g in kept]
        return {"where": where, "guards": texts, "refusal": refusal}

    def about(self, guard: int) -> frozenset[int] | None:
        """The sizes that it depends on and that vary; None if it depends on ints or on data, too."""
        if guard not in self._about:
            made_of = {k: self.plan.rows[k] for k in needed(self.plan.rows, [guard])}
            more = any(op in ("int", "item") or (op == "const" and abs(a) > LARGEST) for op, a, _ in made_of.values())
            keys = frozenset(self.same[k] for k in made_of if k in self.same)
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


def _equal(plan: Plan, guards: Sequence[int]) -> tuple[dict[int, int], dict[int, range], set[int]]:
    """Each size with that which stands for all that equal it; the values of these; the guards that say so."""
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
    """What a plan is made of. Guards are those that do not follow from others; of a choice, also from its family's."""
    text = Text(plan)
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
    """The sizes of an input that may change, with the largest; of an int, its name."""
    if i.dtype is None:
        return {i.name: None}
    return {f"{i.name}[{d}]": n for d, n in enumerate(i.shape)} if i.dynamic else {}


def numpy_calls(outer: Outer) -> Counter[str]:
    """The operators that need a NumPy kernel."""
    return Counter(op for op in outer.on_host if op in PORTABLE)


def parse_sizes(texts: Sequence[str]) -> dict[str, list[int]]:
    """`input 0[1]=1..512`, `input 0[1]=1,2,8..16`; repeated names add up."""
    found: dict[str, list[int]] = {}
    for text in texts:
        match = re.fullmatch(r"\s*(.+?)\s*=\s*(-?\d+(?:\.\.-?\d+)?(?:,-?\d+(?:\.\.-?\d+)?)*)\s*", text)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not of the form 'input 0[1]=1..512'", param_hint="--size")
        for part in match[2].split(","):
            low, _, high = part.partition("..")
            values = range(int(low), int(high or low) + 1)
            if not values:
                raise typer.BadParameter(f"{text!r}: the range is empty", param_hint="--size")
            found.setdefault(match[1], []).extend(values)
    return found


def one_size_each(texts: Sequence[str]) -> dict[str, int]:
    """As `parse_sizes`, with one value for each name."""
    found = parse_sizes(texts)
    for name, values in found.items():
        if len(values) != 1:
            raise typer.BadParameter(f"{name} has {len(values)} values, it can be shown at one", param_hint="--size")
    return {name: value for name, (value,) in found.items()}


@dataclass(frozen=True, slots=True)
class Cost:
    """A plan at one set of sizes."""

    sizes: dict[str, int]
    family: int | None  # counted from 1; None: not planned, a run would trace it
    choices: dict[int, int]  # of the nodes that have several: how many take the first, the second, …
    dispatches: int = 0
    workgroups: int = 0
    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    refusal: str = ""


def check_sizes(outers: Iterable[Outer], given: Mapping[str, int]) -> None:
    """That some plan has these sizes, and that they are within its bounds."""
    known: dict[str, int | None] = {}
    for i in (i for outer in outers for plan in outer.plans for i in plan.inputs):
        known |= sizes_of(i)
    for name, value in given.items():
        if name not in known:
            may = ", ".join(known) or "none"
            raise InvalidInput(f"there is no size {name!r} that may change; those that may: {may}")
        most = known[name]
        if most is not None and not 0 <= value <= most:
            raise InvalidInput(f"{name} is at most {most}, not {value}")


def costs(outer: Outer, given: Mapping[str, int]) -> list[Cost]:
    """What each plan costs, in the order of the plans.

    Sizes that neither `given` nor a plan before says, and that need not equal one of these, are the largest; ints, and
    the elements of inputs, are 0.
    """
    found: dict[int, Cost] = {}
    known: dict[Var, Any] = {}
    for item in outer.items:
        if isinstance(item, Host):
            if isinstance(item.instruction, Jump):
                known.clear()  # values may come from one branch or another
            for v in writes(item.instruction):
                known.pop(v, None)
            continue
        plan = outer.plans[item.plan]
        sizes: dict[str, int] = {}
        for i, v in zip(plan.inputs, item.inputs, strict=True):
            if v in known:
                sizes |= zip(sizes_of(i), known[v] if i.dtype else (known[v],))
        sizes |= given
        sizes = _tied(plan, sizes) | sizes
        shapes = [_sized(i, sizes) for i in plan.inputs]
        found[item.plan], outputs = _cost(plan, shapes)
        known |= dict(zip(item.outputs, outputs))
    return [found[k] for k in sorted(found)]


def _tied(plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that the first family takes to be equal to these, with their values."""
    same, _, _ = _equal(plan, plan.families[0].guards)
    text = Text(plan)
    values = {same[row]: sizes[text(row)] for row in same if text(row) in sizes}
    return {text(row): values[key] for row, key in same.items() if key in values}


def _sized(i: Input, sizes: Mapping[str, int]) -> Any:
    if i.dtype is None:
        return sizes.get(i.name, 0)
    return tuple(sizes.get(f"{i.name}[{d}]", n) for d, n in enumerate(i.shape)) if i.dynamic else i.shape


def _cost(plan: Plan, shapes: Sequence[Any]) -> tuple[Cost, list[Any]]:
    named = [zip(sizes_of(i), shape if i.dtype else (shape,)) for i, shape in zip(plan.inputs, shapes, strict=True)]
    sizes = {name: int(n) for pairs in named for name, n in pairs}
    at = Resolver(plan).at(shapes, lambda _, __: 0)
    if at is None:
        return Cost(sizes, None, {}), []
    family = plan.families[at.family]
    refusals = (family.refusal, *(c.refusal for c in chosen(plan, at)))
    choices = dict(Counter(k + 1 for k, of in zip(at.choices, family.steps, strict=True) if len(of) > 1))
    if refusal := next(filter(None, refusals), ""):
        return Cost(sizes, at.family + 1, choices, refusal=refusal), []
    here = evaluated(plan, shapes, lambda _, __: 0)
    launched = [d for d in here.dispatches if 0 not in d.grid]
    figures = [(d.grid[0] * d.grid[1], d.flops, d.read_bytes, d.write_bytes) for d in launched]  # type: ignore[operator]
    groups, flops, read, written = (sum(int(n) for n in column) for column in zip((0,) * 4, *figures))
    outputs = [o.shape if isinstance(o, Port) else o for o in here.families[0].outputs]
    return Cost(sizes, at.family + 1, choices, len(launched), groups, flops, read, written), outputs
