"""Live shapes: when an input's shape or a symbolic int changes, the rules downstream of it rerun, once each, in order.

A graph that never changes never comes here after it was built. The first update runs every rule, as a symbolic int has
no value before. An update either settles completely or, if a rule refuses, leaves every shape and every symbolic int
as it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..errors import ExecutionError, InvalidInput, InvalidProgram, PtegpuError, ShapeError
from .graph import Graph, Node, Shape, Tensor, Value, flatten

Data = Callable[[Tensor], np.ndarray]


class Live:
    """Keeps `Tensor.shape` and `Sym.value` of one graph true to the inputs of the current call."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.settled = False  # until every rule has run once
        self.users: dict[Value, list[int]] = {}
        self.readers: list[int] = []  # nodes that read data of an input, so that they run for every call
        for k, node in enumerate(self.nodes):
            shaping = tuple(a for j, a in enumerate(node.args) if j not in node.op.positions)
            for v in dict.fromkeys(flatten(shaping)):
                self.users.setdefault(v, []).append(k)
            if "data" in node.op.wants:
                self.readers.append(k)

    def update(self, changes: Mapping[Value, Shape | int], data: Data) -> bool:
        """Apply new input shapes and symbolic ints; returns whether any tensor's shape changed."""
        undo: list[tuple[Value, Shape | int]] = []
        queue = list(self.readers) if self.settled else list(range(len(self.nodes)))
        queued = set(queue)
        reshaped = False

        def assign(value: Value, new: Shape | int) -> bool:
            old: Shape | int = value.shape if isinstance(value, Tensor) else value.value
            if old == new:
                return False
            undo.append((value, old))
            _set(value, new)
            for k in self.users.get(value, ()):
                if k not in queued:
                    queued.add(k)
                    heapq.heappush(queue, k)
            return isinstance(value, Tensor)

        try:
            for value, new in changes.items():
                if isinstance(new, int) and not _fits(new):
                    what = f"{value.name}: the int {new}"
                    raise InvalidInput(f"{what} does not fit int32, which is what the GPU computes with")
                reshaped |= assign(value, new)
            while queue:
                node = self.nodes[heapq.heappop(queue)]
                for out, new in zip(node.outs, evaluate(node, data), strict=True):
                    reshaped |= assign(out, new)
        except BaseException:
            for value, old in reversed(undo):
                _set(value, old)
            raise
        self.settled = True
        return reshaped


def _fits(value: int) -> bool:
    return -(2**31) <= value < 2**31


def _set(value: Value, new: Shape | int) -> None:
    if isinstance(value, Tensor):
        assert isinstance(new, tuple)
        value.shape = new
    else:
        assert isinstance(new, int)
        value.value = new


def evaluate(node: Node, data: Data) -> Sequence[Shape | int]:
    """What a node's outputs are now: live shapes, or a symbolic int."""
    if node.op.sym is not None:
        return [_symbolic(node, data)]
    outs = [o for o in node.outs if isinstance(o, Tensor)]
    try:
        shapes = node.op.infer(node.args, outs)
    except (ShapeError, InvalidProgram) as e:
        raise ShapeError(f"{node.name}: {e}") from e
    if len(outs) != len(shapes):
        raise ShapeError(f"{node.name} has {len(shapes)} results, the program says {len(outs)}")
    for out, shape in zip(outs, shapes, strict=True):
        fits = len(shape) == len(out.max_shape) and all(0 <= n <= m for n, m in zip(shape, out.max_shape, strict=True))
        if not fits:
            raise ShapeError(
                f"{node.name}: its result {out.name} would be {list(shape)}, "
                f"but the program allows at most {list(out.max_shape)}"
            )
    return shapes


def _symbolic(node: Node, data: Data) -> int:
    assert node.op.sym is not None
    extra = {"data": data} if "data" in node.op.wants else {}
    try:
        value = int(node.op.sym(*node.op.bind(node.args), **extra))
    except (ShapeError, InvalidProgram) as e:
        raise ShapeError(f"{node.name}: {e}") from None
    except PtegpuError:
        raise
    except ZeroDivisionError:
        raise ExecutionError(f"{node.name}: division by zero") from None
    except (ArithmeticError, LookupError, ValueError) as e:
        raise ExecutionError(f"{node.name}: {e}") from e
    if not _fits(value):
        raise ExecutionError(f"{node.name}: the symbolic int {value} does not fit int32")
    return value


def settle(graph: Graph) -> None:
    """Run every rule once from the maximum shapes: how a graph is checked when it is built."""
    for node in graph.nodes:
        if node.op.sym is None:
            outs = [o for o in node.outs if isinstance(o, Tensor)]
            for out, shape in zip(outs, evaluate(node, _no_data), strict=True):
                _set(out, shape)


def _no_data(tensor: Tensor) -> np.ndarray:
    raise ExecutionError(f"{tensor.name} has no data before the run")
