"""Plans as plain data, the adapter they are made for, and how a runner evaluates them."""

from .dialect import source
from .plan import Binding, Buffer, Copy, Dispatch, Kernel, Plan, Port
from .target import Target

__all__ = ["Binding", "Buffer", "Copy", "Dispatch", "Kernel", "Plan", "Port", "Target", "source"]
