"""Delegate blobs that no exporter writes, made of ones that an exporter wrote: calls, constants and outputs go wrong.

`DAMAGES` maps each kind of damage to a function that yields every way to do it to a blob. `outcome` loads and calls a
program with a damaged blob: it ends in an error of ours or in the results of the program as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.format.delegate import BlobCall, BlobGraph, BlobTensor, BlobValue, ValueList, read_delegate
from ptegpu.graph import importer
from ptegpu.graph.names import PREPACK
from tests.sweep import judged, within

Blobs = Iterator[BlobGraph]
DTYPES = (DType.F32, DType.F16, DType.I32, DType.I64, DType.F64, DType.U8, DType.BOOL)


def _put(items: tuple[Any, ...], k: int, item: Any) -> tuple[Any, ...]:
    return (*items[:k], item, *items[k + 1 :])


def _with_call(g: BlobGraph, k: int, args: tuple[int, ...]) -> BlobGraph:
    return replace(g, calls=_put(g.calls, k, replace(g.calls[k], args=args)))


def _with_value(g: BlobGraph, k: int, value: BlobValue) -> BlobGraph:
    return replace(g, values=_put(g.values, k, value))


def _added(g: BlobGraph, value: BlobValue) -> tuple[BlobGraph, int]:
    return replace(g, values=(*g.values, value)), len(g.values)


def _prepacks(g: BlobGraph) -> list[int]:
    return [k for k, c in enumerate(g.calls) if c.operator == PREPACK]


def _operators(g: BlobGraph) -> list[tuple[int, BlobCall, BlobTensor]]:
    """The calls that compute one tensor, with that tensor; not those that write a buffer in place."""
    buffers = {g.calls[k].args[-1] for k in _prepacks(g)}
    found = [(k, c, g.values[c.args[-1]]) for k, c in enumerate(g.calls) if c.operator != PREPACK]
    found = [(k, c, v) for k, c, v in found if c.args[-1] not in buffers]
    return [(k, c, v) for k, c, v in found if isinstance(v, BlobTensor)]


def _alike(g: BlobGraph, tensor: BlobTensor, other: int) -> bool:
    value = g.values[other]
    return isinstance(value, BlobTensor) and (value.dtype, value.dims) == (tensor.dtype, tensor.dims)


def no_constant(g: BlobGraph) -> Blobs:
    """The source of a prepack is no constant."""
    for k in _prepacks(g):
        source = g.calls[k].args[0]
        value = g.values[source]
        assert isinstance(value, BlobTensor)
        yield _with_value(g, source, replace(value, constant=-1))


def late_prepack(g: BlobGraph) -> Blobs:
    """A prepack comes after everything that reads its result."""
    for k in _prepacks(g):
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :], g.calls[k]))


def missing_prepack(g: BlobGraph) -> Blobs:
    """A prepack is gone."""
    for k in _prepacks(g):
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :]))


def other_prepack(g: BlobGraph) -> Blobs:
    """A prepack has more or fewer arguments, is done twice, packs an input, or writes one."""
    for k in _prepacks(g):
        source, target = g.calls[k].args
        yield _with_call(g, k, (source, source, target))
        yield _with_call(g, k, (target,))
        yield _with_call(g, k, ())
        for value_id in g.inputs:
            yield _with_call(g, k, (value_id, target))
            yield _with_call(g, k, (source, value_id))
    for a, b in pairwise(_prepacks(g)):
        yield _with_call(g, b, (g.calls[b].args[0], g.calls[a].args[1]))


def missing_call(g: BlobGraph) -> Blobs:
    """An operator whose result is used is gone."""
    for k, _, _ in _operators(g):
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :]))


def late_call(g: BlobGraph) -> Blobs:
    """An operator comes after everything else."""
    for k, _, _ in _operators(g)[:-1]:
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :], g.calls[k]))


def own_output(g: BlobGraph) -> Blobs:
    """An operator reads the value that it makes."""
    for k, call, tensor in _operators(g):
        for place, value_id in enumerate(call.args[:-1]):
            if value_id != call.args[-1] and _alike(g, tensor, value_id):
                yield _with_call(g, k, _put(call.args, place, call.args[-1]))


def written_input(g: BlobGraph) -> Blobs:
    """The result of an operator is one more input, or one that there is."""
    for _, call, tensor in _operators(g):
        result = call.args[-1]
        yield replace(g, inputs=(*g.inputs, result))
        for value_id in g.inputs:
            if _alike(g, tensor, value_id):
                calls = [replace(c, args=tuple(value_id if i == result else i for i in c.args)) for c in g.calls]
                outputs = tuple(value_id if i == result else i for i in g.outputs)
                yield replace(g, calls=tuple(calls), outputs=outputs)


def cycle(g: BlobGraph) -> Blobs:
    """An operator reads what a later one makes."""
    found = _operators(g)
    for n, (k, call, _) in enumerate(found):
        for _, later, tensor in found[n + 1 :]:
            for place, value_id in enumerate(call.args[:-1]):
                if value_id != later.args[-1] and _alike(g, tensor, value_id):
                    yield _with_call(g, k, _put(call.args, place, later.args[-1]))


def one_output_more(g: BlobGraph) -> Blobs:
    """The call takes fewer outputs than there are, and the first is no new value of a buffer.

    An intermediate value that only one constant of its shape leads to, whose memory nothing else takes, is left out:
    a program that stores it in that constant is written with the same bytes.
    """
    for output in g.outputs:
        yield replace(g, outputs=(output, *g.outputs))
        yield replace(g, outputs=(*g.outputs, output))
        value = g.values[output]
        if isinstance(value, BlobTensor):
            added, new = _added(g, replace(value, memory=-1))
            yield replace(added, outputs=(new, *g.outputs))
    for value_id in g.inputs:
        yield replace(g, outputs=(value_id, *g.outputs))
    for k, call, tensor in _operators(g):
        later = [v for _, c, v in _operators(g) if c.node > call.node and c is not g.calls[k]]
        if tensor.memory >= 0 and any(v.memory == tensor.memory for v in later) and call.args[-1] not in g.outputs:
            yield replace(g, outputs=(call.args[-1], *g.outputs))


def one_output_less(g: BlobGraph) -> Blobs:
    """There is no output, and the call takes one."""
    yield replace(g, outputs=())


def unwritten_output(g: BlobGraph) -> Blobs:
    """An output is a value that nothing writes."""
    for k, output in enumerate(g.outputs):
        added, new = _added(g, g.values[output])
        yield replace(added, outputs=_put(g.outputs, k, new))


def unwritten_item(g: BlobGraph) -> Blobs:
    """A list of tensors has one that nothing writes."""
    for k, value in enumerate(g.values):
        for place, item in enumerate(value.items if isinstance(value, ValueList) else ()):
            if isinstance(g.values[item], BlobTensor):
                added, new = _added(g, replace(g.values[item], constant=-1))  # type: ignore[type-var]
                yield _with_value(added, k, ValueList(_put(value.items, place, new)))  # type: ignore[union-attr]


def other_dtype(g: BlobGraph) -> Blobs:
    """An input or an output has elements of another type than the call's value has: inside, outside, or both."""
    for value_id in (*g.inputs, *g.outputs):
        value = g.values[value_id]
        for dtype in DTYPES if isinstance(value, BlobTensor) else ():
            assert isinstance(value, BlobTensor)
            if dtype.device is not value.dtype.device:
                yield _with_value(g, value_id, replace(value, dtype=dtype, staging=dtype))
                yield _with_value(g, value_id, replace(value, staging=dtype))
                if not (dtype.is_float and value.dtype.is_float):  # as f16 programs do
                    yield _with_value(g, value_id, replace(value, dtype=dtype))
                    yield _with_value(g, value_id, replace(value, dtype=dtype, staging=None))


