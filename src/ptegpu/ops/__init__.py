"""The operators, one file per family. Importing this package fills the registry."""

from . import (  # noqa: F401
    attention,
    cache,
    concat,
    convolution,
    distance,
    division,
    elementwise,
    embedding,
    experts,
    fill,
    index,
    latest,
    linear_q4,
    linear_q8,
    matmul,
    moves,
    norm,
    pooling,
    q8ta_conv,
    quantize,
    ragged,
    reduce,
    resampling,
    rope,
    sample,
    scatter,
    search,
    softmax,
    sort,
    symbols,
    training,
    views,
)
from .registry import REGISTRY, OpDef

__all__ = ["REGISTRY", "OpDef"]
