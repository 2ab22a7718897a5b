"""Runners for methods written by hand, without a GPU for host steps."""

from __future__ import annotations

from ptegpu.compiler.program import cut_method, plan_methods
from ptegpu.format import pte
from ptegpu.plan.target import Target
from ptegpu.runtime.method import MethodRunner


def method_of(method: pte.FileMethod, path: str | None = None) -> MethodRunner:
    outers, _ = plan_methods({method.name: cut_method(method, {}, path)}, Target())
    runner = MethodRunner(outers[method.name])
    runner.reset()
    return runner
