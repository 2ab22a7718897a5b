"""A generator of docs/operators.md, the page of supported operators: `python -m tools.operators > docs/operators.md`.

The page is built from the registries, the case tables, and the paragraphs of docstrings that begin with "Unlike". This
file adds the notes on all operators and the list of operators that ExecuTorch's exporter puts into delegates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.cases import Case, T, given, graph_of, plan_of, tables, walk
from tests.oracle import reference

from ptegpu import ops  # noqa: F401  (fills the registry)
from ptegpu.dtypes import ON_GPU
from ptegpu.ops.registry import REGISTRY
from ptegpu.plan.target import Target
from ptegpu.portable import PORTABLE, PRIMS

# Operators that the Vulkan/WebGPU partitioner of ExecuTorch 1.5.1 puts into a delegate.
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


GENERAL = """\
- **64 bits.** On the GPU, int64 is int32 and float64 is float32. In a delegate this is the exporter's choice, and
  results wrap or round as int32 and float32 do. Outside a delegate, the GPU moves and compares int64, and computes
  results that provably fit 32 bits. If an input does not fit int32, the CPU runs all calls of its plan instead; with
  large weights or a state in the plan, the call raises an error. Other int64 arithmetic runs on the CPU, and so does
  all arithmetic in float64, int16, uint16, uint32 and uint64.
- **Scalars.** Arithmetic of an int32 tensor with an int beyond int32 raises an error. PyTorch wraps the int, but the
  tensor may have been int64 before the export, which would make the wrapped result wrong.
- **float16** arithmetic runs in float32 and rounds once. PyTorch also rounds some intermediate results: the last bit
  may differ, a value next to a tie may become a different int or pixel, and in PyTorch an int above 65,504 already
  overflows to inf when it is converted to float16.
- **Floats.** Sums are added up in a different order. `exp`, `log` and `pow` are WGSL's, with relative errors of up to
  about 1e-5. A GPU may flush subnormal numbers to zero, so that `log` of one is -inf and `pow` returns 0. NaN payloads
  are lost. `relu`, `tanh`, `expm1` and others preserve the sign of zero; `sin` and some others do not. A float beyond
  int32 becomes the nearest int32 and then wraps if the result is narrower; PyTorch leaves this undefined. If an
  intermediate float overflows, for example in the statistics of a norm, ptegpu and PyTorch may differ in inf and NaN.
- **Sizes.** A tensor has at most 2³¹ elements and must fit one binding of the device (at least 128 MiB); larger tensors
  raise an error at load. Larger constants are split if the operator supports it. Convolutions, `mm`, `bmm` and `addmm`
  do not, because every part would contribute to every sum. These operators do: {splits}.
- **Layouts.** Every result is contiguous. Memory formats and dimension orders of results are ignored.
- **Complex** tensors are supported only in the two FFTs; float8 and quantized dtypes are not supported.
- **Operators of ExecuTorch** (`et_vk`, `llama`, `quantized_decomposed`, `torchao`) accept the dtypes and ranks that the
  exporter writes, not everything that their Python references accept.
- **Randomness.** `aten.rand.default`, `aten.randn.default` and `aten.native_dropout.default` draw random numbers on the
  CPU. Each call draws new numbers, and they differ from PyTorch's generator. Attention does not support dropout."""


def kernels() -> dict[object, set[str]]:
    """Return the names of the kernels in the plans of the cases, by rule."""
    names: dict[object, set[str]] = defaultdict(set)
    for case in tables():
        arrays = values(case)
        graph, prepared = graph_of(case, arrays, reference(case, arrays, wide=False))
        inputs = given(graph, case, prepared)
        names[rule(case.op)].update(k.name for k in plan_of(graph, Target(f16=True), inputs=inputs).kernels)
    return names


def values(case: Case) -> dict[int, np.ndarray]:
    arrays: dict[int, np.ndarray] = {}
    rng = np.random.default_rng(0)

    def make(a: Any) -> None:
        if isinstance(a, T):
            arrays[id(a)] = a.make(rng)

    walk(list(case.args), make)
    return arrays


def differences() -> dict[str, list[str]]:
    """Return the differences from PyTorch, each with its operators."""
    names_by_text: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*REGISTRY, *PORTABLE}):
        docs = [REGISTRY[name].doc] if name in REGISTRY else []
        docs += [PORTABLE[name].function.__doc__ or ""] if name in PORTABLE else []
        for text in dict.fromkeys(t for d in docs for t in unlike(d)):
            names_by_text[text].append(name)
    return names_by_text


def unlike(doc: str) -> Iterator[str]:
    """Yield the paragraphs that begin with "Unlike", each on one line."""
    for paragraph in doc.split("\n\n"):
        text = " ".join(paragraph.split())
        if text.startswith("Unlike"):
            yield text


