"""What a method takes and gives: each value with its name, dtype and bounds, and how values are grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ..errors import InvalidInput
from ..format import Method as FileMethod
from ..format import Tensor, Value
from ..plan.method import CompiledMethod, Operand, Var
from ..printing import shown
from .tree import Tree, read_tree

SHOWN = 8  # inputs listed in a message


@dataclass(frozen=True, slots=True, repr=False)
class Spec:
    """One input or output.

    The file says of a whole tensor whether its shape may change, and not of each dimension: where it is `dynamic`, each
    dimension is at most that of `shape`.
    """

    name: str  # "input 0", "mask", "argument 1['key']"
    dtype: str  # of a tensor "float32", "bfloat16", …; of a number "int", "float", "bool"; "str"; "list"; "None"
    shape: tuple[int, ...] | None = None  # None: no tensor, or one of any shape
    dynamic: bool = False
    value: Any = (
        None  # of what is no tensor: what it was exported with, and takes no other; None: an int that may change
    )

    @staticmethod
    def of(name: str, value: Operand | Value) -> Spec:
        """Return a value as the file declares it, or as a loaded method does."""
        if isinstance(value, Tensor):
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


class Signature:
    """The inputs and outputs of a method, from the file or as loaded."""

    def __init__(self, method: FileMethod | CompiledMethod) -> None:
        takes: list[Any] = list(method.inputs)
        gives: list[Any] = list(method.outputs)
        if isinstance(method, FileMethod):
            takes, gives = [method.values[k] for k in takes], [method.values[k] for k in gives]
        self.method = method.name
        positional, self._named = _arguments(method.input_tree, takes)
        self._result = _fitting(method.output_tree, len(gives))
        nested = any(tree.kind != "leaf" for tree in positional)
        word = "argument" if nested else "input"  # which are counted apart where one argument is several inputs
        self._slots = [*((f"{word} {k}", tree) for k, tree in enumerate(positional)), *self._named.items()]
        names = [n for name, tree in self._slots for n in tree.paths(name)]
        self.inputs = tuple([Spec.of(name, value) for name, value in zip(names, takes, strict=True)])
        self.outputs = tuple(
            [Spec.of(n, value) for n, value in zip(self._output_names(len(gives)), gives, strict=True)]
        )
        self.written = self._find_written(takes, gives)
        self._make = self._maker(len(gives))
        self._plain = all(tree.kind == "leaf" for _, tree in self._slots)
        self._takes = takes

    def flatten(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """List the arguments of a call one by one, in the program's order.

        As many as the method has inputs are taken as they are. Otherwise tuples, lists and dicts are opened as they
        were when the program was exported. A keyword input that takes one value only may be left out.
        """
        if (
            not keywords
            and len(arguments) == len(self.inputs)
            and (self._plain or not any(map(_is_container, arguments)))
        ):
            return list(arguments)
        slots = self._slots
        if len(arguments) > len(slots):
            raise self._wrong_count(len(slots), len(arguments))
        given = dict(zip((name for name, _ in slots), arguments))
        for name, value in keywords.items():
            if name not in self._named:
                raise InvalidInput(f"{self.method} has no input called {name!r}: {self._by_name()}")
            if name in given:
                raise InvalidInput(f"{self.method} is given {name} twice, by position and by name")
            given[name] = value
        leaves: list[Any] = []
        for name, tree in slots:
            if name in given:
                tree.flatten(given[name], ((name, self.method),), leaves)
                continue
            declared = self._takes[len(leaves) : len(leaves) + tree.leaves]
            if name not in self._named or any(isinstance(value, Var | Tensor) for value in declared):
                raise self._wrong_count(len(slots), len(given), missing=name)
            leaves += declared
        return leaves

    def unflatten(self, results: list[Any]) -> Any:
        """Return the outputs as the module returned them, without those that are inputs it writes.

        Where the file does not say, one output is itself and several are a tuple.
        """
        return self._make(results)

    def _find_written(self, takes: Sequence[Any], gives: Sequence[Any]) -> tuple[int, ...]:
        """Return the positions of the inputs that the module writes: its first outputs, in this order."""
        mutated = gives[: self._mutated(len(gives))]
        places = [next((k for k, t in enumerate(takes) if t is g), None) for g in mutated]
        written = [k for k in places if k is not None and isinstance(takes[k], Var | Tensor)]
        return tuple(written) if len(written) == len(mutated) else ()

    def _mutated(self, count: int) -> int:
        """Return how many of `count` outputs come before those that the module returned."""
        return 0 if self._result is None else count - self._result.leaves

    def _maker(self, count: int) -> Callable[[Sequence[Any]], Any]:
        if self._result is None:
            return itemgetter(0) if count == 1 else tuple
        mutated = self._mutated(count)
        make = self._result.maker(mutated)
        return (lambda results: (*results[:mutated], make(results))) if mutated and not self.written else make

    def __repr__(self) -> str:
        takes, gives = (", ".join(f"{s.name}: {s}" for s in specs) for specs in (self.inputs, self.outputs))
        return shown(f"{self.method}({takes}) -> {gives or 'nothing'}")

    def _output_names(self, count: int) -> Iterator[str]:
        tree, mutated = self._result, self._mutated(count)
        yield from (f"mutated input {k}" for k in range(mutated))
        if tree is None or tree.kind == "leaf":
            yield from (f"output {k}" for k in range(count - mutated))
        else:
            for key, child in tree.items():
                name = f"output {key}" if tree.kind != "dict" else key if isinstance(key, str) else f"output[{key!r}]"
                yield from child.paths(name)

    def _wrong_count(self, wanted: int, given: int, missing: str = "") -> InvalidInput:
        shown = ", ".join(f"{s.name}: {s}" for s in self.inputs[:SHOWN]) + (", …" if len(self.inputs) > SHOWN else "")
        lacks = f", {missing} is missing" if missing in self._named else ""
        inputs = f"{wanted} {'input' if len(self.inputs) == wanted else 'argument'}{'s'[: wanted != 1]}"
        return InvalidInput(f"{self.method} takes {inputs}, {given} given{lacks}" + (f" ({shown})" if shown else ""))

    def _by_name(self) -> str:
        if self._named:
            return f"its inputs by name are {', '.join(self._named)}"
        shown = ", ".join(map(str, self.inputs[:SHOWN])) + (", …" if len(self.inputs) > SHOWN else "")
        return f"the file has no names of inputs; pass them in order: {shown}" if shown else "it takes no inputs"


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


def _fitting(text: str, count: int) -> Tree | None:
    """Return a tree that can group `count` outputs, of which the first may be mutated inputs."""
    tree = read_tree(text)
    return tree if tree is not None and tree.leaves <= count else None


def _arguments(text: str, values: Sequence[Any]) -> tuple[list[Tree], dict[str, Tree]]:
    """Return the trees of the positional inputs, and of those with a name; inputs that were appended have one."""
    root = read_tree(text)
    if root is not None and [child.kind for child in root.children] == ["tuple", "dict"]:
        args, kwargs = root.children
        named = {str(key): tree for key, tree in zip(kwargs.keys, kwargs.children, strict=True)}
        named |= {value.name: Tree() for value in values[root.leaves :] if isinstance(value, Var)}
        if sum(tree.leaves for tree in (*args.children, *named.values())) == len(values):
            return list(args.children), named
    return [Tree()] * len(values), {}
