"""A module on the GPU without a file: traced, lowered and loaded in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import ptegpu

from ..errors import ExportError, InvalidInput, ShapeError
from ..runtime import Program, Spec
from .backend import torch
from .check import EagerCheck, NotChecked
from .lowering import FORWARD, Lowered, MethodSource
from .module import arguments
from .pipeline import ExportJob, ExportPipeline, rounds
from .shapes import InputShapes

VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def compile_module(
    module: torch.nn.Module,
    example: Any,
    dynamic_shapes: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    delegate: bool = True,
    check: bool = True,
    **loading: Any,
) -> CompiledModule:
    """See `ptegpu.compile_module`."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"compile_module takes a torch.nn.Module, not {type(module).__name__}")
    if training := [name for name, m in module.named_modules() if m.training]:
        what = f"its part {training[0]}" if training[0] else "the module"
        raise ExportError(f"{what} is in training mode: call module.eval() first")
    args, kwargs = arguments(example, kwargs)
    sources = {FORWARD: MethodSource(module, args, dynamic_shapes, kwargs)}
    job = ExportJob(sources, None, None, delegate=delegate, fallback=True)
    pipeline = ExportPipeline()
    traced = pipeline.trace(sources)
    signature = ModuleSignature(traced[FORWARD], module.forward, args, kwargs)
    comparison = EagerCheck.of_examples(sources) if check else None
    rounded = loading.get("precision") == "fast" or rounds(traced[FORWARD])

    def loaded(lowered: Lowered, notes: list[str]) -> CompiledModule:
        with ExitStack() as stack:
            program = ptegpu.load(lowered.data, methods=FORWARD, **loading)
            compiled = CompiledModule(program, signature, lowered, notes)
            stack.callback(compiled.close)
            if comparison is not None:
                try:
                    compiled.difference = comparison.compare(compiled.run, rounded=rounded).difference
                except NotChecked as e:
                    compiled.notes = [*notes, f"not checked: {e}"]
                compiled.reset()
            stack.pop_all()
        return compiled

    return pipeline.lower(job, traced, loaded)


class ModuleSignature:
    """The inputs and outputs of a module: their grouping, names and shapes."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.inputs, self.outputs = program.call_spec.in_spec, program.call_spec.out_spec
        self.shapes = InputShapes.of(program)
        self.parameters = inspect.signature(function)
        self.positional, self.named = len(args), list(kwargs)
        self.examples = tree_leaves((args, dict(kwargs)))

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the flat inputs; raise InvalidInput if they are not grouped as in the example."""
        if len(args) != self.positional or kwargs.keys() != set(self.named):
            args, kwargs = self._as_in_example(args, kwargs)
        leaves, spec = tree_flatten((args, {name: kwargs[name] for name in self.named}))
        if spec != self.inputs:
            raise InvalidInput(f"inputs must be grouped as in the example, {_shown(self.inputs)}, not {_shown(spec)}")
        return leaves

    def _as_in_example(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Pass those inputs by name that the example has by name."""
        try:
            bound = self.parameters.bind(*args, **kwargs).arguments
        except TypeError as e:
            raise InvalidInput(f"invalid inputs of the module: {e}") from None
        inputs: dict[str, Any] = {}
        for name, value in bound.items():
            inputs |= value if self.parameters.parameters[name].kind is VAR_KEYWORD else {name: value}
        positional = list(self.parameters.parameters)[: self.positional]
        if inputs.keys() != {*positional, *self.named}:
            expected = ", ".join([*positional, *self.named])
            raise InvalidInput(f"the module was compiled for the inputs {expected}, not {', '.join(inputs) or 'none'}")
        return tuple([inputs[name] for name in positional]), inputs


class CompiledModule:
    """A module on the GPU. Call it as the module itself; close it, or use it as a context manager."""

    def __init__(self, program: Program, signature: ModuleSignature, lowered: Lowered, notes: list[str]) -> None:
        self.program, self.signature, self.lowered, self.notes = program, signature, lowered, notes
        self.difference: float | None = None  # from eager PyTorch, the largest of any element; None: not checked
        self._method = program.method(FORWARD)
        self._names = [f"{spec.name} of forward" for spec in self._method.inputs]
        self._last_shapes: list[Any] = []  # of a valid call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns for these inputs, and write the inputs that it writes."""
        leaves = self.signature.flatten(args, kwargs)
        self._check(leaves)
        results = self.run(leaves)
        written = self.lowered.written
        for k, value in zip(written, results):
            leaves[k].copy_(value)
        return tree_unflatten(results[len(written) :], self.signature.outputs)

    def _check(self, leaves: Sequence[Any]) -> None:
        shapes = [getattr(leaf, "shape", None) for leaf in leaves]
        if shapes != self._last_shapes:
            self.signature.shapes.check(shapes, self._names)
            self._last_shapes = shapes
        if torch.is_grad_enabled():
            for name, leaf in zip(self._names, leaves):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    raise InvalidInput(f"{name} requires a gradient, which ptegpu cannot compute: use torch.no_grad()")

    def takes(self, shapes: Sequence[Any]) -> bool:
        """Return whether inputs may have these shapes."""
        try:
            self.signature.shapes.check(shapes, self._names)
        except ShapeError:
            return False
        return True

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Return all outputs for flat inputs; the written inputs come first."""
        inputs = list(leaves)
        for k, (spec, example) in enumerate(zip(self._method.inputs, self.signature.examples, strict=True)):
            if spec.dtype == "None":  # strings are not in the program
                if inputs[k] != example:
                    raise InvalidInput(f"{self._names[k]} must be {example!r}, as in the example, not {inputs[k]!r}")
                inputs[k] = None
        results = self._method.execute(inputs)
        return [_tensor(r, spec) if isinstance(r, np.ndarray) else r for r, spec in zip(results, self._method.outputs)]

    @property
    def data(self) -> bytes:
        """The program as a `.pte`."""
        return self.lowered.data

    def reset(self) -> None:
        """Reset the buffers that the module writes to their values at compile time."""
        self.program.reset()

    def close(self) -> None:
        """Release the GPU memory."""
        self.program.close()

    def __enter__(self) -> CompiledModule:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.program).replace("Program from memory", "CompiledModule", 1)


def _shown(spec: Any) -> str:
    return str(tree_unflatten(["·"] * spec.num_leaves, spec)).replace("'·'", "·")


def _tensor(array: np.ndarray, spec: Spec) -> torch.Tensor:
    """Convert an array, which is the result of a call without tensors."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor
