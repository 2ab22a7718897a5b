"""The registry: requirements on every operator, and the conversion of scalars before a rule gets them."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptegpu import ops
from ptegpu.dtypes import ON_GPU, DType
from ptegpu.errors import InvalidProgram, ShapeError
from ptegpu.graph.graph import Arg, Sym, Tensor
from ptegpu.graph.schema import REQUIRED
from ptegpu.kernels.wgsl import COMPUTE
from ptegpu.ops.registry import (
    REGISTRY,
    Number,
    OpDef,
    Out,
    Parameter,
    Steps,
    SymInt,
    broadcast,
    define,
    normalise_dim,
    op,
)


def offenders(breaks: Callable[[OpDef], bool]) -> list[str]:
    """Return the operators for which `breaks` holds."""
    return [name for name, definition in REGISTRY.items() if breaks(definition)]


def test_an_operator_is_steps_a_view_or_symbolic() -> None:
    assert [] == offenders(lambda d: sum(r is not None for r in (d.steps, d.view, d.sym)) != 1)
    assert [] == [name for name, definition in REGISTRY.items() if name != definition.name]


def test_every_operator_takes_something() -> None:
    assert [] == offenders(lambda d: not d.parameters and "outs" not in d.wants)


def test_parameters_are_those_of_the_rule_in_order() -> None:
    def breaks(d: OpDef) -> bool:
        parameters = inspect.signature(d.rule).parameters.values()
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        return positional != [parameter for parameter, *_ in d.parameters]

    assert [] == offenders(breaks)


def test_a_default_is_what_its_annotation_allows() -> None:
    def breaks(d: OpDef) -> bool:
        return any(p.default != p.convert(p.default) for p in d.parameters if p.default is not REQUIRED)

    assert [] == offenders(breaks)


def test_parameters_without_a_default_come_first() -> None:
    def breaks(d: OpDef) -> bool:
        optional = [p.default is not REQUIRED for p in d.parameters]
        return sorted(optional) != optional

    assert [] == offenders(breaks)


def test_keyword_only_parameters_are_those_that_are_filled_in() -> None:
    assert [] == offenders(lambda d: d.sym is not None and not d.wants <= {"data"})
    assert [] == offenders(lambda d: d.view is not None and bool(d.wants))
    assert [] == offenders(lambda d: d.steps is not None and not d.wants <= {"target", "outs"})


def test_places_are_of_parameters_and_dtypes_are_those_of_a_gpu() -> None:
    def breaks(d: OpDef) -> bool:
        ahead = [p.name for p in d.parameters].index("options") if "options" in str(d.parameters) else len(d.parameters)
        return any(k >= ahead for k in (*d.mutates, *d.splits))  # arguments before the options are parameters

    assert [] == offenders(breaks)
    assert [] == offenders(lambda d: not set(d.dtypes) <= set(ON_GPU))
    assert set(ON_GPU) == set(COMPUTE)


def test_what_has_elements_of_others_is_wide_and_has_a_span() -> None:
    assert [] == offenders(lambda d: not set(d.elements) <= {p.name for p in d.parameters})
    assert [] == offenders(lambda d: bool(d.elements) and not (d.wide and d.span))
    assert [] == offenders(lambda d: d.moves and d.elements != (d.parameters[0].name,))
    assert [] == offenders(lambda d: d.sums and d.parameters[0].name != "x")


def test_every_file_of_operators_is_imported() -> None:
    others = {"__init__", "registry", "schema", "custom", "spans", "fits"}
    files = {f.stem for f in Path(ops.__file__).parent.glob("*.py")} - others
    assert files <= set(vars(ops))


def taking(hint: Any) -> OpDef:
    """Return an unregistered operator with one parameter `p` of this annotation."""

    def rule(p: Any) -> Steps:
        yield Out(())

    rule.__annotations__["p"] = hint
    define(["test.taking"], rule, "steps")
    return REGISTRY.pop("test.taking")


def same(a: Any, b: Any) -> bool:
    return bool(a is b or (type(a) is type(b) and a == b))


T = Tensor("t", DType.F32, (2,))
S = Sym("s", 3)
COERCED: list[tuple[Any, Arg, Any]] = [
    (int, 1, 1),
    (int, 1.0, 1),
    (int, True, 1),
    (int, -2.0, -2),
    (int, S, 3),
    (int | None, None, None),
    (float, 1, 1.0),
    (float, True, 1.0),
    (float, 0.5, 0.5),
    (float, S, 3.0),
    (float | None, 2, 2.0),
    (bool, 1, True),
    (bool, 0.0, False),
    (bool, 1.0, True),
    (bool, False, False),
    (Number, 1, 1),
    (Number, 1.5, 1.5),
    (Number, S, 3),
    (SymInt, S, S),
    (SymInt, 4.0, 4),
    (str, "floor", "floor"),
    (str | None, None, None),
    (Tensor, T, T),
    (Tensor | None, None, None),
    (list[int], (1.0, 2, True), [1, 2, 1]),
    (list[int], 3.0, [3]),
    (list[int], (1, S), [1, 3]),
    (list[int] | None, None, None),
    (list[Tensor], (T, T), [T, T]),
    (list[Tensor | None], (T, None), [T, None]),
    (list[float], (1, 2), [1.0, 2.0]),
    (Any, None, None),
    (Any, (1, "x"), (1, "x")),
]


@pytest.mark.parametrize("hint, argument, expected", COERCED, ids=[f"{h}-{g!r}" for h, g, _ in COERCED])
def test_scalars_become_what_the_rule_wants(hint: Any, argument: Arg, expected: Any) -> None:
    (value,) = taking(hint).bind([argument])
    assert same(expected, value) or [same(e, v) for e, v in zip(expected, value, strict=True)] == [True] * len(value)


REFUSED: list[tuple[Any, Arg, str]] = [
    (int, 1.5, "argument 'p' cannot be 1.5 (an integer is required)"),
    (int, float("inf"), "argument 'p' cannot be inf (an integer is required)"),
    (int, "1", "argument 'p' cannot be '1' (a scalar is required)"),
    (int, None, "argument 'p' cannot be None (a value is required)"),
    (int, T, "argument 'p' cannot be t:float32[2] (a scalar is required)"),
    (int, (1,), "argument 'p' cannot be (1,) (a scalar is required)"),
    (float, "x", "argument 'p' cannot be 'x' (a scalar is required)"),
    (Tensor, 1, "argument 'p' cannot be 1 (a tensor is required)"),
    (Tensor, None, "argument 'p' cannot be None (a value is required)"),
    (str, 1, "argument 'p' cannot be 1 (a string is required)"),
    (list[int], (1, 2.5), "argument 'p' cannot be (1, 2.5) (an integer is required)"),
    (list[Tensor], (T, None), "argument 'p' cannot be (t:float32[2], None) (a value is required)"),
    (SymInt, 1.5, "argument 'p' cannot be 1.5 (an integer is required)"),
]


@pytest.mark.parametrize("hint, argument, expected", REFUSED, ids=[e for *_, e in REFUSED])
def test_what_cannot_be_coerced_is_named(hint: Any, argument: Arg, expected: str) -> None:
    with pytest.raises(InvalidProgram) as error:
        taking(hint).bind([argument])
    assert f"test.taking: {expected}" == str(error.value)


def test_an_index_may_arrive_as_a_float() -> None:
    """The exporter merges equal scalars of different kinds."""
    x = Tensor("x", DType.F32, (2, 3, 4))
    (shape,) = REGISTRY["aten.select_copy.int"].infer([x, 1.0, 2.0], [Tensor("y", DType.F32, (2, 4))])
    assert (2, 4) == shape


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(InvalidProgram) as error:
        REGISTRY["aten.select_copy.int"].bind([T, 0])
    assert "aten.select_copy.int: argument 'index' is missing" == str(error.value)


def test_too_many_arguments_are_counted() -> None:
    with pytest.raises(InvalidProgram) as error:
        REGISTRY["aten.relu.default"].bind([T, 1, 2])
    assert "aten.relu.default takes 1 arguments, the program gives 3" == str(error.value)


def test_trailing_arguments_have_their_defaults() -> None:
    assert [T, T, 1] == REGISTRY["aten.add.Tensor"].bind([T, T])


def test_a_result_of_another_dtype_than_declared_is_refused() -> None:
    with pytest.raises(InvalidProgram) as error:
        REGISTRY["aten.gt.Scalar"].infer([T, 0], [Tensor("y", DType.F32, (2,))])
    assert "aten.gt.Scalar: the result is bool, the program says float32" == str(error.value)


def test_a_rule_stops_at_its_last_out() -> None:
    """Shapes are inferred without making a kernel."""
    reached = []

    def rule(x: Tensor) -> Steps:
        yield Out(x.shape)
        yield Out((len(x.shape),))
        reached.append("kernel")

    define(["test.two"], rule, "steps")
    definition = REGISTRY.pop("test.two")
    outs = [Tensor("a", DType.F32, (2,)), Tensor("b", DType.F32, (1,))]
    assert [(2,), (1,)] == definition.infer([T], outs)
    assert [] == reached


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError) as error:
        op("aten.relu.default")(REGISTRY["aten.relu.default"].rule)
    assert str(error.value) == (
        "operator aten.relu.default is registered already: give yours another name, "
        "or delete ptegpu.ops.REGISTRY['aten.relu.default'] first"
    )


def test_a_rule_without_annotations_is_told_which_there_are() -> None:
    def bare(x) -> Steps:  # type: ignore[no-untyped-def]
        yield Out(x.shape)

    def odd(x: Tensor, y: complex) -> Steps:
        yield Out(x.shape)

    for rule, parameter in ((bare, "x"), (odd, "y")):
        with pytest.raises(TypeError) as error:
            op("test.bare")(rule)
        assert str(error.value) == (
            f"parameter '{parameter}' of {rule.__name__} needs an annotation: Tensor, int, float, bool, str, Number or "
            "SymInt, a list of one of these, each perhaps | None, or Any"
        )
        assert "test.bare" not in REGISTRY


@pytest.mark.parametrize("dim, rank, expected", [(0, 3, 0), (-1, 3, 2), (2, 3, 2), (0, 0, 0), (-1, 0, 0)])
def test_dimensions_count_from_the_end_too(dim: int, rank: int, expected: int) -> None:
    assert expected == normalise_dim(dim, rank)


@pytest.mark.parametrize("dim, rank", [(3, 3), (-4, 3), (1, 0)])
def test_a_dimension_out_of_range_is_named(dim: int, rank: int) -> None:
    with pytest.raises(ShapeError) as error:
        normalise_dim(dim, rank)
    assert f"dimension {dim} is out of range for rank {rank}" == str(error.value)


@pytest.mark.parametrize(
    "shapes, expected",
    [
        (((3, 1), (1, 4)), (3, 4)),
        (((), (2,)), (2,)),
        (((0, 3), (3,)), (0, 3)),
        (((0,), (1,)), (0,)),
        ((), ()),
        (((2, 1), (5, 1, 3), (1,)), (5, 2, 3)),
    ],
)
def test_shapes_broadcast_as_in_pytorch(shapes: tuple[tuple[int, ...], ...], expected: tuple[int, ...]) -> None:
    assert expected == broadcast(*shapes)


def test_shapes_that_do_not_broadcast_are_named() -> None:
    with pytest.raises(ShapeError) as error:
        broadcast((2, 3), (4,))
    assert "shapes [2, 3], [4] do not broadcast" == str(error.value)


def operand(p: Parameter, rng: random.Random) -> Arg:
    """Return a random argument that binds to a parameter, with tensors of any shape and dtype."""
    (kind, *_) = rng.sample(sorted(p.kinds, key=str), 1)
    if isinstance(kind, frozenset):
        item = p._replace(kinds=kind)
        return tuple(operand(item, rng) for _ in range(rng.randrange(9)))
    if kind is Tensor:
        return Tensor("t", rng.choice(list(DType)), tuple(rng.choices(range(4), k=rng.randrange(6))))
    scalars: dict[Any, Arg] = {int: rng.randrange(-9, 9), Sym: Sym("s", 5), float: 0.5, bool: True, str: "amax"}
    return scalars.get(kind)


@pytest.mark.parametrize("name", [n for n, d in REGISTRY.items() if d.serves or d.indexes])
def test_predicates_cope_with_whatever_binds(name: str) -> None:
    """Nobody catches their exceptions; the rule reports shapes that do not fit."""
    definition, rng = REGISTRY[name], random.Random(name)
    for _ in range(2000):
        args = [operand(p, rng) for p in definition.parameters]
        assert definition.takes(args) in (True, False)
        assert all(isinstance(b.low, int) and isinstance(b.end, int) for b in definition.bounds(args))


def test_a_bug_in_a_predicate_is_loud() -> None:
    gather = REGISTRY["aten.gather.default"]
    broken = replace(gather, serves=lambda a: a["nothing"], indexes=lambda a: [a["x"].nothing])
    with pytest.raises(KeyError, match="nothing"):
        broken.takes([T, 0, T])
    with pytest.raises(AttributeError, match="nothing"):
        broken.bounds([T, 0, T])
    with pytest.raises(InvalidProgram, match="argument 'index' is missing"):
        broken.takes([T, 0])
