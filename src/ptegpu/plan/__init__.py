"""Plans and bundles as plain data, the adapter they are made for, and how a runner evaluates them."""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .dialect import source
from .plan import Binding, Buffer, Copy, Dispatch, Family, Input, Kernel, Plan, Port, plain
from .target import CLASSES, Cache, DeviceClass, Precision, Target

if TYPE_CHECKING:
    from .bundle import Bundle
    from .method import CompiledMethod, Host, Item, Run
    from .resolve import evaluated

__getattr__ = lazy(
    __name__,
    {"evaluated": ".resolve", "Bundle": ".bundle"}
    | dict.fromkeys(("CompiledMethod", "Host", "Item", "Run"), ".method"),
)

__all__ = [
    "CLASSES",
    "Binding",
    "Buffer",
    "Bundle",
    "Cache",
    "CompiledMethod",
    "Copy",
    "DeviceClass",
    "Dispatch",
    "Family",
    "Host",
    "Input",
    "Item",
    "Kernel",
    "Plan",
    "Port",
    "Precision",
    "Run",
    "Target",
    "evaluated",
    "plain",
    "source",
]
