"""`torch.compile(module, backend="ptegpu")`: each graph that Dynamo finds runs on the GPU, or in eager PyTorch.

A graph is lowered when it is first called, with the weights of that call, which stay on the GPU. Where other weights,
numbers or sizes come than those it was lowered for, it is lowered again. What ptegpu cannot run is called as it is.
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
from .interpreters import Plain, Watched

NAME, GROUP = "ptegpu", "torch_dynamo_backends"
LOADING = ("device", "engine", "precision", "limits")
OPTIONS = {*LOADING, "delegate", "fallback"}
LEAST_BOUND = 16  # of a size that may change
MOST_PROGRAMS = 8  # for sizes of one variant
MOST_NUMBERS = 8  # that a graph is lowered for, with the same weights
SHOWN = 4  # lines of an error
OPERATOR = re.compile(r"\d+ × (?:\w+(?:::|\.))?(\w+)")

Values: TypeAlias = Mapping[Any, int]  # of symbols


class EagerFallback(UserWarning):
    """A graph runs in eager PyTorch; the message says why, and where in the module."""


def torch_backend(
    module: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What `torch.compile` calls for each graph. `options` are the device, engine, precision and limits of
    `ptegpu.load`, the `delegate` of `ptegpu.export`, and `fallback`: False raises what would else be a warning."""
    options = dict(options or {})
    if unknown := options.keys() - OPTIONS:
        raise InvalidInput(f"the backend has no option {min(unknown)!r}: there are {', '.join(sorted(OPTIONS))}")
    return Graph(module, inputs, options)


def register() -> None:
    """Where ptegpu is installed, PyTorch finds the backend itself; where it is only on the path, this tells it."""
    if NAME not in entry_points(group=GROUP).names:
        register_backend(torch_backend, name=NAME)


