"""A method of a program: its plans run on the GPU, its other items on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import ExecutionError, InvalidInput, OutOfMemory
from ..limits import Budget, exceeded, tick
from ..plan.device_arrays import as_kernels_read, clip_indices, from_device, to_device
from ..plan.method import Call, CompiledMethod, Host, Item, Jump, Move, Operand, Run, Var
from ..progress import Progress, silent
from .arrays import ArrayKind, as_array, assign, check_writable, fits, is_device_tensor
from .signature import MethodSignature

if TYPE_CHECKING:
    from ..gpu import Device, DeviceTensor, Pending, Session, SharedConstants
    from ..gpu.checks import Points
    from .runner import Extend, PlanRunner

Mark = Literal["called", "accepted", "submitted", "ran", "answered"]  # a plan is submitted, then ran
NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})
MAX_SIZES = 8  # input sizes whose dependent values are cached


class MethodRunner:
    """A method ready to run, behind the public `Method`."""

    def __init__(self, compiled: CompiledMethod, budget: Budget | None = None) -> None:
        self.name, self.compiled, self.items = compiled.name, compiled, compiled.items
        self.budget = budget or Budget()
        self.signature = MethodSignature(compiled)
        labels = [f"{spec.name} of {self.name}" for spec in self.signature.inputs]  # for messages
        self._declared = [(o, *_plain_array(o), label) for o, label in zip(compiled.inputs, labels, strict=True)]
        self.env: dict[Var, Any] = {}
        self.runners: dict[int, PlanRunner] = {}  # by the position of their item
        self._early: list[tuple[PlanRunner, Run, set[int]]] = []
        self._by_size = [item for item in self.items if isinstance(item, Host) and item.by_size]
        self._values_by_size: dict[tuple[Any, ...], dict[Var, Any]] = {}
        self._host_bytes = 0  # computed by the host in this call, and still in slots
        self.watch: Callable[[Mark, Item | None], None] | None = None  # called as a call progresses

    def open(
        self,
        device: Device,
        constants: SharedConstants,
        extend: Mapping[int, Extend] = MappingProxyType({}),
        points: Points = (),
        progress: Progress = silent,
        owner: Session | None = None,
    ) -> None:
        """Allocate, upload and compile. `extend` traces plans, by number, for further sizes; `points` are sizes to
        compile for. `owner` is the session of another method, whose states this one uses.
        """
        from .runner import PlanRunner

        for k, item in enumerate(self.items):
            if isinstance(item, Run):
                plan, extender = self.compiled.plans[item.plan], extend.get(item.plan)
                self.runners[k] = PlanRunner(plan, device, constants, extender, points, progress, owner)
        if len(self.items) > 1:
            arguments = set(self.compiled.given)
            for k, runner in self.runners.items():  # plans of every call, checked before one changes a state
                run = self.items[k]
                if k < self.compiled.branch and isinstance(run, Run):
                    self._early.append((runner, run, {p for p, v in enumerate(run.inputs) if v in arguments}))
        self.reset()

    def prepare(self) -> None:
        """Compile the kernels for all sizes."""
        with self.budget.spending("compiling its kernels"):
            for runner in self.runners.values():
                runner.session.warm(runner.loaded)

    def reset(self) -> None:
        """Reset states to their initial values."""
        for runner in self.runners.values():
            runner.session.reset()
        nbytes = sum(math.prod(v.sizes) * v.dtype.size for v in self.compiled.states if v.dtype)
        self.budget.hold((self, "states"), nbytes, f"method {self.name}")
        try:
            self.env = {v: _initial(v) for v in self.compiled.states}
        except MemoryError:
            message = f"method {self.name} has states of {nbytes:,} bytes, more than this machine's memory has room for"
            raise OutOfMemory(f"{message}: free memory, or export with smaller states") from None

    def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
        self.runners, self._early = {}, []

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Run, write the inputs that the module writes, and return what it returned."""
        if not self.signature.written:
            return self.signature.unflatten(self.execute(arguments, keywords))
        leaves = self.signature.flatten(arguments, keywords)
        targets = [leaves[k] for k in self.signature.written]
        for k, target in zip(self.signature.written, targets):
            check_writable(target, self._declared[k][-1])
        results = self.execute(leaves)
        for target, value in zip(targets, results):
            assign(target, value)
        return self.signature.unflatten(results)

    def execute(self, arguments: Sequence[Any], keywords: Mapping[str, Any] = NO_KEYWORDS) -> list[Any]:
        """Run; return all outputs, in the program's order."""
        with self.budget.spending(self.name):
            try:
                return self._execute(arguments, keywords)
            finally:
                self.budget.hold(self, 0, "")

    def _execute(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        self._mark("called")
        leaves, env = self._accept(arguments, keywords)
        for runner, run, positions in self._early:
            runner.check_early([env.get(v) for v in run.inputs], positions)
        self._mark("accepted")
        try:
            self._run(env)
        finally:  # items that ran before an error did change the states
            if self.env:
                self.env = {v: env[v] for v in self.env}
        kind = ArrayKind.of(leaves)
        results = [self._result(env, o, kind) for o in self.compiled.outputs]
        self._mark("answered")
        return results

    def _mark(self, mark: Mark, item: Item | None = None) -> None:
        if self.watch is not None:
            self.watch(mark, item)

    @cached_property
    def in_one_plan(self) -> bool:
        """Return whether the method is a single plan, so that it can be started without waiting."""
        match self.items:
            case [Run() as run] if not self.compiled.states:
                return all(o in run.outputs for o in self.compiled.outputs)
        return False

    @property
    def session(self) -> Session:
        """The session of a method that is `in_one_plan`."""
        return self.runners[0].session

    def start(self, arguments: Sequence[Any], hold: bool = False, read: bool = True) -> Running:
        """Run a method that is `in_one_plan` without waiting; arguments may be outputs of the last run."""
        (run,) = self.items
        assert isinstance(run, Run)
        with self.budget.spending(self.name):
            _, env = self._accept(arguments)
            pending = self.runners[0].start(self._inputs(env, run), run.read if read else (), hold)
        return Running(pending, self._order, self.compiled.outputs, self.budget)

    @cached_property
    def _order(self) -> list[int]:
        """Return the number of each output among the plan's outputs, if the method is `in_one_plan`."""
        (run,) = self.items
        return [run.outputs.index(o) for o in self.compiled.outputs]  # type: ignore[union-attr, arg-type]

    def _accept(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any] = NO_KEYWORDS
    ) -> tuple[list[Any], dict[Var, Any]]:
        """Return the flat arguments, and the slots with their first values."""
        leaves = self.signature.flatten(arguments, keywords)
        env = dict(self.env)
        for (declared, dtype, sizes, label), value in zip(self._declared, leaves, strict=True):
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == sizes:
                env[declared] = value  # type: ignore[index]
            else:
                self._set_input(env, declared, value, label)
        return leaves, env

    def _set_input(self, env: dict[Var, Any], declared: Operand, value: Any, label: str) -> None:
        if isinstance(declared, Var):
            if is_device_tensor(value):
                env[declared] = _fitting(value, declared, label)
            elif declared.dtype is not None:
                env[declared] = as_array(value, declared, label)
            elif isinstance(value, bool | int | np.integer):
                env[declared] = int(value)
                if not -(2**63) <= value < 2**63:
                    raise InvalidInput(f"{label} must be an int of at most 64 bits")
            else:
                raise InvalidInput(f"{label} must be an int, not {type(value).__name__}")
        elif declared is None and isinstance(value, int):
            pass  # a dynamic int that nothing uses
        elif not _equal(declared, value):
            raise InvalidInput(f"{label} must be {declared!r}, the value it was exported with, not {value!r}")

    def _run(self, env: dict[Var, Any]) -> None:
        self._host_bytes = 0
        position = executed = self._recall(env)
        most = self.budget.limits.instructions
        while position < len(self.items):
            item = self.items[position]
            position += 1
            executed += 1
            tick()
            if executed > most:
                raise exceeded("instructions", executed, most, self.name)
            if isinstance(item, Run):
                self._run_plan(env, position - 1, item)
            elif isinstance(item.instruction, Jump):
                condition = self._value(env, item.instruction.condition)
                if not (np.all(condition) if isinstance(condition, np.ndarray) else condition):
                    position = item.instruction.target
            elif isinstance(item.instruction, Move):
                env[item.instruction.target] = self._stored(env, item.instruction.source)
            else:
                self._run_host(env, item, item.instruction)
            self._mark("ran", item)

    def _inputs(self, env: dict[Var, Any], run: Run) -> list[Any]:
        """Return the inputs of a plan, in the device's types."""
        inputs = []
        for var, declared in zip(run.inputs, self.compiled.plans[run.plan].inputs, strict=True):
            value = env.get(var)
            if value is None:
                value = self._value(env, var)
            if var.dtype is None:
                if not isinstance(value, int):
                    raise ExecutionError(f"{self.name}: {var.name} is {value!r}, where the GPU takes an int")
            elif not is_device_tensor(value):
                value = self._narrowed(value, var, declared.index)
            inputs.append(value)
        return inputs

    def _narrowed(self, value: np.ndarray, var: Var, only_index: bool) -> np.ndarray:
        assert var.dtype is not None
        if var.kind == "temp" and only_index:
            return clip_indices(value, var.dtype)
        try:
            return to_device(value, var.dtype, var.name)
        except InvalidInput as e:
            if var.kind == "input":
                raise
            raise ExecutionError(f"{self.name} computed a value that the GPU cannot take: {e}") from None

    def _run_plan(self, env: dict[Var, Any], k: int, run: Run) -> None:
        try:
            inputs = self._inputs(env, run)
        except (ExecutionError, InvalidInput):
            if not run.exact:
                raise
            self._run_exact(env, run)
            return
        pending = self.runners[k].start(inputs, run.read)
        self._mark("submitted", run)
        for var, result in zip(run.outputs, pending.result(), strict=True):
            if isinstance(result, np.ndarray):
                assert var.dtype is not None
                result = from_device(result, var.dtype)
            env[var] = result

    def _run_exact(self, env: dict[Var, Any], run: Run) -> None:
        """Run a plan's calls on the host, because 32 bits cannot represent one of its inputs."""
        for item in run.exact:
            tick()
            assert isinstance(item.instruction, Call)
            self._run_host(env, item, item.instruction)

    def _run_host(self, env: dict[Var, Any], item: Host, c: Call) -> None:
        from ..portable.host import run

        args = [self._shape_of(env, a) if item.by_shape else self._value(env, a) for a in c.args]
        results = run(c, args)
        arrays = [(env.get(v), r) for v, r in zip(c.outs, results) if isinstance(r, np.ndarray)]
        if arrays:
            self._host_bytes += sum(r.nbytes - (old.nbytes if isinstance(old, np.ndarray) else 0) for old, r in arrays)
            self.budget.hold(self, max(0, self._host_bytes), c.where)
        env.update(zip(c.outs, results, strict=True))

    def _shape_of(self, env: dict[Var, Any], operand: Operand) -> Any:
        """Return a value; if it is on the GPU, a placeholder with its shape, which avoids a readback."""
        value = env.get(operand) if isinstance(operand, Var) else None
        return np.broadcast_to(0, value.shape) if is_device_tensor(value) else self._value(env, operand)

    def _recall(self, env: dict[Var, Any]) -> int:
        """Set the values that depend only on the sizes of the inputs; return the number of items to skip."""
        if not self._by_size:
            return 0
        inputs = [env[v] for v in self.compiled.inputs if isinstance(v, Var)]
        key = tuple(x if isinstance(x, int) else x.shape for x in inputs)
        values = self._values_by_size.get(key)
        if values is None:
            values = dict(env)
            for item in self._by_size:
                self._run_host(values, item, item.instruction)  # type: ignore[arg-type]
                self._mark("ran", item)
            values = {v: values[v] for v in self.compiled.kept}
            for value in values.values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
            while len(self._values_by_size) >= MAX_SIZES:
                del self._values_by_size[next(iter(self._values_by_size))]
            self._values_by_size[key] = values
        env.update(values)
        return len(self._by_size)

    def _value(self, env: dict[Var, Any], operand: Operand) -> Any:
        """Return the host's value: arrays on the GPU are read back, lists resolved."""
        if isinstance(operand, tuple):
            return [self._value(env, o) for o in operand]
        value = self._stored(env, operand)
        return as_kernels_read(value, operand) if isinstance(operand, Var) else value

    def _stored(self, env: dict[Var, Any], operand: Operand) -> Any:
        """Return a value in the form of slots: bfloat16 as its bits."""
        if not isinstance(operand, Var):
            return operand
        if operand in env:
            value = env[operand]
        elif operand.data is not None:
            value = operand.data
        elif operand.initial is not None:
            value = operand.initial
        else:
            raise ExecutionError(f"{self.name}: {operand!r} is read before it has a value")
        if is_device_tensor(value):
            assert operand.dtype is not None
            value = env[operand] = from_device(value.numpy(), operand.dtype)
        return value

    def _result(self, env: dict[Var, Any], operand: Operand, kind: ArrayKind) -> Any:
        value = self._stored(env, operand) if isinstance(operand, Var) else self._value(env, operand)
        if isinstance(value, np.ndarray) and isinstance(operand, Var):
            if operand.kind in ("input", "constant", "state") or not value.flags.writeable:
                value = value.copy()  # the caller may write to it
            assert operand.dtype is not None
            return kind.result(value, operand.dtype)
        return value


