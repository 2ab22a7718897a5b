"""Sets of lanes that walk along K together, and sums over them."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.target import Target


@dataclass(frozen=True, slots=True)
class Gemv:
    """How the work is shared out. A workgroup has `slots` sets of `lanes`, a set has `rows` rows of the weight."""

    rows: int
    lanes: int  # over K
    words: int = 4  # per load: 1, 2 or 4
    slots: int = 1
    staged: bool = False  # `a` is read from workgroup memory
    digits: bool = False  # and is ints there
    walks: bool = False  # workgroups go on to further rows, so that each reads `a` once


def by_subgroups(how: Gemv, target: Target) -> bool:
    return target.subgroups and target.subgroup_size > 0 and how.lanes % target.subgroup_size == 0


def halved(values: list[str], workgroup: int, count: int, lane: str = "lid", last: int = 1) -> list[str]:
    """Return lines that add each value up over `count` lanes, in `partial`, until `last` lanes have the sums."""
    places = [i * workgroup for i in range(len(values))]
    lines = [f"partial[{at}u + lid] = {v};" for at, v in zip(places, values, strict=True)]
    stride = count // 2
    while stride >= last:
        lines += [
            "workgroupBarrier();",
            f"if ({lane} < {stride}u) {{",
            *(f"  partial[{at}u + lid] += partial[{at + stride}u + lid];" for at in places),
            "}",
        ]
        stride //= 2
    return lines


def reduce_lanes(values: list[str], how: Gemv, target: Target) -> tuple[list[str], list[str], int]:
    """Add each value up over a set of lanes: return lines, the totals as expressions, and words of workgroup memory."""
    count, workgroup = len(values), how.lanes * how.slots
    if how.lanes == 1:
        return [], values, 0
    if by_subgroups(how, target):
        size = target.subgroup_size
        each = how.lanes // size
        lines = [f"let added{i} = subgroupAdd({v});" for i, v in enumerate(values)]
        if each == 1:
            return lines, [f"added{i}" for i in range(count)], 0
        lines += [f"let subgroup = lid / {size}u;", "if (sg_lane == 0u) {"]
        lines += [f"  partial[subgroup * {count}u + {i}u] = added{i};" for i in range(count)]
        lines += ["}", "workgroupBarrier();", f"let own = lid / {how.lanes}u * {each * count}u;"]
        totals = [" + ".join(f"partial[own + {j * count + i}u]" for j in range(each)) for i in range(count)]
        return lines, [f"({t})" for t in totals], workgroup // size * count
    lines = [*halved(values, workgroup, how.lanes, "lane"), "workgroupBarrier();"]
    return lines, [f"partial[{i * workgroup}u + lid - lane]" for i in range(count)], workgroup * count
