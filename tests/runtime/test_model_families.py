"""Whole models at many sizes: the plan for all sizes is, at each, the one that would be made for that size alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.exporting import export
from tests.families import POINTS, hold, points
from tests.runtime.test_live import MODELS
from torch.export import Dim

import ptegpu
from ptegpu.compiler.planner import Planner
from ptegpu.compiler.program import cut_methods, read_source
from ptegpu.models.card import read_card
from ptegpu.models.text.compiling import points_of, sampling_of
from ptegpu.models.text.signature import METHOD, read_signature
from ptegpu.plan.target import CLASSES, Target

TALES = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
TARGETS = (Target(), Target(f16=True, subgroups=True, subgroup_size=32), Target(device_class=CLASSES["software"]))


def planners(source: Any, target: Target, *, plain: bool = False, **options: Any) -> Iterator[Planner]:
    listed = options.pop("points", ())
    for cut in cut_methods(read_source(source), **options).values():
        for joined in cut.graphs.values():
            dynamic = [v.dynamic or v.dtype is None for v in joined.inputs]
            yield Planner(joined.graph, target, dynamic, points=listed, plain=plain)


def check(source: Any, target: Target, *, ones: bool = True, **options: Any) -> tuple[int, int]:
    """Return the number of sizes that ran and that were examined; with `ones`, including live sizes of 1."""
    ran = examined = 0
    for traced, plain in zip(
        planners(source, target, **options), planners(source, target, plain=True, **options), strict=True
    ):
        where = [p for p in points(traced.cover(), POINTS) if ones or 1 not in _live(traced, p)]
        ran, examined = ran + hold(traced, plain, where), examined + len(where)
    return ran, examined


def _live(planner: Planner, point: dict[int, int]) -> list[int]:
    """Return the sizes that vary."""
    return [n for row, n in point.items() if planner.table.ranges[row][1] > 1]


@pytest.mark.parametrize("delegate", [True, False], ids=["delegated", "undelegated"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str, delegate: bool) -> None:
    module, make, bounds = MODELS[name]
    dims = {d: Dim(f"d{d}", min=low, max=high) for d, (low, high) in bounds.items()}
    example = make(*(high - 1 for _, high in bounds.values()))
    source = export(module.eval(), (example,), dynamic_shapes=(dims,), delegate=delegate)
    attends = "sequence" in name  # by strides, which may be others along a size of 1: nothing walks there
    ran, examined = check(source, TARGETS[delegate], ones=not attends)
    assert ran > examined // 2


def test_every_prompt_length_of_the_bundled_model() -> None:
    for target in TARGETS:
        ran, points = check(TALES, target, methods=[METHOD])
        assert ran == points == POINTS


def test_generation_with_the_bundled_model() -> None:
    file = read_source(TALES)
    signature = read_signature(file, read_card(file))
    options = {"methods": [METHOD], "append": {METHOD: sampling_of(signature)}, "points": points_of(signature)}
    ran, examined = check(TALES, Target(), **options)
    assert ran == examined == POINTS


def test_the_bundled_model_needs_one_family() -> None:
    (planner,) = planners(TALES, Target(), methods=[METHOD])
    plan = planner.cover().plan()
    assert len(plan.families) == 1
    assert max(map(len, plan.families[0].steps)) < 10
