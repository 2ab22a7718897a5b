"""Names of functional variants: PyTorch's schemas take the same arguments as the out variants."""

from __future__ import annotations

import re
from importlib import resources

import executorch.exir.passes.dim_order_ops_registry
import executorch.kernels.quantized  # noqa: F401  (both register operators)
import pytest
import torch
from torch._C import FunctionSchema

from ptegpu.graph.names import IRREGULAR, functional, in_place

DROPPED = {"dtype", "layout", "device", "pin_memory"}  # the output has these


def portable_operators() -> list[str]:
    """Return the operators of ExecuTorch's portable kernel library, as a kernel call spells them."""
    text = resources.files("executorch").joinpath("kernels/portable/functions.yaml").read_text()
    names = re.findall(r"^- (?:op|func): ?([\w:.]+)", text, re.MULTILINE)
    return [n if "::" in n else f"aten::{n}" for n in names]


def schema(namespace: str, name: str, overload: str) -> FunctionSchema:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema


def called(name: str) -> FunctionSchema:
    """Return the schema of an operator named as in a kernel call."""
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.partition("::")
    return schema(namespace, base, overload or "default")


def registered(name: str) -> FunctionSchema:
    """Return the schema of an operator named as in a registry."""
    return schema(*name.split("."))


def is_written(argument: torch._C.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


PORTABLE = [n for n in portable_operators() if not n.startswith("et_copy::")]  # et_copy exists at runtime only


def test_the_list_of_portable_operators() -> None:
    assert len(portable_operators()) == 209


@pytest.mark.parametrize("name", [*PORTABLE, *IRREGULAR])
def test_twins_take_the_same_arguments(name: str) -> None:
    out, twin = called(name), registered(functional(name))
    inputs = [a.name for a in out.arguments if not a.is_out]
    expected = [a.name for a in twin.arguments]
    dropped = [a.name for a in twin.arguments if a.name not in DROPPED]
    assert inputs in (expected, dropped)
    types = {a.name: str(a.type) for a in twin.arguments}
    assert [str(a.type) for a in out.arguments if not a.is_out] == [types[n] for n in inputs]
    assert len(out.returns) in (len(twin.returns), 0)  # 0: a list of outputs


@pytest.mark.parametrize("name", [*PORTABLE, *IRREGULAR])
def test_twins_have_no_outputs_among_their_arguments(name: str) -> None:
    twin = registered(functional(name))
    assert not any(a.is_out for a in twin.arguments)
    if "batch_norm_legit" not in name:  # writes running statistics in both forms
        assert not any(map(is_written, twin.arguments))


@pytest.mark.parametrize("name", PORTABLE)
def test_in_place_operators_write_their_first_argument(name: str) -> None:
    first, *_ = called(name).arguments
    assert in_place(name) == (is_written(first) and not first.is_out)


@pytest.mark.parametrize("name", IRREGULAR)
def test_the_table_holds_only_what_the_rule_gets_wrong(name: str) -> None:
    overload = name.partition(".")[2]
    rule = "default" if overload == "out" else overload.removesuffix("_out")
    assert functional(name).rpartition(".")[2] != rule


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::mul.Scalar_out", "aten.mul.Scalar"),
        ("aten::add.out", "aten.add.Tensor"),
        ("aten::mean.out", "aten.mean.dim"),
        ("aten::topk.values", "aten.topk.default"),
        ("aten::sort.values", "aten.sort.default"),
        ("aten::max_pool2d_with_indices_backward.grad_input", "aten.max_pool2d_with_indices_backward.default"),
        ("aten::copy_", "aten.copy.default"),
        ("aten::index_put_", "aten.index_put.default"),
        ("aten::add_.Tensor", "aten.add.Tensor"),
        ("aten::__lshift__.Scalar", "aten.__lshift__.Scalar"),
        ("aten::sym_size.int", "aten.sym_size.int"),
        ("aten::sym_numel", "aten.sym_numel.default"),
        ("aten::_local_scalar_dense", "aten._local_scalar_dense.default"),
        ("dim_order_ops::_to_dim_order_copy.out", "dim_order_ops._to_dim_order_copy.default"),
        ("et_copy::_h2d_copy.out", "et_copy._h2d_copy.default"),
        ("executorch_prim::et_view.default", "executorch_prim.et_view.default"),
        ("executorch_prim::add.Scalar", "executorch_prim.add.Scalar"),
        ("llama::update_cache.out", "llama.update_cache.default"),
        ("quantized_decomposed::embedding_byte.dtype_out", "quantized_decomposed.embedding_byte.dtype"),
        ("quantized_decomposed::quantize_per_tensor.out", "quantized_decomposed.quantize_per_tensor.default"),
    ],
)
def test_spellings(name: str, expected: str) -> None:
    assert expected == functional(name)
