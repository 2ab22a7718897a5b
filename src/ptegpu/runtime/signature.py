"""The inputs and outputs of a method: name, dtype and bounds of each, and how the exported module grouped them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import count
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from ..errors import InvalidInput
from ..format import FileMethod as FileMethod
from ..format import FileTensor, Value
from ..plan.method import CompiledMethod, Operand, Var
from ..printing import shown

SHOWN = 8  # inputs listed in a message


@dataclass(frozen=True, slots=True, repr=False)
class Spec:
    """One input or output.

    The file marks whole tensors as dynamic, not single dimensions. If `dynamic`, `shape` has the upper bound of each
    dimension.
    """

    name: str  # "input 0", "mask", "argument 1['key']"
    dtype: str  # tensor: "float32", "bfloat16", …; number: "int", "float", "bool"; "str"; "list"; "None"
    shape: tuple[int, ...] | None = None  # None: not a tensor, or a tensor of any shape
    dynamic: bool = False
    value: Any = None  # the only value that an input other than a tensor takes; None: a dynamic int

    @staticmethod
    def of(name: str, value: Operand | Value) -> Spec:
        """Return the Spec of a value from the file or from a loaded method."""
        if isinstance(value, FileTensor):
            return Spec(name, value.dtype.value, value.sizes if value.bounded else None, value.dynamic)
        if isinstance(value, Var):
            return Spec(name, value.dtype.value, value.sizes, value.dynamic) if value.dtype else Spec(name, "int")
        if value is None:
            return Spec(name, "None")
        if isinstance(value, bool | int | float | str):
            return Spec(name, type(value).__name__, value=value)
        return Spec(name, "list")

    def __str__(self) -> str:
        """float32[2, 8]; int64 of at most [1, 16]; int 3."""
        if self.shape is not None:
            return f"{self.dtype}{' of at most ' if self.dynamic else ''}{list(self.shape)}"
        if self.dynamic:
            return f"{self.dtype} of any shape"
        if self.dtype == "None":
            return "int or None"
        return self.dtype if self.value is None else f"{self.dtype} {self.value!r}"

    def __repr__(self) -> str:
        return shown(f"<{self.name}: {self}>")


class MethodSignature:
    """The inputs and outputs of a method from the file or of a loaded method."""

    def __init__(self, method: FileMethod | CompiledMethod) -> None:
        inputs: list[Any] = list(method.inputs)
        outputs: list[Any] = list(method.outputs)
        if isinstance(method, FileMethod):
            inputs, outputs = [method.values[k] for k in inputs], [method.values[k] for k in outputs]
        self.method = method.name
        positional, self._named = _arguments(method.input_tree, inputs)
        self._result = _fitting(method.output_tree, len(outputs))
        nested = any(tree.kind != "leaf" for tree in positional)
        word = "argument" if nested else "input"  # an argument may consist of several inputs
        self._slots = [*((f"{word} {k}", tree) for k, tree in enumerate(positional)), *self._named.items()]
        names = [n for name, tree in self._slots for n in tree.paths(name)]
        self.inputs = tuple([Spec.of(name, value) for name, value in zip(names, inputs, strict=True)])
        self.outputs = tuple(
            [Spec.of(n, value) for n, value in zip(self._output_names(len(outputs)), outputs, strict=True)]
        )
        self.written = self._find_written(inputs, outputs)
        self._make = self._maker(len(outputs))
        self._plain = all(tree.kind == "leaf" for _, tree in self._slots)
        self._inputs = inputs

    def flatten(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call as a flat list, in the program's order.

        If there are as many as the method has inputs, they need no change. Otherwise tuples, lists and dicts are
        flattened like those of the export. A keyword input with a fixed value may be left out.
        """
        if (
            not keywords
            and len(arguments) == len(self.inputs)
            and (self._plain or not any(isinstance(a, list | tuple | dict) for a in arguments))
        ):
            return list(arguments)
        slots = self._slots
        if len(arguments) > len(slots):
            raise self._wrong_count(len(slots), len(arguments))
        by_name = dict(zip((name for name, _ in slots), arguments))
        for name, value in keywords.items():
            if name not in self._named:
                raise InvalidInput(f"{self.method} has no input called {name!r}: {self._by_name()}")
            if name in by_name:
                raise InvalidInput(f"{self.method} is given {name} twice, by position and by name")
            by_name[name] = value
        leaves: list[Any] = []
        for name, tree in slots:
            if name in by_name:
                tree.flatten(by_name[name], ((name, self.method),), leaves)
                continue
            declared = self._inputs[len(leaves) : len(leaves) + tree.leaves]
            if name not in self._named or any(isinstance(value, Var | FileTensor) for value in declared):
                raise self._wrong_count(len(slots), len(by_name), missing=name)
            leaves += declared
        return leaves

    def unflatten(self, results: list[Any]) -> Any:
        """Return the outputs as the module returned them, without the inputs that it writes.

        If the file has no structure, one output is returned itself, and several as a tuple.
        """
        return self._make(results)

    def _find_written(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, ...]:
        """Return the positions of the inputs that the module writes: its first outputs, in this order."""
        mutated = outputs[: self._mutated(len(outputs))]
        positions = [next((k for k, i in enumerate(inputs) if i is o), None) for o in mutated]
        written = [k for k in positions if k is not None and isinstance(inputs[k], Var | FileTensor)]
        return tuple(written) if len(written) == len(mutated) else ()

    def _mutated(self, count: int) -> int:
        """Return how many of `count` outputs precede those that the module returned."""
        return 0 if self._result is None else count - self._result.leaves

    def _maker(self, count: int) -> Callable[[Sequence[Any]], Any]:
        if self._result is None:
            return itemgetter(0) if count == 1 else tuple
        mutated = self._mutated(count)
        make = self._result.maker(mutated)
        return (lambda results: (*results[:mutated], make(results))) if mutated and not self.written else make

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(f"{s.name}: {s}" for s in specs) for specs in (self.inputs, self.outputs))
        return shown(f"{self.method}({inputs}) -> {outputs or 'nothing'}")

    def _output_names(self, count: int) -> Iterator[str]:
        tree, mutated = self._result, self._mutated(count)
        yield from (f"mutated input {k}" for k in range(mutated))
        if tree is None or tree.kind == "leaf":
            yield from (f"output {k}" for k in range(count - mutated))
        else:
            for key, child in tree.items():
                name = f"output {key}" if tree.kind != "dict" else key if isinstance(key, str) else f"output[{key!r}]"
                yield from child.paths(name)

    def _wrong_count(self, expected: int, actual: int, missing: str = "") -> InvalidInput:
        shown = ", ".join(f"{s.name}: {s}" for s in self.inputs[:SHOWN]) + (", …" if len(self.inputs) > SHOWN else "")
        lacks = f", {missing} is missing" if missing in self._named else ""
        inputs = f"{expected} {'input' if len(self.inputs) == expected else 'argument'}{'s'[: expected != 1]}"
        return InvalidInput(f"{self.method} takes {inputs}, {actual} given{lacks}" + (f" ({shown})" if shown else ""))

    def _by_name(self) -> str:
        if self._named:
            return f"its inputs by name are {', '.join(self._named)}"
        shown = ", ".join(map(str, self.inputs[:SHOWN])) + (", …" if len(self.inputs) > SHOWN else "")
        return f"the file has no names of inputs; pass them in order: {shown}" if shown else "it takes no inputs"


