"""Batch norms folded into the weights of the convolution before them: the result stays the same."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases import device, plan_of, run_plan
from tests.passes.products import Builder, names

from ptegpu.dtypes import DType
from ptegpu.graph.graph import Node, Tensor
from ptegpu.passes.channels import fold_channels
from ptegpu.passes.fuse import fuse_elementwise

F32, F16 = DType.F32, DType.F16
CONVOLUTION, NORM = "aten.convolution.default", "aten._native_batch_norm_legit_no_training.default"

# (x, weight, output, groups, transposed)
PLAIN = ((2, 3, 6, 5), (4, 3, 3, 3), (2, 4, 6, 5), 1, False)
CASES = {
    "plain": PLAIN,
    "pointwise": ((2, 8, 6, 5), (12, 8, 1, 1), (2, 12, 8, 7), 1, False),
    "depthwise": ((2, 6, 6, 5), (6, 1, 3, 3), (2, 6, 6, 5), 6, False),
    "groups": ((1, 8, 5, 5), (4, 4, 3, 3), (1, 4, 5, 5), 2, False),
    "one axis": ((2, 3, 9), (5, 3, 3), (2, 5, 9), 1, False),
    "transposed": ((2, 6, 4, 4), (6, 2, 3, 3), (2, 4, 4, 4), 2, True),
}


def convolved(b: Builder, case: tuple, bias: bool = True) -> Tensor:  # type: ignore[type-arg]
    x, weight, shape, groups, transposed = case
    ones, none = (1,) * (len(x) - 2), (0,) * (len(x) - 2)
    channels = shape[1]
    added = b.constant(channels, dtype=b.dtype) if bias else None
    args = (b.input(*x), b.constant(*weight, dtype=b.dtype), added, ones, ones, ones, transposed, none, groups)
    return b.apply(CONVOLUTION, *args, shape=shape)


def normed(b: Builder, x: Tensor, affine: bool = True) -> Node:
    channels = x.shape[1]
    mean, weight, bias = (b.constant(channels, dtype=b.dtype) for _ in range(3))
    assert mean.data is not None
    variance = Tensor("variance", b.dtype, (channels,), "constant", (np.abs(mean.data) + 0.5).astype(b.dtype.numpy))
    out = b.apply(NORM, x, *((weight, bias) if affine else (None, None)), mean, variance, 0.1, 1e-5, shape=x.shape)
    node = b.graph.nodes[-1]
    node.outs = (out, Tensor("mean", b.dtype, (0,)), Tensor("rstd", b.dtype, (0,)))
    return node


def built(case: tuple, dtype: DType = F32, *, bias: bool = True, affine: bool = True) -> Builder:  # type: ignore[type-arg]
    b = Builder(dtype)
    out = normed(b, convolved(b, case, bias), affine).outs[0]
    b.graph.outputs = [b.apply("aten.relu.default", out, shape=case[2])]
    return b


def run(b: Builder) -> np.ndarray:
    (result,) = run_plan(plan_of(b.graph, device().target), b.arrays, device())
    return result


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", ["all", "no bias", "no weight"])
def test_the_result_is_that_of_both(case, variant):
    options = {"bias": variant != "no bias", "affine": variant != "no weight"}
    separate, folded = built(CASES[case], **options), built(CASES[case], **options)
    fold_channels(folded.graph)
    fuse_elementwise(folded.graph)
    assert ["fused(convolution+relu)"] == names(folded.graph)
    expected = run(separate)
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(run(folded), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_what_others_read_stays():
    b = Builder()
    x = convolved(b, PLAIN)
    b.graph.outputs = [normed(b, x).outs[0], x]
    fold_channels(b.graph)
    assert [CONVOLUTION, NORM] == names(b.graph)


def test_statistics_that_are_asked_for_stay():
    b = Builder()
    b.graph.outputs = list(normed(b, convolved(b, PLAIN)).outs[:2])
    fold_channels(b.graph)
    assert [CONVOLUTION, NORM] == names(b.graph)


def test_statistics_that_vary_stay():
    b = built(PLAIN)
    mean = b.graph.nodes[1].args[3]
    assert isinstance(mean, Tensor)
    mean.kind = "input"
    fold_channels(b.graph)
    assert [CONVOLUTION, NORM, "aten.relu.default"] == names(b.graph)


def test_halves_are_not_rounded_twice():
    b = built(PLAIN, F16)
    fold_channels(b.graph)
    assert [CONVOLUTION, NORM, "aten.relu.default"] == names(b.graph)


def test_a_norm_of_another_size_stays_for_the_rule_to_refuse():
    b = built(PLAIN)
    short = Tensor("short", F32, (3,), "constant", np.ones(3, np.float32))
    node = b.graph.nodes[1]
    node.args = (node.args[0], None, None, short, short, *node.args[5:])
    fold_channels(b.graph)
    assert [CONVOLUTION, NORM, "aten.relu.default"] == names(b.graph)
