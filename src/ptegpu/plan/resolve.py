"""A plan at one set of sizes: its family, its choices, and every number in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .numbers import Chooser, Item, Program, Shapes, chooser, compile_rows, with_operands
from .plan import Choice, Expr, Family, Number, Patch, Plan, PlannedDispatch, Port


def _rows(numbers: Sequence[Any]) -> list[int]:
    return [n.row for n in numbers if isinstance(n, Expr)]


@dataclass(frozen=True, eq=False, slots=True)
class PlanPoint:
    """The family and the choices that run at one set of sizes, with the values of the rows they use."""

    family: int
    switches: tuple[int, ...]  # the alternative of each distinct switch
    places: Sequence[int]  # the switch of each step
    numbers: tuple[Any, ...]  # values of the rows that the resolver evaluates, in its order
    order: dict[int, int]  # row → its position in `numbers`

    def number(self, n: Number) -> Any:
        return self.numbers[self.order[n.row]] if isinstance(n, Expr) else n

    @property
    def choices(self) -> tuple[int, ...]:
        """Return the choice of each step."""
        return tuple([self.switches[k] for k in self.places])

    @property
    def values(self) -> dict[int, Any]:
        """Return the values by row."""
        return {row: self.numbers[k] for row, k in self.order.items()}


class Resolver:
    """The evaluation of one plan. `key` returns everything that the dispatches and their numbers depend on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        guards, numbers, words = set[int](), set[int](), set[int]()
        for family in plan.families:
            guards.update(family.guards)
            words.update(_rows(family.words))
            for b in family.bounds:
                numbers.update(_rows([b.low, b.end]))
                words.update(_rows([b.source]) if b.kind == "int" else ())
            for o in family.outputs:
                (numbers if isinstance(o, Port) else words).update(_rows(o.shape if isinstance(o, Port) else [o]))
            for choices in family.steps:
                for choice in choices:
                    guards.update(choice.guards)
                    for d in choice.dispatches:
                        numbers.update(_rows([*d.grid, *(p.value for p in d.patches)]))
        self.rows = sorted(guards | numbers)
        self.order = {row: k for k, row in enumerate(self.rows)}
        self.words = sorted(words)
        families = [tuple(self.order[g] for g in family.guards) for family in plan.families]
        self._family = chooser([tuple(families)])
        self._switches: list[Chooser] = []  # for each family: selects an alternative of each distinct switch
        self._switch_of: list[list[int]] = []  # for each family: the switch of each step
        for family in plan.families:
            switches: dict[tuple[tuple[int, ...], ...], int] = {}
            places = []
            for choices in family.steps:
                switch = tuple(tuple(self.order[g] for g in c.guards) for c in choices)
                places.append(switches.setdefault(switch, len(switches)))
            self._switches.append(chooser(list(switches)))
            self._switch_of.append(places)
        sources = [k for k in with_operands(plan.rows, self.rows) if plan.rows[k][0] in ("size", "int", "item")]
        self._evaluate: Program = compile_rows(plan.rows, self.rows)
        self._evaluate_words: Program = compile_rows(plan.rows, self.words)
        self.key: Program = compile_rows(plan.rows, sources)

    def at(self, shapes: Shapes, item: Item) -> PlanPoint | None:
        """Return what runs for inputs of these shapes or values; None if no family or no choice holds."""
        numbers = self._evaluate(shapes, item)
        (number,) = self._family(numbers)
        if number < 0:
            return None
        if self.plan.families[number].refusal:
            return PlanPoint(number, (), (), numbers, self.order)
        switches = self._switches[number](numbers)
        return None if -1 in switches else PlanPoint(number, switches, self._switch_of[number], numbers, self.order)

    def words_at(self, shapes: Shapes, item: Item) -> dict[int, Any]:
        """Return the rows for the words of symbolic ints, and for bounds and outputs that are ints."""
        return dict(zip(self.words, self._evaluate_words(shapes, item), strict=True))


def choices_at(plan: Plan, at: PlanPoint) -> list[Choice]:
    """Return the choice of each step."""
    family = plan.families[at.family]
    return [choices[k] for choices, k in zip(family.steps, at.choices, strict=True)]


def plan_at(plan: Plan, shapes: Shapes, item: Item, resolver: Resolver | None = None) -> Plan:
    """Return the plan for these sizes only, with plain numbers, for tests, profiles and analysis."""
    at = (resolver or Resolver(plan)).at(shapes, item)
    if at is None:
        raise LookupError(f"plan {plan.name} does not hold for {list(shapes)}")
    family = plan.families[at.family]
    rows = set(_rows([*family.words, *(o for o in family.outputs if not isinstance(o, Port))]))
    for choice in choices_at(plan, at):
        for d in choice.dispatches:
            rows.update(_rows([d.read_bytes, d.write_bytes, d.flops]))
    for b in family.bounds:
        rows.update(_rows([b.low, b.end, *([b.source] if b.kind == "int" else [])]))
    ordered = sorted(rows)
    values = at.values | dict(zip(ordered, compile_rows(plan.rows, ordered)(shapes, item), strict=True))

    def plain(n: Number) -> int:
        return int(values[n.row]) if isinstance(n, Expr) else n

    images = [np.frombuffer(image, np.uint32).copy() for image in plan.params]
    params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]
    steps = []
    for choice in choices_at(plan, at):
        dispatches = []
        for d in choice.dispatches:
            for binding in d.bindings:
                if binding.buffer in params:
                    _patch(images[params.index(binding.buffer)], d.patches, values)
            figures = plain(d.read_bytes), plain(d.write_bytes), plain(d.flops)
            grid = (plain(d.grid[0]), plain(d.grid[1]))
            dispatches.append(PlannedDispatch(d.kernel, d.bindings, grid, d.label, *figures, once=d.once))
        steps.append((Choice((), tuple(dispatches)),))
    outputs = tuple(
        replace(o, shape=tuple(map(plain, o.shape))) if isinstance(o, Port) else plain(o) for o in family.outputs
    )
    inputs = tuple(
        replace(i, shape=tuple(shape), dynamic=False) if i.dtype else i
        for i, shape in zip(plan.inputs, shapes, strict=True)
    )
    evaluated_family = Family((), tuple(steps), outputs, tuple(map(plain, family.words)))
    blocks = tuple(image.tobytes() for image in images)
    return Plan(plan.name, plan.buffers, plan.kernels, inputs, (evaluated_family,), plan.copies, (), blocks, plan.blobs)


def _patch(image: np.ndarray, patches: Sequence[Patch], values: dict[int, Any]) -> None:
    for p in patches:
        value = values[p.value.row]
        image[p.word] = np.float32(value).view(np.uint32) if p.kind == "f32" else int(value) & 0xFFFFFFFF
