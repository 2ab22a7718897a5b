"""Profiles of whole methods: with branches and host operators, with state, at live shapes and positions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exporting import export

import ptegpu
from ptegpu.errors import Closed, InvalidInput, LimitExceeded
from ptegpu.gpu import open_device
from ptegpu.gpu.device import Traffic
from ptegpu.runtime.profile import operator_of

DATA = Path(__file__).resolve().parent.parent / "data"


def test_kernels_come_in_the_order_in_which_they_run() -> None:
    with ptegpu.load(DATA / "mlp.pte") as program:
        method = program.method("forward")
        result = method.profile(np.ones((2, 8), np.float32), repeats=2)
        (plan,) = method.plans
    assert list(plan.dispatches) == [k.dispatch for k in result.kernels]
    assert ("forward", 2, program.device.info) == (result.method, result.repeats, result.adapter)
    assert [2 * 2 * 8 * 16, 2 * 2 * 16 * 4] == [k.dispatch.flops for k in result.kernels]
    assert result.pass_seconds >= 0.0
    assert result.wall_seconds > 0.0
    assert result.split_seconds == result.kernel_seconds - result.pass_seconds
    assert result.host_seconds == result.wall_seconds - result.pass_seconds


def test_a_method_with_branches_runs_one_of_them_and_is_left_as_new() -> None:
    inputs = np.full((3, 4), 2.0, np.float32), np.array([0, 2])
    with ptegpu.load(DATA / "control.pte") as program:
        first = program(*inputs)
        result = program.method("forward").profile(*inputs, repeats=3)
        again = program(*inputs)  # counts its calls
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    operators = [operator_of(k.dispatch) for k in result.kernels]
    assert ["aten::add.out", "aten::sum.IntList_out", "aten::gt.Scalar_out", "aten::mul.out"] == operators[:4]
    assert "aten::sub.out" not in operators
    begins = [k.begin for k in result.kernels]
    assert sorted(begins) == begins


def test_steps_of_a_call() -> None:
    inputs = np.full((3, 4), 2.0, np.float32), np.array([0, 2])
    with ptegpu.load(DATA / "control.pte") as program:
        method = program.method("forward")
        result = method.profile(*inputs, repeats=3)
        assert method._method.watch is None
    expected = ["arguments", "plan", "jump", "plan", "move", "jump", "plan", "results"]
    assert expected == [step.kind for step in result.steps]
    assert [1, 2, 4] == [int(step.name.split()[1]) for step in result.steps if step.kind == "plan"]
    for before, after in pairwise(result.steps):
        assert before.begin + before.seconds <= after.begin + 1e-9
    assert result.step_seconds == sum(step.seconds for step in result.steps)
    first = result.steps[1].traffic
    assert (48 + 4, 1) == (first.upload_bytes, first.readback_bytes)  # x and the state go up, the condition comes back
    assert all(step.traffic == Traffic() for step in result.steps if step.kind in ("arguments", "jump", "results"))


def test_traffic_of_each_plan() -> None:
    with ptegpu.load(DATA / "counting.pte") as program:
        result = program.method("forward").profile(np.ones((3, 4), np.float32), np.arange(3), repeats=1)
    moved = {step.name: step.traffic for step in result.steps}
    first, second = moved["plan 1 (2 nodes)"], moved["plan 2 (2 nodes)"]
    assert (1, 48, 1, 60) == (first.uploads, first.upload_bytes, first.readbacks, first.readback_bytes)
    assert (1, 48, 1, 48) == (second.uploads, second.upload_bytes, second.readbacks, second.readback_bytes)
    assert moved["aten.masked_scatter.default"] == Traffic()


def test_an_error_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((2, 8), np.float32)
    with ptegpu.load(DATA / "mlp.pte") as program:
        method = program.method("forward")
        monkeypatch.setattr(program.device, "wait", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            method.profile(x)
        monkeypatch.undo()
        assert method._method.watch is None
        assert (2, 4) == method(x).shape


class Cached(torch.nn.Module):
    """Attention over a cache [1, 16, 2, 8] up to a position."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 16, 2, 8))
        self.register_buffer("values", torch.zeros(1, 16, 2, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:  # x (1, 1, 2, 8)
        start = position[0].item()
        torch._check_is_size(start)
        torch._check(start + 1 <= 16)
        torch.ops.llama.update_cache(x, self.keys, start)
        torch.ops.llama.update_cache(x, self.values, start)
        return torch.ops.llama.custom_sdpa(x, self.keys, self.values, start, None, 0.0, True)


def test_one_plan_has_the_figures_of_each_position() -> None:
    with ptegpu.load(export(Cached(), (torch.ones(1, 1, 2, 8), torch.tensor([0])))) as program:
        method = program.method("forward")
        profiles = [method.profile(np.ones((1, 1, 2, 8), np.float32), np.array([p]), repeats=1) for p in (2, 7)]
        assert 0 == method._method.runners[0].extended
    attention = [max((k.dispatch for k in f.kernels), key=lambda d: d.flops) for f in profiles]
    assert [2 * 2 * (p + 1) * 16 for p in (2, 7)] == [d.flops for d in attention]  # 2 heads, sizes 8 + 8
    assert [64 + 2 * (p + 1) * 64 for p in (2, 7)] == [d.read_bytes for d in attention]


def test_bad_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((2, 8), np.float32)
    with ptegpu.load(DATA / "mlp.pte") as program:
        method = program.method("forward")
        with pytest.raises(InvalidInput) as caught:
            method.profile(x, repeats=0)
        assert "a profile takes at least 1 call, not 0" == str(caught.value)
        with pytest.raises(InvalidInput):
            method.profile(x[0])
        monkeypatch.setattr(open_device(), "timestamps", False)
        with pytest.raises(LimitExceeded):
            method.profile(x)
    with pytest.raises(Closed):
        method.profile(x)
