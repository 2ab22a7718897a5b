"""PyTorch's encoding of nested containers: how a method's arguments were grouped when it was exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidInput


def flatten_inputs(arguments: Sequence[Any], tree: str, count: int, method: str) -> list[Any]:
    """The leaves of `arguments` in the program's order.

    As many arguments as the method has inputs are taken as they are; otherwise tuples, lists and dicts are opened as
    the program's container metadata says.
    """
    spec = _positional(tree)
    flat = len(arguments) == count and not any(isinstance(a, list | tuple | dict) for a in arguments)
    if flat or spec is None or _plain(spec):
        leaves = list(arguments)
    else:
        leaves = []
        if len(arguments) != len(spec):
            raise InvalidInput(f"{method} takes {len(spec)} arguments, {len(arguments)} given")
        for k, (argument, child) in enumerate(zip(arguments, spec, strict=True)):
            _open(argument, child, f"argument {k} of {method}", leaves)
    if len(leaves) != count:
        raise InvalidInput(f"{method} takes {count} inputs, {len(leaves)} given")
    return leaves


def _positional(tree: str) -> list[Any] | None:
    """The specs of the positional arguments, or None if the metadata is absent or of another kind."""
    try:
        version, root = json.loads(tree)
        if version != 1:
            return None
        args = root["children_spec"][0]
        kwargs = root["children_spec"][1]["children_spec"]
        return [*args["children_spec"], *kwargs]
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _plain(spec: list[Any]) -> bool:
    return all(child.get("type") is None for child in spec)


def _open(value: Any, spec: Any, what: str, leaves: list[Any]) -> None:
    kind = spec.get("type")
    children = spec.get("children_spec") or []
    if kind is None:
        leaves.append(value)
    elif kind.endswith(".tuple") or kind.endswith(".list") or kind.endswith("namedtuple"):
        if not isinstance(value, tuple | list) or len(value) != len(children):
            given = f"{len(value)} items" if isinstance(value, tuple | list) else type(value).__name__
            raise InvalidInput(f"{what} must be a {kind.rsplit('.', 1)[-1]} of {len(children)} items, not {given}")
        for k, (item, child) in enumerate(zip(value, children, strict=True)):
            _open(item, child, f"{what}[{k}]", leaves)
    elif kind.endswith(("dict", "Dict")):
        keys = json.loads(spec["context"]) if isinstance(spec.get("context"), str) else spec.get("context")
        if not isinstance(value, dict) or list(map(str, sorted(value, key=str))) != sorted(map(str, keys)):
            raise InvalidInput(f"{what} must be a dict with the keys {keys}")
        for key, child in zip(keys, children, strict=True):
            _open(value[key], child, f"{what}[{key!r}]", leaves)
    else:
        leaves.append(value)
