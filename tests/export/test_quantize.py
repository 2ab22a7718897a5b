"""Modules with quantized linear layers, and the note about activations that partitions do not round."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from tests.cli.conftest import Invoke, invoke  # noqa: F401 (a fixture)
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import ptegpu
from ptegpu.errors import ExportError
from ptegpu.export import MethodSource, export, export_with_account, quiet
from ptegpu.export.check import CheckResult, EagerCheck

X = torch.randn((4, 64), generator=torch.Generator().manual_seed(0))
SOURCE = """
from tests.export.test_quantize import X, layers
def pair(): return layers(), X
"""


def layers(inner: int = 32, outer: int = 16) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, inner), nn.ReLU(), nn.Linear(inner, outer)).eval()


@pytest.mark.parametrize(
    ("form", "operator", "bits"),
    [
        ("8bit", "aten._weight_int8pack_mm.default", 8),
        ("8bit", "", 8),
        ("4bit", "et_vk.linear_q4gsw.default", 4),
        ("8da4w", "et_vk.linear_dq8ca_q4gsw.default", 4),
    ],
)
def test_linear_layers_are_quantized(form: str, operator: str, bits: int) -> None:
    module = layers()
    weight = module[0].weight  # type: ignore[index]
    account = export_with_account(MethodSource(module, (X,)), quantize=form, delegate=bool(operator))
    assert [] == account.notes and account.difference is not None
    if operator:
        assert 2 == account.lowered.delegated[operator]
    assert (weight is module[0].weight, nn.Parameter) == (True, type(weight))  # type: ignore[index]
    with ptegpu.load(account.lowered.data) as program:
        actual = torch.as_tensor(program(X))
    error = (actual - module(X)).abs().max() / module(X).abs().max()
    assert 2.0 ** -(bits + 3) < error < 2.0 ** -(bits - 3)  # it is rounded, and no more than that


@pytest.mark.parametrize("form", ["4bit", "8da4w"])
@pytest.mark.parametrize("sizes", [{"inner": 40}, {"outer": 1}, {"outer": 3}], ids=str)
def test_layers_that_do_not_divide_into_groups_stay_in_floats(sizes: dict[str, int], form: str) -> None:
    """ExecuTorch fails to pack such layers, as heads of classifiers whose rows are labels."""
    account = export_with_account(MethodSource(layers(**sizes), (X,)), quantize=form)
    why = "their columns do not divide into groups of 32, or their rows by 4"
    note = f"linear layers that stay in floats, because {why}: 2"
    assert ([note], 1) == (account.notes, account.lowered.delegated["aten.linear.default"])


class Split(nn.Module):
    """Two linear layers with an operator in between that no partition takes, as encoders of transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(torch.where((y > 0).any(-1, keepdim=True), y, 0))


@pytest.mark.parametrize("form", ["4bit", "8da4w"])
def test_sizes_that_a_partition_takes_and_a_quantized_layer_does_not_need(form: str) -> None:
    """The second layer's partition is given batch × length, for a view that becomes a part of the layer."""
    shapes = {"x": {0: torch.export.Dim("b", max=4), 1: torch.export.Dim("t", max=8)}}
    module, x = Split().eval(), X.repeat(3, 1, 1)
    account = export_with_account(MethodSource(module, (x,), shapes), quantize=form)
    assert ([], 2) == (account.notes, account.lowered.partitions)
    with ptegpu.load(account.lowered.data) as program:
        assert (2, 7, 64) == tuple(program(torch.ones(2, 7, 64)).shape)


def test_rows_of_bytes_need_no_groups() -> None:
    assert [] == export_with_account(MethodSource(layers(inner=40), (X,)), quantize="8bit", check=False).notes


@pytest.mark.parametrize(
    ("module", "form", "message"),
    [
        (nn.ReLU(), "8bit", "quantize is '8bit', but the module has no linear layers (torch.nn.Linear): leave it out"),
        (layers(), "int8", "invalid quantize 'int8': expected one of none, 4bit, 8da4w, 8bit"),
        (
            layers().half(),
            "8bit",
            "quantize is '8bit', but 0 has weights of torch.float16: call module.float() first",
        ),
    ],
)
def test_what_cannot_be_quantized(module: nn.Module, form: str, message: str) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export(module, X, quantize=form)


@pytest.mark.parametrize("form", ["4bit", "8da4w"])
def test_four_bits_need_partitions(form: str) -> None:
    message = (
        f"quantize is {form!r}, whose operators exist only in partitions: choose 8bit, or leave out --no-delegate "
        "(delegate=False)"
    )
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export(layers(), X, quantize=form, delegate=False)


