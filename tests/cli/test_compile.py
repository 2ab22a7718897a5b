"""`ptegpu compile`, and the other commands on what it makes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import DATA, Invoke
from tests.test_layers import BLOCKER, SRC

import ptegpu
from ptegpu import Bundle
from ptegpu.models.text.compiling import bundle_limits

DEMO = Path(ptegpu.__file__).parent / "demo"
FILES = ["--data", DATA / "dynamic-0.ptd", "--data", DATA / "dynamic-1.ptd"]


@pytest.fixture(scope="module")
def tales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled language model as a bundle, its tokenizer beside it."""
    folder = tmp_path_factory.mktemp("tales")
    for name in ("tales.tokenizer.json", "tales.tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    serve = ["--serve", "--sequences", "4", "--memory", "0.005", "--json"]
    report = without_gpu("compile", str(DEMO / "tales.pte"), "-o", str(folder / "tales.bundle"), *serve)
    last = ["ptegpu.generate", "ptegpu.serve", "ptegpu.serve.limits"]
    assert [m["name"] for m in report["methods"]][-3:] == last
    return folder / "tales.bundle"


def without_gpu(*arguments: str) -> Any:
    """Return what a command prints without wgpu and torch."""
    code = f"{BLOCKER}\nsys.path.insert(0, {str(SRC)!r})\nfrom ptegpu.cli import main\nmain({list(arguments)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_what_was_made_is_told(invoke: Invoke, counting: Path, tmp_path: Path) -> None:
    file = tmp_path / "counting.bundle"
    ended = invoke("compile", counting, "-o", file)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"counting.bundle · {file.stat().st_size / 1000:.3g} kB, made of counting.pte in ")
    rows = [line.split() for line in ended.out.splitlines()]
    assert ["method", "plans", "families", "choices", "expressions", "kernels", "GPU", "memory"] in rows
    assert any(row[:5] == ["forward", "2", "2", "4", "0"] for row in rows)
    assert rows[-1][:5] == ["forward", "needs", "5", "NumPy", "kernels:"]
    assert "aten.masked_scatter.default (1)" in ended.out


