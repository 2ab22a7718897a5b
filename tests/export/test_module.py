"""Any module to `.pte`: what is delegated, what is not and why, dimensions that change, and clear errors."""

from __future__ import annotations

import copy
import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ptegpu
from ptegpu.errors import ExportError
from ptegpu.export import MethodSource, Outside, export, export_with_account, find_source
from ptegpu.export.module import arguments
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


class Fixed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 8)


class Attends(torch.nn.Module):
    """A view of what attention gives, as GPT-2 has it: PyTorch's own strides allow it, those of its parts do not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, 8)
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2)
        return y.reshape(*x.shape[:2], -1).view(-1, 8)


def test_a_file_and_the_same_bytes(tmp_path: Path) -> None:
    data = export(Twice(), (torch.ones(1, 2, 3),), tmp_path / "twice.pte")
    assert data == (tmp_path / "twice.pte").read_bytes()
    with ptegpu.load(data) as program:
        np.testing.assert_array_equal(np.full((2, 1, 3), 2.0), program(np.ones((1, 2, 3), np.float32)))


def test_a_view_of_what_attention_gives() -> None:
    x = torch.randn((2, 5, 8), generator=torch.Generator().manual_seed(0))
    account = export_with_account(MethodSource(Attends(), (x,)), dynamic=["0:0=2..4", "0:1=2..16"])
    assert account.difference is not None and account.difference < 1e-5
    assert [] == account.notes


def test_what_is_delegated_and_what_is_not() -> None:
    account = export_with_account(MethodSource(Parts(), (X,)), dynamic=["0:0=1..64"])
    lowered = account.lowered
    assert (1, []) == (lowered.partitions, account.notes)
    assert {"aten.linear.default": 1, "aten.relu.default": 1} == dict(lowered.delegated)
    assert (Outside("aten.cumsum.default", 1, "the partitioner has no such operator"),) == lowered.outside
    assert len(lowered.data) < 4000  # without the buffer
    assert account.difference is not None and account.difference < 1e-5
    with ptegpu.load(lowered.data) as program:
        assert [(64, 4), (1, 4)] == [program(torch.ones(n, 8))["y"].shape for n in (64, 1)]


def test_no_partitions_where_partitioning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Exception("in a pass") from AssertionError("sizes (<torch.Size object at 0x7f>) differ\nat length")

    monkeypatch.setattr("executorch.backends.vulkan.vulkan_preprocess.apply_passes", fail)
    note = "there are no partitions: ExecuTorch cannot lower this program: sizes differ"
    account = export_with_account(MethodSource(Twice(), (torch.ones(1, 2, 3),)))
    assert ([note], 0, 0.0) == (account.notes, account.lowered.partitions, account.difference)
    with pytest.warns(UserWarning, match=f"^{note}$"):
        assert account.lowered.data == export(Twice(), (torch.ones(1, 2, 3),))


def test_bounds_beyond_the_size_of_a_texture() -> None:
    lowered = export_with_account(MethodSource(Twice(), (torch.ones(2, 5, 4),)), dynamic=["0:1=1..5000"]).lowered
    assert ((2, 5000, 4),) == lowered.bounds
    (method,) = read_program(lowered.data).methods
    assert 1 == len(method.delegates)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:1", "invalid dimension '0:1': expected INPUT:DIMENSION=LOW..HIGH, as in 0:1=1..64"),
        ("1:0=1..4", "1:0=1..4: there is no tensor input 1; there are 1 inputs"),
        ("0:2=1..4", "0:2=1..4: input 0 of shape [3, 8] has no dimension 2"),
        ("0:0=4..9", "0:0=4..9: the example input 0 has size 3 there, outside of the range"),
        ("0:0=1..9", "0:0=1..9: the module fixes this dimension at 3"),
    ],
)
def test_dimensions_that_cannot_change(text: str, message: str) -> None:
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export_with_account(MethodSource(Fixed(), (X,)), dynamic=[text])


def test_a_dimension_needs_a_largest_size() -> None:
    message = 'input: dimension 0 has no largest size: give one, as in torch.export.Dim("n", max=64)'
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export(torch.nn.ReLU(), (X,), dynamic_shapes={"input": {0: torch.export.Dim("b")}})


def test_a_module_keeps_its_mode() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.ReLU().eval())
    account = export_with_account(MethodSource(module, (X,)), delegate=False)
    assert ([True, True, False], [], 0.0) == ([m.training for m in module.modules()], account.notes, account.difference)


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return x * scale


@pytest.mark.parametrize(
    ("module", "example", "kwargs"),
    [
        (torch.nn.ReLU(), X, None),
        (Named(), {"x": X, "scale": X + 1}, None),
        (Named(), X, {"scale": X + 1}),
    ],
    ids=["a tensor", "a dict", "kwargs"],
)
def test_examples_as_compile_module_takes_them(module: torch.nn.Module, example: object, kwargs: dict | None) -> None:
    args, named = arguments(example, kwargs)
    with ptegpu.load(export(module, example, kwargs=kwargs, delegate=False)) as program:
        torch.testing.assert_close(program(*args, **named), module(*args, **named))


class Elu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.elu(x, inplace=True) * 2


def test_an_operator_in_place_that_the_partitioner_leaves_out() -> None:
    account = export_with_account(MethodSource(Elu(), (X.clone(),)))
    assert ([], 1) == (account.notes, account.lowered.partitions)
    assert account.difference is not None and account.difference < 1e-5


class Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 3000000000) * 2


def test_a_constant_beyond_32_bits_is_left_out_of_partitions() -> None:
    account = export_with_account(MethodSource(Adds(), (torch.arange(4),)))
    why = "it has an int64 constant beyond 32 bits, which partitions cannot hold"
    assert [f"aten.add.Tensor is outside of partitions: {why}"] == account.notes
    assert (1, 0.0) == (account.lowered.partitions, account.difference)


def test_a_size_of_one_is_no_example() -> None:
    message = "0:0=1..9: the example input 0 has size 1 there, which PyTorch treats as fixed"
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        export_with_account(MethodSource(Twice(), (torch.ones(1, 2, 3),)), dynamic=["0:0=1..9"])


class Short(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] < 5 else x


class Bad(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.squared(x)

    def squared(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Raising(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError


def frame(function: Callable[..., object], line: int, text: str) -> str:
    """Return a stack frame as Python prints it, for a line relative to a function's first."""
    code = function.__code__
    return f'\n  File "{code.co_filename}", line {code.co_firstlineno + line}, in {code.co_name}\n    {text}'


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Short,
            "Constraints violated (n)!\n  - Not all values of n = L['x'].size()[0] in the specified range n <= 9 "
            "satisfy the generated guard 2 <= L['x'].size()[0] and L['x'].size()[0] <= 4\n"
            "Suggested fixes:\n  n = Dim('n', max=4)",
        ),
        (
            Bad,
            "RuntimeError: a and b must have same reduction dim, but got [s77, 8] X [s77, 8]."
            + frame(Bad.forward, 1, "return self.squared(x)")
            + frame(Bad.squared, 1, "return x @ x"),
        ),
        (
            Branching,
            "Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1)).  (Size-like symbols: none)\n"
            "consider using data-dependent friendly APIs such as guard_or_false, guard_or_true and "
            "statically_known_true." + frame(Branching.forward, 1, "return x if x.sum() > 0 else -x"),
        ),
        (Raising, "LookupError" + frame(Raising.forward, 1, "raise LookupError")),
    ],
)
def test_modules_that_cannot_be_traced(
    module: type[torch.nn.Module], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError) as raised:
        export(module(), (X,), dynamic_shapes=({0: torch.export.Dim("n", max=9)},))
    actual = re.sub(r"\n +[~^]+$", "", str(raised.value), flags=re.MULTILINE)  # what newer Pythons underline
    assert f"PyTorch cannot trace this module: {message}" == actual
    assert ("", "") == capfd.readouterr()