def _fitting(text: str, count: int) -> Tree | None:
    """Return the tree that groups `count` outputs, if it fits; the first of them may be mutated inputs."""
    tree = read_tree(text)
    return tree if tree is not None and tree.leaves <= count else None


def _arguments(text: str, values: Sequence[Any]) -> tuple[list[Tree], dict[str, Tree]]:
    """Return the trees of the positional inputs and of the named inputs, including appended ones."""
    root = read_tree(text)
    if root is not None and [child.kind for child in root.children] == ["tuple", "dict"]:
        args, kwargs = root.children
        named = {str(key): tree for key, tree in zip(kwargs.keys, kwargs.children, strict=True)}
        named |= {value.name: Tree() for value in values[root.leaves :] if isinstance(value, Var)}
        if sum(tree.leaves for tree in (*args.children, *named.values())) == len(values):
            return list(args.children), named
    return [Tree()] * len(values), {}


Path: TypeAlias = tuple[Any, ...]  # (name of an argument, name of its method), then the keys to a part of it

VERSION = 1
MAX_DEPTH = 64
_TUPLES = ("builtins.tuple", "collections.namedtuple", "torch.Size")
_LISTS = ("builtins.list", "collections.deque", "torch.fx.immutable_collections.immutable_list")
_DICTS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


