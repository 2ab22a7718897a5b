"""Programs with a damaged delegate: an error or the right results, never zeros as weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.damage import DAMAGES, blobs, outcome, run
from tests.exporting import export
from tests.runtime.test_programs import Counters
from torch import nn

import ptegpu
from ptegpu.graph import importer

DATA = Path(__file__).parent.parent / "data"
Sample = tuple[bytes, list[tuple[Any, ...]]]  # a program and the inputs of its calls


class Weights(nn.Module):
    """Consecutive constants, results that reuse memory, and a list of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(1.0, 5.0))
        self.v = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu((x + self.w) * self.v) + x
        return torch.cat([h, self.w, x]) - 1


class Positions(nn.Module):
    """An int input, an int result, and a symbolic int."""

    def forward(self, x: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.abs().reshape(x.shape[0] * 2, 2) * 3, p + 1


def sample(module: nn.Module, *args: torch.Tensor, **options: Any) -> Sample:
    inputs = [tuple(a.numpy() * k for a in args) for k in (1, 2, 3)]
    return export(module, args, **options), inputs


X = torch.tensor([1.0, -2.0, 3.0, -4.0])
PROGRAMS: dict[str, Callable[[], Sample]] = {
    "mlp": lambda: (
        (DATA / "mlp.pte").read_bytes(),
        [(torch.linspace(-1, k, 16).reshape(2, 8).numpy(),) for k in (1, 2)],
    ),
    "weights": lambda: sample(Weights(), X),
    "f16": lambda: sample(Weights(), X, options={"force_fp16": True}),
    "state": lambda: sample(Counters(), X),
    "aliased": lambda: sample(Counters(), X, options={"alias_buffer_mutations": True}),
    "positions": lambda: sample(
        Positions(),
        torch.randn(3, 4),
        torch.arange(3),
        dynamic_shapes=({0: torch.export.Dim("n", min=1, max=6)}, None),
    ),
}


@cache
def program(name: str) -> tuple[bytes, list[tuple[Any, ...]], list[Any]]:
    content, calls = PROGRAMS[name]()
    return content, calls, run(content, calls)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_delegate_ends_in_an_error_or_in_the_right_results(damage: str, name: str) -> None:
    content, calls, expected = program(name)
    outcomes = [
        outcome(content, k, damaged, calls, expected)
        for k, blob in enumerate(blobs(content))
        for damaged in DAMAGES[damage](blob)
    ]
    assert [] == [o for o in outcomes if o.startswith("wrong")]


def test_every_damage_is_done_to_some_program() -> None:
    graphs = [blob for name in PROGRAMS for blob in blobs(program(name)[0])]
    assert set(DAMAGES) == {name for name, damage in DAMAGES.items() if any(True for g in graphs for _ in damage(g))}


def test_an_int_that_fits_at_no_size_is_refused_at_load() -> None:
    content = program("positions")[0]
    (blob,) = blobs(content)
    wide = replace(blob, values=tuple(2**31 if v == 2 else v for v in blob.values))
    with patch.object(importer, "read_delegate", lambda *_, **__: wide), pytest.raises(ptegpu.InvalidProgram) as error:
        ptegpu.load(content)
    assert str(error.value).endswith("of delegate 0: the symbolic int 12884901888 does not fit int32")
