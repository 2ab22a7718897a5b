"""A plan at one set of sizes: which family, which choices, and every number in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .numbers import Chooser, Item, Program, Shapes, chooser, needed, program
from .plan import Bound, Choice, Dispatch, Expr, Family, Number, Patch, Plan, Port


def numbers_of(d: Dispatch) -> tuple[Number, ...]:
    return (*d.grid, *(p.value for p in d.patches))


def _rows(numbers: Sequence[Any]) -> list[int]:
    return [n.row for n in numbers if isinstance(n, Expr)]


def bound_numbers(b: Bound) -> list[Any]:
    """What a bound is made of, without its moves, which matter only to a message."""
    return [b.low, b.end, *([b.source] if b.kind == "int" else [])]


@dataclass(frozen=True, eq=False, slots=True)
class At:
    """What runs at these sizes; `values` has those of the rows that anything here is made of."""

    family: int
    switches: tuple[int, ...]  # which of each distinct list of choices
    places: Sequence[int]  # which of these each step has
    numbers: tuple[Any, ...]  # of the rows that the resolver evaluates, in its order
    order: dict[int, int]  # row → its place there

    def number(self, n: Number) -> Any:
        return self.numbers[self.order[n.row]] if isinstance(n, Expr) else n

    @property
    def choices(self) -> tuple[int, ...]:
        """Of each step."""
        return tuple([self.switches[k] for k in self.places])

    @property
    def values(self) -> dict[int, Any]:
        """By row."""
        return {row: self.numbers[k] for row, k in self.order.items()}


class Resolver:
    """Evaluates one plan. `key` is all that the choice of dispatches and their numbers depend on."""

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
                        numbers.update(_rows(numbers_of(d)))
        self.wanted = sorted(guards | numbers)
        self.order = {row: k for k, row in enumerate(self.wanted)}
        self.words = sorted(words)
        families = [tuple(self.order[g] for g in family.guards) for family in plan.families]
        self._family = chooser([tuple(families)])
        self._switches: list[Chooser] = []  # of each family: of the distinct lists of guards, which alternative holds
        self.switch_of: list[list[int]] = []  # which of these each step has
        for family in plan.families:
            known: dict[tuple[tuple[int, ...], ...], int] = {}
            places = []
            for choices in family.steps:
                guards_of = tuple(tuple(self.order[g] for g in c.guards) for c in choices)
                places.append(known.setdefault(guards_of, len(known)))
            self._switches.append(chooser(list(known)))
            self.switch_of.append(places)
        sources = [k for k in needed(plan.rows, self.wanted) if plan.rows[k][0] in ("size", "int", "item")]
        self._evaluate: Program = program(plan.rows, self.wanted)
        self._evaluate_words: Program = program(plan.rows, self.words)
        self.key: Program = program(plan.rows, sources)

    def at(self, shapes: Shapes, item: Item) -> At | None:
        """What runs for inputs of these shapes (ints: these values); None if no family or no choice holds."""
        numbers = self._evaluate(shapes, item)
        (number,) = self._family(numbers)
        if number < 0:
            return None
        if self.plan.families[number].refusal:
            return At(number, (), (), numbers, self.order)
        found = self._switches[number](numbers)
        return None if -1 in found else At(number, found, self.switch_of[number], numbers, self.order)

    def words_at(self, shapes: Shapes, item: Item) -> dict[int, Any]:
        """The rows that words of symbolic ints, and bounds and outputs that are ints, are made of."""
        return dict(zip(self.words, self._evaluate_words(shapes, item), strict=True))


def chosen(plan: Plan, at: At) -> list[Choice]:
    """The choices of each step."""
    family = plan.families[at.family]
    return [choices[k] for choices, k in zip(family.steps, at.choices, strict=True)]


def evaluated(plan: Plan, shapes: Shapes, item: Item, resolver: Resolver | None = None) -> Plan:
    """The plan for these sizes alone, all numbers in it plain: for tests, profiles and those who look at it."""
    at = (resolver or Resolver(plan)).at(shapes, item)
    if at is None:
        raise LookupError(f"plan {plan.name} does not hold for {list(shapes)}")
    family = plan.families[at.family]
    every = set(_rows([*family.words, *(o for o in family.outputs if not isinstance(o, Port))]))
    for choice in chosen(plan, at):
        for d in choice.dispatches:
            every.update(_rows([d.read_bytes, d.write_bytes, d.flops]))
    for b in family.bounds:
        every.update(_rows(bound_numbers(b)))
    ordered = sorted(every)
    values = at.values | dict(zip(ordered, program(plan.rows, ordered)(shapes, item), strict=True))

    def plain(n: Number) -> int:
        return int(values[n.row]) if isinstance(n, Expr) else n

    images = [np.frombuffer(image, np.uint32).copy() for image in plan.params]
    params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]
    steps = []
    for choice in chosen(plan, at):
        dispatches = []
        for d in choice.dispatches:
            for bound in d.bindings:
                if bound.buffer in params:
                    put(images[params.index(bound.buffer)], d.patches, values)
            figures = plain(d.read_bytes), plain(d.write_bytes), plain(d.flops)
            grid = (plain(d.grid[0]), plain(d.grid[1]))
            dispatches.append(Dispatch(d.kernel, d.bindings, grid, d.label, *figures, once=d.once))
        steps.append((Choice((), tuple(dispatches)),))
    outputs = tuple(
        replace(o, shape=tuple(map(plain, o.shape))) if isinstance(o, Port) else plain(o) for o in family.outputs
    )
    inputs = tuple(
        replace(i, shape=tuple(shape), dynamic=False) if i.dtype else i
        for i, shape in zip(plan.inputs, shapes, strict=True)
    )
    one = Family((), tuple(steps), outputs, tuple(map(plain, family.words)))
    held = tuple(image.tobytes() for image in images)
    return Plan(plan.name, plan.buffers, plan.kernels, inputs, (one,), plan.copies, (), held, plan.blobs)


def put(image: np.ndarray, patches: Sequence[Patch], values: dict[int, Any]) -> None:
    """Write words into an image of parameters."""
    for p in patches:
        value = values[p.value.row]
        image[p.word] = np.float32(value).view(np.uint32) if p.kind == "f32" else int(value) & 0xFFFFFFFF
