"""`ptegpu.compile_module`: a module on the GPU without a file, called as the module itself."""

from __future__ import annotations

import re
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import close
from tests.exporting import export
from tests.zoo import modules
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_flatten
from transformers import BertConfig, BertModel

import ptegpu
from ptegpu import Closed, ExportError, InvalidInput, LimitExceeded, Limits, ShapeError, UnsupportedProgram
from ptegpu.dtypes import DType
from ptegpu.export import torch_backend
from ptegpu.runtime.arrays import ArrayKind, as_array

X = torch.randn((4, 8), generator=torch.Generator().manual_seed(0))
DICT = "{'a': ·}"
Pair = namedtuple("Pair", "left right")


@dataclass
class Result:
    total: torch.Tensor
    parts: list[torch.Tensor]


torch.export.register_dataclass(Result)


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(
        self,
        x: torch.Tensor,
        others: dict[str, torch.Tensor],
        *,
        mask: torch.Tensor,
        mode: str = "sum",
        b: torch.Tensor,
    ) -> tuple[Result, Pair]:
        y = self.linear(x) * mask + others["a"] - b
        total = y.sum(1) if mode == "sum" else y.mean(1)
        return Result(total, [y, y * 2]), Pair(x + 1, {"z": others["a"]})


def equal(actual: Any, expected: Any) -> None:
    """Raise AssertionError unless both are the same trees of nearly equal tensors."""
    assert type(actual) is type(expected)
    (y, of_y), (e, of_e) = (tree_flatten(t) for t in (actual, expected))
    assert of_y == of_e
    for a, b in zip(y, e, strict=True):
        assert type(a) is type(b)
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_tree_of_inputs_and_outputs() -> None:
    module = Grouped().eval()
    others, mask, b = {"a": X * 2}, (X > 0).float(), X - 1
    dims = {0: Dim("n", min=3, max=16)}
    shapes = {"x": dims, "others": {"a": dims}, "mask": dims, "mode": None, "b": dims}
    call = {"mask": mask, "mode": "mean", "b": b}
    with ptegpu.compile_module(module, (X, others), shapes, kwargs=call) as gpu, torch.no_grad():
        assert gpu.difference is not None and gpu.difference < 1e-5 and [] == gpu.notes
        equal(gpu(X, others, **call), module(X, others, **call))
        equal(gpu(X, mask=mask, b=b, mode="mean", others=others), module(X, others, **call))
        six = {"mask": mask[:3], "mode": "mean", "b": b[:3]}
        equal(gpu(X[:3], {"a": X[:3]}, **six), module(X[:3], {"a": X[:3]}, **six))
        grouped = "((·, {'a': ·}), {'mask': ·, 'mode': ·, 'b': ·})"
        inputs = "x, others, mask, mode, b, not x, others, mask, b"
        bound = "argument 0 of forward must be float32 of at most [16, 8], not"
        wrong: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
            ((X, others), {"mode": "sum"}, InvalidInput,
             "mode of forward must be 'mean', as in the example, not 'sum'"),
            ((X, [X]), {}, InvalidInput, f"inputs must be grouped as in the example, {grouped}, not "
             f"{grouped.replace(DICT, '[·]')}"),
            ((X,), {}, InvalidInput, "invalid inputs of the module: missing a required argument: 'others'"),
            ((X, others), {"mode": None}, InvalidInput, f"the module was compiled for the inputs {inputs}"),
            ((X, others), {"b": b[:2]}, ShapeError, "dimension 0 of b of forward must be 4, not 2 (of [2, 8])"),
            ((X, others), {"b": b[:, :2]}, ShapeError, "dimension 1 of b of forward must be 8, not 2 (of [4, 2])"),
            ((X[:2], others), {}, ShapeError, "dimension 0 of argument 0 of forward must be from 3 to 16, not 2 "
             "(of [2, 8])"),
            ((X[0], others), {}, InvalidInput, f"{bound} float32[8]: it has 1 dimension, not 2"),
            ((X.double(), others), {}, InvalidInput, f"{bound} float64[4, 8]: convert it to float32 first"),
        ]  # fmt: skip
        for args, changed, kind, message in wrong:
            kwargs = {name: value for name, value in (call | changed).items() if value is not None}
            with pytest.raises(kind, match=f"^{re.escape(message)}$"):
                gpu(*args, **kwargs)
    with pytest.raises(Closed):
        gpu(X, others, **call)


def test_an_output_of_transformers_by_keyword() -> None:
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24,
    )  # fmt: skip
    model = BertModel(config).eval()
    ids = torch.arange(14).reshape(2, 7)
    example = {"input_ids": ids, "attention_mask": (ids % 5 > 0).long()}
    with ptegpu.compile_module(model, example, delegate=False) as gpu, torch.no_grad():
        equal(gpu(**example), model(**example))
        equal(gpu(ids, example["attention_mask"]), model(**example))  # by position


