"""The architectures of `tests/zoo/architectures.py`, exported, run and compared with PyTorch, as docs/models.md says.

Each is a test (tests/runtime/test_architectures.py) and a line of the page (tools/models.py).
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import ptegpu
from ptegpu.export import quiet
from ptegpu.plan.method import Host, Run
from tests.exporting import export
from tests.zoo.architectures import Architecture, BuiltModel

FIGURES = Path(__file__).parent / "data" / "models.json"
TOLERANCE = 1e-4  # of the largest element of an output
MATTERS = 0.02  # the least effect of other inputs, relative to the same: otherwise wrong results could go unnoticed


@dataclass(frozen=True)
class Found:
    """The results of a line of the table."""

    plans: int
    sizes: tuple[str, ...]  # dynamic ones
    host: tuple[str, ...]  # operators on the host, in order
    error: float  # the largest of all outputs, relative to the largest element of the output


def run(a: Architecture, gpu: Any = "auto", data: bytes | None = None) -> Found:
    """Export and run an architecture at all sizes, and compare with PyTorch in float64.

    Raise AssertionError if the inputs do not matter."""
    model = a.build()
    data = data or exported(a, model)
    wide = copy.deepcopy(model.module).double()
    error = 0.0
    with ptegpu.load(data, device=gpu) as program, quiet(), torch.no_grad():
        for k, sizes in enumerate(a.sizes):
            inputs, others = model.inputs(k, sizes), model.inputs(k + 100, sizes)
            references, other = (tree_leaves(wide(*map(_wide, x))) for x in (inputs, others))
            outputs = tree_leaves(program.method("forward").execute(list(inputs)))
            assert len(outputs) == len(references)
            for n, (y, e, o) in enumerate(zip(outputs, references, other, strict=True)):
                y, scale = torch.as_tensor(y), e.abs().max().item()
                assert y.shape == e.shape, f"output {n}: {list(y.shape)}, PyTorch {list(e.shape)}"
                assert (e - o).abs().max() > MATTERS * scale, f"output {n} hardly depends on the inputs"
                error = max(error, _nan_is_wrong((y.double() - e).abs().max().item() / scale))
        items = program.method("forward")._method.items
    host = tuple(getattr(i.instruction, "op", type(i.instruction).__name__) for i in items if isinstance(i, Host))
    return Found(sum(isinstance(i, Run) for i in items), model.sizes, host, error)


def exported(a: Architecture, model: BuiltModel) -> bytes:
    return export(model.module, model.inputs(0, a.sizes[0]), dynamic_shapes=model.dynamic)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def _nan_is_wrong(error: float) -> float:
    return error if error == error else float("inf")


def figures() -> dict[str, dict[str, Any]]:
    """Return the results of the last run of all lines, by name."""
    return json.loads(FIGURES.read_text())
