"""The kernels of these tests, and the one of the probe, are WGSL for browsers too."""

from __future__ import annotations

from tests import tint
from tests.gpu import plans

from ptegpu.gpu import probe
from ptegpu.plan.directives import source


def test_they_compile_under_tint():
    kernels = (plans.ADD, plans.SCALE, plans.FILL, probe.kernel(64))
    assert tint.check([source(kernel, "tint") for kernel in kernels]) == []
