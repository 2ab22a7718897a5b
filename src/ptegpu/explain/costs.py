"""The cost of a run of each plan at given sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..compiler import writes
from ..errors import InvalidInput
from ..plan import CompiledMethod, Host, Input, Jump, Plan, Port, Resolver, Var, choices_at, plan_at
from .guards import GuardText, equal_sizes, sizes_of


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a plan at one set of sizes."""

    sizes: dict[str, int]
    family: int | None  # counted from 1; None: not planned, a run would trace it
    choices: dict[int, int]  # number of nodes that take the first, the second, …, of those with several
    dispatches: int = 0
    workgroups: int = 0
    flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    refusal: str = ""


def check_sizes(outers: Iterable[CompiledMethod], sizes: Mapping[str, int]) -> None:
    """Raise InvalidInput unless each of these sizes is dynamic in some plan and within its bounds."""
    bounds: dict[str, int | None] = {}
    for i in (i for outer in outers for plan in outer.plans for i in plan.inputs):
        bounds |= sizes_of(i)
    for name, value in sizes.items():
        if name not in bounds:
            raise InvalidInput(f"unknown dynamic size {name!r}; dynamic sizes are: {', '.join(bounds) or 'none'}")
        most = bounds[name]
        if most is not None and not 0 <= value <= most:
            raise InvalidInput(f"{name} is at most {most}, not {value}")


def costs(outer: CompiledMethod, fixed: Mapping[str, int]) -> list[Cost]:
    """Return the cost of each plan.

    `fixed` sizes, the outputs of earlier plans and sizes equal to these are used; others are the largest. Ints and
    elements of inputs are 0.
    """
    costs_by_plan: dict[int, Cost] = {}
    shapes_by_var: dict[Var, Any] = {}
    for item in outer.items:
        if isinstance(item, Host):
            if isinstance(item.instruction, Jump):
                shapes_by_var.clear()  # values may come from one branch or another
            for v in writes(item.instruction):
                shapes_by_var.pop(v, None)
            continue
        plan = outer.plans[item.plan]
        sizes: dict[str, int] = {}
        for i, v in zip(plan.inputs, item.inputs, strict=True):
            if v in shapes_by_var:
                sizes |= zip(sizes_of(i), shapes_by_var[v] if i.dtype else (shapes_by_var[v],))
        sizes |= fixed
        sizes = _equal_values(plan, sizes) | sizes
        shapes = [_shape(i, sizes) for i in plan.inputs]
        costs_by_plan[item.plan], outputs = _cost(plan, shapes)
        shapes_by_var |= dict(zip(item.outputs, outputs))
    return [cost for _, cost in sorted(costs_by_plan.items())]


def _equal_values(plan: Plan, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the values of further sizes that the guards of the first family equate with these."""
    same, _, _ = equal_sizes(plan, plan.families[0].guards)
    text = GuardText(plan)
    values = {same[row]: sizes[text(row)] for row in same if text(row) in sizes}
    return {text(row): values[key] for row, key in same.items() if key in values}


def _shape(i: Input, sizes: Mapping[str, int]) -> Any:
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
    refusals = (family.refusal, *(c.refusal for c in choices_at(plan, at)))
    choices = dict(Counter(k + 1 for k, of in zip(at.choices, family.steps, strict=True) if len(of) > 1))
    if refusal := next(filter(None, refusals), ""):
        return Cost(sizes, at.family + 1, choices, refusal=refusal), []
    run = plan_at(plan, shapes, lambda _, __: 0)
    launched = [d for d in run.dispatches if 0 not in d.grid]
    figures = [(d.grid[0] * d.grid[1], d.flops, d.read_bytes, d.write_bytes) for d in launched]  # type: ignore[operator]
    groups, flops, read, written = (sum(int(n) for n in column) for column in zip((0,) * 4, *figures))
    outputs = [o.shape if isinstance(o, Port) else o for o in run.families[0].outputs]
    return Cost(sizes, at.family + 1, choices, len(launched), groups, flops, read, written), outputs
