"""Plans and bundles as plain data, the adapters they are compiled for, and how a runner evaluates them."""

from .bundle import Bundle, find_bundle
from .device_arrays import from_device, to_device
from .directives import source
from .method import Call, CompiledMethod, Host, Instruction, Item, Jump, Move, Operand, Run, Var, variables
from .numbers import Many, needed
from .plan import Binding, Buffer, Copy, Dispatch, Family, Input, Kernel, Plan, Port, plain
from .resolve import Resolver, chosen, evaluated
from .target import CLASSES, Cache, DeviceClass, Precision, Target, check_cache, check_precision

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
