"""Any `nn.Module` with example inputs to a `.pte`."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils._pytree import tree_leaves

from ..errors import ExportError
from ..files import check_writable
from .backend import torch
from .check import EagerCheck
from .lowering import FORWARD, MethodSource
from .pipeline import Exported, ExportJob, ExportPipeline, S
from .quantize import NONE, check_quantization, has_linear, quantized
from .shapes import SPECIAL, InputShapes
from .torch_errors import explain

DYNAMIC = re.compile(r"(\d+):(\d+)=(\d+)\.\.(\d+)")


def export(
    module: torch.nn.Module,
    args: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    methods: Mapping[str, MethodSource] | None = None,
    quantize: str = NONE,
    delegate: bool = True,
    options: Mapping[str, Any] | None = None,
    check: bool = True,
) -> bytes:
    """Return a `.pte` for `module`, and write it to `path` if there is one. Notes become warnings.

    `args` are the inputs to trace it with: a tuple, a dict of inputs by name, or a single input; `kwargs` are further
    inputs by name. `dynamic_shapes` are those of `torch.export`. The module becomes the method `forward`; `methods` are
    others by name. `quantize` is one of `QUANTIZATIONS`. `options` are those of the Vulkan/WebGPU partitioner, which
    `delegate=False` leaves out: ptegpu also runs such programs on the GPU. With `check`, the program is run on the
    inputs and compared with eager PyTorch; see `export_with_account`.
    """
    positional, named = arguments(args, kwargs)
    exported = export_with_account(
        MethodSource(module, positional, dynamic_shapes, named),
        path,
        methods=methods,
        quantize=quantize,
        delegate=delegate,
        options=options,
        check=check,
    )
    for note in exported.notes:
        warnings.warn(note, stacklevel=2)
    return exported.lowered.data


def export_with_account(
    source: MethodSource,
    path: str | os.PathLike[str] | None = None,
    dynamic: Sequence[str] = (),
    *,
    delegate: bool = True,
    options: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    check: bool = True,
    methods: Mapping[str, MethodSource] | None = None,
    quantize: str = NONE,
) -> Exported[None]:
    """Return the program of a source with notes on it, and write it to `path` if there is one.

    `dynamic` names dimensions as "0:1=1..64" (input 0, dimension 1, from 1 to 64), in place of the source's own.
    `methods` are further methods by name, and `constants` become methods that return them.

    If partitioning fails, or ptegpu cannot run the result, the program has no partitions; ptegpu runs it on the GPU
    too. If that program cannot run either, or differs from eager PyTorch, raise ExportError and write nothing.
    """
    if path is not None:
        check_writable(path)
    check_quantization(quantize, delegate)
    requested = [_parse_dynamic(text.strip(), source.args) for text in dynamic]
    if requested:
        source = replace(source, dynamic_shapes=_shapes(requested, source.args))
    job = module_job(_named(source, methods or {}), None, quantize, delegate, options or {}, constants or {}, check)
    pipeline = ExportPipeline()
    traced = pipeline.trace(job.sources)
    _check_dynamic(traced[FORWARD], requested, source.args)
    exported = pipeline.run(job, traced)
    return exported if path is None else pipeline.write(exported, path)


def module_job(
    sources: Mapping[str, MethodSource],
    summary: S,
    quantize: str,
    delegate: bool,
    options: Mapping[str, Any],
    constants: Mapping[str, Any],
    check: bool,
) -> ExportJob[S]:
    """Return the job of modules with example inputs: quantized, and each checked on its own."""
    sources, notes = _quantized(sources, quantize)
    comparison = EagerCheck.of_examples(sources) if check else None
    return ExportJob(sources, comparison, summary, constants, options, delegate, fallback=True, notes=notes)


def _named(source: MethodSource, methods: Mapping[str, MethodSource]) -> dict[str, MethodSource]:
    """Return all methods by name, `forward` first."""
    for name, other in methods.items():
        if name == FORWARD or not name.isidentifier():
            raise ExportError(
                f"invalid method name {name!r}: expected a Python identifier other than {FORWARD!r}, the module's own"
            )
        if not isinstance(other, MethodSource):
            raise ExportError(f"methods[{name!r}] is a {type(other).__name__}: give a ptegpu.export.MethodSource")
    return {FORWARD: source, **methods}


def _quantized(sources: Mapping[str, MethodSource], quantize: str) -> tuple[dict[str, MethodSource], list[str]]:
    """Return the sources with quantized modules, and notes. Modules without linear layers may stand beside others."""
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


def find_source(name: str) -> MethodSource:
    """Call `package.module:function`, also of a module in the current folder, and return its module and inputs."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise ExportError(f"invalid function {name!r}: expected package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as e:
        if isinstance(e, ModuleNotFoundError) and e.name and f"{module_name}.".startswith(f"{e.name}."):
            raise ExportError(f"there is no module {e.name!r} here or among the installed packages") from None
        raise ExportError(*explain(f"{module_name} cannot be imported", e)) from e
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ExportError(f"{module_name} has no function {function_name!r}")
    try:
        result = function()
    except Exception as e:
        raise ExportError(*explain(f"{name} fails", e)) from e
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not isinstance(result[0], torch.nn.Module):
        raise ExportError(f"{name} must return (nn.Module, inputs) or (nn.Module, inputs, dynamic_shapes)")
    inputs, named = arguments(result[1], None)
    return MethodSource(result[0], inputs, result[2] if len(result) == 3 else None, named)


