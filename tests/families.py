"""A plan for all sizes compared with a plan for each single size: kernels, words, grids, shapes and scratch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ptegpu.compiler.planner import Planner
from ptegpu.errors import PtegpuError
from ptegpu.plan.numbers import compile_rows
from ptegpu.plan.plan import Expr, Plan, Port
from ptegpu.plan.resolve import PlanPoint, Resolver, choices_at, plan_at

POINTS = int(os.environ.get("PTEGPU_POINTS", "24"))  # the most sizes to compare


def shapes_at(planner: Planner, point: dict[int, int]) -> list[Any]:
    """Return the shapes of tensor inputs and the values of ints."""
    shapes: list[Any] = []
    for k, v in enumerate(planner.graph.inputs):
        rows = [r for r in planner.grid.names if planner.table.rows[r][1] == k]
        if rows and planner.table.rows[rows[0]][0] == "int":
            shapes.append(point[rows[0]])
        else:
            shapes.append(tuple(point[r] for r in rows) if rows else v.max_shape)  # type: ignore[union-attr]
    return shapes


def points(planner: Planner, most: int = POINTS) -> Iterator[dict[int, int]]:
    """Yield up to `most` of the sizes in the planner's grid."""
    if not planner.grid.columns:
        return
    count = len(planner.grid)
    for k in np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)):
        yield {row: int(values[k]) for row, values in planner.grid.columns.items()}


def item(_: int, __: int) -> int:
    return 0


def described(plan: Plan) -> list[Any]:
    """Describe a run of a plan with plain numbers, without the places of parameters and scratch."""
    (family,) = plan.families
    description: list[Any] = [family.words, [o.shape if isinstance(o, Port) else o for o in family.outputs]]
    params = [k for k, b in enumerate(plan.buffers) if b.role == "params"]
    for d in plan.dispatches:
        if 0 in d.grid:
            continue
        words, bound = b"", []
        for b in d.bindings:
            buffer = plan.buffers[b.buffer]
            if b.buffer in params:
                words = plan.params[params.index(b.buffer)][b.offset : b.offset + b.nbytes]
            else:
                bound.append("temp" if buffer.role == "temp" else buffer.name)
        figures = (d.read_bytes, d.write_bytes, d.flops)
        description.append((plan.kernels[d.kernel], d.grid, words, bound, d.label, figures))
    return description


def scratch_of(planner: Planner, at: PlanPoint, shapes: list[Any]) -> list[Any]:
    """Return the bytes of scratch memory that the choices at these sizes need."""
    picked = [cs[k] for cs, k in zip(planner.families[at.family].choices, at.choices, strict=True)]
    numbers = [n for c in picked for n in c.scratched]
    return [compile_rows(planner.table.rows, [n.row])(shapes, item)[0] if isinstance(n, Expr) else n for n in numbers]


def hold(traced: Planner, plain: Planner, where: Iterable[dict[int, int]]) -> int:
    """Compare both plans at these sizes, and return the number of sizes that run."""
    plan = traced.plan()
    resolver = Resolver(plan)
    ran = 0
    for point in where:
        shapes = shapes_at(traced, point)
        plain.families.clear()
        at = resolver.at(shapes, item)
        refused = at is None or plan.families[at.family].refusal or any(c.refusal for c in choices_at(plan, at))
        try:
            plain.extend(shapes, item)
        except PtegpuError as e:
            assert refused, f"at {shapes} the plan runs, but: {e}"
            continue
        if at is None:
            continue  # the planner did not trace these sizes
        assert not refused, f"at {shapes} the plan refuses: {refused}"
        single = plain.plan()
        only = Resolver(single)
        want = described(plan_at(single, shapes, item, only))
        got = described(plan_at(plan, shapes, item, resolver))
        assert want == got, f"at {shapes}: {first_difference(want, got)}"
        if all(0 not in s for s in shapes if isinstance(s, tuple)):  # without dispatches, scratch may differ
            there = only.at(shapes, item)
            assert there is not None
            assert scratch_of(plain, there, shapes) == scratch_of(traced, at, shapes), f"scratch at {shapes}"
        ran += 1
    return ran


def first_difference(want: list[Any], got: list[Any]) -> str:
    if len(want) != len(got):
        return f"{len(want)} entries, not {len(got)}: {[w[4] for w in want[2:]]} and {[g[4] for g in got[2:]]}"
    for w, g in zip(want, got, strict=True):
        if w != g:
            if isinstance(w, tuple) and len(w) == 6:
                return "; ".join(f"{str(a)[:300]} != {str(b)[:300]}" for a, b in zip(w, g, strict=True) if a != b)
            return f"{w} != {g}"
    return "none"
