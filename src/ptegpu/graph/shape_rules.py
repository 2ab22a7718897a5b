"""The shape rules of nodes, run at the live shapes of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import ExecutionError, InvalidProgram, PtegpuError, ShapeError
from ..sizes import Size
from .graph import Node, Shape, Tensor

Item = Callable[[Tensor, int], int]  # returns an element of an input, by its flat index


def evaluate(node: Node, item: Item) -> Sequence[Shape | int]:
    """Return the live shapes of a node's outputs, or the value of its symbolic int."""
    if node.op.sym is not None:
        return [_symbolic(node, item)]
    outs = [o for o in node.outs if isinstance(o, Tensor)]
    try:
        shapes = node.op.infer(node.args, outs)
    except (ShapeError, InvalidProgram) as e:
        raise ShapeError(f"{node.name}: {e}") from e
    if len(outs) != len(shapes):
        raise ShapeError(f"{node.name} has {len(shapes)} results, the program says {len(outs)}")
    for out, shape in zip(outs, shapes, strict=True):
        if len(shape) != len(out.max_shape) or not all(0 <= n <= m for n, m in zip(shape, out.max_shape, strict=True)):
            raise ShapeError(
                f"{node.name}: its result {out.name} would be {list(shape)}, "
                f"but the program allows at most {list(out.max_shape)}"
            )
    return shapes


def _symbolic(node: Node, item: Item) -> int:
    assert node.op.sym is not None
    try:
        value = node.op.sym(*node.op.bind(node.args))
        if node.op.reads:  # the rule returned the element's index
            value = _element(node.args[0], value, item)
    except (ShapeError, InvalidProgram) as e:
        raise ShapeError(f"{node.name}: {e}") from None
    except PtegpuError:
        raise
    except ZeroDivisionError:
        raise ExecutionError(f"{node.name}: division by zero") from None
    except (ArithmeticError, LookupError, ValueError) as e:
        raise ExecutionError(f"{node.name}: {e}") from e
    value = value if isinstance(value, Size) else int(value)
    if not -(2**31) <= value < 2**31:
        raise ExecutionError(f"{node.name}: the symbolic int {value} does not fit int32")
    return value


def _element(tensor: object, element: int, item: Item) -> int:
    assert isinstance(tensor, Tensor)
    if tensor.kind == "constant":
        assert tensor.data is not None
        return int(tensor.data.reshape(-1)[int(element)])
    if tensor.kind != "input":
        raise ExecutionError(f"the host cannot read {tensor.name} before the run")
    return item(tensor, element)
