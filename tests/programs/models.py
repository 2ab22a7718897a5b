"""Whole models of every family, and programs with states, methods, branches, dynamic sizes and ints."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.export import Dim

from ptegpu.export import lower, trace
from tests.saved import Call, Program
from tests.zoo import modules

from .making import HALF, Inputs, Model, answered

F16 = {"force_fp16": True}


def twice(name: str) -> Model:
    """Return a module of the zoo with two calls."""
    specimen = modules.SPECIMENS[name]
    return Model(specimen.build, lambda: [specimen.inputs(), specimen.inputs()])


def sizes(*shapes: tuple[int, ...]) -> Callable[[], Sequence[Inputs]]:
    """Return a function that makes a call for each shape."""
    return lambda: [(torch.randn(shape),) for shape in shapes]


def texts() -> Sequence[Inputs]:
    """Return tokens and masks at sizes in between, at the upper bounds and at the lower bounds."""
    inputs = []
    for b, t in ((3, 9), (4, 12), (1, 2), (3, 9), (2, 12), (4, 3), (1, 7)):
        lengths = torch.randint(1, t + 1, (b, 1))
        inputs.append((torch.randint(0, 50, (b, t)), (torch.arange(t) < lengths).long()))
    return inputs


def undelegated(model: Model) -> Model:
    return replace(model, delegate=False)


def half(model: Model) -> Model:
    return replace(model, options=F16, expectations={**model.expectations, "tolerance": HALF})


TEXT = ({0: Dim("batch", min=1, max=4), 1: Dim("length", min=2, max=12)},) * 2
IMAGE = ({0: Dim("batch", min=1, max=3), 2: Dim("height", min=8, max=16), 3: Dim("width", min=8, max=18)},)

RESNET = twice("ResNet")
MOBILENET = twice("MobileNet")
UNET = twice("U-Net")
VIT = twice("ViT")
BERT = Model(modules.Bert, texts, dynamic=TEXT)
WHISPER = twice("audio encoder")
LSTM = twice("LSTM")
GRU = twice("GRU")
SPEECH = twice("speech CNN")
DETECTOR = twice("detector")
AT_EVERY_SIZE = Model(
    modules.Detector,
    sizes((2, 3, 12, 10), (3, 3, 16, 18), (1, 3, 8, 8), (2, 3, 12, 10), (3, 3, 8, 18), (1, 3, 15, 9)),
    dynamic=IMAGE,
)
STREAMING = Model(
    modules.Streaming,
    sizes((1, 4, 5), (1, 4, 8), (1, 4, 1), (1, 4, 5), (1, 4, 2)),
    dynamic=({2: Dim("frames", min=1, max=8)},),
    options={"alias_buffer_mutations": True},
    state=True,
)


def branch_inputs() -> Sequence[Inputs]:
    """Return inputs for both branches."""
    return [(torch.randn(n, 5) + shift,) for n, shift in ((3, 2.0), (6, -2.0), (2, 2.0), (3, -2.0), (5, 2.0))]


BRANCHES = Model(
    modules.Branches,
    branch_inputs,
    dynamic=({0: Dim("batch", min=2, max=6)},),
    expectations={"graphs": 4, "host": ["aten.masked_scatter.default", "Jump", "Move", "Jump", "Move"]},
)
EVERYTHING = Model(
    modules.Everything,
    lambda: [(torch.randn(8, 3), n) for n in (5, 3, 8, 0)],
    dynamic=(None, Dim.DYNAMIC),
)
LARGE = 2**40
WHOLE = Model(
    modules.Whole,
    lambda: [(torch.tensor([LARGE, 5, -7, 2**31]),), (torch.tensor([-3, 0, 2**33, -LARGE]),)],
    delegate=False,
    expectations={
        "graphs": 0,
        "host": [f"aten.{op}" for op in ("mul.Tensor", "add.Tensor", "div.Tensor_mode", "cumsum.default")],
    },
)
HALVES = Model(
    lambda: modules.SpeechCNN().half(),
    lambda: [(torch.randn(1, 8, 20).half(),), (torch.randn(1, 8, 20).half(),)],
    expectations={"tolerance": HALF},
)


@dataclass(frozen=True)
class Methods:
    """A module whose parts are methods of their own, besides `forward`."""

    def program(self, name: str) -> Program:
        torch.manual_seed(0)
        module = modules.lively(modules.Autoencoder())
        methods = {"forward": module, "encode": module.encode, "decode": module.decode}
        calls = {m: [(torch.randn(2, width),), (torch.randn(2, width),)] for m, width in zip(methods, (12, 12, 4))}
        traced = {m: trace(copy.deepcopy(part), calls[m][0]) for m, part in methods.items()}
        data = lower(traced, constants={"width": 4}).data
        program = answered(Program(name, data, (), graphs=3), methods, calls)
        return replace(program, calls=[*program.calls, Call((), [4], "width")])


MODELS: dict[str, Model | Methods] = {
    "resnet": RESNET,
    "resnet, undelegated": undelegated(RESNET),
    "mobilenet": MOBILENET,
    "mobilenet in f16": half(MOBILENET),
    "u-net": UNET,
    "u-net, undelegated": undelegated(UNET),
    "u-net in f16": half(UNET),
    "vit": VIT,
    "vit, undelegated": undelegated(VIT),
    "bert": BERT,
    "bert, undelegated": undelegated(BERT),
    "whisper encoder": WHISPER,
    "whisper encoder in f16": half(WHISPER),
    "lstm": LSTM,
    "gru": GRU,
    "gru, undelegated": undelegated(GRU),
    "speech cnn": SPEECH,
    "speech cnn in f16": half(SPEECH),
    "speech cnn of f16": HALVES,
    "several outputs": DETECTOR,
    "several outputs, undelegated": undelegated(DETECTOR),
    "several outputs at every size": AT_EVERY_SIZE,
    "several outputs at every size, undelegated": undelegated(AT_EVERY_SIZE),
    "state": STREAMING,
    "state, undelegated": undelegated(STREAMING),
    "several methods": Methods(),
    "cond": BRANCHES,
    "cond, undelegated": undelegated(BRANCHES),
    "every kind of output": EVERYTHING,
    "every kind of output, undelegated": undelegated(EVERYTHING),
    "int64": WHOLE,
}
