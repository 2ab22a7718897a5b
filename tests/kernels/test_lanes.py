"""Lanes that share rows and combine their values, on the adapter: along rows and across, with and without subgroups."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.cases import device
from tests.kernels.running import run

from ptegpu.dtypes import DType
from ptegpu.gpu import Device
from ptegpu.kernels.lanes import (
    ACROSS_ROWS,
    AGREED_BYTES,
    ALONG_ROWS,
    HELD_AT_MOST,
    HELD_COLUMNS,
    HELD_OF_PIECE,
    HELD_ROWS,
    MAX,
    SUM,
    Lanes,
    LaneTable,
    Sweep,
    choose,
    held,
    pieces,
)
from ptegpu.kernels.wgsl import KernelSpec, Storage, build
from ptegpu.plan.target import Target

F32, I32 = DType.F32, DType.I32
WORKGROUP = 64
SHAPES = list(itertools.product((1, 2, 8, 32, 64), (False, True), (False, True)))  # lanes, columns, subgroups
TARGETS = [Target(), Target(max_invocations=1024, max_shared_bytes=32768), Target(max_invocations=128)]
CHOICES = [ALONG_ROWS, ACROSS_ROWS, HELD_ROWS, HELD_COLUMNS]


def lanes_of(count: int, columns: bool, subgroups: bool) -> tuple[Lanes, Device]:
    gpu = device(subgroups=subgroups)
    assert bool(gpu.target.subgroup_size) == subgroups
    return Lanes(count, WORKGROUP, columns, gpu.target.subgroup_size), gpu


def kernel(lanes: Lanes, body: str, gpu: Device, *names: str, writes: int = 1) -> KernelSpec:
    return build(
        "lanes",
        f"{lanes.place()}\n{body}",
        target=gpu.target,
        reads={"x": Storage(I32)},
        writes={name: Storage(I32) for name in ("y", "z")[:writes]},
        params=[("rows", "u32"), ("length", "u32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared("i32", *names),
        subgroups=lanes.by_subgroup,
    )


def numbers(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(rows + length).integers(-1000, 1000, (rows, length)).astype(np.int32)


@pytest.mark.parametrize(("count", "columns", "subgroups"), SHAPES)
def test_all_lanes_of_a_row_agree(count: int, columns: bool, subgroups: bool) -> None:
    lanes, gpu = lanes_of(count, columns, subgroups)
    rows, length = 2 * lanes.rows + 1 if lanes.rows > 1 else 3, 70  # the last workgroup is not full
    x = numbers(rows, length)
    body = f"""\
  var part = 0; var top = -100000;
  for (var j = lane; j < P.length; j += {count}u) {{ let v = x_at(row * P.length + j); part += v; top = max(top, v); }}
{lanes.agree("total", "part", SUM, "totals")}
{lanes.agree("highest", "top", MAX, "tops")}
  if (live) {{ y_put(row * {count}u + lane, total); z_put(row * {count}u + lane, highest); }}"""
    spec = kernel(lanes, body, gpu, "totals", "tops", writes=2)
    params = {"rows": rows, "length": length}
    y, z = run(spec, [x.reshape(-1)], [rows * count] * 2, gpu, groups=lanes.groups(rows), params=params)
    np.testing.assert_array_equal(np.repeat(x.sum(1), count), y)
    np.testing.assert_array_equal(np.repeat(x.max(1), count), z)


@pytest.mark.parametrize(("count", "columns", "subgroups"), SHAPES)
def test_several_values_are_folded_together(count: int, columns: bool, subgroups: bool) -> None:
    """Lanes find the largest element and its index, the first of equal ones."""
    lanes, gpu = lanes_of(count, columns, subgroups)
    rows, length = lanes.rows + 1, 70
    x = numbers(rows, length) % 10
    better = "there_best > best || (there_best == best && there_place < place)"
    merge = f"if ({better}) {{ best = there_best; place = there_place; }}"
    body = f"""\
  var best = -1; var place = 100000;
  for (var j = lane; j < P.length; j += {count}u) {{
    let v = x_at(row * P.length + j);
    if (v > best) {{ best = v; place = i32(j); }}
  }}
{lanes.fold({"best": "bests", "place": "places"}, merge)}
  if (live && lane == 0u) {{ y_put(row, best); z_put(row, place); }}"""
    spec = kernel(lanes, body, gpu, "bests", "places", writes=2)
    params = {"rows": rows, "length": length}
    y, z = run(spec, [x.reshape(-1)], [rows, rows], gpu, groups=lanes.groups(rows), params=params)
    np.testing.assert_array_equal(x.max(1), y)
    np.testing.assert_array_equal(x.argmax(1), z)


@pytest.mark.parametrize(("count", "columns", "subgroups"), SHAPES)
def test_scans_know_what_comes_before(count: int, columns: bool, subgroups: bool) -> None:
    lanes, gpu = lanes_of(count, columns, subgroups)
    rows = lanes.rows + 1
    x = numbers(rows, count)
    body = f"""\
  let own_value = x_at(row * {count}u + lane);
{lanes.scan("own_value", "+", "0", "sums")}
  if (live) {{ y_put(row * {count}u + lane, before); z_put(row * {count}u + lane, whole); }}"""
    spec = kernel(lanes, body, gpu, "sums", writes=2)
    params = {"rows": rows, "length": count}
    y, z = run(spec, [x.reshape(-1)], [x.size] * 2, gpu, groups=lanes.groups(rows), params=params)
    np.testing.assert_array_equal((x.cumsum(1) - x).reshape(-1), y)
    np.testing.assert_array_equal(np.repeat(x.sum(1), count), z)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 40, 80, 81])
@pytest.mark.parametrize("subgroups", [False, True])
def test_sweeps_meet_every_load_once(length: int, subgroups: bool) -> None:
    """A sweep holds a row in registers, or loads it in each pass if it is too long."""
    lanes, gpu = lanes_of(8, False, subgroups)
    sweep = Sweep(lanes, held(lanes, length), "x_at(row * P.length + j)")
    assert (sweep.held == 0) == (length > 8 * HELD_AT_MOST)
    x = numbers(9, length)
    body = f"""\
{sweep.start("i32")}
  var part = 0;
{sweep.each("part += v * i32(j + 1u);")}
{sweep.put("v * 2")}
{sweep.each("if (live) { y_put(row * P.length + j, v); }")}
{lanes.agree("total", "part", SUM, "totals")}
  if (live && lane == 0u) {{ z_put(row, total); }}"""
    spec = kernel(lanes, body, gpu, "totals", writes=2)
    params = {"rows": 9, "length": length}
    y, z = run(spec, [x.reshape(-1)], [x.size, 9], gpu, groups=lanes.groups(9), params=params)
    np.testing.assert_array_equal((x * (2 if sweep.held else 1)).reshape(-1), y)
    np.testing.assert_array_equal((x * np.arange(1, length + 1)).sum(1), z)


@pytest.mark.parametrize("loads", [0, 1, 80, 640, 641, 1000, 5120, 100_003])
def test_pieces_cover_a_row_and_fit_the_registers(loads: int) -> None:
    lanes = Lanes(64, 64)
    split = pieces(lanes, loads)
    assert (split.parts - 1) * split.piece < max(loads, 1) <= max(split.parts * split.piece, 1)
    assert split.held <= (HELD_AT_MOST if split.parts == 1 else HELD_OF_PIECE)
    assert split.held * lanes.count >= split.piece
    assert ({} if split.parts == 1 else {"parts": split.parts, "piece": split.piece}) == split.params(
        "whole" if split.parts == 1 else "statistics"
    )


@pytest.mark.parametrize("choice", CHOICES, ids=["along", "across", "held rows", "held columns"])
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_chosen_fits_the_target(choice: LaneTable, target: Target) -> None:
    rows_and_loads = itertools.product((1, 3, 100, 5000, 200_000), (1, 4, 30, 200, 5000, 10**6))
    for subgroup, (rows, loads) in itertools.product((0, 4, 32), rows_and_loads):
        adapter = replace(target, subgroups=bool(subgroup), subgroup_size=subgroup)
        lanes = choose(choice, rows, loads, adapter)
        assert lanes.workgroup <= target.max_invocations
        assert lanes.count & (lanes.count - 1) == 0 < lanes.count <= lanes.workgroup
        assert (choice.columns, subgroup) == (lanes.columns, lanes.subgroup)
        assert lanes.groups(rows) * lanes.rows >= rows > (lanes.groups(rows) - 1) * lanes.rows
        for _, left in lanes.shared("vec4<f32>", "a").values():
            assert left * AGREED_BYTES <= target.max_shared_bytes


def test_many_short_rows_share_a_workgroup_and_one_long_row_has_it_whole() -> None:
    target = Target()
    assert (1, 256) == ((short := choose(ALONG_ROWS, 1000, 3, target)).count, short.rows)
    assert (256, 1) == ((long := choose(ALONG_ROWS, 2, 10**5, target)).count, long.rows)
    assert {} == short.shared("f32", "a") and {"a": ("f32", 256)} == long.shared("f32", "a")
    assert 8 == replace(long, subgroup=8).in_subgroup and replace(long, subgroup=8).by_subgroup
    assert {"a": ("f32", 32)} == replace(long, subgroup=8).shared("f32", "a")
