"""What generation adds to a language model: the next token is chosen on the GPU, in the same plan as the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...dtypes import DType
from ...format import Program
from ...graph.linear import Var
from ...sampling import MODES, PENALTY, SETTINGS
from ..card import Card
from ..door import Openable, Source
from ..kinds import LANGUAGE
from .sampling import words_of
from .signature import METHOD, Signature, read_signature

if TYPE_CHECKING:
    from ...compiler.append import Tail
    from ...plan import Bundle

GENERATE = "ptegpu.generate"  # the name of `forward` with this, in a bundle
SERVE = "ptegpu.serve"  # the name of `forward` for many sequences
LIMITS = "ptegpu.serve.limits"  # a constant method beside it: the pages of its caches, the most rows of a run


def sampling_of(signature: Signature) -> Callable[[Tail], None]:
    """The last logits become a token; the logits of given tokens become their log-probabilities."""

    from ...ops.sample import SAMPLE, SCORE
    from ...ops.views import VIEW

    def append(tail: Tail) -> None:
        logits = tail.outputs[-1]
        assert isinstance(logits, Var)
        settings = tail.input("settings", DType.I32, (len(SETTINGS),))
        seen = tail.input("seen", DType.I32, (words_of(signature.vocabulary),), dynamic=True)
        how = tail.input("how")
        sampled = [(DType.I32, (1,)), (DType.F32, (1,))]
        token, logprob = tail.call(SAMPLE, logits, settings, seen, how, gives=sampled)
        rows = (1, signature.chunk if signature.every else 1)
        targets = tail.input("targets", DType.I32, rows, dynamic=True)
        (scores,) = tail.call(SCORE, logits, targets, gives=[(DType.F32, rows)])
        (following,) = tail.call(VIEW, token, (1, 1), gives=[(DType.I32, (1, 1))])
        tail.outputs = [following, logprob, scores]

    return append


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


def plans(file: Program, card: Card) -> dict[str, Any]:
    """Return what `ptegpu.compile` is given for a language model: the method that generates, and its sizes."""
    signature = read_signature(file, card)
    return {"also": {GENERATE: (METHOD, sampling_of(signature))}, "points": {GENERATE: points_of(signature)}}


def compile(
    source: Openable, data: Any = None, targets: Any = None, *, many: Many | None = None, **options: Any
) -> Bundle:
    """Compile a language model to a bundle that `LanguageModel` and `ptegpu generate` take, with its own methods.

    With `many`, `BatchEngine` and `ptegpu serve` take it for many sequences at once. Raises UnsupportedProgram if it is
    no language model, or cannot do that. See `ptegpu.compile` for the arguments.
    """
    from ...compiler import compile as compile_program
    from ...plan import Target

    found = Source.of(source, kinds=LANGUAGE)
    planned = plans(found.file, found.card)
    if many is not None:
        wanted = [Target()] if targets is None else [targets] if isinstance(targets, Target) else [*targets]
        limit = min(min(t.max_binding_bytes, t.max_buffer_bytes) for t in wanted)
        half = any(t.cache == "f16" for t in wanted) or options.get("cache") == "f16"
        more, planned["points"][SERVE] = _serving(read_signature(found.file, found.card), many, limit, half)
        planned["also"] |= more
    return compile_program(found.file, data, targets, **planned, **options)


def _serving(
    signature: Signature, many: Many, limit: int, half: bool
) -> tuple[dict[str, tuple[str, Callable[[Tail], None]]], Sequence[Mapping[str, int]]]:
    """`forward` for many sequences and its limits, as further methods; the sizes of the former."""
    from .ragged import serving
    from .runners import check_chunk, pages_of
    from .runners import points_of as points_of_many

    check_chunk(signature)
    rows = min(many.rows, signature.chunk)
    sequences = min(many.sequences, rows)
    pages = 0

    def count(sizes: Sequence[int]) -> int:
        nonlocal pages
        pages = pages_of(signature, sequences, sizes, many.memory, limit, half)
        return pages

    def limits(tail: Tail) -> None:
        tail.linear.inputs, tail.linear.code, tail.linear.input_tree = [], [], ""
        tail.outputs = [pages, rows]  # known by now: methods are made in order

    also = {SERVE: (METHOD, serving(signature, count, sequences)), LIMITS: (METHOD, limits)}
    return also, points_of_many(signature, rows, sequences)
