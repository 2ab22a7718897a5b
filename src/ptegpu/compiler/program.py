"""From a program to a bundle, without a device: cut methods into stretches, build graphs, plan each for targets."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from ..dtypes import DType
from ..errors import ExecutionError, InvalidInput, InvalidProgram, ShapeError, UnsupportedProgram
from ..format import Method as FileMethod
from ..format import Program as File
from ..format import read_program
from ..graph.flat import FlatMethod
from ..graph.graph import Sym
from ..graph.importer import NamedData, import_method
from ..limits import Budget, Limits, has_read, spend
from ..ops import REGISTRY
from ..passes.memory import ConstantKey
from ..plan.bundle import Bundle
from ..plan.method import Call, CompiledMethod, Host, Item, Jump, Run, Var, variables
from ..plan.target import Target
from ..portable.host import on_host
from ..printing import shown
from ..progress import Progress
from .append import Append, append_calls
from .build import Joined
from .data import Data, Source, named_data
from .dims import check_dims
from .join import Join, join, read_by, written_by
from .order import writes
from .partition import Item as Part
from .partition import Stretch, mutates, partition
from .partition import cut as cut_code
from .planner import Planner, Points, Sizes
from .widen import widen
from .zero_tests import ask_factors

MOST_EXACT_BYTES = 1 << 20  # constants of a stretch that the host may have to run


@dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """A method as stretches and host instructions, each stretch with its graph."""

    flat: FlatMethod
    items: Sequence[Part]
    joined: Join


def plan_program(
    source: Source | BinaryIO | File,
    data: Data = None,
    targets: Sequence[Target] = (Target(),),
    sizes: Sizes | None = None,
    *,
    methods: str | Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
    also: Mapping[str, tuple[str, Append]] | None = None,
    points: Mapping[str, Points] | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Bundle:
    """Return a program as a bundle for `targets`. See `ptegpu.compile`, which also plans what the program's kind needs.

    `also` makes further methods: by their names, the method that each is made from, and what is appended to it.
    """
    budget = Budget(limits)
    with budget.spending("compiling it"):
        file = read_source(source)
    made, planners = [], {}
    for number, target in enumerate(targets):  # planning splits constants: each target begins anew
        with budget.copy().spending("compiling it"):
            cuts = cut_methods(file, data, methods, append, also)
            for name in points or ():
                if name not in cuts:
                    raise no_method(name, cuts)
            outers, found = plan_methods(cuts, target, sizes, points, progress, ahead=True)
        made.append(outers)
        if number == 0:
            planners = found
    return Bundle(file, tuple(targets), tuple(made), planners)


def read_source(source: Source | BinaryIO | File) -> File:
    """Return the program in a path, in bytes, or in an open file; one that was read already, as it is."""
    if isinstance(source, File):
        has_read(source.nbytes)
        return source
    given: Any = source.read() if hasattr(source, "read") else source
    if not isinstance(given, str | os.PathLike | bytes | bytearray | memoryview):
        raise InvalidInput(f"a program is a path, bytes or a file open for reading bytes, not {type(source).__name__}")
    return read_program(given)


def cut_methods(
    file: File,
    data: Data = None,
    methods: str | Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
    also: Mapping[str, tuple[str, Append]] | None = None,
) -> dict[str, Cut]:
    """The methods, cut and joined; UnsupportedProgram lists what none of them can do."""
    named = named_data(file, data)
    names = [m.name for m in file.methods]
    wanted = names if methods is None else [methods] if isinstance(methods, str) else [*methods]
    tails = append or {}
    more = also or {}
    for name in (*wanted, *tails, *(of for of, _ in more.values())):
        if name not in names:
            raise no_method(name, names)
    by_name = {m.name: m for m in file.methods}
    made = {name: (by_name[name], tails.get(name)) for name in names if name in wanted}
    made |= {name: (by_name[of], tail) for name, (of, tail) in more.items()}
    spend("plans", len(made), "the program")
    found = {}
    problems: list[str] = []
    for name, (method, tail) in made.items():
        try:
            found[name] = cut_method(method, named, file.path, tail)
        except UnsupportedProgram as e:
            problems += e.args
    if problems:
        raise UnsupportedProgram(*problems)
    return found


def no_method(name: str, names: Iterable[str]) -> KeyError:
    return KeyError(shown(f"no method {name!r}; the program has {', '.join(names) or 'none'}"))


def cut_method(
    method: FileMethod,
    named: NamedData,
    path: str | None,
    append: Append | None = None,
    unsupported: Counter[str] | None = None,
) -> Cut:
    """One method, cut and joined. Calls that no kernel serves are counted in `unsupported`, if given, or raise."""
    flat = import_method(method, named, mutates, path)
    check_dims(flat, path)
    widen(flat)
    ask_factors(flat)
    if append is not None:
        append_calls(flat, append)
    if unsupported is None:
        items = partition(flat)
    else:
        items, found = cut_code(flat)
        unsupported.update(found)
    spend("plans", max(0, sum(isinstance(i, Stretch) for i in items) - 1), f"method {method.name}")
    return Cut(flat, items, join(flat, items))


def plan_methods(
    cuts: Mapping[str, Cut],
    target: Target,
    sizes: Sizes | None = None,
    points: Mapping[str, Points] | None = None,
    progress: Progress | None = None,
    names: dict[ConstantKey, str] | None = None,
    *,
    ahead: bool = False,
) -> tuple[dict[str, CompiledMethod], dict[tuple[str, int], Planner]]:
    """Each method planned for a target, and what traces its plans further. `names` are those that constants have.

    With `ahead`, plans are made to be saved: see `Planner`.
    """
    _check_names(cuts, sizes or {})
    names = {} if names is None else names
    outers, planners = {}, {}
    total, done = sum(len(c.joined.graphs) for c in cuts.values()), 0
    for name, cut in cuts.items():
        mine: dict[int, Planner] = {}
        for k, joined in cut.joined.graphs.items():
            if progress is not None:
                progress(joined.graph.name, done, total)
            dynamic = [v.dynamic or v.dtype is None for v in joined.inputs]
            planner = Planner(joined.graph, target, dynamic, names, sizes, (points or {}).get(name, ()), ahead=ahead)
            try:
                mine[k] = planner.cover()
            except (ShapeError, ExecutionError) as e:  # at every size
                raise InvalidProgram(str(e)) from e
            planners[name, len(mine) - 1] = planner
            done += 1
        outers[name] = _compiled(name, cut, mine)
    if target.cache == "f16" and not any(p.halved for p in planners.values()):
        raise InvalidInput('cache="f16" needs key-value caches in float32 that only attention reads: there are none')
    return outers, planners


def _check_names(cuts: Mapping[str, Cut], sizes: Sizes) -> None:
    """That something has these sizes."""
    known: list[str] = []
    for joined in (j for c in cuts.values() for j in c.joined.graphs.values()):
        for var, value in zip(joined.inputs, joined.graph.inputs, strict=True):
            if isinstance(value, Sym):
                known.append(value.name)
            elif var.dynamic:
                known += [f"{value.name}[{d}]" for d in range(len(value.max_shape))]
    for name in sizes:
        if name not in known:
            may = ", ".join(dict.fromkeys(known)) or "none"
            raise InvalidInput(f"the program has no size {name!r} that may change; those that may: {may}")


def _compiled(name: str, cut: Cut, planners: Mapping[int, Planner]) -> CompiledMethod:
    flat, parts = cut.flat, cut.items
    starts = [part.start for part in parts]
    items: list[Item] = []
    numbers = {k: n for n, k in enumerate(planners)}
    plans = {k: planner.plan() for k, planner in planners.items()}
    for k, part in enumerate(parts):
        if isinstance(part, Stretch):
            joined = cut.joined.graphs[k]
            ends = tuple(joined.inputs), tuple(joined.outputs), tuple(cut.joined.read[k])
            checked = any(v.dtype is DType.I64 and not i.index for v, i in zip(joined.inputs, plans[k].inputs))
            exact = _exact(part, joined, cut.joined.states[k]) if checked else ()
            items.append(Run(numbers[k], *ends, exact))
            continue
        instruction = part.instruction
        by_shape = isinstance(instruction, Call) and _by_shape(instruction)
        if isinstance(instruction, Jump):
            instruction = replace(instruction, target=bisect_left(starts, instruction.target))
        items.append(Host(instruction, part.by_size, by_shape))
    inner = {v for s in cut.joined.states.values() for v in s}
    touched = (v for i in flat.code if isinstance(i, Call) for v in (*variables(i.args), *i.outs) if v.kind == "state")
    states = tuple(dict.fromkeys(v for v in touched if v not in inner))
    early = [p for p in parts if not isinstance(p, Stretch) and p.by_size]
    others = [p for p in parts if isinstance(p, Stretch) or not p.by_size]
    read = {v for p in others for v in read_by(p)}.union(*map(variables, flat.outputs))
    kept = tuple(v for p in early for v in written_by(p) if v in read)
    written = {v for p in parts for v in written_by(p)}
    given = tuple(v for v in flat.inputs if isinstance(v, Var) and v not in written)
    return CompiledMethod(
        name,
        tuple(flat.inputs),
        tuple(flat.outputs),
        flat.input_tree,
        flat.output_tree,
        tuple(items),
        tuple(plans.values()),
        states,
        kept,
        given,
    )


def _exact(stretch: Stretch, joined: Joined, states: set[Var]) -> tuple[Host, ...]:
    """Return a stretch's calls for the host, for int64 inputs beyond 32 bits; empty where it cannot or should not run.

    It cannot run what has no NumPy kernel, nor what keeps a state on the GPU, nor delegates, whose ints have 32 bits.
    It should not where the bundle would have to hold weights for it.
    """
    used = {v for c in stretch.calls for v in variables(c.args)}
    nbytes = sum(v.data.nbytes for v in used if v.kind == "constant" and v.data is not None)
    served = all(on_host(c) and len(writes(c)) == len(c.outs) for c in stretch.calls)
    known = {v for c in stretch.calls for v in c.outs}.issuperset(joined.outputs)
    delegated = any(v.narrowed for v in (*used, *(v for c in stretch.calls for v in c.outs)))
    if states or delegated or not served or not known or nbytes > MOST_EXACT_BYTES:
        return ()
    return tuple(Host(c, by_shape=_by_shape(c)) for c in stretch.calls)


def _by_shape(call: Call) -> bool:
    definition = REGISTRY.get(call.op)
    return definition is not None and definition.by_shape
