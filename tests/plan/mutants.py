"""Bundles with a single defect: the checksum is correct, the JSON is not."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

from ptegpu.plan.bundle import ALIGN, HEAD, MAGIC

ODD: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, 5, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30, -(2**31), -(2**63)),
    *(0.0, 0.5, -1.0, 1e300, float("nan"), float("inf"), True, False, None),
    *("", "x", "{}", "{0.__class__}", "%s%n", "\0", "forward", "input 0", "\ud800"[:0] + "é" * 40),
    *([], [0], [[]], [-1], [10**9], {}, {"slot": 0}, {"slot": -1}, {"float": "nan"}, {"tuple": []}),
)
OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "div", "min", "max", "ceil", "floor", "lt", "ge", "eq", "ne")


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the JSON of a file, and the bytes after it."""
    length = int.from_bytes(content[len(MAGIC) : len(MAGIC) + 8], "little")
    end = HEAD + length
    return json.loads(content[HEAD:end]), content[end + -end % ALIGN :]


def whole(document: Any, data: bytes) -> bytes:
    """Return a file with this JSON and a correct checksum."""
    text = json.dumps(document, separators=(",", ":")).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return head + bytes(-len(head) % ALIGN) + data


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*path, key))


def changed(document: Any, path: tuple[Any, ...], change: Any) -> Any:
    """Return a copy with `change(container, key)` applied at `path`; all other parts are shared."""
    top = copy.copy(document)
    inner = top
    for key in path[:-1]:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    change(inner, path[-1])
    return top


def mutants(document: Any, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield descriptions of changes and changed documents. Every kind of place occurs equally often."""
    chance = random.Random(seed)
    kinds: dict[str, list[tuple[Any, ...]]] = {}
    for path in places(document):
        kinds.setdefault(".".join("*" if isinstance(k, int) else k for k in path), []).append(path)
    names = sorted(kinds)
    alike: dict[str, list[tuple[Any, ...]]] = {}  # places whose last name is the same
    for path in places(document):
        alike.setdefault(_last_name(path), []).append(path)
    for number in range(count):
        path = chance.choice(kinds[names[number % len(names)]])
        other = _at(document, chance.choice(alike[_last_name(path)]))
        what, change = _change(_at(document, path), other, path[-1], chance)
        yield f"{'.'.join(map(str, path))}: {what}", changed(document, path, change)


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def _last_name(path: tuple[Any, ...]) -> str:
    return next(str(key) for key in reversed(path) if isinstance(key, str)) + str(isinstance(path[-1], int))


def _change(old: Any, other: Any, key: Any, chance: random.Random) -> tuple[str, Any]:
    """Return a change of a value with its description; `other` is a value from a similar place."""
    ways: list[tuple[str, Any]] = [("odd", chance.choice(ODD)) for _ in range(3)]
    ways += [("another", other)] * 8
    if type(old) is int:
        ways += [("near", old + d) for d in (-1, 1, 4, -16, 16)] + [("scaled", -old), ("scaled", old * 2**20)]
        ways += [("float", float(old)), ("bool", bool(old)), ("text", str(old)), ("list", [old])]
    elif isinstance(old, str):
        ways += [("text", old + "{}"), ("text", old[:-1]), ("text", chance.choice(OPERATIONS))]
    elif isinstance(old, list) and old:
        some = chance.randrange(len(old))
        ways += [("shorter", old[:-1]), ("longer", [*old, old[some]]), ("reversed", old[::-1]), ("deeper", [old])]
        ways += [("doubled", [*old[:some], old[some], *old[some:]]), ("rotated", [*old[1:], old[0]])]
        ways += [("long", old * 50)]
        if key == "rows":
            n = len(old)
            ways += [("squares", [*old, *(["mul", k, k] for k in range(n - 1, n + 60))])]
            ways += [("sums", [*old, *(["add", k, k] for k in range(n - 1, n + 2000))])]
            ways += [("forward", [*old[:-1], ["add", n, n - 1]]), ("itself", [*old[:-1], ["add", n - 1, n - 1]])]
    elif isinstance(old, dict) and old:
        name = chance.choice(sorted(old))
        ways += [("lacks " + name, {k: v for k, v in old.items() if k != name}), ("more", old | {"more": 1})]
        ways += [("renamed " + name, {k + "x" if k == name else k: v for k, v in old.items()})]
    deep: Any = 0
    for _ in range(300):
        deep = [deep]
    ways.append(("nested", deep))
    kind, new = chance.choice(ways)
    if chance.random() < 0.04:
        return "gone", lambda container, key: container.pop(key)

    def change(container: Any, key: Any) -> None:
        container[key] = new

    return f"{kind} {str(new)[:60]} for {str(old)[:40]}", change
