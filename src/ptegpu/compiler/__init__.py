"""From a program to a bundle, without a device: `compile` is the entry point. (`ptegpu.compile` is that function.)"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .program import compile, cut_methods, plan_methods, read_source

__getattr__ = lazy(__name__, dict.fromkeys(("compile", "cut_methods", "plan_methods", "read_source"), ".program"))

__all__ = ["compile", "cut_methods", "plan_methods", "read_source"]
