"""Bytes to frozen dataclasses: `.pte` programs, `.ptd` data, delegate blobs; every offset, count and size is checked.

The only error that a bad file can cause is `InvalidProgram`. Nothing here knows a GPU, torch or an operator.
"""

from .delegate import BlobGraph, BlobTensor, BlobValue, Call, Constant, Ints, SymInt, ValueList, read_delegate
from .ptd import NamedTensor, read_data
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
    "BlobGraph",
    "BlobTensor",
    "BlobValue",
    "BoolList",
    "Call",
    "Constant",
    "Delegate",
    "DelegateCall",
    "FloatList",
    "FreeCall",
    "Instruction",
    "IntList",
    "Ints",
    "JumpFalse",
    "KernelCall",
    "Method",
    "MoveCall",
    "NamedTensor",
    "Program",
    "SymInt",
    "Tensor",
    "TensorList",
    "Value",
    "ValueList",
    "read_data",
    "read_delegate",
    "read_program",
]
