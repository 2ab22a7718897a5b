"""What is served, as the page docs/operators.md: `python -m tools.operators > docs/operators.md`.

Everything is read from the registries and the case tables; only the operators that the exporter's delegate knows are
listed here, as they are ExecuTorch's.
"""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.ops.registry import REGISTRY
from ptegpu.portable import PORTABLE, PRIMS

ROOT = Path(__file__).resolve().parent.parent

# Operators that the Vulkan/WebGPU partitioner of ExecuTorch 1.5.1 puts into a delegate, as their names are written.
_DELEGATE_NAMES = """
sym_size.int add sub floordiv mul lt gt ge le eq aten.abs.default aten.cos.default aten.exp.default
aten.gelu.default aten.hardshrink.default aten.hardswish.default aten.hardtanh.default aten.neg.default
aten.relu.default aten.sigmoid.default aten.sin.default aten.sqrt.default aten.rsqrt.default aten.tanh.default
aten.round.default aten.leaky_relu.default aten.log10.default aten.clamp.default aten.add.Tensor aten.sub.Tensor
aten.minimum.default aten.mul.Tensor aten.div.Tensor aten.div.Tensor_mode aten.pow.Tensor_Tensor aten.eq.Tensor
aten.lt.Tensor aten.le.Tensor aten.gt.Tensor aten.ge.Tensor aten.bitwise_and.Tensor aten.bitwise_or.Tensor
aten.bitwise_not.default aten.logical_and.default aten.logical_or.default aten.pow.Tensor_Scalar aten.eq.Scalar
aten._to_copy.default aten._log_softmax.default aten._softmax.default aten.bmm.default aten.mm.default
aten.addmm.default aten.linear.default aten._weight_int8pack_mm.default et_vk.linear_qcs4w.default
et_vk.linear_q8ta_q8csw.default et_vk.linear_q4gsw.default et_vk.linear_q4gsw_backward.default
et_vk.linear_dq8ca_q4gsw.default quantized_decomposed.quantize_per_channel.default
quantized_decomposed.quantize_per_token.default quantized_decomposed.dequantize_per_channel.default
quantized_decomposed.dequantize_per_token.default torchao.quantize_affine.default torchao.dequantize_affine.default
quantized_decomposed.quantize_per_tensor.default quantized_decomposed.quantize_per_tensor.tensor
quantized_decomposed.dequantize_per_tensor.default quantized_decomposed.dequantize_per_tensor.tensor
quantized_decomposed.choose_qparams.tensor quantized_decomposed.choose_qparams_per_token_asymmetric.default
torchao.choose_qparams_affine.default et_vk.q8ta_add.default et_vk.q8ta_relu.default
et_vk.q8ta_pixel_shuffle.default aten.mean.dim aten.sum.dim_IntList aten.amax.default aten.amin.default
aten.argmax.default aten.argmin.default aten.avg_pool2d.default aten.max_pool2d.default
aten.max_pool2d_with_indices.default aten.convolution.default et_vk.conv_with_clamp.default
et_vk.q8ta_conv2d_pw.default et_vk.q8ta_conv2d.default et_vk.q8ta_conv2d_dw.default
et_vk.q8ta_conv2d_transposed.default et_vk.q8ta_linear.default et_vk.q8ta_linear_gemv.default
sdpa_with_kv_cache.default update_cache.default custom_sdpa.default et_vk.sdpa.default
et_vk.apply_rotary_emb.default et_vk.apply_rotary_emb_hf.default et_vk.apply_rotary_emb_interleaved.default
aten.permute.default aten.permute_copy.default aten.view_copy.default dim_order_ops._to_dim_order_copy.default
aten.squeeze_copy.dims aten.unsqueeze_copy.default aten.clone.default dim_order_ops._clone_dim_order.default
aten.alias_copy.default aten.unfold_copy.default aten.gather.default aten.expand_copy.default aten.cat.default
aten.select_copy.int aten.slice_copy.Tensor aten.split_with_sizes_copy.default aten.t_copy.default aten.flip.default
aten.index_select.default aten.where.self aten.index.Tensor aten.arange.start_step aten.constant_pad_nd.default
aten.full.default aten.full_like.default aten.ones.default aten.ones_like.default aten.zeros.default
aten.zeros_like.default aten.scalar_tensor.default aten.upsample_nearest2d.vec aten.upsample_bilinear2d.vec
aten.pixel_shuffle.default et_vk.grid_priors.default aten.grid_sampler_2d.default aten.repeat.default
aten.embedding.default quantized_decomposed.embedding_4bit.dtype et_vk.embedding_q4gsw.default
aten._native_batch_norm_legit_no_training.default aten.native_group_norm.default aten.native_layer_norm.default
et_vk.rms_norm.default et_vk.fused_ce.default aten.ne.Scalar aten.lt.Scalar aten.le.Scalar aten.ge.Scalar
aten.gt.Scalar aten.logical_not.default et_vk.adamw_step.default et_vk.linear_dW.default et_vk.q4gsw_requant.default
"""
DELEGATE = _DELEGATE_NAMES.split()

