"""Compilation: a program as a bundle, with the plans that programs of its kind need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..limits import Limits
from ..plan import Bundle, Cache, Precision, Target, check_cache, check_precision
from ..progress import Progress
from ..runtime import LoadOptions
from .door import Openable, ProgramSource
from .kinds import KINDS, Additions, resolve

if TYPE_CHECKING:
    from ..compiler import Append
    from .text.compiling import ServeSizes

METHOD = "forward"


def compile(
    source: Openable,
    data: Any = None,
    targets: Target | Sequence[Target] | None = None,
    sizes: Mapping[str, Iterable[int]] | None = None,
    *,
    methods: str | Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
    points: Mapping[str, Sequence[Mapping[str, int]]] | None = None,
    many: ServeSizes | None = None,
    precision: Precision | None = None,
    cache: Cache | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Compile a program to a bundle for `targets` (by default the limits of every browser). Needs no GPU.

    `sizes` are the values to plan for, by name ("input 0[1]": dimension 1 of input 0; "how": an int input); `points`
    are single combinations of sizes, by method. Without either, the plans hold for the sizes that the program's kind
    suggests, else for all possible sizes, or a sample if there are too many. A language model also gets the
    method that generates text, unless `methods` leave out `forward`; with `many`, the one that serves many sequences.
    `precision` and `cache` replace those of the targets. See `ptegpu.load` for the rest.
    """
    from ..compiler import plan_program

    chosen = _targets(targets, precision, cache)
    opened = ProgramSource.of(source, LoadOptions(limits=limits), work="compiling it")
    if opened.bundle is not None:
        raise InvalidInput(f"{opened.name} is a bundle already; compile the program that it was made from")
    names = None if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
    added = _additions(opened, names, many, chosen)
    suggested = {name: p for name, p in added.points.items() if name in added.also or not (sizes or points)}
    return plan_program(
        opened.file,
        data,
        chosen,
        sizes,
        methods=names,
        append=append,
        also=added.also,
        points={**suggested, **(points or {})},
        limits=limits,
        progress=progress,
    )


def _targets(
    targets: Target | Sequence[Target] | None, precision: Precision | None, cache: Cache | None
) -> tuple[Target, ...]:
    chosen = (Target(),) if targets is None else (targets,) if isinstance(targets, Target) else tuple(targets)
    if not chosen:
        raise InvalidInput("a bundle needs at least one target")
    if precision is not None:
        check_precision(precision)
        chosen = tuple(replace(target, precision=precision) for target in chosen)
    if cache is not None:
        check_cache(cache)
        chosen = tuple(replace(target, cache=cache) for target in chosen)
    return chosen


def _additions(
    source: ProgramSource, methods: Sequence[str] | None, many: ServeSizes | None, targets: Sequence[Target]
) -> Additions:
    """Return the additions of the program's kind to its plans; none if `methods` leave out `forward`."""
    if many is not None:
        from .text.compiling import serving_plans

        return serving_plans(source.file, source.card, many, targets)
    row = KINDS[source.card.kind]
    if row.plans is None or (methods and METHOD not in methods):
        return Additions()
    return resolve(row.plans)(source.file, source.card)  # type: ignore[no-any-return]
