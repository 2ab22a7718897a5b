"""Bytes to frozen dataclasses: `.pte` programs; `ptd.py` has `.ptd` data, `delegate.py` the blobs of delegates.

Every offset, count and size is checked. The only error that a bad file can cause is `InvalidProgram`. Nothing here
knows a GPU, torch or an operator.
"""

from .pte import (
    BoolList,
    Delegate,
    DelegateCall,
    FloatList,
    FreeCall,
    Instruction,
    IntList,
    JumpFalse,
    KernelCall,
    Method,
    MoveCall,
    Program,
    Tensor,
    TensorList,
    Value,
    read_program,
)

__all__ = [
    "BoolList",
    "Delegate",
    "DelegateCall",
    "FloatList",
    "FreeCall",
    "Instruction",
    "IntList",
    "JumpFalse",
    "KernelCall",
    "Method",
    "MoveCall",
    "Program",
    "Tensor",
    "TensorList",
    "Value",
    "read_program",
]
