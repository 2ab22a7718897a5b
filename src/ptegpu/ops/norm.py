"""Normalisations by the statistics of each row (layer, RMS, group and batch norms), or by those of the training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import ShapeError
from ..graph.graph import Shape, Tensor
from ..kernels import norm as kernels
from ..kernels.lanes import HELD_ROWS, Stage, choose, pieces
from ..kernels.norm import Layout
from ..kernels.wgsl import store_type
from ..plan.target import Target
from ..sizes import real
from .moves import SelectedRow
from .pointwise import Strided, pointwise
from .registry import Dispatch, Out, Scratch, Steps, Work, op

EPS = {DType.F32: 2.0**-23, DType.F16: 2.0**-10}  # PyTorch's defaults


def normalise(
    layout: Layout,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    out: Tensor,
    target: Target,
    *,
    rows: int,
    span: int,  # contiguous elements that share a weight or, in the layout "element", form a row
    mean: Tensor | None = None,
    rstd: Tensor | None = None,
    centred: bool = True,
    extra: dict[str, int] | None = None,  # parameters of the layout; "inner" and "stride" in elements
    label: str = "",
) -> Steps:
    """Normalise `rows` rows of equal length, in pieces if the lanes of a workgroup cannot hold a row."""
    length = x.numel // rows if rows else 0
    quads = span % 4 == 0
    step = 4 if quads else 1
    lanes = choose(HELD_ROWS, rows, length // step, target)
    cut = pieces(lanes, length // step)

    def launch(stage: Stage, read: list[Tensor | None], write: list[Tensor | None]) -> Dispatch:
        kernel = kernels.norm(
            stage,
            layout,
            centred,
            x.dtype,
            out.dtype if quads else store_type(out.dtype, target),
            weight.dtype if weight else None,
            bias.dtype if bias else None,
            store_type(mean.dtype, target) if mean else None,
            store_type(rstd.dtype, target) if rstd else None,
            quads,
            cut.held,
            lanes,
            target,
        )
        params: dict[str, int | float] = {"rows": rows, "length": length // step, "count": real(length), "eps": eps}
        params |= {k: v // step if k in ("inner", "stride") else v for k, v in (extra or {}).items()}
        params |= cut.params(stage)
        groups = lanes.groups(rows) * cut.parts
        reads, writes = [t for t in read if t], [t for t in write if t]
        return Dispatch(kernel, reads, writes, groups, params, label=label)

    if cut.parts == 1:
        yield launch("whole", [x, weight, bias], [out, mean, rstd])
        return
    sums = (yield Scratch((rows, cut.parts), DType.F32)) if centred else None
    spreads = yield Scratch((rows, cut.parts), DType.F32)
    yield launch("statistics", [x], [sums, spreads])
    yield launch("results", [x, weight, bias, sums, spreads], [out, mean, rstd])


def trailing(x: Tensor, normalized_shape: list[int]) -> int:
    """Return the elements of a row; raise ShapeError unless the last dimensions of `x` are the normalised ones."""
    if not normalized_shape or x.shape[-len(normalized_shape) :] != tuple(normalized_shape):
        raise ShapeError(f"{list(x.shape)} does not end in {normalized_shape}")
    return math.prod(normalized_shape)


def check_affine(size: int, weight: Tensor | None, bias: Tensor | None) -> None:
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and t.numel != size:
            raise ShapeError(f"the {name} {list(t.shape)} does not have {size} elements")


def statistics_shape(x: Tensor, normalized_shape: list[int]) -> Shape:
    return (*x.shape[: x.rank - len(normalized_shape)], *(1 for _ in normalized_shape))


@op("aten.native_layer_norm.default", fits="x float", by_row="norm")
def layer_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float, *, target: Target
) -> Steps:
    length = trailing(x, normalized_shape)
    check_affine(length, weight, bias)
    out = yield Out(x.shape, x.dtype)
    mean = yield Out(statistics_shape(x, normalized_shape))
    rstd = yield Out(statistics_shape(x, normalized_shape))
    operands, rows = (x, weight, bias, eps, out, target), mean.numel
    yield from normalise("element", *operands, rows=rows, span=length, mean=mean, rstd=rstd)


@dataclass(frozen=True, slots=True)
class RmsNorm(Work):
    """The RMS norm of the rows of x, with a weight per element."""

    x: Tensor
    weight: Tensor  # (K)
    eps: float
    y: Tensor
    label: str = ""
    row: SelectedRow | None = None  # computes x, whose elements are contiguous

    @property
    def source(self) -> tuple[Tensor, int]:
        """The tensor that the rows can be read from, and their offset in it."""
        first = self.row.first if self.row else None
        return (self.row.x, first) if self.row and first is not None else (self.x, 0)

    def steps(self, target: Target) -> Steps:
        if self.row:
            yield self.row
        x, rows = self.x, math.prod(self.x.shape[:-1])
        operands = x, self.weight, None, self.eps, self.y, target
        yield from normalise("element", *operands, rows=rows, span=x.shape[-1], centred=False, label=self.label)


@op("et_vk.rms_norm.default", fits="x float[..., k], weight [k]", role="norm", by_row="norm")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Steps:
    out = yield Out(x.shape, x.dtype)
    yield RmsNorm(x, weight, eps, out)


@op("aten.rms_norm.default", fits="x float", by_row="norm")
def rms_norm_shaped(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None, *, target: Target
) -> Steps:
    length = trailing(x, normalized_shape)
    check_affine(length, weight, None)
    out = yield Out(x.shape, x.dtype)
    rows = math.prod(statistics_shape(x, normalized_shape))
    eps = EPS[x.dtype] if eps is None else eps
    yield from normalise("element", x, weight, None, eps, out, target, rows=rows, span=length, centred=False)


@op("aten.native_group_norm.default", fits="x float[n, c, ...], weight [c], bias [c]")
def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    pixels: int,
    group: int,
    eps: float,
    *,
    target: Target,
) -> Steps:
    """Normalise groups of channels of `x` (N, C, …). The program's own sizes are maxima, so they are not used."""
    if group < 1 or x.shape[1] % group:
        raise ShapeError(f"the channels of {list(x.shape)} do not form {group} equal groups")
    out = yield Out(x.shape, x.dtype)
    mean = yield Out((x.shape[0], group))
    rstd = yield Out((x.shape[0], group))
    inner = math.prod(x.shape[2:])
    extra = {"inner": inner, "span": x.shape[1] // group, "sets": group}
    operands, rows = (x, weight, bias, eps, out, target), x.shape[0] * group
    yield from normalise("channel", *operands, rows=rows, span=inner, mean=mean, rstd=rstd, extra=extra)


@op("aten._native_batch_norm_legit.no_stats", fits="x float[_, c, ...], weight [c], bias [c]")
def batch_norm_no_stats(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    target: Target,
) -> Steps:
    """Normalise by the statistics of the batch, which is also how instance norm is exported."""
    channels = x.shape[1]
    out = yield Out(x.shape, x.dtype)
    mean = yield Out((channels,))
    rstd = yield Out((channels,))
    inner = math.prod(x.shape[2:])
    operands, extra = (x, weight, bias, eps, out, target), {"inner": inner, "stride": channels * inner}
    yield from normalise("row", *operands, rows=channels, span=inner, mean=mean, rstd=rstd, extra=extra)


def _by_channel(a: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a batch norm by constant statistics as a factor and an offset per channel."""
    operands = [a[name] for name in ("running_mean", "running_var", "weight", "bias")]
    if any(t.kind != "constant" or t.shape != operands[0].shape for t in operands if t):
        return None
    mean, variance, weight, bias = (0.0 if t is None else t.data.astype(np.float64) for t in operands)
    with np.errstate(all="ignore"):
        factor = (1.0 if a["weight"] is None else weight) / np.sqrt(variance + a["eps"])
        return factor, bias - mean * factor


@op(
    "aten._native_batch_norm_legit_no_training.default",
    fits="x float[_, c, ...], weight [c], bias [c], running_mean [c], running_var [c]",
    by_channel=_by_channel,
)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    outs: tuple[Tensor, ...],
    target: Target,
) -> Steps:
    """Normalise by the statistics of the training; the second and third output are these statistics, or empty."""
    channels = x.shape[1]
    out = yield Out(x.shape, x.dtype)
    for o in outs[1:]:
        if o.max_shape not in ((0,), (channels,)):
            raise ShapeError(f"statistics of shape {list(o.max_shape)}: expected [0] or [{channels}]")
    mean = yield Out(outs[1].max_shape)
    rstd = yield Out(outs[2].max_shape)
    by_channel = tuple(int(k == 1) for k in range(x.rank))
    operands: list[Tensor | Strided] = [x, Strided(running_mean, by_channel), Strided(running_var, by_channel)]
    body = "(a - b) * inverseSqrt(c + eps)"
    for t, apply in ((weight, "*"), (bias, "+")):
        if t is not None:
            body = f"({body}) {apply} {'abcde'[len(operands)]}"
            operands.append(Strided(t, by_channel))
    yield pointwise("batch_norm", body, operands, out, target, scalars={"eps": eps}, compute=DType.F32)
    if mean.numel:
        yield pointwise("copy", "a", [running_mean], mean, target, compute=DType.F32)
    if rstd.numel:
        body = "inverseSqrt(a + eps)"
        yield pointwise("batch_rstd", body, [running_var], rstd, target, scalars={"eps": eps}, compute=DType.F32)
