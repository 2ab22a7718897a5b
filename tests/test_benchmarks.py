"""The benchmark command at tiny sizes: it runs, checks results, reports missing engines and survives failures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import __main__ as command
from benchmarks.harness import Bench, Missing, Row, Way, difference, summary, table, with_ratios
from rich.console import Console

WGPU = ["--quick", "--engine", "wgpu", "--precision", "exact"]


@pytest.fixture(autouse=True)
def gradients_are_on_again() -> Iterator[None]:
    yield
    assert torch.is_grad_enabled()


def rows(path: Path) -> list[dict]:
    return json.loads(path.read_text("utf-8"))["rows"]


def test_products_and_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert 0 == command.main(["gemm", "gemv", "record", *WGPU, "--json", str(file)])
    results = rows(file)
    assert {"gemm", "gemv", "record"} == {row["workload"] for row in results}
    for row in results:
        assert row["value"] > 0 and not row["failure"] and not row["missing"]
    products = [row for row in results if row["workload"] in ("gemm", "gemv")]
    assert 6 == len(products) and all(0 <= row["error"] <= 1e-3 and row["of"]["copy"] > 0 for row in products)
    assert [["wgpu-py"]] == [[*row["ratios"]] for row in results if row["workload"] == "record" and not row["peer"]]
    assert "× wgpu-py" in capsys.readouterr().out


def test_calls_with_nothing_to_compute(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    options = ["--only", "decode step", "--only", "an image", "--json", str(file)]
    assert 0 == command.main(["calls", *WGPU, *options])
    assert ["60 dispatches, an image", "decode step"] == [row["case"] for row in rows(file)]
    for row in rows(file):
        assert 0 < row["host"] < row["value"] / 1e6 and "0 buffers, 0 bind groups, 0 pipelines created" == row["note"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace CUDA by a CPU for the peers."""
    import torch

    def seconds(self: Bench, call: Callable[[], object], calls: int) -> float:
        call()
        return 1e-3

    monkeypatch.setattr(Bench, "cuda", torch)
    monkeypatch.setattr(Bench, "where", "cpu")
    monkeypatch.setattr(Bench, "pytorch", "PyTorch on a CPU")
    monkeypatch.setattr(Bench, "cuda_seconds", seconds)
    monkeypatch.setattr(Bench, "cuda_memory", lambda self: 1)


@pytest.mark.torch
@pytest.mark.slow
def test_whole_models_are_exported_without_weights_and_run_beside_pytorch(tmp_path: Path, cuda: None) -> None:
    folder, file = tmp_path / "programs", tmp_path / "found.json"
    only = [word for text in ("batch 1", "context 40", "prompt 16") for word in ("--only", text)]
    options = [*WGPU, "--data", str(folder), *only, "--no-compile", "--json", str(file)]
    assert 0 == command.main(["resnet18", "decode", "prefill", *options])
    assert ["llama.pte", "resnet18-1.zip"] == sorted(path.name for path in folder.iterdir())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 50_000
    peers, ours = ([row for row in rows(file) if row["peer"] is peer] for peer in (True, False))
    for results in (peers, ours):
        assert ["resnet18", "decode", "prefill"] == [row["workload"] for row in results]
    assert all(row["error"] < 1e-4 and row["dispatches"] and row["gpu"] for row in ours)
    assert all(1 == row["memory"] and row["value"] > 0 for row in peers)
    assert all(["PyTorch eager"] == [*row["ratios"]] for row in ours)


@pytest.mark.torch
@pytest.mark.slow
def test_texts_of_several_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert 0 == command.main(["batches", *WGPU, "--data", str(tmp_path), "--profile", "--json", str(file)])
    assert ["1 client", "3 clients"] == [row["case"] for row in rows(file)]
    assert all(row["value"] > 0 and row["gpu"] > 0 and row["dispatches"] > 0 for row in rows(file))
    assert "1 × sample_rows" in capsys.readouterr().out


@pytest.mark.torch
def test_products_and_operators_beside_pytorch(tmp_path: Path, cuda: None) -> None:
    file = tmp_path / "found.json"
    only = ["--only", "128³", "--only", "in turn", "--only", "aten.mm.default"]
    assert 0 == command.main(["gemm", "gemv", "operators", *WGPU, *only, "--json", str(file)])
    results = rows(file)
    assert {"gemm", "gemv", "operators"} == {row["workload"] for row in results if row["peer"]}
    assert all(row["error"] <= 1e-3 and row["ratios"]["PyTorch eager"] > 0 for row in results if not row["peer"])


