"""Compilation of a program to a bundle, without a device: `plan_program` is the entry point."""

from .append import Append, Tail
from .order import writes
from .partition import Stretch, ValueBounds, runs_on_gpu
from .program import Cut, cut_method, cut_methods, named_data, plan_methods, plan_program, read_source
from .stretches import StretchGraph

__all__ = [
    "Append",
    "Cut",
    "Stretch",
    "StretchGraph",
    "Tail",
    "ValueBounds",
    "cut_method",
    "cut_methods",
    "named_data",
    "plan_methods",
    "plan_program",
    "read_source",
    "runs_on_gpu",
    "writes",
]
