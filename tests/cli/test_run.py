"""`ptegpu run` on the adapter of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Invoke
from tests.exporting import export

import ptegpu
from ptegpu.runtime import LoadOptions
from ptegpu.runtime.program import open_program


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((2, 8)).astype(np.float32)


def test_it_prints_inputs_outputs_adapter_and_times(invoke: Invoke, mlp: Path) -> None:
    ended = invoke("run", mlp, "--input", "ones")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("mlp.pte · forward on ")
    assert [line.split()[:4] for line in ended.out.splitlines() if line.strip().startswith(("input", "output"))] == [
        ["input", "0", "float32", "2×8"],
        ["output", "0", "float32", "2×4"],
    ]
    assert "load " in ended.out
    assert " · run " in ended.out


def test_engine_and_precision_are_passed_on(invoke: Invoke, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[LoadOptions] = []

    def noted(source: Any, options: LoadOptions, *args: Any, **more: Any) -> Any:
        recorded.append(options)
        return open_program(source, options, *args, **more)

    monkeypatch.setattr("ptegpu.cli.inputs.open_program", noted)
    report = invoke("run", mlp, "--engine", "wgpu", "--precision", "exact", "--json").json()
    assert [("wgpu", "exact")] == [(options.engine, options.precision) for options in recorded]
    assert report["adapter"]["engine"] == "wgpu"
    refused = invoke("run", mlp, "--precision", "half")
    assert (refused.code, "'half' is not one of 'auto', 'exact', 'fast'" in refused.err) == (2, True)


def test_json_is_all_there_is_on_stdout(invoke: Invoke, mlp: Path, tmp_path: Path, x: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", x)
    report = invoke("run", mlp, "--input", tmp_path / "x.npy", "--repeat", 3, "--json").json()
    with ptegpu.load(mlp) as program:
        expected = program(x)
    assert report["method"] == "forward"
    assert report["adapter"]["name"]
    assert len(report["run_s"]) == 3
    (input_record,), (got,) = report["inputs"], report["outputs"]
    assert (input_record["dtype"], input_record["shape"], input_record["max"]) == ("float32", [2, 8], float(x.max()))
    assert (got["dtype"], got["shape"]) == ("float32", [2, 4])
    np.testing.assert_allclose(got["values"], expected.reshape(-1)[:6])


@pytest.mark.parametrize("name", ["out.npz", "out.npy"])
def test_what_was_saved_is_what_is_expected(invoke: Invoke, mlp: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    assert invoke("run", mlp, "--save", file).out.endswith(f"saved {file}\n")
    ended = invoke("run", mlp, "--expect", file)
    assert ended.code == 0
    assert f"equal to {file} (worst difference 0, atol 0.0001 of the largest value, rtol 0.001)\n" in ended.out


def test_a_mismatch_has_a_code_and_a_table(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.npy"
    invoke("run", mlp, "--save", file)
    wrong = np.load(file)
    wrong[1, 2] += 0.5
    np.save(file, wrong)
    ended = invoke("run", mlp, "--expect", file)
    assert ended.code == 3
    assert f"unequal to {file} (atol 0.0001 of the largest value, rtol 0.001)\n" in ended.out
    assert ended.out.splitlines()[-2].split()[:7] == ["output", "0", "1", "of", "8", "[1,", "2]"]
    ended = invoke("run", mlp, "--expect", file, "--json")
    assert ended.code == 3
    assert '"wrong": 1' in ended.out
    assert invoke("run", mlp, "--expect", file, "--atol", 1).code == 0


def test_small_values_are_not_zeros(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    file, inputs = tmp_path / "out.npz", ["--input", "1e-6", "--input", "0"]
    assert invoke("run", data / "counting.pte", *inputs, "--save", file).code == 0
    saved = dict(np.load(file))
    assert abs(saved["output2"]) == pytest.approx(12e-6)  # the sum of the input
    np.savez(file, **(saved | {"output2": np.zeros((), np.float64)}))
    ended = invoke("run", data / "counting.pte", *inputs, "--expect", file)
    assert ended.code == 3
    assert invoke("run", data / "counting.pte", *inputs, "--expect", file, "--atol", 1e-3).code == 0


def test_dynamic_shapes_and_data_files(invoke: Invoke, data: Path) -> None:
    files = ["--data", data / "dynamic-0.ptd", "--data", data / "dynamic-1.ptd"]
    report = invoke("run", data / "dynamic.pte", *files, "--shape", "0=1x5", "--json").json()
    assert [y["shape"] for y in report["inputs"] + report["outputs"]] == [[1, 5], [2, 5, 4], [1, 4, 8]]
    report = invoke("run", data / "dynamic.pte", *files, "--json").json()
    assert report["inputs"][0]["shape"] == [1, 16]


def test_methods_and_scalar_outputs(invoke: Invoke, data: Path) -> None:
    file = data / "methods.pte"
    assert invoke("run", file, "--method", "encode", "--json").json()["outputs"][0]["shape"] == [2, 16]
    (size,) = invoke("run", file, "--method", "get_vocab_size", "--json").json()["outputs"]
    assert size == {"name": "output 0", "dtype": "int", "shape": None, "values": [11]}
    assert "'mlp'" in invoke("run", file, "--method", "get_name").out
    ended = invoke("run", file, "--method", "decode")
    expected = (
        "error: no method 'decode'; the program has encode, forward, get_vocab_size, get_name, get_scale, use_cache\n"
    )
    assert (ended.code, ended.err) == (1, expected)


def test_several_outputs_and_state(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    inputs = ["--input", "random", "--input", "random:0..3"]
    ended = invoke("run", data / "control.pte", *inputs, "--repeat", 2, "--save", tmp_path / "all.npz")
    assert (ended.code, ended.err) == (0, "")
    saved = np.load(tmp_path / "all.npz")
    assert list(saved) == ["output0", "output1", "output2", "output3", "output4"]
    assert saved["output3"].tolist() == [4.0]  # the state was reset before each run
    assert saved["output4"] == 7
    ended = invoke("run", data / "control.pte", *inputs, "--save", tmp_path / "all.npy")
    expected = f"error: {tmp_path / 'all.npy'} can hold one array, the method has 5 outputs: save them as .npz\n"
    assert (ended.code, ended.err) == (1, expected)


def test_wrong_inputs(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 8)))
    ended = invoke("run", mlp, "--input", tmp_path / "x.npy")
    expected = "error: input 0 of forward must be float32[2, 8], not float64[2, 8]: convert it to float32 first\n"
    assert (ended.code, ended.out, ended.err) == (1, "", expected)
    assert invoke("run", mlp, "--input", "nothing").code == 2
    assert invoke("run", mlp, "--save", "out.txt").code == 2
    assert invoke("run", mlp, "--shape", "1=3").code == 2


def test_an_unknown_device(invoke: Invoke, mlp: Path) -> None:
    ended = invoke("run", mlp, "--device", "no such GPU")
    assert ended.code == 1
    assert ended.err.startswith("error: No adapter has 'no such GPU' in its name. There is 0: ")


def test_unsupported_operators_are_all_listed(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.pte"
    unknown.write_bytes(mlp.read_bytes().replace(b"aten.linear.default", b"aten.banana.default"))
    ended = invoke("run", unknown)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[0] == "error: method forward uses operators that ptegpu does not have:"
    assert [line.split("(")[0].split() for line in ended.err.splitlines()[1:]] == [
        ["1", "×", "aten.banana.default"],
        ["1", "×", "aten.banana.default"],
    ]


def test_outputs_have_the_names_that_the_module_gave_them(invoke: Invoke, tmp_path: Path) -> None:
    class Named(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"double": x * 2, "next": x + 1}

    file = tmp_path / "named.pte"
    export(Named(), (torch.ones(2),), file)
    report = invoke("run", file, "--json").json()
    assert ["input 0"] == [x["name"] for x in report["inputs"]]
    assert ["double", "next"] == [y["name"] for y in report["outputs"]]
    rows = [line.split()[:2] for line in invoke("run", file, "--input", 3).out.splitlines()]
    assert ["double", "float32"] in rows and ["next", "float32"] in rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "x.png"), "Invalid value for --out: needs --image, --audio or --text; see ptegpu run --help"),
        (("--context", "x"), "Invalid value for --context: needs --image, --audio or --text; see ptegpu run --help"),
        (
            ("--text", "x", "--save", "x.npz"),
            "Invalid value for --save: cannot be combined with --image, --audio or --text; see ptegpu run --help",
        ),
    ],
)
def test_options_without_effect_are_refused(options: tuple[str, ...], message: str, invoke: Invoke, mlp: Path) -> None:
    assert (2, f"error: {message}\n") == ((ended := invoke("run", mlp, *options)).code, ended.err)
