"""Plans and bundles as plain data, the adapters they are compiled for, and how a runner evaluates them."""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .plan import Binding, Buffer, Copy, Dispatch, Family, Input, Kernel, Plan, Port, plain
from .target import CLASSES, Cache, DeviceClass, Precision, Target, check_cache, check_precision

if TYPE_CHECKING:
    from .bundle import Bundle, find_bundle
    from .device_arrays import from_device, to_device
    from .directives import source
    from .method import Call, CompiledMethod, Host, Instruction, Item, Jump, Move, Operand, Run, Var, variables
    from .numbers import Many, needed
    from .resolve import Resolver, chosen, evaluated

_LAZY = {
    ".bundle": ["Bundle", "find_bundle"],
    ".device_arrays": ["from_device", "to_device"],
    ".directives": ["source"],
    ".method": [
        "Call",
        "CompiledMethod",
        "Host",
        "Instruction",
        "Item",
        "Jump",
        "Move",
        "Operand",
        "Run",
        "Var",
        "variables",
    ],
    ".numbers": ["Many", "needed"],
    ".resolve": ["Resolver", "chosen", "evaluated"],
}
__getattr__ = lazy(__name__, {name: module for module, names in _LAZY.items() for name in names})

__all__ = [
    "CLASSES",
    "Binding",
    "Buffer",
    "Bundle",
    "Cache",
    "Call",
    "CompiledMethod",
    "Copy",
    "DeviceClass",
    "Dispatch",
    "Family",
    "Host",
    "Input",
    "Instruction",
    "Item",
    "Jump",
    "Kernel",
    "Many",
    "Move",
    "Operand",
    "Plan",
    "Port",
    "Precision",
    "Resolver",
    "Run",
    "Target",
    "Var",
    "check_cache",
    "check_precision",
    "chosen",
    "evaluated",
    "find_bundle",
    "from_device",
    "needed",
    "plain",
    "source",
    "to_device",
    "variables",
]
