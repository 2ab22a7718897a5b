"""A Hugging Face model as a module for one task, with tensors as inputs and outputs, and its dynamic sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import ExportError
from ..models.tasks.specs import TASKS, TaskSpec, task_of
from .backend import torch

Activation = Callable[[Tensor], Tensor]
Example = tuple[nn.Module, tuple[Tensor, ...], tuple[dict[int, Any] | None, ...]]  # module, inputs, dynamic shapes

KINDS = {"input_ids": "text", "pixel_values": "image", "input_values": "audio", "input_features": "audio"}
RATE = 16_000  # samples per second of example sounds
POOLINGS = ("cls", "mean", "max")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest inputs of a program, if the model allows them."""

    batch: int = 8  # texts or pictures in one call; a call takes one sound
    length: int = 512  # tokens
    seconds: float = 15.0  # of sound


def kind_of(model: Any) -> str:
    """Return the kind of a model's inputs: text, image, audio or other."""
    return KINDS.get(getattr(model, "main_input_name", ""), "other")


def wrapped(
    model: Any,
    task: str | None = None,
    bounds: Bounds = Bounds(),
    *,
    size: tuple[int, int] | None = None,
    finish: nn.Module | None = None,
) -> Example:
    """Return a module for `torch.export`, inputs to trace it with, and its dynamic shapes.

    `model` is a `PreTrainedModel` of transformers. Without a `task`, the name of its class decides. `size` replaces the
    height and width of pictures in the config; `finish` turns hidden states and mask into sentence embeddings.
    """
    name = type(model).__name__
    task = task or task_of(name, kind_of(model))
    if task is None or task not in TASKS:
        raise ExportError(f"{name} has no task that can be exported; supported are {', '.join(TASKS)}")
    model.eval().requires_grad_(False)
    spec = TASKS[task]
    if len(spec.inputs) > 1:
        pixels, tokens, mask = picture(model, 1, size), *tokens_of(model, bounds)[:2]
        texts = _dynamic({0: (1, bounds.batch)})
        return Similarity(model), (pixels, tokens, mask), (None, texts, texts)
    (kind,) = spec.inputs
    if kind == "text":
        most = min(bounds.length, positions(model))
        batch = 1 if spec.masked else bounds.batch  # its logits are large
        inputs = tuple(x[:batch, :most] for x in tokens_of(model, bounds, types=spec.types))
        sizes = {1: (1, most)} | ({0: (1, batch)} if batch > 1 else {})
        return TextModel(model, spec, finish), inputs, tuple(_dynamic(sizes) for _ in inputs)
    if kind == "image":
        example = picture(model, min(2, bounds.batch), size)
        return TaskModel(model, spec, "pixel_values"), (example,), (_dynamic({0: (1, bounds.batch)}),)
    example, most = sound(model, bounds)
    wave = {1: (least_samples(model), most)} if example.dim() == 2 else {}
    return TaskModel(model, spec, model.main_input_name), (example,), (_dynamic(wave),)


def _dynamic(sizes: Mapping[int, tuple[int, int]]) -> dict[int, Any] | None:
    return {d: torch.export.Dim.AUTO(min=low, max=high) for d, (low, high) in sizes.items() if high > low} or None


class TaskModel(nn.Module):
    """A model with one input and the outputs of its task."""

    def __init__(self, model: Any, spec: TaskSpec, name: str) -> None:
        super().__init__()
        self.model, self.spec, self.name = model, spec, name

    def forward(self, x: Tensor) -> Any:
        return task_outputs(self.model(**{self.name: x}), self.spec)


