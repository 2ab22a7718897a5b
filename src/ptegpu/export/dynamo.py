"""`torch.compile(module, backend="ptegpu")`: each graph that Dynamo finds runs on the GPU, or in eager PyTorch.

A graph is lowered in its first call, with the weights of that call, which stay on the GPU. It is lowered again for
other weights, numbers or sizes. A graph that ptegpu cannot run is called in eager PyTorch.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from torch._dynamo import register_backend
from torch.fx import GraphModule, Node

from ..errors import ExportError, IndexOutOfRange, InvalidInput, PtegpuError, ShapeError
from ..gpu import Lock
from ..printing import shown
from .backend import torch
from .compiled import CompiledModule, compile_module
from .interpreters import OperatorRecorder, TraceableInterpreter

NAME, GROUP = "ptegpu", "torch_dynamo_backends"
LOADING = ("device", "engine", "precision", "limits")
OPTIONS = {*LOADING, "delegate", "fallback"}
LEAST_BOUND = 16  # of a dynamic size
MOST_PROGRAMS = 8  # of one variant, for different sizes
MOST_NUMBERS = 8  # combinations of numbers for which a graph is lowered, with the same weights
SHOWN = 4  # lines of an error
OPERATOR = re.compile(r"\d+ × (?:\w+(?:::|\.))?(\w+)")

Values: TypeAlias = Mapping[Any, int]  # of symbols


class EagerFallback(UserWarning):
    """A warning that a graph runs in eager PyTorch, with the reason and the place in the module."""


def torch_backend(
    module: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return a callable for a graph; `torch.compile` calls this for each graph.

    `options` are the device, engine, precision and limits of `ptegpu.load`, the `delegate` of `ptegpu.export`, and
    `fallback`: False raises an error in place of the warning.
    """
    options = dict(options or {})
    if unknown := options.keys() - OPTIONS:
        raise InvalidInput(f"unknown option {min(unknown)!r} of the backend: options are {', '.join(sorted(OPTIONS))}")
    return DynamoGraph(module, inputs, options)


def register() -> None:
    """Register the backend where ptegpu is on the path but not installed, so that PyTorch cannot find it by itself."""
    if NAME not in entry_points(group=GROUP).names:
        register_backend(torch_backend, name=NAME)


@dataclass(eq=False)
class GraphVariant:
    """The programs of a graph with certain weights and numbers, for several sizes."""

    weights: list[weakref.ref[torch.Tensor]]
    versions: list[int]
    programs: list[CompiledModule] = field(default_factory=list)

    def holds(self, weights: Sequence[torch.Tensor]) -> bool:
        """Return whether the variant has these weights, and they are unchanged."""
        return all(ref() is w for ref, w in zip(self.weights, weights)) and self.versions == _versions(weights)

    def close(self) -> None:
        for program in self.programs:
            program.close()