DAMAGES: dict[str, Callable[[BlobGraph], Blobs]] = {
    f.__name__: f
    for f in (
        no_constant,
        late_prepack,
        missing_prepack,
        other_prepack,
        missing_call,
        late_call,
        own_output,
        written_input,
        cycle,
        one_output_more,
        one_output_less,
        unwritten_output,
        unwritten_item,
        other_dtype,
    )
}


def blobs(content: bytes) -> list[BlobGraph]:
    """Those of a program, in order."""
    return [read_delegate(d.blob) for m in ptegpu.format.read_program(content).methods for d in m.delegates]


def outcome(
    content: bytes, k: int, damaged: BlobGraph, calls: Sequence[Sequence[Any]], expected: Sequence[Sequence[np.ndarray]]
) -> str:
    """What comes of a program whose blob `k` is `damaged`: "right", the name of an error, or what is wrong."""
    whole = [d.blob for m in ptegpu.format.read_program(content).methods for d in m.delegates]

    def read(blob: memoryview, **_: Any) -> BlobGraph:
        return damaged if blob == whole[k] else read_delegate(blob)

    try:
        with patch.object(importer, "read_delegate", read):
            results = run(content, calls)
    except Exception as e:
        kind, text = judged(e)
        return f"{kind}: {text}" if kind.startswith("wrong") else kind
    same = all(
        len(r) == len(e) and all(np.array_equal(a, b) for a, b in zip(r, e, strict=True))
        for r, e in zip(results, expected, strict=True)
    )
    return "right" if same else "wrong: other results"


def run(content: bytes, calls: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
    """The results of calls, one after the other."""
    with within(30), ptegpu.load(content) as program:
        return [[np.array(r) for r in program.method("forward").execute(list(given))] for given in calls]
