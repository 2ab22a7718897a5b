"""PyTorch's encoding of nested containers: how a method's arguments and results were grouped when it was exported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

from ..errors import InvalidInput

Path: TypeAlias = tuple[Any, ...]  # what an argument is called, and the keys to a part of it

VERSION = 1
MAX_DEPTH = 64
_TUPLES = ("builtins.tuple", "collections.namedtuple", "torch.Size")
_LISTS = ("builtins.list", "collections.deque", "torch.fx.immutable_collections.immutable_list")
_DICTS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


@dataclass(frozen=True, slots=True)
class Tree:
    """A leaf, or a container of trees. A dict has a key for each child; what is `absent` is None in every value."""

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

    def paths(self, at: str) -> Iterator[str]:
        """Name each leaf, where the whole is called `at`: x[0]['key']."""
        if self.kind == "leaf":
            yield at
        for key, child in self.items():
            yield from child.paths(f"{at}[{key!r}]")

    def flatten(self, value: Any, path: Path, leaves: list[Any]) -> None:
        """Append the leaves of `value`; InvalidInput, calling it by its path, if it has another structure."""
        if self.kind == "leaf":
            leaves.append(value)
        elif self.kind == "dict":
            self._flatten_dict(value, path, leaves)
        else:
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            if not listed or len(value) != len(self.children):
                given = f"{len(value)} items" if listed else type(value).__name__
                raise InvalidInput(f"{_said(path)} must be a {self.kind} of {len(self.children)} items, not {given}")
            for k, (item, child) in enumerate(zip(value, self.children, strict=True)):
                child.flatten(item, (*path, k), leaves)

    def _flatten_dict(self, value: Any, path: Path, leaves: list[Any]) -> None:
        if is_dataclass(value) and not isinstance(value, Mapping):
            value = {key: getattr(value, key, None) for key in self.keys}
        if not isinstance(value, Mapping) or set(value) - set(self.absent) != set(self.keys):
            given = f"with {list(value)}" if isinstance(value, Mapping) else type(value).__name__
            raise InvalidInput(f"{_said(path)} must be a dict with the keys {list(self.keys)}, not {given}")
        for key, child in zip(self.keys, self.children, strict=True):
            child.flatten(value[key], (*path, key), leaves)

    def maker(self, first: int = 0) -> Callable[[Sequence[Any]], Any]:
        """Return a function from results, of which number `first` is the first leaf, to a value of this structure."""
        keys: list[Any] = []
        text = self._text(count(first), keys)
        return eval(f"lambda r: {text}", {"k": keys})  # type: ignore[no-any-return]  # brackets and numbers only

    def _text(self, numbers: Iterator[int], keys: list[Any]) -> str:
        """Return Python that makes a value, of the results `r` and the keys `k`."""
        if self.kind == "leaf":
            return f"r[{next(numbers)}]"
        items = [child._text(numbers, keys) for child in self.children]
        if self.kind != "dict":
            return f"[{', '.join(items)}]" if self.kind == "list" else f"({''.join(f'{item}, ' for item in items)})"
        items += ["None"] * len(self.absent)
        pairs = [f"k[{len(keys) + n}]: {item}" for n, item in enumerate(items)]
        keys += [*self.keys, *self.absent]
        return f"{{{', '.join(pairs)}}}"


def _said(path: Path) -> str:
    """Return what a message calls it: the first is a name and where it belongs, the others are keys."""
    (name, of), *keys = path
    return f"{name}{''.join(f'[{key!r}]' for key in keys)} of {of}"


def read_tree(text: str) -> Tree | None:
    """Return the tree that a file holds; None where there is none, or one of another kind."""
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
        keys, absent = keys  # a dataclass: the fields that hold something, and those that are None
    keys = tuple([tuple(key) if isinstance(key, list) else key for key in keys])
    if len(keys) != len(children) or len({*keys, *absent}) != len(keys) + len(absent):
        raise ValueError(f"{name} has {len(children)} items and the keys {keys}")
    return Tree("dict", children, keys, tuple(absent))
