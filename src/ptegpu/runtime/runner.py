"""Runs the plan of one stretch: index bounds, sizes, and extension to sizes that the plan does not hold for yet.

A call computes a minimum and a maximum for each input that is used as an index, and compares each symbolic int. Only if
one of these is out of range does it look for the element that reaches the index, and for the message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..dtypes import DType
from ..errors import IndexOutOfRange, InvalidInput, InvalidProgram
from ..gpu import Device, DeviceTensor, Pending, Session, SharedConstants, Unplanned
from ..gpu.checks import Argument, Points, sizes_of
from ..gpu.loaded import RecordedSteps, ResolvedRun
from ..limits import hold
from ..plan.device_arrays import value_range
from ..plan.numbers import compile_rows
from ..plan.plan import VALUES, Bound, Expr, Number, Plan, plain
from ..progress import Progress, silent

# From shapes and elements to a plan for them.
Extend: TypeAlias = Callable[[Sequence[Any], Callable[[int, int], int]], Plan]


def extender(planner: Any) -> Extend:
    """Return a function that traces a plan for further sizes."""

    def extend(shapes: Sequence[Any], item: Callable[[int, int], int]) -> Plan:
        planner.extend(shapes, item)
        return planner.plan()  # type: ignore[no-any-return]

    return extend


class PlanRunner:
    """A plan on a device. Inputs arrive in the device's dtypes.

    `extend` returns the plan for further sizes or raises an error; without it, no sizes can be added.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        constants: SharedConstants,
        extend: Extend | None = None,
        points: Points = (),
        progress: Progress = silent,
        owner: Session | None = None,
    ) -> None:
        self.device, self._extend = device, extend
        self.extended = 0  # number of extensions of the plan
        self._early: IndexBounds | None = None
        self._bounds: tuple[RecordedSteps, IndexBounds] | None = None  # at the sizes of the last run
        self._take(plan)
        self.session = Session(device, constants, owner)
        self.loaded = self.session.prepare(plan, points, progress)

    def run(self, inputs: Sequence[Argument], read: Sequence[int] | None = None) -> list[Argument]:
        """Return results in the plan's order; only those in `read` (None: all) leave the device."""
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

    def check_early(self, inputs: Sequence[Any], positions: set[int]) -> None:
        """Check the bounds that are equal in every call, of constants and of the inputs at these positions."""
        if self._early is None:
            bounds = [b for family in self.plan.families[:1] for b in family.bounds if fixed(b)]
            early = [b for b in bounds if b.kind == "constant" or (b.kind == "input" and b.source in positions)]
            self._early = IndexBounds(self.plan, early, plain)
        self._early.check(inputs, plain)

    def close(self) -> None:
        self.session.close()

    def _take(self, plan: Plan) -> None:
        """Set the plan, and count its buffers against the limits before they are made."""
        self.plan = plan
        self._distinct = [distinct(family.bounds) for family in plan.families]
        nbytes = sum(b.nbytes for b in plan.buffers if b.role != "constant")
        hold(self, nbytes, f"plan {plan.name}")

    def _extend_to(self, inputs: Sequence[Argument], reason: Unplanned) -> list[Argument]:
        """Extend the plan to these inputs. This may replace buffers, so outputs of the last run are read first."""
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
            return compile_rows(self.plan.rows, [n.row])(shapes, item)[0]  # type: ignore[no-any-return]

        if self._bounds is None or self._bounds[0] is not recorded:
            self._bounds = recorded, IndexBounds(self.plan, self._distinct[recorded.at.family], value)
        self._bounds[1].check(inputs, value)


Value = Callable[[Number], int]


