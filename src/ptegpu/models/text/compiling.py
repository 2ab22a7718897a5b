"""The methods and sizes that text generation adds to a program: sampling for one sequence, and a form for several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...dtypes import BLOCK, DType
from ...errors import UnsupportedProgram
from ...format import ProgramFile
from ...plan import CACHE_TYPES, Bundle, Cache, Var
from ...sampling import MODES, PENALTY, words_of
from ..card import Card
from ..kinds import Additions
from .signature import METHOD, TextSignature, read_signature
from .speculation import MOST

if TYPE_CHECKING:
    from ...compiler import Append, Tail
    from ...compiler.decoding import Count
    from ...plan import Target

GENERATE = "ptegpu.generate"  # `forward` with sampling, in a bundle
SERVE = "ptegpu.serve"  # `forward` for several sequences
LIMITS = "ptegpu.serve.limits"  # a constant method: the pages of the caches, and the most rows of a run


class ServeSizes(NamedTuple):
    """The limits of a bundle for several sequences."""

    sequences: int = 64
    memory: int = 1 << 30  # upper bound for caches, in bytes
    rows: int = 512  # of a run; fewer if the model takes fewer


def sampling_of(signature: TextSignature) -> Append:
    """Return what appends the choice of the next token to `forward`."""
    from ...compiler.decoding import sampling

    return sampling(signature.vocabulary, signature.chunk if signature.every else 1)


def verifying_of(signature: TextSignature) -> Append:
    """Return what turns `forward` into a method that chooses a token after each of several rows."""
    from ...compiler.decoding import verifying

    return verifying(signature.vocabulary, signature.chunk)


def serving_of(signature: TextSignature, pages: Count, sequences: int) -> Append:
    """Return what turns `forward` into a method for several sequences, whose caches have `pages` in all."""
    from ...compiler.decoding import serving

    return serving(signature.vocabulary, signature.context, signature.chunk, pages, sequences)


def plans(file: ProgramFile, card: Card) -> Additions:
    """Return the method that generates text, and its sizes."""
    signature = read_signature(file, card)
    return Additions({GENERATE: points_of(signature)}, {GENERATE: (METHOD, sampling_of(signature))})


def serving_plans(file: ProgramFile, card: Card, sizes: ServeSizes, targets: Sequence[Target]) -> Additions:
    """Return the methods that generate text, for one sequence and for several, and their sizes."""
    signature, single = read_signature(file, card), plans(file, card)
    check_chunk(signature)
    rows = min(sizes.rows, signature.chunk)
    sequences = min(sizes.sequences, rows)
    limit = min(min(t.max_binding_bytes, t.max_buffer_bytes) for t in targets)
    widest = max((t.cache for t in targets), key=lambda cache: CACHE_TYPES[cache].nbytes(BLOCK))
    pages = 0

    def count(page_sizes: Sequence[int]) -> int:
        nonlocal pages
        pages = pages_of(signature, sequences, page_sizes, sizes.memory, limit, widest)
        return pages

    def limits(tail: Tail) -> None:
        tail.flat.inputs, tail.flat.code, tail.flat.input_tree = [], [], ""
        tail.outputs = [pages, rows]  # methods are compiled in order, so `count` was called before

    also = {SERVE: (METHOD, serving_of(signature, count, sequences)), LIMITS: (METHOD, limits)}
    return Additions({**single.points, SERVE: serving_points(signature, rows, sequences)}, {**single.also, **also})


def points_of(signature: TextSignature) -> Sequence[Mapping[str, int]]:
    """Return the sizes to plan for: prompts of every length, with and without scores, and every kind of sampling."""
    words = words_of(signature.vocabulary)
    lengths = range(1, signature.chunk + 1)

    def point(length: int, targets: int, flags: int) -> dict[str, int]:
        seen_words = words if flags & PENALTY else 1
        rows = {"input 2[1]": length, "input 3[1]": length} if signature.pictures else {}
        return rows | {"input 0[1]": length, "targets[1]": targets, "how": flags, "seen[0]": seen_words}

    points = [point(n, 0, flags) for n in (1, 2, signature.chunk) for flags in MODES if n <= signature.chunk]
    points += [point(n, 0, 1) for n in lengths] + [point(n, 0, 0) for n in lengths]
    return points + [point(n, n if signature.every else 1, 0) for n in lengths]


def verifying_points(signature: TextSignature) -> list[dict[str, int]]:
    """Return the sizes of runs that verify proposals: every number of rows, with and without a penalty.

    They include the least and the largest position, because buffers are made for these points.
    """
    words, most = words_of(signature.vocabulary), min(MOST + 1, signature.chunk)

    def point(rows: int, words: int) -> dict[str, int]:
        names = ["input 0[1]", "wanted[0]", "settings[0]", "seen[0]"]
        names += ["input 2[1]", "input 3[1]"] if signature.pictures else []
        position = 0 if words else signature.context - most
        return {"seen[1]": words, "input 1": position} | dict.fromkeys(names, rows)

    return [point(rows, seen_words) for seen_words in (0, words) for rows in range(2, most + 1)]


def serving_points(signature: TextSignature, rows: int, sequences: int) -> list[dict[str, int]]:
    """Return the sizes to plan for: every number of rows and of sampled rows, with and without a penalty.

    If all rows are sampled, each belongs to another sequence, or some are proposals.
    """
    words = words_of(signature.vocabulary)
    sizes = [(n, sampled) for n in range(1, rows + 1) for sampled in {1, min(n, sequences)}]
    sizes += [(n, sampled) for sampled in range(1, sequences + 1) for n in {sampled, rows}]

    def point(n: int, sampled: int, words: int, single: int) -> dict[str, int]:
        counts = {f"{name}[0]": sampled for name in ("wanted", "settings", "seen")}
        return {"input 0[1]": n, "rows[0]": n, "seen[1]": words, "single": single, **counts}

    singles = [(n, sampled, single) for n, sampled in sizes for single in {int(n == sampled), int(n == sampled == 1)}]
    return [point(n, sampled, seen_words, single) for seen_words in (0, words) for n, sampled, single in singles]


def check_chunk(signature: TextSignature) -> None:
    """Raise UnsupportedProgram unless the program can be turned into one for several sequences."""
    if signature.chunk == 1:
        raise UnsupportedProgram("a program that takes one token at a time cannot serve several sequences at once")
    if signature.pictures:
        raise UnsupportedProgram("a program that sees pictures cannot serve several sequences at once")


def bundle_limits(bundle: Bundle) -> tuple[int, int, int]:
    """Return what a bundle was made for: pages of caches, rows of a run, sequences."""
    methods = bundle.methods[0]
    if SERVE not in methods:
        missing = "the bundle has no plans for several sequences at once"
        raise UnsupportedProgram(f"{missing}: `ptegpu compile --serve` makes one that has")
    pages, rows = methods[LIMITS].outputs
    (tables,) = (v for v in methods[SERVE].inputs if isinstance(v, Var) and v.name == "tables")
    assert isinstance(pages, int) and isinstance(rows, int)
    return pages, rows, tables.sizes[0]


def width_of(signature: TextSignature) -> int:
    """Return the pages of a full context."""
    from ...kernels.attention import PAGE

    return -(-signature.context // PAGE)


def pages_of(
    signature: TextSignature, sequences: int, sizes: Sequence[int], memory: int | None, limit: int, cache: Cache
) -> int:
    """Return the number of pages: all that the sequences can use, if memory permits, but at least one full context.

    `sizes` are the bytes of a page of each cache in float32; `cache` is the type in which they are stored. A cache has
    at most `limit` bytes.
    """
    share, of = CACHE_TYPES[cache].nbytes(BLOCK), DType.F32.nbytes(BLOCK)
    count = sequences * width_of(signature)
    if memory is not None:
        count = min(count, memory * of // (share * sum(sizes)))
    return max(width_of(signature), min(count, limit * of // (share * max(sizes))))
