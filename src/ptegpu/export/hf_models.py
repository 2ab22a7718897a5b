"""A Hugging Face model as a module for one task: plain tensors in, plain tensors out, and which sizes may change."""

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
Source = tuple[nn.Module, tuple[Tensor, ...], tuple[dict[int, Any] | None, ...]]

KINDS = {"input_ids": "text", "pixel_values": "image", "input_values": "audio", "input_features": "audio"}
RATE = 16_000  # samples in a second, of the sounds that models are traced with
POOLINGS = ("cls", "mean", "max")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest inputs; None: what the model was made for."""

    batch: int = 8  # texts or pictures in one call; sounds go one by one
    length: int = 512  # tokens
    seconds: float = 15.0  # of sound


def kind_of(model: Any) -> str:
    """What a model takes: text, image or audio."""
    return KINDS.get(getattr(model, "main_input_name", ""), "other")


def wrapped(
    model: Any,
    task: str | None = None,
    bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
    *,
    size: tuple[int, int] | None = None,
    finish: nn.Module | None = None,
) -> Source:
    """A module for `torch.export`, inputs to trace it with, and its dynamic shapes.

    `model` is a `PreTrainedModel` of transformers. Without a `task`, the name of its class decides. `size` is a
    picture's height and width, if not the config's own; `finish` makes sentence embeddings of hidden states and mask.
    """
    name = type(model).__name__
    task = task or task_of(name, kind_of(model))
    if task is None or task not in TASKS:
        raise ExportError(f"{name} is of no task that can be exported; supported are {', '.join(TASKS)}")
    model.eval().requires_grad_(False)
    spec = TASKS[task]
    if len(spec.inputs) > 1:
        pixels, tokens, mask = picture(model, 1, size), *tokens_of(model, bounds)[:2]
        texts = _dynamic({0: (1, bounds.batch)})
        return Similarity(model), (pixels, tokens, mask), (None, texts, texts)
    (takes,) = spec.inputs
    if takes == "text":
        most = min(bounds.length, positions(model))
        batch = 1 if spec.masked else bounds.batch  # its logits are large
        inputs = tokens_of(model, bounds, types=spec.types)
        inputs = tuple(x[:batch, :most] for x in inputs)
        sizes = {1: (1, most)} | ({0: (1, batch)} if batch > 1 else {})
        return TextModel(model, spec, finish), inputs, tuple(_dynamic(sizes) for _ in inputs)
    if takes == "image":
        example = picture(model, min(2, bounds.batch), size)
        return Outputs(model, spec, "pixel_values"), (example,), (_dynamic({0: (1, bounds.batch)}),)
    example, most = sound(model, bounds)
    wave = {1: (least_samples(model), most)} if example.dim() == 2 else {}
    return Outputs(model, spec, model.main_input_name), (example,), (_dynamic(wave),)


def _dynamic(sizes: Mapping[int, tuple[int, int]]) -> dict[int, Any] | None:
    found = {d: torch.export.Dim.AUTO(min=low, max=high) for d, (low, high) in sizes.items() if high > low}
    return found or None


class Outputs(nn.Module):
    """A model with one input; the outputs that its task is about."""

    def __init__(self, model: Any, spec: TaskSpec, name: str) -> None:
        super().__init__()
        self.model, self.spec, self.name = model, spec, name

    def forward(self, x: Tensor) -> Any:
        return chosen(self.model(**{self.name: x}), self.spec)


class TextModel(nn.Module):
    """tokens and mask int64 (B, T), 0 at padding and else 1, and token types where the model has them."""

    def __init__(self, model: Any, spec: TaskSpec, finish: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.spec = model, spec
        self.finish = finish or (Finish() if spec.drawn == "embedding" else None)

    def forward(self, tokens: Tensor, mask: Tensor, types: Tensor | None = None) -> Any:
        more = {} if types is None else {"token_type_ids": types}
        found = chosen(self.model(input_ids=tokens, attention_mask=mask, **more), self.spec)
        return found if self.finish is None else self.finish(found, mask)


class Similarity(nn.Module):
    """A picture (1, C, H, W) and texts (B, T) → logits (1, B)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=tokens, pixel_values=pixels, attention_mask=mask).logits_per_image


class Finish(nn.Module):
    """Hidden states (B, T, D) → one vector for each text (B, D'), as sentence-transformers makes it."""

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


def chosen(outputs: Any, spec: TaskSpec) -> Any:
    """Return the tensors that a task is about."""
    found = tuple(getattr(outputs, name) for name in spec.outputs)
    return found if len(found) > 1 else found[0]


def tokens_of(model: Any, bounds: Bounds, types: bool = False) -> tuple[Tensor, ...]:
    """Two texts of a few tokens: ids, mask and, where the model has several, types."""
    config = getattr(model.config, "text_config", model.config)
    if hasattr(model.config, "text_config"):  # filled to the full length: what these models were trained with
        shape = (2, min(bounds.length, positions(model)))
    else:
        shape = (min(2, bounds.batch), min(8, bounds.length, positions(model)))
    ids = torch.randint(3, max(4, config.vocab_size), shape, generator=torch.Generator().manual_seed(0))
    ids[:, -1] = config.vocab_size - 1  # CLIP finds the end of a text by its token, the largest
    found: tuple[Tensor, ...] = ids, torch.ones_like(ids)
    return (*found, torch.zeros_like(ids)) if types and has_types(model) else found


def has_types(model: Any) -> bool:
    takes = inspect.signature(model.forward).parameters
    return "token_type_ids" in takes and getattr(model.config, "type_vocab_size", 0) > 1


def positions(model: Any) -> int:
    """The longest text of a model, in tokens."""
    config = getattr(model.config, "text_config", model.config)
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
    for name, module in model.named_modules():  # RoBERTa's begin after its padding
        if isinstance(module, nn.Embedding) and "position" in name and module.padding_idx is not None:
            return found - module.padding_idx - 1
    return found


def picture(model: Any, batch: int, size: tuple[int, int] | None) -> Tensor:
    config = getattr(model.config, "vision_config", model.config)
    backbone = getattr(config, "backbone_config", None)
    given = size or getattr(config, "image_size", None) or getattr(backbone, "image_size", None) or 224
    height, width = given if isinstance(given, tuple | list) else (given, given)
    channels = getattr(config, "num_channels", 3)
    return torch.rand((batch, channels, height, width), generator=torch.Generator().manual_seed(0))


def sound(model: Any, bounds: Bounds) -> tuple[Tensor, int]:
    """A second of noise, or a spectrogram of the fixed size that the model takes; the most samples."""
    config, noise = model.config, torch.Generator().manual_seed(0)
    most = round(bounds.seconds * RATE)
    if model.main_input_name == "input_features":  # Whisper
        return torch.randn((1, config.num_mel_bins, 2 * config.max_source_positions), generator=noise), most
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):  # the audio spectrogram transformer
        return torch.randn((1, config.max_length, config.num_mel_bins), generator=noise), most
    return torch.randn((1, min(RATE, most)), generator=noise), most


def least_samples(model: Any) -> int:
    """The shortest wave from which convolutions make two frames."""
    config, least = model.config, 2
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride)):
        least = (least - 1) * stride + kernel
    return least
