"""Modules of plain PyTorch: whole models of several families, tiny and with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from .specimen import Specimen


def lively(model: nn.Module) -> nn.Module:
    """Prepare `model` for inference, with weights and statistics that keep activations at scale 1; return it."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "token" not in name and "positions" not in name:
            nn.init.normal_(parameter, std=1.5 / parameter[0].numel() ** 0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return model.requires_grad_(False).eval()


class Block(nn.Module):
    """Pre-norm attention and feed-forward, with PyTorch's own attention function."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, D)
        b, t, d = x.shape
        q, k, v = (s.view(b, t, self.heads, -1).transpose(1, 2) for s in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """A transformer encoder over token ids."""

    def __init__(self, layers: int = 2, width: int = 16, heads: int = 2, vocabulary: int = 50) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, T) → (B, T, D)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Strided stem, pooling, residual blocks, global pooling."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.head = nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 3, H, W) → (B, classes)
        x = self.blocks(self.pool(self.stem(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = F.relu(self.down(x.mean((2, 3), keepdim=True)))
        return x * F.hardsigmoid(self.up(scale))


class Inverted(nn.Module):
    """An inverted residual: widen, depthwise, optional squeeze and excite, narrow; a shortcut if the sizes allow."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: type[nn.Module], squeeze: bool = False
    ) -> None:
        super().__init__()
        wide = 2 * inputs
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            activation(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            activation(),
            SqueezeExcite(wide) if squeeze else nn.Identity(),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.shortcut else self.layers(x)


class MobileNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.blocks = nn.Sequential(Inverted(8, 8, 1, nn.ReLU6), Inverted(8, 16, 2, nn.Hardswish, True))
        self.head = nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 3, H, W) → (B, classes)
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Bottleneck(nn.Module):
    """Widen, depthwise, narrow, with a shortcut past all of it and the activation before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class PlainMobileNet(nn.Module):
    """A MobileNet of the operators that quantizers support."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8))
        self.blocks = nn.Sequential(Bottleneck(8), Bottleneck(8))
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 3, H, W) → (B, classes)
        return self.head(F.relu(self.blocks(self.stem(x))).mean((2, 3)))


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    """Two levels down, then up by a transposed convolution and by bilinear interpolation."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = _twice(3, 8), _twice(8, 16), _twice(16, 16)
        self.widen = nn.ConvTranspose2d(16, 16, 2, 2)
        self.up2, self.up1 = _twice(32, 8), _twice(16, 8)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 3, H, W) → (B, classes, H, W)
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.bottom(F.max_pool2d(b, 2))
        y = self.up2(torch.cat([self.widen(y), b], 1))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(self.up1(torch.cat([y, a], 1)))


class ViT(nn.Module):
    def __init__(self, size: int = 16, patch: int = 4, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 3, H, W) → (B, classes)
        x = self.patches(x).flatten(2).transpose(1, 2)  # (B, patches, D)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bert(nn.Module):
    """A BERT: learnt positions, post-norm, and a mask for padding."""

    def __init__(self, width: int = 16, heads: int = 2, vocabulary: int = 50, longest: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 32), nn.Linear(32, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map tokens (B, T) and a mask of 0 and 1 (B, T) to states (B, T, D) and one per text (B, D)."""
        b, t = ids.shape
        x = self.norm1(self.tokens(ids) + self.positions(torch.arange(t)))
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :].bool())
        x = self.norm2(x + self.out(attended.transpose(1, 2).reshape(b, t, -1)))
        x = self.norm3(x + self.down(F.gelu(self.up(x))))
        return x, torch.tanh(self.pooler(x[:, 0]))


