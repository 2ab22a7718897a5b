"""Any `nn.Module` with example inputs to a `.pte`."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils._pytree import tree_leaves

from ..errors import ExportError
from ..files import check_writable
from .backend import torch
from .causes import explained
from .check import Check
from .lowering import FORWARD, Source, ranges
from .pipeline import Exported, Job, Pipeline, S
from .quantize import NONE, check_quantization, has_linear, quantized

DYNAMIC = re.compile(r"(\d+):(\d+)=(\d+)\.\.(\d+)")
MOST_SPECIAL = 2  # PyTorch may say from 2 on, and the program takes 1 as well


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """How to export modules with example inputs."""

    quantize: str = NONE
    delegate: bool = True  # with partitions
    partitioner: Mapping[str, Any] = field(default_factory=dict)  # its options
    check: bool = True


def export(
    module: torch.nn.Module,
    args: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    methods: Mapping[str, Source] | None = None,
    quantize: str = NONE,
    delegate: bool = True,
    options: Mapping[str, Any] | None = None,
    check: bool = True,
) -> bytes:
    """A `.pte` for `module`, also written to `path` if given. Notes on it are warnings.

    `args` are the inputs to trace it with: a tuple, a dict of inputs by name, or a single one; `kwargs` are those by
    name beside a tuple. `dynamic_shapes` are what `torch.export` takes. The module becomes the method `forward`;
    `methods` are others by name. `quantize` is one of `QUANTIZATIONS`. `options` are those of the
    Vulkan/WebGPU partitioner, which is left out if not `delegate`: ptegpu runs such programs on the GPU as well. With
    `check`, the program is run on them and compared with eager PyTorch; see `export_with_account`.
    """
    positional, named = arguments(args, kwargs)
    made = export_with_account(
        Source(module, positional, dynamic_shapes, named),
        path,
        methods=methods,
        quantize=quantize,
        delegate=delegate,
        options=options,
        check=check,
    )
    for note in made.notes:
        warnings.warn(note, stacklevel=2)
    return made.lowered.data


def export_with_account(
    source: Source,
    path: str | os.PathLike[str] | None = None,
    dynamic: Sequence[str] = (),
    *,
    delegate: bool = True,
    options: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    check: bool = True,
    methods: Mapping[str, Source] | None = None,
    quantize: str = NONE,
) -> Exported[None]:
    """The program and notes on it; `dynamic` as `parse_dynamic` takes it, in place of the source's own. `constants`
    become methods that return them, `methods` those that they name, beside `forward`, which is the source.

    Where partitioning fails, or ptegpu cannot run what came of it, the program has no partitions, which ptegpu runs on
    the GPU as well. A program that cannot be run even so, or gives other results than eager PyTorch, is an error, and
    nothing is written.
    """
    if path is not None:
        check_writable(path)
    check_quantization(quantize, delegate)
    wanted = parse_dynamic(dynamic, source.args)
    if wanted:
        source = replace(source, dynamic_shapes=_shapes(wanted, source.args))
    chosen = ModuleOptions(quantize, delegate, options or {}, check)
    job = module_job(_named(source, methods or {}), None, chosen, constants or {})
    pipeline = Pipeline()
    traced = pipeline.trace(job.sources)
    _check_dynamic(traced[FORWARD], wanted, source.args)
    made = pipeline.make(job, traced)
    return made if path is None else pipeline.write(made, path)


def module_job(
    sources: Mapping[str, Source], summary: S, options: ModuleOptions, constants: Mapping[str, Any]
) -> Job[S]:
    """Return the job of modules that run on their example inputs: quantized, and each checked on its own."""
    sources, notes = _quantized(sources, options.quantize)
    check = Check.of_examples(sources) if options.check else None
    return Job(sources, check, summary, constants, options.partitioner, options.delegate, fallback=True, notes=notes)


def _named(source: Source, methods: Mapping[str, Source]) -> dict[str, Source]:
    """Return all methods by name, `forward` first."""
    for name, other in methods.items():
        if name == FORWARD or not name.isidentifier():
            raise ExportError(
                f"methods has {name!r}: give a name that Python takes, other than {FORWARD!r}, the module"
            )
        if not isinstance(other, Source):
            raise ExportError(f"methods[{name!r}] is a {type(other).__name__}: give a ptegpu.export.Source")
    return {FORWARD: source, **methods}


def _quantized(sources: Mapping[str, Source], quantize: str) -> tuple[dict[str, Source], list[str]]:
    """Return the sources with their modules quantized, those without linear layers beside others as they are."""
    modules = {id(s.module): s.module for s in sources.values()}
    notes: list[str] = []
    if quantize != NONE:
        for key, module in ({k: m for k, m in modules.items() if has_linear(m)} or modules.copy()).items():
            modules[key], more = quantized(module, quantize)
            notes += more
    return {name: replace(s, module=modules[id(s.module)]) for name, s in sources.items()}, notes


def arguments(example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named inputs of an example: a tuple, a dict by name, or a single input."""
    if isinstance(example, Mapping) and kwargs is None:
        return (), dict(example)
    return tuple(example) if isinstance(example, tuple | list) else (example,), dict(kwargs or {})


