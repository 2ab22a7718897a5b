"""What other packages need to write operators: import these names, and register before `ptegpu.load`.

    from ptegpu.ops.custom import floats, unary

    unary("mylib.bump.default", floats("exp(-a * a)"))

`docs/adding-an-operator.md` explains them, `examples/custom_operator.py` shows a whole one.
"""

from __future__ import annotations

from ..graph.graph import Shape, Tensor
from ..kernels.functions import functions
from ..kernels.wgsl import KernelSpec, Storage, build, store_type
from ..plan.target import Target
from .elementwise import binary, combine, floats, numbers, unary
from .pointwise import Strided, cast, contiguous, pointwise
from .registry import (
    REGISTRY,
    Bounded,
    Dispatch,
    Number,
    Options,
    Out,
    Scratch,
    Steps,
    SymInt,
    broadcast,
    normalise_dim,
    op,
    view,
)

__all__ = [
    "REGISTRY",
    "Bounded",
    "Dispatch",
    "KernelSpec",
    "Number",
    "Options",
    "Out",
    "Scratch",
    "Shape",
    "Steps",
    "Storage",
    "Strided",
    "SymInt",
    "Target",
    "Tensor",
    "binary",
    "broadcast",
    "build",
    "cast",
    "combine",
    "contiguous",
    "floats",
    "functions",
    "normalise_dim",
    "numbers",
    "op",
    "pointwise",
    "store_type",
    "unary",
    "view",
]
