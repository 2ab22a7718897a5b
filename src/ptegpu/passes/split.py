"""Split constants above the binding limit into parts along their first dimension.

A part is a view of the constant's rows: nothing is copied. Only operators that declare it (`splits` in the registry)
accept such a constant; any other use is an error here, before anything is allocated.
"""

from __future__ import annotations

from ..errors import LimitExceeded
from ..graph.graph import Graph, Node, Tensor, flatten
from ..graph.uses import Uses
from ..plan.plan import ALIGN
from ..plan.target import Target

QUAD = 4  # parts begin at multiples of this many rows if possible, so that kernels may still move quads


def split_constants(graph: Graph, target: Target) -> None:
    """Set the `parts` of every constant that is too large; raise LimitExceeded if one of its uses forbids them."""
    limit = min(target.max_binding_bytes, target.max_buffer_bytes) // ALIGN * ALIGN
    large = [t for t in graph.tensors() if t.kind == "constant" and t.max_nbytes > limit]
    uses = Uses(graph)
    for t in large:
        for node in uses.readers.get(t, ()):
            if not takes_parts(node, t):
                raise LimitExceeded(f"{node.name}: {_size(t, limit, target)}, and it cannot be given in parts")
        if t in uses.kept:
            raise LimitExceeded(f"{graph.name}: {_size(t, limit, target)}, and a result cannot be in parts")
        t.parts = _parts(t, limit, target)


def takes_parts(node: Node, t: Tensor) -> bool:
    """Return True if the node accepts parts wherever `t` is an argument."""
    if node.members:
        return all(takes_parts(member, t) for member in node.members)
    return all(k in node.op.splits and a is t for k, a in enumerate(node.args) if t in flatten((a,)))


def _parts(t: Tensor, limit: int, target: Target) -> tuple[tuple[int, Tensor], ...]:
    assert t.data is not None
    total, *rest = t.max_shape
    rows = limit // (t.max_nbytes // total)
    if rows == 0:
        raise LimitExceeded(f"{_size(t, limit, target)}, less than one of its rows; choose another device")
    rows = rows // QUAD * QUAD or rows
    parts = []
    for first in range(0, total, rows):
        data = t.data[first : first + rows]
        parts.append((first, Tensor(f"{t.name}[{first}:]", t.dtype, (len(data), *rest), "constant", data)))
    return tuple(parts)


def _size(t: Tensor, limit: int, target: Target) -> str:
    constant = f"the constant {t.name}, {t.dtype.value}{list(t.max_shape)}"
    return f"{constant}, takes {t.max_nbytes:,} bytes, {target.name} binds at most {limit:,}"
