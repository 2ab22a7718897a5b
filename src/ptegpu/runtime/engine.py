"""Runs one joined graph: plans per live shape, remembered, on one set of buffers.

A static graph is lowered when it is built and never enters the shape engine again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ..errors import ExecutionError, InvalidProgram, ShapeError
from ..gpu import Device, DeviceTensor, Pending, Prepared, Session, SharedConstants
from ..graph.graph import Shape, Sym, Tensor, Value
from ..graph.live import Live, settle
from ..passes.memory import ConstantKey, plan_memory
from ..passes.split import split_constants
from ..plan.lower import lower
from ..plan.plan import Plan
from ..plan.symbols import Symbols
from .build import Joined
from .indices import Guards, Limits

MAX_PLANS = 64  # remembered per graph

Given = np.ndarray | DeviceTensor | int
Result = np.ndarray | DeviceTensor | int


class Started:
    """A run of a graph on its way: tensors among its outputs come from the GPU, symbolic ints are known."""

    def __init__(self, pending: Pending, scalars: dict[int, int]) -> None:
        self._pending, self._scalars = pending, scalars

    def result(self) -> list[Result]:
        return self._merged(self._pending.result())

    def discard(self) -> None:
        """The result will not be asked for."""
        self._pending.discard()

    def resident(self) -> list[Result]:
        """The outputs as they are on the device, for the next run."""
        return self._merged(self._pending.outputs)

    def _merged(self, tensors: Sequence[Result]) -> list[Result]:
        left = iter(tensors)
        count = len(tensors) + len(self._scalars)
        return [self._scalars[k] if k in self._scalars else next(left) for k in range(count)]


class Engine:
    """A graph on a device. Inputs arrive in the device's dtypes, in the order of `joined.inputs`."""

    def __init__(
        self, joined: Joined, device: Device, names: dict[ConstantKey, str], constants: SharedConstants
    ) -> None:
        self.joined, self.device = joined, device
        graph = self.graph = joined.graph
        split_constants(graph, device.target)
        self.memory = plan_memory(graph, device.target, names)
        self.symbols = Symbols(graph)
        self.live = Live(graph)
        self.tensors = graph.tensors()
        self.baked = list(dict.fromkeys(s for n in graph.nodes if n.op.sym is None for s in n.op.baked(n.args)))
        self.guards = Guards(graph, joined.dynamic)
        indices = self.guards.only_indices()
        self.only_indices = {p for p, value in enumerate(graph.inputs) if value in indices}  # their positions
        self.plans: OrderedDict[tuple[object, ...], tuple[Prepared, Limits]] = OrderedDict()
        self.planned = 0  # plans ever made
        self.session = Session(device, constants)
        self.current: Prepared | None = None
        self.current_baked: tuple[int, ...] = ()
        self.limits = Limits()
        if not joined.dynamic:
            try:
                self._settle_static()
                self.current, self.limits = self._prepare(())
            except ShapeError as e:
                raise InvalidProgram(str(e)) from e

    def plan(self) -> Plan | None:
        """The plan of the last run, or of a static graph."""
        return self.current.plan if self.current else None

    def plan_now(self) -> Plan:
        """The plan of the last run, made again: its bytes and flops are those at the symbolic ints of that run."""
        return lower(self.graph, self.memory, self.device.target, self.symbols)

    def run(self, inputs: Sequence[Given], read: Sequence[int]) -> list[Result]:
        """Results in the order of `joined.outputs`; tensors whose position is not in `read` stay on the device."""
        return self.start(inputs, read).result()

    def start(self, inputs: Sequence[Given], read: Sequence[int]) -> Started:
        """A run that is not waited for."""
        if self.joined.dynamic:
            self._update(inputs)
        assert self.current is not None
        self.limits.check(inputs)
        tensors = [x for x in inputs if not isinstance(x, int)]
        kept = [k for k, v in enumerate(self.graph.outputs) if isinstance(v, Tensor)]
        words = self.symbols.words() if self.symbols.table else None
        pending = self.session.start(self.current, tensors, words, read=[p for p, k in enumerate(kept) if k in read])
        scalars = {k: int(v) for k, v in enumerate(self.graph.outputs) if not isinstance(v, Tensor)}  # type: ignore[arg-type]
        return Started(pending, scalars)

    def reset(self) -> None:
        self.session.reset()

    def close(self) -> None:
        self.session.close()

    def _settle_static(self) -> None:
        settle(self.graph)
        for node in self.graph.nodes:
            for out in node.outs:
                if isinstance(out, Tensor) and out.shape != out.max_shape:
                    raise InvalidProgram(f"{node.name} gives {list(out.shape)}, the program says {list(out.max_shape)}")

    def _update(self, inputs: Sequence[Given]) -> None:
        """Live shapes and symbolic ints for these inputs, and the plan that fits them."""
        changes: dict[Value, Shape | int] = {}
        arrays: dict[Tensor, np.ndarray | DeviceTensor] = {}
        for value, given in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(value, Sym):
                assert isinstance(given, int)
                changes[value] = given
            else:
                assert not isinstance(given, int)
                changes[value] = tuple(given.shape)
                arrays[value] = given

        def data(tensor: Tensor) -> np.ndarray:
            source = tensor.data if tensor.kind == "constant" else arrays.get(tensor)
            if source is None:
                raise ExecutionError(f"the host cannot read {tensor.name} before the run")
            return source.numpy() if isinstance(source, DeviceTensor) else source

        current, self.current = self.current, None  # until it is known to fit, whatever is raised on the way
        reshaped = self.live.update(changes, data)
        baked = tuple(s.value for s in self.baked)
        if reshaped or current is None or baked != self.current_baked:
            key = (tuple(t.shape for t in self.tensors), baked)
            found = self.plans.get(key)
            if found is None:
                found = self._prepare(key)
            self.plans[key] = found
            self.plans.move_to_end(key)
            while len(self.plans) > MAX_PLANS:
                self.session.release(self.plans.popitem(last=False)[1][0])
            current, self.limits = found
            self.current_baked = baked
        self.current = current

    def _prepare(self, key: tuple[object, ...]) -> tuple[Prepared, Limits]:
        self.planned += 1
        plan = lower(self.graph, self.memory, self.device.target, self.symbols, f".{self.planned}")
        return self.session.prepare(plan), self.guards.limits()
