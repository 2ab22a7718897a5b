"""The names of operators: as kernel calls spell them, and in the registries.

A `.pte` calls out variants (`aten::mul.Scalar_out`) and in-place variants (`aten::copy_`); the registries have the
functional twin (`aten.mul.Scalar`, `aten.copy.default`). Twins take the same arguments in the same order, except for
`out` and for what the output already determines: dtype, layout, device and pinning.
"""

from __future__ import annotations

# Operators that the importer inserts where a file leaves something out:
VIEW = "aten.view_copy.default"  # for a tensor in the memory of another one
COPY = "aten.alias_copy.default"  # for tensors that enter or leave a delegate; free where the dtypes agree
ADD = "add"  # 0 to a scalar that leaves a delegate
# Operators that the importer treats specially:
PREPACK = "et_vk.prepack.default"  # its result is the constant it uploads
CHECKS = ("aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default")  # in a delegate: compute nothing
COPY_INDEX = "executorch_prim::et_copy_index.tensor"  # writes its first argument, and has no other result
# Operators whose only result is a scalar, their last argument:
SCALAR_RESULTS = ("executorch_prim::", "aten::sym_size", "aten::sym_numel", "aten::_local_scalar_dense")

DEFAULT_OVERLOADS = frozenset({"", "out", "values", "grad_input"})  # overloads that only name the outputs

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
    """Return True if a kernel call of this name writes its first argument and has no output of its own."""
    base = name.partition(".")[0]
    return base.endswith("_") and not base.endswith("__")


def functional(name: str) -> str:
    """Return the registry name of a kernel call's operator: `aten.topk.default` for `aten::topk.values`."""
    if name in IRREGULAR:
        return IRREGULAR[name]
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.rpartition("::")
    if in_place(name):
        base = base.removesuffix("_")
    overload = "default" if overload in DEFAULT_OVERLOADS else overload.removesuffix("_out")
    return f"{namespace}.{base}.{overload}" if namespace else f"{base}.{overload}"
