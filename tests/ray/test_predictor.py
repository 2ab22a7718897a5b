"""Columns to inputs, outputs to columns, and errors that name the column: without a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptegpu
from ptegpu.errors import DeviceLost, InvalidInput, NoAdapter

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ptegpu[ray]'")

from ptegpu.serve.ray import Predictor  # noqa: E402
from ptegpu.serve.ray.gpus import assigned  # noqa: E402

DATA = Path(__file__).resolve().parent.parent / "data"
MLP = DATA / "mlp.pte"  # float32[2, 8] to float32[2, 4]
ROWS = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    with ptegpu.load(MLP) as program:
        padded = np.concatenate([ROWS, ROWS[-1:]])
        return np.concatenate([program(padded[k : k + 2]) for k in range(0, 6, 2)])[:5]


def test_rows_share_calls_and_the_last_are_padded(expected: np.ndarray) -> None:
    batch = Predictor(MLP, ["x"], ["y"])({"x": ROWS, "id": np.arange(5)})
    assert ["x", "id", "y"] == list(batch)
    np.testing.assert_array_equal(expected, batch["y"])


@pytest.mark.parametrize("kind", ["float64", "lists"])
def test_numbers_that_fit_are_converted(expected: np.ndarray, kind: str) -> None:
    column: Any = ROWS.astype(np.float64)
    if kind == "lists":  # as Ray passes lists of Arrow
        column = np.empty(5, object)
        column[:] = list(ROWS)
    np.testing.assert_array_equal(expected, Predictor(MLP, ["x"], ["y"])({"x": column})["y"])


def test_a_row_may_be_all_of_an_input(expected: np.ndarray) -> None:
    batch = Predictor(MLP, ["x"])({"x": np.stack([ROWS[:2], ROWS[2:4]])})
    np.testing.assert_array_equal(np.stack([expected[:2], expected[2:4]]), batch["output 0"])


def test_other_methods_and_outputs_that_are_left_out() -> None:
    batch = Predictor(DATA / "methods.pte", ["x"], [None], method="encode")({"x": ROWS})
    assert ["x"] == list(batch)


def test_several_inputs_and_outputs_row_by_row_each_from_the_first_state() -> None:
    x, k = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32), np.array([[0, 1], [1, 0]])
    names = ["a", "b", None, "d", "e"]
    batch = Predictor(DATA / "control.pte", ["x", "k"], names)({"k": k, "x": x})
    each = []
    with ptegpu.load(DATA / "control.pte") as program:
        for row in zip(x, k):
            program.reset()
            each.append(program.method("forward").execute(row))
    assert ["k", "x", "a", "b", "d", "e"] == list(batch)
    for name, values in zip(names, zip(*each)):
        if name is not None:
            np.testing.assert_array_equal(np.stack(values), batch[name])


def test_an_output_without_rows_is_refused_unless_it_is_left_out() -> None:
    data = [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"]
    tokens = np.arange(9, dtype=np.int32).reshape(3, 3)
    batch = Predictor(DATA / "dynamic.pte", ["tokens"], [None, "rows"], data=data)({"tokens": tokens})
    assert (3, 2, 8) == batch["rows"].shape
    wrong = "output 0 of forward has shape [2, 3, 4], not 1 rows: leave it out, with None in place of 'a' in"
    with pytest.raises(InvalidInput, match=re.escape(wrong)):
        Predictor(DATA / "dynamic.pte", ["tokens"], ["a", "b"], data=data)({"tokens": tokens})


@pytest.mark.torch
def test_a_program_that_takes_fewer_rows_gets_no_others(tmp_path: Path) -> None:
    import torch
    from tests.exporting import export

    class Centred(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.sum(0)  # depends on the other rows

    path, x = tmp_path / "centred.pte", np.arange(9.0)[:, None]
    path.write_bytes(export(Centred(), (torch.ones(3, 1),), dynamic_shapes={"x": {0: torch.export.Dim("n", max=4)}}))
    expected = np.concatenate([x[k : k + 4] - x[k : k + 4].sum(0) for k in (0, 4, 8)])
    np.testing.assert_array_equal(expected, Predictor(path, ["x"], ["y"])({"x": x})["y"])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"y": ROWS}, "there is no column 'x' for input 0 of forward (float32[2, 8]), only y: name columns"),
        ({"x": np.array(["a", "b"])}, "column 'x' is of <U1, which input 0 of forward (float32[2, 8]) does not take"),
        ({"x": np.ones(5)}, "column 'x' has rows of shape [], which input 0 of forward (float32[2, 8]) does not take"),
        ({"x": np.ones((2, 9))}, "must be float32[2, 8], not float32[2, 9] (input 0 is column 'x')"),
        ({"x": np.array([[1.0], [1.0, 2.0]], object)}, "column 'x' has rows of shape [1] and of [2]: pad them"),
        ([1], "a batch must be a dict of NumPy arrays, not list: use batch_format=\"numpy\""),
    ],
)  # fmt: skip
def test_what_is_wrong_names_the_column(column: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        Predictor(MLP, ["x"])(column)


def test_columns_that_do_not_go_together() -> None:
    other = "column 'k' has rows of shape [], which input 1 of forward (int64[2]) does not take, as it does those of"
    with pytest.raises(InvalidInput, match=re.escape(other)):
        Predictor(DATA / "control.pte", ["x", "k"])({"x": np.ones((2, 3, 4)), "k": np.array([1, 2])})


def test_integers_that_do_not_fit() -> None:
    columns = {"x": np.ones((1, 3, 4)), "k": np.array([[1, 2**63]], np.uint64)}
    with pytest.raises(InvalidInput, match=re.escape("column 'k' has 9223372036854775808, which does not fit input 1")):
        Predictor(DATA / "control.pte", ["x", "k"])(columns)


def test_each_input_has_a_column() -> None:
    wrong = "inputs must be a list of 1 columns, one for each of input 0: float32[2, 8]; not "
    for columns, shown in ((["x", "y"], "2"), ("x", "'x'")):
        with pytest.raises(InvalidInput, match=re.escape(wrong + shown)):
            Predictor(MLP, columns)
    with pytest.raises(InvalidInput, match="get_name has no input that could be a column"):
        Predictor(DATA / "methods.pte", method="get_name")


def test_a_lost_gpu_is_an_error_outside_of_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(arguments: Any) -> Any:
        raise DeviceLost("it is gone")

    predictor = Predictor(MLP, ["x"])
    monkeypatch.setattr(predictor._method, "execute", lost)
    with pytest.raises(DeviceLost, match="it is gone"):
        predictor({"x": ROWS})


def test_the_gpu_is_the_one_that_ray_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["integrated", "discrete", "software", "discrete"]
    gpus = [type("Adapter", (), {"index": k, "type": kind}) for k, kind in enumerate(kinds)]
    monkeypatch.setattr("ptegpu.serve.ray.gpus.adapters", lambda engine: gpus)
    assert "auto" == assigned()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    for ids, expected in (([], "auto"), ([0], 1), (["1"], 3)):
        monkeypatch.setattr(ray, "get_gpu_ids", lambda ids=ids: ids)
        assert expected == assigned()
    assert "NVIDIA" == assigned("NVIDIA")
    for wrong in (2, "GPU-5c2e"):
        monkeypatch.setattr(ray, "get_gpu_ids", lambda wrong=wrong: [wrong])
        with pytest.raises(NoAdapter, match=f"Ray gave this process GPU {wrong}, and ptegpu sees 2 discrete GPUs here"):
            assigned()
