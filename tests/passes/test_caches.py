"""Key-value caches: they become float16 if only attention and cache writes touch them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graphs import Sketch
from tests.passes.test_attention import CUSTOM, Layer, joined

from ptegpu.dtypes import DType
from ptegpu.passes.caches import halve_caches


@pytest.mark.parametrize("layer", [Layer(), Layer(cached=CUSTOM), Layer(mask=True, columns=0)], ids=str)
@pytest.mark.parametrize("fused", [True, False])
def test_caches_of_attention(layer, fused):
    graph = joined(layer) if fused else layer.graph()[0]
    assert 2 == halve_caches(graph)
    states = [t for t in graph.tensors() if t.kind == "state"]
    assert [DType.F16] * 2 == [t.dtype for t in states]
    assert [np.dtype(np.float16)] * 2 == [t.data.dtype for t in states if t.data is not None]
    assert 0 == halve_caches(graph)


def test_what_others_read_stays():
    s = Sketch()
    s.graph, tensors = Layer(columns=0).graph()
    s.graph.outputs.append(s.tensor("aten.neg.default", tensors["keys"]))
    assert 1 == halve_caches(s.graph)
    assert (DType.F32, DType.F16) == (tensors["keys"].dtype, tensors["values"].dtype)


def test_what_is_also_a_query_stays():
    s = Sketch()
    cache = s.state(1, 8, 2, 16)
    y = s.tensor("custom_sdpa.default", cache, cache, cache, s.sym(), None, 0.0, True, None)
    assert 0 == halve_caches(s.returns(y))


def test_what_gets_a_new_value_stays():
    graph, tensors = Layer(columns=0).graph()
    graph.writebacks = [(tensors["keys"], tensors["y"])]
    assert 1 == halve_caches(graph)
