"""Bundles of language models, with what generation adds to their methods and the sizes that it runs at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...format import Program
from ...sampling import MODES, PENALTY, words_of
from ..card import Card
from ..kinds import Additions
from .signature import METHOD, Signature, read_signature

if TYPE_CHECKING:
    from ...compiler import Append, Tail
    from ...compiler.ragged import Count
    from ...plan import Target

GENERATE = "ptegpu.generate"  # the name of `forward` with this, in a bundle
SERVE = "ptegpu.serve"  # the name of `forward` for many sequences
LIMITS = "ptegpu.serve.limits"  # a constant method beside it: the pages of its caches, the most rows of a run


def sampling_of(signature: Signature) -> Append:
    """Return what appends the choice of the next token to the model."""
    from ...compiler.sampling import sampling

    return sampling(signature.vocabulary, signature.chunk if signature.every else 1)


def serving_of(signature: Signature, pages: Count, sequences: int) -> Append:
    """Return what makes `forward` a method of many sequences, with that many `pages` of caches in all."""
    from ...compiler.ragged import serving

    return serving(signature.vocabulary, signature.context, signature.chunk, pages, sequences)


def points_of(signature: Signature) -> Sequence[Mapping[str, int]]:
    """The sizes that generation runs at: prompts of every length, with and without scores; and every way to sample."""
    words = words_of(signature.vocabulary)
    lengths = range(1, signature.chunk + 1)

    def point(length: int, targets: int, how: int) -> dict[str, int]:
        seen = words if how & PENALTY else 1
        rows = {"input 2[1]": length, "input 3[1]": length} if signature.pictures else {}
        return rows | {"input 0[1]": length, "targets[1]": targets, "how": how, "seen[0]": seen}

    found = [point(n, 0, how) for n in (1, 2, signature.chunk) for how in MODES if n <= signature.chunk]
    found += [point(n, 0, 1) for n in lengths] + [point(n, 0, 0) for n in lengths]
    return found + [point(n, n if signature.every else 1, 0) for n in lengths]


class Many(NamedTuple):
    """What a bundle for `BatchEngine` is made for."""

    sequences: int = 64
    memory: int = 1 << 30  # bytes of caches, at most
    rows: int = 512  # of a run, where the model takes so many


def plans(file: Program, card: Card) -> Additions:
    """Return the method that generates text, and its sizes."""
    signature = read_signature(file, card)
    return Additions({GENERATE: points_of(signature)}, {GENERATE: (METHOD, sampling_of(signature))})


def serving_plans(file: Program, card: Card, many: Many, targets: Sequence[Target]) -> Additions:
    """Return the methods that generate text, for one sequence and for many, and their sizes."""
    signature, alone = read_signature(file, card), plans(file, card)
    limit = min(min(t.max_binding_bytes, t.max_buffer_bytes) for t in targets)
    also, points = _serving(signature, many, limit, any(t.cache == "f16" for t in targets))
    return Additions({**alone.points, SERVE: points}, {**alone.also, **also})


def _serving(
    signature: Signature, many: Many, limit: int, half: bool
) -> tuple[dict[str, tuple[str, Append]], Sequence[Mapping[str, int]]]:
    """`forward` for many sequences and its limits, as further methods; the sizes of the former."""
    from .paged import check_chunk, pages_of
    from .paged import points_of as points_of_many

    check_chunk(signature)
    rows = min(many.rows, signature.chunk)
    sequences = min(many.sequences, rows)
    pages = 0

    def count(sizes: Sequence[int]) -> int:
        nonlocal pages
        pages = pages_of(signature, sequences, sizes, many.memory, limit, half)
        return pages

    def limits(tail: Tail) -> None:
        tail.flat.inputs, tail.flat.code, tail.flat.input_tree = [], [], ""
        tail.outputs = [pages, rows]  # known by now: methods are made in order

    also = {SERVE: (METHOD, serving_of(signature, count, sequences)), LIMITS: (METHOD, limits)}
    return also, points_of_many(signature, rows, sequences)
