"""The signature of a method: its inputs and outputs, the flattening of arguments, the grouping of results."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge
from tests.exporting import export, quiet
from tests.methods import method_of
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import ptegpu
from ptegpu.compiler.append import Tail
from ptegpu.dtypes import DType
from ptegpu.format import pte
from ptegpu.runtime.method import MethodRunner
from ptegpu.runtime.signature import MAX_DEPTH, Tree, read_tree

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any = None


class Output(collections.OrderedDict[str, Any]):
    """A dict that is registered with its keys, like the outputs of transformers."""


Point = collections.namedtuple("Point", "x y")

torch.export.register_dataclass(Pair, serialized_type_name="tests.Pair")
pytree._register_namedtuple(Point, serialized_type_name="tests.Point")
pytree.register_pytree_node(
    Output,
    lambda d: (list(d.values()), list(d.keys())),
    lambda values, keys: Output(zip(keys, values)),
    serialized_type_name="tests.Output",
)


def dumped(value: Any) -> str:
    return pytree.treespec_dumps(pytree.tree_structure(value))


def called(*args: Any, **kwargs: Any) -> str:
    """Return the tree of a call with these arguments."""
    return dumped((args, kwargs))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        ((1,), (1,)),
        ([1, (2, [3])], [1, (2, [3])]),
        ({"b": 1, "a": {0: 2, (1, 2): 3}}, {"b": 1, "a": {0: 2, (1, 2): 3}}),
        ({"a": None, "b": 1}, {"a": None, "b": 1}),
        ({(1, 2): 1, (3, 4): 2}, {(1, 2): 1, (3, 4): 2}),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(list, a=1), {"a": 1}),
        (collections.deque([1, 2]), [1, 2]),
        (Point(1, 2), (1, 2)),
        (Pair(1, 2), {"first": 1, "second": 2}),
        (Pair(1), {"first": 1, "second": None}),
        (Output(logits=1, states=(2, 3)), {"logits": 1, "states": (2, 3)}),
        ((), ()),
    ],
    ids=repr,
)
def test_results_are_grouped_as_the_module_grouped_them(value: Any, expected: Any) -> None:
    tree = read_tree(dumped(value))
    leaves = pytree.tree_leaves(value)
    assert tree is not None and tree.leaves == len(leaves)
    rebuilt = tree.maker()(leaves)
    assert rebuilt == expected and type(rebuilt) is type(expected)
    again: list[Any] = []
    tree.flatten(value, (("x", "m"),), again)
    assert again == leaves


def deep(levels: int) -> str:
    leaf = json.dumps({"type": None, "context": None, "children_spec": []})
    start = '{"type": "builtins.list", "context": "null", "children_spec": ['
    return f"[1, {start * levels}{leaf}{']}' * levels}]"


def of_keys(keys: str, count: int, name: str = "builtins.dict") -> str:
    """Return a tree whose keys do not match its number of leaves."""
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": name, "context": keys, "children_spec": [leaf] * count}])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[2, {}]",
        "[1, 3]",
        "[1, {}]",
        '[1, {"type": "builtins.dict", "context": "[]", "children_spec": [{"type": null, "context": null}]}]',
        '[1, {"type": "some.Class", "context": "5", "children_spec": []}]',
        '[1, {"type": "builtins.dict", "context": "[{}]", "children_spec": [{"type": null, "context": null}]}]',
        of_keys('["a", "a"]', 2),
        of_keys('["a", "a"]', 1),
        of_keys('[["a"], ["a"]]', 1, "some.Class"),
        deep(MAX_DEPTH + 1),
        deep(100_000),
    ],
)
def test_a_tree_of_another_kind_is_none(text: str) -> None:
    assert read_tree(text) is None


def test_a_tree_has_a_limit_of_depth() -> None:
    tree = read_tree(deep(MAX_DEPTH))
    assert isinstance(tree, Tree) and tree.leaves == 1


def f32(*sizes: int) -> pte.FileTensor:
    return pte.FileTensor(DType.F32, sizes, tuple(range(len(sizes))))


def identity(
    values: list[pte.Value], input_tree: str, output_tree: str, outputs: list[int] | None = None
) -> MethodRunner:
    """Return a method whose outputs are its inputs."""
    ids = tuple(range(len(values)))
    outputs_ids = ids if outputs is None else tuple(outputs)
    return method_of(pte.FileMethod("forward", tuple(values), ids, outputs_ids, ((),), (), input_tree, output_tree))


def test_inputs_by_name() -> None:
    runner = identity([f32(1)] * 3, called(0, mask=1, scale=2), "")
    for args, kwargs in (((1, 2, 3), {}), ((1,), {"scale": 3, "mask": 2}), ((1, 2), {"scale": 3})):
        arrays = [np.full(1, v, np.float32) for v in args]
        assert [1, 2, 3] == [int(y[0]) for y in runner(*arrays, **{k: [v] for k, v in kwargs.items()})]


def test_inputs_in_containers() -> None:
    runner = identity([f32(1)] * 4, called({"b": 0, "a": [1]}, past=(2, 3)), "")
    a, b, c, d = ([float(k)] for k in range(4))
    for result in (runner({"a": [a], "b": b}, past=(c, d)), runner({"a": (a,), "b": b}, [c, d])):
        assert [1, 0, 2, 3] == [int(y[0]) for y in result]
    flat = [np.array(v, np.float32) for v in (b, a, c, d)]
    assert [1, 0, 2, 3] == [int(y[0]) for y in runner(*flat)] == [int(y[0]) for y in runner.execute(flat)]


def test_a_name_that_takes_one_value_may_be_left_out() -> None:
    runner = identity([f32(1), 5, None], called(0, scale=1, mask=2), "", outputs=[1])
    assert 5 == runner([1]) == runner([1], scale=5) == runner([1], mask=None, scale=5)


NAMED = {"mask": [1.0], "past": ([1.0], [1.0])}
LISTED = "(input 0: float32[1], mask: float32[1], past[0]: float32[1], past[1]: float32[1])"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (([1],), NAMED | {"msk": 1}, "forward has no input called 'msk': its inputs by name are mask, past"),
        (([1], [1]), NAMED, "forward is given mask twice, by position and by name"),
        (([1],), {"mask": [1]}, f"forward takes 3 arguments, 2 given, past is missing {LISTED}"),
        ((), {"mask": [1]}, f"forward takes 3 arguments, 1 given {LISTED}"),
        (([1],) * 5, {}, f"forward takes 3 arguments, 5 given {LISTED}"),
        (([1],), {"mask": [1], "past": [[1]]}, "past of forward must be a tuple of 2 items, not 1 items"),
        (([1],), {"mask": [1], "past": 1}, "past of forward must be a tuple of 2 items, not int"),
        (
            ([1],),
            {"mask": [1], "past": ([1], [1, 2])},
            "past[1] of forward must be float32[1], not float32[2]",
        ),
    ],
)
def test_arguments_that_find_no_place(args: tuple[Any, ...], kwargs: Mapping[str, Any], message: str) -> None:
    runner = identity([f32(1)] * 4, called(0, mask=1, past=(2, 3)), "")
    with pytest.raises(ptegpu.InvalidInput) as error:
        runner(*args, **kwargs)
    assert str(error.value) == message


def test_dicts_with_other_keys() -> None:
    runner = identity([f32(1)] * 2, called({"a": 0, 1: 1}), "")
    for container, message in (({"a": 0}, "with ['a']"), ([0, 1, 2], "list")):
        with pytest.raises(ptegpu.InvalidInput) as error:
            runner(container)
        assert str(error.value) == f"argument 0 of forward must be a dict with the keys ['a', 1], not {message}"


def test_what_is_wrong_inside_an_argument_is_named_with_its_keys() -> None:
    runner = identity([f32(1)] * 3, called({"a": (0, {"b": 1})}, 2), "")
    for container, message in (
        ({"a": (1,)}, "argument 0['a'] of forward must be a tuple of 2 items, not 1 items"),
        ({"a": ([1], {"c": 1})}, "argument 0['a'][1] of forward must be a dict with the keys ['b'], not with ['c']"),
    ):
        with pytest.raises(ptegpu.InvalidInput) as error:
            runner(container, [1])
        assert str(error.value) == message


def test_names_where_the_file_has_none() -> None:
    for values, message in (([f32(1), 3], "the file has no names of inputs; pass them in order: float32[1], int 3"),
                         ([], "it takes no inputs")):  # fmt: skip
        with pytest.raises(ptegpu.InvalidInput) as error:
            identity(values, "", "")(x=1)
        assert str(error.value) == f"forward has no input called 'x': {message}"


ALIKE = called(a=0, b=1).replace(r"[\"a\", \"b\"]", r"[\"1\", 1]")  # keys that make one name


@pytest.mark.parametrize("text", ["", "[]", "[2, {}]", dumped(0), called(0, 1, 2), called(a=0, b=1, c=2), ALIKE])
def test_without_a_tree_that_fits_everything_is_flat(text: str) -> None:
    values = (np.float32([1]), np.float32([2]))
    assert isinstance(identity([f32(1)] * 2, text, "")(*values), tuple)


def test_without_a_tree_one_output_is_itself_and_several_are_a_tuple() -> None:
    assert 5 == identity([5], "", "")(5)
    assert (5, 6) == identity([5, 6], "", "")(5, 6)
    assert () == identity([], "", "")()
    assert (5, 6) == identity([5, 6], "", dumped([1, 2, 3]))(5, 6)  # which needs three


def test_mutated_inputs_come_first() -> None:
    assert (5, 6) == identity([5, 6], "", dumped(0))(5, 6)
    assert (5, (6, 7)) == identity([5, 6, 7], "", dumped((0, 0)))(5, 6, 7)
    assert (5, 6, {"y": 7}) == identity([5, 6, 7], "", dumped({"y": 0}))(5, 6, 7)


def test_an_appended_method_has_outputs_of_its_own() -> None:
    class Three(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x + 1, "z": x * 2}

    def tail(tail: Tail) -> None:
        shift = tail.input("shift", DType.F32, (2, 3))
        tail.outputs = [*tail.call("aten.add.Tensor", tail.outputs[0], shift, gives=[(DType.F32, (2, 3))])]

    with ptegpu.load(export(Three(), (torch.ones(2, 3),)), append={"forward": tail}) as program:
        np.testing.assert_array_equal(X + 11, program(X, shift=np.full((2, 3), 10, np.float32)))
        assert "(<input 0: float32[2, 3]>, <shift: float32[2, 3]>)" == repr(program.method("forward").inputs)


class Nested(nn.Module):
    """Containers in and out, a name, a number, an input that is written, and results that are None and a number."""

    def forward(
        self, x: torch.Tensor, pair: dict[str, torch.Tensor], *, scale: int, mask: Any = None
    ) -> dict[str, Any]:
        x.add_(1)
        return {
            "sum": x + pair["b"],
            "parts": [x * scale, (pair["a"],)],
            "none": None,
            "number": 3,
            "pair": Pair(x * 2),
        }


@pytest.fixture(scope="module")
def nested() -> bytes:
    x, pair = torch.ones(2, 3), {"b": torch.ones(2, 3), "a": torch.ones(2, 3)}
    shapes = {"x": {0: (n := Dim("n", max=4))}, "pair": {"b": {0: n}, "a": {0: n}}, "scale": None, "mask": None}
    with quiet():
        exported = torch.export.export(Nested(), (x, pair), {"scale": 5, "mask": None}, dynamic_shapes=shapes)
        return to_edge(exported).to_executorch().buffer


def test_a_module_with_containers(nested: bytes) -> None:
    pair = {"a": torch.full((2, 3), 2.0), "b": torch.full((2, 3), 3.0)}
    x = torch.from_numpy(X)
    expected = Nested()(x.clone(), pair, scale=5)
    with ptegpu.load(nested) as program:
        for keywords in ({"scale": 5}, {}, {"scale": 5, "mask": None}):
            results = program(written := x.clone(), pair, **keywords)
            assert torch.equal(x + 1, written)
            assert list(expected) == list(results)
            assert torch.equal(expected["sum"], results["sum"]) and results["none"] is None and results["number"] == 3
            first, (second,) = results["parts"]
            assert torch.equal((x + 1) * 5, first) and torch.equal(pair["a"], second)
            assert torch.equal((x + 1) * 2, results["pair"]["first"]) and results["pair"]["second"] is None
        flat = program.method("forward").execute([x, pair["b"], pair["a"], 5, None])
        assert [torch.Tensor] * 4 + [type(None), int, torch.Tensor] == list(map(type, flat))


def test_inputs_and_outputs_are_plain_objects(nested: bytes) -> None:
    with ptegpu.load(nested) as program:
        method = program.method("forward")
        assert method is program.method("forward") is program.load_method("forward")
        assert method.inputs[0] == ptegpu.Spec("argument 0", "float32", (4, 3), dynamic=True)
        assert method.inputs[3] == ptegpu.Spec("scale", "int", value=5)
        assert [str(spec) for spec in method.inputs] == ["float32 of at most [4, 3]"] * 3 + ["int 5", "int or None"]
        assert [spec.name for spec in method.inputs] == [
            "argument 0",
            "argument 1['b']",
            "argument 1['a']",
            "scale",
            "mask",
        ]
        assert [spec.name for spec in method.outputs] == [
            *("mutated input 0", "sum", "parts[0]", "parts[1][0]", "none", "number", "pair['first']")
        ]
        with pytest.raises(dataclasses.FrozenInstanceError):
            method.inputs[0].name = "x"
        assert repr(method).startswith(
            "<ptegpu.Method forward(argument 0: float32 of at most [4, 3], argument 1['b']: "
        )
        assert repr(method).endswith(", number: int 3, pair['first']: float32 of at most [4, 3]>")


def test_a_call_parses_no_json(nested: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with ptegpu.load(nested) as program:
        monkeypatch.setattr(json, "loads", None)
        program(X, {"a": X, "b": X})
