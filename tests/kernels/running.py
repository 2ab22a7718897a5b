"""Runs of one generated kernel on the adapter, without an operator around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ptegpu.compiler.plan_writer import PlanWriter
from ptegpu.dtypes import DType
from ptegpu.gpu import Device, Session
from ptegpu.graph.graph import Graph
from ptegpu.kernels.wgsl import SYM_VECTORS, KernelSpec
from ptegpu.passes.memory import Memory
from ptegpu.plan.plan import ALIGN, Binding, Buffer, PlannedDispatch, Port, fixed


def run(
    spec: KernelSpec,
    reads: Sequence[np.ndarray],
    writes: Sequence[int],
    gpu: Device,
    *,
    groups: int = 1,
    grid: tuple[int, int] | None = None,
    params: Mapping[str, int | float] | None = None,
    syms: Sequence[int] = (),
) -> list[np.ndarray]:
    """Run a kernel and return its outputs; `writes` are their lengths, and they hold zeros before.

    `params` omits `groups`. `syms` are the words of symbolic ints; for a symbolic parameter, `params` has the value of
    one of them.
    """
    writer = PlanWriter(Graph("running"), Memory(), gpu.target)
    for value in syms:
        writer.word(value)
    writer.block(spec, groups, dict(params or {}))
    block = bytes(writer.images[0])
    dtypes = [*(DType.of(a.dtype) for a in reads), *(s.dtype for s in spec.writes)]
    ports = [Port(f"port {k}", k, dtype, (n,)) for k, (dtype, n) in enumerate(zip(dtypes, [*map(len, reads), *writes]))]
    sizes = [max(ALIGN, -(-p.nbytes // ALIGN) * ALIGN) for p in ports]
    buffers = [Buffer(p.name, n, "input" if k < len(reads) else "temp") for k, (p, n) in enumerate(zip(ports, sizes))]
    buffers.append(Buffer("params", len(block), "params"))
    if spec.reads_syms:
        buffers.append(Buffer("syms", SYM_VECTORS * 16, "syms"))
    bindings = tuple(Binding(k, 0, b.nbytes) for k, b in enumerate(buffers))
    dispatch = PlannedDispatch(0, bindings, grid or (groups, 1), "the kernel")
    inputs, outputs = tuple(ports[: len(reads)]), tuple(ports[len(reads) :])
    plan = fixed(spec.kernel.name, buffers, (spec.kernel,), (dispatch,), (), inputs, outputs, block)
    plan = replace(plan, families=(replace(plan.families[0], words=tuple(writer.words)),))  # type: ignore[arg-type]
    with Session(gpu) as session:
        results = session.run(session.prepare(plan), list(reads))
    return [f for f in results if isinstance(f, np.ndarray)]