@dataclass(frozen=True, slots=True)
class DynamicDimension:
    """A dimension that may change."""

    text: str  # as requested
    input: int
    dim: int
    low: int
    high: int


def _parse_dynamic(text: str, args: Sequence[Any]) -> DynamicDimension:
    match = DYNAMIC.fullmatch(text)
    if not match:
        raise ExportError(f"invalid dimension {text!r}: expected INPUT:DIMENSION=LOW..HIGH, as in 0:1=1..64")
    d = DynamicDimension(text, *map(int, match.groups()))
    if d.input >= len(args) or not isinstance(args[d.input], torch.Tensor):
        raise ExportError(f"{text}: there is no tensor input {d.input}; there are {len(args)} inputs")
    shape = list(args[d.input].shape)
    if d.dim >= len(shape):
        raise ExportError(f"{text}: input {d.input} of shape {shape} has no dimension {d.dim}")
    size = shape[d.dim]
    if not d.low <= size <= d.high:
        raise ExportError(f"{text}: the example input {d.input} has size {size} there, outside of the range")
    if size <= 1:
        raise ExportError(f"{text}: the example input {d.input} has size {size} there, which PyTorch treats as fixed")
    return d


def _shapes(dynamic: Sequence[DynamicDimension], args: Sequence[Any]) -> tuple[dict[int, Any] | None, ...]:
    """Return dynamic shapes for `torch.export`, which finds out which dimensions must be equal."""
    shapes: list[dict[int, Any]] = [{} for _ in args]
    for d in dynamic:
        shapes[d.input][d.dim] = torch.export.Dim.AUTO(min=d.low, max=d.high)
    return tuple(dims or None for dims in shapes)


def _check_dynamic(
    program: torch.export.ExportedProgram, dynamic: Sequence[DynamicDimension], args: Sequence[Any]
) -> None:
    """Raise ExportError if the module allows less than the requested range."""
    bounds = iter(InputShapes.of(program).bounds())
    sizes = [[next(bounds) for leaf in tree_leaves(x) if isinstance(leaf, torch.Tensor)] for x in args]
    for d in dynamic:
        low, high = sizes[d.input][0][d.dim]
        if low == high:
            raise ExportError(f"{d.text}: the module fixes this dimension at {low}")
        if low > max(d.low, SPECIAL) or high < d.high:
            raise ExportError(f"{d.text}: the module allows {low}..{high}")