class Even(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 4, 3) if x.shape[0] < 12 else x


def test_the_suggested_fix_is_kept_of_a_long_message() -> None:
    with pytest.raises(ExportError) as raised:
        export(Even(), (torch.ones(8, 6),), dynamic_shapes=({0: torch.export.Dim("n", max=64)},))
    first, *reasons, fixes, base, size = str(raised.value).splitlines()
    assert "PyTorch cannot trace this module: Constraints violated (n)!" == first
    assert ["  - Not all", "  - Not all", "  - Not all", "  - and "] == [
        re.match("  - (Not all|and )", r)[0] for r in reasons
    ]
    assert ("Suggested fixes:", "  _n = Dim('_n', min=1, max=5)", "  n = 2*_n") == (fixes, base, size)


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
def raising(): return {}["weights"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some_models.py").write_text(SOURCE)
    (tmp_path / "broken_models.py").write_text("import no_such_package")
    (tmp_path / "misspelt_models.py").write_text("import torch as")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("some_models", "broken_models", "misspelt_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_functions_are_found_in_the_current_folder(folder: Path) -> None:
    pair, triple = find_source("some_models:pair"), find_source("some_models:triple")
    assert (1, None) == (len(pair.args), pair.dynamic_shapes)
    assert (1, 1) == (len(triple.args), len(triple.dynamic_shapes))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some_models", "invalid function 'some_models': expected package.module:function"),
        ("no_models:pair", "there is no module 'no_models' here or among the installed packages"),
        (
            "broken_models:pair",
            "broken_models cannot be imported: ModuleNotFoundError: No module named 'no_such_package'\n"
            '  File "FOLDER/broken_models.py", line 1, in <module>\n    import no_such_package',
        ),
        (
            "misspelt_models:pair",
            "misspelt_models cannot be imported: SyntaxError: invalid syntax (misspelt_models.py, line 1)",
        ),
        ("some_models:none", "some_models has no function 'none'"),
        (
            "some_models:number",
            "some_models:number must return (nn.Module, inputs) or (nn.Module, inputs, dynamic_shapes)",
        ),
        (
            "some_models:raising",
            "some_models:raising fails: KeyError: 'weights'\n"
            '  File "FOLDER/some_models.py", line 6, in raising\n    def raising(): return {}["weights"]',
        ),
    ],
)
def test_functions_that_are_not_found(name: str, message: str, folder: Path) -> None:
    with pytest.raises(ExportError) as raised:
        find_source(name)
    actual = re.sub(r"\n +[~^]+$", "", str(raised.value), flags=re.MULTILINE)
    assert message == actual.replace(str(folder), "FOLDER")


