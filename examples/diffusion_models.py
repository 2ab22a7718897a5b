"""The models of a small latent diffusion pipeline in plain PyTorch, and their training on coloured shapes.

The models are a text encoder like CLIP's, a U-Net with cross attention that predicts the noise in latents, and the
decoder of an autoencoder that turns latents into pixels. `python examples/diffusion_models.py` trains them on pictures
that it draws itself, for `--minutes`, and writes the weights for `diffusion.py`; `--more` continues from these weights.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from diffusion_steps import COLOURS, LENGTH, LEVELS, SHAPES, SIZES, WORDS, signal_levels, tokens
from torch import Tensor, nn
from torch.nn import functional as F

PIXELS, SIDE, LATENT = 32, 8, 4  # picture size; latent size and channels
WIDTH, CHANNELS, INNER = 32, 24, 40  # text; U-Net at 8 × 8 and at 4 × 4
WEIGHTS = Path(__file__).with_name("diffusion.npz")


class Attention(nn.Module):
    """Self-attention, or cross attention to a context."""

    def __init__(self, width: int, context: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(context, width), nn.Linear(context, width)

    def forward(self, x: Tensor, context: Tensor, causal: bool = False) -> Tensor:
        q, k, v = (
            f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, y in ((self.query, x), (self.key, context), (self.value, context))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class TextEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(len(WORDS), WIDTH), nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:  # (B, LENGTH) → (B, LENGTH, WIDTH)
        x = self.words(ids) + self.positions
        y = self.norm1(x)
        x = x + self.attention(y, y, causal=True)
        y = self.up(self.norm2(x))
        return self.norm3(x + self.down(y * torch.sigmoid(1.702 * y)))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.level = nn.Linear(INNER, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.level(level)[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Transformer(nn.Module):
    """A block in which positions attend to each other, then to the text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.self_attention, self.cross_attention = Attention(width, width), Attention(width, WIDTH)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = x.flatten(2).transpose(1, 2)  # (B, positions, width)
        z = self.norm1(y)
        y = y + self.self_attention(z, z)
        y = y + self.cross_attention(self.norm2(y), text)
        y = y + self.down(F.gelu(self.up(self.norm3(y))))
        return y.transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """A U-Net that predicts the noise in latents."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(CHANNELS, INNER), nn.SiLU(), nn.Linear(INNER, INNER), nn.SiLU())
        self.first = nn.Conv2d(LATENT, CHANNELS, 3, padding=1)
        self.down1, self.down2 = Residual(CHANNELS, CHANNELS), Residual(CHANNELS, INNER)
        self.smaller = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, 1)
        self.middle = Transformer(INNER)
        self.up2, self.up1 = Residual(INNER, CHANNELS), Residual(2 * CHANNELS, CHANNELS)
        self.text = Transformer(CHANNELS)
        self.norm, self.last = nn.GroupNorm(8, CHANNELS), nn.Conv2d(CHANNELS, LATENT, 3, padding=1)

    def forward(self, x: Tensor, level: Tensor, text: Tensor) -> Tensor:
        """Map latents (B, 4, 8, 8), noise levels (B,) float32 and texts (B, LENGTH, WIDTH) to noise (B, 4, 8, 8)."""
        rates = torch.exp(-math.log(10000.0) * torch.arange(CHANNELS // 2) / (CHANNELS // 2))
        angles = level[:, None] * rates
        t = self.level(torch.cat([angles.cos(), angles.sin()], 1))
        a = self.down1(self.first(x), t)  # (B, CHANNELS, 8, 8)
        y = self.middle(self.down2(self.smaller(a), t), text)  # (B, INNER, 4, 4)
        y = F.interpolate(self.up2(y, t), scale_factor=2.0, mode="nearest")
        y = self.text(self.up1(torch.cat([y, a], 1), t), text)
        return self.last(F.silu(self.norm(y)))


class Decoder(nn.Module):
    """A decoder of latents (B, 4, 8, 8) to pixels (B, 3, 32, 32), from about -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(LATENT, 32, 3, padding=1), nn.Conv2d(32, 24, 3, padding=1)
        self.fine, self.last = nn.Conv2d(24, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.register_buffer("scale", torch.ones(()))  # standard deviation of the autoencoder's latents

    def forward(self, z: Tensor) -> Tensor:
        y = F.silu(self.first(z * self.scale))
        y = F.silu(self.middle(F.interpolate(y, scale_factor=2.0, mode="nearest")))
        y = F.silu(self.fine(F.interpolate(y, scale_factor=2.0, mode="nearest")))
        return self.last(y)


class Encoder(nn.Sequential):
    """An encoder of pixels to latents, used only in training."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.SiLU(),
            nn.Conv2d(24, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, LATENT, 3, padding=1),
        )  # fmt: skip


class Models(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.unet, self.decoder = TextEncoder(), UNet(), Decoder()


def load(path: Path = WEIGHTS) -> Models:
    """Return the models with the weights of a file, which stores them in float16."""
    models = Models()
    with np.load(path) as weights:
        models.load_state_dict({name: torch.from_numpy(weights[name]).float() for name in weights.files})
    return models.requires_grad_(False).eval()


def draw(size: str, colour: str, shape: str, x: float, y: float) -> np.ndarray:
    """Return a picture (3, 32, 32) from -1 to 1: one shape on white, with smooth edges."""
    down, right = np.mgrid[0:PIXELS, 0:PIXELS] + 0.5
    u, v, r = right - x, down - y, 5.5 if size == "small" else 10.0
    outside = {
        "circle": np.hypot(u, v) - r,
        "square": np.maximum(abs(u), abs(v)) - 0.9 * r,
        "triangle": np.maximum(v - 0.7 * r, 0.87 * abs(u) - 0.5 * v - 0.55 * r),
        "cross": np.minimum(
            np.maximum(abs(u) - r, abs(v) - 0.35 * r), np.maximum(abs(v) - r, abs(u) - 0.35 * r)
        ),
    }[shape]  # fmt: skip
    share = np.clip(0.5 - outside, 0, 1)
    ink = np.array(COLOURS[colour])[:, None, None] / 127.5 - 1
    return (1 + share * (ink - 1)).astype(np.float32)


def batch(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Return pictures (B, 3, 32, 32) and the tokens of their captions (B, LENGTH), some without a size."""
    pictures, texts = [], []
    for _ in range(count):
        size, colour, shape = (str(rng.choice(list(x))) for x in (SIZES, COLOURS, SHAPES))
        x, y = rng.uniform(13, 19, 2)
        pictures.append(draw(size, colour, shape, x, y))
        texts.append(tokens(f"a {colour} {shape}" if rng.random() < 0.2 else f"a {size} {colour} {shape}"))
    return torch.from_numpy(np.stack(pictures)), torch.from_numpy(np.concatenate(texts))


def train(models: Models, seconds: float, seed: int = 0) -> Models:
    """Train the autoencoder for the first 40 % of the time, then the text encoder and the U-Net."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    encoder = Encoder()
    pictures, texts = batch(rng, 4096)
    started = time.perf_counter()

    def adam(modules: list[nn.Module], rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for m in modules for p in m.parameters()], rate)

    optimizer, end, n = adam([encoder, models.decoder], 2e-3), 0.4 * seconds, 0
    while (now := time.perf_counter() - started) < end:
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - now / end) + 1e-5
        x = pictures[torch.from_numpy(rng.integers(0, len(pictures), 16))]
        z = encoder(x)
        loss = F.mse_loss(models.decoder(z), x) + 1e-4 * (z * z).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        if n % 200 == 0:
            print(f"{now:5.0f} s  autoencoder  step {n}  loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        latents = torch.cat([encoder(part) for part in pictures.split(256)])
        deviation = latents.std()
        latents /= deviation
        models.decoder.scale *= deviation
    signal = torch.from_numpy(signal_levels()).float()
    learning = [models.text, models.unet]
    optimizer, average = adam(learning, 2e-3), {k: v.clone() for k, v in models.state_dict().items()}
    begin, n = time.perf_counter() - started, 0
    while (now := time.perf_counter() - started) < seconds:
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - (now - begin) / (seconds - begin)) + 1e-5
        chosen = torch.from_numpy(rng.integers(0, len(latents), 64))
        level = torch.randint(0, LEVELS, (64,))
        noise, share = torch.randn(64, LATENT, SIDE, SIDE), signal[level][:, None, None, None]
        text = models.text(texts[chosen] * (torch.rand(64, 1) > 0.1))  # drop 10 % of the texts, for guidance
        predicted = models.unet(latents[chosen] * share.sqrt() + noise * (1 - share).sqrt(), level.float(), text)
        loss = F.mse_loss(predicted, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n += 1
        for name, value in models.state_dict().items():
            average[name].lerp_(value, max(0.005, 1 / n))
        if n % 200 == 0:
            print(f"{now:5.0f} s  diffusion  step {n}  loss {loss.item():.4f}", flush=True)
    models.load_state_dict(average)
    return models.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the models of diffusion.py.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--more", action="store_true", help="continue from the existing weights")
    args = parser.parse_args()
    trained = train(load().requires_grad_() if args.more else Models(), 60 * args.minutes)
    np.savez(WEIGHTS, **{name: value.half().numpy() for name, value in trained.state_dict().items()})
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size:,} bytes")
