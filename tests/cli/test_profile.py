"""`ptegpu profile` on the adapter of this machine, and its texts for times made up."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Invoke

import ptegpu
from ptegpu.cli.profile import By, profile_report, split_note
from ptegpu.gpu import AdapterInfo, open_device
from ptegpu.gpu.device import Traffic
from ptegpu.gpu.timing import KernelTime
from ptegpu.plan.plan import PlannedDispatch
from ptegpu.plan.target import DeviceClass
from ptegpu.runtime.call_timeline import CallStep
from ptegpu.runtime.profile import Profile

Capture = pytest.CaptureFixture[str]

FORWARD = ["aten.linear.default #0 of delegate 0 and 1 after it", "aten.linear.default #2 of delegate 0"]


def kernel(name: str, label: str, begin: float, seconds: float, read: int, flops: int = 0) -> KernelTime:
    return KernelTime(name, PlannedDispatch(0, (), (2, 1), label, read, 100, flops), begin, seconds)


def step(kind: str, name: str, begin: float, seconds: float, waited: float = 0.0, **traffic: float) -> CallStep:
    return CallStep(kind, name, 1, begin, seconds, waited, Traffic(**traffic))  # type: ignore[arg-type]


STEPS = (
    step("arguments", "arguments", 0.0, 10e-6),
    step("plan", "plan 1 (2 nodes)", 10e-6, 80e-6, 50e-6, uploads=1, upload_bytes=64, upload_seconds=5e-6),
    step("NumPy call", "aten.topk.default", 90e-6, 40e-6, readbacks=1, readback_bytes=32, readback_seconds=25e-6),
    step("jump", "jump", 130e-6, 2e-6),
    step("NumPy call", "aten.topk.default", 132e-6, 20e-6),
    step("plan", "plan 2 (1 node)", 152e-6, 90e-6, 60e-6, uploads=2, upload_bytes=36, upload_seconds=10e-6),
    step("results", "results", 242e-6, 8e-6),
)


def made_up(pass_seconds: float = 50e-6) -> Profile:
    kernels = (
        kernel("gemv", "aten.linear.default #0 of delegate 0", 0.0, 20e-6, 19_900, 4_000_000),
        kernel("relu", "aten.relu.default #1 of delegate 0", 22e-6, 4e-6, 100),
        kernel("gemv", "aten.linear.default #2 of delegate 0", 30e-6, 40e-6, 39_900, 8_000_000),
    )
    adapter = AdapterInfo(0, "A GPU", "Vulkan", "discrete", "NVIDIA", "", frozenset(), {})
    peak = DeviceClass("discrete", 4e9, 1e12, 1e-6, 8)
    return Profile("forward", adapter, 5, kernels, pass_seconds, 200e-6, peak, STEPS)


def lines_of(out: str) -> list[str]:
    """The lines that are not empty, spaces counted once."""
    return [" ".join(line.split()) for line in out.splitlines() if line.strip()]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    profile_report(made_up(), By.KERNEL, Path("m.pte")).print(False)
    lines = [line for line in lines_of(capsys.readouterr().out) if not line.startswith("──")]
    assert [
        "m.pte · forward on A GPU (discrete, Vulkan through wgpu)",
        "medians of 5 calls · this adapter's measured maximum: 4 GB/s (copies), 1 TFLOP/s (f32)",
        "kernel count GPU time share each GB/s of max TFLOP/s of max",
        "gemv 2 60 µs 93.8 % 30 µs 1 25 % 0.2 20 %",
        "relu 1 4 µs 6.25 % 0.05 1.25 %",
        "dispatches 3 · kernels 64 µs · single pass 50 µs · wall 200 µs · host 150 µs",
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to 64 µs, "
        "the single pass takes 50 µs, so splitting costs 14 µs (28 %).",
        "step of a call count time share upload wait read back host",
        "arguments 1 10 µs 4 % 10 µs",
        "plan 1 (2 nodes) 1 80 µs 32 % 5 µs 50 µs 25 µs",
        "aten.topk.default 2 60 µs 24 % 25 µs 35 µs",
        "jump 1 2 µs 0.8 % 2 µs",
        "plan 2 (1 node) 1 90 µs 36 % 10 µs 60 µs 20 µs",
        "results 1 8 µs 3.2 % 8 µs",
        "sum 7 250 µs 100 % 15 µs 110 µs 25 µs 100 µs",
        "2 plans · 2 NumPy calls · 3 uploads of 100 bytes · 1 read back of 32 bytes",
        "The steps add up to 250 µs, an ordinary call takes 200 µs: to time its steps, a call waits for each plan "
        "before it reads the results.",
    ] == lines


@pytest.mark.parametrize("by", By)
def test_a_narrow_terminal_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch, capsys: Capture, by: By) -> None:
    monkeypatch.setattr("ptegpu.cli.console.PIPE_WIDTH", 80)
    profile_report(made_up(), by, Path("m.pte")).print(False)
    out = capsys.readouterr().out
    tables = [line for line in out.splitlines() if line.startswith(" ")]
    assert tables and max(map(len, tables)) <= 80
    assert "read back" in out and "25 µs" in out and "60 µs" in out


def test_rows_by_operator_and_by_dispatch(capsys: pytest.CaptureFixture[str]) -> None:
    profile_report(made_up(), By.OPERATOR, Path("m.pte")).print(False)
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines() if "aten." in line][:-1]
    assert [["aten.linear.default", "2", "60", "µs"], ["aten.relu.default", "1", "4", "µs"]] == rows
    profile_report(made_up(), By.DISPATCH, Path("m.pte")).print(False)
    rows = [line.split()[:8] for line in capsys.readouterr().out.splitlines() if "delegate" in line]
    assert [
        ["aten.linear.default", "#0", "of", "delegate", "0", "gemv", "20", "µs"],
        ["aten.relu.default", "#1", "of", "delegate", "0", "relu", "4", "µs"],
        ["aten.linear.default", "#2", "of", "delegate", "0", "gemv", "40", "µs"],
    ] == rows


def test_splitting_that_costs_nothing() -> None:
    assert (
        "Profiling gives each kernel a pass of its own, ordinary calls run all in one: the kernels add up to 64 µs, "
        "the single pass takes 70 µs, so splitting costs nothing measurable."
    ) == split_note(made_up(pass_seconds=70e-6))


def test_a_method_without_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    profile = made_up()
    empty = Profile("forward", profile.adapter, 1, (), 0.0, 1e-3, profile.ceilings, STEPS[:1])
    profile_report(empty, By.KERNEL, Path("m.pte")).print(False)
    assert "dispatches 0 · kernels 0 µs · single pass 0 µs · wall 1 ms · host 1 ms" in capsys.readouterr().out
    assert [] == profile_report(empty, By.KERNEL, Path("m.pte")).record["rows"]
    assert ["arguments"] == [e["name"] for e in events(empty.trace())]


def test_the_report() -> None:
    record = profile_report(made_up(), By.KERNEL, Path("m.pte")).record
    assert {"index": 0, "name": "A GPU", "type": "discrete", "backend": "Vulkan", "engine": "wgpu"} == record["adapter"]
    assert {"bytes_per_s": 4e9, "flops_per_s": 1e12} == record["ceilings"]
    assert (
        pytest.approx(
            {
                "dispatches": 3,
                "kernels_s": 64e-6,
                "pass_s": 50e-6,
                "split_s": 14e-6,
                "wall_s": 200e-6,
                "host_s": 150e-6,
                "steps_s": 250e-6,
                "plans": 2,
                "host_steps": 3,
                "uploads": 3,
                "upload_bytes": 100,
                "upload_s": 15e-6,
                "readbacks": 1,
                "readback_bytes": 32,
                "readback_s": 25e-6,
                "bytes": 60_200,
                "flops": 12_000_000,
            }
        )
        == record["totals"]
    )
    first = record["rows"][0]
    assert ("kernel", "gemv") == (record["by"], first.pop("name"))
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


def test_the_steps_of_the_report() -> None:
    steps = profile_report(made_up(), By.KERNEL, Path("m.pte")).record["steps"]
    names = ["arguments", "plan 1 (2 nodes)", "aten.topk.default", "jump", "plan 2 (1 node)", "results"]
    assert names == [row["name"] for row in steps]
    assert 1 == pytest.approx(sum(row["share"] for row in steps))
    numpy = steps[2]
    assert ("NumPy call", "aten.topk.default") == (numpy.pop("kind"), numpy.pop("name"))
    expected = {"count": 2, "seconds": 60e-6, "share": 0.24, "wait_s": 0.0, "host_s": 35e-6}
    expected |= {"uploads": 0, "upload_bytes": 0, "upload_s": 0.0}
    expected |= {"readbacks": 1, "readback_bytes": 32, "readback_s": 25e-6}
    assert pytest.approx(expected) == numpy


def events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


def test_the_trace() -> None:
    trace = made_up().trace()
    json.dumps(trace, allow_nan=False)
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    kernels, steps = "forward: GPU, a pass for each kernel", "forward: host, steps of another call"
    assert {0: "A GPU", 1: kernels, 2: steps} == names
    assert [("gemv", 0, 20), ("relu", 22, 4), ("gemv", 30, 40)] == [
        (e["name"], pytest.approx(e["ts"]), pytest.approx(e["dur"])) for e in events(trace) if e["tid"] == 1
    ]
    assert {
        "node": "aten.relu.default #1 of delegate 0",
        "workgroups": [2, 1],
        "read_bytes": 100,
        "write_bytes": 100,
        "flops": 0,
    } == events(trace)[1]["args"]
    on_host = [e for e in events(trace) if e["tid"] == 2]
    assert [(s.name, s.kind) for s in STEPS] == [(e["name"], e["cat"]) for e in on_host]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(on_host))
    assert 32 == on_host[2]["args"]["readback_bytes"]


def test_it_prints_a_table(invoke: Invoke, mlp: Path) -> None:
    ended = invoke("profile", mlp, "--repeat", 2, "--by", "dispatch", "--input", "ones")
    assert (0, "") == (ended.code, ended.err)
    assert ended.out.startswith("mlp.pte · forward on ")
    assert all(label in ended.out for label in FORWARD)
    assert "so splitting costs " in ended.out


def test_json_and_trace(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    record = invoke("profile", mlp, "--repeat", 2, "--by", "operator", "--json", "--trace", file).json()
    expected = {"model": str(mlp), "method": "forward", "by": "operator", "trace": str(file)}
    assert expected == {k: record[k] for k in expected}
    assert {"aten.linear.default": 1, "aten.linear.default and 1 after it": 1} == {
        r["name"]: r["count"] for r in record["rows"]
    }
    assert 2 == record["totals"]["dispatches"]
    assert 1 == pytest.approx(sum(r["share"] for r in record["rows"]))
    assert (1, 0) == (record["totals"]["plans"], record["totals"]["host_steps"])
    assert ["arguments", "plan 1 (3 nodes)", "results"] == [row["name"] for row in record["steps"]]
    every = events(json.loads(file.read_text("utf-8")))
    assert ["arguments", "plan 1 (3 nodes)", "results"] == [e["name"] for e in every if e["tid"] == 2]
    timed = [e for e in every if e["tid"] == 1]
    assert FORWARD == [e["args"]["node"] for e in timed][:2]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(timed))


def test_a_program_with_host_steps(invoke: Invoke, counting: Path) -> None:
    record = invoke("profile", counting, "--repeat", 2, "--json").json()
    steps = {row["name"]: row for row in record["steps"]}
    assert ["plan 1 (2 nodes)", "plan 2 (2 nodes)"] == [name for name, row in steps.items() if row["kind"] == "plan"]
    numpy = {name for name, row in steps.items() if row["kind"] == "NumPy call"}
    assert {"aten.masked_scatter.default", "aten.mul.Tensor", "aten.sum.dim_IntList"} <= numpy
    first = steps["plan 1 (2 nodes)"]  # takes x (3, 4), gives relu (3, 4) and where x is above 0
    assert (48, 48 + 12) == (first["upload_bytes"], first["readback_bytes"])
    totals = record["totals"]
    assert (2, 5) == (totals["plans"], totals["host_steps"])
    assert (2, 48 + 48, 60 + 48) == tuple(totals[name] for name in ("uploads", "upload_bytes", "readback_bytes"))
    assert totals["steps_s"] == pytest.approx(sum(row["seconds"] for row in record["steps"]))
    for row in record["steps"]:
        parts = row["upload_s"] + row["wait_s"] + row["readback_s"] + row["host_s"]
        assert 0 < row["seconds"] <= parts + 1e-9
    out = invoke("profile", counting, "--repeat", 1).out
    assert "2 plans · 5 NumPy calls · 2 uploads of 96 bytes · 2 read backs of 108 bytes\n" in out


def test_the_bundled_language_model_needs_no_inputs(invoke: Invoke) -> None:
    tales = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
    record = invoke("profile", tales, "--shape", "0=1x2", "--repeat", 1, "--json").json()
    assert 1 == record["totals"]["plans"]


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