def test_json(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "dynamic.bundle"
    report = invoke("compile", data / "dynamic.pte", *FILES, "-o", file, "--json").json()
    assert (report["bundle"], report["nbytes"], report["targets"]) == (str(file), file.stat().st_size, ["generic"])
    (method,) = report["methods"]
    (plan,) = Bundle.load(file).methods[0]["forward"].plans
    assert (method["plans"], method["families"], method["kernels"]) == (1, len(plan.families), len(plan.kernels))
    assert method["expressions"] == len(plan.rows)
    assert method["choices"] == sum(len(choices) for f in plan.families for choices in f.steps)
    assert method["numpy"] == {}


def test_precision_is_that_of_the_targets(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.bundle"
    for options, expected in ((["--precision", "exact"], "exact"), ([], "auto")):
        assert invoke("compile", mlp, "-o", file, "--target", "browser", "--target", "this", *options).code == 0
        assert [expected] * 2 == [target.precision for target in Bundle.load(file).targets]


def test_persistent_is_an_option_of_this_adapter(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.bundle"
    ended = invoke("compile", mlp, "-o", file, "--persistent", "on")
    assert ended.code == 1
    assert "--persistent on has no effect in browsers: add --target this" in ended.err
    for mode, expected in (("on", 1), ("off", 0)):
        assert invoke("compile", mlp, "-o", file, "--target", "this", "--persistent", mode).code == 0
        assert [expected] == [target.resident for target in Bundle.load(file).targets]


def test_sizes_make_it_smaller(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    all_sizes, one_size = tmp_path / "all.bundle", tmp_path / "one.bundle"
    assert invoke("compile", data / "dynamic.pte", *FILES, "-o", all_sizes).code == 0
    size_options = ["--size", "input 0[1]=16", "--size", "input 0[0]=1"]
    assert invoke("compile", data / "dynamic.pte", *FILES, *size_options, "-o", one_size).code == 0
    assert one_size.stat().st_size < all_sizes.stat().st_size
    report = invoke("run", one_size, "--shape", "0=1x16", "--json").json()
    assert report["outputs"][0]["shape"] == [2, 16, 4]
    ended = invoke("run", one_size, "--shape", "0=1x2")
    assert ended.code == 1
    assert "compile the program again with these sizes" in ended.err
    assert invoke("run", all_sizes, "--shape", "0=1x2").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--size", "x[0]=3"],
            1,
            "unknown dynamic size 'x[0]'; dynamic sizes are: input 0[0], input 0[1]",
        ),
        (["--size", "x"], 2, "'x' is not of the form 'input 0[1]=1..512'"),
        (["--target", "no such GPU"], 1, "No adapter has 'no such GPU' in its name."),
        (["--serve"], 1, "dynamic.pte is not a language model: its forward takes 1 inputs"),
        (["--method", "backward"], 1, "no method 'backward'; the program has forward"),
    ],
)
def test_what_cannot_be_made(
    invoke: Invoke, data: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    file = tmp_path / "x.bundle"
    ended = invoke("compile", data / "dynamic.pte", *FILES, *arguments, "-o", file)
    assert (ended.code, ended.out, file.exists()) == (code, "", False)
    assert message in ended.err


def test_missing_data_and_bundles_are_refused(invoke: Invoke, data: Path, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.bundle"
    assert invoke("compile", data / "dynamic.pte", "-o", file).code == 1
    assert invoke("compile", mlp, "-o", file).code == 0
    ended = invoke("compile", file, "-o", tmp_path / "again.bundle")
    assert (ended.code, ended.err) == (1, f"error: {file} is a bundle already\n")


def test_a_program_is_not_overwritten(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    model = tmp_path / "mlp.pte"
    shutil.copy(mlp, model)
    ended = invoke("compile", model, "-o", model)
    assert (ended.code, ended.err) == (1, f"error: --output {model} is the program itself; name another file\n")
    assert model.read_bytes() == mlp.read_bytes()


def test_a_bundle_is_profiled(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.bundle"
    assert invoke("compile", mlp, "-o", file).code == 0
    record = invoke("profile", file, "--repeat", 1, "--json").json()
    expected = invoke("profile", mlp, "--repeat", 1, "--json").json()
    assert (record["model"], record["method"]) == (str(file), "forward")
    assert record["totals"]["flops"] == expected["totals"]["flops"] > 0


def test_several_targets(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.bundle"
    ended = invoke("compile", mlp, "-o", file, "--target", "this", "--target", "browser")
    assert ended.code == 0
    assert "target" in ended.out
    bundle = Bundle.load(file)
    assert [bundle.targets[1].name, len(bundle.methods)] == ["generic", 2]
    shown = invoke("inspect", file).out
    assert f"method forward for {bundle.targets[0].name}" in shown.splitlines()
    assert "method forward for generic" in shown.splitlines()
    report = invoke("inspect", file, "--json").json()
    assert [t["name"] for t in report["targets"]] == [m["target"] for m in report["methods"]]
    assert report["targets"][1]["max_storage_buffers"] == 8
    assert report["nbytes"] == file.stat().st_size


def test_a_bundle_runs_as_its_program_does(invoke: Invoke, counting: Path, tmp_path: Path) -> None:
    file, saved = tmp_path / "counting.bundle", tmp_path / "out.npz"
    assert invoke("compile", counting, "-o", file).code == 0
    assert invoke("run", counting, "--save", saved).code == 0
    ended = invoke("run", file, "--expect", saved, "--atol", 0, "--rtol", 0)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("counting.bundle · forward on ")
    assert len(np.load(saved).files) == 3
    ended = invoke("run", file, "--data", DATA / "dynamic-0.ptd")
    assert ended.code == 1
    assert ended.err.startswith("error: a bundle has its data and its calls already")


def test_only_some_methods(invoke: Invoke, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "encode.bundle"
    assert invoke("compile", data / "methods.pte", "-o", file, "--method", "encode", "--method", "get_name").code == 0
    methods = invoke("inspect", file, "--json").json()["methods"]
    assert [m["name"] for m in methods] == ["encode", "get_name"]
    (method,) = invoke("inspect", file, "--method", "encode", "--json").json()["methods"]
    assert method["plans"]
    ended = invoke("inspect", file, "--method", "forward")
    assert (ended.code, ended.err) == (1, "error: no method 'forward'; the bundle has encode, get_name\n")
    assert invoke("run", file, "--method", "encode", "--json").json()["outputs"][0]["shape"] == [2, 16]
    ended = invoke("run", file)
    assert (ended.code, ended.err) == (1, "error: no method 'forward'; the program has encode, get_name\n")


def test_a_bundle_is_inspected(invoke: Invoke, counting: Path, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "dynamic.bundle"
    assert invoke("compile", data / "dynamic.pte", *FILES, "-o", file).code == 0
    (of_bundle,) = invoke("inspect", file, "--size", "input 0[1]=5", "--json").json()["methods"]
    (of_file,) = invoke("inspect", data / "dynamic.pte", *FILES, "--size", "input 0[1]=5", "--json").json()["methods"]
    for name in ("inputs", "outputs", "plans", "at", "host", "numpy", "memory"):
        assert of_bundle[name] == of_file[name]
    lines = invoke("inspect", file).out.splitlines()
    assert "method forward for generic" in lines
    assert "  runs as     1 plan (12 nodes)" in lines
    for option, value in (("--graph", tmp_path / "x.svg"), ("--data", data / "dynamic-0.ptd")):
        ended = invoke("inspect", file, option, value)
        expected = f"error: {file} is a bundle: --data and --graph need the .pte that it was made of\n"
        assert (ended.code, ended.err) == (1, expected)
    assert invoke("compile", counting, "-o", file).code == 0
    assert "  needs NumPy kernels of aten.mul.Tensor (1), " in invoke("inspect", file).out


def test_a_damaged_bundle_is_one_line(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "mlp.bundle"
    assert invoke("compile", mlp, "-o", file).code == 0
    file.write_bytes(file.read_bytes()[:100])
    for command in ("run", "inspect", "profile"):
        ended = invoke(command, file)
        assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
        assert ended.err.startswith(f"error: {file}")


@pytest.mark.slow
def test_a_bundle_to_serve_has_the_limits_that_were_asked_for(tales: Path) -> None:
    pages, rows, sequences = bundle_limits(Bundle.load(tales))
    assert (256, 4) == (rows, sequences)
    assert pages == int(0.005 * 2**30) // (2 * 4 * 16 * 256 * 4)  # keys and values of 4 layers, 16 tokens of 256 floats


@pytest.mark.slow
def test_a_language_model_generates_from_its_bundle(invoke: Invoke, tales: Path) -> None:
    options = ["The Wolf", "--max-tokens", 8, "--json"]
    generation = invoke("generate", tales, *options).json()
    expected = invoke("generate", DEMO / "tales.pte", *options).json()
    assert (generation["text"], generation["tokens"]) == (expected["text"], expected["tokens"])
    np.testing.assert_allclose(generation["logprobs"], expected["logprobs"], atol=1e-4)
    text = tales.parent / "text.txt"
    text.write_text("Once upon a time there was a wolf.")
    from_bundle, from_program = (invoke("evaluate", m, text, "--json").json() for m in (tales, DEMO / "tales.pte"))
    assert from_bundle["scored"] == from_program["scored"]
    assert from_bundle["perplexity"] == pytest.approx(from_program["perplexity"], rel=1e-3)


def test_compiling_needs_no_wgpu_and_no_torch(invoke: Invoke, mlp: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here.bundle", tmp_path / "there.bundle"
    assert without_gpu("compile", str(mlp), "-o", str(there), "--json")["nbytes"] == there.stat().st_size
    assert invoke("compile", mlp, "-o", here).code == 0
    assert here.read_bytes() == there.read_bytes()