class TextModel(nn.Module):
    """A model of tokens and a mask, int64 (B, T), which is 0 at padding and else 1; perhaps also of token types."""

    def __init__(self, model: Any, spec: TaskSpec, finish: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.spec = model, spec
        self.finish = finish or (SentencePooling() if spec.drawn == "embedding" else None)

    def forward(self, tokens: Tensor, mask: Tensor, types: Tensor | None = None) -> Any:
        more = {} if types is None else {"token_type_ids": types}
        outputs = task_outputs(self.model(input_ids=tokens, attention_mask=mask, **more), self.spec)
        return outputs if self.finish is None else self.finish(outputs, mask)


class Similarity(nn.Module):
    """A model that compares a picture (1, C, H, W) with texts (B, T): logits (1, B)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=tokens, pixel_values=pixels, attention_mask=mask).logits_per_image


class SentencePooling(nn.Module):
    """Hidden states (B, T, D) → one vector for each text (B, D'), as in sentence-transformers."""

    def __init__(
        self, pooling: str = "mean", normalize: bool = True, dense: Sequence[tuple[nn.Linear, Activation]] = ()
    ) -> None:
        super().__init__()
        self.pooling, self.normalize = pooling, normalize
        self.layers = nn.ModuleList(layer for layer, _ in dense)
        self.activations = [activation for _, activation in dense]

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        real = mask.to(hidden.dtype)  # (B, T)
        if self.pooling == "cls":
            x = hidden[:, 0]
        elif self.pooling == "max":
            x = (hidden + (real[:, :, None] - 1) * 1e9).amax(1)
        else:
            x = (real[:, None] @ hidden)[:, 0] / real.sum(1, keepdim=True).clamp(min=1e-9)
        for layer, activation in zip(self.layers, self.activations):
            x = activation(layer(x))
        return nn.functional.normalize(x) if self.normalize else x


def task_outputs(outputs: Any, spec: TaskSpec) -> Any:
    """Return the tensors of a task."""
    tensors = tuple(getattr(outputs, name) for name in spec.outputs)
    return tensors if len(tensors) > 1 else tensors[0]


def tokens_of(model: Any, bounds: Bounds, types: bool = False) -> tuple[Tensor, ...]:
    """Return two short texts: ids, mask and, if the model has several, types."""
    config = getattr(model.config, "text_config", model.config)
    if hasattr(model.config, "text_config"):  # padded to the full length, as in training
        shape = (2, min(bounds.length, positions(model)))
    else:
        shape = (min(2, bounds.batch), min(8, bounds.length, positions(model)))
    ids = torch.randint(3, max(4, config.vocab_size), shape, generator=torch.Generator().manual_seed(0))
    ids[:, -1] = config.vocab_size - 1  # CLIP finds the end of a text by its token, the largest
    inputs: tuple[Tensor, ...] = ids, torch.ones_like(ids)
    return (*inputs, torch.zeros_like(ids)) if types and has_types(model) else inputs


def has_types(model: Any) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return "token_type_ids" in parameters and getattr(model.config, "type_vocab_size", 0) > 1


def positions(model: Any) -> int:
    """Return the length of the longest text, in tokens."""
    config = getattr(model.config, "text_config", model.config)
    count = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
    for name, module in model.named_modules():  # RoBERTa's positions begin after its padding
        if isinstance(module, nn.Embedding) and "position" in name and module.padding_idx is not None:
            return count - module.padding_idx - 1
    return count


def picture(model: Any, batch: int, size: tuple[int, int] | None) -> Tensor:
    config = getattr(model.config, "vision_config", model.config)
    backbone = getattr(config, "backbone_config", None)
    sides = size or getattr(config, "image_size", None) or getattr(backbone, "image_size", None) or 224
    height, width = sides if isinstance(sides, tuple | list) else (sides, sides)
    channels = getattr(config, "num_channels", 3)
    return torch.rand((batch, channels, height, width), generator=torch.Generator().manual_seed(0))


def sound(model: Any, bounds: Bounds) -> tuple[Tensor, int]:
    """Return a second of noise, or a spectrogram of the model's fixed size, and the largest number of samples."""
    config, noise = model.config, torch.Generator().manual_seed(0)
    most = round(bounds.seconds * RATE)
    if model.main_input_name == "input_features":  # Whisper
        return torch.randn((1, config.num_mel_bins, 2 * config.max_source_positions), generator=noise), most
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):  # the audio spectrogram transformer
        return torch.randn((1, config.max_length, config.num_mel_bins), generator=noise), most
    return torch.randn((1, min(RATE, most)), generator=noise), most


def least_samples(model: Any) -> int:
    """Return the length of the shortest wave that convolutions turn into two frames."""
    config, least = model.config, 2
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride)):
        least = (least - 1) * stride + kernel
    return least
