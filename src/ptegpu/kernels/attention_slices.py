"""Rows of attention in vectors, and the slices of a workgroup, which keep separate softmaxes of these rows.

The scores, tops and sums of up to four rows form a vector, so that an exponential or an access serves four rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .wgsl import LOWEST

MOST_SLICES = 16
SPARE = 512  # maximum quads of workgroup memory for joining slices
VECTORS = {1: "f32", 2: "vec2<f32>", 4: "vec4<f32>"}


@dataclass(frozen=True, slots=True)
class RowVectors:
    """Rows in vectors; their number is a power of two."""

    count: int

    @property
    def width(self) -> int:
        return min(self.count, 4)

    @property
    def vectors(self) -> range:
        return range(self.count // self.width)

    @property
    def type(self) -> str:
        return VECTORS[self.width]

    def of(self, vector: str, r: int) -> str:
        """Return row r's element of the vectors named `vector` and a number."""
        return f"{vector}{r // self.width}{'' if self.width == 1 else '.' + 'xyzw'[r % self.width]}"

    def vector(self, v: int, element: Callable[[int], str]) -> str:
        """Return vector v, made of `element(r)` for each of its rows."""
        return f"{self.type}({', '.join(element(v * self.width + c) for c in range(self.width))})"


@dataclass(frozen=True, slots=True)
class Slices:
    """A workgroup split into slices that hold whole values; a lane has quads lane, lane + lanes and so on."""

    rows: RowVectors
    quads: int  # of a value
    lanes: int
    count: int  # slices, a power of two; invocations beyond them idle

    @staticmethod
    def of(rows: RowVectors, quads: int, workgroup: int, most: int = MOST_SLICES) -> Slices:
        lanes = min(quads, workgroup)
        return Slices(rows, quads, lanes, 1 << (min(most, workgroup // lanes).bit_length() - 1))

    @property
    def held(self) -> int:
        """The quads of a lane."""
        return -(-self.quads // self.lanes)

    def quad(self, j: int) -> str:
        """Return the index of a lane's j-th quad, clamped to the last one."""
        d = f"lane + {j * self.lanes}u"
        return f"min({d}, {self.quads - 1}u)" if self.quads % self.lanes else d

    def start(self) -> list[str]:
        """Return lines that declare `lane`, `slice`, and the running softmaxes of the rows."""
        kind = self.rows.type
        lines = [f"let lane = lid % {self.lanes}u; let slice = lid / {self.lanes}u;"]
        lines += [f"var top{v} = {kind}({LOWEST}); var sum{v} = {kind}();" for v in self.rows.vectors]
        return lines + [f"var acc{r}_{j} = vec4<f32>();" for r, j in self._cells()]

    def shared(self) -> dict[str, tuple[str, int]]:
        size = len(self.rows.vectors) * self.count
        parts = self.rows.count * self.held * self.lanes * max(1, self.count // 2)
        return {
            "tops": (self.rows.type, size),
            "sums": (self.rows.type, size),
            "spare": ("vec4<f32>", min(SPARE, parts)),
        }

    def finish(self, row: str) -> list[str]:
        """Return lines that join the slices' softmaxes and leave the results of rows `row` + r."""
        cells, slices, spare = self._cells(), self.count, self.shared()["spare"][1]
        lines = self._faded() if slices > 1 else []
        while slices > 1 and slices * self.lanes * len(cells) > spare:  # the upper half adds to the lower one
            slices //= 2
            width = slices * self.lanes
            for k in range(0, len(cells), spare // width):
                part = list(enumerate(cells[k : k + spare // width]))
                lines += [
                    f"if (slice >= {slices}u && slice < {2 * slices}u) {{",
                    *(f"  spare[{n * width}u + lid - {width}u] = acc{r}_{j};" for n, (r, j) in part),
                    "}",
                    "workgroupBarrier();",
                    f"if (slice < {slices}u) {{",
                    *(f"  acc{r}_{j} += spare[{n * width}u + lid];" for n, (r, j) in part),
                    "}",
                    "workgroupBarrier();",
                ]
        width = slices * self.lanes
        if slices > 1:
            lines.append(f"if (slice < {slices}u) {{")
            lines += [f"  spare[{n * width}u + lid] = acc{r}_{j};" for n, (r, j) in enumerate(cells)]
            lines += ["}", "workgroupBarrier();"]
        for v in self.rows.vectors if self.count > 1 else ():
            lines.append(f"sum{v} = {' + '.join(f'sums[{v * self.count + i}]' for i in range(self.count))};")
        for n, (r, j) in enumerate(cells):
            shares = (f"spare[{n * width + s * self.lanes}u + lane]" for s in range(slices))
            weighted = " + ".join(shares) if slices > 1 else f"acc{r}_{j}"
            d, top, sum_ = f"lane + {j * self.lanes}u", self.rows.of("top", r), self.rows.of("sum", r)
            inside = f"slice == {n % slices}u && {row} + {r}u <= last && {d} < {self.quads}u"
            lines.append(f"if ({inside}) {{ leave(z, head, {row} + {r}u, split, {d}, {weighted}, {top}, {sum_}); }}")
        return lines

    def _cells(self) -> list[tuple[int, int]]:
        return [(r, j) for r in range(self.rows.count) for j in range(self.held)]

    def _faded(self) -> list[str]:
        """Return lines that scale all slices to the highest tops, and store their sums before the next barrier."""
        at = [f"{v * self.count}u + slice" for v in self.rows.vectors]
        own = f"if (lane == 0u && slice < {self.count}u) {{"
        lines = [own, *(f"  tops[{at[v]}] = top{v};" for v in self.rows.vectors), "}", "workgroupBarrier();"]
        for v in self.rows.vectors:
            lines.append(f"let own{v} = top{v};")
            lines += [f"top{v} = max(top{v}, tops[{v * self.count + i}]);" for i in range(self.count)]
            lines.append(f"let fade{v} = exp(own{v} - top{v});")
        lines += [f"acc{r}_{j} *= {self.rows.of('fade', r)};" for r, j in self._cells()]
        return [*lines, own, *(f"  sums[{at[v]}] = sum{v} * fade{v};" for v in self.rows.vectors), "}"]
