"""The public names for operators in other packages. Import from here, and register before `ptegpu.load`.

    from ptegpu.ops.custom import floats, unary

    unary("mylib.bump.default", floats("exp(-a * a)"))

`docs/adding-an-operator.md` explains these names; `examples/custom_operator.py` is a complete example.
"""

from __future__ import annotations

from ..graph.graph import Shape, Tensor
from ..kernels.functions import functions
from ..kernels.wgsl import KernelSpec, Storage, build, store_type
from ..plan.target import Target
from ..sizes import cached, largest, real, smallest
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
    "cached",
    "cast",
    "combine",
    "contiguous",
    "floats",
    "functions",
    "largest",
    "normalise_dim",
    "numbers",
    "op",
    "pointwise",
    "real",
    "smallest",
    "store_type",
    "unary",
    "view",
]
