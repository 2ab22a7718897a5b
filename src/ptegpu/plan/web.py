"""What a browser would otherwise work out of a bundle: what is in the folder, and not in the file.

A variant says what it needs in WebGPU's own words; a method says what it takes and gives, and whether one plan does it
all; all buffers of a variant are in one list, so that whoever fills and resets them asks for no role.
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
    """What an adapter must have; InvalidInput where no browser has it."""
    if target.matrices:
        raise InvalidInput(f"{target.name} multiplies matrices with subgroups, which no browser has: leave it out")
    size = needed(methods)
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
        "features": [name for name, wanted in features.items() if wanted],
        "info": dict.fromkeys(("subgroupMinSize", "subgroupMaxSize"), target.subgroup_size) if subgroups else {},
        "bytes": size,
    }


def needed(methods: Iterable[CompiledMethod]) -> dict[str, int]:
    """Bytes on the GPU: of all buffers, a constant counted once; of the largest one; of the largest binding."""
    plans = [p for method in methods for p in method.plans]
    once = {b.name: b.nbytes for p in plans for b in p.buffers if b.role == "constant"}
    sizes = [*once.values(), *(b.nbytes for p in plans for b in p.buffers if b.role != "constant")]
    sizes += [b.nbytes for p in plans for b in p.buffers if b.role == "state" and b.blob is not None]  # first bytes
    steps = (choices for p in plans for f in p.families for choices in f.steps)
    bound = (b.nbytes for choices in steps for c in choices for d in c.dispatches for b in d.bindings)
    return {"buffers": sum(sizes), "largest": max(sizes, default=0), "binding": max(bound, default=0)}


class Layouts:
    """The bindings of kernels, as `createBindGroupLayout` takes them; those that are equal once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Access, ...], int] = {}

    def kernel(self, kernel: Kernel) -> dict[str, Any]:
        """Which layout a kernel has, and what goes before its text."""
        number = self._known.setdefault(kernel.access, len(self._known))
        return {"layout": number, "enable": "".join(f"enable {name};" for name in kernel.needs)}

    @property
    def all(self) -> list[Any]:
        types = {"read": "read-only-storage", "write": "storage", "uniform": "uniform"}
        return [
            {"entries": [{"binding": k, "visibility": 4, "buffer": {"type": types[a]}} for k, a in enumerate(access)]}
            for access in self._known
        ]


class Buffers:
    """All buffers of a variant: the bytes of each; and, in whole words, where in the data are those it begins with."""

    def __init__(self, places: list[list[int]]) -> None:
        self.all: list[tuple[int, int, int]] = []
        self._places = places  # of blobs
        self._constants: dict[str, int] = {}

    def add(self, nbytes: int, blob: int | None) -> int:
        start, length = (0, 0) if blob is None else self._places[blob]
        self.all.append((nbytes, start, -(-length // 4) * 4))
        return len(self.all) - 1

    def plan(self, plan: Plan, told: dict[str, Any]) -> dict[str, Any]:
        """What a plan says of its buffers and rows, given what it says in a file."""
        images = iter(told["params"])
        at: list[int] = []
        resets: list[tuple[int | None, int]] = []
        for buffer, listed in zip(plan.buffers, told["buffers"], strict=True):
            blob = next(images) if buffer.role == "params" else listed.get("blob")
            if buffer.role == "constant":
                known = self._constants.get(buffer.name)
                at.append(self.add(buffer.nbytes, blob) if known is None else known)
                self._constants[buffer.name] = at[-1]
            elif buffer.role == "state":
                at.append(self.add(buffer.nbytes, None))
                resets.append((None if blob is None else self.add(buffer.nbytes, blob), at[-1]))
            else:
                at.append(self.add(buffer.nbytes, blob))
        syms = next((k for k, b in enumerate(plan.buffers) if b.role == "syms"), None)
        return {"at": at, "resets": resets, "syms": syms, "keys": Resolver(plan).wanted, "fixed": _fixed(plan)}


def _fixed(plan: Plan) -> bool:
    """Whether every run is the same, and nothing has to be checked."""
    (family, *others) = plan.families
    choices = [c for step in family.steps for c in step]
    numbers = [n for c in choices for d in c.dispatches for n in d.grid]
    found: list[Any] = [plan.rows, others, family.guards, family.words, family.bounds, family.refusal]
    found += [x for c in choices for x in (c.guards, c.refusal)]
    return not any(found) and len(choices) == len(family.steps) and all(numbers)


def method_needs(method: CompiledMethod) -> dict[str, Any]:
    """What a method takes and gives; and, where one plan does it all, what of it this plan takes and gives."""
    signature = {
        "inputs": [_told(o, f"input {k}") for k, o in enumerate(method.inputs)],
        "outputs": [_told(o, f"output {k}") for k, o in enumerate(method.outputs)],
    }
    return {"signature": signature, "direct": _direct(method)}


def _told(o: Any, name: str) -> dict[str, Any]:
    if not isinstance(o, Var):
        plain = o is None or isinstance(o, bool | int | str) or (isinstance(o, float) and math.isfinite(o))
        return {"name": name, "dtype": None, "shape": [], "dynamic": False, "value": o if plain else repr(o)}
    told = {"name": o.name if o.kind == "input" else name, "dtype": None, "shape": list(o.sizes), "dynamic": o.dynamic}
    return told | ({} if o.dtype is None else {"dtype": o.dtype.value, "device": o.dtype.device.value})


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
