"""The registry of host kernels: the operators it covers, its calls, its error messages."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest
from tests.graph.test_names import portable_operators
from tests.portable.harness import NAN, expected, parameters, schema, spec, to_numpy

from ptegpu.dtypes import DType
from ptegpu.errors import ExecutionError, IndexOutOfRange, InvalidProgram, ShapeError, UnsupportedProgram
from ptegpu.graph.names import functional
from ptegpu.graph.schema import OPTIONS, REQUIRED
from ptegpu.portable import PORTABLE, OutSpec, call, portable, registry
from ptegpu.portable.families import FAMILIES

BY_HAND = {  # no oracle with comparable numbers
    "aten.rand.default",
    "aten.randn.default",
    "aten.native_dropout.default",
    "aten.empty.memory_format",
    "dim_order_ops._empty_dim_order.default",
    "aten._fft_r2c.default",
    "aten._fft_c2r.default",
    "et_copy._h2d_copy.default",
    "et_copy._d2h_copy.default",
}
F32, I64, BOOL = OutSpec(DType.F32), OutSpec(DType.I64), OutSpec(DType.BOOL)


def message(text: str) -> str:
    return f"^{re.escape(text)}$"


def test_every_portable_operator_is_served() -> None:
    assert [name for name in portable_operators() if functional(name) not in PORTABLE] == []


def test_every_kernel_has_a_case() -> None:
    cases = {c.name for family in FAMILIES for c in importlib.import_module(f"tests.portable.test_{family}").CASES}
    assert set(PORTABLE) - BY_HAND == cases


def test_each_family_lists_its_operators() -> None:
    listed = {(family, name) for family, names in FAMILIES.items() for name in names.split()}
    registered = {(k.function.__module__.rpartition(".")[2], name.split(".")[1]) for name, k in PORTABLE.items()}
    assert registered == listed


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_bounded_before_a_kernel_computes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose result can be larger than its arguments declares `sizes` or calls `afford`."""
    sizes: list[int] = []
    for module in (registry, *(importlib.import_module(f"ptegpu.portable.{name}") for name in FAMILIES)):
        if hasattr(module, "afford"):
            monkeypatch.setattr(module, "afford", sizes.append)
    exceeded = set()
    for c in importlib.import_module(f"tests.portable.test_{family}").CASES:
        references = expected(c)
        sizes.clear()
        results = call(c.name, to_numpy(list(c.args)), [spec(w) for w in references])
        if max(r.nbytes for r in results) > max(sizes):
            exceeded.add(c.name)
    assert exceeded == set()


@pytest.mark.parametrize("name", [n for n in PORTABLE if not n.startswith("et_copy.")])
def test_a_schema_is_that_of_pytorch(name: str) -> None:
    ours = [p for p in PORTABLE[name].parameters if p.name != "options"]
    theirs = parameters(name)
    assert len(ours) >= len(theirs)  # overloads that share a kernel may have fewer arguments
    for p, argument in zip(ours, theirs):
        assert p.default == (argument.default_value if argument.has_default_value() else REQUIRED), p.name


@pytest.mark.parametrize("name", [n for n in PORTABLE if not n.startswith("et_copy.")])
def test_options_stand_where_pytorch_has_them(name: str) -> None:
    theirs = [a.name for a in schema(name).arguments]
    ours = [p.name for p in PORTABLE[name].parameters]
    assert ("options" in ours) == ("pin_memory" in theirs)
    if "options" in ours:
        assert OPTIONS == tuple(theirs[ours.index("options") :][:4])


def test_results_are_cast_to_the_declared_dtype() -> None:
    (result,) = call("aten.mul.Scalar", [np.array([1, 2, 3]), 1.5], [I64])
    assert result.dtype == np.int64 and result.tolist() == [1, 3, 4]


def test_bfloat16_is_float32_on_the_host() -> None:
    (result,) = call("aten.ones.default", [[2]], [OutSpec(DType.BF16)])
    assert result.dtype == np.float32


def test_numpy_scalars_are_tensors() -> None:
    (result,) = call("aten.add.Tensor", [np.ones(2, np.float32), np.float64(0.5)], [F32])
    assert result.tolist() == [1.5, 1.5]


def test_results_own_their_memory() -> None:
    x = np.arange(6.0, dtype=np.float32)
    for name, args in {
        "aten.view_copy.default": [[2, 3]],
        "aten.slice_copy.Tensor": [0, 1],
        "aten.relu.default": [],
    }.items():
        (result,) = call(name, [x, *args], [F32])
        assert not np.shares_memory(result, x)
    (result,) = call("aten.cat.default", [[x]], [F32])
    assert not np.shares_memory(result, x)


def test_no_warning_escapes(recwarn: pytest.WarningsRecorder) -> None:
    call("aten.log.default", [np.array([-1.0, 0.0])], [F32])
    call("aten._to_copy.default", [np.array([NAN, 1e30])], [I64])
    call("aten.mul.Tensor", [np.array(2**62), np.array(4)], [I64])
    assert list(recwarn) == []


