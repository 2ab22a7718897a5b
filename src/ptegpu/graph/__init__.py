"""What will run, without files and without a GPU: tensors, symbolic ints, nodes, and their live shapes."""

from .graph import Graph, Node, Sym, Tensor

__all__ = ["Graph", "Node", "Sym", "Tensor"]
