"""From the operator names of kernel calls to the names of the registries.

A `.pte` calls out variants (`aten::mul.Scalar_out`) and in-place ones (`aten::copy_`); the registries know the
functional twin (`aten.mul.Scalar`, `aten.copy.default`). Twins take the same arguments in the same order, except for
`out` and, where the output says it all, dtype, layout, device and pinning.
"""

from __future__ import annotations

# Operators that the importer itself has to know, because of what a file leaves out. These it calls:
VIEW = "aten.view_copy.default"  # for a tensor at a place that another one has written
COPY = "aten.alias_copy.default"  # for what enters or leaves a delegate; costs nothing where the dtypes agree
ADD = "add"  # 0 to a scalar that leaves a delegate
# And these are called in ways of their own:
PREPACK = "et_vk.prepack.default"  # of a constant: is the constant
CHECKS = ("aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default")  # in a delegate: compute nothing
COPY_INDEX = "executorch_prim::et_copy_index.tensor"  # writes its first argument, and has no other result
# These have one result, a scalar, as their last argument:
GIVING_SCALARS = ("executorch_prim::", "aten::sym_size", "aten::sym_numel", "aten::_local_scalar_dense")

OUT_ALONE = frozenset({"", "out", "values", "grad_input"})  # overloads that name the outputs and nothing else

# Twins whose overload does not follow from the out variant's.
IRREGULAR = {
    "aten::add.out": "aten.add.Tensor",
    "aten::all.all_out": "aten.all.default",
    "aten::all.out": "aten.all.dim",
    "aten::any.all_out": "aten.any.default",
    "aten::any.out": "aten.any.dim",
    "aten::arange.start_out": "aten.arange.start_step",
    "aten::copysign.out": "aten.copysign.Tensor",
    "aten::div.out": "aten.div.Tensor",
    "aten::div.out_mode": "aten.div.Tensor_mode",
    "aten::empty.out": "aten.empty.memory_format",
    "aten::max.dim_max": "aten.max.dim",
    "aten::max.out": "aten.max.other",
    "aten::max.unary_out": "aten.max.default",
    "aten::mean.dtype_out": "aten.mean.default",
    "aten::mean.out": "aten.mean.dim",
    "aten::median.dim_values": "aten.median.dim",
    "aten::min.dim_min": "aten.min.dim",
    "aten::min.out": "aten.min.other",
    "aten::min.unary_out": "aten.min.default",
    "aten::mul.out": "aten.mul.Tensor",
    "aten::prod.int_out": "aten.prod.dim_int",
    "aten::sort.values_stable": "aten.sort.stable",
    "aten::std.out": "aten.std.dim",
    "aten::sub.out": "aten.sub.Tensor",
    "aten::sum.IntList_out": "aten.sum.dim_IntList",
    "aten::var.out": "aten.var.dim",
    "quantized_decomposed::choose_qparams.Tensor_out": "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed::dequantize_per_tensor.Tensor_out": "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed::quantize_per_tensor.Tensor_out": "quantized_decomposed.quantize_per_tensor.tensor",
}


def in_place(name: str) -> bool:
    """Whether a kernel call of this name writes its first argument and has no output of its own."""
    base = name.partition(".")[0]
    return base.endswith("_") and not base.endswith("__")


def functional(name: str) -> str:
    """The registry name of an operator as a kernel call spells it: `aten::topk.values` is `aten.topk.default`."""
    if name in IRREGULAR:
        return IRREGULAR[name]
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.rpartition("::")
    if in_place(name):
        base = base.removesuffix("_")
    overload = "default" if overload in OUT_ALONE else overload.removesuffix("_out")
    return f"{namespace}.{base}.{overload}" if namespace else f"{base}.{overload}"