class AudioEncoder(nn.Module):
    """An encoder like Whisper's: two convolutions over a log-mel spectrogram, one of stride 2, then attention."""

    def __init__(self, mels: int = 8, frames: int = 24, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, 2, 1)
        self.register_buffer("positions", torch.randn(frames // 2, width))
        self.block, self.norm = Block(width, 2), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, mels, frames) → (B, frames / 2, D)
        x = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return self.norm(self.block(x.transpose(1, 2) + self.positions))


class Recurrent(nn.Module):
    """A bidirectional recurrence that returns its outputs and its last states."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], inputs: int = 6, width: int = 8) -> None:
        super().__init__()
        self.layer = kind(inputs, width, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # (B, T, inputs) → (B, T, 2 * width), …
        y, state = self.layer(x)
        return y, state[0] if isinstance(state, tuple) else state


class SpeechCNN(nn.Module):
    """Dilated and depthwise convolutions over time; log probabilities of characters per frame."""

    def __init__(self, features: int = 8, characters: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(features, 16, 5, 2, 2),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=16),
            nn.Conv1d(16, 16, 1),
            nn.BatchNorm1d(16),
            nn.SiLU(),
            nn.Conv1d(16, characters, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, features, T) → (B, T / 2, characters)
        return F.log_softmax(self.layers(x).transpose(1, 2), -1)


class Detector(nn.Module):
    """One trunk, several outputs: boxes, scores, the best class of each place and the features themselves."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3, 2, 1), nn.SiLU())
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, classes, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        features = self.trunk(x)  # (B, 8, H / 4, W / 4)
        boxes = torch.sigmoid(self.boxes(features)).flatten(2).transpose(1, 2)  # (B, places, 4)
        scores = self.scores(features).flatten(2).transpose(1, 2).softmax(-1)  # (B, places, classes)
        return boxes, scores, scores.argmax(-1), features


class Streaming(nn.Module):
    """A convolution that stores the preceding frames, and the running mean of its outputs."""

    past: torch.Tensor
    mean: torch.Tensor

    def __init__(self, features: int = 4, outputs: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv1d(features, outputs, 3)
        self.register_buffer("past", torch.zeros(1, features, 2))
        self.register_buffer("mean", torch.zeros(1, outputs))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # (1, features, T) → (1, outputs, T), …
        frames = torch.cat([self.past, x], 2)
        y = torch.tanh(self.conv(frames))
        self.past.copy_(frames[:, :, -2:])
        self.mean.mul_(0.75)
        self.mean.add_(y.mean(2))
        return y, self.mean * 2


class Autoencoder(nn.Module):
    """An autoencoder whose halves are methods of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 4), nn.GELU())
        self.decode = nn.Sequential(nn.Linear(4, 12), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 12)
        return self.decode(torch.tanh(self.encode(x)))


class Branches(nn.Module):
    """A data-dependent branch, and `masked_scatter`, which only the host has."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, 5) → (B, 3)
        mixed = (x * 2).masked_scatter(x > 0, -x)[:, :2] + x.shape[0]
        return torch.cond(x.sum() > x.shape[0], lambda a: self.left(a), lambda a: torch.relu(self.right(a)), (mixed,))


class Everything(nn.Module):
    """An unchanged input, one result twice, None, a constant int and a symbolic one."""

    def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, int, int]:
        y = x[:n] * 2
        return x, y, y, None, 3, n + 1


class Whole(nn.Module):
    """Arithmetic on ints that need 64 bits."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x * x + 1, x // 3, torch.cumsum(x, 0)


def _noise(*shape: int) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.randn(shape),)


def _text() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 50, (3, 9)), (torch.arange(9) < torch.randint(1, 10, (3, 1))).long()


SPECIMENS = {  # with PyTorch's initial weights; see `lively`
    "ResNet": Specimen(ResNet, _noise(2, 3, 32, 32)),
    "MobileNet": Specimen(MobileNet, _noise(2, 3, 32, 32)),
    "plain MobileNet": Specimen(PlainMobileNet, _noise(2, 3, 16, 16)),
    "U-Net": Specimen(UNet, _noise(1, 3, 16, 16)),
    "ViT": Specimen(ViT, _noise(2, 3, 16, 16)),
    "encoder": Specimen(Encoder, lambda: (torch.randint(0, 50, (2, 7)),)),
    "BERT": Specimen(Bert, _text),
    "audio encoder": Specimen(AudioEncoder, _noise(1, 8, 24)),
    "LSTM": Specimen(partial(Recurrent, nn.LSTM), _noise(2, 3, 6)),
    "GRU": Specimen(partial(Recurrent, nn.GRU), _noise(2, 3, 6)),
    "speech CNN": Specimen(SpeechCNN, _noise(1, 8, 20)),
    "detector": Specimen(Detector, _noise(1, 3, 16, 16)),
    "streaming": Specimen(Streaming, _noise(1, 4, 5)),
    "autoencoder": Specimen(Autoencoder, _noise(3, 12)),
    "branches": Specimen(Branches, _noise(3, 5)),
    "every kind of output": Specimen(Everything, lambda: (torch.randn(8, 3), 5)),
    "int64": Specimen(Whole, lambda: (torch.tensor([2**40, 5, -7, 2**31]),)),
}