@dataclass(frozen=True, slots=True)
class Tree:
    """A leaf or a container of trees, as PyTorch encodes it. Dicts have a key per child; `absent` keys hold None."""

    kind: Literal["leaf", "tuple", "list", "dict"] = "leaf"
    children: tuple[Tree, ...] = ()
    keys: tuple[Any, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def leaves(self) -> int:
        """Count the leaves."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)

    def items(self) -> Iterator[tuple[Any, Tree]]:
        """Return the children with their keys or numbers."""
        return zip(self.keys or range(len(self.children)), self.children, strict=True)

    def paths(self, name: str) -> Iterator[str]:
        """Yield the name of each leaf of a value called `name`: x[0]['key']."""
        if self.kind == "leaf":
            yield name
        for key, child in self.items():
            yield from child.paths(f"{name}[{key!r}]")

    def flatten(self, value: Any, path: Path, leaves: list[Any]) -> None:
        """Append the leaves of `value`; raise InvalidInput, with its path, if it has another structure."""
        if self.kind == "leaf":
            leaves.append(value)
        elif self.kind == "dict":
            self._flatten_dict(value, path, leaves)
        else:
            is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
            if not is_sequence or len(value) != len(self.children):
                actual = f"{len(value)} items" if is_sequence else type(value).__name__
                raise InvalidInput(f"{_label(path)} must be a {self.kind} of {len(self.children)} items, not {actual}")
            for k, (item, child) in enumerate(zip(value, self.children, strict=True)):
                child.flatten(item, (*path, k), leaves)

    def _flatten_dict(self, value: Any, path: Path, leaves: list[Any]) -> None:
        if is_dataclass(value) and not isinstance(value, Mapping):
            value = {key: getattr(value, key, None) for key in self.keys}
        if not isinstance(value, Mapping) or set(value) - set(self.absent) != set(self.keys):
            actual = f"with {list(value)}" if isinstance(value, Mapping) else type(value).__name__
            raise InvalidInput(f"{_label(path)} must be a dict with the keys {list(self.keys)}, not {actual}")
        for key, child in zip(self.keys, self.children, strict=True):
            child.flatten(value[key], (*path, key), leaves)

    def maker(self, first: int = 0) -> Callable[[Sequence[Any]], Any]:
        """Return a function from results to a value of this structure, whose first leaf is result number `first`."""
        keys: list[Any] = []
        text = self._text(count(first), keys)
        return eval(f"lambda r: {text}", {"k": keys})  # type: ignore[no-any-return]  # brackets and numbers only

    def _text(self, numbers: Iterator[int], keys: list[Any]) -> str:
        """Return a Python expression for a value, from the results `r` and the keys `k`."""
        if self.kind == "leaf":
            return f"r[{next(numbers)}]"
        items = [child._text(numbers, keys) for child in self.children]
        if self.kind != "dict":
            return f"[{', '.join(items)}]" if self.kind == "list" else f"({''.join(f'{item}, ' for item in items)})"
        items += ["None"] * len(self.absent)
        pairs = [f"k[{len(keys) + n}]: {item}" for n, item in enumerate(items)]
        keys += [*self.keys, *self.absent]
        return f"{{{', '.join(pairs)}}}"


def _label(path: Path) -> str:
    (name, method), *keys = path
    return f"{name}{''.join(f'[{key!r}]' for key in keys)} of {method}"


def read_tree(text: str) -> Tree | None:
    """Return the tree that a file contains; None if it has none, or one of another version."""
    try:
        version, root = json.loads(text)
        return _node(root, MAX_DEPTH) if version == VERSION else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _node(spec: Any, depth: int) -> Tree:
    name, context = spec["type"], spec["context"]
    if name is None:
        return Tree()
    if not depth:
        raise ValueError("too deep")
    children = tuple([_node(child, depth - 1) for child in spec["children_spec"]])
    if name in _TUPLES:
        return Tree("tuple", children)
    if name in _LISTS:
        return Tree("list", children)
    keys: Any = json.loads(context) if isinstance(context, str) else context["dict_context"]
    absent: Any = ()
    if name not in _DICTS and len(keys) == 2 and all(isinstance(part, list) for part in keys):
        keys, absent = keys  # a dataclass: its fields with a value, and those that are None
    keys = tuple([tuple(key) if isinstance(key, list) else key for key in keys])
    if len(keys) != len(children) or len({*keys, *absent}) != len(keys) + len(absent):
        raise ValueError(f"{name} has {len(children)} items and the keys {keys}")
    return Tree("dict", children, keys, tuple(absent))