def find_source(name: str) -> Source:
    """Calls `package.module:function`; modules are found in the current folder too."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise ExportError(f"{name!r} is not of the form package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as e:
        if isinstance(e, ModuleNotFoundError) and e.name and f"{module_name}.".startswith(f"{e.name}."):
            raise ExportError(f"there is no module {e.name!r} here or among the installed packages") from None
        raise ExportError(*explained(f"{module_name} cannot be imported", e)) from e
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ExportError(f"{module_name} has no function {function_name!r}")
    try:
        found = function()
    except Exception as e:
        raise ExportError(*explained(f"{name} fails", e)) from e
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not isinstance(found[0], torch.nn.Module):
        raise ExportError(f"{name} must return (nn.Module, inputs) or (nn.Module, inputs, dynamic_shapes)")
    inputs, named = arguments(found[1], None)
    return Source(found[0], inputs, found[2] if len(found) == 3 else None, named)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A dimension that may change."""

    text: str  # as it was asked for
    input: int
    dim: int
    low: int
    high: int


def parse_dynamic(texts: Sequence[str], args: Sequence[Any]) -> list[Dynamic]:
    """From texts such as 0:1=1..64: dimension 1 of input 0 is between 1 and 64."""
    return [_parse_dynamic(text.strip(), args) for text in texts]


def _parse_dynamic(text: str, args: Sequence[Any]) -> Dynamic:
    match = DYNAMIC.fullmatch(text)
    if not match:
        raise ExportError(f"{text!r} is not of the form INPUT:DIMENSION=LOW..HIGH, as in 0:1=1..64")
    found = Dynamic(text, *map(int, match.groups()))
    if found.input >= len(args) or not isinstance(args[found.input], torch.Tensor):
        raise ExportError(f"{text}: there is no tensor input {found.input}; there are {len(args)} inputs")
    shape = list(args[found.input].shape)
    if found.dim >= len(shape):
        raise ExportError(f"{text}: input {found.input} of shape {shape} has no dimension {found.dim}")
    size = shape[found.dim]
    if not found.low <= size <= found.high:
        raise ExportError(f"{text}: the example input {found.input} has {size} there, outside of the range")
    if size <= 1:
        raise ExportError(f"{text}: the example input {found.input} has {size} there, which PyTorch takes as fixed")
    return found


def _shapes(dynamic: Sequence[Dynamic], args: Sequence[Any]) -> tuple[dict[int, Any] | None, ...]:
    """What `torch.export` takes; dimensions that must be equal are found to be."""
    found: list[dict[int, Any]] = [{} for _ in args]
    for d in dynamic:
        found[d.input][d.dim] = torch.export.Dim.AUTO(min=d.low, max=d.high)
    return tuple(dims or None for dims in found)


def _check_dynamic(program: torch.export.ExportedProgram, dynamic: Sequence[Dynamic], args: Sequence[Any]) -> None:
    """Raises where the module allows less than what was asked for."""
    found = iter(ranges(program))
    sizes = [[next(found) for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor)] for x in args]
    for d in dynamic:
        low, high = sizes[d.input][0][d.dim]
        if low == high:
            raise ExportError(f"{d.text}: the module fixes this dimension at {low}")
        if low > max(d.low, MOST_SPECIAL) or high < d.high:
            raise ExportError(f"{d.text}: the module allows {low}..{high}")
