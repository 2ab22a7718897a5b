"""The check of an export: what passes, what fails, and what becomes of the file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Invoke, invoke  # noqa: F401 (a fixture)
from tests.zoo.checkpoints import write
from torch import Tensor, nn

import ptegpu
from ptegpu.errors import ExportError, NoAdapter, UnsupportedProgram
from ptegpu.export import MethodSource, check, export, export_with_account, lower, pipeline, trace
from ptegpu.export.check import EagerCheck, NotChecked
from ptegpu.format import read_program

X = torch.linspace(-2, 3, 12).reshape(3, 4)


class Scaled(nn.Module):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.abs(), x.softmax(1) * self.by


WRONG = (
    "the exported program is wrong: its output 1 is up to 0.0218 from eager PyTorch's, whose largest element is "
    "0.436. Nothing was written; please report it. Try without partitions (--no-delegate, delegate=False)"
)
SOURCE = """
from tests.export.test_check import Scaled, X
def scaled(): return Scaled(), (X,)
"""


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitioned programs are 5 % off."""

    def off(*_: object, **options: Any) -> object:
        return lower(trace(Scaled(1.05), (X,)), **options)

    monkeypatch.setattr(pipeline, "lower", off)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checked_models.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_wrong_program_is_not_written(wrong: None, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(WRONG)}$"):
        export(Scaled(), (X,), tmp_path / "wrong.pte")
    assert [] == list(tmp_path.iterdir())


def test_a_wrong_program_fails_the_command(wrong: None, sources: None, tmp_path: Path, invoke: Invoke) -> None:  # noqa: F811
    (tmp_path / "older.pte").write_bytes(b"older")
    ended = invoke("export", "torch", "checked_models:scaled", "-o", tmp_path / "older.pte")
    assert (1, "", f"error: {WRONG}\n") == (ended.code, ended.out, ended.err)
    assert b"older" == (tmp_path / "older.pte").read_bytes()
    assert not list(tmp_path.glob("*.part"))
    ended = invoke("export", "torch", "checked_models:scaled", "-o", tmp_path / "new.pte", "--no-check")
    assert (0, "") == (ended.code, ended.err)
    assert (tmp_path / "new.pte").exists()


def test_a_wrong_language_model_is_not_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,  # noqa: F811
) -> None:
    actual = check.distance
    monkeypatch.setattr("ptegpu.export.check.distance", lambda y, e: actual(y * 1.05, e))
    folder = write(tmp_path / "source", "llama", {"num_hidden_layers": 1})
    ended = invoke("export", "llm", folder, "-o", tmp_path / "m.pte")
    far = r"its logits are up to [\d.]+ from eager PyTorch's, whose largest element is [\d.]+"
    message = rf"error: the exported program is wrong: {far}\. Nothing was written; please report it\n"
    assert 1 == ended.code and re.fullmatch(message, ended.err), ended.err
    assert ["source"] == [p.name for p in tmp_path.iterdir()]


class Twins(nn.Module):
    """Two buffers, of which one changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(x * self.b)
        return self.a * 2


def test_a_partition_that_would_lose_a_buffer_is_left_out() -> None:
    with ptegpu.load(export(Twins(), (X[0],))) as program:
        for times in (2, 4):
            torch.testing.assert_close(program(X[0]), times * X[0])


REFUSED = "there are no partitions: ptegpu cannot run the program: "


def test_what_cannot_be_loaded_is_exported_without_partitions(
    sources: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,  # noqa: F811
) -> None:
    load = ptegpu.load

    def refuse_delegates(data: bytes, **options: Any) -> Any:
        if any(m.delegates for m in read_program(data).methods):
            raise UnsupportedProgram("no such delegate")
        return load(data, **options)

    monkeypatch.setattr(ptegpu, "load", refuse_delegates, raising=False)
    with pytest.warns(UserWarning, match=f"^{REFUSED}no such delegate$") as caught:
        data = export(Scaled(), (X,), tmp_path / "scaled.pte")
    assert 1 == len(caught)
    assert data == (tmp_path / "scaled.pte").read_bytes()
    ended = invoke("export", "torch", "checked_models:scaled", "-o", tmp_path / "again.pte")
    assert (0, "") == (ended.code, ended.err)
    assert f"note: {caught[0].message}" == ended.out.splitlines()[-1]
    assert data == (tmp_path / "again.pte").read_bytes()


def refuse(error: Exception) -> Callable[..., None]:
    def load(*_: object, **__: object) -> None:
        raise error

    return load


def test_what_cannot_be_run_at_all_is_not_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: None,
    invoke: Invoke,  # noqa: F811
) -> None:
    monkeypatch.setattr(ptegpu, "load", refuse(UnsupportedProgram("no such thing")), raising=False)
    ended = invoke("export", "torch", "checked_models:scaled", "-o", tmp_path / "m.pte")
    assert (1, "error: ptegpu cannot run the program: no such thing\n") == (ended.code, ended.err)
    assert not (tmp_path / "m.pte").exists()


def test_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptegpu, "load", refuse(NoAdapter("no adapter here")), raising=False)
    account = export_with_account(MethodSource(Scaled(), (X,)), tmp_path / "m.pte")
    assert (["not checked: no adapter here"], None) == (account.notes, account.difference)
    assert account.lowered.partitions and (tmp_path / "m.pte").exists()


def test_notes_are_all_that_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(Scaled(), (X,))


def difference(module: nn.Module, args: tuple[Any, ...], program: Any) -> float:
    return EagerCheck.of_examples({"forward": MethodSource(module, args)}).compare(program).difference


class Given(nn.Module):
    """Returns a tensor."""

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.y = y

    def forward(self) -> Tensor:
        return self.y


def checked(expected: Tensor, actual: Tensor, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(EagerCheck, "_run", lambda *_: [[actual]])
    return difference(Given(expected), (), b"")


SMALL = torch.tensor([0.3, -1.0, 0.5]) * 1e-4
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "scaled": lambda y: y * 1.05,
    "zeroed": lambda y: y * 0,
    "shifted": lambda y: y.roll(1),
    "of another shape": lambda y: y[:1],
    "nan": lambda y: torch.where(y < 0, torch.nan, y),
    "infinite": lambda y: torch.where(y < 0, torch.inf, y),
}


@pytest.mark.parametrize("change", CHANGES)
def test_differences_relative_to_the_scale(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match=r"^the exported program is wrong: its output 0 is up to "):
        checked(SMALL, CHANGES[change](SMALL), monkeypatch)
    assert checked(SMALL, SMALL * (1 + 1e-4), monkeypatch) < 1e-7


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_must_be_the_same(special: float, monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.tensor([1.0, special])
    assert 0 == checked(y, y.clone(), monkeypatch)
    with pytest.raises(ExportError):
        checked(y, torch.tensor([1.0, 2.0]), monkeypatch)


def test_integers_are_the_same_but_for_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.arange(1000)
    almost, other = y.clone(), y.clone()
    almost[:9] += 7
    other[:11] += 7
    assert 7 == checked(y, almost, monkeypatch)
    with pytest.raises(ExportError):
        checked(y, other, monkeypatch)


class Cancelled(nn.Module):
    """In float32, its results are mostly rounding."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1e6) - 1e6


