"""Checks before any GPU object is made: of a plan against its target, and of a call's inputs against the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ..errors import DeviceError, InvalidInput, LimitExceeded
from ..plan.numbers import Item, Shapes
from ..plan.plan import ALIGN, OFFSET_ALIGN, Buffer, Expr, Input, Plan, PlannedDispatch, Port
from ..plan.target import Target
from .readback import DeviceTensor, staging_bytes

Argument: TypeAlias = np.ndarray | DeviceTensor | int  # in the device's dtype
Points: TypeAlias = Sequence[Mapping[str, int]]  # sizes and ints by name: "input 0[1]"

_MAX_UNIFORM_BYTES = 65536  # of one uniform binding, on every adapter and in every browser
_MAX_UNIFORM_BUFFERS = 12  # bound to one dispatch


def device_bytes(plan: Plan) -> int:
    """Return the GPU memory that running `plan` takes: its buffers, and the staging its outputs are read through."""
    largest = 0
    for family in plan.families:
        buffers = [plan.buffers[o.buffer] for o in family.outputs if isinstance(o, Port)]
        largest = max(largest, sum(staging_bytes(b.nbytes) for b in buffers))
    return plan.device_bytes + largest


def first_bytes(plan: Plan, buffer: Buffer) -> bytes | memoryview:
    """Return the first bytes of a buffer of `plan`; the rest of it is zeros."""
    if buffer.role == "params":
        return plan.params[[b.name for b in plan.buffers if b.role == "params"].index(buffer.name)]
    return b"" if buffer.blob is None else plan.blobs[buffer.blob]


def check(plan: Plan, target: Target) -> None:
    """Raise LimitExceeded if `target` cannot run `plan`, DeviceError if no WebGPU device can."""
    for kernel in plan.kernels:
        where = f"plan {plan.name}: kernel {kernel.name}"
        storage = sum(access != "uniform" for access in kernel.access)
        _limit(where, "invocations in a workgroup", kernel.workgroup, target.max_invocations, target)
        _limit(where, "bytes of workgroup memory", kernel.shared_bytes, target.max_shared_bytes, target)
        _limit(where, "storage buffers", storage, target.max_storage_buffers, target)
        _limit(where, "uniform buffers", len(kernel.access) - storage, _MAX_UNIFORM_BUFFERS, target)
        for feature in kernel.needs:
            if not getattr(target, feature):
                raise LimitExceeded(f"{where} needs {feature}, which {target.name} does not have or was opened without")
    for buffer in plan.buffers:
        where = f"plan {plan.name}: buffer {buffer.name}"
        _limit(where, "bytes", buffer.nbytes, target.max_buffer_bytes, target)
        if buffer.nbytes % ALIGN:
            raise DeviceError(f"{where} has {buffer.nbytes} bytes, which is not a multiple of {ALIGN}")
        first = memoryview(first_bytes(plan, buffer)).nbytes
        if first > buffer.nbytes:
            raise DeviceError(f"{where} has {buffer.nbytes} bytes, its first contents {first}")
    for family in plan.families:
        for choices in family.steps:
            for choice in choices:
                for dispatch in choice.dispatches:
                    _check_dispatch(plan, dispatch, target)
    for copy in plan.copies:
        source, end = plan.buffers[copy.source], plan.buffers[copy.target]
        if copy.nbytes % 4 or copy.source == copy.target or copy.nbytes > min(source.nbytes, end.nbytes):
            raise DeviceError(f"plan {plan.name}: cannot copy {copy.nbytes} bytes from {source.name} to {end.name}")
        if end.role == "constant":
            raise DeviceError(f"plan {plan.name}: {source.name} is copied to the constant {end.name}")
    ports = [Port(i.name, i.buffer, i.dtype, i.shape) for i in plan.inputs if i.dtype and i.buffer is not None]
    ports += [o for family in plan.families for o in family.outputs if isinstance(o, Port)]
    for port in ports:
        if any(isinstance(n, Expr) for n in port.shape):
            continue  # checked when the sizes are known
        if port.nbytes > plan.buffers[port.buffer].nbytes:
            buffer = plan.buffers[port.buffer]
            raise DeviceError(f"plan {plan.name}: {port.name} has {port.nbytes} bytes, its buffer {buffer.nbytes}")


def _check_dispatch(plan: Plan, dispatch: PlannedDispatch, target: Target) -> None:
    kernel = plan.kernels[dispatch.kernel]
    where = f"plan {plan.name}: {dispatch.label} ({kernel.name})"
    for groups in (n for n in dispatch.grid if not isinstance(n, Expr)):
        _limit(where, "workgroups in one dimension", groups, target.max_groups, target)
    if len(dispatch.bindings) != len(kernel.access):
        raise DeviceError(f"{where} binds {len(dispatch.bindings)} buffers, its kernel has {len(kernel.access)}")
    written: dict[int, bool] = {}  # by buffer
    for binding, access in zip(dispatch.bindings, kernel.access, strict=True):
        buffer = plan.buffers[binding.buffer]
        largest = _MAX_UNIFORM_BYTES if access == "uniform" else target.max_binding_bytes
        _limit(f"{where}: binding of {buffer.name}", "bytes", binding.nbytes, largest, target)
        if binding.offset % OFFSET_ALIGN or binding.nbytes < 1 or binding.offset + binding.nbytes > buffer.nbytes:
            span = f"{binding.nbytes} bytes at {binding.offset}"
            raise DeviceError(f"{where} cannot bind {span} of {buffer.name} ({buffer.nbytes} bytes)")
        if access == "write" and buffer.role == "constant":
            raise DeviceError(f"{where} writes the constant {buffer.name}")
        if written.setdefault(binding.buffer, access == "write") != (access == "write"):
            raise DeviceError(f"{where} binds {buffer.name} both to read and to write")


def _limit(where: str, what: str, needed: int, allowed: int, target: Target) -> None:
    if needed > allowed:
        raise LimitExceeded(f"{where} needs {needed} {what}; {target.name} allows {allowed}")


def sizes_of(inputs: Sequence[Argument]) -> tuple[Shapes, Item]:
    """Return the shapes of inputs (the value of an int), and a function that reads their elements."""

    def item(position: int, element: int) -> int:
        value = inputs[position]
        array = value.numpy() if isinstance(value, DeviceTensor) else np.asarray(value)
        return int(array.reshape(-1)[element]) if 0 <= element < array.size else 0  # guards do not depend on it

    return [x if isinstance(x, int) else x.shape for x in inputs], item


def sizes_at(inputs: Sequence[Input], point: Mapping[str, int]) -> Shapes:
    """Return the shapes of inputs at a point. A size that it does not name has its upper bound; an int is 0."""
    return [
        tuple(point.get(f"{i.name}[{d}]", n) for d, n in enumerate(i.shape)) if i.dtype else point.get(i.name, 0)
        for i in inputs
    ]


def outgrows(shape: tuple[int, ...] | int, declared: Input) -> bool:
    """Return whether an input of this shape is too large for its buffer."""
    return not isinstance(shape, int) and declared.dynamic and any(map(int.__gt__, shape, declared.shape))


def check_fits(number: int, declared: Input, value: Argument) -> None:
    """Raise InvalidInput unless `value` can be input `number`."""
    if declared.dtype is None:
        if not isinstance(value, int):
            raise InvalidInput(f"input {number} ({declared.name}) must be an int, not {type(value).__name__}")
        return
    if isinstance(value, int):
        raise InvalidInput(f"input {number} ({declared.name}) must be a tensor, not the int {value}")
    dtype = value.dtype.numpy if isinstance(value, DeviceTensor) else value.dtype
    shape = tuple(value.shape)
    fits = shape == declared.shape or (
        declared.dynamic and len(shape) == len(declared.shape) and all(map(int.__le__, shape, declared.shape))
    )
    if dtype != declared.dtype.numpy or not fits:
        expected = f"{declared.dtype.value}{' of at most ' if declared.dynamic else ''}{list(declared.shape)}"
        raise InvalidInput(f"input {number} ({declared.name}) must be {expected}, not {dtype}{list(shape)}")
