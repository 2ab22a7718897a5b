"""Training on the device, in f32: gradients of linear layers, requantised 4-bit weights, cross entropy, AdamW."""

from __future__ import annotations

import math

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Tensor
from ..kernels import training as kernels
from ..kernels.lanes import ALONG_ROWS, choose, held
from ..kernels.wgsl import store_type
from ..plan.target import Target
from .pointwise import Strided, pointwise
from .product import Packed, Product
from .reduce import reduce
from .registry import Bounded, Dispatch, Out, Scratch, Steps, op


@op("et_vk.linear_dW.default", fits="d_out float[..., _], x [..., _]")
def linear_dw(d_out: Tensor, x: Tensor, *, target: Target) -> Steps:
    """Return the gradient of a weight (N, K): the transpose of d_out (…, N) as a matrix, times x (…, K)."""
    rows, n, k = math.prod(d_out.shape[:-1]), d_out.shape[-1], x.shape[-1]
    if math.prod(x.shape[:-1]) != rows:
        raise ShapeError(f"d_out {list(d_out.shape)} and x {list(x.shape)} must have the same number of rows")
    out = yield Out((n, k))
    transposed = d_out
    if rows > 1 and n > 1:
        transposed = yield Scratch((n, rows), d_out.dtype)
        yield pointwise("transpose", "a", [Strided(d_out, (1, n))], transposed, target)
    yield Product(transposed, x, False, 1, n, k, rows, out, (n * k, k, 1))


@op("et_vk.linear_q4gsw_backward.default", fits="d_out float[..., n], weights int8|uint8[n, _]")
def linear_q4gsw_backward(d_out: Tensor, weights: Tensor, weight_scales: Tensor, group_size: int) -> Steps:
    """Return the input gradient (…, K) of `linear_q4gsw`: d_out (…, N) · weights (N, K / 2), scales (K / group, N)."""
    n, k = weights.shape[0], 2 * weights.shape[1]
    _check_scales(weight_scales, n, k, group_size)
    out = yield Out((*d_out.shape[:-1], k))
    m = math.prod(d_out.shape[:-1])
    packed = Packed(weight_scales, 4, group_size)
    yield Product(d_out, weights, False, 1, m, k, n, out, (m * k, k, 1), packed=packed)


@op("et_vk.q4gsw_requant.default", fits="latent float[n, k]")
def q4gsw_requant(latent: Tensor, scales: Tensor, group_size: int, *, target: Target) -> Steps:
    """Quantise latent (N, K) to weights of `linear_q4gsw` (N, ceil(K / 2)) by unchanged scales (K / group, N).

    The half byte after an odd K is zero.
    """
    n, k = latent.shape
    _check_scales(scales, n, k, group_size)
    row_bytes = (k + 1) // 2
    out = yield Out((n, row_bytes), DType.U8)
    kernel = kernels.requantise(latent.dtype, scales.dtype, k % 8 == 0, target)
    params = {"n": out.numel, "width": k, "row_bytes": row_bytes}
    params |= {"group": group_size, "scale_stride": scales.shape[-1]}
    groups = -(-out.numel // (4 * kernel.kernel.workgroup))
    yield Dispatch(kernel, [latent, scales], [out], groups, params)


def _check_scales(scales: Tensor, n: int, k: int, group: int) -> None:
    if group < 1 or scales.rank != 2 or scales.shape[1] < n or scales.shape[0] * group < k:
        raise ShapeError(f"scales of shape {list(scales.shape)} do not fit {n} rows of {k} in groups of {group}")


@op(
    "et_vk.fused_ce.default",
    fits="logits float[r, v], labels int[r]",
    wide=True,
    indexes=lambda a: [Bounded(a["labels"], -(2**31), classes) for classes in a["logits"].shape[1:2]],
)
def fused_ce(logits: Tensor, labels: Tensor, n_valid: float, *, target: Target) -> Steps:
    """Return the cross entropies of logits (R, V) and labels (R), summed over `n_valid`, and the gradient (R, V).

    Rows with a negative label are ignored.

    Unlike PyTorch, which raises, a label that the GPU computed counts as the last one if it is V or more: checking it
    would need a read back. Others raise.
    """
    rows, classes = logits.shape
    if rows and not classes:
        raise ShapeError("there are no classes")
    loss = yield Out(())
    gradient = yield Out(logits.shape)
    losses = yield Scratch((rows,), DType.F32)
    quads = classes % 4 == 0
    loads = classes // 4 if quads else classes
    lanes = choose(ALONG_ROWS, rows, loads, target)
    stored = gradient.dtype if quads else store_type(gradient.dtype, target)
    kernel = kernels.cross_entropy(logits.dtype, labels.dtype, stored, quads, held(lanes, loads), lanes, target)
    params = {"rows": rows, "length": loads, "n_valid": n_valid, "blank": math.nan}
    yield Dispatch(kernel, [logits, labels], [losses, gradient], lanes.groups(rows), params)
    yield from reduce("sum", losses, [0], loss, target, kind="f32")


@op("et_vk.adamw_step.default", "adamw_step.default", mutates=("param", "m", "v"), fits="param float")
def adamw_step(
    param: Tensor,
    m: Tensor,
    v: Tensor,
    grad: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    bias_correction1: float,
    bias_correction2: float,
    *,
    target: Target,
) -> Steps:
    """Update a parameter and its two moments by one step of AdamW, in place, and return their new values."""
    if not param.shape == m.shape == v.shape == grad.shape:
        shapes = ", ".join(str(list(t.shape)) for t in (param, m, v, grad))
        raise ShapeError(f"parameter, moments and gradient must have the same shape, not {shapes}")
    results = []
    for state in (param, m, v):
        results.append((yield Out(state.shape, state.dtype)))
    kernel = kernels.adamw(param.dtype, m.dtype, v.dtype, grad.dtype, target)
    params = {"n": param.numel, "lr": lr, "decay": 1.0 - lr * weight_decay, "eps": eps}
    params |= {"beta1": beta1, "rest1": 1.0 - beta1, "beta2": beta2, "rest2": 1.0 - beta2}
    params |= {"correction1": bias_correction1, "correction2": bias_correction2}
    groups = -(-param.numel // (4 * kernel.kernel.workgroup))
    yield Dispatch(kernel, [grad], [param, m, v, *results], groups, params)
