"""`torch.compile(module, backend="ptegpu")`: graphs on the GPU, and eager PyTorch with a clear word for the rest."""

from __future__ import annotations

import copy
import tomllib
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.export.test_compiled import equal
from tests.zoo import modules
from tests.zoo.modules import lively
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F

from ptegpu import UnsupportedProgram
from ptegpu.export import EagerFallback, torch_backend
from ptegpu.export.dynamo import GROUP, NAME
from ptegpu.gpu import open_device

SINGLE = {"delegate": False}  # lowered in half the time


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", EagerFallback)
        yield
    torch._dynamo.reset()


def uploaded(function: Callable[[], object]) -> int:
    """Bytes that went to the GPU."""
    traffic = open_device().traffic
    before = traffic.snapshot()
    function()
    return traffic.since(before).upload_bytes


def compared(module: nn.Module, *calls: tuple[Any, ...], **options: Any) -> nn.Module:
    """Compare with eager PyTorch; the second call of each uploads only its inputs."""
    compiled = torch.compile(copy.deepcopy(module), backend=NAME, **{"options": SINGLE} | options)
    for args in calls:
        equal(compiled(*args), module(*args))
        again = compiled(*args)
        assert uploaded(lambda: compiled(*args)) <= sum(x.nbytes for x in args)  # noqa: B023
        equal(again, module(*args))
    return compiled


class Broken(nn.Module):
    """Two graphs, with parameters and buffers of two modules in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 40), nn.BatchNorm1d(40)
        self.register_buffer("scale", torch.rand(40))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.norm(self.linear(x)) * self.scale
        torch._dynamo.graph_break()
        return {"y": torch.relu(y), "some": [y[:, 0], None, x.shape[0]]}


def test_a_graph_break_two_shapes_and_weights_that_stay() -> None:
    module = lively(Broken())
    compiled = torch.compile(copy.deepcopy(module), backend=NAME, options=SINGLE)
    for rows in (4, 5, 7):  # for the second it is lowered for sizes of up to 16
        x = torch.randn(rows, 8)
        equal(compiled(x), module(x))
        for _ in range(2):
            assert rows * (8 + 40) * 4 == uploaded(lambda: compiled(x))  # noqa: B023


def test_sizes_and_floats_that_may_change_from_the_start() -> None:
    module = lively(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Hardtanh(-0.3, 0.3)))
    compared(module, (torch.randn(4, 8),), (torch.randn(5, 8),), (torch.randn(17, 8),), dynamic=True)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.tanh(x * self.weight)


def test_one_graph_with_several_weights_and_weights_that_are_written() -> None:
    module = nn.Sequential(Layer(), Layer(), Layer())  # one graph, three modules
    x = torch.randn(3, 6)
    other = copy.deepcopy(module)
    compiled = torch.compile(other, backend=NAME, options=SINGLE)
    torch._dynamo.utils.counters.clear()
    equal(compiled(x), module(x))
    assert 1 == torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 3 * x.nbytes == uploaded(lambda: compiled(x))
    for changed in (module, other):
        changed.get_submodule("1").weight.mul_(3)  # type: ignore[operator, union-attr]
    equal(compiled(x), module(x))
    state = {name: torch.randn(6) for name in module.state_dict()}
    module.load_state_dict(state)
    other.load_state_dict(state)
    equal(compiled(x), module(x))


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.total += x.sum(0)
        y.mul_(2)
        z = x * self.total
        return z, z[1:], y, x.view(-1), x


def test_what_is_written_and_what_shares_memory() -> None:
    results, modules = [], (Writes(), Writes())
    x, first = torch.arange(8.0).view(2, 4), torch.ones(3)
    for module, call in zip(modules, (torch.compile(modules[0], backend=NAME, options=SINGLE), modules[1])):
        argument, y = x.clone(), first.clone()
        for _ in range(2):
            z, part, same, flat, complete = call(argument, y)
        assert same is y and complete is argument
        z.add_(1)  # seen in its part
        flat.add_(1)  # and in the input
        results.append((z, part, y, argument, module.total))
    equal(results[0], results[1])


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x.abs() + 1)[0]


def test_what_the_gpu_cannot_do_runs_in_eager_pytorch_with_a_word() -> None:
    module = nn.Sequential(nn.Linear(6, 4), Unsupported())
    compiled = torch.compile(module, backend=NAME, options=SINGLE)
    x = torch.randn(5, 6)
    message = (
        r"^ptegpu runs a graph in eager PyTorch: method forward uses operators that ptegpu does not have: 1 × "
        r"aten\.linalg_qr\.default\(.*\) \(test_dynamo\.py:\d+ in forward of Unsupported\)$"
    )
    with pytest.warns(EagerFallback, match=message):
        equal(compiled(x), module(x))
    equal(compiled(x), module(x))  # said once
    torch._dynamo.reset()
    with pytest.raises(UnsupportedProgram, match="linalg_qr"):
        torch.compile(module, backend=NAME, options={**SINGLE, "fallback": False})(x)


class Counts(nn.Module):
    def forward(self, x: torch.Tensor, table: torch.Tensor, n: int) -> torch.Tensor:
        return table[x] * n


def test_errors_of_a_call_and_numbers_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.export.dynamo.MOST_NUMBERS", 2)
    compiled = torch.compile(Counts(), backend=NAME, options=SINGLE, dynamic=True)
    x, table = torch.tensor([1, 0, 3]), torch.randn(4, 5)
    with pytest.raises(IndexError):
        compiled(x + 1, table, 3)
    for n in (3, 4):
        equal(compiled(x, table, n), table[x] * n)
    with pytest.warns(EagerFallback, match="its numbers keep changing: it was lowered for 2 combinations"):
        equal(compiled(x, table, 5), table[x] * 5)


def test_gradients_are_left_to_eager_pytorch() -> None:
    module = nn.Linear(6, 4)
    message = r"gradients are required: call the module in torch\.no_grad\(\) or torch\.inference_mode\(\)"
    with torch.enable_grad(), pytest.warns(EagerFallback, match=message):
        torch.compile(module, backend=NAME)(torch.randn(2, 6)).sum().backward()
    assert module.weight.grad is not None
    compiled = torch.compile(module, backend=NAME, options=SINGLE)
    with torch.inference_mode():
        x = torch.randn(2, 6)
        equal(compiled(x), module(x))


class Far(nn.Module):
    """Has int64 constants beyond 32 bits: a number, an argument, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("base", torch.tensor([2**40, -(2**40), 7]))

    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + 3000000000, torch.where(a > 1, a, 2**33), a + self.base, a.clamp(max=2**35) * 2


