"""From a program to a bundle, without a device: `compile` is the entry point. (`ptegpu.compile` is that function.)"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .append import Append, Tail
    from .build import Joined
    from .data import named_data
    from .order import writes
    from .partition import Stretch, ValueBounds, joins
    from .program import Cut, compile, cut_method, cut_methods, plan_methods, read_source

_LAZY = {
    ".append": ["Append", "Tail"],
    ".build": ["Joined"],
    ".data": ["named_data"],
    ".order": ["writes"],
    ".partition": ["Stretch", "ValueBounds", "joins"],
    ".program": ["Cut", "compile", "cut_method", "cut_methods", "plan_methods", "read_source"],
}
__getattr__ = lazy(__name__, {name: module for module, names in _LAZY.items() for name in names})

__all__ = [
    "Append",
    "Cut",
    "Joined",
    "Stretch",
    "Tail",
    "ValueBounds",
    "compile",
    "cut_method",
    "cut_methods",
    "joins",
    "named_data",
    "plan_methods",
    "read_source",
    "writes",
]