class Trades(torch.nn.Module):
    """Two states, each of which gets its new value from the other alone."""

    def __init__(self, factor: float | None, *sizes: int) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("a", torch.zeros(sizes))
        self.register_buffer("b", torch.ones(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a + x
        self.a.copy_(self.b if self.factor is None else self.b * self.factor)
        self.b.copy_(a)
        return self.a - self.b


@pytest.mark.parametrize("delegate", [True, False])
@pytest.mark.parametrize("module", [Trades(None, 4), Trades(None), Trades(2, 4)], ids=["swap", "scalars", "product"])
def test_states_that_trade_places(module: torch.nn.Module, delegate: bool) -> None:
    """ExecuTorch leaves out the write of one buffer's value to another, and blobs do not say whose value is new."""
    x, eager = torch.full_like(module.get_buffer("a"), 3.0), copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        program = ptegpu.load(export(module, (x,), delegate=delegate))
    for _ in range(4):
        np.testing.assert_allclose(program(x), eager(x), rtol=1e-6)


class Shares(torch.nn.Module):
    """Two states and perhaps an input take one new value, which may also be a result."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.way == "input":  # the value of an input
            self.a.copy_(x)
            self.b.copy_(x)
            return (self.a * 3,)
        if self.way == "chain":
            self.a.add_(self.b)
            self.b.copy_(self.a)
            return self.a + x, self.b
        with torch.set_grad_enabled(self.way != "no_grad"):  # no_grad: in a graph of its own
            y = self.a + x
            self.a.copy_(y)
            (x if self.way == "state and input" else self.b).copy_(y)
        return y, y * 3


@pytest.mark.parametrize("delegate", [True, False])
@pytest.mark.parametrize("way", ["result", "input", "chain", "no_grad", "state and input"])
def test_states_that_get_the_same_value(way: str, delegate: bool) -> None:
    """PyTorch and ExecuTorch tell outputs apart by their names, and took the two writes for one."""
    eager, x, same = Shares(way), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        program = ptegpu.load(export(Shares(way), (x.clone(),), delegate=delegate, check=False))
    for _ in range(3):
        torch.testing.assert_close(program(x), eager(same))
        torch.testing.assert_close(x, same)


@pytest.mark.parametrize("factors", [{"beta": 0.5}, {"alpha": 2}, {"beta": 0.5, "alpha": 2}], ids=str)
def test_factors_of_addmm_are_kept(factors: dict[str, float]) -> None:
    """ExecuTorch would turn it into a linear layer without factors, so it stays outside of partitions."""

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.addmm(x[:, :3], x.relu(), x.t(), **factors)

    x = torch.randn(3, 4)
    exported = export(Product(), (x,))
    np.testing.assert_allclose(ptegpu.load(exported)(x), Product()(x), rtol=1e-4, atol=1e-5)
