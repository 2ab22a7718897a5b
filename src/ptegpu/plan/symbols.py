"""The words of the `syms` buffer: one per symbolic int of a graph, and one per literal a kernel reads in its place."""

from __future__ import annotations

from ..errors import InvalidProgram, UnsupportedProgram
from ..graph.graph import Graph, Node, Sym, Tensor
from ..kernels.wgsl import SYM_VECTORS
from .plan import SymStep

CAPACITY = SYM_VECTORS * 4


class Symbols:
    """Shared by all plans of a graph, so that a word means the same in each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.table: dict[Sym | int, int] = {}
        for v in graph.inputs:
            if isinstance(v, Sym):
                self.word(v)
        for node in graph.nodes:
            for out in node.outs:
                if isinstance(out, Sym):
                    self.word(out)

    def word(self, value: Sym | int | float) -> int:
        """Where a kernel finds `value`: a symbolic int's word, or that of a literal."""
        key = value if isinstance(value, Sym) else int(value)
        if key not in self.table:
            if isinstance(key, int) and not -(2**31) <= key < 2**31:
                raise InvalidProgram(f"the int {key} does not fit int32, which is what the GPU computes with")
            if len(self.table) == CAPACITY:
                raise UnsupportedProgram(f"graph {self.graph.name} has more than {CAPACITY} symbolic ints")
            self.table[key] = len(self.table)
        return self.table[key]

    def words(self) -> list[int]:
        """The contents of the buffer now."""
        return [int(v) for v in self.table]

    def steps(self) -> tuple[SymStep, ...]:
        """How a runner without a shape engine makes the words for its inputs at this plan's shapes."""
        made = [self._step(n, out) for n in self.graph.nodes for out in n.outs if isinstance(out, Sym)]
        scalars = [v for v in self.graph.inputs if isinstance(v, Sym)]
        given = [SymStep(self.table[v], "input", (k,)) for k, v in enumerate(scalars)]
        literals = [SymStep(word, "const", (v,)) for v, word in self.table.items() if isinstance(v, int)]
        return (*given, *literals, *made)

    def _step(self, node: Node, out: Sym) -> SymStep:
        first = node.args[0]
        target = self.table[out]
        if isinstance(first, Tensor):
            if "data" not in node.op.wants or first.kind == "constant":  # known with the plan's shapes
                return SymStep(target, "const", (out.value,))
            assert node.op.sym is not None
            element = node.op.sym(*node.op.bind(node.args), data=None)
            tensors = [v for v in self.graph.inputs if isinstance(v, Tensor)]
            return SymStep(target, "item", (tensors.index(first), element))
        words = tuple(self.word(a) for a in node.args if isinstance(a, Sym | int | float))
        return SymStep(target, node.op.verb, words)

    def outputs(self) -> tuple[int, ...]:
        return tuple(self.table[v] for v in self.graph.outputs if isinstance(v, Sym))
