"""Damaged delegate blobs, made from those of an exporter: wrong calls, constants and outputs.

`DAMAGES` maps each kind of damage to a function that yields every variant of it for a blob. `outcome` loads and calls a
program with a damaged blob, which must raise an error of ours or return the results of the undamaged program.
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
    """Return the calls that compute one tensor, with that tensor, except those that write a buffer in place."""
    buffers = {g.calls[k].args[-1] for k in _prepacks(g)}
    operators = [(k, c, g.values[c.args[-1]]) for k, c in enumerate(g.calls) if c.operator != PREPACK]
    operators = [(k, c, v) for k, c, v in operators if c.args[-1] not in buffers]
    return [(k, c, v) for k, c, v in operators if isinstance(v, BlobTensor)]


def _alike(g: BlobGraph, tensor: BlobTensor, other: int) -> bool:
    value = g.values[other]
    return isinstance(value, BlobTensor) and (value.dtype, value.dims) == (tensor.dtype, tensor.dims)


def no_constant(g: BlobGraph) -> Blobs:
    """Let the source of a prepack be a non-constant."""
    for k in _prepacks(g):
        source = g.calls[k].args[0]
        value = g.values[source]
        assert isinstance(value, BlobTensor)
        yield _with_value(g, source, replace(value, constant=-1))


def late_prepack(g: BlobGraph) -> Blobs:
    """Move a prepack after all readers of its result."""
    for k in _prepacks(g):
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :], g.calls[k]))


def missing_prepack(g: BlobGraph) -> Blobs:
    """Remove a prepack."""
    for k in _prepacks(g):
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :]))


def other_prepack(g: BlobGraph) -> Blobs:
    """Change a prepack's number of arguments, let it pack or write an input, or repeat one."""
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
    """Remove an operator whose result is used."""
    for k, _, _ in _operators(g):
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :]))


def late_call(g: BlobGraph) -> Blobs:
    """Move an operator to the end."""
    for k, _, _ in _operators(g)[:-1]:
        yield replace(g, calls=(*g.calls[:k], *g.calls[k + 1 :], g.calls[k]))


def own_output(g: BlobGraph) -> Blobs:
    """Let an operator read its own result."""
    for k, call, tensor in _operators(g):
        for place, value_id in enumerate(call.args[:-1]):
            if value_id != call.args[-1] and _alike(g, tensor, value_id):
                yield _with_call(g, k, _put(call.args, place, call.args[-1]))


def written_input(g: BlobGraph) -> Blobs:
    """Make the result of an operator an additional input, or replace it by an input."""
    for _, call, tensor in _operators(g):
        result = call.args[-1]
        yield replace(g, inputs=(*g.inputs, result))
        for value_id in g.inputs:
            if _alike(g, tensor, value_id):
                calls = [replace(c, args=tuple(value_id if i == result else i for i in c.args)) for c in g.calls]
                outputs = tuple(value_id if i == result else i for i in g.outputs)
                yield replace(g, calls=tuple(calls), outputs=outputs)


def cycle(g: BlobGraph) -> Blobs:
    """Let an operator read the result of a later one."""
    operators = _operators(g)
    for n, (k, call, _) in enumerate(operators):
        for _, later, tensor in operators[n + 1 :]:
            for place, value_id in enumerate(call.args[:-1]):
                if value_id != later.args[-1] and _alike(g, tensor, value_id):
                    yield _with_call(g, k, _put(call.args, place, later.args[-1]))


def one_output_more(g: BlobGraph) -> Blobs:
    """Add an output that the call does not list and that is not the new value of a buffer.

    Intermediate values whose memory no later result reuses are left out: a program that stores such a value in a
    constant of its shape has the same bytes.
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
    """Remove the output that the call lists."""
    yield replace(g, outputs=())


def unwritten_output(g: BlobGraph) -> Blobs:
    """Make an unwritten value an output."""
    for k, output in enumerate(g.outputs):
        added, new = _added(g, g.values[output])
        yield replace(added, outputs=_put(g.outputs, k, new))


def unwritten_item(g: BlobGraph) -> Blobs:
    """Put an unwritten tensor into a list."""
    for k, value in enumerate(g.values):
        for place, item in enumerate(value.items if isinstance(value, ValueList) else ()):
            if isinstance(g.values[item], BlobTensor):
                added, new = _added(g, replace(g.values[item], constant=-1))  # type: ignore[type-var]
                yield _with_value(added, k, ValueList(_put(value.items, place, new)))  # type: ignore[union-attr]


def other_dtype(g: BlobGraph) -> Blobs:
    """Change the element type of an input or output: inside the delegate, outside, or both."""
    for value_id in (*g.inputs, *g.outputs):
        value = g.values[value_id]
        for dtype in DTYPES if isinstance(value, BlobTensor) else ():
            assert isinstance(value, BlobTensor)
            if dtype.device is not value.dtype.device:
                yield _with_value(g, value_id, replace(value, dtype=dtype, staging=dtype))
                yield _with_value(g, value_id, replace(value, staging=dtype))
                if not (dtype.is_float and value.dtype.is_float):  # f16 programs do this
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
    """Return the delegate blobs of a program, in order."""
    return [read_delegate(d.blob) for m in ptegpu.format.read_program(content).methods for d in m.delegates]


def outcome(
    content: bytes, k: int, damaged: BlobGraph, calls: Sequence[Sequence[Any]], expected: Sequence[Sequence[np.ndarray]]
) -> str:
    """Run a program with `damaged` as blob `k`; return "right", the name of the error, or "wrong: …"."""
    originals = [d.blob for m in ptegpu.format.read_program(content).methods for d in m.delegates]

    def read(blob: memoryview, **_: Any) -> BlobGraph:
        return damaged if blob == originals[k] else read_delegate(blob)

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
    """Make the calls in order and return their results."""
    with within(30), ptegpu.load(content) as program:
        return [[np.array(r) for r in program.method("forward").execute(list(inputs))] for inputs in calls]
