"""Plans as plain data, the adapter they are made for, and how a runner evaluates them."""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .dialect import source
from .plan import Binding, Buffer, Copy, Dispatch, Family, Input, Kernel, Plan, Port, plain
from .target import CLASSES, Cache, DeviceClass, Precision, Target

if TYPE_CHECKING:
    from .bundle import Bundle, Host, Item, Outer, Run
    from .resolve import evaluated

__getattr__ = lazy(
    __name__, {"evaluated": ".resolve"} | dict.fromkeys(("Bundle", "Host", "Item", "Outer", "Run"), ".bundle")
)

__all__ = [
    "CLASSES",
    "Binding",
    "Buffer",
    "Bundle",
    "Cache",
    "Copy",
    "DeviceClass",
    "Dispatch",
    "Family",
    "Host",
    "Input",
    "Item",
    "Kernel",
    "Outer",
    "Plan",
    "Port",
    "Precision",
    "Run",
    "Target",
    "evaluated",
    "plain",
    "source",
]