def test_int64_constants_beyond_32_bits() -> None:
    a = torch.tensor([1, 2, 3])
    equal(torch.compile(Far(), backend=NAME)(a), Far()(a))


def test_int64_beyond_32_bits_that_a_function_computes_or_pads_with() -> None:
    a = torch.arange(1, 9)
    equal(torch.compile(lambda a: a + 3000000000, backend=NAME)(a), a + 3000000000)
    equal(
        torch.compile(lambda a: F.pad(a, (1, 1), value=3000000000), backend=NAME)(a), F.pad(a, (1, 1), value=3000000000)
    )
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        equal(torch.compile(lambda a: a + a[1].item() * 3000000000, backend=NAME)(a), a + 6000000000)


def test_options_and_names() -> None:
    message = "InvalidInput: unknown option 'presicion' of the backend: options are "
    with pytest.raises(BackendCompilerFailed, match=message):
        torch.compile(nn.ReLU(), backend=torch_backend, options={"presicion": "fast"})(torch.ones(2))
    assert NAME in torch._dynamo.list_backends()
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert torch_backend is EntryPoint(NAME, project["entry-points"][GROUP][NAME], GROUP).load()


SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
TEXT: dict[str, Any] = {"vocab_size": 50, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1}


def hf(name: str, config: str, **settings: Any) -> nn.Module:
    """A small model of transformers with random weights."""
    settings.setdefault("use_cache", False) if "vocab_size" in settings else None
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return lively(model)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(2, 50, shape)


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Any]]]] = {
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(encoder_layer(activation="gelu"), 2, enable_nested_tensor=False).eval(),
        lambda: [torch.randn(2, 5, 16), torch.randn(2, 9, 16)],
    ),
    "TransformerEncoderLayer, norms first": (
        lambda: encoder_layer(norm_first=True).eval(), lambda: [torch.randn(2, 5, 16), torch.randn(3, 5, 16)],
    ),
    "ResNet": (lambda: lively(modules.ResNet()), lambda: [torch.randn(1, 3, 32, 32), torch.randn(2, 3, 40, 32)]),
    "MobileNet": (lambda: lively(modules.MobileNet()), lambda: [torch.randn(1, 3, 16, 16), torch.randn(3, 3, 16, 16)]),
    "U-Net": (lambda: lively(modules.UNet()), lambda: [torch.randn(1, 3, 16, 16), torch.randn(2, 3, 16, 16)]),
    "ViT": (lambda: lively(modules.ViT()), lambda: [torch.randn(1, 3, 16, 16), torch.randn(2, 3, 16, 16)]),
    "SpeechCNN": (lambda: lively(modules.SpeechCNN()), lambda: [torch.randn(1, 8, 20), torch.randn(1, 8, 33)]),
    "Detector": (lambda: lively(modules.Detector()), lambda: [torch.randn(1, 3, 16, 16), torch.randn(1, 3, 24, 16)]),
    "BERT": (lambda: hf("BertModel", "BertConfig", **SMALL, **TEXT), lambda: [tokens(2, 7), tokens(2, 9)]),
    "ViTModel": (
        lambda: hf("ViTModel", "ViTConfig", image_size=16, patch_size=4, **SMALL),
        lambda: [torch.randn(1, 3, 16, 16), torch.randn(2, 3, 16, 16)],
    ),
    "GPT-2": (
        lambda: hf("GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=1, n_head=2, n_positions=32, **{
            k: v for k, v in TEXT.items() if k != "max_position_embeddings"}),
        lambda: [tokens(2, 7), tokens(2, 9)],
    ),
    "Llama": (
        lambda: hf("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1, **SMALL, **TEXT),
        lambda: [tokens(1, 7), tokens(2, 9)],
    ),
    "T5 encoder": (
        lambda: hf("T5EncoderModel", "T5Config", vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2),
        lambda: [tokens(2, 7), tokens(2, 9)],
    ),
    "ResNetModel": (
        lambda: hf("ResNetModel", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                   layer_type="basic"),
        lambda: [torch.randn(1, 3, 32, 32), torch.randn(2, 3, 32, 32)],
    ),
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("delegate", [True, False], ids=["partitions", "single operators"])
@pytest.mark.parametrize("name", MODELS)
def test_models_as_in_eager_pytorch(name: str, delegate: bool) -> None:
    make, inputs = MODELS[name]
    compared(make(), *((x,) for x in inputs()), options={"delegate": delegate, "fallback": False})


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_where_dynamo_takes_them(kind: Any) -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        compared(lively(modules.Recurrent(kind)), (torch.randn(2, 5, 6),), options={"fallback": False})
