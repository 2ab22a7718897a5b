"""What will run, without files and without a GPU: tensors, symbolic ints, nodes, and their live shapes."""

from .graph import Graph, Node, Sym, Tensor
from .live import Live, settle

__all__ = ["Graph", "Live", "Node", "Sym", "Tensor", "settle"]
