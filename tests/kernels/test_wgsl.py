"""Modules from `build`: accessors by dtype and lanes, parameters, symbolic ints, workgroups, memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests import tint
from tests.cases import device
from tests.kernels.running import run

from ptegpu.dtypes import DType
from ptegpu.gpu import Device
from ptegpu.kernels.wgsl import COMPUTE, PARAM_TYPES, KernelSpec, Storage, build, store_type, writable
from ptegpu.plan.directives import source
from ptegpu.plan.target import Target

F32, F16, I32, I8, U8, BOOL = DType.F32, DType.F16, DType.I32, DType.I8, DType.U8, DType.BOOL
INF, NAN = np.inf, np.nan
VALUES = {  # counts that fill neither a word nor a quad
    F32: [0.0, -0.0, 1.5, -3e38, 1e-38, INF, -INF, NAN, 16777217.0, 0.1, 7.0],
    F16: [0.0, -0.0, 1.5, -65504.0, 6e-8, INF, -INF, NAN, 2049.0, 0.1, 7.0],
    I32: [0, 1, -1, 2**31 - 1, -(2**31), 16777217, 255],
    I8: [0, 1, -1, 127, -128, 64, -65],
    U8: [0, 1, 255, 127, 128, 64, 192],
    BOOL: [True, False, False, True, True, False, True],
}
DEVICES = {"all features": {}, "of a browser": {"f16": False, "subgroups": False, "limits": "browser"}}


@pytest.fixture(params=DEVICES)
def gpu(request: pytest.FixtureRequest) -> Device:
    return device(**DEVICES[request.param])


def values(dtype: DType) -> np.ndarray:
    return np.array(VALUES[dtype], dtype.numpy)


def each(body: str, **options: Any) -> KernelSpec:
    """Build a kernel that runs `body` for every `i` below `P.n`, an element or a quad."""
    text = f"let i = group * WG + lid;\nif (i >= P.n) {{ return; }}\n{body}"
    return build("each", text, params=[("n", "u32")], workgroup=8, **options)


def steps(count: int, lanes: int) -> dict[str, Any]:
    n = -(-count // lanes)
    return {"groups": -(-n // 8), "params": {"n": n}}


@pytest.mark.parametrize(("dtype", "lanes"), list(itertools.product(COMPUTE, (1, 4))))
def test_reads_give_the_compute_type(gpu: Device, dtype: DType, lanes: int) -> None:
    x = values(dtype)
    out = I32 if COMPUTE[dtype] == "bool" else DType({"f32": "float32", "i32": "int32"}[COMPUTE[dtype]])
    four = "4" if lanes == 4 else ""
    value = f"x_at{four}(i)"
    if dtype is BOOL:
        value = f"select({'vec4<i32>(0), vec4<i32>(1)' if four else '0, 1'}, {value})"
    reads, writes = {"x": Storage(dtype, lanes)}, {"y": Storage(out, lanes)}
    spec = each(f"y_put{four}(i, {value});", target=gpu.target, reads=reads, writes=writes)
    (got,) = run(spec, [x], [len(x)], gpu, **steps(len(x), lanes))
    np.testing.assert_array_equal(x.astype(out.numpy), got)
    np.testing.assert_array_equal(np.signbit(x.astype(out.numpy)), np.signbit(got))


@pytest.mark.parametrize("dtype", COMPUTE)
def test_quads_of_every_dtype_are_written(gpu: Device, dtype: DType) -> None:
    x = values(dtype)
    reads, writes = {"x": Storage(dtype, 4)}, {"y": Storage(dtype, 4)}
    spec = each("y_put4(i, x_at4(i));", target=gpu.target, reads=reads, writes=writes)
    (got,) = run(spec, [x], [len(x)], gpu, **steps(len(x), 4))
    np.testing.assert_array_equal(x, got)


@pytest.mark.parametrize("dtype", COMPUTE)
def test_single_elements_are_written_where_they_share_no_word(gpu: Device, dtype: DType) -> None:
    x = values(dtype)
    reads, writes = {"x": Storage(dtype)}, {"y": Storage(dtype)}
    assert writable(dtype, gpu.target) == (dtype in (F32, I32) or (dtype is F16 and gpu.target.f16))
    if not writable(dtype, gpu.target):
        with pytest.raises(TypeError) as error:
            each("y_put(i, x_at(i));", target=gpu.target, reads=reads, writes=writes)
        expected = f"y: single elements of {dtype.value} share a word; write quads or another type"
        assert expected == str(error.value)
        assert writable(store_type(dtype, gpu.target), gpu.target)
        return
    assert dtype is store_type(dtype, gpu.target)
    spec = each("y_put(i, x_at(i));", target=gpu.target, reads=reads, writes=writes)
    (got,) = run(spec, [x], [len(x)], gpu, **steps(len(x), 1))
    np.testing.assert_array_equal(x, got)


@pytest.mark.parametrize(("dtype", "compute"), [(I8, I32), (U8, I32), (F16, F32)])
def test_what_is_wider_than_its_dtype(gpu: Device, dtype: DType, compute: DType) -> None:
    """Ints wrap, floats round to the nearest even, and beyond the largest half is infinity."""
    numbers = [300, -300, 128, -129, 2**31 - 1, 0, 5] if compute is I32 else [1e-9, 2049, 2051, 65519, -1e6, NAN, 0.1]
    x = np.array(numbers, compute.numpy)
    reads, writes = {"x": Storage(compute, 4)}, {"y": Storage(dtype, 4)}
    spec = each("y_put4(i, x_at4(i));", target=gpu.target, reads=reads, writes=writes)
    (got,) = run(spec, [x], [len(x)], gpu, **steps(len(x), 4))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(x.astype(dtype.numpy), got)


def test_what_is_written_can_be_read(gpu: Device) -> None:
    writes = {"y": Storage(F32), "z": Storage(I8, 4)}
    body = "y_put(i, 3.0);\ny_put(i, y_at(i) + f32(i));\nz_put4(i, vec4<i32>(7));\nz_put4(i, z_at4(i) * i32(i));"
    y, z = run(each(body, target=gpu.target, reads={}, writes=writes), [], [5, 20], gpu, **steps(5, 1))
    np.testing.assert_array_equal(3 + np.arange(5), y)
    np.testing.assert_array_equal(7 * np.repeat(np.arange(5), 4), z)


def test_raw_words_have_no_accessors(gpu: Device) -> None:
    x = np.arange(32, dtype=np.uint8)
    reads, writes = {"x": Storage(U8, raw="vec4<u32>")}, {"y": Storage(I32)}
    spec = each("y_put(i, bitcast<i32>(x[i].z));", target=gpu.target, reads=reads, writes=writes)
    assert "x_at" not in spec.kernel.wgsl
    (got,) = run(spec, [x], [2], gpu, **steps(2, 1))
    np.testing.assert_array_equal(x.view(np.int32)[[2, 6]], got)


def test_parameters_and_symbolic_ints(gpu: Device) -> None:
    params = [("big", "u32"), ("low", "i32"), ("slot", "sym"), ("half", "f32"), ("last", "sym"), ("much", "f32")]
    body = """\
  whole_put(0u, bitcast<i32>(P.big)); whole_put(1u, P.low); whole_put(2u, sym(P.slot)); whole_put(3u, sym(P.last));
  part_put(0u, P.half); part_put(1u, P.much);"""
    writes = {"whole": Storage(I32), "part": Storage(F32)}
    spec = build("told", body, target=gpu.target, reads={}, writes=writes, params=params, workgroup=1)
    assert spec.reads_syms
    arguments = {"big": 2**32 - 1, "low": -5, "slot": 3, "half": 0.5, "last": 252, "much": -1.8e308}
    ints, floats = run(spec, [], [4, 2], gpu, params=arguments, syms=range(-3, 253))
    assert [-1, -5, 3, 252] == ints.tolist()
    assert [0.5, -INF] == floats.tolist()


def test_workgroups_of_a_folded_grid_are_numbered(gpu: Device) -> None:
    """The grid may be larger than the number of workgroups; the others do nothing."""
    body = "if (lid == 1u) { y_put(group, i32(group) + i32(P.groups) * 100); }"
    spec = build("numbered", body, target=gpu.target, reads={}, writes={"y": Storage(I32)}, workgroup=2)
    for grid in ((7, 1), (1, 7), (3, 3), (4, 2)):
        (got,) = run(spec, [], [9], gpu, groups=7, grid=grid)
        assert [*range(700, 707), 0, 0] == got.tolist()


SHARED = {"f32": 4, "i32": 4, "u32": 4, "atomic<u32>": 4, "vec2<f32>": 8, "vec4<f32>": 16, "vec4<i32>": 16}
SHARED |= {"vec4<u32>": 16}


def test_workgroup_memory_is_shared_and_counted(gpu: Device) -> None:
    body = "tile[lid] = i32(lid) * 3;\nworkgroupBarrier();\ny_put(group * WG + lid, tile[WG - 1u - lid]);"
    shared = {"tile": ("i32", 16), "counts": ("atomic<u32>", 3)}
    spec = build("turned", body, target=gpu.target, reads={}, writes={"y": Storage(I32)}, workgroup=16, shared=shared)
    assert 4 * 16 + 4 * 3 == spec.kernel.shared_bytes
    (got,) = run(spec, [], [32], gpu, groups=2)
    assert [*range(45, -1, -3)] * 2 == got.tolist()


@pytest.mark.parametrize("element", SHARED)
def test_workgroup_memory_of_every_type(element: str) -> None:
    spec = build("k", "", target=Target(), reads={}, writes={}, shared={"a": (element, 3), "b": ("f32", 1)})
    assert 3 * SHARED[element] + 4 == spec.kernel.shared_bytes
    assert [] == tint.check([source(spec.kernel, "tint")])


def test_features_are_asked_for_where_they_are_used() -> None:
    halves, plain = {"x": Storage(F16)}, {"x": Storage(F32)}
    for target, reads, subgroups, needs in (
        (Target(f16=True), halves, False, ("f16",)),
        (Target(f16=False), halves, False, ()),
        (Target(f16=True), plain, False, ()),
        (Target(f16=True), plain, True, ("subgroups",)),
        (Target(f16=True), halves, True, ("f16", "subgroups")),
    ):
        kernel = build("k", "", target=target, reads=reads, writes={}, subgroups=subgroups).kernel
        assert needs == kernel.needs
        assert subgroups == ("sg_lane" in kernel.wgsl)
        assert [] == tint.check([source(kernel, "tint")])


def test_a_subgroup_knows_its_lanes() -> None:
    gpu = device()
    assert gpu.target.subgroup_size
    body = "let all = subgroupAdd(1u);\ny_put(lid, i32(sg_lane) + 100 * i32(all) + 10000 * i32(sg_size));"
    spec = build("k", body, target=gpu.target, reads={}, writes={"y": Storage(I32)}, workgroup=32, subgroups=True)
    (got,) = run(spec, [], [32], gpu)
    size = gpu.target.subgroup_size
    assert [lane % size + 10100 * size for lane in range(32)] == got.tolist()


def test_helpers_stand_before_main(gpu: Device) -> None:
    writes = {"y": Storage(F32)}
    helpers = "fn twice(i: u32) -> f32 { return 2.0 * y_at(i) + f32(P.n) + f32(WG); }"
    spec = each("y_put(i, 1.0);\ny_put(i, twice(i));", target=gpu.target, reads={}, writes=writes, helpers=helpers)
    (got,) = run(spec, [], [3], gpu, **steps(3, 1))
    assert [13.0] * 3 == got.tolist()


def test_bindings_come_in_order() -> None:
    reads, writes = {"a": Storage(F32), "b": Storage(I8, 4)}, {"c": Storage(F32)}
    spec = build("k", "", target=Target(), reads=reads, writes=writes, params=[("s", "sym")], workgroup=64)
    assert ("read", "read", "write", "uniform", "uniform") == spec.kernel.access
    assert (tuple(reads.values()), tuple(writes.values()), 64) == (spec.reads, spec.writes, spec.kernel.workgroup)
    declared = [line for line in spec.kernel.wgsl.splitlines() if line.startswith("@group(0)")]
    assert [f"@group(0) @binding({k}) var<" for k in range(5)] == [line.split("<")[0] + "<" for line in declared]


def test_a_parameter_of_no_type_is_refused() -> None:
    assert {"u32", "i32", "f32", "sym"} == set(PARAM_TYPES)
    with pytest.raises(KeyError, match="f16"):
        build("k", "", target=Target(), reads={}, writes={}, params=[("p", "f16")])
    with pytest.raises(KeyError, match="f64"):
        build("k", "", target=Target(), reads={}, writes={}, shared={"a": ("f64", 1)})
