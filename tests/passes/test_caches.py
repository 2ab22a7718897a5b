"""Key-value caches: they become float16 or blocks of 8 bits if only attention and cache writes touch them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.graphs import Sketch
from tests.passes.test_attention import CUSTOM, Layer, joined

from ptegpu.dtypes import DType
from ptegpu.kernels.attention import PAGE
from ptegpu.ops.ragged import ATTEND
from ptegpu.passes.caches import narrow_caches

F16, Q8 = DType.F16, DType.Q8


@pytest.mark.parametrize("layer", [Layer(), Layer(cached=CUSTOM), Layer(mask=True, columns=0)], ids=str)
@pytest.mark.parametrize("fused", [True, False])
def test_caches_of_attention(layer, fused):
    graph = joined(layer) if fused else layer.graph()[0]
    assert 2 == narrow_caches(graph, F16)
    states = [t for t in graph.tensors() if t.kind == "state"]
    assert [F16] * 2 == [t.dtype for t in states]
    assert [np.dtype(np.float16)] * 2 == [t.data.dtype for t in states if t.data is not None]
    assert 0 == narrow_caches(graph, F16)


def test_what_others_read_stays():
    s = Sketch()
    s.graph, tensors = Layer(columns=0).graph()
    s.graph.outputs.append(s.tensor("aten.neg.default", tensors["keys"]))
    assert 1 == narrow_caches(s.graph, F16)
    assert (DType.F32, F16) == (tensors["keys"].dtype, tensors["values"].dtype)


def test_what_is_also_a_query_stays():
    s = Sketch()
    cache = s.state(1, 8, 2, 16)
    y = s.tensor("custom_sdpa.default", cache, cache, cache, s.sym(), None, 0.0, True, None)
    assert 0 == narrow_caches(s.returns(y), F16)


def test_what_gets_a_new_value_stays():
    graph, tensors = Layer(columns=0).graph()
    graph.writebacks = [(tensors["keys"], tensors["y"])]
    assert 1 == narrow_caches(graph, F16)


@pytest.mark.parametrize("layer", [Layer(), Layer(cached=CUSTOM)], ids=str)
@pytest.mark.parametrize("fused", [True, False])
def test_blocks(layer, fused):
    graph = joined(layer) if fused else layer.graph()[0]
    states = [t for t in graph.tensors() if t.kind == "state"]
    elements = states[0].numel
    assert 2 == narrow_caches(graph, Q8)
    assert [(Q8, elements // 32 * 36)] * 2 == [(t.dtype, t.nbytes) for t in states]
    assert [elements // 32 * 36] * 2 == [t.data.nbytes for t in states if t.data is not None]


def test_positions_fill_blocks():
    graph, _ = Layer(shared=1, heads=1, columns=0).graph()  # 16 elements in each position
    assert (0, 2) == (narrow_caches(graph, Q8), narrow_caches(graph, F16))


@pytest.mark.parametrize("dtype", [F16, Q8], ids=str)
def test_pages(dtype):
    s = Sketch()
    q, k, v = (s.input(1, 3, 2, 16) for _ in "qkv")
    pages = [s.state(4, PAGE, 2, 16) for _ in "kv"]
    rows, tables = s.input(3, 2, dtype=DType.I32), s.input(1, 4, dtype=DType.I32)
    graph = s.returns(s.tensor(ATTEND, q, k, v, *pages, rows, tables, 0, None))
    assert 2 == narrow_caches(graph, dtype)
    assert [dtype] * 2 == [t.dtype for t in pages]
