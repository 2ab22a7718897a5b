"""Rewrites of a graph between import and lowering. `REWRITES` are those that depend on no target, in their order."""

from collections.abc import Callable
from functools import partial

from ..graph.graph import Graph
from .attention import fuse_attention
from .channels import fold_channels
from .dead import remove_dead
from .decomposed import fuse_decomposed
from .fold import fold_constants
from .fuse import fuse_elementwise
from .norms import fuse_norms
from .operands import fuse_operands
from .siblings import fuse_siblings
from .views import merge_views

REWRITES: tuple[Callable[[Graph], None], ...] = (
    merge_views,
    partial(fold_constants, repeats=False),
    remove_dead,
    fuse_decomposed,
    fuse_operands,
    fold_constants,
    fold_channels,
    fuse_elementwise,
    fuse_siblings,
    fuse_norms,
    fuse_attention,
)
