"""Plans and bundles as plain data, the adapters they are compiled for, and how a runner evaluates them."""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .plan import Binding, Buffer, Copy, Family, Input, Kernel, Plan, PlannedDispatch, Port, plain
from .target import (
    CACHE_TYPES,
    CLASSES,
    Cache,
    DeviceClass,
    Persistent,
    Precision,
    Target,
    check_cache,
    check_precision,
)

if TYPE_CHECKING:
    from .bundle import Bundle, find_bundle
    from .device_arrays import from_device, to_device
    from .directives import source
    from .method import Call, CompiledMethod, Host, Instruction, Item, Jump, Move, Operand, Run, Var, variables
    from .numbers import RowValues, with_operands
    from .resolve import Resolver, choices_at, plan_at

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
    ".numbers": ["RowValues", "with_operands"],
    ".resolve": ["Resolver", "choices_at", "plan_at"],
}
__getattr__ = lazy(__name__, {name: module for module, names in _LAZY.items() for name in names})

__all__ = [
    "CACHE_TYPES",
    "CLASSES",
    "Binding",
    "Buffer",
    "Bundle",
    "Cache",
    "Call",
    "CompiledMethod",
    "Copy",
    "DeviceClass",
    "Family",
    "Host",
    "Input",
    "Instruction",
    "Item",
    "Jump",
    "Kernel",
    "Move",
    "Operand",
    "Persistent",
    "Plan",
    "PlannedDispatch",
    "Port",
    "Precision",
    "Resolver",
    "RowValues",
    "Run",
    "Target",
    "Var",
    "check_cache",
    "check_precision",
    "choices_at",
    "find_bundle",
    "from_device",
    "plain",
    "plan_at",
    "source",
    "to_device",
    "variables",
    "with_operands",
]
