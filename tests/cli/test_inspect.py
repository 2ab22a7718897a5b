"""`ptegpu inspect`, which needs no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import DATA, Invoke
from tests.test_layers import BLOCKER, SRC

import ptegpu
from ptegpu.compiler.partition import ValueBounds, runs_on_gpu
from ptegpu.dtypes import DType
from ptegpu.explain.analysis import why_on_host
from ptegpu.graph.flat import FlatMethod
from ptegpu.ops import REGISTRY
from ptegpu.plan.method import Call, Operand, Var
from ptegpu.plan.target import Target


def test_a_method_in_json(invoke: Invoke, mlp: Path) -> None:
    report = invoke("inspect", mlp, "--json").json()
    assert (report["file"], report["nbytes"]) == (str(mlp), mlp.stat().st_size)
    (method,) = report["methods"]
    assert method["name"] == "forward"
    assert method["inputs"] == [{"name": "input 0", "dtype": "float32", "shape": [2, 8], "dynamic": False}]
    assert method["outputs"] == [{"name": "output 0", "dtype": "float32", "shape": [2, 4], "dynamic": False}]
    (delegate,) = method["delegates"]
    assert (delegate["backend"], delegate["calls"]) == ("VulkanBackend", 3)
    assert method["constants"] == {"count": 4, "nbytes": (8 * 16 + 16 + 16 * 4 + 4) * 4}
    assert method["operators"] == [
        {"name": "aten.linear.default", "count": 2, "where": "GPU", "why": ""},
        {"name": "aten.relu.default", "count": 1, "where": "GPU", "why": ""},
    ]
    assert (len(method["plans"]), method["host_steps"], method["unsupported"], method["notes"]) == (1, 0, [], [])
    memory = method["memory"]
    assert memory["constants"] == method["constants"]["nbytes"]
    assert memory["total"] == sum(n for name, n in memory.items() if name != "total")


def test_the_card(invoke: Invoke, mlp: Path) -> None:
    tales = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
    card = invoke("inspect", tales, "--json").json()["card"]
    assert ("text", 256, [1]) == (card["kind"], card["context"], card["stop"])
    out = invoke("inspect", tales).out.splitlines()
    assert {"card", "  kind        text", "  context     256", "  inputs      tokens position"} <= set(out)
    assert {"kind": "program"} == invoke("inspect", mlp, "--json").json()["card"]
    assert "card" not in invoke("inspect", mlp).out.splitlines()


def test_a_method_for_people(invoke: Invoke, mlp: Path) -> None:
    out = invoke("inspect", mlp).out
    for line in (
        "method forward",
        "  input 0     float32[2, 8]",
        "  output 0    float32[2, 4]",
        "  constants   4, 848 bytes",
    ):
        assert line in out.splitlines()
    assert "runs as     1 plan (3 nodes)" in out
    assert " why " not in out  # nothing runs on the host


def test_dynamic_bounds_and_missing_data(invoke: Invoke, data: Path) -> None:
    ended = invoke("inspect", data / "dynamic.pte")
    assert ended.code == 0
    assert "  input 0     int64 of at most [1, 16]" in ended.out.splitlines()
    assert "note: 4 constants are in none of the files, and taken as zeros; pass --data (" in ended.out
    files = ["--data", data / "dynamic-0.ptd", "--data", data / "dynamic-1.ptd"]
    (method,) = invoke("inspect", data / "dynamic.pte", *files, "--json").json()["methods"]
    assert method["notes"] == []
    assert {"name": "sym_size.int", "count": 1, "where": "shapes", "why": ""} in method["operators"]


def test_state_and_host_steps(invoke: Invoke, data: Path) -> None:
    (method,) = invoke("inspect", data / "control.pte", "--json").json()["methods"]
    assert method["states"] == {"count": 1, "nbytes": 4}
    assert method["host_steps"] == 4
    assert method["host"] == {"numpy_calls": 0, "scalar_calls": 0, "jumps": 2, "moves": 2}
    expected = "  runs as     4 plans (3, 1, 1 and 11 nodes); on the host 2 jumps and 2 moves"
    assert expected in invoke("inspect", data / "control.pte").out.splitlines()
    assert method["outputs"][4] == {"name": "output 4", "dtype": "int", "value": 7}


def test_why_the_host_runs_what_it_runs(invoke: Invoke, counting: Path) -> None:
    (method,) = invoke("inspect", counting, "--json").json()["methods"]
    assert {
        "aten.masked_scatter.default": "no GPU kernel",
        "aten.mul.Tensor": "int64, exact only on the host",
        "aten.add.Tensor": "int64, exact only on the host",
        "dim_order_ops._to_dim_order_copy.default": "float64, which its GPU kernel does not take",
        "aten.sum.dim_IntList": "float64, which its GPU kernel does not take",
    } == {row["name"]: row["why"] for row in method["operators"] if row["where"] == "host"}
    rows = [" ".join(line.split()) for line in invoke("inspect", counting).out.splitlines()]
    assert "operator count runs on why" in rows
    assert "aten.masked_scatter.default 1 host (NumPy) no GPU kernel" in rows
    assert "aten._softmax.default 1 GPU" in rows


X, N, I32 = Var("x", DType.F32, (3, 4)), Var("n", DType.I64, (3,)), Var("i", DType.I32, (3,))
F, S = Var("f", None), Var("s", None)  # scalars: a float, an int


@pytest.mark.parametrize(
    ("operator", "args", "out", "why"),
    [
        ("aten.nonzero.default", (X,), N, "no GPU kernel"),
        ("aten.mul.Tensor", (N, N), N, "int64, exact only on the host"),
        ("aten.add.Tensor", (Var("d", DType.F64, (3,)), 1.0, 1), Var("d", DType.F64, (3,)), "float64, {}"),
        ("aten.native_layer_norm.default", (I32, (3,), None, None, 1e-5), I32, "int32, {}"),
        ("aten.index.Tensor", (X, (Var("m", DType.BOOL, (3, 4)),)), X, "bool, {}"),
        ("aten.mul.Scalar", (X, F), X, "a number that is known only at run time and is not an int"),
        ("aten._local_scalar_dense.default", (Var("y", DType.F32, (1,)),), F, "reads an item of a float32 tensor"),
        ("executorch_prim.truediv.Scalar", (S, 2), F, "numbers only, nothing for a GPU to do"),
        ("executorch_prim.add.Scalar", (S, 1), S, "numbers only, nothing for a GPU to do"),
    ],
)
def test_every_reason_has_a_text(operator: str, args: tuple[Operand, ...], out: Var, why: str) -> None:
    call = Call(operator, args, (out,), operator)
    facts = ValueBounds(FlatMethod("forward", [S]))
    assert why_on_host(call, lambda c: runs_on_gpu(c, facts)) == why.format("which its GPU kernel does not take")


def test_arguments_that_the_gpu_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = REGISTRY["aten.relu.default"]
    monkeypatch.setitem(REGISTRY, relu.name, replace(relu, serves=lambda _: False))
    call = Call(relu.name, (X,), (X,), relu.name)
    facts = ValueBounds(FlatMethod("forward"))
    assert why_on_host(call, lambda c: runs_on_gpu(c, facts)) == "arguments that its GPU kernel does not take"


def test_what_the_gpu_could_run() -> None:
    call = Call("aten.relu.default", (X,), (X,), "aten.relu.default")
    assert why_on_host(call, lambda _: True) == "another host step needs its result"


def test_all_methods_or_one(invoke: Invoke, data: Path) -> None:
    file = data / "methods.pte"
    names = [m["name"] for m in invoke("inspect", file, "--json").json()["methods"]]
    assert names == ["encode", "forward", "get_vocab_size", "get_name", "get_scale", "use_cache"]
    (method,) = invoke("inspect", file, "--method", "get_scale", "--json").json()["methods"]
    assert method["outputs"] == [{"name": "output 0", "dtype": "float", "value": 0.5}]
    assert (method["plans"], method["memory"], method["operators"]) == ([], None, [])
    assert invoke("inspect", file, "--method", "x").code == 1


def test_unsupported_operators_are_listed_and_not_fatal(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.pte"
    unknown.write_bytes(mlp.read_bytes().replace(b"aten.linear.default", b"aten.banana.default"))
    (method,) = invoke("inspect", unknown, "--json").json()["methods"]
    assert {"name": "aten.banana.default", "count": 2, "where": "unsupported", "why": ""} in method["operators"]
    assert [row["call"].split("(")[0] for row in method["unsupported"]] == ["aten.banana.default"] * 2
    lines = invoke("inspect", unknown).out.splitlines()
    assert "  runs as     nothing yet: see what is unsupported below" in lines
    assert "unsupported:" in lines
    assert lines[-1].startswith("     1 × aten.banana.default(float32[2, 8], ")
    assert invoke("inspect", unknown, "--graph", tmp_path / "unknown.svg").code == 0


def test_an_unknown_backend_is_shown_and_not_fatal(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.pte"
    foreign.write_bytes(mlp.read_bytes().replace(b"VulkanBackend", b"BananaBackend"))
    (method,) = invoke("inspect", foreign, "--json").json()["methods"]
    (delegate,) = method["delegates"]
    assert (delegate["backend"], delegate["calls"]) == ("BananaBackend", None)
    assert method["unsupported"] == [{"call": "backend BananaBackend", "count": 1}]
    note = (
        "method forward calls the backend BananaBackend; ptegpu runs VulkanBackend and programs without a delegate: "
        "export with VulkanPartitioner or WebGPUPartitioner"
    )
    assert method["notes"] == [note]
    assert "BananaBackend, " in invoke("inspect", foreign).out
    ended = invoke("inspect", foreign, "--graph", tmp_path / "x.svg")
    assert (ended.code, ended.err) == (1, f"error: cannot draw method forward: {note}\n")


def test_what_a_plan_that_never_changes_is_made_of(invoke: Invoke, data: Path) -> None:
    (method,) = invoke("inspect", data / "control.pte", "--json").json()["methods"]
    assert [plan["nodes"] for plan in method["plans"]] == [3, 1, 1, 11]
    assert all(0 < plan["kernels"] <= plan["nodes"] for plan in method["plans"])
    assert all((plan["sizes"], plan["expressions"], len(plan["families"])) == ({}, 0, 1) for plan in method["plans"])
    assert method["at"] is None
    assert "family" not in invoke("inspect", data / "control.pte").out.replace("families", "")


def test_families_and_their_guards(invoke: Invoke, data: Path) -> None:
    (method,) = invoke("inspect", data / "dynamic.pte", "--json").json()["methods"]
    (plan,) = method["plans"]
    assert plan["sizes"] == {"input 0[0]": 1, "input 0[1]": 16}
    first = plan["families"][0]
    assert "input 0[0] == 1" in first["where"]
    assert any("input 0[0]" in text for text in first["guards"])  # as the plan has them
    assert sum(step["nodes"] for step in first["steps"]) == plan["nodes"]
    lines = invoke("inspect", data / "dynamic.pte").out.splitlines()
    rows = [" ".join(line.split()) for line in lines]
    assert "plan nodes kernels families choices expressions dynamic sizes" in rows
    figures = [1, plan["nodes"], plan["kernels"], len(plan["families"]), plan["choices"], plan["expressions"]]
    assert f"{' '.join(map(str, figures))} input 0[0] ≤ 1, input 0[1] ≤ 16" in rows
    assert f"  plan 1, family 1: {', '.join(first['where'])}" in lines
    refused = [f["refusal"] for f in plan["families"] if f["refusal"]]
    assert all(any(line.endswith(f" (refused: {why})") for line in lines) for why in refused)
    choices = next(step["choices"] for step in first["steps"] if len(step["choices"]) > 1)
    text = " | ".join(", ".join(choice["where"]) for choice in choices)
    assert any(line.endswith(f": {text}") and " node" in line for line in lines)


def test_what_a_size_costs(invoke: Invoke, data: Path) -> None:
    model = data / "dynamic.pte"
    (method,) = invoke("inspect", model, "--size", "input 0[1]=5", "--json").json()["methods"]
    (small,) = method["at"]
    (method,) = invoke("inspect", model, "--size", "input 0[1]=10", "--json").json()["methods"]
    (large,) = method["at"]
    assert (small["sizes"], small["family"]) == ({"input 0[0]": 1, "input 0[1]": 5}, 1)
    assert large["family"] == 1
    assert large["choices"] != small["choices"]  # of the product, which has more rows
    assert large["flops"] == 2 * small["flops"] > 0
    assert all(0 < small[name] < large[name] for name in ("read_bytes", "write_bytes"))
    assert small["dispatches"] <= small["workgroups"]
    rows = [" ".join(line.split()) for line in invoke("inspect", model, "--size", "input 0[1]=5").out.splitlines()]
    assert "plan at family choice × nodes dispatches workgroups FLOP read written" in rows
    assert any(row.startswith("1 input 0[0]=1, input 0[1]=5 1 ") for row in rows)
    (method,) = invoke("inspect", model, "--size", "input 0[0]=0", "--json").json()["methods"]
    (refused,) = method["at"]
    assert "cannot be viewed as [16, 8]" in refused["refusal"]
    assert refused["dispatches"] == 0
    rows = [" ".join(line.split()) for line in invoke("inspect", model, "--size", "input 0[0]=0").out.splitlines()]
    assert f"1 input 0[0]=0, input 0[1]=16 {refused['family']} {refused['refusal']}" in rows


def test_a_size_that_was_not_planned(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "dynamic.bundle"
    files = ["--data", data / "dynamic-0.ptd", "--data", data / "dynamic-1.ptd"]
    options = ["--size", "input 0[1]=16", "--size", "input 0[0]=1"]
    assert invoke("compile", data / "dynamic.pte", *files, *options, "-o", file).code == 0
    (method,) = invoke("inspect", file, "--size", "input 0[1]=0", "--json").json()["methods"]
    assert method["at"][0]["family"] is None
    assert "not planned" in invoke("inspect", file, "--size", "input 0[1]=0").out


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("input 1[0]=3", 1, "unknown dynamic size 'input 1[0]'; dynamic sizes are: input 0[0], input 0[1]"),
        ("input 0[1]=17", 1, "input 0[1] is at most 16, not 17"),
        ("input 0[1]", 2, "'input 0[1]' is not of the form 'input 0[1]=1..512'"),
        ("input 0[1]=1..2", 2, "input 0[1] has 2 values; expected one"),
        ("input 0[1]=3..2", 2, "'input 0[1]=3..2': the range is empty"),
    ],
)
def test_sizes_that_there_are_not(invoke: Invoke, data: Path, text: str, code: int, message: str) -> None:
    ended = invoke("inspect", data / "dynamic.pte", "--size", text)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err


def test_what_is_too_large_for_a_browser_is_noted(invoke: Invoke, mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.explain.analysis.BROWSER", Target(max_binding_bytes=16, max_buffer_bytes=16))
    (method,) = invoke("inspect", mlp, "--json").json()["methods"]
    (note,) = method["notes"]
    assert note.startswith("too large for a browser's limits: ")
    assert len(method["plans"]) == 1
    assert method["memory"]["constants"] == method["constants"]["nbytes"]


@pytest.mark.parametrize("name", ["mlp", "cnn", "dynamic", "control"])
def test_pictures(invoke: Invoke, data: Path, tmp_path: Path, name: str) -> None:
    svg, html = tmp_path / "graph.svg", tmp_path / "graph.html"
    assert invoke("inspect", data / f"{name}.pte", "--graph", svg).code == 0
    root = ElementTree.fromstring(svg.read_text("utf-8"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"{name}.pte · forward"
    assert {"input 0", "output 0"} <= set(texts)
    assert invoke("inspect", data / f"{name}.pte", "--graph", html).code == 0
    page = html.read_text("utf-8")
    assert svg.read_text("utf-8") in page
    addresses = page.replace("http://www.w3.org/2000/svg", "")
    assert not any(word in addresses for word in ("http:", "https:", "src=", "@import"))


def test_a_picture_needs_one_method(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    assert invoke("inspect", data / "methods.pte", "--graph", tmp_path / "forward.svg").code == 0
    assert "methods.pte · forward" in (tmp_path / "forward.svg").read_text("utf-8")
    ended = invoke("inspect", data / "methods.pte", "--method", "encode", "--graph", tmp_path / "encode.svg")
    assert ended.code == 0
    assert invoke("inspect", data / "methods.pte", "--graph", "x.png").code == 2


def test_it_works_without_wgpu_and_torch(tmp_path: Path) -> None:
    arguments = ["inspect", str(DATA / "control.pte"), "--json", "--graph", str(tmp_path / "graph.html")]
    code = f"{BLOCKER}\nsys.path.insert(0, {str(SRC)!r})\nfrom ptegpu.cli import main\nmain({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["methods"][0]["name"] == "forward"


def test_run_without_wgpu_says_what_is_missing(mlp: Path) -> None:
    start = f"import sys\nsys.path.insert(0, {str(SRC)!r})\nsys.modules['wgpu'] = None\n"
    code = f"{start}from ptegpu.cli import main\nmain(['run', {str(mlp)!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = "error: wgpu is not installed. Run: pip install 'wgpu==0.32.*'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