@pytest.mark.torch
def test_weights_are_left_out_and_put_back() -> None:
    import torch
    from benchmarks import models, programs

    module = models.filled(torch.nn.Sequential(*models.convolved(3, 20, 3), torch.nn.Linear(9, 9)))
    contents = programs.weights(module)
    assert {"0.weight", ".0 joined weight", ".0 joined bias", "2.weight"} < set(contents)
    data = b"head" + contents[".0 joined weight"] + b"and" + contents["2.weight"] * 2 + b"tail"
    bare, places = programs.without_weights(data, module)
    size = len(contents[".0 joined weight"])
    assert {".0 joined weight": [4], "2.weight": [7 + size, 7 + size + 9 * 9 * 4]} == places
    assert b"head" + bytes(size) + b"and" + bytes(2 * 9 * 9 * 4) + b"tail" == bare
    again = models.filled(torch.nn.Sequential(*models.convolved(3, 20, 3), torch.nn.Linear(9, 9)))
    assert contents == programs.weights(again)


def test_what_fails_is_a_row_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import host

    def broken(*_: object) -> None:
        raise ValueError("out of\norder")

    monkeypatch.setattr(host, "recorded", broken)
    monkeypatch.setattr(host, "calls", broken)
    file = tmp_path / "found.json"
    assert 1 == command.main(["calls", "record", "gemm", *WGPU, "--json", str(file)])
    failures = [(row["workload"], row["way"], row["failure"]) for row in rows(file) if row["failure"]]
    message = "ValueError: out of order"
    assert [("calls", "", message), ("record", "wgpu exact", message)] == failures
    assert "gemm" == rows(file)[-1]["workload"]
    assert f"failed: record, 50 dispatches, wgpu exact: {message}" in capsys.readouterr().out


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["decoding"])
    assert "no workload 'decoding'; there are decode, prefill" in capsys.readouterr().err


def test_every_workload_is_there_and_says_what_it_is() -> None:
    modules = {command.ALL[name] for name in command.ALL} - {"operators"}
    folder = Path(command.__file__).parent
    page = (folder.parent / "docs" / "benchmarks.md").read_text("utf-8")
    assert all((folder / f"{module}.py").exists() for module in modules)
    for name in command.ALL:
        assert command.workload(name).__doc__, name
        assert f"| `{name}` |" in page


def test_ratios_say_how_many_times_as_fast() -> None:
    slower, faster = Row("w", "a", "wgpu exact", 4.0, "ms"), Row("w", "b", "wgpu exact", 30.0, "tok/s")
    figures = (("a", 2.0, "ms"), ("b", 10.0, "tok/s"))
    others = [Row("w", case, "PyTorch eager", value, unit, peer=True) for case, value, unit in figures]
    with_ratios([*others, slower, faster, Row("w", "a", "dawn exact", missing="no dawn here")])
    assert [{"PyTorch eager": 0.5}, {"PyTorch eager": 3.0}] == [slower.ratios, faster.ratios]
    assert ["wgpu exact: 1.22 × PyTorch eager over 4 cases (geometric mean), 2 at least as fast"] == [
        *summary([slower, faster] * 2)
    ]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table([*others, slower]))
    header = console.export_text().splitlines()[1]
    assert header.index("× PyTorch eager") < header.index("figure")


def test_a_wrong_result_is_a_failure_and_a_missing_engine_is_none() -> None:
    bench = Bench(quick=True)

    def missing() -> dict:
        raise Missing("no dawn here")

    row = bench.row("w", "a", Way("wgpu", "exact"), dict, {"value": 1.0, "error": 0.5})
    assert "differs from PyTorch by 5.0e-01 of the result's scale; 1e-03 is allowed" == row.failure
    assert not bench.row("w", "a", Way("wgpu", "fast"), dict, {"value": 1.0, "error": 0.01}).failure
    assert bench.row("w", "a", Way("wgpu", "exact"), dict, {"error": float("nan")}).failure
    row = bench.row("w", "a", Way("dawn", "exact"), missing)
    assert ("", "no dawn here") == (row.failure, row.missing)


def test_differences_are_shares_of_the_scale() -> None:
    inf = np.inf
    assert 0.25 == difference(np.array([1.0, -4.0]), np.array([2.0, -4.0]))
    assert 0.0 == difference(np.array([np.nan, inf]), np.array([np.nan, inf]))
    assert inf == difference(np.array([inf, 1.0]), np.array([1.0, 1.0]))
    assert np.isnan(difference(np.array([np.nan, 1.0]), np.array([1.0, 1.0])))
