"""The operators, one file per family. Importing this package fills the registry."""

from . import elementwise, moves, symbols, views
from .registry import REGISTRY, OpDef

__all__ = ["REGISTRY", "OpDef", "elementwise", "moves", "symbols", "views"]
