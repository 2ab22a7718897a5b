"""The public names of `import ptegpu`: complete, visible to tab completion, and without loading a GPU library."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import ptegpu

DEMO = Path(ptegpu.__file__).parent / "demo"


def test_every_public_name_is_there_and_is_completed() -> None:
    shown = {name for name in dir(ptegpu) if not name.startswith("_")}
    assert {"load", "Program", "Method", "Runtime", "Spec", "Verification", "InvalidInput"} <= shown
    assert set(ptegpu.__all__) <= shown
    assert all(hasattr(ptegpu, name) for name in shown)
    assert not shown & {"Any", "TYPE_CHECKING", "annotations"}


def test_asking_for_names_loads_nothing() -> None:
    code = "import sys, ptegpu; dir(ptegpu); sys.exit(bool({'wgpu', 'torch', 'ray'} & set(sys.modules)))"
    assert 0 == subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode


def test_help_tells_of_the_main_things() -> None:
    text = pydoc.render_doc(ptegpu, renderer=pydoc.plaintext)
    for name in ("load(", "class Program(", "class Method(", "class Runtime(", 'ptegpu.load("model.pte")'):
        assert name in text


@pytest.mark.parametrize(("name", "own"), [("digits", "methods"), ("tales", "chunk")])
def test_an_unknown_option_is_named_beside_the_valid_ones(name: str, own: str) -> None:
    with pytest.raises(
        ptegpu.InvalidInput, match=f"unknown option 'engin'; options are .*{own}.*, tokenizer$"
    ) as error:
        ptegpu.open(DEMO / f"{name}.pte", engin="dawn")
    assert "engine" in str(error.value)
