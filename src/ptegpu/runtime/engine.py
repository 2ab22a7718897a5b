"""Runs the plan of one stretch: sizes, index bounds, and what to do at sizes that the plan does not hold for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidInput
from ..gpu import Device, DeviceTensor, Pending, Session, SharedConstants, Unplanned
from ..gpu.session import Given, Look, Points, Ready, given_sizes
from ..limits import hold
from ..plan.numbers import program
from ..plan.plan import Expr, Number, Plan, plain
from ..progress import Progress, silent
from .bounds import Limits, distinct, fixed

Extend: TypeAlias = Callable[
    [Sequence[Any], Callable[[int, int], int]], Plan
]  # of shapes and elements: a plan for them


class Engine:
    """A plan on a device. Inputs arrive in the device's dtypes. `extend` gives the plan for more sizes, or raises why
    there is none; without it, what the plan has is all."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        constants: SharedConstants,
        extend: Extend | None = None,
        points: Points = (),
        progress: Progress = silent,
    ) -> None:
        self.plan, self.device, self._extend = plan, device, extend
        self.extended = 0  # how often the plan was
        self._distinct = [distinct(family.bounds) for family in plan.families]
        self._early: Limits | None = None
        self._limits: tuple[Ready, Limits] | None = None  # at the sizes of the last run
        self._hold()
        self.session = Session(device, constants)
        self.prepared = self.session.prepare(plan, points, progress)

    def run(self, inputs: Sequence[Given], read: Sequence[int] | None = None) -> list[Given]:
        """Results in the plan's order; tensors whose position is not in `read` (None: all) stay on the device."""
        return self.start(inputs, read).result()

    def start(self, inputs: Sequence[Given], read: Sequence[int] | None = None, hold: bool = False) -> Pending:
        """A run that is not waited for; with `hold`, it is submitted together with the next one."""
        try:
            look = self.session.look(self.prepared, inputs)
        except Unplanned as e:
            inputs = self._extend_to(inputs, e)
            look = self.session.look(self.prepared, inputs)
        if self.plan.families[look.ready.at.family].bounds:
            self._check(look, inputs)
        return self.session.start(self.prepared, inputs, read=read, look=look, hold=hold)

    def check_early(self, inputs: Sequence[Any], known: set[int]) -> None:
        """The bounds that are the same in every call, of constants and of the inputs at these positions."""
        if self._early is None:
            bounds = [b for family in self.plan.families[:1] for b in family.bounds if fixed(b)]
            early = [b for b in bounds if b.kind == "constant" or (b.kind == "input" and b.source in known)]
            self._early = Limits(self.plan, early, plain)
        self._early.check(inputs, plain)

    def warm(self) -> None:
        """Compile everything that any size may need."""
        self.session.warm(self.prepared)

    def reset(self) -> None:
        self.session.reset()

    def close(self) -> None:
        self.session.close()

    def _hold(self) -> None:
        """What its buffers take counts, before they are made."""
        nbytes = sum(b.nbytes for b in self.plan.buffers if b.role != "constant")
        hold(self, nbytes, f"plan {self.plan.name}")

    def _extend_to(self, inputs: Sequence[Given], reason: Unplanned) -> list[Given]:
        """Extend the plan to these inputs. Buffers may be replaced for that: those that are outputs of the last run are
        read."""
        if self._extend is None:
            raise InvalidInput(f"{reason}; compile the program again with these sizes") from None
        inputs = [x.numpy() if isinstance(x, DeviceTensor) and x.session is self.session else x for x in inputs]
        self.extended += 1
        self.plan = self._extend(*given_sizes(inputs))
        self._distinct = [distinct(family.bounds) for family in self.plan.families]
        self._hold()
        self.session.extend(self.prepared, self.plan)
        return inputs

    def _check(self, look: Look, inputs: Sequence[Given]) -> None:
        ready, ints, shapes, item = look

        def value(n: Number) -> int:
            if not isinstance(n, Expr):
                return n
            if n.row in ints:
                return ints[n.row]  # type: ignore[no-any-return]
            if n.row in ready.at.order:
                return ready.at.number(n)  # type: ignore[no-any-return]
            return program(self.plan.rows, [n.row])(shapes, item)[0]  # type: ignore[no-any-return]

        if self._limits is None or self._limits[0] is not ready:
            self._limits = ready, Limits(self.plan, self._distinct[ready.at.family], value)
        self._limits[1].check(inputs, value)