class DynamoGraph:
    """A graph of Dynamo that runs on the GPU, or in eager PyTorch."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        self.module, self.options = module, options
        self.fallback = options.get("fallback", True)
        self.inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.fakes = [n.meta.get("example_value", x) for n, x in zip(self.inputs, inputs)]
        self.weights = [k for k, (n, x) in enumerate(zip(self.inputs, inputs)) if _is_weight(n, x)]
        self.numbers = [k for k, n in enumerate(self.inputs) if _is_float(n, self.fakes[k])]
        others = [k for k in range(len(self.inputs)) if k not in {*self.weights, *self.numbers}]
        self.tensors = [k for k in others if isinstance(self.fakes[k], torch.Tensor)]
        self.sizes: dict[int, tuple[int, int]] = {}  # ints that are sizes of tensors: which tensor, which dimension
        for k in others:
            if k not in self.tensors:
                size = self._find_size(self.fakes[k])
                if size is None:
                    self.numbers.append(k)
                else:
                    self.sizes[k] = size
        self.variants: dict[Any, GraphVariant] = {}
        self.lock = Lock()
        self.error: PtegpuError | None = None  # the reason for the fallback
        self.warned = False
        try:
            self.results = _results(module, self.inputs)
            self._check()
        except PtegpuError as e:
            self.error = e

    def _find_size(self, number: Any) -> tuple[int, int] | None:
        """Return the tensor and the dimension that have this symbolic size."""
        if isinstance(number, torch.SymInt):
            for i, k in enumerate(self.tensors):
                for d, size in enumerate(self.fakes[k].shape):
                    if isinstance(size, torch.SymInt) and size.node.expr == number.node.expr:
                        return i, d
        return None

    def _check(self) -> None:
        for x in self.fakes:
            if isinstance(x, torch.Tensor) and x.device.type != "cpu":
                raise ExportError(f"the inputs are on {x.device}; expected the CPU")
        (output,) = (n for n in self.module.graph.nodes if n.op == "output")
        if any(_fake(n) is not None and _fake(n).requires_grad for n in output.args[0]):
            raise ExportError("gradients are required: call the module in torch.no_grad() or torch.inference_mode()")

    def __call__(self, *args: Any) -> Any:
        program = None
        if self.error is None:
            with self.lock:
                try:
                    program = self._program(args)
                except PtegpuError as e:
                    self.error = e
        if self.error is not None and not self.fallback:
            raise self.error
        if program is None:
            return self._eagerly(args)
        try:
            with torch.no_grad():
                results = program(*[args[k] for k in self.tensors])
        except IndexOutOfRange:  # an IndexError, as in eager PyTorch
            raise
        except PtegpuError as e:  # before anything was written
            if not self.fallback:
                raise
            self.error = e
            return self._eagerly(args)
        values = self._values(args)
        outputs: list[Any] = []
        for result, view in zip(results, self.results, strict=True):
            outputs.append(result if view is None else view(args, outputs, values))
        return tuple(outputs)

    def _eagerly(self, args: Sequence[Any]) -> Any:
        """Call the graph in eager PyTorch; the first time, warn and name the lines of unsupported operators."""
        if self.warned:
            return self.module(*args)
        self.warned = True
        why = " ".join(line.strip() for line in str(self.error).splitlines()[:SHOWN])
        recorder = OperatorRecorder(self.module)
        result = recorder.run(*args)
        places = [place for name in OPERATOR.findall(why) if (place := recorder.place(name))]
        where = "; ".join(dict.fromkeys(places)) or recorder.place(None)
        text = f"ptegpu runs a graph in eager PyTorch: {why}" + (f" ({where})" if where else "")
        warnings.warn(shown(text), EagerFallback, stacklevel=3)
        return result

    def _program(self, args: Sequence[Any]) -> CompiledModule:
        """Return a program for these weights, numbers and sizes."""
        weights = [args[k] for k in self.weights]
        numbers = tuple([_number(args[k]) for k in self.numbers])
        key = tuple(map(id, weights)), numbers
        variant = self.variants.get(key)
        if variant is None or not variant.holds(weights):
            self._forget(key)
            if sum(key[0] == other for other, _ in self.variants) >= MOST_NUMBERS:
                raise ExportError(f"its numbers keep changing: it was lowered for {MOST_NUMBERS} combinations")
            variant = GraphVariant([weakref.ref(w) for w in weights], _versions(weights))
            self.variants[key] = variant
        shapes = [args[k].shape for k in self.tensors]
        for program in variant.programs:
            if program.takes(shapes):
                return program
        program = self._lowered(args)
        if len(shapes) != len(self.tensors):  # weights that the graph writes have become inputs
            program.close()
            return self._program(args)
        variant.programs.append(program)
        if len(variant.programs) > MOST_PROGRAMS:
            variant.programs.pop(0).close()
        return program

    def _forget(self, key: Any) -> None:
        """Close the variant of this key, and those whose weights are gone."""
        for other, variant in list(self.variants.items()):
            if other == key or any(ref() is None for ref in variant.weights):
                self.variants.pop(other).close()

    def _lowered(self, args: Sequence[Any]) -> CompiledModule:
        module = _SelfContained(self, args).eval()
        tensors = tuple([_example(args[k]) for k in self.tensors])
        options = {name: value for name, value in self.options.items() if name != "fallback"}
        shapes = [_dynamic(self.fakes[k], args[k]) for k in self.tensors]
        with torch.inference_mode(False), torch.no_grad():
            program = None
            if any(shapes):
                try:
                    program = compile_module(module, tensors, {"tensors": tuple(shapes)}, check=False, **options)
                except (ExportError, ShapeError):
                    pass  # fall back to one program for each size
            program = program or compile_module(module, tensors, check=False, **options)
        written = {int(name.removeprefix("weight_")) for name in program.lowered.states if name.startswith("weight_")}
        if written:
            self.weights = [k for k in self.weights if k not in written]
            self.tensors = sorted([*self.tensors, *written])
            self.sizes = {k: self._find_size(self.fakes[k]) for k in self.sizes}  # type: ignore[misc]
        return program

    def _values(self, args: Sequence[Any]) -> Values:
        """Return the values of the symbols in sizes."""
        values = {}
        for fake, value in zip(self.fakes, args):
            if isinstance(fake, torch.SymInt) and fake.node.expr.is_Symbol:
                values[fake.node.expr] = value
        return values


class _SelfContained(torch.nn.Module):
    """A graph as a module that holds its weights and numbers, for tracing."""

    def __init__(self, graph: DynamoGraph, args: Sequence[Any]) -> None:
        super().__init__()
        self.module = graph.module
        self.count, self.order, self.sizes = len(args), list(graph.tensors), dict(graph.sizes)
        self.numbers = {k: _number(args[k]) for k in graph.numbers}
        self.weights = {k: f"weight_{k}" for k in graph.weights}
        for k, name in self.weights.items():
            self.register_buffer(name, args[k].detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        inputs = dict(zip(self.order, tensors)) | self.numbers
        inputs |= {k: tensors[i].shape[d] for k, (i, d) in self.sizes.items()}
        inputs |= {k: getattr(self, name) for k, name in self.weights.items()}
        return tuple(TraceableInterpreter(self.module).run(*[inputs[k] for k in range(self.count)]))


def _results(module: GraphModule, inputs: Sequence[Node]) -> list[Callable[..., Any] | None]:
    """Return, for each result, a function that makes a view of an input or of an earlier result; None if it is new."""
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    owners = {_storage(f): (True, k) for k, n in enumerate(inputs) if (f := _fake(n)) is not None}
    bases = {(True, k): _fake(n) for k, n in enumerate(inputs)}
    views: list[Callable[..., Any] | None] = []
    for k, node in enumerate(output.args[0]):
        fake = _fake(node)
        owner = owners.get(_storage(fake)) if fake is not None else None
        if owner is not None:
            views.append(_view(fake, bases[owner], *owner))
            continue
        if fake is not None:
            owners[_storage(fake)] = (False, k)
            bases[False, k] = fake
        views.append(None)
    return views


def _view(fake: torch.Tensor, base: Any, of_input: bool, k: int) -> Callable[..., Any]:
    """Return a function of the inputs, the results so far, and the values of symbols."""
    if _geometry(fake) == _geometry(base):
        return lambda args, outputs, values: args[k] if of_input else outputs[k]
    if not of_input and not base.is_contiguous():
        raise ExportError("two of its results are views of one that is not contiguous")

    def view(args: Sequence[Any], outputs: Sequence[Any], values: Values) -> torch.Tensor:
        size, stride, offset = _geometry(fake)
        tensor = args[k] if of_input else outputs[k]
        return tensor.as_strided(
            [_evaluate(s, values) for s in size], [_evaluate(s, values) for s in stride], _evaluate(offset, values)
        )

    return view


def _geometry(x: torch.Tensor) -> tuple[Any, Any, Any]:
    return tuple(map(_plain, x.size())), tuple(map(_plain, x.stride())), _plain(x.storage_offset())


def _plain(size: Any) -> Any:
    """Return a size as an int or an expression, whose comparison adds no guard."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _evaluate(size: Any, values: Values) -> int:
    return size if isinstance(size, int) else int(size.xreplace(values))


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def _fake(node: Any) -> Any:
    """Return the fake tensor of a node; None if it is not a tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_weight(node: Node, value: Any) -> bool:
    """Return whether an input is a parameter or a buffer, which Dynamo turns into inputs of a graph."""
    static = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    return isinstance(value, torch.Tensor) and (static or isinstance(value, torch.nn.Parameter))


def _is_float(node: Node, value: Any) -> bool:
    """Return whether an input is a Python float, which Dynamo passes as a tensor where sizes are dynamic."""
    if not isinstance(value, torch.Tensor) or value.dim() or value.dtype is not torch.float64:
        return False
    return all(user.op == "call_method" and user.target == "item" for user in node.users)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _versions(weights: Sequence[torch.Tensor]) -> list[int]:
    return [0 if w.is_inference() else w._version for w in weights]


def _example(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without gradients and outside of `torch.inference_mode`."""
    return tensor.detach().clone() if tensor.is_inference() else tensor.detach()


def _dynamic(fake: torch.Tensor, tensor: torch.Tensor) -> dict[int, Any] | None:
    """Return the dynamic sizes with the next power of two as their bounds, for which memory is allocated."""
    bounds = {
        d: max(LEAST_BOUND, 1 << (tensor.shape[d] - 1).bit_length())
        for d, size in enumerate(fake.shape)
        if isinstance(size, torch.SymInt) and tensor.shape[d] > 1
    }
    return {d: torch.export.Dim.AUTO(min=1, max=bound) for d, bound in bounds.items()} or None


register()
