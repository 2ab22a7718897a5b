"""How the invocations of a workgroup share rows: so many lanes to a row, and how the lanes agree on one number.

A row is whatever ends in a few numbers: the elements behind one output of a sum, a line of a softmax, a vector that is
normalised. Bodies built with `Lanes` see `row` (clamped to `P.rows`), `live` (false for a clamped one, which must not
be written), and `lane`. Barriers and subgroup operations are at the top level of the body, so that control flow is
uniform there. The size of a subgroup is never assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..plan.target import Target

SMALLEST_SUBGROUP = 4  # what WGSL guarantees
HELD_AT_MOST = 4  # loads a lane keeps in registers


class Agreement(NamedTuple):
    """An associative operation of two values `a` and `b`, and the subgroup function that does the same."""

    merge: str
    subgroup: str = ""


SUM = Agreement("{a} + {b}", "subgroupAdd")
MAX = Agreement("max({a}, {b})", "subgroupMax")


@dataclass(frozen=True, slots=True)
class Lanes:
    """A workgroup shared by `workgroup // count` rows."""

    count: int  # lanes of a row, a power of two
    workgroup: int  # invocations
    columns: bool = False  # neighbouring invocations work on neighbouring rows, whose elements are neighbours
    subgroups: bool = False

    @property
    def rows(self) -> int:
        return self.workgroup // self.count

    @property
    def by_subgroup(self) -> bool:
        """Whether lanes agree through subgroups first: only where all of a workgroup has one row."""
        return self.subgroups and 1 < self.count == self.workgroup

    def without_subgroups(self) -> Lanes:
        return replace(self, subgroups=False)

    def groups(self, rows: int) -> int:
        """Workgroups for so many rows."""
        return -(-rows // self.rows)

    def place(self, block: str = "group") -> str:
        """Declares `row`, `lane` and `live` of this invocation in the workgroup numbered `block`."""
        if self.rows == 1:
            return f"  let row = {block}; let lane = lid; let live = true;"
        inside, lane = f"lid / {self.count}u", f"lid % {self.count}u"
        if self.columns:
            inside, lane = f"lid % {self.rows}u", f"lid / {self.rows}u"
        return (
            f"  let own = {block} * {self.rows}u + {inside}; let lane = {lane};\n"
            "  let live = own < P.rows; let row = min(own, P.rows - 1u);"
        )

    def shared(self, element: str, *names: str) -> dict[str, tuple[str, int]]:
        """The workgroup arrays that agreeing takes: one per agreement, so that none waits for another's readers."""
        if self.count == 1:
            return {}
        size = self.workgroup // SMALLEST_SUBGROUP if self.by_subgroup else self.workgroup
        return {n: (element, max(1, size)) for n in names}

    def tree(self, store: str, merge: str) -> str:
        """`store` leaves a lane's value at `lid`, `merge` folds the one at `there` into it, until `first` has all."""
        step = self.rows if self.columns else 1
        lines = [f"  {store}", "  workgroupBarrier();"]
        half = self.count // 2
        while half:
            lines.append(f"  if (lane < {half}u) {{ let there = lid + {half * step}u; {merge} }}")
            lines.append("  workgroupBarrier();")
            half //= 2
        return "\n".join(lines)

    @property
    def first(self) -> str:
        """The invocation of the row's first lane."""
        return f"lid - lane * {self.rows if self.columns else 1}u"

    def agree(self, result: str, value: str, how: Agreement, shared: str) -> str:
        """Declares `result`: the agreement of the row's lanes on their `value`s, known to all of them."""
        if self.count == 1:
            return f"  let {result} = {value};"
        if self.by_subgroup:
            merged = how.merge.format(a=result, b=f"{shared}[k]")
            return (
                f"  let {result}_part = {how.subgroup}({value});\n"
                f"  if (sg_lane == 0u) {{ {shared}[lid / sg_size] = {result}_part; }}\n"
                "  workgroupBarrier();\n"
                f"  var {result} = {shared}[0];\n"
                f"  for (var k = 1u; k < (WG + sg_size - 1u) / sg_size; k++) {{ {result} = {merged}; }}"
            )
        merge = f"{shared}[lid] = {how.merge.format(a=f'{shared}[lid]', b=f'{shared}[there]')};"
        return self.tree(f"{shared}[lid] = {value};", merge) + f"\n  let {result} = {shared}[{self.first}];"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Walks of a row's lanes over its loads: `held` of them per lane in registers, or, if 0, loaded on each walk."""

    lanes: Lanes
    held: int
    load: str  # of index `j`, below P.length

    def start(self, element: str) -> str:
        """Fills the registers; those beyond the row's end are never used."""
        lines = []
        for k in range(self.held):
            lines.append(f"  let j{k} = lane + {k * self.lanes.count}u; var v{k} = {element}();")
            lines.append(f"  if (j{k} < P.length) {{ let j = j{k}; v{k} = {self.load}; }}")
        return "\n".join(lines)

    def each(self, body: str) -> str:
        """`body` for every load of this lane: its index `j` and value `v`."""
        if not self.held:
            step = self.lanes.count
            return f"  for (var j = lane; j < P.length; j += {step}u) {{\n    let v = {self.load};\n    {body}\n  }}"
        return "\n".join(f"  if (j{k} < P.length) {{ let j = j{k}; let v = v{k}; {body} }}" for k in range(self.held))


def held(lanes: Lanes, loads: int) -> int:
    """How many loads each lane keeps; 0 where the row is too long."""
    each = -(-loads // lanes.count)
    return each if each <= HELD_AT_MOST else 0


class Variant(NamedTuple):
    """So many lanes per row where the condition holds for (rows, loads of a row)."""

    lanes: int
    when: Callable[[int, int], bool] | None


# The first that matches is taken; the last has no condition.
ALONG_ROWS = (
    Variant(1, lambda rows, loads: loads <= 4),
    Variant(8, lambda rows, loads: loads <= 32),
    Variant(32, lambda rows, loads: loads <= 128),
    Variant(256, None),
)
ACROSS_ROWS = (
    Variant(1, lambda rows, loads: loads <= 16 or rows >= 65536),
    Variant(8, None),
)


def choose(variants: Sequence[Variant], rows: int, loads: int, target: Target) -> Lanes:
    """The lanes for rows of so many loads."""
    workgroup = target.workgroup(256)
    lanes = next(v.lanes for v in variants if v.when is None or v.when(rows, loads))
    return Lanes(min(lanes, workgroup), workgroup, variants is ACROSS_ROWS, target.subgroups)
