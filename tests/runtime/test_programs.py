"""Programs with states, methods, branches, and every kind of input and output."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import close
from tests.exporting import export
from torch import nn

import ptegpu
from ptegpu import InvalidInput
from ptegpu.compiler.program import cut_methods
from ptegpu.format.ptd import read_data

DATA = Path(__file__).parents[1] / "data"


def run_both(module: nn.Module, args: tuple[Any, ...], *, calls: int = 1, share: float = 1e-5, **options: Any) -> Any:
    """Call the exported program and PyTorch side by side; return the program, still open."""
    eager = copy.deepcopy(module).eval()
    program = ptegpu.load(export(module, args, **options))
    for _ in range(calls):
        got, want = program(*args), eager(*args)
        got = got if isinstance(got, tuple) else (got,)
        want = want if isinstance(want, tuple) else (want,)
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            if isinstance(w, torch.Tensor):
                close(g, w.detach(), share)
            else:
                assert g == w
    return program


class Add(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(6.0).reshape(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w


def test_a_constant_goes_straight_to_its_consumer() -> None:
    program = run_both(Add(), (torch.ones(2, 3),))
    (joined,) = cut_methods(program.file)["forward"].graphs.values()
    assert [n.op.name for n in joined.graph.nodes] == ["aten.add.Tensor", "aten.alias_copy.default"]
    (plan,) = program.method("forward").plans
    assert len(plan.dispatches) == 1
    assert [b.role for b in plan.buffers].count("constant") == 1


class Counters(nn.Module):
    """Two buffers with the same first bytes, changed differently by each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.add_(x)
        self.b.mul_(2.0)
        self.b.add_(1.0)
        return self.a * 100 + self.b


@pytest.mark.parametrize(
    "options",
    [{}, {"options": {"alias_buffer_mutations": True}}, {"delegate": False}],
    ids=["plain", "aliased", "undelegated"],
)
def test_state_persists_and_resets(options: dict[str, Any]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    program = run_both(Counters(), (x,), calls=3, **options)
    program.reset()
    np.testing.assert_array_equal(program(x.numpy()), x.numpy() * 100 + 1)
    np.testing.assert_array_equal(program(x.numpy()), x.numpy() * 200 + 3)


class AmbiguousState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(4))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.copy_(torch.tanh(self.bias + self.h * x))
        return self.h * 2


def test_a_mutated_buffer_that_the_file_does_not_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting leaves such partitions out; a file of another exporter is refused."""
    run_both(AmbiguousState(), (torch.ones(4),), calls=3)
    monkeypatch.setattr(ptegpu.export.lowering, "loses_buffers", lambda *_: False)
    with pytest.raises(ptegpu.UnsupportedProgram) as error:
        ptegpu.load(export(AmbiguousState(), (torch.ones(4),)))
    assert str(error.value) == (
        "delegate 0 changes a buffer, but the file does not say which of 2 constants it is; "
        "export with the compile option alias_buffer_mutations=True"
    )


class Steps(nn.Module):
    """A counter that a delegate writes and that is read outside of it, or in another delegate."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64) if reads == "item" else torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reads == "item":
            k = self.steps.item()
            torch._check(k >= 0)
            torch._check(k < 4)
            y = x.narrow(0, k, 1) * 2
        elif self.reads == "call":
            y = torch.cumsum(self.steps, 0) * x
        else:
            y = torch.cumsum(torch.relu(self.steps + x), 0) * 2
        self.steps.add_(1)
        return y


