"""Whole models of several families give what eager PyTorch gives, and the GPU runs each of them in one plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests import zoo
from tests.exporting import export
from torch import nn

import ptegpu
from ptegpu.graph.linear import Call
from ptegpu.runtime.partition import Host

TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2  # of the largest magnitude in an output


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]


CASES = {
    "resnet": Case(zoo.ResNet, (2, 3, 32, 32)),
    "mobilenet": Case(zoo.MobileNet, (2, 3, 32, 32)),
    "unet": Case(zoo.UNet, (1, 3, 16, 16)),
    "vit": Case(zoo.ViT, (2, 3, 16, 16)),
    "audio": Case(zoo.AudioEncoder, (1, 8, 24)),
    "lstm": Case(lambda: zoo.Recurrent(nn.LSTM), (2, 3, 6)),
    "gru": Case(lambda: zoo.Recurrent(nn.GRU), (2, 3, 6)),
    "speech": Case(zoo.SpeechCNN, (1, 8, 20)),
    "detector": Case(zoo.Detector, (1, 3, 16, 16)),
}


def prepared(case: Case) -> tuple[nn.Module, list[torch.Tensor]]:
    """The model and two inputs, the same in every run."""
    torch.manual_seed(0)
    model = zoo.lively(case.model())
    return model, [torch.randn(case.shape), torch.randn(case.shape)]


def outputs(model: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        given = model(x)
    return given if isinstance(given, tuple) else (given,)


def on_host(method: Any) -> list[str]:
    """Instructions that the GPU does not run, for the message of a failure."""
    waiting = [item.instruction for item in method._method.items if isinstance(item, Host)]
    return [i.op if isinstance(i, Call) else type(i).__name__ for i in waiting]


def run_against_eager(
    data: bytes, eager: Callable[..., Any], inputs: list[torch.Tensor], tolerance: float, plans: int = 1
) -> None:
    """Each input in turn, so that nothing of one call may stay in the next; inputs of one batch row count as well."""
    expected = [outputs(eager, x) for x in inputs]
    for one, other in zip(*expected, strict=True):
        changed = (one.double() - other.double()).abs().max()
        assert changed > 0.05 * one.double().abs().max(), "the input hardly matters: an error in it would not show"
    with ptegpu.load(data) as program:
        for x, wanted in zip(inputs, expected, strict=True):
            found = outputs(program, x)
            assert [(w.dtype, w.shape) for w in wanted] == [(f.dtype, f.shape) for f in found]
            for index, (w, f) in enumerate(zip(wanted, found, strict=True)):
                error = (f.double() - w.double()).abs().max() / w.double().abs().max()
                assert error <= tolerance, f"output {index} is off by {error:.1e} of its scale"
        method = program.method("forward")
        assert plans == len(method.plans), f"on the host: {on_host(method)}"
        assert [] == on_host(method)


@pytest.mark.parametrize("name", CASES)
def test_delegated(name: str) -> None:
    model, inputs = prepared(CASES[name])
    run_against_eager(export(copy.deepcopy(model), (inputs[0],)), model, inputs, TOLERANCE)


@pytest.mark.parametrize("name", ["resnet", "unet", "vit", "detector"])
def test_undelegated(name: str) -> None:
    model, inputs = prepared(CASES[name])
    run_against_eager(export(copy.deepcopy(model), (inputs[0],), delegate=False), model, inputs, TOLERANCE)


@pytest.mark.parametrize("name", ["mobilenet", "speech"])
def test_half(name: str) -> None:
    model, inputs = prepared(CASES[name])
    data = export(copy.deepcopy(model), (inputs[0],), options={"force_fp16": True})
    run_against_eager(data, model, inputs, HALF_TOLERANCE)
