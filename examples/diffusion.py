"""A small latent diffusion pipeline that draws a picture from a text, on any GPU.

    python examples/diffusion.py "a large red circle" -o picture.png
    python examples/diffusion.py "a small blue cross" --scheduler euler --steps 20 --guidance 3 --compare

The first run exports the text encoder, the U-Net and the decoder of `diffusion_models.py` to three `.pte` files (extra
`export`); later runs need NumPy and ptegpu only. `--compare` also computes every step in PyTorch. The models know only
small and large red, green, blue and yellow circles, squares, triangles and crosses.
"""

from __future__ import annotations

import argparse
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from diffusion_steps import LENGTH, SCHEDULERS, WORDS, signal_levels, tokens

import ptegpu

NAMES = ("text", "unet", "decoder")
Model = Callable[..., np.ndarray]


def export(folder: Path, *, delegate: bool = True) -> None:
    """Write the three programs into a folder. Texts have a batch of two: the empty text and the prompt."""
    import diffusion_models
    import torch

    from ptegpu.export import export

    folder.mkdir(parents=True, exist_ok=True)
    models = diffusion_models.load()
    latents, ids = torch.randn(2, 4, 8, 8), torch.ones(2, LENGTH, dtype=torch.int64)
    examples = {"text": (ids,), "unet": (latents, torch.full((2,), 500.0), models.text(ids)), "decoder": (latents[:1],)}
    for name in NAMES:
        export(getattr(models, name), examples[name], folder / f"{name}.pte", delegate=delegate)


def in_pytorch() -> dict[str, Model]:
    """Return the same models in PyTorch."""
    import diffusion_models
    import torch

    models = diffusion_models.load()

    def numpy(name: str) -> Model:
        return lambda *inputs: getattr(models, name)(*map(torch.from_numpy, inputs)).numpy()

    return {name: numpy(name) for name in NAMES}


def sample(
    models: dict[str, Any], prompt: str, scheduler: str, steps: int, guidance: float, seed: int
) -> Iterator[np.ndarray]:
    """Yield the latents (1, 4, 8, 8) after each step; the last ones decode to the picture."""
    schedule = SCHEDULERS[scheduler](signal_levels(), steps)
    context = models["text"](np.concatenate([tokens(""), tokens(prompt)]))  # (2, LENGTH, 32)
    x = schedule.start(np.random.default_rng(seed).standard_normal((1, 4, 8, 8), np.float32))
    for i, level in enumerate(schedule.levels):
        both = np.repeat(schedule.scaled(x, i), 2, axis=0)
        without_text, with_text = np.split(models["unet"](both, np.full(2, level, np.float32), context), 2)
        x = schedule.step(x, without_text + guidance * (with_text - without_text), i)
        yield x


def pixels(picture: np.ndarray, times: int = 1) -> np.ndarray:
    """Convert (1, 3, H, W) from -1 to 1 to bytes (H, W, 3), repeating each pixel `times` times."""
    image = np.clip((picture[0] + 1) * 127.5, 0, 255).round().astype(np.uint8).transpose(1, 2, 0)
    return image.repeat(times, 0).repeat(times, 1)


def png(image: np.ndarray) -> bytes:
    """Encode bytes (H, W, 3) as a PNG file."""
    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)  # filter type 0 for each row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a picture from a text, on any GPU.")
    parser.add_argument(
        "prompt", nargs="?", default="a large red circle", help=f"of these words: {', '.join(WORDS[1:])}"
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("picture.png"))
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="dpm")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--guidance", type=float, default=3.0, help="weight of the text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("diffusion"), help="folder of the exported programs")
    parser.add_argument("--compare", action="store_true", help="compare each step with PyTorch")
    args = parser.parse_args()
    if not all((args.folder / f"{name}.pte").exists() for name in NAMES):
        export(args.folder)
    options = (args.prompt, args.scheduler, args.steps, args.guidance, args.seed)
    with ExitStack() as stack:
        models = {name: stack.enter_context(ptegpu.load(args.folder / f"{name}.pte")) for name in NAMES}
        expected = sample(in_pytorch(), *options) if args.compare else None
        for step, latents in enumerate(sample(models, *options), 1):
            if expected is not None:
                reference = next(expected)
                apart = float(abs(latents - reference).max())
                print(f"step {step:2}: at most {apart:.1e} from PyTorch, of latents up to {abs(reference).max():.2f}")
        args.output.write_bytes(png(pixels(models["decoder"](latents), 8)))
        plans = {name: len(program.method("forward").plans) for name, program in models.items()}
        print(
            f"{args.output}: {args.prompt!r} in {args.steps} steps on {models['unet'].device.info.place}; plans {plans}"
        )


if __name__ == "__main__":
    main()
