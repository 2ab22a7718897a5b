"""The smallest tests, to read first: export a module, load the `.pte`, call it, compare with PyTorch."""

import numpy as np
import torch

import ptegpu
from tests.exporting import export


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.shift = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(self.linear(x)) * 2 + self.shift, dim=-1)


def test_a_program_gives_what_pytorch_gives() -> None:
    module, x = Tiny(), torch.randn(3, 8)
    with ptegpu.load(export(module, (x,))) as program:
        assert program.methods == ("forward",)
        np.testing.assert_allclose(program(x.numpy()), module(x).detach().numpy(), atol=1e-5)


def test_torch_in_torch_out() -> None:
    module, x = Tiny(), torch.randn(3, 8)
    with ptegpu.load(export(module, (x,))) as program:
        y = program(x)
        assert isinstance(y, torch.Tensor)
        torch.testing.assert_close(y, module(x).detach(), atol=1e-5, rtol=1e-5)


def test_the_names_of_executorch_work_too() -> None:
    module, x = Tiny(), torch.randn(3, 8)
    method = ptegpu.Runtime.get().load_program(export(module, (x,))).load_method("forward")
    (y,) = method.execute([x])
    torch.testing.assert_close(y, module(x).detach(), atol=1e-5, rtol=1e-5)
    assert method.metadata.input_tensor_meta(0).sizes() == (3, 8)
