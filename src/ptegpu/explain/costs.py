"""What a run of each plan costs at given sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..compiler import writes
from ..errors import InvalidInput
from ..plan import CompiledMethod, Host, Input, Jump, Plan, Port, Resolver, Var, chosen, evaluated
from .guards import GuardText, equal_sizes, sizes_of


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


def check_sizes(outers: Iterable[CompiledMethod], given: Mapping[str, int]) -> None:
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


def costs(outer: CompiledMethod, given: Mapping[str, int]) -> list[Cost]:
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
    same, _, _ = equal_sizes(plan, plan.families[0].guards)
    text = GuardText(plan)
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
