"""Declarations of an operator's tensors, in one line where it is registered, which are checked before its rule runs.

    @op("aten.native_group_norm.default", fits="x float[n, c, ...], weight [c], bias [c]")
    @op("aten.searchsorted.Tensor", fits="sequence number, values sequence, sorter int32 -> int32")

An entry is a parameter's name, its dtype, and its sizes in brackets; dtype and sizes are optional.

- A dtype is `float`, `int`, `number` (float or int), `any`, or one such as `int8`; `a|b` allows both, and `float|q8` is
  for caches, which no program declares as q8 (see `passes/caches.py`). The name of an
  earlier parameter requires the same kind: floats with floats, ints with ints. Without a dtype or an entry, a tensor
  has the dtypes of the first one. The first tensor's dtypes decide where a call runs: the host serves all others.
- A size is a name, which stands for the same number in all entries, a number, `>=` one of these, or `_` for any size;
  `...` is any number of dimensions.
- The arrow precedes the dtypes of results for which the rule names none; the last one holds for all further results.
  Without an arrow they have the dtypes of the first tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..dtypes import FLOATS, INTS, NUMBERS, ON_GPU, DType
from ..errors import InvalidProgram, ShapeError
from ..graph.graph import Tensor

WORDS: dict[str, tuple[DType, ...]] = {"float": FLOATS, "int": INTS, "number": NUMBERS, "any": ON_GPU}
WORDS |= {d.value: (d,) for d in (*ON_GPU, DType.Q8)}
KINDS = (FLOATS, INTS, (DType.BOOL,))
_ENTRY = re.compile(r"\s*(?P<name>\w+)\s*(?P<dtype>[\w|]+)?\s*(?:\[(?P<sizes>[^\]]*)\])?\s*(?:,|$)")
_SIZE = re.compile(r"\.\.\.|_|(>=)?(\w+)")


class Entry(NamedTuple):
    """The declaration of one tensor."""

    name: str
    dtype: str  # words, or the name of another parameter
    sizes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fits:
    """The declaration of an operator's tensors and results."""

    entries: Mapping[str, Entry]
    results: tuple[str, ...]  # dtypes

    @property
    def first(self) -> tuple[DType, ...]:
        """The dtypes that the first tensor may have."""
        return _listed(next(iter(self.entries.values())).dtype)

    def check_dtypes(self, values: Mapping[str, Any]) -> None:
        """Raise InvalidProgram unless the arguments have the declared dtypes."""
        for name, entry in self.entries.items():
            allowed = self._dtypes(entry.dtype, values)
            for t in _tensors(values[name]):
                if t.dtype not in allowed:
                    raise InvalidProgram(f"'{name}' is {t!r}, but must be {_words(allowed)}")

    def check_sizes(self, values: Mapping[str, Any]) -> None:
        """Raise ShapeError unless the live sizes of the arguments are as declared."""
        sizes: dict[str, int] = {}
        for name, entry in self.entries.items():
            for t in _tensors(values[name]):
                if entry.sizes is not None and not _fit(t.shape, entry.sizes, sizes):
                    values_of_names = ", ".join(f"{k} = {n}" for k, n in sizes.items())
                    where = values_of_names and f" where {values_of_names}"
                    raise ShapeError(f"'{name}' is {t!r}, but must be [{', '.join(entry.sizes)}]{where}")

    def check_result(self, place: int, out: Tensor, values: Mapping[str, Any]) -> None:
        """Raise InvalidProgram unless a result whose dtype the program chooses has a declared one."""
        allowed = self._dtypes(self.results[min(place, len(self.results) - 1)], values)
        if out.dtype not in allowed:
            raise InvalidProgram(f"the result is {_words(allowed)}, the program says {out.dtype.value}")

    def _dtypes(self, words: str, values: Mapping[str, Any]) -> tuple[DType, ...]:
        if words not in self.entries:
            return _listed(words)
        like = next(_tensors(values[words]), None)
        return ON_GPU if like is None else next(kind for kind in KINDS if like.dtype in kind)


def parsed(text: str, tensors: Sequence[str]) -> Fits:
    """Parse the declaration of an operator with these tensor parameters; raise TypeError if it is invalid."""
    declared, arrow, declared_results = text.partition("->")
    entries: dict[str, Entry] = {}
    at = 0
    while at < len(declared.rstrip()):
        match = _ENTRY.match(declared, at)
        if match is None:
            raise TypeError(f"fits={text!r}: cannot read {declared[at:]!r}")
        at, sizes = match.end(), match["sizes"]
        first = next(iter(entries.values())).dtype if entries else ""
        dims = None if sizes is None else tuple(s.strip() for s in sizes.split(",") if s.strip())
        entries[match["name"]] = Entry(match["name"], match["dtype"] or first, dims)
    if not entries or [n for n in tensors if n in entries] != list(entries) or next(iter(entries)) != tensors[0]:
        raise TypeError(f"fits={text!r} must begin with '{tensors[0]}', and name tensors in this order: {tensors}")
    first = entries[tensors[0]].dtype
    results = tuple(w.strip() for w in declared_results.split(",")) if arrow else (first,)
    for words in (*(e.dtype for e in entries.values()), *results):
        if words not in entries and not all(w in WORDS for w in words.split("|")):
            raise TypeError(f"fits={text!r}: unknown dtype or tensor '{words}'")
    for size in (s for e in entries.values() for s in e.sizes or ()):
        if not _SIZE.fullmatch(size):
            raise TypeError(f"fits={text!r}: invalid size '{size}'")
    return Fits({n: entries.get(n, Entry(n, first)) for n in tensors}, results)


def _listed(words: str) -> tuple[DType, ...]:
    return tuple(d for w in words.split("|") for d in WORDS[w])


def _words(dtypes: Sequence[DType]) -> str:
    return " or ".join(d.value for d in dtypes if d is not DType.Q8)


def _tensors(value: Any) -> Iterator[Tensor]:
    for t in value if isinstance(value, list) else [value]:
        if isinstance(t, Tensor):
            yield t


def _fit(shape: Sequence[int], entry: Sequence[str], sizes: dict[str, int]) -> bool:
    """Return True if a shape fits an entry; add the sizes of names that occur for the first time."""
    if "..." in entry:
        k = entry.index("...")
        rest = len(entry) - k - 1
        if len(shape) < k + rest:
            return False
        return _fit(shape[:k], entry[:k], sizes) and _fit(shape[len(shape) - rest :], entry[k + 1 :], sizes)
    if len(shape) != len(entry):
        return False
    return all(_fits(n, size, sizes) for n, size in zip(shape, entry))


def _fits(n: int, size: str, sizes: dict[str, int]) -> bool:
    if size == "_":
        return True
    name = size.removeprefix(">=")
    expected = int(name) if name.isdigit() else sizes.setdefault(name, n)
    return n == expected if name == size else n >= expected