class Writes(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        y += x
        return x * y


def test_inputs_that_are_written() -> None:
    a, b = X.clone(), X.clone()
    with ptegpu.compile_module(Writes().eval(), (X, X.clone())) as gpu:
        equal(gpu(X, a), Writes()(X, b))
    equal(a, b)


class Grows(nn.Module):
    """Writes a parameter and an input, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, a: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            self.w.mul_(2)
            a.add_(1)
        return {"y": a * self.w}


@pytest.mark.parametrize("delegate", [True, False])
@pytest.mark.parametrize("route", ["torch.compile", "export", "compile_module"])
def test_writes_of_parameters_and_inputs(route: str, delegate: bool, tmp_path: Path) -> None:
    module, reference = Grows().eval(), Grows()
    a, b = torch.zeros(2), torch.zeros(2)
    call: Any
    if route == "torch.compile":
        call = torch.compile(module, backend=torch_backend, options={"delegate": delegate, "fallback": False})
    elif route == "compile_module":
        call = ptegpu.compile_module(module, a.clone(), delegate=delegate)
        assert [] == call.notes
    else:
        ptegpu.compile(export(module, (a.clone(),), delegate=delegate)).save(tmp_path / "grows.bundle")
        call = ptegpu.load(tmp_path / "grows.bundle")
    with torch.no_grad():
        for _ in range(3):
            equal(call(a), reference(b))
            equal(a, b)
    if route == "torch.compile":
        equal(module.w, reference.w)


def test_buffers_that_are_written_live_on_the_gpu() -> None:
    module = modules.lively(modules.Streaming())
    x = torch.randn(1, 4, 6)
    with ptegpu.compile_module(module, x) as gpu:
        first = gpu(x)
        second = gpu(x)
        assert not torch.equal(first[0], second[0])
        gpu.reset()
        equal(gpu(x), first)
    equal(first, module(x))
    equal(second, module(x))


def test_parameters_are_those_of_now() -> None:
    module = nn.Linear(8, 4).eval()
    with torch.no_grad(), ptegpu.compile_module(module, X) as gpu:
        before = module(X)
        module.weight.zero_()
        equal(gpu(X), before)


class NoInputs(nn.Module):
    def forward(self) -> tuple[torch.Tensor, int, None]:
        return torch.arange(5).to(torch.bfloat16), 3, None


def test_no_inputs() -> None:
    with ptegpu.compile_module(NoInputs().eval(), ()) as gpu:
        equal(gpu(), NoInputs()())


def test_tensors_are_not_copied_on_their_way() -> None:
    with ptegpu.compile_module(nn.ReLU().eval(), X, check=False) as gpu:
        (declared,) = gpu.program.method("forward")._method.compiled.inputs
        assert np.shares_memory(as_array(X, declared, "x"), X.numpy())
    result = np.zeros(3, np.float32)
    assert np.shares_memory(result, ArrayKind(True, None).result(result, DType.F32).numpy())


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[0]


def test_what_is_refused() -> None:
    linear = nn.Linear(8, 4)
    with pytest.raises(ExportError, match=r"^the module is in training mode: call module.eval\(\) first$"):
        ptegpu.compile_module(linear, X)
    with pytest.raises(ExportError, match=r"^its part 1 is in training mode"):
        part = nn.Sequential(nn.ReLU(), nn.Dropout()).eval()
        part[1].train()
        ptegpu.compile_module(part, X)
    with pytest.raises(InvalidInput, match=r"^compile_module takes a torch.nn.Module, not function$"):
        ptegpu.compile_module(lambda x: x, X)  # type: ignore[arg-type]
    message = 'input: dimension 0 has no largest size: give one, as in torch.export.Dim("n", max=64)'
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        ptegpu.compile_module(linear.eval(), X, ({0: Dim.DYNAMIC},))
    with pytest.raises(UnsupportedProgram, match="linalg_qr"):
        ptegpu.compile_module(Unsupported().eval(), X)
    with pytest.raises(LimitExceeded):
        ptegpu.compile_module(linear, X, limits=Limits(memory=64))
    with ptegpu.compile_module(linear, X, engine="wgpu", precision="fast") as gpu:
        message = "input 0 of forward requires a gradient, which ptegpu cannot compute: use torch.no_grad()"
        with pytest.raises(InvalidInput, match=f"^{re.escape(message)}$"):
            gpu(X.clone().requires_grad_())
        close(gpu(X).numpy(), linear(X).detach().numpy(), 1e-2)