class IndexBounds:
    """The index bounds of a plan at the sizes of a run."""

    def __init__(self, plan: Plan, bounds: Sequence[Bound], value: Value) -> None:
        self.plan = plan
        self.inputs: dict[int, list[tuple[int, int, Bound]]] = {}
        self.ints: list[tuple[Number, int, int, Bound]] = []
        self.broken: list[tuple[np.ndarray, int, int, Bound]] = []  # constants with values out of range
        for bound in bounds:
            low, end = value(bound.low), value(bound.end)
            if bound.kind == "int":
                self.ints.append((bound.source, low, end, bound))
            elif bound.kind == "input":
                self.inputs.setdefault(bound.source, []).append((low, end, bound))  # type: ignore[arg-type]
            else:
                array = _constant(plan, bound)
                if array.size and not (array.min() >= low and array.max() < end):
                    self.broken.append((array, low, end, bound))

    def check(self, inputs: Sequence[Any], value: Value) -> None:
        """Raise IndexOutOfRange for the first value that is outside; ignore tensors on the device.

        `value` evaluates numbers, including those that only a message needs.
        """
        for array, low, end, bound in self.broken:
            _raise_outside(bound, array, low, end, value)
        for position, bounds in self.inputs.items():
            array = inputs[position]
            if isinstance(array, np.ndarray) and array.size:
                least, most = value_range(array)
                for low, end, bound in bounds:
                    if not (least >= low and most < end):
                        _raise_outside(bound, array, low, end, value)
        for source, low, end, bound in self.ints:
            number = value(source)
            if not low <= number < end:
                raise IndexOutOfRange(f"{_message(bound, number)} {_range(bound, low, end)}")


def distinct(bounds: Sequence[Bound]) -> list[Bound]:
    """Drop duplicate checks."""
    by_check: dict[tuple[object, ...], Bound] = {}
    for b in bounds:
        by_check.setdefault((b.kind, b.source, b.low, b.end, b.moves), b)
    return list(by_check.values())


def fixed(bound: Bound) -> bool:
    """Return whether a bound is equal in every call and applies to all elements of its source."""
    return not any(isinstance(n, Expr) for n in (bound.low, bound.end)) and all(m.op == "view" for m in bound.moves)


def _constant(plan: Plan, bound: Bound) -> np.ndarray:
    buffer = plan.buffers[bound.source]  # type: ignore[index]
    assert buffer.blob is not None and bound.dtype is not None
    return np.frombuffer(plan.blobs[buffer.blob], bound.dtype.numpy).reshape(bound.shape)


def _raise_outside(bound: Bound, array: np.ndarray, low: int, end: int, value: Value) -> None:
    """Raise for the first element that reaches the index and is out of range, if there is one."""
    outside = _first_outside(bound, array, low, end, value)
    if outside:
        raise IndexOutOfRange(f"{_message(bound, *outside)} {_range(bound, low, end)}")


def _first_outside(bound: Bound, array: np.ndarray, low: int, end: int, value: Value) -> tuple[int, list[int]] | None:
    """Return the first value of the source that reaches the index and is out of range, and its position."""
    reaching = np.arange(array.size).reshape(array.shape)  # positions in the source, moved like its values
    for move in () if all(m.op == "view" for m in bound.moves) else bound.moves:
        if move.op == "view":
            shape = [value(n) for n in move.shape]
            if min(shape, default=0) < 0 or math.prod(shape) != reaching.size:
                raise InvalidProgram(f"an index of {bound.node} cannot have the shape {shape}")
            reaching = reaching.reshape(shape)
        else:
            from ..portable import OutSpec, call

            args = [_plain(a, reaching, value) for a in move.args]
            reaching = call(move.op, args, [OutSpec(DType.I64)] * move.results)[move.number]
    if reaching.size and not 0 <= reaching.min() <= reaching.max() < array.size:
        raise InvalidProgram(f"an index of {bound.node} is moved by an operator that computes values")
    values = array.reshape(-1)[reaching.reshape(-1)]
    outside = np.flatnonzero((values < low) | (values >= end))
    if not outside.size:
        return None
    position = np.unravel_index(reaching.reshape(-1)[outside[0]], array.shape)
    return int(values[outside[0]]), [int(k) for k in position]


def _plain(a: Any, positions: np.ndarray, value: Value) -> Any:
    if isinstance(a, tuple):
        return [_plain(x, positions, value) for x in a]
    return positions if a == VALUES and isinstance(a, str) else value(a) if isinstance(a, Expr) else a


def _message(bound: Bound, *values: object) -> str:
    text = bound.text
    for value in values:
        text = text.replace("{}", str(value), 1)
    return text


def _range(bound: Bound, low: int, end: int) -> str:
    return f"is out of range for {bound.node}, which takes {low} to {end - 1}"
