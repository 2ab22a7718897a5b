"""Compilation of a program, without a device: methods are cut into stretches, and their graphs planned for targets."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from ..dtypes import BLOCK, DType
from ..errors import ExecutionError, InvalidInput, InvalidProgram, ShapeError, UnsupportedProgram
from ..format import FileMethod as FileMethod
from ..format import ProgramFile as File
from ..format import read_program
from ..format.ptd import NamedTensor, read_data
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
from .int64 import replace_zero_tests, restore_int64
from .order import writes
from .partition import Part, Stretch, check_dims, mutates, partition
from .partition import cut as cut_code
from .planner import Planner, Points, Sizes
from .stretches import StretchGraph, join, read_by, written_by

MAX_EXACT_BYTES = 1 << 20  # constants of a stretch that the host may have to run

Source = str | os.PathLike[str] | bytes | bytearray | memoryview
Data = Source | Mapping[str, memoryview] | Sequence[Source | Mapping[str, memoryview]] | None


@dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """A method as stretches and host instructions, each stretch with its graph."""

    flat: FlatMethod
    items: Sequence[Part]
    graphs: Mapping[int, StretchGraph]  # by the positions of stretches among the items


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

    `also` adds methods: their names, each with the method it is derived from and the calls to append.
    """
    budget = Budget(limits)
    with budget.spending("compiling it"):
        file = read_source(source)
    compiled, planners = [], {}
    for number, target in enumerate(targets):  # planning splits constants, so each target starts from the file
        with budget.copy().spending("compiling it"):
            cuts = cut_methods(file, data, methods, append, also)
            for name in points or ():
                if name not in cuts:
                    raise no_method(name, cuts)
            compiled_methods, target_planners = plan_methods(cuts, target, sizes, points, progress, ahead=True)
        compiled.append(compiled_methods)
        if number == 0:
            planners = target_planners
    return Bundle(file, tuple(targets), tuple(compiled), planners)


def read_source(source: Source | BinaryIO | File) -> File:
    """Return the program in a path, in bytes or in an open file; one that was already read is returned as it is."""
    if isinstance(source, File):
        has_read(source.nbytes)
        return source
    content: Any = source.read() if hasattr(source, "read") else source
    if not isinstance(content, str | os.PathLike | bytes | bytearray | memoryview):
        name = type(source).__name__
        raise InvalidInput(f"invalid program {name}: expected a path, bytes or a file open for reading bytes")
    return read_program(content)


def read_all(data: Data) -> list[Mapping[str, Any]]:
    """Return the contents of `.ptd` files, and of mappings from keys to bytes or contiguous arrays."""
    if data is None:
        return []
    single = isinstance(data, str | os.PathLike | bytes | bytearray | memoryview | Mapping)
    if not single and not isinstance(data, Sequence):
        raise InvalidInput(f"invalid data {type(data).__name__}: expected .ptd files, or mappings to bytes")
    sources: Sequence[Any] = [data] if single else data  # type: ignore[list-item, assignment]
    return [_bytes_of(source) if isinstance(source, Mapping) else read_data(source) for source in sources]


