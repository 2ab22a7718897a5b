"""The parts of a bundle's folder that the file does not have: what a browser would otherwise compute itself.

A variant lists its requirements in WebGPU's terms. A method has its signature, and whether a single plan runs all of
it. All buffers of a variant are in one list, so that code that fills and resets them ignores their roles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..errors import InvalidInput
from .method import CompiledMethod, Run, Var
from .plan import Access, Kernel, Plan
from .resolve import Resolver
from .target import Target


def variant_needs(target: Target, methods: Iterable[CompiledMethod]) -> dict[str, Any]:
    """Return the requirements for an adapter; raise InvalidInput if no browser can meet them."""
    if target.matrices:
        raise InvalidInput(f"{target.name} multiplies matrices with subgroups, which no browser supports: leave it out")
    size = memory_needs(methods)
    limits = {
        "maxComputeInvocationsPerWorkgroup": target.max_invocations,
        "maxComputeWorkgroupSizeX": target.max_invocations,
        "maxComputeWorkgroupStorageSize": target.max_shared_bytes,
        "maxComputeWorkgroupsPerDimension": target.max_groups,
        "maxStorageBuffersPerShaderStage": target.max_storage_buffers,
        "maxStorageBufferBindingSize": size["binding"],
        "maxBufferSize": size["largest"],
    }
    subgroups = target.subgroups and target.subgroup_size
    features = {"shader-f16": target.f16, "subgroups": target.subgroups}
    return {
        "name": target.name,
        "software": target.software,
        "limits": limits,
        "features": [name for name, required in features.items() if required],
        "info": dict.fromkeys(("subgroupMinSize", "subgroupMaxSize"), target.subgroup_size) if subgroups else {},
        "bytes": size,
    }


def memory_needs(methods: Iterable[CompiledMethod]) -> dict[str, int]:
    """Return the GPU bytes of all buffers (each constant once), of the largest buffer and of the largest binding."""
    plans = [p for method in methods for p in method.plans]
    once = {b.name: b.nbytes for p in plans for b in p.buffers if b.role == "constant"}
    sizes = [*once.values(), *(b.nbytes for p in plans for b in p.buffers if b.role != "constant")]
    sizes += [
        b.nbytes for p in plans for b in p.buffers if b.role == "state" and b.blob is not None
    ]  # their initial bytes
    steps = (choices for p in plans for f in p.families for choices in f.steps)
    bound = (b.nbytes for choices in steps for c in choices for d in c.dispatches for b in d.bindings)
    return {"buffers": sum(sizes), "largest": max(sizes, default=0), "binding": max(bound, default=0)}


class Layouts:
    """The distinct binding layouts of kernels, as arguments of `createBindGroupLayout`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Access, ...], int] = {}

    def kernel(self, kernel: Kernel) -> dict[str, Any]:
        """Return the number of a kernel's layout, and the directives in front of its text."""
        number = self._numbers.setdefault(kernel.access, len(self._numbers))
        return {"layout": number, "enable": "".join(f"enable {name};" for name in kernel.needs)}

    @property
    def all(self) -> list[Any]:
        types = {"read": "read-only-storage", "write": "storage", "uniform": "uniform"}
        return [
            {"entries": [{"binding": k, "visibility": 4, "buffer": {"type": types[a]}} for k, a in enumerate(access)]}
            for access in self._numbers
        ]


class Buffers:
    """All buffers of a variant: (size, offset of the initial bytes, their length padded to words)."""

    def __init__(self, places: list[list[int]]) -> None:
        self.all: list[tuple[int, int, int]] = []
        self._places = places  # (offset, length) of blobs
        self._constants: dict[str, int] = {}

    def add(self, nbytes: int, blob: int | None) -> int:
        start, length = (0, 0) if blob is None else self._places[blob]
        self.all.append((nbytes, start, -(-length // 4) * 4))
        return len(self.all) - 1

    def plan(self, plan: Plan, record: dict[str, Any]) -> dict[str, Any]:
        """Return fields for a plan's buffers and rows, in addition to its record in a file."""
        images = iter(record["params"])
        at: list[int] = []
        resets: list[tuple[int | None, int]] = []
        for buffer, listed in zip(plan.buffers, record["buffers"], strict=True):
            blob = next(images) if buffer.role == "params" else listed.get("blob")
            if buffer.role == "constant":
                if buffer.name not in self._constants:
                    self._constants[buffer.name] = self.add(buffer.nbytes, blob)
                at.append(self._constants[buffer.name])
            elif buffer.role == "state":
                at.append(self.add(buffer.nbytes, None))
                resets.append((None if blob is None else self.add(buffer.nbytes, blob), at[-1]))
            else:
                at.append(self.add(buffer.nbytes, blob))
        syms = next((k for k, b in enumerate(plan.buffers) if b.role == "syms"), None)
        return {"at": at, "resets": resets, "syms": syms, "keys": Resolver(plan).rows, "fixed": _fixed(plan)}


def _fixed(plan: Plan) -> bool:
    """Return True if every run is the same and needs no checks."""
    (family, *others) = plan.families
    choices = [c for step in family.steps for c in step]
    numbers = [n for c in choices for d in c.dispatches for n in d.grid]
    varying: list[Any] = [plan.rows, others, family.guards, family.words, family.bounds, family.refusal]
    varying += [x for c in choices for x in (c.guards, c.refusal)]
    return not any(varying) and len(choices) == len(family.steps) and all(numbers)


def method_needs(method: CompiledMethod) -> dict[str, Any]:
    """Return a method's signature, and how a single plan covers it, if one does."""
    signature = {
        "inputs": [_port(o, f"input {k}") for k, o in enumerate(method.inputs)],
        "outputs": [_port(o, f"output {k}") for k, o in enumerate(method.outputs)],
    }
    return {"signature": signature, "direct": _direct(method)}


def _port(o: Any, name: str) -> dict[str, Any]:
    if not isinstance(o, Var):
        plain = o is None or isinstance(o, bool | int | str) or (isinstance(o, float) and math.isfinite(o))
        return {"name": name, "dtype": None, "shape": [], "dynamic": False, "value": o if plain else repr(o)}
    port = {"name": o.name if o.kind == "input" else name, "dtype": None, "shape": list(o.sizes), "dynamic": o.dynamic}
    return port | ({} if o.dtype is None else {"dtype": o.dtype.value, "device": o.dtype.device.value})


def _direct(method: CompiledMethod) -> dict[str, Any] | None:
    item = method.items[0] if len(method.items) == 1 else None
    if method.states or not isinstance(item, Run):
        return None
    inputs = {v: k for k, v in enumerate(method.inputs) if isinstance(v, Var)}
    outputs = {v: k for k, v in enumerate(item.outputs)}
    if not inputs.keys() >= set(item.inputs) or not all(isinstance(o, Var) and o in outputs for o in method.outputs):
        return None
    return {
        "plan": item.plan,
        "inputs": [inputs[v] for v in item.inputs],
        "outputs": [outputs[v] for v in method.outputs if isinstance(v, Var)],
    }
