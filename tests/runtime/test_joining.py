"""Several delegates of the exporter run as one plan: one submit, no readback in between."""

from __future__ import annotations

import pytest
import torch
from tests.cases import close
from tests.exporting import export
from tests.zoo.modules import Encoder

import ptegpu
from ptegpu.format import DelegateCall, read_program


@pytest.fixture(scope="module")
def encoder() -> tuple[Encoder, torch.Tensor]:
    torch.manual_seed(0)
    return Encoder().eval(), torch.randint(0, 50, (1, 7))


@pytest.mark.parametrize("delegate", [True, False], ids=["partitions", "undelegated"])
def test_an_encoder_is_one_plan(encoder: tuple[Encoder, torch.Tensor], delegate: bool) -> None:
    module, ids = encoder
    file = export(module, (ids,), delegate=delegate)
    (method,) = read_program(file).methods
    partitions = sum(isinstance(i, DelegateCall) for chain in method.chains for i in chain)
    assert partitions > 3 if delegate else partitions == 0
    with ptegpu.load(file) as program:
        assert len(program.method("forward").plans) == 1
        program(ids)  # the first call makes the buffer that results are read through
        before = program.device.counters.snapshot()
        result = program(ids)
        after = program.device.counters.snapshot()
        close(result, module(ids).detach())
    assert after.submits - before.submits == 1
    assert after.readbacks - before.readbacks == 1
    assert after.buffers_created == before.buffers_created
    assert after.bind_groups_created == before.bind_groups_created


def test_a_second_call_allocates_nothing(encoder: tuple[Encoder, torch.Tensor]) -> None:
    module, ids = encoder
    with ptegpu.load(export(module, (ids,))) as program:
        program(ids)
        before = program.device.counters.snapshot()
        for _ in range(5):
            program(ids)
        after = program.device.counters.snapshot()
    assert after.buffers_created == before.buffers_created
    assert after.pipelines_created == before.pipelines_created
    assert after.bind_groups_created == before.bind_groups_created
    assert after.submits - before.submits == 5


class HostInBetween(torch.nn.Module):
    """masked_scatter has a NumPy kernel only; what does not pass through it stays on the GPU."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.exp(x)
        mixed = y.masked_scatter(y > 1, x)
        return mixed * 2, y + 1


def test_a_host_operator_splits_the_plan_and_the_rest_stays_resident() -> None:
    module, x = HostInBetween(), torch.randn(4, 9)
    with ptegpu.load(export(module, (x,))) as program:
        method = program.method("forward")
        assert len(method.plans) == 2
        values, y = program(x)
    want = module(x)
    close(values, want[0])
    close(y, want[1])