def test_as_far_as_rounding_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(0, 0.1, 50)
    monkeypatch.setattr(EagerCheck, "_run", lambda *_: [[Cancelled()(x) + 0.06]])
    assert difference(Cancelled(), (x,), b"") > 0.05
    monkeypatch.setattr(EagerCheck, "_run", lambda *_: [[Cancelled()(x) + 0.6]])
    with pytest.raises(ExportError):
        difference(Cancelled(), (x,), b"")


class Overflowing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 1e30) * 1e30


def test_infinities_are_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EagerCheck, "_run", lambda *_: [[X * torch.nan]])
    with pytest.raises(ExportError, match=r"^the exported program is wrong: its output 0 is up to inf from "):
        difference(Overflowing(), (X,), b"")


def test_results_that_are_missing() -> None:
    data = lower(trace(Cancelled(), (X,))).data
    with pytest.raises(ExportError, match=r"^the program returns 1 results, and eager PyTorch 2$"):
        difference(Scaled(), (X,), data)


class Adding(nn.Module):
    """Writes to its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) * 2


def test_inputs_stay_as_they_are() -> None:
    x = torch.zeros(3)
    assert 0 == export_with_account(MethodSource(Adding(), (x,))).difference
    assert [0, 0, 0] == x.tolist()


class Stepped(nn.Module):
    """Its results are in steps of 8 bits."""

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.ops.quantized_decomposed.quantize_per_tensor(x, 3 / 127, 0, -128, 127, torch.int8)
        return torch.ops.quantized_decomposed.dequantize_per_tensor(steps, 3 / 127, 0, -128, 127, torch.int8)


def test_a_step_where_activations_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    run = EagerCheck._run
    for steps in (1, 3):
        monkeypatch.setattr(
            EagerCheck, "_run", lambda *caught, n=steps: [[y + n * 3 / 127 for y in step] for step in run(*caught)]
        )
        if steps > 1:
            with pytest.raises(ExportError):
                export(Stepped(), (X,))
        else:
            export(Stepped(), (X,))


class Exporting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            raise ValueError("only on a GPU")
        return x + 1


def test_modules_that_are_only_for_export() -> None:
    account = export_with_account(MethodSource(Exporting(), (X,)))
    (note,) = account.notes
    assert note.startswith("not checked: the module itself fails in eager PyTorch: ValueError: only on a GPU\n")
    with pytest.raises(NotChecked):
        difference(Exporting(), (X,), account.lowered.data)


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, None, int, Tensor]:
        return x + 1, None, 3, x.argmax(1)


def test_results_that_are_no_tensors() -> None:
    account = export_with_account(MethodSource(Mixed(), (X,)))
    assert ([], 0.0) == (account.notes, account.difference)


def test_all_lines_of_what_cannot_be_run_are_shown() -> None:
    def refuse(inputs: list[Any]) -> Any:
        raise UnsupportedProgram("the program needs:", "  aten.some.default")

    with pytest.raises(ExportError) as raised:
        difference(Scaled(), (X,), refuse)
    assert "ptegpu cannot run the program: the program needs:\n  aten.some.default" == str(raised.value)
