"""Any module to `.pte`: what is delegated, what is not and why, dimensions that change, and clear errors."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ptegpu
from ptegpu.errors import ExportError
from ptegpu.export import Outside, Source, difference, export, export_with_account, find_source
from ptegpu.format import read_program

X = torch.randn((3, 8), generator=torch.Generator().manual_seed(0))


class Parts(torch.nn.Module):
    """Has a buffer that nothing reads, and an operator that the partitioner leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("unread", torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x).relu(), "z": torch.cumsum(x, 1)}


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(1, 0, 2) * 2


class Rolled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, 1, 0) + 1


class Fixed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 8)


def test_a_file_and_the_same_bytes(tmp_path: Path) -> None:
    data = export(Twice(), (torch.ones(1, 2, 3),), tmp_path / "twice.pte")
    assert data == (tmp_path / "twice.pte").read_bytes()
    with ptegpu.load(data) as program:
        np.testing.assert_array_equal(np.full((2, 1, 3), 2.0), program(np.ones((1, 2, 3), np.float32)))


def test_what_is_delegated_and_what_is_not() -> None:
    source = Source(Parts(), (X,))
    lowered, notes = export_with_account(source, ["0:0=1..64"])
    assert (1, []) == (lowered.partitions, notes)
    assert {"aten.linear.default": 1, "aten.relu.default": 1} == dict(lowered.delegated)
    assert (Outside("aten.cumsum.default", 1, "the partitioner has no such operator"),) == lowered.outside
    assert len(lowered.data) < 4000  # without the buffer
    assert difference(source, lowered.data) < 1e-5
    with ptegpu.load(lowered.data) as program:
        assert [(64, 4), (1, 4)] == [program(torch.ones(n, 8))["y"].shape for n in (64, 1)]


def test_no_partitions_where_partitioning_fails() -> None:
    source = Source(Rolled(), (X,))
    lowered, notes = export_with_account(source)
    reason = "fake mode from fake tensor input 0 doesn't match mode from fake tensor input 1"
    assert [f"there are no partitions: ExecuTorch cannot lower this program: {reason}"] == notes
    assert 0 == lowered.partitions
    assert 0 == difference(source, lowered.data)


def test_bounds_beyond_the_size_of_a_texture() -> None:
    lowered, _ = export_with_account(Source(Twice(), (torch.ones(2, 5, 4),)), ["0:1=1..5000"])
    assert ((2, 5000, 4),) == lowered.bounds
    (method,) = read_program(lowered.data).methods
    assert 1 == len(method.delegates)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:1", "'0:1' is not of the form INPUT:DIMENSION=LOW..HIGH, as in 0:1=1..64"),
        ("1:0=1..4", "1:0=1..4: there is no tensor input 1; there are 1 inputs"),
        ("0:2=1..4", "0:2=1..4: input 0 of shape [3, 8] has no dimension 2"),
        ("0:0=4..9", "0:0=4..9: the example input 0 has 3 there, outside of the range"),
        ("0:0=1..9", "0:0=1..9: the module fixes this dimension at 3"),
    ],
)
def test_dimensions_that_cannot_change(text: str, message: str) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export_with_account(Source(Fixed(), (X,)), [text])


def test_a_size_of_one_is_no_example() -> None:
    message = "0:0=1..9: the example input 0 has 1 there, which PyTorch takes as fixed"
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export_with_account(Source(Twice(), (torch.ones(1, 2, 3),)), ["0:0=1..9"])


def test_a_module_that_cannot_be_traced() -> None:
    class Bad(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    with pytest.raises(ExportError, match=r"^PyTorch cannot trace this module: .*3.*8"):
        export(Bad(), (X,))


def test_silence(capfd: pytest.CaptureFixture[str]) -> None:
    level = logging.getLogger().level
    export(Twice(), (torch.ones(1, 2, 3),))
    assert ("", "") == capfd.readouterr()
    assert level == logging.getLogger().level


SOURCE = """
import torch
def pair(): return torch.nn.Identity(), torch.ones(2)
def triple(): return torch.nn.Identity(), [torch.ones(2)], ({0: torch.export.Dim("n", max=8)},)
def number(): return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_models.py").write_text(SOURCE)
    (tmp_path / "broken_models.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("some_models", "broken_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_functions_are_found_in_the_current_folder(folder: Path) -> None:
    pair, triple = find_source("some_models:pair"), find_source("some_models:triple")
    assert (1, None) == (len(pair.args), pair.dynamic_shapes)
    assert (1, 1) == (len(triple.args), len(triple.dynamic_shapes))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some_models", "'some_models' is not of the form package.module:function"),
        ("no_models:pair", "there is no module 'no_models' here or among the installed packages"),
        ("broken_models:pair", "broken_models cannot be imported: No module named 'no_such_package'"),
        ("some_models:none", "some_models has no function 'none'"),
        (
            "some_models:number",
            "some_models:number must return (nn.Module, inputs) or (nn.Module, inputs, dynamic_shapes)",
        ),
    ],
)
def test_functions_that_are_not_found(name: str, message: str, folder: Path) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        find_source(name)