@dataclass(eq=False)
class Variant:
    """A graph with certain weights and numbers: programs for several sizes."""

    weights: list[weakref.ref[torch.Tensor]]
    versions: list[int]
    programs: list[CompiledModule] = field(default_factory=list)

    def holds(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether it was made of these, and nothing was written to them since."""
        return all(ref() is w for ref, w in zip(self.weights, weights)) and self.versions == _versions(weights)

    def close(self) -> None:
        for program in self.programs:
            program.close()


class Graph:
    """A graph of Dynamo's that runs on the GPU."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        self.module, self.options = module, options
        self.fallback = options.get("fallback", True)
        self.places = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.fakes = [n.meta.get("example_value", x) for n, x in zip(self.places, inputs)]
        self.weights = [k for k, (n, x) in enumerate(zip(self.places, inputs)) if _is_weight(n, x)]
        self.numbers = [k for k, n in enumerate(self.places) if _is_float(n, self.fakes[k])]
        self.sizes: dict[int, tuple[int, int]] = {}  # ints that are sizes of inputs
        self._sort()
        self.variants: dict[Any, Variant] = {}
        self.lock = Lock()
        self.error: PtegpuError | None = None  # why nothing runs on the GPU
        self.warned = False
        try:
            self.results = _results(module, self.places)
            self._check()
        except PtegpuError as e:
            self.error = e

    def _sort(self) -> None:
        """Which inputs are tensors, sizes of them, and numbers."""
        constant = {*self.weights, *self.numbers}
        self.tensors = [k for k, x in enumerate(self.fakes) if isinstance(x, torch.Tensor) and k not in constant]
        for k, x in enumerate(self.fakes):
            if not isinstance(x, torch.Tensor) and k not in constant:
                place = self._find_size(x)
                if place is None:
                    self.numbers.append(k)
                else:
                    self.sizes[k] = place

    def _find_size(self, wanted: Any) -> tuple[int, int] | None:
        for i, k in enumerate(self.tensors):
            for d, size in enumerate(self.fakes[k].shape):
                if isinstance(size, torch.SymInt) and isinstance(wanted, torch.SymInt):
                    if size.node.expr == wanted.node.expr:
                        return i, d
        return None

    def _check(self) -> None:
        for x in self.fakes:
            if isinstance(x, torch.Tensor) and x.device.type != "cpu":
                raise ExportError(f"its inputs are on {x.device}, and must be on the CPU")
        (output,) = (n for n in self.module.graph.nodes if n.op == "output")
        if any(_fake(n) is not None and _fake(n).requires_grad for n in output.args[0]):
            raise ExportError("gradients are wanted: call the module in torch.no_grad() or torch.inference_mode()")

    def __call__(self, *args: Any) -> Any:
        """What the graph returns: a tuple."""
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
        found: list[Any] = []
        for result, make in zip(results, self.results, strict=True):
            found.append(result if make is None else make(args, found, values))
        return tuple(found)

    def _eagerly(self, args: Sequence[Any]) -> Any:
        """As it is; the first time, where each operator is called is seen."""
        if self.warned:
            return self.module(*args)
        self.warned = True
        why = " ".join(line.strip() for line in str(self.error).splitlines()[:SHOWN])
        watched = Watched(self.module)
        result = watched.run(*args)
        places = [place for name in OPERATOR.findall(why) if (place := watched.place(name))]
        where = "; ".join(dict.fromkeys(places)) or watched.place(None)
        text = f"ptegpu runs a graph in eager PyTorch: {why}" + (f" ({where})" if where else "")
        warnings.warn(shown(text), EagerFallback, stacklevel=3)
        return result

    def _program(self, args: Sequence[Any]) -> CompiledModule:
        """For these weights, numbers and sizes."""
        weights = [args[k] for k in self.weights]
        numbers = tuple([_number(args[k]) for k in self.numbers])
        key = tuple(map(id, weights)), numbers
        variant = self.variants.get(key)
        if variant is None or not variant.holds(weights):
            self._forget(key)
            if sum(key[0] == other for other, _ in self.variants) >= MOST_NUMBERS:
                raise ExportError(f"it takes numbers that change, and was lowered for {MOST_NUMBERS} of them")
            variant = Variant([weakref.ref(w) for w in weights], _versions(weights))
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
        """The variant of this key, and those whose weights are gone."""
        for other, variant in list(self.variants.items()):
            if other == key or any(ref() is None for ref in variant.weights):
                self.variants.pop(other).close()

    def _lowered(self, args: Sequence[Any]) -> CompiledModule:
        traced = _Traced(self, args).eval()
        tensors = tuple([_example(args[k]) for k in self.tensors])
        options = {name: value for name, value in self.options.items() if name != "fallback"}
        shapes = [_dynamic(self.fakes[k], args[k]) for k in self.tensors]
        with torch.inference_mode(False), torch.no_grad():
            program = None
            if any(shapes):
                try:
                    program = compile_module(traced, tensors, {"tensors": tuple(shapes)}, check=False, **options)
                except (ExportError, ShapeError):
                    pass  # each size on its own, then
            program = program or compile_module(traced, tensors, check=False, **options)
        written = {int(name.removeprefix("weight_")) for name in program.lowered.kept if name.startswith("weight_")}
        if written:
            self.weights = [k for k in self.weights if k not in written]
            self.tensors = sorted([*self.tensors, *written])
            self.sizes = {k: self._find_size(self.fakes[k]) for k in self.sizes}  # type: ignore[misc]
        return program

    def _values(self, args: Sequence[Any]) -> Values:
        """Of the symbols that sizes are made of."""
        found = {}
        for fake, value in zip(self.fakes, args):
            if isinstance(fake, torch.SymInt) and fake.node.expr.is_Symbol:
                found[fake.node.expr] = value
        return found


class _Traced(torch.nn.Module):
    """A graph with its weights and numbers in place, to trace."""

    def __init__(self, graph: Graph, args: Sequence[Any]) -> None:
        super().__init__()
        self.module = graph.module
        self.count, self.order, self.sizes = len(args), list(graph.tensors), dict(graph.sizes)
        self.numbers = {k: _number(args[k]) for k in graph.numbers}
        self.weights = {k: f"weight_{k}" for k in graph.weights}
        for k, name in self.weights.items():
            self.register_buffer(name, args[k].detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        given = dict(zip(self.order, tensors)) | self.numbers
        given |= {k: tensors[i].shape[d] for k, (i, d) in self.sizes.items()}
        given |= {k: getattr(self, name) for k, name in self.weights.items()}
        return tuple(Plain(self.module).run(*[given[k] for k in range(self.count)]))


def _results(module: GraphModule, places: Sequence[Node]) -> list[Callable[..., Any] | None]:
    """How results share memory with inputs and with each other: for each None, if it is new, or what makes it."""
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    owners = {_storage(f): (True, k) for k, n in enumerate(places) if (f := _fake(n)) is not None}
    bases = {(True, k): _fake(n) for k, n in enumerate(places)}
    made: list[Callable[..., Any] | None] = []
    for k, node in enumerate(output.args[0]):
        fake = _fake(node)
        owner = owners.get(_storage(fake)) if fake is not None else None
        if owner is not None:
            made.append(_view(fake, bases[owner], *owner))
            continue
        if fake is not None:
            owners[_storage(fake)] = (False, k)
            bases[False, k] = fake
        made.append(None)
    return made


def _view(fake: torch.Tensor, base: Any, of_input: bool, k: int) -> Callable[..., Any]:
    """A function of the inputs, the results so far, and the values of symbols."""
    if _geometry(fake) == _geometry(base):
        return lambda args, found, values: args[k] if of_input else found[k]
    if not of_input and not base.is_contiguous():
        raise ExportError("two of its results are views of one that is not contiguous")

    def make(args: Sequence[Any], found: Sequence[Any], values: Values) -> torch.Tensor:
        size, stride, offset = _geometry(fake)
        whole = args[k] if of_input else found[k]
        return whole.as_strided(
            [_known(s, values) for s in size], [_known(s, values) for s in stride], _known(offset, values)
        )

    return make


def _geometry(x: torch.Tensor) -> tuple[Any, Any, Any]:
    return tuple(map(_plain, x.size())), tuple(map(_plain, x.stride())), _plain(x.storage_offset())


def _plain(size: Any) -> Any:
    """A size as an int or an expression, compared without a guard."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _known(size: Any, values: Values) -> int:
    return size if isinstance(size, int) else int(size.xreplace(values))


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def _fake(node: Any) -> Any:
    """The tensor that stands for a node; None for what is none."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_weight(node: Node, value: Any) -> bool:
    """Parameters and buffers of modules, which Dynamo makes inputs of a graph."""
    static = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    return isinstance(value, torch.Tensor) and (static or isinstance(value, torch.nn.Parameter))


def _is_float(node: Node, value: Any) -> bool:
    """Where sizes may change, Dynamo passes Python's floats as tensors and takes them out again."""
    if not isinstance(value, torch.Tensor) or value.dim() or value.dtype is not torch.float64:
        return False
    return all(user.op == "call_method" and user.target == "item" for user in node.users)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _versions(weights: Sequence[torch.Tensor]) -> list[int]:
    return [0 if w.is_inference() else w._version for w in weights]


def _example(tensor: torch.Tensor) -> torch.Tensor:
    """Out of reach of gradients, and of `torch.inference_mode`."""
    return tensor.detach().clone() if tensor.is_inference() else tensor.detach()


def _dynamic(fake: torch.Tensor, tensor: torch.Tensor) -> dict[int, Any] | None:
    """The sizes that may change, up to the next power of two: memory is allocated for that."""
    bounds = {
        d: max(LEAST_BOUND, 1 << (tensor.shape[d] - 1).bit_length())
        for d, size in enumerate(fake.shape)
        if isinstance(size, torch.SymInt) and tensor.shape[d] > 1
    }
    return {d: torch.export.Dim.AUTO(min=1, max=bound) for d, bound in bounds.items()} or None


register()
