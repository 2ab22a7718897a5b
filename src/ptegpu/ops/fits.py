"""What an operator's tensors must be, in one line where it is registered; checked before its rule runs.

    @op("aten.native_group_norm.default", fits="x float[n, c, ...], weight [c], bias [c]")
    @op("aten.searchsorted.Tensor", fits="sequence number, values sequence, sorter int32 -> int32")

An entry names a parameter, then its dtype, then its sizes in brackets; the latter two may be left out.

- A dtype is `float`, `int`, `number` (either), `any`, or one such as `int8`; `a|b` is one or the other; the name of an
  earlier parameter asks for its kind: floats with floats, ints with ints. A tensor that has none, or no entry, is of
  the first one's dtypes. What the first tensor has to be decides where a call runs: the host takes the others.
- A size is a name, which stands for one number in all entries, a number, `>=` one of these, or `_` for any; `...` are
  any number of sizes.
- Behind the arrow are the dtypes of results for which the rule names none; the last counts for those that follow.
  Without an arrow they are of the first tensor's dtypes.
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
WORDS |= {d.value: (d,) for d in ON_GPU}
KINDS = (FLOATS, INTS, (DType.BOOL,))
_ENTRY = re.compile(r"\s*(?P<name>\w+)\s*(?P<dtype>[\w|]+)?\s*(?:\[(?P<sizes>[^\]]*)\])?\s*(?:,|$)")
_SIZE = re.compile(r"\.\.\.|_|(>=)?(\w+)")


class Entry(NamedTuple):
    """What one tensor must be."""

    name: str
    dtype: str  # words, or the name of another
    sizes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fits:
    """What the tensors of a call must be."""

    entries: Mapping[str, Entry]
    results: tuple[str, ...]  # dtypes

    @property
    def first(self) -> tuple[DType, ...]:
        """The dtypes of the first tensor."""
        return _listed(next(iter(self.entries.values())).dtype)

    def check_dtypes(self, values: Mapping[str, Any]) -> None:
        """Raise unless those of the arguments fit."""
        for name, entry in self.entries.items():
            wanted = self._dtypes(entry.dtype, values)
            for t in _tensors(values[name]):
                if t.dtype not in wanted:
                    raise InvalidProgram(f"'{name}' is {t!r}, but must be {_words(wanted)}")

    def check_sizes(self, values: Mapping[str, Any]) -> None:
        """Raise unless those of the arguments fit, as they are now."""
        sizes: dict[str, int] = {}
        for name, entry in self.entries.items():
            for t in _tensors(values[name]):
                if entry.sizes is not None and not _fit(t.shape, entry.sizes, sizes):
                    known = ", ".join(f"{k} = {n}" for k, n in sizes.items())
                    wanted = f"[{', '.join(entry.sizes)}]"
                    raise ShapeError(f"'{name}' is {t!r}, but must be {wanted}{known and f' where {known}'}")

    def check_result(self, place: int, out: Tensor, values: Mapping[str, Any]) -> None:
        """Raise unless a result whose dtype the rule leaves to the program fits."""
        wanted = self._dtypes(self.results[min(place, len(self.results) - 1)], values)
        if out.dtype not in wanted:
            raise InvalidProgram(f"the result is {_words(wanted)}, the program says {out.dtype.value}")

    def _dtypes(self, words: str, values: Mapping[str, Any]) -> tuple[DType, ...]:
        if words not in self.entries:
            return _listed(words)
        like = next(_tensors(values[words]), None)
        return ON_GPU if like is None else next(kind for kind in KINDS if like.dtype in kind)


def parsed(text: str, tensors: Sequence[str]) -> Fits:
    """What a declaration says of an operator with these tensor parameters; TypeError if that makes no sense."""
    given, arrow, behind = text.partition("->")
    entries: dict[str, Entry] = {}
    at = 0
    while at < len(given.rstrip()):
        found = _ENTRY.match(given, at)
        if found is None:
            raise TypeError(f"fits={text!r}: cannot read {given[at:]!r}")
        at, sizes = found.end(), found["sizes"]
        first = next(iter(entries.values())).dtype if entries else ""
        dims = None if sizes is None else tuple(s.strip() for s in sizes.split(",") if s.strip())
        entries[found["name"]] = Entry(found["name"], found["dtype"] or first, dims)
    if not entries or [n for n in tensors if n in entries] != list(entries) or next(iter(entries)) != tensors[0]:
        raise TypeError(f"fits={text!r} must begin with '{tensors[0]}', and name tensors in this order: {tensors}")
    first = entries[tensors[0]].dtype
    results = tuple(w.strip() for w in behind.split(",")) if arrow else (first,)
    for words in (*(e.dtype for e in entries.values()), *results):
        if words not in entries and not all(w in WORDS for w in words.split("|")):
            raise TypeError(f"fits={text!r}: '{words}' is no dtype and no tensor")
    for size in (s for e in entries.values() for s in e.sizes or ()):
        if not _SIZE.fullmatch(size):
            raise TypeError(f"fits={text!r}: '{size}' is no size")
    return Fits({n: entries.get(n, Entry(n, first)) for n in tensors}, results)


def _listed(words: str) -> tuple[DType, ...]:
    return tuple(d for w in words.split("|") for d in WORDS[w])


def _words(dtypes: Sequence[DType]) -> str:
    return " or ".join(d.value for d in dtypes)


def _tensors(value: Any) -> Iterator[Tensor]:
    for t in value if isinstance(value, list) else [value]:
        if isinstance(t, Tensor):
            yield t


def _fit(shape: Sequence[int], wanted: Sequence[str], sizes: dict[str, int]) -> bool:
    """Whether a shape is what was wanted; names get their sizes where they come first."""
    if "..." in wanted:
        k = wanted.index("...")
        rest = len(wanted) - k - 1
        if len(shape) < k + rest:
            return False
        return _fit(shape[:k], wanted[:k], sizes) and _fit(shape[len(shape) - rest :], wanted[k + 1 :], sizes)
    if len(shape) != len(wanted):
        return False
    return all(_fits(n, size, sizes) for n, size in zip(shape, wanted))


def _fits(n: int, size: str, sizes: dict[str, int]) -> bool:
    if size == "_":
        return True
    name = size.removeprefix(">=")
    wanted = int(name) if name.isdigit() else sizes.setdefault(name, n)
    return n == wanted if name == size else n >= wanted