SHORT = {"float32": "f32", "float16": "f16", "int32": "i32", "int8": "i8", "uint8": "u8", "bool": "bool"}


def case_counts() -> Counter[str]:
    """How many cases of `tests/ops` each operator has."""
    modules = sorted(p.stem for p in (ROOT / "tests" / "ops").glob("test_*.py"))
    tables = [getattr(importlib.import_module(f"tests.ops.{m}"), "CASES", ()) for m in modules]
    return Counter(case.op for table in tables for case in table)


def kind(name: str) -> str:
    if name not in REGISTRY:
        return "NumPy"
    definition = REGISTRY[name]
    return "symbolic" if definition.sym else "view" if definition.view else "kernel"


def dtypes(name: str) -> str:
    """The dtypes of the first tensor on the GPU."""
    if name not in REGISTRY or REGISTRY[name].sym:
        return ""
    return " ".join(SHORT[d.value] for d in REGISTRY[name].dtypes) or "all"


def place(name: str) -> str:
    """Where calls of the operator can run."""
    on_host = name in PORTABLE or name in PRIMS
    if name not in REGISTRY:
        return "host"
    if REGISTRY[name].sym:
        return "before the run"
    return "both" if on_host else "GPU"


def served(name: str) -> bool:
    return name in REGISTRY or name in PORTABLE or name in PRIMS


def page() -> str:
    """The whole page."""
    counts = case_counts()
    names = sorted({*REGISTRY, *PORTABLE, *PRIMS})
    places = Counter(map(place, names))
    missing = [n for n in DELEGATE if not served(n)]
    host_only = [n for n in DELEGATE if served(n) and n not in REGISTRY]
    lines = [
        "# Operators",
        "",
        "Made by `python -m tools.operators > docs/operators.md`; a test holds that it is current.",
        "",
        f"- {len(names)} operators by name: {places['both']} on the GPU and the host, {places['GPU']} on the GPU "
        f"alone, {places['host']} on the host alone, {places['before the run']} symbolic.",
        f"- Of the {len(DELEGATE)} operators that ExecuTorch's exporter puts into a delegate, "
        f"{len(DELEGATE) - len(missing)} are served{_listed(host_only, ', on the host alone')}.",
        f"- Not served{_listed(missing, '')}." if missing else "- None is missing.",
        f"- {sum(counts.values()):,} cases hold {len(counts)} of them to PyTorch.",
        "",
        "**Kind**: a *kernel* is WGSL; a *view* costs nothing where the dtype stays, and is a cast where it changes; a "
        "*symbolic* operator is host arithmetic whose result kernels read; *NumPy* runs on the host alone.",
        "",
        "**Dtypes** are those of the first tensor on the GPU; *all* are f32, f16, i32, i8, u8 and bool. The host takes "
        "every dtype, and int64 where 32 bits would not be exact.",
        "",
        "**Cases** are those in the tables of `tests/ops`, each run on a GPU and compared with PyTorch.",
        "",
        "| operator | kind | dtypes | runs on | cases |",
        "|---|---|---|---|---:|",
    ]
    lines += [f"| `{n}` | {kind(n)} | {dtypes(n)} | {place(n)} | {counts[n] or ''} |" for n in names]
    return "\n".join(lines) + "\n"


def _listed(names: list[str], what: str) -> str:
    return f"{what}: {', '.join(f'`{n}`' for n in names)}" if names else ""


if __name__ == "__main__":
    print(page(), end="")
