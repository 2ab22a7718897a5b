"""`ptegpu profile` on the adapter of this machine, and its texts for times made up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Invoke

from ptegpu.cli.profile import By, note, report, show
from ptegpu.gpu import AdapterInfo, open_device
from ptegpu.gpu.ceilings import Ceilings
from ptegpu.gpu.profile import KernelTime
from ptegpu.plan.plan import Dispatch
from ptegpu.runtime.profile import Profile

FORWARD = ["aten.linear.default #0 of delegate 0 and 1 after it", "aten.linear.default #2 of delegate 0"]


def kernel(name: str, label: str, begin: float, seconds: float, read: int, flops: int = 0) -> KernelTime:
    return KernelTime(name, Dispatch(0, (), (2, 1), label, read, 100, flops), begin, seconds)


def made_up(pass_seconds: float = 50e-6) -> Profile:
    kernels = (
        kernel("gemv", "aten.linear.default #0 of delegate 0", 0.0, 20e-6, 19_900, 4_000_000),
        kernel("relu", "aten.relu.default #1 of delegate 0", 22e-6, 4e-6, 100),
        kernel("gemv", "aten.linear.default #2 of delegate 0", 30e-6, 40e-6, 39_900, 8_000_000),
    )
    adapter = AdapterInfo(0, "A GPU", "Vulkan", "discrete", "NVIDIA", "", frozenset(), {})
    return Profile("forward", adapter, 5, kernels, pass_seconds, 200e-6, Ceilings(4e9, 1e12))


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(made_up(), By.KERNEL, "m.pte")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [
        "m.pte · forward on A GPU (discrete, Vulkan)",
        "times are medians of 5 · at most, measured: 4 GB/s copied, 1 TFLOP/s of f32",
    ] == lines[:2]
    table = [" ".join(line.split()) for line in lines[2:-2]]
    assert "kernel count GPU time share µs each GB/s of max TFLOP/s of max" == table[0]
    assert "gemv 2 60 µs 93.8 % 30 1 25 % 0.2 20 %" == table[2]
    assert "relu 1 4 µs 6.25 % 4 0.05 1.25 %" == table[3]
    assert [
        "dispatches 3 · kernels 64 µs · single pass 50 µs · wall 200 µs · host 150 µs",
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to 64 µs, "
        "the single pass takes 50 µs, so splitting costs 14 µs (28 %).",
    ] == lines[-2:]


def test_rows_by_operator_and_by_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    show(made_up(), By.OPERATOR, "m.pte")
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines() if "aten." in line]
    assert [["aten.linear.default", "2", "60", "µs"], ["aten.relu.default", "1", "4", "µs"]] == rows
    show(made_up(), By.DISPATCH, "m.pte")
    rows = [line.split()[:8] for line in capsys.readouterr().out.splitlines() if "aten." in line]
    assert [
        ["aten.linear.default", "#0", "of", "delegate", "0", "gemv", "20", "µs"],
        ["aten.relu.default", "#1", "of", "delegate", "0", "relu", "4", "µs"],
        ["aten.linear.default", "#2", "of", "delegate", "0", "gemv", "40", "µs"],
    ] == rows


def test_splitting_that_costs_nothing() -> None:
    assert (
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to 64 µs, "
        "the single pass takes 70 µs, so splitting costs nothing that can be measured."
    ) == note(made_up(pass_seconds=70e-6))


def test_a_method_without_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    made = made_up()
    empty = Profile("forward", made.adapter, 1, (), 0.0, 1e-3, made.ceilings)
    show(empty, By.KERNEL, "m.pte")
    assert "dispatches 0 · kernels 0 µs · single pass 0 µs · wall 1 ms · host 1 ms" in capsys.readouterr().out
    assert [] == report(empty, By.KERNEL)["rows"] == empty.trace()["traceEvents"][2:]


def test_the_report() -> None:
    found = report(made_up(), By.KERNEL)
    assert {"index": 0, "name": "A GPU", "type": "discrete", "backend": "Vulkan"} == found["adapter"]
    assert {"bytes_per_s": 4e9, "flops_per_s": 1e12} == found["ceilings"]
    assert (
        pytest.approx(
            {
                "dispatches": 3,
                "kernels_s": 64e-6,
                "pass_s": 50e-6,
                "split_s": 14e-6,
                "wall_s": 200e-6,
                "host_s": 150e-6,
                "bytes": 60_200,
                "flops": 12_000_000,
            }
        )
        == found["totals"]
    )
    first = found["rows"][0]
    assert ("kernel", "gemv") == (found["by"], first.pop("name"))
    assert (
        pytest.approx(
            {
                "count": 2,
                "seconds": 60e-6,
                "share": 60 / 64,
                "bytes": 60_000,
                "flops": 12_000_000,
                "bytes_per_s": 1e9,
                "of_bandwidth": 0.25,
                "flops_per_s": 2e11,
                "of_flops": 0.2,
            }
        )
        == first
    )


def events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


def test_the_trace() -> None:
    trace = made_up().trace()
    names = {e["name"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {"process_name": "A GPU", "thread_name": "forward, a pass for each kernel"} == names
    assert [("gemv", 0, 20), ("relu", 22, 4), ("gemv", 30, 40)] == [
        (e["name"], pytest.approx(e["ts"]), pytest.approx(e["dur"])) for e in events(trace)
    ]
    assert {
        "node": "aten.relu.default #1 of delegate 0",
        "workgroups": [2, 1],
        "read_bytes": 100,
        "write_bytes": 100,
        "flops": 0,
    } == events(trace)[1]["args"]


def test_it_prints_a_table(invoke: Invoke, mlp: Path) -> None:
    ended = invoke("profile", mlp, "--repeat", 2, "--by", "dispatch", "--input", "ones")
    assert (0, "") == (ended.code, ended.err)
    assert ended.out.startswith("mlp.pte · forward on ")
    assert all(label in ended.out for label in FORWARD)
    assert "so splitting costs " in ended.out


def test_json_and_trace(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    found = invoke("profile", mlp, "--repeat", 2, "--by", "operator", "--json", "--trace", file).json()
    expected = {"model": str(mlp), "method": "forward", "by": "operator", "trace": str(file)}
    assert expected == {k: found[k] for k in expected}
    assert {"aten.linear.default": 1, "aten.linear.default and 1 after it": 1} == {
        r["name"]: r["count"] for r in found["rows"]
    }
    assert 2 == found["totals"]["dispatches"]
    assert 1 == pytest.approx(sum(r["share"] for r in found["rows"]))
    timed = events(json.loads(file.read_text("utf-8")))
    assert FORWARD == [e["args"]["node"] for e in timed][:2]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(timed))


def test_where_a_trace_is_saved_is_said(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    ended = invoke("profile", mlp, "--repeat", 1, "--trace", file)
    assert ended.out.endswith(f"saved {file}: open it at https://ui.perfetto.dev\n")


def test_methods_data_files_and_shapes(invoke: Invoke, data: Path) -> None:
    files = ["--data", data / "dynamic-0.ptd", "--data", data / "dynamic-1.ptd"]
    written = [
        invoke("profile", data / "dynamic.pte", *files, "--repeat", 1, "--json", *shape).json()["totals"]["bytes"]
        for shape in (["--shape", "0=1x5"], [])
    ]
    assert 0 < written[0] < written[1]
    assert "encode" == invoke("profile", data / "methods.pte", "--method", "encode", "--json").json()["method"]


def test_an_adapter_without_timestamps(invoke: Invoke, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    monkeypatch.setattr(device, "timestamps", False)
    ended = invoke("profile", mlp)
    name = device.target.name
    expected = f"error: GPU time is measured with timestamp queries, which {name} does not have\n"
    assert (1, "", expected) == (ended.code, ended.out, ended.err)


def test_usage_errors(invoke: Invoke, mlp: Path) -> None:
    assert 2 == invoke("profile", mlp, "--by", "colour").code
    assert 2 == invoke("profile", mlp, "--repeat", 0).code
