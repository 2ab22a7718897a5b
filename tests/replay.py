"""Runs of the corpus's programs from files and from bundles, without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ptegpu
from ptegpu.format import read_program
from ptegpu.format.pte import FileTensor, JumpFalse
from ptegpu.plan.save import to_bytes

from .saved import Program

ARCHIVE = Path(__file__).parent / "data" / "corpus.zip"


def run_file(program: Program, gpu: Any) -> None:
    """Load the `.pte` on a device and make all calls."""
    with ptegpu.load(program.data, device=gpu) as loaded:
        program.replay(loaded)


def run_bundle(program: Program, gpu: Any) -> None:
    """Compile the program, save the bundle, load it and make all calls."""
    unbounded = "sizes without a bound" in program.features
    sizes = {f"input 0[{d}]": range(11) for d in (0, 1)} if unbounded else None
    with ptegpu.load(to_bytes(ptegpu.compile(program.data, targets=gpu.target, sizes=sizes)), device=gpu) as loaded:
        program.replay(loaded)


def features_of(program: Program) -> list[str]:
    """Return the features of a program: those of its table and those visible in its file."""
    methods = read_program(program.data).methods
    delegates = max(len(m.delegates) for m in methods)
    tensors = [v for m in methods for v in m.values if isinstance(v, FileTensor)]
    shows = {
        "several methods": len(methods) > 1,
        "no delegate": delegates == 0,
        "one delegate": delegates == 1,
        "several delegates": delegates > 1,
        "jumps": any(isinstance(i, JumpFalse) for m in methods for chain in m.chains for i in chain),
        "calls of several sizes": len({str([getattr(a, "shape", a) for a in c.inputs]) for c in program.calls}) > 1,
        "zero-sized": any(0 in getattr(a, "shape", ()) for c in program.calls for a in (*c.inputs, *c.expected)),
        "structured results": any(isinstance(c.result, list | dict | tuple) for c in program.calls),
        "resets": any(c.reset for c in program.calls),
    }
    types = sorted({f"dtype {t.dtype.value}" for t in tensors})
    return [*program.features, *(name for name, true in shows.items() if true), *types]
