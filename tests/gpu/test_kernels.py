"""The kernels of these tests and of the subgroup probe are also valid in browsers."""

from __future__ import annotations

from tests import tint
from tests.gpu import plans

from ptegpu.gpu.subgroups import subgroup_probe
from ptegpu.plan.directives import source


def test_they_compile_under_tint():
    kernels = (plans.ADD, plans.SCALE, plans.FILL, subgroup_probe(64))
    assert tint.check([source(kernel, "tint") for kernel in kernels]) == []
