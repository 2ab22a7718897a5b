"""Writes of rows [batch, queries, width] into caches [batch, positions, width], in place from a symbolic position on.

A negative position counts as 0, and rows beyond the last position are dropped, so that no write leaves the cache. One
dispatch writes any number of caches of one shape, in one of four styles:

- "quads": the width is a multiple of four, and an invocation copies four elements;
- "blocks": a cache is Q8, and an invocation copies a block;
- "elements": an invocation copies one element;
- "words": several elements share a word, so an invocation owns a quad of the cache and replaces elements in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import BLOCK, DType
from ..plan.target import Target
from ..sizes import cached
from .blocks import QUADS
from .wgsl import I32, KernelSpec, Storage, build, u32s

_MOVE = """
  let i = group * WG + lid;
  let row = i / P.width;
  let position = start() + row % P.queries;
  if (row >= P.batch * P.queries || position >= P.positions) {{ return; }}
  let to = (row / P.queries * P.positions + position) * P.width + i % P.width;
{moves}"""

_MERGE = """
  let i = group * WG + lid;
  let first = start(); let end = min(first + P.queries, P.positions);
  let total = P.batch * P.positions * P.width;
  var any_inside = false;
{places}
  if (!any_inside) {{ return; }}
{merges}"""

_PLACE = """  let e{j} = i * 4u + {j}u; let row{j} = e{j} / P.width; let position{j} = row{j} % P.positions;
  let inside{j} = e{j} < total && position{j} >= first && position{j} < end;
  let from{j} = ((row{j} / P.positions) * P.queries + position{j} - first) * P.width + e{j} % P.width;
  any_inside = any_inside || inside{j};"""


def unit_of(caches: Sequence[DType]) -> int:
    """Return the elements that an invocation copies where widths are multiples of them: a quad or a block."""
    return BLOCK if DType.Q8 in caches else 4


def _moves(caches: tuple[DType, ...], unit: int) -> str:
    """Return lines that copy unit `i` of the values to unit `to` of the caches."""
    lines = []
    for n, dtype in enumerate(caches):
        quads = [f"value{n}_at4({QUADS}u * i + {j}u)" for j in range(QUADS)]
        if dtype is DType.Q8:
            lines.append(f"  cache{n}_put_block(to, {', '.join(quads)});")
        elif unit == BLOCK:
            lines += [f"  cache{n}_put4({QUADS}u * to + {j}u, {quad});" for j, quad in enumerate(quads)]
        else:
            four = "4" if unit == 4 else ""
            lines.append(f"  cache{n}_put{four}(to, value{n}_at{four}(i));")
    return "\n".join(lines)


@cached(64)
def write_pages(
    values: tuple[DType, ...], caches: tuple[DType, ...], unit: int, page: int, target: Target
) -> KernelSpec:
    """Write rows [queries, width] into pages [pages, page, width], by the sequence and position of each row.

    An invocation copies a `unit` of elements, and `width` counts these.
    Rows of sequence -1 and positions without a page are not written.
    """
    body = f"""
  let i = group * WG + lid; let row = i / P.width;
  if (row >= P.queries) {{ return; }}
  let sequence = rows_at(2u * row); let position = rows_at(2u * row + 1u);
  if (sequence < 0 || u32(sequence) >= P.sequences) {{ return; }}
  if (position < 0 || u32(position) >= P.table_width * {page}u) {{ return; }}
  let found = tables_at(u32(sequence) * P.table_width + u32(position) / {page}u);
  if (found < 0 || u32(found) >= P.pages) {{ return; }}
  let to = (u32(found) * {page}u + u32(position) % {page}u) * P.width + i % P.width;
{_moves(caches, unit)}"""
    lanes = min(unit, 4)
    reads = {**{f"value{n}": Storage(d, lanes) for n, d in enumerate(values)}, "rows": I32, "tables": I32}
    writes = {f"cache{n}": Storage(d, lanes) for n, d in enumerate(caches)}
    params = u32s("queries", "width", "table_width", "sequences", "pages")
    return build("write_pages", body, target=target, reads=reads, writes=writes, params=params)


@cached(64)
def write_cache(style: str, values: tuple[DType, ...], caches: tuple[DType, ...], target: Target) -> KernelSpec:
    """Write rows into caches; `width` counts quads for the style "quads", and blocks for "blocks"."""
    names, lanes = range(len(values)), 4 if style in ("quads", "blocks") else 1
    if style == "words":
        places = "\n".join(_PLACE.format(j=j) for j in range(4))
        merges = []
        for n in names:
            merges.append(f"  var v{n} = cache{n}_at4(i);")
            merges += [f"  if (inside{j}) {{ v{n}.{c} = value{n}_at(from{j}); }}" for j, c in enumerate("xyzw")]
            merges.append(f"  cache{n}_put4(i, v{n});")
        body = _MERGE.format(places=places, merges="\n".join(merges))
    else:
        body = _MOVE.format(moves=_moves(caches, {"elements": 1, "quads": 4, "blocks": BLOCK}[style]))
    return build(
        "write_cache",
        body,
        target=target,
        reads={f"value{n}": Storage(d, lanes) for n, d in zip(names, values, strict=True)},
        writes={f"cache{n}": Storage(d, 1 if style == "elements" else 4) for n, d in zip(names, caches, strict=True)},
        params=[*u32s("batch", "queries", "positions", "width"), ("start", "sym")],
        helpers="fn start() -> u32 { return min(u32(max(sym(P.start), 0)), P.positions); }",
    )