class Running:
    """A call that was started; its results are in the order of the method's outputs."""

    def __init__(self, started: Pending, order: list[int], outputs: Sequence[Operand], budget: Budget) -> None:
        self._started, self._order, self._outputs, self._budget = started, order, outputs, budget

    def result(self) -> list[Any]:
        """Wait; return arrays in the types that the program declares."""
        with self._budget.spending("waiting for a result"):
            results = self._started.result()
        return [_declared(results[k], o) for k, o in zip(self._order, self._outputs, strict=True)]

    def resident(self) -> list[Any]:
        """Return the outputs on the device, for the next call."""
        results = self._started.outputs
        return [results[k] for k in self._order]

    def discard(self) -> None:
        """Give up the result."""
        self._started.discard()


def _declared(result: Any, output: Operand) -> Any:
    if is_device_tensor(result):  # the run did not read it
        result = result.numpy()
    is_tensor = isinstance(result, np.ndarray) and isinstance(output, Var) and output.dtype is not None
    return from_device(result, output.dtype) if is_tensor else result  # type: ignore[union-attr, arg-type]


def _plain_array(declared: Operand) -> tuple[np.dtype | None, tuple[int, ...]]:
    """Return dtype and shape of arrays that need no further check."""
    return (declared.dtype.numpy, declared.sizes) if isinstance(declared, Var) and declared.dtype else (None, ())


def _fitting(tensor: DeviceTensor, declared: Var, label: str) -> DeviceTensor:
    """Return `tensor` if it can be this input, else raise InvalidInput."""
    dtype = None if declared.dtype is None else declared.dtype.device
    if tensor.dtype is not dtype or not fits(tensor.shape, declared):
        raise InvalidInput(f"{label} must be {declared!r}, not {tensor!r}")
    return tensor


def _initial(v: Var) -> np.ndarray:
    assert v.dtype is not None
    return np.zeros(v.sizes, v.dtype.numpy) if v.data is None else np.array(v.data)


def _equal(declared: Operand, value: Any) -> bool:
    if declared is None:
        return value is None
    try:
        return bool(declared == value)
    except Exception:  # of a tensor or another argument that cannot be compared
        return False
