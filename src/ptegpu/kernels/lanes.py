"""The division of a workgroup's invocations into lanes of rows, and the reduction of a row's lanes to one number.

A row is a sequence of elements that is reduced to a few numbers: the operands of one sum, a row of a softmax, a vector
to be normalised. Bodies built with `Lanes` have `row` (clamped to `P.rows`), `live` (false for a clamped row, which
must not be written), and `lane`. Barriers and subgroup operations are at the top level of the body or in loops with
uniform bounds. Lanes of one subgroup shuffle. The results of subgroups, and all values if the subgroup size is unknown,
go through workgroup memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..plan.target import Target
from .wgsl import u32s

UNROLLED = 8  # maximum reads of workgroup memory that are unrolled
HELD_AT_MOST = 10  # maximum loads of a row that a lane keeps in registers
HELD_OF_PIECE = 8  # maximum loads of a piece that a lane keeps in registers
AGREED_BYTES = 32  # upper bound of workgroup memory for each invocation that shares numbers


class Agreement(NamedTuple):
    """An associative and commutative operation of two values `a` and `b`."""

    merge: str


SUM = Agreement("{a} + {b}")
MAX = Agreement("max({a}, {b})")


@dataclass(frozen=True, slots=True)
class Lanes:
    """A workgroup shared by `workgroup // count` rows."""

    count: int  # lanes of a row, a power of two
    workgroup: int  # invocations
    columns: bool = False  # neighbouring invocations work on neighbouring rows, whose elements are neighbours
    subgroup: int = 0  # invocations of a subgroup; 0: unknown

    @property
    def rows(self) -> int:
        return self.workgroup // self.count

    @property
    def step(self) -> int:
        """The distance of successive lanes, in invocations."""
        return self.rows if self.columns else 1

    @property
    def in_subgroup(self) -> int:
        """The lanes of a row in one subgroup."""
        return min(self.count, max(1, self.subgroup // self.step))

    @property
    def by_subgroup(self) -> bool:
        """True if the kernel needs subgroups."""
        return self.in_subgroup > 1

    def groups(self, rows: int) -> int:
        return -(-rows // self.rows)

    def place(self, block: str = "group") -> str:
        """Return WGSL that declares `row`, `lane` and `live` of this invocation in workgroup `block`."""
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
        """Return the workgroup arrays of agreements, one for each, so that none waits for another's readers."""
        if self.count == self.in_subgroup:
            return {}
        return {n: (element, self.workgroup // self.in_subgroup) for n in names}

    def tree(self, store: str, merge: str) -> str:
        """Return WGSL in which lanes `store` values at `lid` and `merge` those at `there`, until `first` has all."""
        lines = [f"  {store}", "  workgroupBarrier();"]
        half = self.count // 2
        while half:
            lines.append(f"  if (lane < {half}u) {{ let there = lid + {half * self.step}u; {merge} }}")
            lines.append("  workgroupBarrier();")
            half //= 2
        return "\n".join(lines)

    @property
    def first(self) -> str:
        """The invocation of the row's first lane."""
        return f"lid - lane * {self.step}u"

    def agree(self, result: str, value: str, operation: Agreement, shared: str) -> str:
        """Return WGSL that declares `result`: the agreement of the row's lanes on their `value`s, in all lanes."""
        merge = f"{result} = {operation.merge.format(a=result, b=f'there_{result}')};"
        return f"  var {result} = {value};\n" + self.fold({result: shared}, merge)

    def fold(self, values: Mapping[str, str], merge: str) -> str:
        """Return WGSL in which the row's lanes agree on variables; `values` maps these to their workgroup arrays.

        `merge` folds `there_<variable>` of another lane into each.
        """

        def at(index: str) -> str:
            return "".join(f"let there_{v} = {s}[{index}]; " for v, s in values.items())

        def store(index: str) -> str:
            return "".join(f"{s}[{index}] = {v}; " for v, s in values.items())

        def take(index: str) -> str:
            return "".join(f"{v} = {s}[{index}]; " for v, s in values.items())

        if self.count == 1:
            return ""
        if not self.subgroup:
            return self.tree(store("lid"), f"{at('there')}{merge} {store('lid')}") + f"\n  {take(self.first)}"
        lines = self._shuffled(values, merge, self.in_subgroup)
        rest = self.count // self.in_subgroup
        if rest > 1:
            slot, own = self._slot, f"lane / {self.in_subgroup}u"
            lines += [f"  if (lane % {self.in_subgroup}u == 0u) {{ {store(slot.format(k=own))}}}"]
            lines += ["  workgroupBarrier();"]
            readers = min(rest, self.in_subgroup)
            lines += [f"  {take(slot.format(k=f'lane % {readers}u'))}"]
            fold_next = f"{at(slot.format(k=f'(lane % {readers}u + k)'))}{merge}"
            if rest <= UNROLLED * readers:
                lines += [f"  {{ let k = {k}u; {fold_next} }}" for k in range(readers, rest, readers)]
            else:
                lines.append(f"  for (var k = {readers}u; k < {rest}u; k += {readers}u) {{ {fold_next} }}")
            lines += self._shuffled(values, merge, readers)
        return "\n".join(lines)

    def _shuffled(self, values: Mapping[str, str], merge: str, lanes: int) -> list[str]:
        """Return lines in which `lanes` neighbouring lanes exchange their values until all have the result."""
        lines = []
        while lanes > 1:
            lanes //= 2
            shuffles = "".join(f"let there_{v} = subgroupShuffleXor({v}, {lanes * self.step}u); " for v in values)
            lines.append(f"  {{ {shuffles}{merge} }}")
        return lines

    @property
    def _slot(self) -> str:
        """The place in workgroup memory for the values of the row's subgroup `k`."""
        if self.columns:
            return f"{{k}} * {self.rows}u + lid % {self.rows}u"
        return f"lid / {self.count}u * {self.count // self.in_subgroup}u + {{k}}"

    def scan(self, value: str, operator: str, zero: str, shared: str) -> str:
        """Return WGSL that declares `before` and `whole`: `value` over the row's earlier lanes, and over all lanes."""
        if self.count == 1:
            return f"  let before = {zero}; let whole = {value};"
        lines = [f"  var run = {value};"]
        if not self.subgroup:
            lines += [f"  {shared}[lid] = run;", "  workgroupBarrier();"]
            for d in _doublings(self.count):
                lines += [
                    f"  if (lane >= {d}u) {{ run = {shared}[lid - {d * self.step}u] {operator} run; }}",
                    "  workgroupBarrier();",
                    f"  {shared}[lid] = run;",
                    "  workgroupBarrier();",
                ]
            earlier = f"{shared}[select(lid, lid - {self.step}u, lane > 0u)]"
            lines += [f"  let before = select({zero}, {earlier}, lane > 0u);"]
            lines += [f"  let whole = {shared}[{self.first} + {(self.count - 1) * self.step}u];"]
            return "\n".join(lines)
        lines.append(f"  let place = lane % {self.in_subgroup}u;")
        for d in _doublings(self.in_subgroup):
            up = f"let up = subgroupShuffleUp(run, {d * self.step}u);"
            lines.append(f"  {{ {up} if (place >= {d}u) {{ run = up {operator} run; }} }}")
        if self.in_subgroup > 1:
            lines += [f"  let up = subgroupShuffleUp(run, {self.step}u);"]
            lines += [f"  var before = select({zero}, up, place > 0u);"]
        else:
            lines += [f"  var before = {zero};"]
        rest = self.count // self.in_subgroup
        if rest == 1:
            last = f"sg_lane + ({self.in_subgroup - 1}u - place) * {self.step}u"
            return "\n".join([*lines, f"  let whole = subgroupShuffle(run, {last});"])
        slot = self._slot
        lines += [
            f"  let own_slot = lane / {self.in_subgroup}u;",
            f"  if (place == {self.in_subgroup - 1}u) {{ {shared}[{slot.format(k='own_slot')}] = run; }}",
            "  workgroupBarrier();",
            f"  var whole = {zero};",
        ]
        for k in range(rest):
            lines.append(f"  if (own_slot == {k}u) {{ before = whole {operator} before; }}")
            lines.append(f"  whole = whole {operator} {shared}[{slot.format(k=f'{k}u')}];")
        return "\n".join(lines)


def _doublings(below: int) -> list[int]:
    return [1 << k for k in range(below.bit_length() - 1)]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Walks of a row's lanes over its loads, `held` of which each lane keeps in registers; 0 loads them on each walk.

    Of a whole row, lanes hold all loads (`held`).
    """

    lanes: Lanes
    held: int
    load: str  # WGSL of the load with index `j`, below `end`
    begin: str = "0u"
    end: str = "P.length"

    @property
    def filled(self) -> int:
        """The registers that every lane fills: all but the last one of a whole row."""
        return self.held - 1 if self.end == "P.length" else 0

    def start(self, element: str) -> str:
        """Return WGSL that fills the registers; loads beyond the end repeat the last one and are never used."""
        lines = [f"  let j{k} = {self.begin} + lane + {k * self.lanes.count}u;" for k in range(self.held)]
        for k in range(self.held):
            j = f"j{k}" if k < self.filled else f"min(j{k}, {self.end} - 1u)"
            lines += [f"  var v{k}: {element};", f"  {{ let j = {j}; v{k} = {self.load}; }}"]
        return "\n".join(lines)

    def each(self, body: str) -> str:
        """Return WGSL of `body` for every load of this lane, with its index `j` and value `v`."""
        if not self.held:
            step = self.lanes.count
            return f"  for (var j = lane; j < P.length; j += {step}u) {{\n    let v = {self.load};\n    {body}\n  }}"
        lines = []
        for k in range(self.held):
            within = "" if k < self.filled else f"if (j{k} < {self.end}) "
            lines.append(f"  {within}{{ let j = j{k}; let v = v{k}; {body} }}")
        return "\n".join(lines)

    def put(self, value: str) -> str:
        """Return WGSL that replaces the value `v` in every register."""
        return "\n".join(f"  {{ let v = v{k}; v{k} = {value}; }}" for k in range(self.held))


def held(lanes: Lanes, loads: int) -> int:
    """Return the number of loads that each lane keeps; 0 if the row is too long."""
    each = -(-loads // lanes.count)
    return each if each <= HELD_AT_MOST else 0


Stage = Literal["whole", "statistics", "results"]  # of a kernel for whole rows, or of the two kernels for pieces


class Pieces(NamedTuple):
    """A row in `parts` pieces of `piece` loads, of which each lane of a piece's workgroup holds `held`."""

    parts: int
    piece: int
    held: int

    def params(self, stage: Stage) -> dict[str, int | float]:
        return {} if stage == "whole" else {"parts": self.parts, "piece": self.piece}


def pieces(lanes: Lanes, loads: int) -> Pieces:
    """Return a row in one piece if its lanes can hold it, and in several otherwise."""
    each = held(lanes, loads)
    if each or not loads:
        return Pieces(1, loads, each)
    parts = -(-loads // (lanes.count * HELD_OF_PIECE))
    piece = -(-loads // parts)
    return Pieces(-(-loads // piece), piece, -(-piece // lanes.count))


def cut_place(stage: Stage, lanes: Lanes) -> tuple[str, str, str]:
    """Return WGSL that declares `row`, `lane`, `live` and `part`, and the begin and end of the workgroup's loads."""
    if stage == "whole":
        return lanes.place(), "0u", "P.length"
    place = f"  let part = group % P.parts;\n{lanes.place('(group / P.parts)')}"
    return f"{place}\n  let end = min((part + 1u) * P.piece, P.length);", "part * P.piece", "end"


def stage_name(name: str, stage: Stage) -> str:
    return name if stage == "whole" else f"{name}_{stage}"


def cut_params(stage: Stage) -> list[tuple[str, str]]:
    return [] if stage == "whole" else u32s("parts", "piece")


class LaneRule(NamedTuple):
    """The lanes per row, under a condition on (rows, loads of a row, workgroups that keep the GPU busy)."""

    lanes: int
    when: Callable[[int, int, int], bool] | None
    workgroup: int = 256


class LaneTable(NamedTuple):
    """Rules for a kind of rows: the first one that holds and fits the target is taken; the last has no condition."""

    columns: bool
    rules: tuple[LaneRule, ...]


_SHORT_ROWS = (
    LaneRule(1, lambda rows, loads, busy: loads <= 4),
    LaneRule(8, lambda rows, loads, busy: loads <= 32),
    LaneRule(32, lambda rows, loads, busy: loads <= 128 or (loads <= 256 and rows >= 16 * busy)),
    LaneRule(64, lambda rows, loads, busy: loads <= 512 and rows >= 16 * busy),
)
# Rows of any number of loads, which are read once.
ALONG_ROWS = LaneTable(False, (*_SHORT_ROWS, LaneRule(256, None)))
ACROSS_ROWS = LaneTable(
    True,
    (
        LaneRule(1, lambda rows, loads, busy: loads <= 8 or rows >= 1024 * busy),
        LaneRule(8, lambda rows, loads, busy: loads <= 64 or rows >= 128 * busy),
        LaneRule(32, lambda rows, loads, busy: rows > 4 or loads <= 256),
        LaneRule(64, None),
    ),
)
# Rows that lanes hold in registers, whole or in pieces.
HELD_ROWS = LaneTable(
    False,
    (
        *_SHORT_ROWS,
        LaneRule(256, lambda rows, loads, busy: loads <= 256 * HELD_OF_PIECE),
        LaneRule(512, lambda rows, loads, busy: loads <= 512 * HELD_OF_PIECE, 512),
        LaneRule(1024, lambda rows, loads, busy: loads <= 1024 * HELD_AT_MOST, 1024),
        LaneRule(256, None),
    ),
)
HELD_COLUMNS = LaneTable(
    True,
    (
        LaneRule(1, lambda rows, loads, busy: loads <= HELD_OF_PIECE),
        LaneRule(8, lambda rows, loads, busy: loads <= 8 * HELD_OF_PIECE),
        LaneRule(32, lambda rows, loads, busy: loads <= 32 * HELD_OF_PIECE),
        LaneRule(128, lambda rows, loads, busy: loads <= 128 * HELD_OF_PIECE, 1024),
        LaneRule(32, None),
    ),
)


def choose(table: LaneTable, rows: int, loads: int, target: Target) -> Lanes:
    """Return the lanes for rows of `loads` loads."""
    subgroup = target.subgroup_size if target.subgroups else 0
    for v in table.rules:
        workgroup = target.workgroup(v.workgroup)
        lanes = Lanes(min(v.lanes, workgroup), workgroup, table.columns, subgroup)
        fits = workgroup == v.workgroup and workgroup // lanes.in_subgroup * AGREED_BYTES <= target.max_shared_bytes
        if v.when is None or (v.when(rows, loads, target.device_class.busy) and (fits or v.workgroup <= 256)):
            return lanes
    raise AssertionError("the last rule has no condition")
