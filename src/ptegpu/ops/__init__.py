"""The operators, one file per family. Importing this package fills the registry."""

from . import (
    convolution,
    elementwise,
    embedding,
    fill,
    index,
    joins,
    linear_q4,
    matmul,
    moves,
    norm,
    pooling,
    reduce,
    resampling,
    rope,
    softmax,
    symbols,
    views,
)
from .registry import REGISTRY, OpDef

__all__ = [
    "REGISTRY",
    "OpDef",
    "convolution",
    "elementwise",
    "embedding",
    "fill",
    "index",
    "joins",
    "linear_q4",
    "matmul",
    "moves",
    "norm",
    "pooling",
    "reduce",
    "resampling",
    "rope",
    "softmax",
    "symbols",
    "views",
]