def kind(name: str) -> str:
    if name not in REGISTRY:
        return "NumPy"
    definition = REGISTRY[name]
    return "symbolic" if definition.sym else "view" if definition.view else "kernel"


def dtypes(name: str) -> str:
    """Return the dtypes of the first tensor on the GPU."""
    if name not in REGISTRY or REGISTRY[name].sym:
        return ""
    accepted = REGISTRY[name].dtypes
    return " ".join(SHORT[d.value] for d in accepted) if set(accepted) < set(ON_GPU) and accepted else "all"


def place(name: str) -> str:
    """Return where calls of the operator can run."""
    on_cpu = name in PORTABLE or name in PRIMS
    if name not in REGISTRY:
        return "CPU"
    if REGISTRY[name].sym:
        return "before the run"
    return "both" if on_cpu else "GPU"


def served(name: str) -> bool:
    return name in REGISTRY or name in PORTABLE or name in PRIMS


def rule(name: str) -> object:
    """Return a key that is equal for an operator's several names."""
    definition = REGISTRY.get(name)
    return name if definition is None else definition.steps or definition.view or name


def dynamic(name: str, cases: int) -> str:
    """Return whether sizes may be below those of the export: always in NumPy, and as tested by cases for a rule."""
    return "yes" if name not in REGISTRY or REGISTRY[name].sym or cases else ""


def page() -> str:
    """Return the page."""
    counts = Counter(case.op for case in tables())
    of_rule = Counter(rule(case.op) for case in tables())
    kernel_names = kernels()
    names = sorted({*REGISTRY, *PORTABLE, *PRIMS})
    places = Counter(map(place, names))
    missing = [n for n in DELEGATE if not served(n)]
    cpu_only = [n for n in DELEGATE if served(n) and n not in REGISTRY]
    splits = [n for n in names if n in REGISTRY and REGISTRY[n].splits]
    lines = [
        "# Operators",
        "",
        "Generated by `python -m tools.operators > docs/operators.md`; a test checks that it is current.",
        "",
        f"- {len(names)} operators by name: {places['both']} on the GPU and the CPU, {places['GPU']} on the GPU "
        f"only, {places['CPU']} on the CPU only, {places['before the run']} symbolic.",
        f"- Of the {len(DELEGATE)} operators that ExecuTorch's exporter puts into a delegate, "
        f"{len(DELEGATE) - len(missing)} are supported{_listed(cpu_only, ', on the CPU only')}.",
        f"- Not supported{_listed(missing, '')}." if missing else "- No operator is missing.",
        f"- {sum(counts.values()):,} cases compare {len(counts)} of them with PyTorch.",
        "- Unsupported arguments and different results: "
        "[where it differs from PyTorch](#where-it-differs-from-pytorch).",
        "",
        "**Kind**: a *kernel* is WGSL; a *view* is free if the dtype stays the same, and a cast otherwise; a "
        "*symbolic* operator computes an int on the CPU, which kernels read; *NumPy* runs only on the CPU.",
        "",
        "**Dtypes** lists the dtypes of the first tensor on the GPU; *all* means f32, f16, i32, i8, u8 and bool. Other "
        "tensors may have other dtypes where PyTorch promotes them. NumPy kernels accept every dtype. Calls with a "
        "dtype that the GPU kernel does not support run in NumPy, and so does int64 where 32 bits would not be exact.",
        "",
        "**Dynamic**: sizes may be smaller than in the export. Each case of `tests/ops` also runs below its maximum.",
        "",
        "**Kernels** lists the kernels in the plans of the cases, by the names that profiles show. Large sizes may use "
        "other tiles.",
        "",
        "**Cases** counts the cases in the tables of `tests/ops`. Each runs on a GPU and is compared with PyTorch.",
        "",
        "| operator | kind | dtypes | runs on | dynamic | kernels | cases |",
        "|---|---|---|---|---|---|---:|",
    ]
    for n in names:
        shown = ", ".join(f"`{k}`" for k in sorted(kernel_names[rule(n)]))
        row = (f"`{n}`", kind(n), dtypes(n), place(n), dynamic(n, of_rule[rule(n)]), shown, str(counts[n] or ""))
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "## Where it differs from PyTorch", "", "Everywhere:", ""]
    lines += [GENERAL.format(splits=", ".join(f"`{n}`" for n in splits)), "", "By operator:", ""]
    lines += [f"- {', '.join(f'`{n}`' for n in sorted(of))}: {text}" for text, of in _by_operator(differences())]
    return "\n".join(lines) + "\n"


def _by_operator(names_by_text: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    return sorted(names_by_text.items(), key=lambda item: item[1])


def _listed(names: list[str], what: str) -> str:
    return f"{what}: {', '.join(f'`{n}`' for n in names)}" if names else ""


if __name__ == "__main__":
    print(page(), end="")
