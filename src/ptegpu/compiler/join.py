"""The stretches of a method as graphs: what each hands on, which states it keeps to itself. Needs no GPU library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..graph.flat import FlatMethod
from ..limits import tick
from ..plan.method import Instruction, Var, variables
from .build import Joined, build
from .order import reads, writes
from .partition import Host, Item, Stretch


class Join(NamedTuple):
    """Per stretch, by its position among the items."""

    graphs: dict[int, Joined]
    states: dict[int, set[Var]]  # live inside the graph
    read: dict[int, list[int]]  # positions of the outputs that the host looks at


def join(flat: FlatMethod, items: list[Item]) -> Join:
    """A graph per stretch: what it must hand on, what the host will look at, which states it keeps to itself."""
    touched = [_touched(item) for item in items]
    reads = [read_by(item) for item in items]
    finals = {v for o in flat.outputs for v in variables(o)}
    users = Counter(v for found in touched for v in found)  # by how many items
    readers = Counter(v for found in reads for v in found)
    on_host = finals.union(*(read for read, item in zip(reads, items, strict=True) if isinstance(item, Host)))
    found = Join({}, {}, {})
    for k, item in enumerate(items):
        if not isinstance(item, Stretch):
            continue
        tick()
        states = {v for v in touched[k] if v.kind == "state" and users[v] == 1}
        written = dict.fromkeys(written_by(item))
        first = _read_first(item)
        wanted = {v for v in written if v in finals or v in first or readers[v] > (v in reads[k])}
        needed = [v for v in written if (v not in states and (v in wanted or v.kind == "state")) or v in finals]
        found.states[k] = states
        found.read[k] = [p for p, v in enumerate(needed) if v in on_host]
        found.graphs[k] = build(f"{flat.name}.{k}", item.calls, needed, states)
    return found


def written_by(item: Item) -> list[Var]:
    """The slots that get a value there."""
    return [v for i in _instructions(item) for v in writes(i)]


def read_by(item: Item) -> set[Var]:
    """The slots whose values it uses."""
    return {v for i in _instructions(item) for v in reads(i)}


def _instructions(item: Item) -> Sequence[Instruction]:
    return item.calls if isinstance(item, Stretch) else [item.instruction]


def _touched(item: Item) -> set[Var]:
    return read_by(item) | set(written_by(item))


def _read_first(item: Stretch) -> set[Var]:
    """Slots that the stretch itself reads before it writes them: the next round of a loop needs them."""
    seen: set[Var] = set()
    first: set[Var] = set()
    for c in item.calls:
        first.update(v for v in variables(c.args) if v not in seen)
        seen.update(c.outs)
    return first & seen