@pytest.mark.parametrize("aliased", [False, True])
@pytest.mark.parametrize("reads", ["item", "call", "delegate"])
def test_a_buffer_that_is_read_from_another_copy_is_refused(
    reads: str, aliased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporting leaves such partitions out; a file of another exporter is refused."""
    x, keywords = torch.arange(1.0, 5.0), {"options": {"alias_buffer_mutations": aliased}}
    run_both(Steps(reads), (x,), calls=3, **keywords)
    monkeypatch.setattr(ptegpu.export.lowering, "loses_buffers", lambda *_: False)
    with pytest.raises(ptegpu.UnsupportedProgram) as error:
        ptegpu.load(export(Steps(reads), (x,), **keywords))
    assert re.fullmatch(
        r"delegate [01] changes a buffer, \w+32\[[14]\], that .+ seems to read from a copy of its own, which does not "
        r"change; export without partitions \(`ptegpu export torch --no-delegate`\)",
        str(error.value),
    )


class ThroughView(nn.Module):
    """A write to a buffer through a view, which ExecuTorch leaves out because both share memory."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.register_buffer("h", torch.full((2, 2), first))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.view(4).add_(1)
        return x * self.h


@pytest.mark.parametrize("delegate", [True, False])
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_buffer_that_is_written_through_a_view_keeps_its_value(first: float, delegate: bool) -> None:
    x, eager = torch.full((2, 2), 3.0), ThroughView(first)
    with ptegpu.load(ptegpu.export.export(ThroughView(first), x, delegate=delegate)) as program:
        for _ in range(3):
            close(program(x), eager(x))


class ManyOutputs(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x + y
        return x, z, z, None, 3, y


@pytest.mark.parametrize("delegate", [True, False])
def test_passthrough_duplicate_none_and_int_outputs(delegate: bool) -> None:
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    program = run_both(ManyOutputs(), (x, y), delegate=delegate)
    argument = x.numpy().copy()
    returned = program(argument, y.numpy())[0]
    returned[:] = 0
    np.testing.assert_array_equal(argument, x.numpy())  # the caller's array is not ours to hand out


class MutatesInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


def test_inputs_that_the_module_writes_are_written() -> None:
    program = ptegpu.load(export(MutatesInput(), (torch.zeros(3),)))
    argument = np.zeros(3, np.float32)
    np.testing.assert_array_equal([2, 2, 2], program(argument))
    np.testing.assert_array_equal([1, 1, 1], argument)
    flat = program.method("forward").execute([argument])
    np.testing.assert_array_equal([[2, 2, 2], [4, 4, 4]], flat)
    np.testing.assert_array_equal([1, 1, 1], argument)
    argument.flags.writeable = False
    message = "the module writes input 0 of forward: pass a NumPy array that can be written or a torch tensor, not "
    with pytest.raises(InvalidInput, match=f"^{message}a read-only array$"):
        program(argument)
    with pytest.raises(InvalidInput, match=f"^{message}list$"):
        program([0.0, 0.0, 0.0])


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))


@pytest.mark.parametrize("delegate", [True, False])
def test_a_branch_on_a_computed_value(delegate: bool) -> None:
    module = Branch()
    x = torch.ones(2, 3)
    program = run_both(module, (x,), delegate=delegate)
    torch.testing.assert_close(program(-x), module(-x))


class Nested(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor], named: dict[str, torch.Tensor]) -> torch.Tensor:
        return pair[0] + pair[1] * named["k"]


def test_nested_arguments_are_opened_as_exported() -> None:
    x, y, z = torch.randn(3), torch.randn(3), torch.randn(3)
    program = run_both(Nested(), ((x, y), {"k": z}))
    close(program(x.numpy(), y.numpy(), z.numpy()), x + y * z, 1e-6)  # flat works too
    with pytest.raises(ptegpu.InvalidInput) as error:
        program((x,), {"k": z})
    assert str(error.value) == "argument 0 of forward must be a tuple of 2 items, not 1 items"
    with pytest.raises(ptegpu.InvalidInput) as error:
        program((x, y), {"q": z})
    assert str(error.value) == "argument 1 of forward must be a dict with the keys ['k'], not with ['q']"


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n


def test_a_scalar_input_takes_the_value_it_was_exported_with() -> None:
    x = torch.ones(2)
    program = run_both(Scaled(), (x, 3))
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(x, 4)
    assert str(error.value) == "input 1 of forward must be 3, the value it was exported with, not 4"


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


@pytest.mark.parametrize("delegate", [True, False])
def test_channels_last_and_non_contiguous_inputs(delegate: bool) -> None:
    x = torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last)
    program = run_both(Twice(), (x,), delegate=delegate)
    plain = np.random.default_rng(0).standard_normal((1, 5, 4, 3)).astype(np.float32).transpose(0, 3, 2, 1)
    close(program(plain), plain * 2 + 1, 1e-6)


class NoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.arange(3.0))

    def forward(self) -> torch.Tensor:
        return self.w * 2


def test_a_program_without_inputs() -> None:
    run_both(NoInputs(), ())