def _bytes_of(contents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the contents of a mapping as bytes, and count them as read."""
    views: dict[str, Any] = {}
    for key, content in contents.items():
        if isinstance(content, NamedTensor):
            views[key] = content
            continue
        try:
            view = memoryview(content)
            views[key] = view.cast("B") if view.nbytes else memoryview(b"")
        except (TypeError, ValueError):
            kind = type(content).__name__
            raise InvalidInput(f"invalid data {key!r} of type {kind}: expected bytes or a contiguous array") from None
        has_read(view.nbytes)
    return views


def named_data(file: File, data: Data) -> NamedData:
    """Return the named data of the program and of `data`; raise InvalidProgram for a key in both."""
    merged: dict[str, Any] = dict(file.named_data)
    for contents in read_all(data):
        for key, tensor in contents.items():
            if key in merged:
                raise InvalidProgram(f"two files have named data with the key {key!r}", path=file.path)
            merged[key] = tensor
    return merged


def cut_methods(
    file: File,
    data: Data = None,
    methods: str | Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
    also: Mapping[str, tuple[str, Append]] | None = None,
) -> dict[str, Cut]:
    """Return the methods, cut and joined; raise UnsupportedProgram with all unsupported operators."""
    named = named_data(file, data)
    by_name = {m.name: m for m in file.methods}
    selected = [*by_name] if methods is None else [methods] if isinstance(methods, str) else [*methods]
    tails, derived = append or {}, also or {}
    for name in (*selected, *tails, *(original for original, _ in derived.values())):
        if name not in by_name:
            raise no_method(name, by_name)
    jobs = {name: (method, tails.get(name)) for name, method in by_name.items() if name in selected}
    jobs |= {name: (by_name[original], tail) for name, (original, tail) in derived.items()}
    spend("plans", len(jobs), "the program")
    cuts = {}
    problems: list[str] = []
    for name, (method, tail) in jobs.items():
        try:
            cuts[name] = cut_method(method, named, file.path, tail)
        except UnsupportedProgram as e:
            problems += e.args
    if problems:
        raise UnsupportedProgram(*problems)
    return cuts


def no_method(name: str, names: Iterable[str]) -> KeyError:
    return KeyError(shown(f"no method {name!r}; the program has {', '.join(names) or 'none'}"))


def cut_method(
    method: FileMethod,
    named: NamedData,
    path: str | None,
    append: Append | None = None,
    unsupported: Counter[str] | None = None,
) -> Cut:
    """Return one method, cut and joined. With `unsupported`, unsupported calls are counted there instead of raised."""
    flat = import_method(method, named, mutates, path)
    check_dims(flat, path)
    restore_int64(flat)
    replace_zero_tests(flat)
    if append is not None:
        append_calls(flat, append)
    if unsupported is None:
        items = partition(flat)
    else:
        items, counts = cut_code(flat)
        unsupported.update(counts)
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
    tight: bool = False,
) -> tuple[dict[str, CompiledMethod], dict[tuple[str, int], Planner]]:
    """Return each method planned for a target, and the planners of its plans. `names` has the names of constants.

    With `ahead`, plans are made to be saved; with `tight`, they take less memory: see `Planner`.
    """
    _check_names(cuts, sizes or {})
    names = {} if names is None else names
    compiled, planners = {}, {}
    total, done = sum(len(c.graphs) for c in cuts.values()), 0
    for name, cut in cuts.items():
        method_planners: dict[int, Planner] = {}
        for k, joined in cut.graphs.items():
            if progress is not None:
                progress(joined.graph.name, done, total)
            dynamic = [v.dynamic or v.dtype is None for v in joined.inputs]
            method_points = (points or {}).get(name, ())
            planner = Planner(joined.graph, target, dynamic, names, sizes, method_points, ahead=ahead, tight=tight)
            try:
                method_planners[k] = planner.cover()
            except (ShapeError, ExecutionError) as e:  # at every size
                raise InvalidProgram(str(e)) from e
            planners[name, len(method_planners) - 1] = planner
            done += 1
        compiled[name] = _compiled(name, cut, method_planners)
    if target.cache != "f32" and not any(p.narrowed for p in planners.values()):
        blocks = f", with a multiple of {BLOCK} elements in each position" if target.cache == "q8" else ""
        needed = f"key-value caches in float32 that only attention reads{blocks}"
        raise InvalidInput(f'cache="{target.cache}" needs {needed}: there are none')
    return compiled, planners


def _check_names(cuts: Mapping[str, Cut], sizes: Sizes) -> None:
    """Raise InvalidInput unless every name in `sizes` is a dynamic size."""
    names: list[str] = []
    for joined in (j for c in cuts.values() for j in c.graphs.values()):
        for var, value in zip(joined.inputs, joined.graph.inputs, strict=True):
            if isinstance(value, Sym):
                names.append(value.name)
            elif var.dynamic:
                names += [f"{value.name}[{d}]" for d in range(len(value.max_shape))]
    for name in sizes:
        if name not in names:
            listed = ", ".join(dict.fromkeys(names)) or "none"
            raise InvalidInput(f"unknown dynamic size {name!r}; dynamic sizes are: {listed}")


def _compiled(name: str, cut: Cut, planners: Mapping[int, Planner]) -> CompiledMethod:
    flat, parts = cut.flat, cut.items
    starts = [part.start for part in parts]
    items: list[Item] = []
    numbers = {k: n for n, k in enumerate(planners)}
    plans = {k: planner.plan() for k, planner in planners.items()}
    for k, part in enumerate(parts):
        if isinstance(part, Stretch):
            joined = cut.graphs[k]
            checked = any(v.dtype is DType.I64 and not i.index for v, i in zip(joined.inputs, plans[k].inputs))
            exact = _exact(part, joined) if checked else ()
            items.append(Run(numbers[k], tuple(joined.inputs), tuple(joined.outputs), joined.on_host, exact))
            continue
        instruction = part.instruction
        by_shape = isinstance(instruction, Call) and _by_shape(instruction)
        if isinstance(instruction, Jump):
            instruction = replace(instruction, target=bisect_left(starts, instruction.target))
        items.append(Host(instruction, part.by_size, by_shape))
    inner = {v for joined in cut.graphs.values() for v in joined.states}
    touched = (v for i in flat.code if isinstance(i, Call) for v in (*variables(i.args), *i.outs) if v.kind == "state")
    states = tuple(dict.fromkeys(v for v in touched if v not in inner))
    early = [p for p in parts if not isinstance(p, Stretch) and p.by_size]
    others = [p for p in parts if isinstance(p, Stretch) or not p.by_size]
    read = {v for p in others for v in read_by(p)}.union(*map(variables, flat.outputs))
    results = tuple(v for p in early for v in written_by(p) if v in read)
    written = {v for p in parts for v in written_by(p)}
    unwritten = tuple(v for v in flat.inputs if isinstance(v, Var) and v not in written)
    signature = tuple(flat.inputs), tuple(flat.outputs), flat.input_tree, flat.output_tree
    return CompiledMethod(name, *signature, tuple(items), tuple(plans.values()), states, results, unwritten)


def _exact(stretch: Stretch, joined: StretchGraph) -> tuple[Host, ...]:
    """Return a stretch's calls for the host, for int64 inputs beyond 32 bits; empty if it cannot or should not run.

    It cannot run calls without NumPy kernels, states that live on the GPU, or delegates, whose ints have 32 bits.
    It should not run if the bundle would have to store weights for it.
    """
    used = {v for c in stretch.calls for v in variables(c.args)}
    nbytes = sum(v.data.nbytes for v in used if v.kind == "constant" and v.data is not None)
    served = all(on_host(c) and len(writes(c)) == len(c.outs) for c in stretch.calls)
    complete = {v for c in stretch.calls for v in c.outs}.issuperset(joined.outputs)
    delegated = any(v.narrowed for v in (*used, *(v for c in stretch.calls for v in c.outs)))
    if joined.states or delegated or not served or not complete or nbytes > MAX_EXACT_BYTES:
        return ()
    return tuple(Host(c, by_shape=_by_shape(c)) for c in stretch.calls)


def _by_shape(call: Call) -> bool:
    definition = REGISTRY.get(call.op)
    return definition is not None and definition.by_shape
