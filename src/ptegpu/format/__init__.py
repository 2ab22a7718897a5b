"""Bytes to frozen dataclasses: `.pte` programs; `ptd.py` reads `.ptd` data, `delegate.py` the blobs of delegates.

Every offset, count and size is checked. A bad file can cause one error only, `InvalidProgram`. Nothing here knows a
GPU, torch or an operator.
"""

from .pte import DelegateCall, FileMethod, FileTensor, KernelCall, ProgramFile, Value, read_program

__all__ = ["DelegateCall", "FileMethod", "FileTensor", "KernelCall", "ProgramFile", "Value", "read_program"]