class Whole(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * x + 1, x // 3, torch.cumsum(x, 0)


def test_int64_outside_a_delegate_is_exact() -> None:
    x = torch.tensor([2**40, 5, -7, 2**31])
    program = ptegpu.load(export(Whole(), (x,), delegate=False))
    for got, want in zip(program(x), Whole()(x), strict=True):
        assert got.dtype == torch.int64
        assert torch.equal(got, want)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


def test_int64_inputs_narrow_with_a_range_check() -> None:
    ids = torch.tensor([[1, 9, 0]])
    program = run_both(Lookup(), (ids,))
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(torch.tensor([[1, 2**31, 0]]))
    expected = "input 0: the int64 value 2147483648 does not fit int32, which is what the GPU computes with"
    assert str(error.value) == expected


@pytest.mark.parametrize("options", [{}, {"options": {"force_fp16": True}}], ids=["half", "force_fp16"])
def test_half_programs(options: dict[str, Any]) -> None:
    x = torch.randn(3, 5)
    run_both(Twice(), (x if options else x.half(),), share=1e-2, **options)


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).view(x.shape[0], 2, 3).sum(1)


@pytest.mark.parametrize("delegate", [True, False])
def test_dynamic_batch_runs_at_every_size(delegate: bool) -> None:
    module, batch = Dynamic(), torch.export.Dim("batch", min=1, max=8)
    program = ptegpu.load(export(module, (torch.randn(4, 4),), dynamic_shapes=({0: batch},), delegate=delegate))
    for n in (8, 1, 5, 2, 8, 7):
        x = torch.randn(n, 4)
        close(program(x), module(x).detach())
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(torch.randn(9, 4))
    assert str(error.value) == "input 0 of forward must be float32 of at most [8, 4], not float32[9, 4]"
    close(program(x), module(x).detach())


class Sliced(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
        return x[:n] * 2, n + 1


@pytest.mark.parametrize("delegate", [True, False])
def test_an_int_input_that_changes(delegate: bool) -> None:
    x = torch.randn(8, 3)
    shapes = (None, torch.export.Dim.DYNAMIC)
    program = ptegpu.load(export(Sliced(), (x, 5), dynamic_shapes=shapes, delegate=delegate))
    for n in (5, 3, 8, 0):
        got, following = program(x, n)
        torch.testing.assert_close(got, x[:n] * 2)
        assert following == n + 1
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(x, "five")
    assert str(error.value) == "input 1 of forward must be an int, not str"


class Optional(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x + 1 if y is None else x + y


def test_an_input_exported_as_none_takes_only_none() -> None:
    x = torch.ones(2)
    program = run_both(Optional(), (x, None))
    with pytest.raises(ptegpu.InvalidInput) as error:
        program(x, 2.5)
    assert str(error.value) == "input 1 of forward must be None, the value it was exported with, not 2.5"


def test_every_method_and_constant_methods() -> None:
    with ptegpu.load(DATA / "methods.pte") as program:
        assert set(program.methods) == {"encode", "forward", "get_vocab_size", "get_name", "get_scale", "use_cache"}
        assert program.method("get_vocab_size")() == 11
        assert program.method("get_name")() == "mlp"
        assert program.method("get_scale")() == 0.5
        assert program.method("use_cache")() is True


def test_constants_outside_the_program() -> None:
    with pytest.raises(ptegpu.InvalidProgram, match=r"no file has the data .+: pass its \.ptd file"):
        ptegpu.load(DATA / "dynamic.pte")
    with ptegpu.load(DATA / "dynamic.pte", data=[DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"]) as program:
        assert program.methods == ("forward",)


def test_constants_as_bytes_and_as_arrays() -> None:
    files = [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"]
    weights = {key: np.frombuffer(tensor.data, np.uint8) for path in files for key, tensor in read_data(path).items()}
    results = []
    for data in (
        files,
        {k: w.tobytes() for k, w in weights.items()},
        {k: w.reshape(2, -1) for k, w in weights.items()},
    ):
        with ptegpu.load(DATA / "dynamic.pte", data=data) as program:
            inputs = [np.ones(spec.shape or (), spec.dtype) for spec in program.method("forward").inputs]
            results.append(program.method("forward").execute(inputs))
    for result in results:
        np.testing.assert_equal(result, results[0])
    key = next(iter(weights))
    with pytest.raises(ptegpu.InvalidInput) as error:
        ptegpu.load(DATA / "dynamic.pte", data=weights | {key: weights[key][::2]})
    assert f"invalid data {key!r} of type ndarray: expected bytes or a contiguous array" == str(error.value)
