"""Join chains of elementwise operators into one kernel each: `silu(gate) * up` reads twice and writes once.

A node joins the only node that uses its result. The joined node reads the operands of both, broadcast to its own
shape, and computes their formulas one after the other, in f32. Its shape rule runs theirs, so it is right at every
live size. Only float arithmetic is joined: there, a wider intermediate result is only more exact.

A chain whose operands all have its shape also joins a matrix product that one of them comes from (the last, where
several do): the product's kernels compute it before they store. So `x + linear(y)` is one dispatch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..dtypes import FLOATS, DType
from ..errors import PtegpuError
from ..graph.graph import Arg, Graph, Node, Tensor, Value, flatten
from ..kernels.matmul import Finish
from ..ops.matmul import Finishing
from ..ops.pointwise import NAMES, pointwise
from ..ops.registry import Dispatch, Formula, Out, Parameter, Scratch, Steps
from ..plan.target import Target

MAX_OPERANDS = 6  # of a joined node: with its result it stays below a browser's 8 storage buffers
MAX_FINISH_OPERANDS = 2  # beside a product's result: its kernels read up to four tensors, and write one
MAX_NODES = 12


def fuse_elementwise(graph: Graph) -> None:
    """Replace chains by joined nodes, in place."""
    users = Counter(v for n in graph.nodes for v in dict.fromkeys(n.values()))
    kept = set(flatten(tuple(graph.outputs))) | {v for pair in graph.writebacks for v in pair}
    mutated = {t for n in graph.nodes for t in n.mutates}
    chains: dict[Value, list[Node]] = {}  # result → the chain that ends in it
    absorbed: set[int] = set()
    for node in graph.nodes:
        if not _joinable(node):
            continue
        chain = [node]
        for source in dict.fromkeys(node.values()):
            if source not in chains or source in kept or users[source] != 1:
                continue
            longer = [*chains[source], *chain]
            leaves = _leaves(longer)
            same = isinstance(source, Tensor) and source.max_shape == _result(node).max_shape
            if same and len(longer) <= MAX_NODES and len(leaves) <= MAX_OPERANDS and not mutated & set(leaves):
                chain = longer
        chains[node.outs[0]] = chain
        absorbed.update(id(n) for n in chain[:-1])
    products = {_result(n): n for n in graph.nodes if "finish" in n.op.wants and not mutated & set(n.values())}
    finished: dict[Value, Node] = {}
    for node in graph.nodes:
        if id(node) in absorbed or node.outs[0] not in chains:
            continue
        chain = chains[node.outs[0]]
        product = _product_before(chain, products, users, kept)
        if product is not None:
            finished[node.outs[0]] = _finish(product, chain)
            absorbed.add(id(product))
    left = [n for n in graph.nodes if id(n) not in absorbed]
    joined = {n.outs[0]: _join(chain) for n in left if len(chain := chains.get(n.outs[0], [])) > 1}
    graph.nodes = [finished.get(n.outs[0]) or joined.get(n.outs[0]) or n for n in left]


def _product_before(
    chain: list[Node], products: dict[Tensor, Node], users: Counter[Value], kept: set[Value]
) -> Node | None:
    """The last product whose result only the chain uses, if all of the chain's operands have its shape."""
    leaves, out = _leaves(chain), _result(chain[-1])
    if len(leaves) > 1 + MAX_FINISH_OPERANDS or any(t.max_shape != out.max_shape for t in leaves):
        return None
    inside = Counter(v for n in chain for v in dict.fromkeys(n.values()))
    found = [t for t in products if t in leaves and t not in kept and users[t] == inside[t] and t.dtype is out.dtype]
    return products[found[-1]] if found else None


def _result(node: Node) -> Tensor:
    (out,) = node.outs
    assert isinstance(out, Tensor)
    return out


def _leaves(chain: list[Node]) -> list[Tensor]:
    """Tensors that the chain reads and does not make."""
    made = {o for n in chain for o in n.outs}
    found = dict.fromkeys(v for n in chain for v in n.values() if v not in made)
    return [v for v in found if isinstance(v, Tensor)]


def _joinable(node: Node) -> bool:
    if node.op.steps is None or node.mutates or len(node.outs) != 1:
        return False
    tensors = [v for v in (*node.values(), *node.outs) if isinstance(v, Tensor)]
    if len(tensors) != len([*node.values(), *node.outs]) or any(t.dtype not in FLOATS or t.parts for t in tensors):
        return False
    try:
        return _formula(node, Target()) is not None
    except (PtegpuError, TypeError):
        return False


def _formula(node: Node, target: Target) -> Formula | None:
    """What the node computes at its live shapes, if that is one elementwise dispatch."""
    found: list[Dispatch] = []
    for step in node.op.steps_into(node.args, [_result(node)], target):
        if not isinstance(step, Dispatch):
            return None
        found.append(step)
    return found[0].formula if len(found) == 1 else None


