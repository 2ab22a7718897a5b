"""Runs the plan of one stretch: sizes, index bounds, and what to do at sizes that the plan does not hold for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import InvalidInput
from ..gpu import Device, DeviceTensor, Pending, Session, SharedConstants, Unplanned
from ..gpu.inputs import Argument, Points, sizes_of
from ..gpu.loaded import RecordedSteps, ResolvedRun
from ..limits import hold
from ..plan.numbers import program
from ..plan.plan import Expr, Number, Plan, plain
from ..progress import Progress, silent
from .bounds import IndexBounds, distinct, fixed

Extend: TypeAlias = Callable[
    [Sequence[Any], Callable[[int, int], int]], Plan
]  # of shapes and elements: a plan for them


class PlanRunner:
    """A plan on a device. Inputs arrive in the device's dtypes. `extend` returns the plan for more sizes, or raises why
    there is none; without it, no sizes can be added."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        constants: SharedConstants,
        extend: Extend | None = None,
        points: Points = (),
        progress: Progress = silent,
    ) -> None:
        self.device, self._extend = device, extend
        self.extended = 0  # how often the plan was
        self._early: IndexBounds | None = None
        self._bounds: tuple[RecordedSteps, IndexBounds] | None = None  # at the sizes of the last run
        self._take(plan)
        self.session = Session(device, constants)
        self.loaded = self.session.prepare(plan, points, progress)

    def run(self, inputs: Sequence[Argument], read: Sequence[int] | None = None) -> list[Argument]:
        """Return results in the plan's order; those whose position is not in `read` (None: all) stay on the device."""
        return self.start(inputs, read).result()

    def start(self, inputs: Sequence[Argument], read: Sequence[int] | None = None, hold: bool = False) -> Pending:
        """Run without waiting; with `hold`, the run is submitted together with the next one."""
        try:
            run = self.session.resolve(self.loaded, inputs)
        except Unplanned as e:
            inputs = self._extend_to(inputs, e)
            run = self.session.resolve(self.loaded, inputs)
        if self.plan.families[run.recorded.at.family].bounds:
            self._check(run, inputs)
        return self.session.start(self.loaded, inputs, read=read, run=run, hold=hold)

    def check_early(self, inputs: Sequence[Any], known: set[int]) -> None:
        """Check the bounds that are the same in every call, of constants and of the inputs at these positions."""
        if self._early is None:
            bounds = [b for family in self.plan.families[:1] for b in family.bounds if fixed(b)]
            early = [b for b in bounds if b.kind == "constant" or (b.kind == "input" and b.source in known)]
            self._early = IndexBounds(self.plan, early, plain)
        self._early.check(inputs, plain)

    def close(self) -> None:
        self.session.close()

    def _take(self, plan: Plan) -> None:
        """Run this plan from now on. What its buffers take counts, before they are made."""
        self.plan = plan
        self._distinct = [distinct(family.bounds) for family in plan.families]
        nbytes = sum(b.nbytes for b in plan.buffers if b.role != "constant")
        hold(self, nbytes, f"plan {plan.name}")

    def _extend_to(self, inputs: Sequence[Argument], reason: Unplanned) -> list[Argument]:
        """Extend the plan to these inputs. Buffers may be replaced for that: those that are outputs of the last run are
        read."""
        if self._extend is None:
            raise InvalidInput(f"{reason}; compile the program again with these sizes") from None
        inputs = [x.numpy() if isinstance(x, DeviceTensor) and x.session is self.session else x for x in inputs]
        self.extended += 1
        self._take(self._extend(*sizes_of(inputs)))
        self.session.extend(self.loaded, self.plan)
        return inputs

    def _check(self, run: ResolvedRun, inputs: Sequence[Argument]) -> None:
        recorded, ints, shapes, item = run

        def value(n: Number) -> int:
            if not isinstance(n, Expr):
                return n
            if n.row in ints:
                return ints[n.row]  # type: ignore[no-any-return]
            if n.row in recorded.at.order:
                return recorded.at.number(n)  # type: ignore[no-any-return]
            return program(self.plan.rows, [n.row])(shapes, item)[0]  # type: ignore[no-any-return]

        if self._bounds is None or self._bounds[0] is not recorded:
            self._bounds = recorded, IndexBounds(self.plan, self._distinct[recorded.at.family], value)
        self._bounds[1].check(inputs, value)