def test_a_missing_kernel() -> None:
    with pytest.raises(UnsupportedProgram, match=message("aten.nothing.default has no kernel on the host")):
        call("aten.nothing.default", [], [F32])


def test_a_missing_argument() -> None:
    with pytest.raises(InvalidProgram, match=message("aten.mm.default: argument 'y' is missing")):
        call("aten.mm.default", [np.ones((2, 2))], [F32])


def test_too_many_arguments() -> None:
    with pytest.raises(InvalidProgram, match=message("aten.relu.default takes 1 arguments, the program gives 3")):
        call("aten.relu.default", [np.ones(2), 1, 2], [F32])


def test_another_number_of_results() -> None:
    text = "aten.topk.default: 2 results, but the program declares 1"
    with pytest.raises(InvalidProgram, match=message(text)):
        call("aten.topk.default", [np.ones(2), 1], [F32])


def test_shapes_that_do_not_broadcast() -> None:
    text = (
        "aten.add.Tensor(float32[2], float32[3], 1) failed: "
        "operands could not be broadcast together with shapes (2,) (3,) "
    )
    with pytest.raises(ExecutionError, match=message(text)):
        call("aten.add.Tensor", [np.ones(2, np.float32), np.ones(3, np.float32)], [F32])


def test_an_argument_of_another_kind() -> None:
    text = "aten.ceil.default: argument 'x' cannot be None (a value is required)"
    with pytest.raises(InvalidProgram, match=message(text)):
        call("aten.ceil.default", [None], [F32])
    text = "aten.amax.default: argument 'dim' cannot be float64[2] (a scalar is required)"
    with pytest.raises(InvalidProgram, match=message(text)):
        call("aten.amax.default", [np.ones(2), np.ones(2)], [F32])


@pytest.mark.parametrize("name", ["floor_divide.default", "fmod.Tensor", "remainder.Tensor"])
def test_integer_division_by_zero(name: str) -> None:
    with pytest.raises(ExecutionError, match=message(f"aten.{name}: integer division by zero")):
        call(f"aten.{name}", [np.array([1]), np.array([0])], [I64])


@pytest.mark.parametrize(
    ("name", "args", "error", "text"),
    [
        (
            "embedding.default",
            [np.ones((3, 2)), np.array([[0, 3]])],
            IndexOutOfRange,
            "the index 3 at [0, 1] is out of range: 0 to 2",
        ),
        (
            "gather.default",
            [np.ones(3), 0, np.array([-1])],
            IndexOutOfRange,
            "the index -1 at [0] is out of range: 0 to 2",
        ),
        (
            "index.Tensor",
            [np.ones((2, 3, 4)), [np.ones((2, 3), bool), np.array([-4, 4])]],
            IndexOutOfRange,
            "the index 4 at [1] is out of range: -4 to 3",
        ),
        (
            "index_put.default",
            [np.ones((2, 3)), [None, np.array([-4])], np.ones(())],
            IndexOutOfRange,
            "the index -4 at [0] is out of range: -3 to 2",
        ),
        (
            "select_copy.int",
            [np.ones((2, 3)), 1, 3],
            ExecutionError,
            "index 3 is out of range for dimension 1 of sizes [2, 3]",
        ),
        (
            "amax.default",
            [np.ones((0, 3)), [0]],
            ExecutionError,
            "a tensor of sizes [0, 3] has no largest or smallest element",
        ),
        ("sum.dim_IntList", [np.ones((2, 3)), [2]], ExecutionError, "dimension 2 is out of range for rank 2"),
        ("sum.dim_IntList", [np.ones((2, 3)), [1, -1]], ExecutionError, "dimensions [1, -1] repeat"),
        (
            "view_copy.default",
            [np.ones((2, 3)), [4, -1]],
            ShapeError,
            "a tensor of sizes [2, 3] cannot be viewed as [4, -1]",
        ),
        (
            "reflection_pad1d.default",
            [np.ones((1, 2)), [2, 0]],
            ShapeError,
            "padding 2 must be less than size 2 of dimension 1",
        ),
        (
            "upsample_nearest2d.vec",
            [np.ones((1, 1, 2, 2)), None, None],
            ShapeError,
            "an upsampling needs an output size or scale factors",
        ),
        ("arange.start_step", [0, 5, 0], ExecutionError, "no range goes from 0 to 5 by 0"),
    ],
)
def test_errors(name: str, args: list[object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=message(f"aten.{name}: {text}")):
        call(f"aten.{name}", args, [F32])


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError) as error:
        portable("aten.relu.default")(lambda x: x)
    assert str(error.value) == (
        "kernel aten.relu.default is registered already: give yours another name, "
        "or delete ptegpu.portable.PORTABLE['aten.relu.default'] first"
    )
