"""The measured networks, in plain PyTorch, with weights that are equal on every machine.

A machine with ExecuTorch exports them. Another one with a GPU runs the exported programs and the same modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill a module with weights and statistics that keep values at scale 1, and prepare it for inference."""
    frozen = np.random.RandomState(seed)
    with torch.no_grad():
        for name, values in (*module.named_parameters(), *module.named_buffers()):
            if not values.is_floating_point():
                continue
            shape, kind = tuple(values.shape), name.rpartition(".")[2]
            if kind == "running_var" or (kind == "weight" and len(shape) == 1):
                data = frozen.uniform(0.8, 1.2, shape)
            elif len(shape) == 1:
                data = 0.1 * frozen.standard_normal(shape)
            else:
                data = frozen.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
            values.copy_(torch.from_numpy(data.astype(np.float32)))
    return module.requires_grad_(False).eval()


def convolved(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a padded convolution and its batch norm."""
    return [
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = convolved(inputs, outputs, 3, stride), convolved(outputs, outputs, 3)
        self.layers = nn.Sequential(*first, nn.ReLU(), *second)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolved(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(*convolved(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = [
            Residual(before if first else after, after, 2 if first and after > width else 1)
            for before, after in pairwise(widths)
            for first in (True, False)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) → (B, classes)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1))


class Inverted(nn.Module):
    """A block that widens, filters by depth and narrows, with a shortcut if sizes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = factor * inputs
        widened = [*convolved(inputs, wide, 1), nn.ReLU6()] if factor > 1 else []
        depthwise = [*convolved(wide, wide, 3, stride, groups=wide), nn.ReLU6()]
        self.layers = nn.Sequential(*widened, *depthwise, *convolved(wide, outputs, 1))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.shortcut else self.layers(x)


MOBILENET_STAGES = (  # factor, outputs, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2(nn.Module):
    def __init__(self, stages: tuple[tuple[int, int, int, int], ...] = MOBILENET_STAGES, last: int = 1280) -> None:
        super().__init__()
        layers: list[nn.Module] = [*convolved(3, 32, 3, 2), nn.ReLU6()]
        inputs = 32
        for factor, outputs, count, stride in stages:
            for number in range(count):
                layers.append(Inverted(inputs, outputs, 1 if number else stride, factor))
                inputs = outputs
        self.layers = nn.Sequential(*layers, *convolved(inputs, last, 1), nn.ReLU6())
        self.head = nn.Linear(last, 1000)

    def forward(self, x: Tensor) -> Tensor:  # (B, 3, H, W) → (B, classes)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1))


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention_norm, self.output_norm = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)  # (B, T, width)
        x = self.attention_norm(x + self.out(attended))
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


class MiniLM(nn.Module):
    """A model of all-MiniLM-L6-v2's shape, in plain PyTorch, with its fused attention."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 12, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return unit vectors (B, width) for tokens (B, T) and a mask (B, T), 0 at padding and else 1, both int64."""
        x = self.norm(self.words(tokens) + self.positions.weight[: tokens.shape[1]])
        real = mask.bool()[:, None, None].expand(-1, 1, tokens.shape[1], -1)
        for layer in self.layers:
            x = layer(x, real)
        weights = mask.unsqueeze(-1).to(x.dtype)
        return F.normalize((x * weights).sum(1) / weights.sum(1))


def images(size: int) -> Callable[[int], tuple[np.ndarray, ...]]:
    return lambda batch: (np.random.RandomState(batch).standard_normal((batch, 3, size, size)).astype(np.float32),)


def texts(length: int, vocabulary: int) -> Callable[[int], tuple[np.ndarray, ...]]:
    """Return a function that makes tokens, and a mask that hides the second half of every other text."""

    def make(batch: int) -> tuple[np.ndarray, ...]:
        tokens = np.random.RandomState(batch).randint(0, vocabulary, (batch, length)).astype(np.int64)
        mask = np.ones_like(tokens)
        mask[1::2, length // 2 + 1 :] = 0
        return tokens, mask

    return make


@dataclass(frozen=True)
class Network:
    """A network and its inputs for a batch."""

    module: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[np.ndarray, ...]]
    batches: tuple[int, ...] = (1, 32)


NETWORKS = {
    "resnet18": Network(ResNet18, images(224)),
    "mobilenetv2": Network(MobileNetV2, images(224)),
    "minilm": Network(MiniLM, texts(128, 30522)),
}
QUICK_NETWORKS = {
    "resnet18": Network(lambda: ResNet18(4, 10), images(32), (1, 2)),
    "mobilenetv2": Network(lambda: MobileNetV2(MOBILENET_STAGES[:3], 64), images(32), (1, 2)),
    "minilm": Network(lambda: MiniLM(1, 24, 2, 50), texts(9, 50), (1, 2)),
}


def network(name: str, quick: bool) -> Network:
    return (QUICK_NETWORKS if quick else NETWORKS)[name]
