"""Operators that run on the host, in NumPy: `call` runs one by its registry name, `PRIMS` holds scalar arithmetic."""

from .prim import PRIMS
from .registry import PORTABLE, HostKernel, OutSpec, call, portable

__all__ = ["PORTABLE", "PRIMS", "HostKernel", "OutSpec", "call", "portable"]
