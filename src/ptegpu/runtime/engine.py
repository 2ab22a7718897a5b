"""Runs the plan of one stretch: sizes, index bounds, and what to do at sizes that the plan does not hold for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidInput
from ..gpu import Device, DeviceTensor, Pending, Session, SharedConstants, Unplanned
from ..gpu.session import Given, Ready, given_sizes
from ..plan.numbers import program
from ..plan.plan import Expr, Number, Plan
from . import bounds

Extend: TypeAlias = Callable[
    [Sequence[Any], Callable[[int, int], int]], Plan
]  # of shapes and elements: a plan for them


class Engine:
    """A plan on a device. Inputs arrive in the device's dtypes. `extend` gives the plan for more sizes, or raises why
    there is none; without it, what the plan has is all."""

    def __init__(self, plan: Plan, device: Device, constants: SharedConstants, extend: Extend | None = None) -> None:
        self.plan, self.device, self._extend = plan, device, extend
        self.extended = 0  # how often the plan was
        self.session = Session(device, constants)
        self.prepared = self.session.prepare(plan)

    def run(self, inputs: Sequence[Given], read: Sequence[int] | None = None) -> list[Given]:
        """Results in the plan's order; tensors whose position is not in `read` (None: all) stay on the device."""
        return self.start(inputs, read).result()

    def start(self, inputs: Sequence[Given], read: Sequence[int] | None = None) -> Pending:
        """A run that is not waited for."""
        ready = self._ready(inputs)
        family = self.plan.families[ready.at.family]
        if family.bounds:
            self._check(ready, inputs)
        return self.session.start(self.prepared, inputs, read=read)

    def check_early(self, inputs: Sequence[Any], known: set[int]) -> None:
        """The bounds that are the same in every call, of constants and of the inputs at these positions."""
        for family in self.plan.families[:1]:
            early = [
                b
                for b in family.bounds
                if bounds.fixed(b) and (b.kind == "constant" or (b.kind == "input" and b.source in known))
            ]
            bounds.check(self.plan, early, inputs, lambda n: n, lambda n: n)  # type: ignore[arg-type, return-value]

    def warm(self) -> None:
        """Compile everything that any size may need."""
        self.session.warm(self.prepared)

    def reset(self) -> None:
        self.session.reset()

    def close(self) -> None:
        self.session.close()

    def _ready(self, inputs: Sequence[Given]) -> Ready:
        try:
            return self.session.ready(self.prepared, inputs)
        except Unplanned as e:
            if self._extend is None:
                raise InvalidInput(f"{e}; compile the program again with these sizes") from None
        shapes, item = given_sizes(inputs)
        self.extended += 1
        self.plan = self._extend(shapes, item)
        self.session.extend(self.prepared, self.plan)
        return self.session.ready(self.prepared, inputs)

    def _check(self, ready: Ready, inputs: Sequence[Given]) -> None:
        shapes, item = given_sizes(inputs)
        resolver = self.prepared.resolver
        words = resolver.words_at(shapes, item) if resolver.words else {}

        def value(n: Number) -> int:
            if not isinstance(n, Expr):
                return n
            return words[n.row] if n.row in words else ready.at.number(n)  # type: ignore[no-any-return]

        def late(n: Number) -> Any:
            return program(self.plan.rows, [n.row])(shapes, item)[0] if isinstance(n, Expr) else n

        bounds.check(self.plan, self.plan.families[ready.at.family].bounds, inputs, value, late)


__all__ = ["DeviceTensor", "Engine", "Extend", "Given"]