def test_layers_whose_weights_the_module_reads_itself() -> None:
    """PyTorch's encoders and attention do so; torchao does not see a linear layer in attention."""
    torch.manual_seed(2)
    module = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True).eval()
    account = export_with_account(MethodSource(module, (X[None],)), quantize="8bit")
    assert [] == account.notes and account.difference is not None
    assert 2 == account.lowered.delegated["aten._weight_int8pack_mm.default"]


def test_from_the_command_line(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (tmp_path / "quantized_models.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    command = ("export", "torch", "quantized_models:pair", "-o", tmp_path / "m.pte", "--json", "--no-check")
    actual = invoke(*command, "--quantize", "8bit").json()
    assert 2 == actual["delegated"]["aten._weight_int8pack_mm.default"]


class Shifted(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x + by


def test_several_methods_in_one_file() -> None:
    n = torch.export.Dim("n", max=32)
    others = {
        "encode": MethodSource(nn.Linear(64, 8), (X,), {"input": {0: n}}),
        "shift": MethodSource(Shifted(), (), None, {"x": X, "by": X[:1]}),
    }
    data = export(layers(), X, methods=others, quantize="8bit")
    with ptegpu.load(data) as program:
        assert ["forward", "encode", "shift"] == sorted(program.methods, key=["forward", "encode", "shift"].index)
        for rows in (1, 4, 32):
            x = torch.ones(rows, 64)
            expected = others["encode"].module(x)
            torch.testing.assert_close(torch.as_tensor(program.method("encode")(x)), expected, atol=0.02, rtol=0)
        torch.testing.assert_close(torch.as_tensor(program.method("shift")(x=X, by=X[:1])), X + X[:1])
        assert (4, 16) == tuple(program(X).shape)


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / self.missing  # type: ignore[operator]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"forward": MethodSource(nn.ReLU(), (X,))}, "invalid method name 'forward': expected a Python "),
        ({"a b": MethodSource(nn.ReLU(), (X,))}, "invalid method name 'a b': expected a Python identifier"),
        ({"other": nn.ReLU()}, "methods['other'] is a ReLU: give a ptegpu.export.MethodSource"),
        (
            {"other": MethodSource(Broken(), (X,))},
            "PyTorch cannot trace this module: AttributeError: 'Broken' object",
        ),
        (
            {"other": MethodSource(nn.ReLU(), (X,), {"input": {0: torch.export.Dim("n")}})},
            'input: dimension 0 has no largest size: give one, as in torch.export.Dim("n", max=64)',
        ),
    ],
)
def test_methods_that_cannot_be(methods: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(message)}"):
        export(layers(), X, methods=methods)


def test_the_results_of_every_method_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def compare(self: EagerCheck, data: bytes, *, rounded: bool) -> CheckResult:
        checked.extend(self.modules)
        return CheckResult(float(len(checked)))

    monkeypatch.setattr(EagerCheck, "compare", compare)
    account = export_with_account(MethodSource(nn.ReLU(), (X,)), methods={"other": MethodSource(nn.Tanh(), (X,))})
    assert (["forward", "other"], 2.0) == (checked, account.difference)


def dynamic_int8(module: nn.Module) -> nn.Module:
    """A module through PT2E, whose activations are rounded to 8 bits by scales of each call."""
    config = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    with quiet():
        observed = prepare_pt2e(
            torch.export.export(module, (X,)).module(), xnnpack_quantizer.XNNPACKQuantizer().set_global(config)
        )
        observed(X)
        actual: nn.Module = convert_pt2e(observed)
    return actual


@pytest.mark.parametrize("make", [lambda: layers(), lambda: layers()[0]], ids=["two", "one"])  # type: ignore[index]
def test_a_note_says_that_activations_stay_floats(make: Callable[[], nn.Module]) -> None:
    module = dynamic_int8(make())
    count = sum(isinstance(m, nn.Linear) for m in make().modules())
    note = (
        f"{count} of {count} activations that the module rounds to 8 bits stay floats: partitions only have operators "
        "that round the weights. Without partitions (--no-delegate, delegate=False), all are rounded"
    )
    assert [note] == export_with_account(MethodSource(module, (X,))).notes
    account = export_with_account(MethodSource(module, (X,)), delegate=False)
    assert [] == account.notes and account.difference is not None and account.difference < 1e-5
