"""Prefix stability: a tensor computed from sizes alone is, for smaller sizes, the first elements of the larger one.

`arange(n)[:, None] - arange(n)` for 5 is the first 5 × 5 of its value for 512. An operator declares a rule,
`@op(…, prefix=pointwise)`, from operands by name to the sizes of its result, or to None if smaller sizes may change
elements. A size is an int, or the scalar variable that holds it in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import TypeAlias

from ..plan.method import Operand, Var
from .spans import Operands

Dims: TypeAlias = tuple["int | Var", ...]
Of = Callable[[Operand], Dims | None]  # of a tensor or a literal: None if it is not prefix-stable
Same = Callable[[Operand], Operand]  # to one representative of all scalars that are computed the same way
Rule = Callable[[Operands, Var, Of, Same], Dims | None]  # the Var is the result


def _broadcast(shapes: Iterable[Dims | None]) -> Dims | None:
    operands = list(shapes)
    dims: list[int | Var] = []
    for sizes in zip_longest(*(reversed(s) for s in operands if s is not None), fillvalue=1):
        others = {d for d in sizes if d != 1}
        if len(others) > 1:
            return None
        dims.append(others.pop() if others else 1)
    return None if None in operands else tuple(reversed(dims))


def _sizes(operand: Operand, same: Same) -> Dims | None:
    sizes = [same(n) for n in operand] if isinstance(operand, tuple) else []
    usable = [n for n in sizes if isinstance(n, Var) or type(n) is int]
    return tuple(usable) if sizes and len(usable) == len(sizes) else None


# The rules that operators declare.


def pointwise(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    return _broadcast(map(of, a.values()))


def like(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    """Return the sizes of the first operand; the others are literals."""
    first, *others = map(of, a.values())
    return first if all(dims == () for dims in others) else None


def reshaped(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    """Accept shapes that differ only in dimensions of size 1."""
    x = next(iter(a.values()))
    dims = of(x)
    if dims is None or not isinstance(x, Var) or [n for n in x.sizes if n != 1] != [n for n in out.sizes if n != 1]:
        return None
    left = iter(d for d, n in zip(dims, x.sizes, strict=True) if n != 1)
    return tuple(1 if n == 1 else next(left) for n in out.sizes)


def permuted(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    dims, order = of(a["x"]), a["dims"]
    if dims is None or not isinstance(order, tuple):
        return None
    places = [d for d in order if isinstance(d, int) and -len(dims) <= d < len(dims)]
    return tuple(dims[d] for d in places) if len(places) == len(order) == len(dims) else None


def expanded(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    dims, sizes = of(a["x"]), _sizes(a["size"], same)
    if dims is None or sizes is None or len(sizes) < len(dims):
        return None
    own = (1,) * (len(sizes) - len(dims)) + dims
    return _broadcast([own, tuple(d if n == -1 else n for d, n in zip(own, sizes, strict=True))])


def sliced(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    """Accept slices that take all of a dimension."""
    dims, dim, end = of(a["x"]), a["dim"], a["end"]
    if dims is None or not isinstance(dim, int) or not -len(dims) <= dim < len(dims) or a["step"] != 1:
        return None
    to_the_end = same(end) == dims[dim] or end is None or (isinstance(end, int) and end >= 2**31)
    return dims if a["start"] in (0, None) and to_the_end else None


def counted(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    return _sizes((a["end"],), same) if (a.get("start", 0), a.get("step", 1)) == (0, 1) else None


def filled(a: Operands, out: Var, of: Of, same: Same) -> Dims | None:
    sizes, *values = a.values()
    return _sizes(sizes, same) if all(of(v) == () for v in values) else None
