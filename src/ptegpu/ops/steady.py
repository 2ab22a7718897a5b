"""Tables of positions: of what follows from sizes alone, smaller sizes see the first elements.

`arange(n)[:, None] - arange(n)` for 5 is the first 5 × 5 of what it is for 512. Here is of which operators that is
true, and how the sizes of a result follow. A size is an int, or the scalar that it is in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeAlias

from ..plan.method import Call, Operand, Var

Dims: TypeAlias = tuple["int | Var", ...]
Of = Callable[[Operand], Dims | None]  # of a tensor or a literal: None if it is not steady
Same = Callable[[Operand], Operand]  # one scalar for all that are computed the same way
Rule = Callable[[Call, Of, Same], Dims | None]


def steady(call: Call, of: Of, same: Same) -> Dims | None:
    """The sizes of its result, if smaller ones leave its elements as they are; None if they may not."""
    rule = RULES.get(call.op)
    found = rule(call, of, same) if rule else None
    return found if found is not None and len(found) == len(call.outs[0].sizes) else None


def copied(call: Call) -> Operand:
    """The scalar that a call only copies; None if it does more."""
    return call.args[0] if call.op in _ADDS and call.args[1:] == (0,) else None


def first(table: Var, dims: Dims, out: Var, where: str) -> list[Call]:
    """Calls that leave the beginning of a table in `out`."""
    live = [(k, d) for k, d in enumerate(dims) if isinstance(d, Var)]
    calls = []
    for n, (k, size) in enumerate(live, 1):
        target = out if n == len(live) else Var(f"{out.name}.{n}", out.dtype, out.sizes, dynamic=True)
        calls.append(Call("aten.slice_copy.Tensor", (table, k, 0, size, 1), (target,), where))
        table = target
    return calls


def _broadcast(shapes: Iterable[Dims | None]) -> Dims | None:
    known = list(shapes)
    found: list[int | Var] = []
    for sizes in zip_longest(*(reversed(s) for s in known if s is not None), fillvalue=1):
        others = {d for d in sizes if d != 1}
        if len(others) > 1:
            return None
        found.append(others.pop() if others else 1)
    return None if None in known else tuple(reversed(found))


def _pointwise(call: Call, of: Of, same: Same) -> Dims | None:
    return _broadcast(map(of, call.args))


def _like(call: Call, of: Of, same: Same) -> Dims | None:
    """Of the first argument; the others are literals."""
    return of(call.args[0]) if all(of(a) == () for a in call.args[1:]) else None


def _reshaped(call: Call, of: Of, same: Same) -> Dims | None:
    """Sizes of 1 come and go."""
    dims, sizes = of(call.args[0]), call.outs[0].sizes
    source = call.args[0]
    if (
        dims is None
        or not isinstance(source, Var)
        or [n for n in source.sizes if n != 1] != [n for n in sizes if n != 1]
    ):
        return None
    left = iter(d for d, n in zip(dims, source.sizes, strict=True) if n != 1)
    return tuple(1 if n == 1 else next(left) for n in sizes)


def _permuted(call: Call, of: Of, same: Same) -> Dims | None:
    dims, order = of(call.args[0]), call.args[1]
    if dims is None or not isinstance(order, tuple):
        return None
    places = [d for d in order if isinstance(d, int) and -len(dims) <= d < len(dims)]
    return tuple(dims[d] for d in places) if len(places) == len(order) == len(dims) else None


def _expanded(call: Call, of: Of, same: Same) -> Dims | None:
    dims, sizes = of(call.args[0]), _sizes(call.args[1], same)
    if dims is None or sizes is None or len(sizes) < len(dims):
        return None
    own = (1,) * (len(sizes) - len(dims)) + dims
    return _broadcast([own, tuple(d if n == -1 else n for d, n in zip(own, sizes, strict=True))])


def _sliced(call: Call, of: Of, same: Same) -> Dims | None:
    """All of it, up to the size that it has."""
    dims = of(call.args[0])
    given: list[Operand] = [*call.args[1:], *(0, None, None, 1)[len(call.args) - 1 :]]
    dim, start, end, step = given
    if dims is None or not isinstance(dim, int) or not -len(dims) <= dim < len(dims) or step != 1:
        return None
    whole = same(end) == dims[dim] or end is None or (isinstance(end, int) and end >= 2**31)
    return dims if start in (0, None) and whole else None


def _counted(call: Call, of: Of, same: Same) -> Dims | None:
    start, end, step = (0, call.args[0], 1) if call.op == "aten.arange.default" else [*call.args[:3], 1][:3]
    return _sizes((end,), same) if (start, step) == (0, 1) else None


def _filled(call: Call, of: Of, same: Same) -> Dims | None:
    return _sizes(call.args[0], same) if all(of(a) == () for a in call.args[1:]) else None


def _sizes(operand: Operand, same: Same) -> Dims | None:
    found = [same(n) for n in operand] if isinstance(operand, tuple) else []
    known = [n for n in found if isinstance(n, Var) or type(n) is int]
    return tuple(known) if found and len(known) == len(found) else None


def _names(base: str, *kinds: str) -> Sequence[str]:
    return [f"aten.{name}.{kind}" for name in base.split() for kind in kinds]


_ADDS = ("add", "executorch_prim.add.Scalar")
RULES: dict[str, Rule] = {
    **dict.fromkeys(_names("abs neg sign log exp sqrt rsqrt sin cos ceil floor round trunc", "default"), _pointwise),
    **dict.fromkeys(_names("add sub mul div remainder pow", "Tensor", "Scalar"), _pointwise),
    **dict.fromkeys(_names("pow", "Tensor_Scalar", "Tensor_Tensor"), _pointwise),
    **dict.fromkeys(_names("div", "Tensor_mode", "Scalar_mode"), _pointwise),
    **dict.fromkeys(_names("eq ne lt le gt ge", "Tensor", "Scalar"), _pointwise),
    **dict.fromkeys(_names("bitwise_and bitwise_or", "Tensor", "Scalar"), _pointwise),
    **dict.fromkeys(_names("logical_and logical_or logical_not bitwise_not", "default"), _pointwise),
    **dict.fromkeys(_names("minimum maximum clamp floor_divide", "default"), _pointwise),
    "aten.where.self": _pointwise,
    **dict.fromkeys(_names("full_like zeros_like ones_like alias_copy clone _to_copy", "default"), _like),
    "dim_order_ops._to_dim_order_copy.default": _like,
    "dim_order_ops._clone_dim_order.default": _like,
    **dict.fromkeys(_names("unsqueeze_copy view_copy", "default"), _reshaped),
    "aten.squeeze_copy.dims": _reshaped,
    "aten.permute_copy.default": _permuted,
    "aten.expand_copy.default": _expanded,
    "aten.slice_copy.Tensor": _sliced,
    "aten.arange.default": _counted,
    "aten.arange.start_step": _counted,
    **dict.fromkeys(_names("full zeros ones", "default"), _filled),
}
