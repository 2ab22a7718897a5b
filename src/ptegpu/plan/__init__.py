"""Plans as plain data, the adapter they are made for, and how graphs become plans (`lower`)."""

from .dialect import source
from .plan import Binding, Buffer, Copy, Dispatch, Kernel, Plan, Port, SymStep
from .target import Target

__all__ = ["Binding", "Buffer", "Copy", "Dispatch", "Kernel", "Plan", "Port", "SymStep", "Target", "source"]
