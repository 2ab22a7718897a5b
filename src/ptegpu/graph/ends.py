"""Which values of a delegate's call its blob takes, and which it makes.

A call lists inputs, then outputs. The Vulkan backend leaves an input that nothing uses out of the blob, but the call
still gives it. And a blob may have more outputs than the call takes: the first ones are the new values of buffers.
So the file does not say where the outputs start, nor which inputs are gone; it must follow from the types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from ..errors import InvalidProgram, UnsupportedProgram
from ..format.delegate import BlobGraph, BlobTensor, BlobValue
from ..format.pte import Tensor, Value

Ids = tuple[int, ...]


def ends(
    blob: BlobGraph, ids: Ids, values: Sequence[Value], fresh: Callable[[int], bool], where: str, path: str | None
) -> tuple[Ids, Ids]:
    """The ids of the inputs and outputs among `ids`. `fresh` says whether an id has no value before the call."""
    count = len(blob.inputs)
    if len(ids) < count:
        raise InvalidProgram(f"{where} takes {count} inputs, the call gives {len(ids)} values", path=path)
    results = len(blob.outputs) - _buffers(blob)
    if len(ids) < count + results:
        text = f"{where} takes {count} inputs and has {results} results, the call gives {len(ids)} values for both"
        raise InvalidProgram(f"{text}; export the program again", path=path)
    outs = max(results, len(list(takewhile(fresh, reversed(ids)))))
    given = ids[: len(ids) - min(outs, len(blob.outputs))]
    if len(given) <= count:
        return ids[:count], ids[count:]
    wanted = [blob.values[k] for k in blob.inputs]
    first = _embed(wanted, [values[k] for k in given])
    last = _embed(wanted[::-1], [values[k] for k in reversed(given)])
    if first is None or last is None:
        shown = ", ".join(_show(values[k]) for k in given)
        raise InvalidProgram(f"{where} takes ({', '.join(map(_show, wanted))}), the call gives ({shown})", path=path)
    if first != [len(given) - 1 - place for place in reversed(last)]:
        raise UnsupportedProgram(
            f"{where} takes {count} of the {len(given)} inputs that its call gives, and the file does not say which; "
            "export without partitions (`ptegpu export torch --no-delegate`)"
        )
    return tuple(given[place] for place in first), ids[len(given) :]


def _buffers(blob: BlobGraph) -> int:
    """How many outputs may be new values of buffers: they come first, and are of the types of constants."""
    tensors = [v for v in blob.values if isinstance(v, BlobTensor)]
    constants = {(t.dtype, t.dims) for t in tensors if t.constant >= 0}
    outputs = [v for k in blob.outputs if isinstance(v := blob.values[k], BlobTensor)]
    return len(list(takewhile(lambda t: (t.dtype, t.dims) in constants, outputs)))


def _embed(wanted: Sequence[BlobValue], given: Sequence[Value]) -> list[int] | None:
    """The first places where `given` has what is wanted, in order.

    There is no other way if the last places are the same.
    """
    places: list[int] = []
    for place, value in enumerate(given):
        if len(places) < len(wanted) and _fits(wanted[len(places)], value):
            places.append(place)
    return places if len(places) == len(wanted) else None


def _fits(inner: BlobValue, outer: Value) -> bool:
    """Whether a value of a blob can be this one of the call: f16 blobs take f32, symbolic ints come as tensors too."""
    if not isinstance(inner, BlobTensor):
        return isinstance(outer, int | None) or (isinstance(outer, Tensor) and outer.numel == 1)
    if not isinstance(outer, Tensor) or len(inner.dims) != len(outer.sizes):
        return False
    alike = inner.dtype.device is outer.dtype.device or (inner.dtype.is_float and outer.dtype.is_float)
    return alike and (outer.dynamic or inner.dims == outer.sizes)


def _show(value: BlobValue | Value) -> str:
    if isinstance(value, BlobTensor):
        return f"{value.dtype.value}{list(value.dims)}"
    return f"{value.dtype.value}{list(value.sizes)}" if isinstance(value, Tensor) else "int"
