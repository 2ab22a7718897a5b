"""The words of the `syms` buffer: one per symbolic int of a graph, and one per literal a kernel reads in its place."""

from __future__ import annotations

from ..errors import UnsupportedProgram
from ..graph.graph import Graph, Sym, Tensor
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
            if len(self.table) == CAPACITY:
                raise UnsupportedProgram(f"graph {self.graph.name} has more than {CAPACITY} symbolic ints")
            self.table[key] = len(self.table)
        return self.table[key]

    def words(self) -> list[int]:
        """The contents of the buffer now."""
        return [int(v) for v in self.table]

    def steps(self) -> tuple[SymStep, ...]:
        """How a runner without a shape engine makes the words for its inputs at this plan's shapes."""
        if not self.table:
            return ()
        steps = []
        scalars = [v for v in self.graph.inputs if isinstance(v, Sym)]
        steps += [SymStep(self.table[v], "input", (k,)) for k, v in enumerate(scalars)]
        steps += [SymStep(word, "const", (v,)) for v, word in self.table.items() if isinstance(v, int)]
        tensors = [v for v in self.graph.inputs if isinstance(v, Tensor)]
        for node in self.graph.nodes:
            if node.op.sym is None:
                continue
            (out,) = node.outs
            assert isinstance(out, Sym)
            first = node.args[0]
            if "data" in node.op.wants:
                assert isinstance(first, Tensor)
                element = node.op.sym(*node.op.bind(node.args), data=None)
                steps.append(SymStep(self.table[out], "item", (tensors.index(first), element)))
            elif isinstance(first, Tensor):
                steps.append(SymStep(self.table[out], "const", (out.value,)))
            else:
                words = [self.word(a) for a in node.args if isinstance(a, Sym | int | float)]
                known = len(words) == len(node.args)
                op = node.op.name.split(".")[0].split("::")[-1]
                steps.append(
                    SymStep(self.table[out], op, tuple(words))
                    if known
                    else SymStep(self.table[out], "const", (out.value,))
                )
        constants = {s.target for s in steps if s.op == "const"}
        late = [
            SymStep(word, "const", (v,))
            for v, word in self.table.items()
            if isinstance(v, int) and word not in constants
        ]
        return (*late, *steps)

    def outputs(self) -> tuple[int, ...]:
        return tuple(self.table[v] for v in self.graph.outputs if isinstance(v, Sym))