def _join(chain: list[Node]) -> Node:
    """One node that computes the chain."""
    leaves, last = _leaves(chain), chain[-1]

    def rule(*tensors: Tensor, target: Target, outs: tuple[Tensor, ...]) -> Steps:
        for node in chain[:-1]:  # their results are nobody else's
            made = _result(node)
            (made.shape,) = node.op.infer(node.args, [made])
        (shape,) = last.op.infer(last.args, list(outs))
        out = yield Out(shape)
        yield _dispatch(chain, leaves, out, target)

    parameters = tuple(Parameter(f"x{k}") for k in range(len(leaves)))
    short = "+".join(n.op.name.split(".")[1] for n in chain)
    op = replace(
        last.op, name=f"fused({short})", parameters=parameters, wants=frozenset({"target", "outs"}), steps=rule
    )
    return Node(op, tuple(leaves), last.outs, f"{last.name} and {len(chain) - 1} before it")


def _finish(product: Node, chain: list[Node]) -> Node:
    """One node that computes the product and, with each of its elements, the chain."""
    made, last = _result(product), chain[-1]
    others = [t for t in _leaves(chain) if t is not made]

    def rule(*_: Arg, target: Target, outs: tuple[Tensor, ...]) -> Steps:
        (made.shape,) = product.op.infer(product.args, [made])
        for node in chain[:-1]:
            between = _result(node)
            (between.shape,) = node.op.infer(node.args, [between])
        (shape,) = last.op.infer(last.args, list(outs))
        out = yield Out(shape)
        text, helpers, scalars = _text(chain, [made, *others], target)
        if any(t.shape != shape for t in (made, *others)):  # sizes of one that a dynamic dimension has only now
            plain = yield Scratch(made.shape, made.dtype)
            yield from product.op.steps_into(product.args, [plain], target)
            yield pointwise(
                "fused", text, [plain, *others], out, target, scalars=scalars, compute=DType.F32, helpers=helpers
            )
            return
        names = ["i: u32", *(f"{n}: f32" for n in (*NAMES[: 1 + len(others)], *scalars))]
        wgsl = f"{helpers}\nfn apply({', '.join(names)}) -> f32 {{ {text} }}"
        kernel = Finish(wgsl, tuple(t.dtype for t in others), tuple(scalars))
        yield from product.op.steps_into(product.args, [out], target, Finishing(kernel, tuple(others), scalars))

    parameters = (
        *product.op.parameters[: len(product.args)],
        *(Parameter(f"x{k}") for k in range(len(others))),
    )
    short = "+".join(n.op.name.split(".")[-2] for n in (product, *chain))
    op = replace(
        product.op, name=f"fused({short})", parameters=parameters, wants=frozenset({"target", "outs"}), steps=rule
    )
    return Node(op, (*product.args, *others), last.outs, f"{product.name} and {len(chain)} after it")


def _dispatch(chain: list[Node], leaves: list[Tensor], out: Tensor, target: Target) -> Dispatch:
    text, helpers, scalars = _text(chain, leaves, target)
    return _pointwise(text, leaves, out, target, helpers, scalars)


def _pointwise(
    text: str, leaves: list[Tensor], out: Tensor, target: Target, helpers: str, scalars: dict[str, int | float]
) -> Dispatch:
    return pointwise("fused", text, leaves, out, target, scalars=scalars, compute=DType.F32, helpers=helpers)


def _text(chain: list[Node], leaves: list[Tensor], target: Target) -> tuple[str, str, dict[str, int | float]]:
    """The chain as statements over the letters of its leaves, the functions that they call, and their numbers."""
    names = dict(zip(leaves, NAMES, strict=False))
    values: dict[Tensor, str] = dict(names)
    scalars: dict[str, int | float] = {}
    helpers, body = [], []
    for k, node in enumerate(chain):
        formula = _formula(node, target)
        assert formula is not None
        parameters, given = ["i: u32"], ["i"]
        for letter, operand in zip(NAMES, formula.operands, strict=False):
            parameters.append(f"{letter}: f32")
            if isinstance(operand, Tensor):
                given.append(values[operand])
            else:
                scalars[f"n{k}{letter}"] = operand
                given.append(f"n{k}{letter}")
        for name, number in formula.scalars.items():
            parameters.append(f"{name}: f32")
            scalars[f"n{k}{name}"] = number
            given.append(f"n{k}{name}")
        statements = formula.body if "return" in formula.body else f"return {formula.body};"
        helpers.append(f"fn step{k}({', '.join(parameters)}) -> f32 {{ {statements} }}")
        body.append(f"let t{k} = step{k}({', '.join(given)});")
        values[_result(node)] = f"t{k}"
    return " ".join([*body, f"return t{len(chain) - 1};"]), "\n".join(helpers), scalars
