"""Schemas of operators: the GPU rule, the NumPy kernel and PyTorch agree on one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.portable.harness import parameters, schema

from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram
from ptegpu.graph.graph import Sym, Tensor
from ptegpu.graph.schema import OPTIONS, Kinds, Schema, kinds_of, parameters_of
from ptegpu.ops import REGISTRY
from ptegpu.ops.registry import Options, Out, Steps
from ptegpu.portable import PORTABLE, PRIMS

BOTH = [name for name in (*PORTABLE, *PRIMS) if name in REGISTRY]


def known_to_pytorch() -> Iterator[str]:
    for name in REGISTRY:
        try:
            schema(name)
        except (AttributeError, ValueError):
            continue
        yield name


def accepts(wider: Kinds, narrower: Kinds) -> bool:
    """Return True if a parameter of kinds `wider` takes all of `narrower`; NumPy kernels get the value of a Sym."""
    if Any in wider:
        return True
    lists = [k for k in wider if isinstance(k, frozenset)]
    return all(
        any(accepts(own, k) for own in lists) if isinstance(k, frozenset) else k in wider for k in narrower - {Sym}
    )


def test_a_rule_and_a_kernel_have_one_schema() -> None:
    assert len(BOTH) > 240
    for name in BOTH:
        kernel, rule = (PORTABLE if name in PORTABLE else PRIMS)[name], REGISTRY[name]
        ours, theirs = kernel.parameters, rule.parameters
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]
        assert [p.name for p, w in zip(ours, theirs, strict=True) if not accepts(p.kinds, w.kinds)] == []


@pytest.mark.parametrize("name", list(known_to_pytorch()))
def test_what_a_program_may_leave_out_is_as_in_pytorch(name: str) -> None:
    """An ignored parameter may have any default."""
    ours = [p for p in REGISTRY[name].parameters if p.name != "options"]
    theirs = parameters(name)
    assert len(ours) >= len(theirs)
    pairs = [(p, a) for p, a in zip(ours, theirs) if a.has_default_value() and Any not in p.kinds]
    assert {p.name: p.default for p, _ in pairs} == {p.name: a.default_value for p, a in pairs}
    names = [a.name for a in schema(name).arguments]
    assert ("options" in [p.name for p in REGISTRY[name].parameters]) == ("pin_memory" in names)


def rule(x: Tensor, dim: int, sizes: list[int], y: Tensor | None = None) -> Steps:
    yield Out(x.shape)


T, A = Tensor("t", DType.F32, (2,)), np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1, 0, (1,)), "argument 'x' cannot be 1 (a tensor is required)"),
        (("x", 0, (1, 2.5)), "argument 'sizes' cannot be {} (an integer is required)"),
        (("x", None, (1,)), "argument 'dim' cannot be None (a value is required)"),
        (("x", 0.5, (1,)), "argument 'dim' cannot be 0.5 (an integer is required)"),
        (("x", 0), "argument 'sizes' is missing"),
        (("x", 0, (1,), 3), "argument 'y' cannot be 3 (a tensor is required)"),
    ],
)
def test_a_rule_and_a_kernel_say_the_same(args: tuple[Any, ...], message: str) -> None:
    """Graphs use tensors and tuples, the host uses arrays and lists."""
    both = Schema("op", parameters_of(rule))
    for x, sequence in ((T, tuple), (A, list)):
        operands = [x if a == "x" else sequence(a) if isinstance(a, tuple) else a for a in args]
        with pytest.raises(InvalidProgram) as error:
            both.bind(operands)
        assert str(error.value) == f"op: {message.format(sequence((1, 2.5)))}"


def test_an_array_in_a_message_is_its_type_and_shape() -> None:
    with pytest.raises(InvalidProgram) as error:
        Schema("op", parameters_of(rule)).bind([A, A, [1]])
    assert str(error.value) == "op: argument 'dim' cannot be float32[2] (a scalar is required)"


def new(x: Tensor, options: Options = None, memory_format: int | None = None) -> Steps:
    yield Out(x.shape)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((T,), [T, None, None]),
        ((T, 7), [T, None, 7]),  # as a kernel call: no options
        ((T, 6, 0, "cpu", False), [T, None, None]),  # as a delegate: all of them
        ((T, 6, 0, "cpu", False, 7), [T, None, 7]),
        ((T, None, None, None, None, None), [T, None, None]),
    ],
)
def test_options_are_given_or_not(args: tuple[Any, ...], expected: list[Any]) -> None:
    assert Schema("op", parameters_of(new)).bind(args) == expected


def test_too_many_arguments_count_the_options() -> None:
    with pytest.raises(InvalidProgram) as error:
        Schema("op", parameters_of(new)).bind([T] * 7)
    assert str(error.value) == f"op takes {2 + len(OPTIONS)} arguments, the program gives 7"


def test_kinds() -> None:
    assert kinds_of(np.ndarray) == kinds_of(Tensor)
    assert kinds_of(int | float | bool) == kinds_of(int | float)
    assert kinds_of(list[int] | None) == {frozenset({int}), type(None)}
    assert accepts(kinds_of(Tensor | int | float), kinds_of(Tensor))
    assert not accepts(kinds_of(int), kinds_of(int | None))
    assert not accepts(kinds_of(int), kinds_of(Any)) and accepts(kinds_of(Any), kinds_of(list[int]))
