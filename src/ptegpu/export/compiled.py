"""A module on the GPU without a file in between: traced, lowered and loaded in memory."""

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
from .check import Check, NotChecked
from .lowering import FORWARD, Lowered, Source
from .module import arguments
from .pipeline import Job, Pipeline, rounds
from .shapes import Shapes

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
    job = Job({FORWARD: Source(module, args, dynamic_shapes, kwargs)}, None, None, delegate=delegate, fallback=True)
    pipeline = Pipeline()
    traced = pipeline.trace(job.sources)
    form = Form(traced[FORWARD], module.forward, args, kwargs)
    comparison = Check.of_examples(job.sources) if check else None
    rounded = loading.get("precision") == "fast" or rounds(traced[FORWARD])

    def loaded(lowered: Lowered, notes: list[str]) -> CompiledModule:
        with ExitStack() as stack:
            compiled = CompiledModule(ptegpu.load(lowered.data, methods=FORWARD, **loading), form, lowered, notes)
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


class Form:
    """How a module takes its inputs and gives its outputs."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.takes, self.gives, self.shapes = program.call_spec.in_spec, program.call_spec.out_spec, Shapes.of(program)
        self.signature = inspect.signature(function)
        self.positional, self.named = len(args), list(kwargs)
        self.examples = tree_leaves((args, dict(kwargs)))

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The inputs one by one; InvalidInput if they are not grouped as in the example."""
        if len(args) != self.positional or kwargs.keys() != set(self.named):
            args, kwargs = self._as_in_example(args, kwargs)
        leaves, spec = tree_flatten((args, {name: kwargs[name] for name in self.named}))
        if spec != self.takes:
            raise InvalidInput(f"its inputs must be grouped as in the example, {_said(self.takes)}, not {_said(spec)}")
        return leaves

    def _as_in_example(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with those inputs by name that the example has by name."""
        try:
            bound = self.signature.bind(*args, **kwargs).arguments
        except TypeError as e:
            raise InvalidInput(f"the module cannot be called so: {e}") from None
        given: dict[str, Any] = {}
        for name, value in bound.items():
            given |= value if self.signature.parameters[name].kind is VAR_KEYWORD else {name: value}
        positional = list(self.signature.parameters)[: self.positional]
        if given.keys() != {*positional, *self.named}:
            wanted = ", ".join([*positional, *self.named])
            raise InvalidInput(f"it was compiled for the inputs {wanted}; given are {', '.join(given) or 'none'}")
        return tuple([given[name] for name in positional]), given


class CompiledModule:
    """A module on the GPU. Call it as the module itself; close it, or use it as a context manager."""

    def __init__(self, program: Program, form: Form, lowered: Lowered, notes: list[str]) -> None:
        self.program, self.form, self.lowered, self.notes = program, form, lowered, notes
        self.difference: float | None = None  # from eager PyTorch, the largest of any element; None: not checked
        self._method = program.method("forward")
        self._names = [f"{spec.name} of forward" for spec in self._method.inputs]
        self._fits: list[Any] = []  # the shapes of the last call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these inputs. Those that it writes are written."""
        leaves = self.form.flatten(args, kwargs)
        self._check(leaves)
        results = self.run(leaves)
        written = self.lowered.written
        for k, value in zip(written, results):
            leaves[k].copy_(value)
        return tree_unflatten(results[len(written) :], self.form.gives)

    def _check(self, leaves: Sequence[Any]) -> None:
        shapes = [getattr(leaf, "shape", None) for leaf in leaves]
        if shapes != self._fits:
            self.form.shapes.check(shapes, self._names)
            self._fits = shapes
        if torch.is_grad_enabled():
            for name, leaf in zip(self._names, leaves):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    raise InvalidInput(f"{name} requires a gradient, which ptegpu does not give: use torch.no_grad()")

    def takes(self, shapes: Sequence[Any]) -> bool:
        """Whether inputs may have these shapes."""
        try:
            self.form.shapes.check(shapes, self._names)
        except ShapeError:
            return False
        return True

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """All outputs, inputs that are written first, for the inputs one by one."""
        given = list(leaves)
        for k, (spec, example) in enumerate(zip(self._method.inputs, self.form.examples, strict=True)):
            if spec.dtype == "None":  # a file holds no text
                if given[k] != example:
                    raise InvalidInput(f"{self._names[k]} must be {example!r}, as in the example, not {given[k]!r}")
                given[k] = None
        results = self._method.execute(given)
        return [_tensor(r, spec) if isinstance(r, np.ndarray) else r for r, spec in zip(results, self._method.outputs)]

    @property
    def data(self) -> bytes:
        """The program as a `.pte`."""
        return self.lowered.data

    def reset(self) -> None:
        """Buffers that the module writes back to what they were when it was compiled."""
        self.program.reset()

    def close(self) -> None:
        """Give the GPU memory back."""
        self.program.close()

    def __enter__(self) -> CompiledModule:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.program).replace("Program from memory", "CompiledModule", 1)


def _said(spec: Any) -> str:
    return str(tree_unflatten(["·"] * spec.num_leaves, spec)).replace("'·'", "·")


def _tensor(array: np.ndarray, spec: Spec) -> torch.Tensor:
    """Where no input is a tensor, results are arrays."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor
